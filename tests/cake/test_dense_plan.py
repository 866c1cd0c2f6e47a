"""Plans and rules of projections: what decides bits, what a launch needs, who wins a look-up."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cake import cpu, operand
from cake.operand import Problem, View
from cake.plan import dense_rules
from cake.plan.dense import (
    SM80_FORMS,
    ProjectionPlan,
    by_way,
    default_partition,
    plan_projection,
    planted,
    projection_problem,
    tokens,
)
from cake.plan.dense_rules import DenseRule, line, match, parse, shipped
from cake.plan.device import CPU, PROJECTIONS, DeviceSpec, UnsupportedDevice
from cake.plan.forms import FORMS
from cake.plan.partition import CHUNK, MAX_SEGMENTS
from cake.plan.raster import Raster
from cake.plan.ways import Way
from cake.program.registry import keys_of, program

from .projections import KINDS, bits, inputs, matrices

BASE = {"op": "fwd", "form": "64x64", "raster": 8, "why": "a test"}
SPECS = [CPU, DeviceSpec("sm_80", 108), DeviceSpec("sm_90a", 132), DeviceSpec("sm_86", 16)]
SIZES = st.integers(1, 20_000)


def problem(m: int, n: int, k: int, batch: int = 1, *, kind="gemm", units=(1, 0, 1), out="bf16") -> Problem:
    def view(rows: int, cols: int, unit: int, dtype: str) -> View:
        ld = -(-(cols if unit else rows) // 8) * 8
        return View(rows, cols, ld, unit, dtype, batch, ld * (rows if unit else cols))

    a, b, o = units
    return Problem(kind, view(m, k, a, "bf16"), view(k, n, b, "bf16"), view(m, n, o, out))


PROBLEMS = st.builds(
    problem,
    SIZES,
    SIZES,
    SIZES,
    st.integers(1, 80),
    units=st.tuples(*[st.integers(0, 1)] * 3),
    out=st.sampled_from(["bf16", "f32"]),
)


@given(PROBLEMS, st.sampled_from(SPECS), st.booleans())
def test_a_plan_covers_its_problem(p, spec, deterministic):
    plan = plan_projection(p, spec, deterministic=deterministic)
    assert plan.problem == (p.swapped() if plan.swapped else p)
    (rows, columns), (high, wide) = plan.tiles, plan.tile
    assert (rows - 1) * high < plan.problem.m <= rows * high
    assert (columns - 1) * wide < plan.problem.n <= columns * wide
    assert plan.partition.k == p.k and 1 <= plan.parts <= MAX_SEGMENTS
    assert plan.partition.segment % CHUNK == 0
    bounds = plan.partition.bounds
    assert [b for b, _ in bounds] == [0, *(e for _, e in bounds[:-1])] and bounds[-1][1] == p.k
    assert (plan.reduction == "direct") == (plan.parts == 1)
    needs = plan.partial_floats, plan.counters
    tiles = math.prod(plan.tiles) * p.batch
    assert needs == ((0, 0) if plan.parts == 1 else (tiles * plan.parts * math.prod(plan.tile), 32 * tiles))
    assert program(plan.program).name == str(plan.program) and plan.program in keys_of("sm_90a")
    assert str(plan).startswith(f"{plan.program} K{p.k}={plan.parts}x{plan.partition.segment} ")


@given(PROBLEMS, st.sampled_from(SPECS))
def test_the_partition_is_the_shape_s(p, spec):
    """Not the device's, the layout's, the output's; and the transpose has the same."""
    part = default_partition(p)
    assert part == default_partition(p.swapped())
    if spec.projection_family == "sm80":
        assert plan_projection(p, spec).partition == part


@given(PROBLEMS)
def test_swapped_twice_is_what_it_was(p):
    s = p.swapped()
    assert s.swapped() == p and (s.m, s.n, s.k, s.batch) == (p.n, p.m, p.k, p.batch)


