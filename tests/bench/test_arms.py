from __future__ import annotations

from types import ModuleType

import pytest
import torch
from bench_builders import ROW, library

import cake
from baselines.gemm import Library, Unsupported
from bench import arms
from bench.accuracy import budget_of, failure, measure, poison, references
from bench.arms import Arm, ArmsError, Prepared, cake_arms, library_arms, load_arms
from bench.layers import DenseShape, Layer
from bench.model import Candidate, GemmSearch, Picks
from bench.suites import MODES, OPS, SUITE_OPS, Row
from bench.tensors import dense_tensors, router_tensors, shape_of
from cake.plan import UnsupportedDevice


@pytest.fixture
def tensors():
    return router_tensors(ROW, "cpu")


def picks(**fastest):
    """Searches of ROW's shape: for each kind the (library, index) that is fastest; all others are slower."""
    searches = []
    for kind, (name, index) in fastest.items():
        candidates = [
            Candidate(
                library=n,
                index=i,
                function="mm",
                algorithm=f"algorithm {i}",
                us=1.0 if (n, i) == (name, index) else 5.0 + i,
                verified=True,
            )
            for n in ("one", "many")
            for i in range(3 if n == "many" else 1)
        ]
        s = ROW.shape
        searches.append(GemmSearch(kind=kind, T=s.T, H=s.H, N=s.N, candidates=tuple(candidates)))
    return Picks(searches=tuple(searches))


LIBRARIES = [
    library("one"),
    library("many", searched=True, scale=(1.0, 1.0, 1.0)),
    library("emu", native="one"),
]


def by_name(p):
    return {a.name: a for a in library_arms(LIBRARIES, p)}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("op", OPS)
def test_cake_arms_do_every_op_within_the_budget(op, mode):
    row = Row("router", op, mode, ROW.shape)
    t = router_tensors(row, "cpu")
    refs = references(t)
    for arm in cake_arms()[:3]:
        for kind in row.gemms:
            t.output(kind).fill_(float("nan"))
        prepared = arm.bind(row, t)
        prepared.run()
        assert measure(row, t, refs).rel_fro < 4e-7
        assert len(prepared.calls) == len(row.gemms)
        assert prepared.calls[0].algorithm and prepared.program and prepared.partition


DENSE = [
    DenseShape(Layer("plain", 64, 24), 33),
    DenseShape(Layer("slotted", 24, 32, heads=3, slot=40, weight="in_out"), 17),
]


