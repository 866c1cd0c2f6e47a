"""Routes: their look-up order, their files, and that a change is seen at the next call."""

from __future__ import annotations

import tomllib
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Event

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import cake
from cake.launch import routes as launch_routes
from cake.plan import CPU, Routes, plan
from cake.plan.planner import default_partition, tokens
from cake.plan.raster import Raster
from cake.plan.routes import Target, key_of, merged, parse, read, text
from cake.plan.rules import Rule, find, line, match, shipped
from tests.cake.products import KINDS, call, error, inputs, reference
from tests.cake.test_planner import problem

ROUTE = {"op": "fwd", "tile": "64x64", "hold": 1, "raster": 1, "why": "a test"}
TARGET = Target("cpu", CPU, "abc")

some = st.one_of
sizes = st.integers(1, 3)
rules_ = st.builds(
    lambda op, n, k, out, t, tile, hold, raster, splits, why, emulation: Rule(
        op, n, k, out, *(sorted(t) if t else (None, None)), tile, hold, Raster(raster), why, splits, emulation
    ),
    st.sampled_from(KINDS),
    some(st.none(), sizes),
    some(st.none(), sizes),
    some(st.none(), st.sampled_from(["f32", "bf16"])),
    some(st.none(), st.tuples(sizes, sizes)),
    st.sampled_from([(64, 64), (128, 64)]),
    st.sampled_from([1, 4]),
    st.integers(1, 99),
    some(st.none(), st.integers(1, 16)),
    st.text(st.characters(exclude_categories=["Cs"])),
    st.sampled_from([None, "bf16x3"]),
)


@pytest.fixture(autouse=True)
def at_first(monkeypatch, tmp_path):
    """No device has been used yet, and there is nothing on disk."""
    monkeypatch.setattr(launch_routes, "_tables", {})
    monkeypatch.setenv("CAKE_CACHE_DIR", str(tmp_path))


@given(rule=rules_)
def test_a_line_is_read_back_as_it_was(rule):
    entry = tomllib.loads(f"routes = [{line(rule)}]")["routes"]
    assert parse(entry, "sm80") == (rule,)


@given(table=st.lists(rules_, max_size=6), key=st.tuples(st.sampled_from(KINDS), sizes, sizes, sizes))
def test_exact_before_range_before_default_then_the_one_that_names_more(table, key):
    where = (*key, "f32")
    found = match(table, *where)
    fitting = [r for r in table if r.matches(*where, "bf16x3")]
    assert (found is None) == (not fitting) and (found is None or found in fitting)
    for r in fitting:
        assert found is not None and found.rank <= r.rank


@given(kind=st.sampled_from(KINDS), rule=rules_, deterministic=st.booleans(), splits=some(st.none(), sizes))
@settings(deadline=None)
def test_a_route_goes_before_every_shipped_rule_where_no_bits_are_promised(kind, rule, deterministic, splits):
    """Even one that names nothing, where the shipped rule names all."""
    p = problem(kind, 600, 64, 1024)
    route = replace(rule, op=kind, n=None, k=None, out=None, first=None, last=None)
    made = plan(p, "sm80", deterministic=deterministic, splits=splits, routes=Routes("sm80", (route,)))
    if deterministic or splits is not None:
        assert made == plan(p, "sm80", deterministic=deterministic, splits=splits)
        return
    hold = route.hold if made.partition.segments > 1 else 1
    assert ((made.program.tile_m, made.program.tile_n), made.hold, made.raster) == (
        route.tile,
        hold,
        route.raster,
    )
    if route.splits is None:
        assert made.partition == default_partition(p)
    else:
        assert made.partition.segments <= route.splits


@pytest.mark.parametrize("emulation", [None, "bf16x3"])
def test_a_route_is_of_its_family_and_emulation_alone(emulation):
    p = problem("fwd", 64, 64, 1024)
    entry = {**ROUTE, "splits": 1} | ({"emulation": emulation} if emulation else {})
    for family in ("sm80", "sm90"):
        free = {"deterministic": False, "routes": Routes(family, parse([entry], family))}
        assert plan(p, family, **free).partition.segments == 1
        followed = family == "sm90" and emulation is None
        made = plan(p, "sm90", emulation="fp16x2", **free)
        assert (made.partition.segments == 1) == followed


