from __future__ import annotations

import time

import pytest
from bench_builders import ROW, arm, manifest, row_facts, samples

from bench.cells import describe, make_cells
from bench.layers import LAYERS, DenseShape
from bench.model import Accuracy, CallFacts, L2Proof, TimerFacts
from bench.store import sample_arrays
from bench.suites import Row, router_rows

TIMES = {"cake": 10.0, "control": 10.0, "cake_det": 10.5, "lib_a": 12.0, "lib_b": 11.0, "sequence": 11.5}
KINDS = {"cake": "cake", "control": "cake", "cake_det": "cake"}


def cells_of(times=TIMES, m=None, host=None, **arms):
    facts = row_facts([arms.get(name) or arm(name, KINDS.get(name, "library")) for name in times])
    made = make_cells(m or manifest(), [(facts, sample_arrays(samples(times)))], host)
    return {(c.arm, c.over): c for c in made.cells}


def test_ratio_is_of_the_unrounded_medians_shown():
    cells = cells_of()
    for cell in cells.values():
        if cell.ratio is not None:
            over = cells[cell.over, "cake"]
            assert cell.ratio == cell.us / over.us
            assert cell.ratio_lo <= cell.ratio <= cell.ratio_hi


def test_verdicts_and_control():
    cells = cells_of()
    assert cells["lib_a", "cake"].verdict == "faster"
    assert cells["control", "cake"].verdict == "same"
    assert cells["cake_det", "cake"].verdict == "faster"
    assert cells["cake", "cake"].ratio is None and cells["cake", "cake"].verdict is None
    control = cells["control", "cake"]
    assert all((c.control_lo, c.control_hi) == (control.ratio, control.ratio) for c in cells.values())


def test_sota_is_the_fastest_ok_library_cell_over_both():
    cells = cells_of()
    best = cells["lib_b", "cake"]
    for over in ("cake", "cake_det"):
        sota = cells["sota", over]
        assert sota.call == "lib_b: dgrad: f + wgrad: g" and sota.us == best.us
        assert sota.ratio == best.us / cells[over, "cake"].us
    assert cells["sota", "cake"].ratio_lo == best.ratio_lo


def test_sota_is_over_fp16x2_too_where_that_ran():
    times = TIMES | {"cake_fp16x2": 8.0}
    cells = cells_of(times, cake_fp16x2=arm("cake_fp16x2", "cake"))
    sota = cells["sota", "cake_fp16x2"]
    assert sota.ratio == cells["lib_b", "cake"].us / cells["cake_fp16x2", "cake"].us
    assert sota.ratio_lo <= sota.ratio <= sota.ratio_hi and sota.verdict == "faster"
    assert cells["cake_fp16x2", "cake"].ratio == pytest.approx(0.8, rel=1e-3)
    assert cells["sota", "cake"].ratio == cells_of()["sota", "cake"].ratio


def test_sota_is_not_over_fp16x2_where_the_device_has_none():
    none = arm("cake_fp16x2", "cake", status="unsupported", reason="sm_80 has no fp16x2 programs")
    cells = cells_of(TIMES | {"cake_fp16x2": 8.0}, cake_fp16x2=none)
    assert ("sota", "cake_fp16x2") not in cells and ("sota", "cake_det") in cells
    cell = cells["cake_fp16x2", "cake"]
    assert (cell.status, cell.us, cell.reason) == ("unsupported", None, "sm_80 has no fp16x2 programs")


def test_a_sequence_can_be_sota_and_lists_every_call():
    calls = (
        CallFacts(kind="dgrad", library="lib_a", function="f", algorithm="id 3"),
        CallFacts(kind="wgrad", library="lib_b", function="g"),
    )
    cells = cells_of(TIMES | {"sequence": 10.2}, sequence=arm("sequence", calls=calls))
    assert cells["sota", "cake"].call == "sequence: dgrad: f[id 3] + wgrad: g"


def test_only_ok_arms_have_a_time_and_count():
    bad = arm(
        "lib_b", status="inaccurate", reason="error 1e-3", accuracy_before=Accuracy(rel_fro=1e-3, max_abs=1)
    )
    cells = cells_of(lib_b=bad)
    cell = cells["lib_b", "cake"]
    assert (cell.us, cell.ratio, cell.verdict, cell.reason, cell.rel_fro) == (
        None,
        None,
        None,
        "error 1e-3",
        1e-3,
    )
    assert cells["sota", "cake"].call.startswith("sequence")


