"""The verdict itself, on made-up cells."""

from __future__ import annotations

import numpy as np
import pytest
from bench_builders import ROW, arm, manifest, row_facts, samples

from bench.cells import flagged, make_cells
from bench.gate import judge, judge_runs
from bench.layers import LAYERS, DenseShape, Layer
from bench.model import CallFacts, Cells
from bench.statistics import JUDGEMENT
from bench.store import sample_arrays
from bench.suites import Row, Shape

ARMS = ("cake", "control", "cake_det", "cake_prev", "lib_a", "lib_b")
TIMES = {"cake": 10.0, "control": 10.0, "cake_det": 10.5, "cake_prev": 10.0, "lib_a": 12.0, "lib_b": 11.0}
OTHER = Row("router", "fwd", "graph", Shape(64, 128, 32))
#: Rows enough for one of them to be unclear.
MORE = tuple(Row("router", "fwd", "eager", Shape(64, H, 32)) for H in (128, 256, 512))


def kind(name):
    return "cake" if name.startswith("cake") or name == "control" else "library"


def measured(row=ROW, seed=0, arms=None, groups=10, **times):
    times = TIMES | times
    facts = row_facts([(arms or {}).get(n) or arm(n, kind(n)) for n in times], row)
    return facts, sample_arrays(samples(times, groups=groups, seed=seed))


def cells_of(*rows, again=None, m=None):
    m = m or manifest(arms=ARMS, previous={"ref": "main", "commit": "1a2b3c4d5e6f7890"}, finished="x")
    return make_cells(m, rows, again=again), m


def gated(*rows, again=None, m=None, notes=()):
    return judge(*cells_of(*rows, again=again, m=m), notes)


def kinds(result):
    return [(f.kind, f.arm) for f in result.findings]


def test_same_code_is_green():
    result = gated(measured())
    assert result.exit_code == 0 and result.findings == () and result.against == "main (1a2b3c4d5e6f)"
    assert result.rows == (("Test GPU", ROW.key),)


def test_a_confirmed_slower_row_is_red():
    row, again = measured(cake=10.3), measured(cake=10.3, seed=1)
    result = gated(row, again={ROW.key: again})
    assert result.exit_code == 1
    [finding] = result.findings
    assert (finding.kind, finding.row, finding.arm) == ("slower", ROW.key, "cake")
    assert finding.previous_us == pytest.approx(10, rel=1e-3)
    assert finding.new_us == pytest.approx(10.3, rel=1e-3)
    assert finding.ratio == finding.previous_us / finding.new_us
    assert (
        finding.again.verdict == "slower" and finding.again.ratio == finding.again.us / finding.again.over_us
    )


def test_a_flag_that_the_repeat_contradicts_is_green():
    result = gated(measured(cake=10.3), again={ROW.key: measured(seed=1)})
    assert result.exit_code == 0 and result.dismissed == (ROW.key,)


def test_slower_and_then_faster_is_no_confirmation():
    cells, _ = cells_of(measured(cake=10.3), again={ROW.key: measured(cake=9.7, seed=1)})
    [cell] = [c for c in cells.cells if c.arm == "cake_prev"]
    assert (cell.first_verdict, cell.again.verdict, cell.verdict) == ("slower", "faster", "same")


@pytest.mark.parametrize("cake", [10.3, 9.7])
def test_a_flag_whose_repeat_is_too_wide_to_say_is_unclear_not_the_same(cake):
    facts, samples = measured()
    scattered = samples["cake"] * np.linspace(0.9, 1.1, len(samples["cake"]))[:, None]
    again = {ROW.key: (facts, samples | {"cake": scattered})}
    m = manifest(rows=(ROW, *MORE), arms=ARMS, finished="x")
    result = gated(measured(cake=cake), *(measured(row=row) for row in MORE), m=m, again=again)
    assert result.exit_code == 0 and result.unclear == (ROW.key,) and result.dismissed == ()
    assert not any("not measured again" in note for note in result.notes)
    only = gated(measured(cake=cake), again=again)
    assert only.exit_code == 2 and kinds(only) == [("unmeasured", "")]


def test_a_flag_that_was_not_measured_again_could_not_be_judged():
    result = gated(measured(cake=10.3))
    assert result.exit_code == 2
    assert [(f.kind, f.reason) for f in result.findings] == [
        (
            "unmeasured",
            "flagged slower, not measured again; have it done: cake-bench gate --resume RUN",
        )
    ]


def test_a_flag_of_a_merged_run_is_measured_again_in_the_runs_it_was_made_of():
    sources = ("run 1: router-1, here, GPU-1", "run 2: router-2, there, GPU-2")
    m = manifest(arms=ARMS, previous={"ref": "main"}, finished="x", merged=sources)
    [finding] = gated(measured(cake=10.3), m=m).findings
    assert finding.reason == (
        "flagged slower, not measured again; a merged run cannot be: cake-bench gate --resume those it was "
        "made of (run 1: router-1, run 2: router-2), then merge again"
    )