@pytest.mark.parametrize("out", ["bf16", "f32"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("op", SUITE_OPS["dense"])
@pytest.mark.parametrize("shape", DENSE)
def test_cake_arms_do_every_projection_within_the_budget(shape, op, mode, out):
    row = Row("dense", op, mode, shape, out)
    t = dense_tensors(row, "cpu")
    refs = references(t)
    for arm in cake_arms():
        if not arm.does(row):
            assert arm.name == "cake_fp16x2"
            continue
        poison(row, t)
        prepared = arm.bind(row, t)
        prepared.run()
        assert failure(measure(row, t, refs), budget_of(row)) == ""
        [call] = prepared.calls
        assert call.function.startswith("projection_") and call.algorithm
        assert prepared.program and prepared.partition


def test_a_version_without_projections_is_unsupported():
    row = Row("dense", "fwd", "eager", DENSE[0], "bf16")
    old = ModuleType("old")
    with pytest.raises(Unsupported, match="this version has no prepare_projection"):
        cake_arms(old)[-1].bind(row, dense_tensors(row, "cpu"))


def test_library_arms_of_a_projection_take_the_searched_call():
    row = Row("dense", "wgrad", "eager", DENSE[0], "bf16")
    t = dense_tensors(row, "cpu")
    search = GemmSearch.model_validate(
        {
            "kind": "wgrad",
            **shape_of(row),
            "candidates": [
                {
                    "library": "many",
                    "index": i,
                    "function": "mm",
                    "algorithm": f"algorithm {i}",
                    "us": 3.0 - i,
                }
                | {"verified": True}
                for i in range(3)
            ],
        }
    )
    arms = by_name(Picks(searches=(search,)))
    assert not arms["sequence"].does(row)
    assert arms["many_best"].bind(row, t).calls[0].algorithm == "algorithm 2"
    assert arms["many_first"].bind(row, t).calls[0].algorithm == "algorithm 0"


def test_control_is_the_same_as_cake_but_another_instance():
    cake, control, det, fp16x2 = cake_arms()
    assert [a.name for a in (cake, control, det, fp16x2)] == ["cake", "control", "cake_det", "cake_fp16x2"]
    assert cake.prepare is not control.prepare


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("op", OPS)
def test_fp16x2_of_every_op_is_within_the_budget(op, mode):
    """Bound as its arm binds it on a GPU."""
    row = Row("router", op, mode, ROW.shape)
    t = router_tensors(row, "cpu")
    prepared = arms._bind_cake(cake, row, t, {"deterministic": False, "emulation": "fp16x2"})
    prepared.run()
    assert measure(row, t, references(t)).rel_fro < 4e-7
    assert prepared.program is not None and prepared.partition and prepared.digest
    assert all(program.endswith("_fp16x2") for program in prepared.program.split(" + "))


def test_fp16x2_is_unsupported_on_a_cpu(tensors):
    with pytest.raises(Unsupported, match="cake's CPU executor is a reference for checking, and fp16x2 of"):
        cake_arms()[3].bind(ROW, tensors)


def test_a_device_without_the_programs_is_unsupported(tensors, monkeypatch):
    def refuse(*_):
        raise UnsupportedDevice("sm_80 has no fp16x2 programs")

    monkeypatch.setattr(arms, "_bind_cake", refuse)
    with pytest.raises(Unsupported, match="sm_80 has no fp16x2 programs"):
        cake_arms()[0].bind(ROW, tensors)


def test_arms_of_libraries_in_print_order():
    arms = library_arms(LIBRARIES, Picks())
    assert [a.name for a in arms] == ["one", "many_first", "many_best", "emu", "sequence"]
    assert [a.native for a in arms] == [None, None, None, "one", None]
    assert all(a.kind == "library" for a in arms)


def test_first_and_best_are_different_calls(tensors):
    arms = by_name(picks(dgrad=("many", 2), wgrad=("many", 1)))
    first, best = (arms[n].bind(ROW, tensors) for n in ("many_first", "many_best"))
    assert [c.algorithm for c in first.calls] == ["algorithm 0", "algorithm 0"]
    assert [c.algorithm for c in best.calls] == ["algorithm 2", "algorithm 1"]


def test_sequence_takes_the_fastest_of_all_native_libraries(tensors):
    arm = by_name(picks(dgrad=("many", 1), wgrad=("one", 0)))["sequence"]
    prepared = arm.bind(ROW, tensors)
    assert [(c.library, c.algorithm) for c in prepared.calls] == [
        ("many", "algorithm 1"),
        ("one", "algorithm 0"),
    ]
    prepared.run()
    assert measure(ROW, tensors, references(tensors)).rel_fro < 2e-6


def test_sequence_is_for_ops_of_two_gemms_and_more():
    arm = by_name(Picks())["sequence"]
    assert [arm.does(Row("router", op, "eager", ROW.shape)) for op in OPS] == [
        False,
        False,
        False,
        True,
        True,
    ]


def test_sequence_without_a_verified_call_is_unsupported(tensors):
    with pytest.raises(Unsupported, match="no library has a verified call for dgrad of T16-H64-N32"):
        by_name(Picks())["sequence"].bind(ROW, tensors)


def test_a_forward_run_twice_is_called_twice():
    count = []
    row = Row("router", "2fwd+bwd", "eager", ROW.shape)
    [arm, _] = library_arms([library("one", on_run=count.append)], Picks())
    arm.bind(row, router_tensors(row, "cpu")).run()
    assert len(count) == 4


def test_a_pick_that_is_gone_says_so(tensors):
    arms = library_arms(
        [Library("many", "cpu", LIBRARIES[0].candidates, None, True)], picks(dgrad=("many", 2))
    )
    row = Row("router", "dgrad", "eager", ROW.shape)
    gone = "many no longer offers what the search picked for dgrad: number 2 of its 1 algorithms is not alg"
    with pytest.raises(Unsupported, match=gone):
        arms[1].bind(row, tensors)


def test_a_pick_whose_place_another_call_has_taken_is_not_used(tensors):
    old = picks(dgrad=("many", 2))
    (search,) = old.searches
    other = [c.model_copy(update={"algorithm": f"other {c.algorithm}"}) for c in search.candidates]
    stale = Picks(searches=(search.model_copy(update={"candidates": tuple(other)}),))
    row = Row("router", "dgrad", "eager", ROW.shape)
    assert by_name(stale)["many_first"].bind(row, tensors).calls[0].algorithm == "algorithm 0"
    with pytest.raises(Unsupported, match="number 2 of its 3 algorithms is not other algorithm 2"):
        by_name(stale)["many_best"].bind(row, tensors)


def test_prepare_may_return_a_bare_callable(tensors):
    run = torch.eye
    assert Arm("mine", lambda row, t: run).bind(ROW, tensors) == Prepared(run)
    with pytest.raises(TypeError, match="arm mine: prepare returned 3; needs a callable or a Prepared"):
        Arm("mine", lambda row, t: 3).bind(ROW, tensors)


GOOD = """
import torch
from bench.arms import Arm
def prepare(row, t):
    return lambda: torch.mm(t.X, t.W.t(), out=t.out)
ARMS = [Arm("mine", prepare)]
"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 / 0", r"arm file .*mine\.py could not be imported: ZeroDivisionError: division by zero"),
        ("import nothing_like_it", "could not be imported: ModuleNotFoundError"),
        ("ARMS = 3", r"needs a non-empty list ARMS of bench\.arms\.Arm, has 3"),
        ("", r"needs a non-empty list ARMS of bench\.arms\.Arm, has None"),
        (GOOD.replace('"mine"', '"cake"'), "the name 'cake' is taken; names must be unique"),
        (GOOD + "ARMS *= 2", "the name 'mine' is taken"),
        ("raise SystemExit(3)", r"could not be imported: SystemExit: 3"),
        (GOOD.replace('"mine"', '" "'), r"an arm's name is ' '; needs text that is not empty"),
        (GOOD.replace('"mine"', "7"), r"an arm's name is 7; needs text that is not empty"),
    ],
)
def test_bad_arm_files(tmp_path, text, message):
    path = tmp_path / "mine.py"
    path.write_text(text)
    with pytest.raises(ArmsError, match=message):
        load_arms(path, ["cake"])


def test_absent_arm_file(tmp_path):
    with pytest.raises(ArmsError, match="is not a Python file that exists"):
        load_arms(tmp_path / "absent.py")


def test_good_arm_file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(GOOD)
    [arm] = load_arms(path, ["cake"])
    row = Row("router", "fwd", "eager", ROW.shape)
    t = router_tensors(row, "cpu")
    arm.bind(row, t).run()
    assert (arm.name, arm.kind) == ("mine", "user")
    assert measure(row, t, references(t)).rel_fro < 2e-6
