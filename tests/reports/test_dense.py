from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image
from rich.console import Console

from bench.model import Cells, Manifest
from bench.statistics import geomean
from reports import dense, dense_plots, dense_tables, markdown, tables, write_report
from reports.dense_words import form
from reports.rows import group, load, name_of
from reports.terminal import print_summary
from tests.reports.dense_runs import CAKE, LIBRARIES, DenseRow, build_dense, dense_rows, dense_us

GOLDEN = Path(__file__).with_name("golden_dense.md")
SMALL = {"layers": ("kv_a", "mla_k"), "tokens": (64, 16231)}


def small_us(row: DenseRow, arm: str) -> float | tuple[str, str]:
    """Noiseless, one row slower by 10 %, one library inaccurate on one row, cake failing on another."""
    if (row.op, row.layer, row.T) == ("dgrad", "kv_a", 64) and arm in CAKE:
        return ("error", "CUDA error: misaligned address")
    best = 4.0 + row.flops / 800e6
    slow = (row.op, row.layer, row.T) == ("wgrad", "mla_k", 16231)
    if arm in CAKE or arm == "cake_prev":
        return best * (1.1 if slow else 0.95) * (1.02 if arm == "cake_prev" else 1.0)
    if row.layer == "mla_k" and arm == "cublas_bf16" and row.op == "fwd":
        return ("inaccurate", "an element is off by 0.3")
    return best * {"torch_bf16": 1.05, "cublas_bf16": 1.02}.get(arm, 1.0)