def test_a_re_measurement_without_a_time_could_not_be_judged():
    broken = measured(arms={"cake_prev": arm("cake_prev", "cake", status="error", reason="gone")})
    result = gated(measured(cake=10.3), again={ROW.key: broken})
    assert result.exit_code == 2
    assert result.findings[0].reason.startswith("flagged slower; measured again without a ratio: gone; have ")


def test_faster_is_green_confirmed_or_not():
    row, again = measured(cake=9.7), measured(cake=9.7, seed=1)
    assert gated(row, again={ROW.key: again}).faster == (ROW.key,)
    pending = gated(row)
    assert pending.exit_code == 0 and pending.faster == ()
    assert "1 row flagged faster, not measured again" in pending.notes


def test_which_rows_are_measured_again():
    m = manifest(rows=(ROW, OTHER), arms=ARMS)
    rows = [measured(cake=10.3), measured(row=OTHER)]
    assert flagged(m, rows, {}) == [ROW.key]
    assert flagged(m, rows, {ROW.key: measured(seed=1)}) == []
    broken = measured(arms={"cake": arm("cake", "cake", status="error", reason="gone")})
    assert flagged(m, rows, {ROW.key: broken}) == [ROW.key]
    without = {k: v for k, v in TIMES.items() if k != "cake_prev"}
    assert flagged(m, [(row_facts([arm(n, kind(n)) for n in without]), {})], {}) == []


def test_an_inaccurate_cake_arm_is_red():
    bad = arm("cake_det", "cake", status="inaccurate", reason="error 1e-3")
    result = gated(measured(arms={"cake_det": bad}))
    assert result.exit_code == 1 and kinds(result) == [("inaccurate", "cake_det")]


@pytest.mark.parametrize(("status", "code"), [("unsupported", 0), ("inaccurate", 1), ("error", 2)])
def test_a_device_without_fp16x2_can_be_gated(status, code):
    own = arm("cake_fp16x2", "cake", status=status)
    result = gated(measured(cake_fp16x2=9.0, arms={"cake_fp16x2": own}))
    assert result.exit_code == code


def test_an_inaccurate_previous_version_is_not_this_ones_fault():
    bad = arm("cake_prev", "cake", status="inaccurate", reason="error 1e-3")
    result = gated(measured(arms={"cake_prev": bad}))
    assert result.exit_code == 2 and kinds(result) == [("unmeasured", "cake_prev")]


def test_a_row_that_is_new_is_not_compared():
    new = arm("cake_prev", "cake", status="unsupported", reason="this version has no router_backward")
    m = manifest(rows=(ROW, OTHER), arms=ARMS, finished="x")
    result = gated(measured(arms={"cake_prev": new}), measured(row=OTHER), m=m)
    assert result.exit_code == 0 and result.not_compared == (ROW.key,)
    only = gated(measured(arms={"cake_prev": new}))
    assert (
        only.exit_code == 2 and only.findings[0].reason == "no row can be compared with main (1a2b3c4d5e6f)"
    )


PLAN = {
    "program": "p",
    "program_digest": "d",
    "partition": "k",
    "det_bits": "x",
    "det_program": "p_det",
    "det_program_digest": "d_det",
    "det_partition": "k_det",
    "calls": (CallFacts(kind="fwd", library="cake", function="f", algorithm="a raster"),),
}


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({}, 1),
        ({"calls": (CallFacts(kind="fwd", library="cake", function="f", algorithm="another raster"),)}, 1),
        ({"program_digest": "e"}, 1),
        ({"partition": "l"}, 1),
        ({"det_program": "q"}, 0),
        ({"det_program_digest": "e"}, 0),
        ({"det_partition": "l"}, 0),
        ({"det_bits": "y"}, 0),
    ],
)
def test_bits_may_change_only_with_what_decides_them(change, code):
    arms = {
        "cake": arm("cake", "cake", **PLAN),
        "cake_prev": arm("cake_prev", "cake", **(PLAN | {"det_bits": "y"} | change)),
    }
    if change == {"det_bits": "y"}:
        arms["cake"] = arm("cake", "cake", **(PLAN | change))
    result = gated(measured(arms=arms))
    assert result.exit_code == code and (code == 0 or kinds(result) == [("bits", "cake_prev")])


def test_other_bits_of_a_version_whose_program_is_not_known_are_a_note():
    old = PLAN | {"det_bits": "y", "det_program_digest": None}
    arms = {"cake": arm("cake", "cake", **PLAN), "cake_prev": arm("cake_prev", "cake", **old)}
    result = gated(measured(arms=arms))
    assert result.exit_code == 0 and result.notes == (
        "output bits differ on 1 row, and it is not known whether the program changed there",
    )