def test_where_no_route_matches_the_shipped_rules_decide():
    p = problem("fwd", 64, 64, 1024)
    other = parse([{**ROUTE, "T": 65}], "sm80")
    assert plan(p, "sm80", deterministic=False, routes=Routes("sm80", other)) == plan(
        p, "sm80", deterministic=False
    )
    assert find(shipped("sm80"), "fwd", *tokens(p), "f32").splits is None


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([{**ROUTE, "splits": 17}], "splits is 17, needs 1 to 16"),
        ([{**ROUTE, "splits": "2"}], "splits is '2', needs a positive integer"),
        (
            [{**ROUTE, "tile": "128x128"}],
            "route .*128x128.*no program router_sm80_128x128.*tiles of sm80 with bf16x3 are 64x64, 128x64",
        ),
        ([{**ROUTE, "tile": "60x64"}], "no program router_sm80_60x64"),
        ([ROUTE, {**ROUTE, "hold": 4}], "there is another one for the same op, n, k, out, emulation and T"),
        (["fwd"], "route 'fwd': needs a table"),
        ([{**ROUTE, "hold": None}], "hold is None, needs 1 or 4"),
        ([{"op": "fwd"}], "route .*needs hold, op, raster, tile, why; may have .*splits"),
    ],
)
def test_a_bad_route_is_named_and_leaves_the_routes_as_they_were(entries, message):
    before = cake.set_routes([ROUTE], device="cpu")
    with pytest.raises(ValueError, match=message):
        cake.set_routes(entries, device="cpu")
    assert cake.routes("cpu") is before


def test_routes_of_another_family_are_refused():
    with pytest.raises(ValueError, match="routes of the sm90 family; cpu has sm80"):
        cake.set_routes(Routes("sm90"), device="cpu")


def test_generations_rise_and_tables_can_be_put_back():
    first = cake.routes("cpu")
    assert first == Routes("sm80")
    second = cake.set_routes([ROUTE], device="cpu")
    third = cake.set_routes(None, device="cpu")
    assert first.generation < second.generation < third.generation and third.rules == ()
    assert cake.set_routes(second, device="cpu").rules == second.rules
    assert cake.routes("cpu").generation > third.generation


def test_new_routes_take_the_place_of_old_ones_and_of_what_was_tuned():
    old = parse([{**ROUTE, "T": t} for t in (1, 2, 3)], "sm80")
    [new] = parse([{**ROUTE, "T": 2, "hold": 4}], "sm80")
    assert merged(old, [new], [key_of(old[0])]) == (old[2], new)


# --- files --------------------------------------------------------------------------------------------------


@given(table=st.lists(rules_, max_size=4, unique_by=key_of), name=st.text(max_size=8))
def test_a_file_is_read_back_as_it_was(table, name):
    if any(0xD800 <= ord(c) < 0xE000 for c in name):
        return
    target = Target(name, CPU, "abc")
    assert read(text(table, target), target) == tuple(table)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("routes = [", "."),
        ("rules = []", "it has rules; needs routes = "),
        (text((), replace(TARGET, name="other")), "it is of another device: .*other"),
        (text((), replace(TARGET, spec=replace(CPU, sms=78))), "it is of another device: .*78"),
        (text((), replace(TARGET, code="old")), "have changed since: code old, now abc"),
    ],
)
def test_a_file_that_cannot_be_used_says_why(data, message):
    with pytest.raises(ValueError, match=message):
        read(data, TARGET)


def test_a_file_may_leave_out_what_it_was_made_for():
    assert read(f"routes = [{line(parse([ROUTE], 'sm80')[0])}]", TARGET) == parse([ROUTE], "sm80")


def test_the_device_is_in_the_name_of_its_file():
    assert replace(TARGET, name="NVIDIA H200").key == "nvidia-h200-cpu-132" and TARGET.key == "cpu-132"


def installed(routes=(ROUTE,), **changes):
    target = replace(launch_routes.target_of("cpu"), **changes)
    path = launch_routes.path_of(launch_routes.target_of("cpu"))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text(parse(routes, "sm80"), target))
    return path


def test_a_file_is_found_at_first_use_and_its_next_calls_are_repeats():
    path = installed([{**ROUTE, "splits": 2}])
    tensors = inputs(16, 16, 1024, "cpu")
    call("fwd", tensors, deterministic=False)
    assert cake.routes("cpu").source == str(path) and cake.routes("cpu").generation == 0
    call("fwd", tensors, deterministic=False)
    [entry] = cake.router._entries._kept.values()
    assert entry.plan.partition.segments == 2


@pytest.mark.parametrize("kind", ["damaged", "another version", "no program", "not text"])
def test_a_file_that_cannot_be_used_is_one_warning_that_says_what_to_do(kind):
    path = installed(code="old" if kind == "another version" else launch_routes.code())
    if kind == "damaged":
        path.write_text("routes = [")
    elif kind == "no program":
        installed([{**ROUTE, "tile": "8x8"}])
    elif kind == "not text":
        path.write_bytes(b"\xff\xfe")
    tensors = inputs(16, 16, 1024, "cpu")
    expected = call("fwd", tensors)
    with pytest.warns(
        RuntimeWarning, match=r"cpu-132.toml: .*cake-bench tune --install, or delete the file"
    ) as w:
        found = call("fwd", tensors, deterministic=False)
    assert len(w) == 1 and cake.routes("cpu") == Routes("sm80") and torch.equal(found, expected)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        call("fwd", tensors, deterministic=False)