def test_no_library_at_all_says_why():
    gone = {n: arm(n, status="fell-back", reason="native kernels") for n in ("lib_a", "lib_b", "sequence")}
    cell = cells_of(**gone)["sota", "cake"]
    assert cell.status == "error" and cell.us is None
    assert cell.reason.startswith("no library call has a time (lib_a fell-back: native kernels; ")


def test_without_cake_there_are_times_but_no_ratios():
    cells = cells_of(cake=arm("cake", "cake", status="error", reason="RuntimeError: no"))
    assert cells["lib_a", "cake"].us == pytest.approx(12, rel=1e-3)
    assert cells["lib_a", "cake"].reason == "no ratio: cake has no time (RuntimeError: no)"
    assert cells["lib_a", "cake"].control_lo is None
    assert cells["sota", "cake_det"].ratio == pytest.approx(11 / 10.5, rel=1e-3)


def test_missing_rows_are_listed():
    rows = [ROW, *router_rows()[:2]]
    made = make_cells(manifest(rows), [])
    assert made.cells == () and list(made.missing) == [row.key for row in rows]


def test_bits_flags_host_and_accuracy():
    m = manifest(flags=("warm",), l2=L2Proof(cold_us=1, warm_us=1, expected_ratio=1.3, proven=False))
    worse = Accuracy(rel_fro=3e-7, max_abs=1e-6, top8_equal=True)
    cells = cells_of(
        m=m,
        host={(ROW.key, "cake"): 7.5},
        cake=arm("cake", "cake", bits="a", bits_after="b", flags=("thermal",)),
        cake_det=arm("cake_det", "cake", bits="a", bits_after="a", accuracy_after=worse),
    )
    assert cells["cake", "cake"].bits_equal is False and cells["cake_det", "cake"].bits_equal is True
    assert cells["lib_a", "cake"].bits_equal is None
    assert cells["cake", "cake"].flags == ("warm", "thermal") and cells["lib_a", "cake"].flags == ("warm",)
    assert cells["cake", "cake"].host_us == 7.5 and cells["lib_a", "cake"].host_us is None
    assert cells["cake_det", "cake"].rel_fro == 3e-7 and cells["cake_det", "cake"].top8_equal is True


def previous_cell(old, new):
    """The cell of a previous version with such facts beside a working tree's with those."""
    calls = {"plan": "calls", "det": "det_bits", "digest": "program_digest"}

    def facts(name, given):
        fields = {calls.get(k, k): v for k, v in given.items() if k != "plan"}
        if "plan" in given:
            fields["calls"] = (CallFacts(kind="fwd", library="cake", function="f", algorithm=given["plan"]),)
        return arm(name, "cake", **fields)

    made = cells_of(
        TIMES | {"cake_prev": 11.0},
        cake=facts("cake", new),
        cake_prev=facts("cake_prev", old),
    )
    return made["cake_prev", "cake"]


@pytest.mark.parametrize(
    ("old", "changed"),
    [
        ({}, ()),
        ({"program": "q"}, ("program",)),
        ({"digest": "e"}, ("program",)),
        ({"program": "q", "digest": "e", "plan": "b"}, ("program", "plan")),
        ({"partition": "k2", "det": "c", "plan": "b"}, ("plan", "partition", "bits")),
        ({"program": None, "digest": None, "plan": "", "partition": None, "det": None}, ()),
    ],
)
def test_what_changed_since_the_previous_version(old, changed):
    facts = {"program": "p", "digest": "d", "plan": "a", "partition": "k1", "det": "b"}
    cell = previous_cell(facts | old, facts)
    assert cell.changed == changed
    known = (facts | old)["det"] is not None
    assert cell.bits_equal is (("bits" not in changed) if known else None)
    # It says nothing of cake's own cell.
    assert cells_of()["cake", "cake"].changed == ()


DET = {"det_program": "p", "det_program_digest": "d", "det_partition": "k"}