def test_a_verdict_by_another_rule_says_so():
    rule = JUDGEMENT.as_dict() | {"level": 0.9}
    result = gated(measured(), m=manifest(arms=ARMS, finished="x", judgement=rule))
    assert result.notes == (
        "judged by the rule recorded with the run, not by this version's: level 0.9, not 0.995",
    )


def test_deterministic_bits_that_differ_between_calls_are_red():
    result = gated(measured(arms={"cake_det": arm("cake_det", "cake", bits="a", bits_after="b")}))
    assert result.exit_code == 1 and kinds(result) == [("bits", "cake_det")]
    fine = gated(measured(arms={"cake": arm("cake", "cake", bits="a", bits_after="b")}))
    assert fine.exit_code == 0  # deterministic=False promises no bits


def test_missing_rows_could_not_be_measured_and_red_wins_over_them():
    m = manifest(rows=(ROW, OTHER), arms=ARMS)
    assert gated(measured(), m=m).exit_code == 2
    slow, again = measured(cake=10.3), {ROW.key: measured(cake=10.3, seed=1)}
    result = gated(slow, again=again, m=m)
    assert result.exit_code == 1 and [f.kind for f in result.findings] == ["slower", "missing"]
    assert result.findings[1].reason == "the run ended before this row was measured"
    assert result.rows == (("Test GPU", ROW.key), ("Test GPU", OTHER.key))


@pytest.mark.parametrize("status", ["error", "unsupported", "fell-back", "inaccurate"])
@pytest.mark.parametrize("name", ["lib_a", "lib_b", "mine"])
def test_a_rival_that_fails_changes_nothing(status, name):
    result = gated(measured(arms={name: arm(name, "library", status=status, reason="no")}, **{name: 1.0}))
    assert result.exit_code == 0 and result.findings == ()


def test_all_rivals_may_fail():
    bad = {n: arm(n, "library", status="error", reason="no") for n in ("lib_a", "lib_b")}
    result = gated(measured(arms=bad))
    assert result.exit_code == 0
    assert result.notes == (
        "lib_a is error on 1 row, which decides nothing here",
        "lib_b is error on 1 row, which decides nothing here",
    )


@pytest.mark.parametrize("status", ["error", "unsupported"])
def test_a_cake_arm_that_fails_could_not_be_measured(status):
    for name in ("cake", "control", "cake_det"):
        result = gated(measured(arms={name: arm(name, "cake", status=status, reason="no")}))
        assert result.exit_code == 2 and kinds(result) == [("unmeasured", name)]


def test_a_run_without_a_previous_version_has_nothing_to_gate():
    result = gated(measured(), m=manifest(arms=("cake", "control")))
    assert result.exit_code == 2 and result.findings[0].row == ""
    assert result.findings[0].reason.startswith("the run has no previous version to gate against; measure ")
    assert judge(Cells(cells=()), manifest(rows=(), arms=ARMS)).exit_code == 2


def noisy(row=ROW, **times):
    """A row whose groups scatter by 5 %."""
    rng = np.random.default_rng(3)
    facts, arrays = measured(row=row, **times)
    return facts, {n: a * (1 + 0.05 * rng.standard_normal((a.shape[0], 1))) for n, a in arrays.items()}


def test_unclear_rows_are_told_and_many_of_them_are_no_verdict():
    m = manifest(rows=(ROW, OTHER, *MORE), arms=ARMS, finished="x")
    fine = [measured(row=row) for row in MORE]
    result = gated(measured(), noisy(OTHER), *fine, m=m)
    assert result.exit_code == 0 and result.unclear == (OTHER.key,)
    result = gated(noisy(), noisy(OTHER), *fine, m=m)
    assert result.exit_code == 0  # two, though they are more than a quarter of these rows
    few = gated(noisy(), noisy(OTHER), m=manifest(rows=(ROW, OTHER), arms=ARMS, finished="x"))
    assert few.exit_code == 2  # all of them
    result = gated(noisy(), noisy(OTHER), noisy(MORE[0]), *fine[1:], m=m)
    assert result.exit_code == 2
    assert [f.reason for f in result.findings] == [
        f"3 of {2 + len(MORE)} rows are unclear and could hide the slowdown sought, which is too many "
        "(over 25 %): measure again with a larger preset, or on a device at rest"
    ]


def test_too_few_groups_cannot_be_judged():
    result = gated(measured(groups=2))
    assert result.exit_code == 2 and result.findings[0].reason == "too few groups for an interval"