@settings(deadline=None, max_examples=40)
@given(
    st.tuples(st.integers(1, 150), st.integers(1, 20), st.integers(1, 400)),
    st.integers(0, 3),
    st.sampled_from(KINDS),
    st.integers(1, 16),
    st.booleans(),
)
def test_plans_that_share_a_partition_have_the_same_bits(shape, heads, kind, splits, transposed):
    t, n, k = shape
    tensors = inputs(t, 8 * n, k, heads=heads)
    a, b = matrices(kind, tensors)
    found = set()
    results = []
    for form in SM80_FORMS:
        for raster in (1, 3):
            shape_of_out = (*a.shape[:-2], a.shape[-2], b.shape[-1])
            out = operand.new_output(shape_of_out, torch.bfloat16, torch.device("cpu"))
            if transposed:
                out = operand.new_output((*a.shape[:-2], *out.shape[:-3:-1]), torch.bfloat16, out.device).mT
            views = [operand.batched_view("in", x) for x in (a, b)]
            p = Problem("gemm", *views, operand.output_view("out", out))
            plan = plan_projection(
                p, CPU, rule=parse({**BASE, "form": form, "raster": raster, "splits": splits})
            )
            cpu.run_projection(plan, a, b, out)
            found.add(plan.partition)
            results.append(bits(out))
    assert len(found) == 1 and all(torch.equal(r, results[0]) for r in results)


def test_a_cut_of_k_is_seen_in_the_bits():
    a, b = matrices("wgrad", inputs(4096, 8, 64))
    results = []
    for splits in (1, 8):
        out = torch.empty(8, 64)
        p = Problem("gemm", operand.view("a", a), operand.view("b", b), operand.view("out", out))
        cpu.run_projection(plan_projection(p, CPU, rule=parse({**BASE, "splits": splits})), a, b, out)
        results.append(out)
    assert not torch.equal(*results) and (results[0] - results[1]).norm() <= 1e-5 * results[0].norm()


def test_tokens_and_features():
    t, n, k = 96, 16, 64
    x, w, g = View(t, k, k, 1, "bf16"), View(n, k, k, 1, "bf16"), View(t, n, n, 1, "bf16")
    made = [
        projection_problem("fwd", x, w, View(t, n, n, 1, "bf16")),
        projection_problem("dgrad", g, w, View(t, k, k, 1, "bf16")),
        projection_problem("wgrad", g, x, View(n, k, k, 1, "bf16")),
    ]
    assert [tokens(p) for p in made] == [(t, n, k)] * 3
    assert all(p.a.rows == p.m and p.b.cols == p.n and p.a.cols == p.b.rows == p.k for p in made)


def test_outputs_of_columns_are_stored_as_rows_of_the_transpose():
    plan = plan_projection(problem(500, 96, 64, units=(1, 1, 0)), DeviceSpec("sm_80", 108))
    assert plan.swapped and (plan.problem.m, plan.problem.n) == (96, 500)
    assert str(plan.program).endswith("_xk_bf16_r") and " swapped, bands of 8" in str(plan)


def test_planted_is_another_program_of_the_same_plan():
    plan = plan_projection(problem(500, 96, 64), DeviceSpec("sm_80", 108))
    slow = planted(plan, 7)
    assert slow.spin == 7 and str(slow.program) == f"{plan.program}_planted"
    assert replace(slow, spin=0, program=plan.program) == plan


def test_walkers_are_the_grid():
    plan = plan_projection(problem(500, 96, 64, 3), DeviceSpec("sm_80", 108))
    assert plan.grid == (3 * math.prod(plan.tiles), 1, 1)
    assert replace(plan, walkers=5).grid == (5, 1, 1) and " 5 walkers," in str(replace(plan, walkers=5))


def test_an_unsupported_device_says_what_is_supported():
    with pytest.raises(UnsupportedDevice, match="sm_75 has no program: supported are GPUs of compute capab"):
        plan_projection(problem(8, 8, 8), DeviceSpec("sm_75", 40))


def test_a_rule_s_form_must_be_one():
    with pytest.raises(LookupError, match="form '32x32'; the sm80 family has 128x128, 128x64, 64x64"):
        plan_projection(problem(8, 8, 8), DeviceSpec("sm_80", 108), rule=parse({**BASE, "form": "32x32"}))


def test_exact_before_range_before_ragged_before_default():
    table = [
        parse({**BASE, "why": "default"}),
        parse({**BASE, "T": "ragged", "why": "ragged"}),
        parse({**BASE, "T": [1, 100], "why": "range"}),
        parse({**BASE, "T": 72, "why": "exact"}),
    ]
    found = [match(table, "fwd", t, 256, 4096, 1, "bf16") for t in (71, 72, 73, 101, 128)]
    assert [r.why for r in found if r] == ["range", "exact", "range", "ragged", "default"]
    assert match(table, "dgrad", 72, 256, 4096, 1, "bf16") is None