@pytest.mark.parametrize(
    ("old", "cause"),
    [
        ({}, "unexplained"),
        ({"det": "b"}, ""),
        ({"det": None}, ""),
        # What is timed may be made otherwise: it is the deterministic call whose bits are compared.
        ({"program": "q", "digest": "e", "partition": "l"}, "unexplained"),
        ({"det_program": "q"}, ""),
        ({"det_program_digest": "e"}, ""),
        ({"det_partition": "l"}, ""),
        # In runs of before that call's were kept, what was timed stands for them.
        ({"det_program": None}, "unexplained"),
        ({"det_program": None, "partition": "l"}, ""),
        # One name may be of two programs; what is not known is not the same.
        ({"det_program_digest": None}, "unknown"),
        ({"det_program_digest": None, "det_partition": "l"}, ""),
        ({"det_partition": None}, "unknown"),
        ({"det_program": None, "program": None, "digest": None, "partition": None}, "unknown"),
    ],
)
def test_changed_bits_are_explained_by_what_the_deterministic_call_is_made_of(old, cause):
    facts = {"program": "p", "digest": "d", "partition": "k", "det": "b", **DET}
    cell = previous_cell(facts | {"det": "c"} | old, facts)
    assert (cell.bits_unexplained, cell.bits_unknown) == (cause == "unexplained", cause == "unknown")


def test_bits_of_a_previous_version_are_not_those_before_and_after():
    cell = previous_cell({"bits": "1", "bits_after": "2", "det": "b"}, {"det": "b"})
    assert cell.bits_equal is True


def test_differences_within_a_tick_are_no_differences():
    tick = manifest(timer=manifest().timer.model_copy(update={"tick_us": 5.0}))
    assert cells_of(m=tick)["lib_a", "cake"].verdict == "same"


def test_describe():
    assert describe([]) == ""


def test_a_full_run_takes_seconds():
    rows = router_rows()
    times = TIMES | {f"lib_{i}": 12.0 + i for i in range(5)}
    arrays = sample_arrays(samples(times, groups=22, steps=20))
    facts = [(row_facts([arm(n, KINDS.get(n, "library")) for n in times], row), arrays) for row in rows]
    began = time.process_time()
    made = make_cells(manifest(rows), facts)
    assert len(made.cells) == 90 * (len(times) + 2)
    # Never a time as such: this only catches an accidental loop over resamples, which takes minutes.
    assert time.process_time() - began < 60


def test_sota_of_a_run_without_intervals_has_not_failed():
    arms = [arm("cake", "cake"), arm("lib_a"), arm("lib_b", status="unsupported", reason="no")]
    made = make_cells(manifest(timer=TimerFacts(name="host")), [(row_facts(arms), {})])
    sota = next(c for c in made.cells if c.arm == "sota")
    assert (sota.status, sota.us, sota.verdict) == ("ok", None, None)
    assert "lib_a ok: timer host measures no intervals" in sota.reason


def test_cells_of_passes_count_the_slower_ones():
    arms = [arm("cake", "cake"), arm("lib_a"), arm("lib_b")]
    times = sample_arrays(samples({"cake": 10.0, "lib_a": 10.5, "lib_b": 9.5}, groups=16))
    made = make_cells(manifest(form="passes"), [(row_facts(arms), times)])
    cells = {(c.arm, c.over): c for c in made.cells}
    assert [cells[name, "cake"].slower_passes for name in ("lib_a", "lib_b", "sota")] == [0, 16, 16]
    assert cells["lib_a", "cake"].verdict == "faster" and cells["lib_b", "cake"].verdict == "slower"
    ratio = cells["lib_a", "cake"].us / cells["cake", "cake"].us
    assert cells["lib_a", "cake"].ratio == ratio
    assert cells["cake", "cake"].slower_passes is None


def test_a_dense_row_says_its_layer_and_counts_slower_passes():
    row = Row("dense", "wgrad", "graph", DenseShape(LAYERS["mla_k"], 64), "bf16")
    times = {"cake": 10.0, "control": 10.0, "cake_det": 10.0, "lib_a": 12.0, "lib_b": 9.0}
    facts = row_facts([arm(n, "library" if n.startswith("lib") else "cake") for n in times], row)
    made = make_cells(
        manifest((row,), suite="dense", form="passes"), [(facts, sample_arrays(samples(times)))]
    ).cells
    assert {(c.suite, c.layer, c.K, c.N, c.heads, c.out, c.T, c.H) for c in made} == {
        ("dense", "mla_k", 192, 512, 64, "bf16", 64, None)
    }
    by_arm = {(c.arm, c.over): c for c in made}
    assert by_arm["lib_a", "cake"].slower_passes == 0 and by_arm["lib_b", "cake"].slower_passes == 10
    assert by_arm["sota", "cake"].call.startswith("lib_b: ") and by_arm["sota", "cake"].verdict == "slower"