@pytest.fixture(scope="session")
def dense_dir(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "dense"
    return build_dense(path, dense_rows(), CAKE | LIBRARIES, left=2)


@pytest.fixture(scope="session")
def small_dense_dir(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "small"
    arms = {a: kind for a, kind in (CAKE | LIBRARIES).items() if "first" not in a}
    return build_dense(path, dense_rows(**SMALL), arms, small_us, spread=0.0, passes=4)


@pytest.fixture(scope="session")
def previous_dense_dir(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "previous"
    arms = CAKE | {"cake_prev": "cake", "torch_bf16": "library"}
    rows = dense_rows(("kv_a",), (64, 4096)) + dense_rows(("kv_a",), (64,), out="f32")
    nodes = ("node-1", "node-2")
    return build_dense(path, rows, arms, dense_us, nodes=nodes, pause_ms=20.0, previous={"ref": "main"})


def table(t: tables.Table) -> list[dict[str, str]]:
    titles = [c.title for c in t.columns]
    return [dict(zip(titles, line, strict=True)) for line in t.lines]


def test_whole_report_of_a_small_run(small_dense_dir):
    assert dense.documents(load(small_dense_dir), [])[markdown.REPORT] == GOLDEN.read_text()


def test_keys_and_names_of_rows_are_read_back(previous_dense_dir):
    run = load(previous_dense_dir)
    assert [r.key for r in run.rows[:2]] == ["dense-fwd-graph-kv_a-T64", "dense-fwd-graph-kv_a-T4096"]
    assert sorted(r.key for r in run.rows) == sorted(run.manifest.rows)
    assert name_of("dense-wgrad-graph-kv_a-T64-f32") == "wgrad graph kv_a T=64 f32" == run.rows[-1].name
    assert run.rows[0].product == "kv_a (6144->576)"
    with pytest.raises(ValueError, match=r"needs suite-op-mode-T<n>-H<n>-N<n> or suite-op-mode-layer-T<n>"):
        name_of("dense-fwd-kv_a")


def test_layers_come_in_the_order_of_the_run(dense_dir):
    run = load(dense_dir)
    assert run.layers[:3] == ["o_proj", "q_a", "q_b"] and run.layers[-1] == "mla_v"
    assert [r.T for r in run.select(op="fwd", layer="q_b")] == run.tokens
    missing = [r for r in run.rows if r.missing]
    assert len(missing) == 2 and all(r.product == "mla_v (64 x 512->256)" for r in missing)


def test_headline_says_the_form_and_counts_every_row(dense_dir):
    headline = dense.headline(load(dense_dir))
    assert re.fullmatch(
        r"Sustained, in order-balanced passes: `cake` against the best library call: faster in \d+ of 294 "
        r"rows, same in \d+, slower in \d+, not measured in 2; geomean 1\.\d{3} \[1\.\d{3}, 1\.\d{3}\] "
        r"over 292 rows; control 0\.9\d\d-1\.0\d\d\.",
        headline,
    )
    torch, per_t, control = dense.beside(load(dense_dir))
    assert "torch.matmul's own choice: faster in" in torch and "geomean 1.0" in torch
    assert per_t.count("T=") == 7 and "T=16231 geomean" in per_t
    assert "called different in" in control


def test_report_of_the_whole_suite_keeps_what_fits(dense_dir):
    documents = dense.documents(load(dense_dir), [])
    assert list(documents) == [markdown.REPORT, markdown.TABLES]
    report, moved = documents.values()
    assert len(report) <= markdown.LIMIT
    assert "rows, slower, unclear or not measured</summary>" in report
    assert "The other full tables are in [report-tables.md]" in report
    assert "graph: all 294 rows, losing rows first" in moved
    assert sum(text.count("| 16231 |") for text in documents.values()) == 2 * 42
    narrow = dense.documents(load(dense_dir), [], limit=len(report) - 1)
    assert len(narrow[markdown.REPORT]) < len(report) and "Against the best" in narrow[markdown.TABLES]


def test_speeds_are_shares_of_the_fastest_cell(small_dense_dir):
    run = load(small_dense_dir)
    peak = dense_tables.peaks(run)["NVIDIA H200"]
    lines = table(dense_tables.rows_against(run, run.rows))
    row = next(r for r in run.rows if r.name == "fwd graph mla_k T=16231")
    line = next(x for x in lines if (x["op"], x["T"], x["layer (in->out)"]) == ("fwd", "16231", row.product))
    speed = 2 * 16231 * 192 * 512 * 64 / (row.us("cake") or 0.0) / 1e6
    assert line["TFLOP/s"] == f"{speed:.0f}"
    assert line["share of the measured peak"] == f"{100 * speed / peak:.1f} %"
    assert line["GPU (arch, SMs)"] == "H200 (sm_90a, 132 SMs)" and line["slower passes"] == "0 of 4"
    assert re.fullmatch(r"[\d.]+ \(cublaslt_bf16_best\)", line["SOTA us (its name)"])
    assert lines[0]["speedup [interval] verdict"].endswith("slower") and lines[0]["op"] == "wgrad"
    assert lines[0]["slower passes"] == "4 of 4"


def test_printed_times_give_the_printed_ratio(dense_dir):
    run = load(dense_dir)
    for line in table(dense_tables.rows_against(run, [r for r in run.rows if not r.missing])):
        sota, new = float(line["SOTA us (its name)"].split()[0]), float(line["cake us"])
        assert f"{sota / new:.3f}" == line["speedup [interval] verdict"].split()[0]


def test_a_row_that_was_not_measured_says_why(dense_dir, small_dense_dir):
    t = dense_tables.rows_against(load(small_dense_dir), load(small_dense_dir).rows)
    line = next(x for x in table(t) if (x["op"], x["T"], x["layer (in->out)"]) == ("dgrad", "64", KV_A))
    assert line["cake us"] == "error [1]" and line["TFLOP/s"] == "error [1]"
    assert t.notes[0] == "[1] CUDA error: misaligned address"
    text = dense.documents(load(dense_dir), [])[markdown.REPORT]
    assert "Rows without a ratio (reasons under Findings):" in text


KV_A = "kv_a (6144->576)"


def test_geomeans_are_over_the_rows_they_name(dense_dir):
    run = load(dense_dir)
    line = table(dense_tables.geomeans(run, "T"))[1]
    rows = [x for r in run.rows if r.op == "fwd" and r.T == 256 and (x := r.ratio("sota"))]
    assert line["op"] == "fwd" and line["T=256"] == f"{geomean(rows):.3f}"
    layers = table(dense_tables.geomeans(run, "layer"))
    assert [x["layer (in->out)"] for x in layers[:14]] == list(dict.fromkeys(r.product for r in run.rows))


def test_a_previous_version_has_a_table_with_a_line_a_node(previous_dense_dir):
    run = load(previous_dense_dir)
    lines = table(dense_tables.rows_against(run, run.rows, "cake_prev"))
    assert [x["node"] for x in lines[:3]] == ["all", "node-1", "node-2"]
    assert {x["out"] for x in lines} == {"bf16", "f32"}
    assert all(x["slower passes"].endswith("of 8") for x in lines if x["node"] != "all")
    for line in lines:
        before, new = float(line["previous us"]), float(line["new us"])
        assert f"{before / new:.3f}" == line["speedup [interval] verdict"].split()[0]
    text = dense.documents(run, [])[markdown.REPORT]
    assert text.splitlines()[2].startswith("**Single launches after 20 ms of idle: `cake` against ")
    assert "previous us | new us | speedup [interval] verdict" in text
    assert (
        "at most 5e-5 of FP32 outputs" in text
        and "single launches after idle, merged" in text.splitlines()[0]
    )


def test_rows_below_the_floor_are_named_with_their_plan(small_dense_dir):
    (low,) = dense.below_floor(load(small_dense_dir))
    assert low.startswith("wgrad graph mla_k T=16231: ") and "`wgrad: projection[128x256, 1 part]`" in low


def test_forms_have_words():
    m = Manifest.model_construct(form="passes", pause_ms=0.0)
    assert form(m) == "sustained, in order-balanced passes"
    assert form(m.model_copy(update={"form": "groups"})) == "sustained, in groups"
    assert form(m.model_copy(update={"pause_ms": 2.5})) == "single launches after 2.5 ms of idle"


def test_definitions_are_of_what_ran(small_dense_dir):
    text = dense.documents(load(small_dense_dir), [])[markdown.REPORT].partition("## Definitions")[2]
    assert "kv_a (6144->576), mla_k (64 x 192->512); T 64/16231" in text
    assert "top-8" not in text and "experts" not in text and "emulation" not in text and "BF16x3" not in text


@pytest.mark.parametrize("name", ["dense_dir", "small_dense_dir", "previous_dense_dir"])
def test_tables_have_equal_columns(request, name):
    for text in dense.documents(load(request.getfixturevalue(name)), []).values():
        for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
            counts = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
            assert len(counts) == 1, block
        assert text.count("<details>") == text.count("</details>")


def test_pictures_are_written_with_the_report(dense_dir, previous_dense_dir):
    for run_dir, names in ((dense_dir, ["ratio", "speed"]), (previous_dense_dir, PICTURES)):
        text = write_report(run_dir).read_text()
        assert re.findall(r"\]\(plots/(\w+)\.png\)", text) == names
        for name in names:
            with Image.open(run_dir / f"plots/{name}.png") as picture:
                assert picture.width == 1200 and picture.info == {}
            assert (run_dir / f"plots/{name}.png").stat().st_size < 200_000


PICTURES = ["ratio", "previous", "speed"]


def test_a_run_without_times_has_no_pictures_and_says_so(small_dense_dir, tmp_path):
    run = load(small_dense_dir)
    none = group(run.manifest, Cells(cells=()), ())
    drawn, notes = dense_plots.draw(none, tmp_path)
    assert drawn == []
    assert notes == [
        "No plot of SOTA / cake: no row has the ratio.",
        "No plot of TFLOP/s: no row has a time.",
    ]
    text = dense.documents(replace(none), [], notes)[markdown.REPORT]
    assert "no geomean, since no row has a ratio" in text


@pytest.mark.parametrize(("ratio", "place"), [(0.5, 0), (0.95, 6), (1.0, 12), (1.05, 18), (3.0, 24)])
def test_colours_are_full_from_a_tenth_on(ratio, place):
    assert dense_plots.shade(ratio) == place


@pytest.mark.parametrize("name", ["dense_dir", "small_dense_dir", "previous_dense_dir"])
def test_terminal_summary_fits_80_columns(request, name):
    run_dir = request.getfixturevalue(name)
    console = Console(file=io.StringIO(), width=80, force_terminal=False)
    print_summary(run_dir, console)
    text = console.file.getvalue()
    assert all(len(line.rstrip()) <= 80 for line in text.splitlines() if str(run_dir) not in line)
    assert "…" not in text and "SOTA/cake per T: " in text and "torch_bf16/cake" in text
