from __future__ import annotations

import re

from reports.findings import findings
from reports.rows import load


def said(run_dir):
    return {f.title: f.sentences for f in findings(load(run_dir))}


def test_counts_per_mode_t_and_op_collapse_where_all_agree(h200_dir):
    sentences = said(h200_dir)["Against the best library call"]
    assert sentences[0] == (
        "eager, T=64: fwd 3 cake faster; dgrad 3 cake faster; wgrad 3 SOTA faster; bwd 3 cake faster; "
        "2fwd+bwd 3 cake faster."
    )
    assert sentences[1] == "eager, T=256: cake faster in every cell (15 of 15)."
    assert len(sentences) == 6


def test_fastest_calls_are_counted_alone_and_in_sequences(h200_dir):
    sentences = said(h200_dir)["The fastest library calls"]
    assert sentences[0] == (
        "eager: of 45 rows, the fastest call is `cublaslt_fp32_best` in 36 (18 alone, 18 in a sequence), "
        "`cublas_fp32` in 27 (9 alone, 18 in a sequence) and a `sequence` of calls in 18."
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


def test_previous_version_counts_against_the_control(previous_dir):
    first, *below = said(previous_dir)["Against the previous version"]
    assert first == (
        "graph: previous / new is 0.949-1.097, geomean 1.020; of 2 rows, "
        "1 above, 1 below control (1.000 over all)."
    )
    assert len(below) == 1
    assert below[0].startswith("graph: below control: fwd graph T=256 H=4096: 11.20")


def test_previous_version_is_not_mentioned_where_it_did_not_run(h200_dir):
    assert "Against the previous version" not in said(h200_dir)