def test_the_rule_that_names_more_wins():
    table = [
        parse(BASE),
        parse({**BASE, "heads": 64, "why": "heads"}),
        parse({**BASE, "n": 8, "k": 64, "why": "both"}),
    ]
    found = [match(table, "fwd", 1, n, 64, heads, "f32") for n, heads in ((16, 1), (16, 64), (8, 64))]
    assert [r.why for r in found if r] == ["a test", "heads", "both"]


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"T": 64, "n": 576, "k": 6144, "heads": 64, "out": "f32"},
        {"T": [1, 9], "splits": 4, "tail": True, "swapped": True},
        {"T": "ragged", "why": 'with "quotes"'},
    ],
    ids=str,
)
def test_a_rule_reads_back_as_it_was_written(more):
    import tomllib

    rule = parse({**BASE, **more})
    assert parse(tomllib.loads(f"rule = {line(rule)}")["rule"]) == rule


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"op": "fwd"}, "needs form, op, raster, why; may have T, heads, k, n, out, splits, swapped, tail"),
        ({**BASE, "tile": "64x64"}, "may have T, heads"),
        ({**BASE, "op": "bwd"}, "op is 'bwd', needs fwd, dgrad, wgrad or gemm"),
        ({**BASE, "T": "odd"}, r"T is 'odd', needs a positive integer or \[first, last\]"),
        ({**BASE, "T": [9, 1]}, r"T is \[9, 1\], needs"),
        ({**BASE, "splits": 17}, "splits is 17, needs 1 to 16"),
        ({**BASE, "splits": True}, "splits is True, needs a positive integer"),
        ({**BASE, "tail": 1}, "tail is 1, needs true or false"),
        ({**BASE, "heads": "64"}, "heads is '64', needs a positive integer"),
        ({**BASE, "form": 64}, "form is 64, needs the name of a program's form"),
        ({**BASE, "out": "fp32"}, "out is 'fp32', needs f32 or bf16"),
    ],
)
def test_a_bad_rule_says_why(entry, message):
    with pytest.raises(ValueError, match=message):
        parse(entry)


SHIPPED = [(family, rule) for family in PROJECTIONS for rule in shipped(family)]


def of_rule(rule: DenseRule) -> Problem:
    """A problem that a rule applies to."""
    t = 65 if rule.ragged else rule.first or 64
    n, k = rule.n or 256, rule.k or 512
    m, n, k = {"dgrad": (t, k, n), "wgrad": (n, k, t)}.get(rule.op, (t, n, k))
    return problem(m, n, k, rule.heads or 1, kind=rule.op, out=rule.out or "bf16")


@pytest.mark.parametrize(("family", "rule"), SHIPPED, ids=lambda x: x if isinstance(x, str) else line(x))
def test_a_shipped_rule_is_found_and_has_its_program(family, rule):
    spec = next(s for s in SPECS if s.arch != "cpu" and s.projection_family == family)
    plan = plan_projection(of_rule(rule), spec)
    assert plan == plan_projection(of_rule(rule), spec, rule=rule) and program(plan.program) and rule.why


def test_a_shipped_rule_decides(monkeypatch):
    rule = parse({**BASE, "n": 256, "T": 64, "splits": 3, "form": "128x64"})
    monkeypatch.setattr(dense_rules, "shipped", lambda family: (rule,))
    spec = DeviceSpec("sm_80", 108)
    plans = [plan_projection(problem(t, 256, 4096, kind="fwd"), spec) for t in (63, 64, 65)]
    assert [p.parts for p in plans] == [default_partition(plans[0].problem).segments, 3, plans[0].parts]
    assert plans[1].program.form == "128x64" and plans[1].raster == Raster(8)
    assert isinstance(plans[0], ProjectionPlan)


@pytest.mark.parametrize("form", FORMS)
@given(m=st.integers(1, 600), n=st.integers(1, 80), splits=st.sampled_from([1, 3]), sms=st.integers(1, 132))
def test_only_forms_of_two_blocks_have_halves(form, m, n, splits, sms):
    """A program whose warpgroups have one block does not halve: more units would be tiles past the last."""
    a, b, out = (
        View(m, 520, 520, 1, "bf16"),
        View(520, 8 * n, 520, 0, "bf16"),
        View(m, 8 * n, 8 * n, 1, "bf16"),
    )
    plan = by_way(Problem("gemm", a, b, out), Way(form, splits, tail=True), sms)
    whole, halves = plan.cut
    assert whole + halves // 2 == math.prod(plan.tiles) * plan.parts and halves % 2 == 0
    assert halves == 0 or FORMS[form].height > 1
    assert plan.walkers <= sms and plan.grid == (min(sms, whole + halves), 1, 1)