def test_a_file_given_by_name_is_refused_where_it_cannot_be_used(tmp_path):
    path = installed(code="old")
    with pytest.raises(ValueError, match=r"routes in .*cpu-132.toml: .*changed since: code old"):
        cake.set_routes(path, device="cpu")
    with pytest.raises(ValueError, match="cannot read routes from .*: No such file"):
        cake.set_routes(tmp_path / "none.toml", device="cpu")
    assert cake.set_routes(str(installed()), device="cpu").rules == parse([ROUTE], "sm80")


# --- caches -------------------------------------------------------------------------------------------------


def segments() -> int:
    """Of the plan made last."""
    return list(cake.router._entries._kept.values())[-1].plan.partition.segments


@pytest.mark.parametrize("kind", KINDS)
def test_a_change_is_seen_at_the_next_call(device, kind):
    """Also one that changes nothing but the partition of a plan whose caller pins none."""
    tensors = inputs(600, 512, 520, device)
    plain = call(kind, tensors, deterministic=False)
    usual = list(cake.router._entries._kept.values())[-1].plan
    t = usual.program
    route = {
        "op": kind,
        "emulation": "bf16x3",
        "tile": f"{t.tile_m}x{t.tile_n}",
        "hold": usual.hold,
        "raster": usual.raster.height,
        "why": "a test",
    }
    for splits in (1, 2, 3, 1):
        cake.set_routes([{**route, "splits": splits}], device=device)
        result = call(kind, tensors, deterministic=False)
        made = list(cake.router._entries._kept.values())[-1].plan
        assert made.partition.segments == splits and made.program == usual.program
        assert error(result, reference(kind, tensors)) <= 4e-7
        assert cake.prepare_router(
            kind,
            **{n: tensors[n] for n in {"fwd": "XW", "dgrad": "GW", "wgrad": "GX"}[kind]},
            deterministic=False,
        ).plans == (made,)
    cake.set_routes(None, device=device)
    call(kind, tensors, deterministic=False)
    assert list(cake.router._entries._kept.values())[-1].plan == usual
    assert error(plain, reference(kind, tensors)) <= 4e-7


def test_deterministic_and_pinned_calls_follow_no_route():
    tensors = inputs(70, 64, 1024, "cpu")
    expected, pinned = call("fwd", tensors), call("fwd", tensors, splits=3, deterministic=False)
    cake.set_routes([{**ROUTE, "splits": 1}], device="cpu")
    assert torch.equal(call("fwd", tensors), expected)
    assert torch.equal(call("fwd", tensors, splits=3, deterministic=False), pinned)
    assert not torch.equal(call("fwd", tensors, deterministic=False), expected)


def test_a_repeat_call_makes_no_new_entry():
    tensors = inputs(16, 16, 64, "cpu")
    cake.set_routes([ROUTE], device="cpu")
    for _ in range(3):
        call("fwd", tensors, deterministic=False)
    assert len(cake.router._entries) == 1
    cake.clear_caches()
    assert cake.routes("cpu").rules, "routes are settings, not a cache"


def test_a_plan_by_the_old_table_never_comes_under_the_new_generation(monkeypatch):
    """The routes are replaced while a call that has planned by the old ones is about to keep its entry."""
    tensors = inputs(16, 16, 1024, "cpu")
    make = cake.router._entries.make

    def replaced_meanwhile(*arguments):
        entry = make(*arguments)
        monkeypatch.setattr(cake.router._entries, "make", make)
        cake.set_routes([{**ROUTE, "splits": 2}], device="cpu")
        return entry

    monkeypatch.setattr(cake.router._entries, "make", replaced_meanwhile)
    call("fwd", tensors, deterministic=False)
    assert segments() == 4
    call("fwd", tensors, deterministic=False)
    assert segments() == 2


def test_two_threads_while_routes_are_replaced(device):
    """Every result is that of one of the tables, and after the last change that of the last one."""
    sets = [inputs(64, 64, 1024, device, seed=s) for s in range(2)]
    tile = {"sm80": "64x64", "sm90": "64x64"}[cake.routes(device).family]
    tables = [[{**ROUTE, "tile": tile, "splits": splits}] for splits in (1, 2, 4)]
    right = [[], []]
    for table in tables:
        cake.set_routes(table, device=device)
        for i in range(2):
            right[i].append(call("fwd", sets[i], deterministic=False))
    done = Event()

    def work(i: int) -> bool:
        fine = True
        while fine and not done.is_set():
            found = call("fwd", sets[i], deterministic=False)
            fine = any(torch.equal(found, r) for r in right[i])
        return fine

    with ThreadPoolExecutor(2) as pool:
        running = [pool.submit(work, i) for i in range(2)]
        for n in range(60):
            cake.set_routes(tables[n % 3], device=device)
        done.set()
        assert all(r.result() for r in running)
    for i in range(2):
        assert torch.equal(call("fwd", sets[i], deterministic=False), right[i][59 % 3])