def test_notes():
    m = manifest(arms=ARMS, git={"commit": "a", "dirty": "yes"}, flags=("warm",), control_run=True)
    result = gated(measured(), m=m, notes=("host times: no",))
    assert result.exit_code == 0
    assert result.notes == (
        "a control run: the working tree's cake stands in the previous version's place",
        "the working tree has changes that are not committed",
        "flag warm on 1 row",
        "host times: no",
    )


# --- two runs -----------------------------------------------------------------------------------------------


def across(base, new, **fields):
    m = manifest(arms=ARMS, finished="x", **fields)
    one, other = (make_cells(m, [row], again={}) for row in (base, new))
    return judge_runs(one, m.model_copy(update={"run": "base"}), other, m)


def test_two_runs_go_through_the_libraries():
    """A machine that runs at half speed is no regression; 6 % against the same libraries is."""
    slow = {name: 2 * us for name, us in TIMES.items()}
    assert across(measured(), measured(**slow, seed=1)).exit_code == 0
    result = across(measured(), measured(**(slow | {"cake": 21.2}), seed=1))
    [finding] = result.findings
    assert result.exit_code == 1 and result.form == "across runs" and result.against == "base"
    assert finding.kind == "slower" and finding.reason == "through lib_a, lib_b"
    assert finding.ratio == pytest.approx(1 / 1.06, rel=2e-3)
    assert across(measured(cake=21.2 / 2), measured(seed=1)).faster == (ROW.key,)


def test_two_runs_have_wider_limits_and_say_so():
    result = across(measured(), measured(cake=10.2, seed=1))
    assert result.exit_code == 0 and "only a difference of more than 3 % counts" in result.notes[0]


def test_two_runs_too_noisy_to_see_the_effect_are_unclear():
    """The same code at 10 us and, beside a busy neighbour, at 600 us is no proof that nothing is slower."""
    result = across(measured(), noisy(cake=600.0, lib_a=720.0, lib_b=660.0))
    assert result.exit_code == 2 and result.unclear == (ROW.key,)
    assert result.findings[0].reason.startswith("1 of 1 row is unclear and could hide the slowdown sought")


def test_a_few_unclear_rows_of_two_runs_are_told():
    m = manifest(rows=(ROW, *MORE), arms=ARMS, finished="x")
    base, new = ([measured(row=row, seed=seed) for row in MORE] for seed in (0, 1))
    cells = [make_cells(m, [measured(), *base]), make_cells(m, [noisy(), *new])]
    result = judge_runs(cells[0], m.model_copy(update={"run": "base"}), cells[1], m)
    assert result.exit_code == 0 and result.unclear == (ROW.key,)


def test_a_rival_of_another_version_is_not_shared():
    from bench.model import CallFacts

    def calls(function):
        return (CallFacts(kind="dgrad", library="l", function=function),)

    lib_a = arm("lib_a", calls=calls("new"))
    result = across(measured(), measured(cake=11, seed=1, arms={"lib_a": lib_a}))
    assert result.findings[0].reason == "through lib_b"
    both = {name: arm(name, calls=calls("new")) for name in ("lib_a", "lib_b")}
    result = across(measured(), measured(cake=11, seed=1, arms=both))
    assert result.exit_code == 2 and result.findings[0].kind == "unmeasured"


def test_rows_of_one_run_alone():
    m = manifest(rows=(ROW, OTHER), arms=ARMS, finished="x")
    both = make_cells(m, [measured(), measured(row=OTHER)])
    one = make_cells(manifest(arms=ARMS), [measured()])
    gone = judge_runs(both, m.model_copy(update={"run": "base"}), one, m)
    assert gone.exit_code == 2 and gone.findings[0].reason == "base has it, router-test does not"
    assert judge_runs(one, m, both, m).not_compared == (OTHER.key,)
    other = make_cells(m, [measured(row=OTHER)])
    assert judge_runs(one, m, other, m).exit_code == 2


#: Layers of as many features out: T and N do not tell them apart, nor does the output's dtype.
LAYERED = [
    Row("dense", "dgrad", "graph", DenseShape(layer, 64), out)
    for layer in (LAYERS["o_proj"], LAYERS["shared_down"], Layer("mine", 64, 6144))
    for out in ("bf16", "f32")
]


def test_rows_of_layers_are_told_apart():
    rows = [measured(row, seed=i) for i, row in enumerate(LAYERED)]
    slow = measured(LAYERED[2], cake=10.3)
    rows[2] = slow
    m = manifest(
        rows=tuple(LAYERED),
        suite="dense",
        arms=ARMS,
        form="passes",
        previous={"ref": "main", "commit": "1a2b3c4d5e6f7890"},
        finished="x",
    )
    result = gated(*rows, again={LAYERED[2].key: slow}, m=m)
    assert result.rows == tuple(("Test GPU", row.key) for row in LAYERED)
    assert [(f.kind, f.row) for f in result.findings] == [("slower", LAYERED[2].key)]
