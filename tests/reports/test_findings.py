from __future__ import annotations

import re
from dataclasses import replace

from reports.findings import accuracy, exceptions, findings, host_time
from reports.rows import load
from reports.tally import against_control


def said(run_dir):
    return {f.title: f.sentences for f in findings(load(run_dir))}


def test_counts_per_mode_t_and_op_collapse_where_all_agree(h200_dir):
    sentences = said(h200_dir)["Against the best library call, by the control range"]
    assert sentences[0] == (
        "eager, T=64: fwd 3 cake faster; dgrad 3 cake faster; wgrad 3 SOTA faster; bwd 3 cake faster; "
        "2fwd+bwd 3 cake faster."
    )
    assert sentences[1] == "eager, T=256: cake faster in every cell (15 of 15)."
    assert len(sentences) == 6


def test_fastest_calls_are_counted_alone_and_in_sequences(h200_dir):
    sentences = said(h200_dir)["The fastest library calls"]
    assert sentences[0] == (
        "eager: of 45 rows, the fastest call is `cublaslt_fp32_best` alone in 18, `cublas_fp32` alone in 9 "
        "and a `sequence` of calls in 18; those sequences have calls of `cublaslt_fp32_best` in 18 and "
        "`cublas_fp32` in 18."
    )
    assert any(s.startswith("graph: without `cublaslt_fp32_best`, geomean SOTA/cake") for s in sentences)


def test_margins_print_times_that_give_the_ratio(h200_dir):
    sentences = " ".join(said(h200_dir)["Margins"])
    found = re.findall(r"([\d.]+) / ([\d.]+) us = ([\d.]+) \[", sentences)
    assert len(found) == 8
    for top, bottom, ratio in found:
        assert f"{float(top) / float(bottom):.3f}" == ratio


def test_no_win_is_said(cpu_dir):
    assert "eager: cake wins no row, so there is no winning margin to show." in said(cpu_dir)["Margins"]


def test_host_time_is_a_range_per_op_or_said_to_be_missing(h200_dir, broken_dir):
    assert re.fullmatch(
        r"eager fwd: `cake` 7\.\d-7\.\d, `cake_det` 7\.\d-7\.\d us; "
        r"quickest library call `cublas_fp32` 6\.\d-6\.\d\.",
        said(h200_dir)["Host time per call"][0],
    )
    assert said(broken_dir)["Host time per call"] == ("Host time per call was not measured in this run.",)


def test_a_cpu_has_no_host_times_and_the_report_says_why(cpu_dir):
    words = "A CPU's calls have no host time of their own: a call is over when it returns."
    assert said(cpu_dir)["Host time per call"] == (words,)


def test_one_row_that_has_a_result(small_dir):
    run = load(small_dir)
    rows = [replace(run.rows[0], cells={}, missing="the run ended"), *run.rows[1:]]
    [line] = [text for text in accuracy(replace(run, rows=tuple(rows))) if "met" in text]
    assert " on 1 of 1 row that has a result: " in line


def test_the_quickest_library_call_is_so_over_all_shapes(small_dir):
    """A call that is quick at one shape alone, as a sequence of torch calls at the others, is not it."""
    run = load(small_dir)
    us = {"cake": (30.0, 40.0), "torch_fp32": (25.0, 160.0), "cublas_bf16x9": (26.0, 27.0)}
    rows = []
    for i, row in enumerate(run.rows):
        cells = {
            key: c.model_copy(update={"host_us": us.get(c.arm, (None, None))[i], "status": "ok", "us": 9.0})
            for key, c in row.cells.items()
        }
        rows.append(replace(row, cells=cells))
    (sentence,) = host_time(replace(run, rows=tuple(rows)))
    assert sentence == "graph fwd: `cake` 30.0-40.0 us; quickest library call `cublas_bf16x9` 26.0-27.0."


def test_a_tick_is_no_difference_whatever_the_control_says(small_dir):
    run = load(small_dir)
    row = run.rows[0]
    for ticks, side in ((1, "within"), (2, "above")):
        us = row.us("cake") + ticks * run.manifest.timer.tick_us
        sota = row.cells["sota", "cake"].model_copy(update={"us": us, "ratio": us / row.us("cake")})
        near = replace(row, cells={**row.cells, ("sota", "cake"): sota})
        assert getattr(against_control(run, [near]), side) == (near,)


def test_ties_and_voided_steps_are_counted(small_dir):
    run = load(small_dir)
    row, other = run.facts.values()
    arm = row.arms[0]
    tied = arm.accuracy_after.model_copy(update={"top8_ties": 3})
    arms = (arm.model_copy(update={"accuracy_after": tied, "voided": 2}), *row.arms[1:])
    run = replace(run, facts={row.key: row.model_copy(update={"arms": arms}), other.key: other})
    assert list(accuracy(run))[-1] == ("Tokens whose top-8 experts differ from FP64's by a tie: 3 of `cake`.")
    assert list(exceptions(run))[-1].startswith(
        f"Timed steps voided: 2 of 48 (most on `cake` in {row.key}: 2); groups"
    )


def test_accuracy_says_how_many_calls_on_how_many_rows(h200_dir, broken_dir):
    assert said(h200_dir)["Accuracy"][:2] == (
        "6 calls met the accuracy budget of 2e-6 on all 90 rows: `cake`, `cake_det`, `torch_fp32`, "
        "`cublas_fp32`, `cublaslt_fp32_first` and `cublaslt_fp32_best`.",
        "1 call met it on all 36 rows that have a result: `sequence`.",
    )
    assert any(s.startswith("`cublaslt_fp32_best` missed it on bwd") for s in said(broken_dir)["Accuracy"])


def test_every_cell_without_a_time_is_named_with_its_reason(broken_dir):
    sentences = said(broken_dir)["Not rivals, not measured, flagged"]
    assert (
        "`cake`: error on dgrad eager T=64 H=4096 and dgrad eager T=256 H=4096: "
        "CUDA error: an illegal memory access was encountered." in sentences
    )
    for status in ("unsupported", "fell-back", "inaccurate"):
        assert any(f": {status} on " in s for s in sentences)
    assert any(s.startswith("Not measured: wgrad graph T=256 H=4096") for s in sentences)
    assert any(s.startswith("Flag `warm` stands on 17 rows") for s in sentences)


def test_previous_version_is_not_mentioned_where_it_did_not_run(h200_dir):
    assert "Against the previous version" not in said(h200_dir)
