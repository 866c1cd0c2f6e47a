from __future__ import annotations

import re
from dataclasses import replace

import pytest

from reports import markdown, tables
from reports.rows import load

RUNS = ["h200_dir", "cpu_dir", "broken_dir", "small_dir"]


@pytest.fixture(params=RUNS)
def run(request):
    return load(request.getfixturevalue(request.param))


def every_table(run):
    yield tables.summary(run)
    yield from (tables.full(run, mode) for mode in run.modes)
    yield tables.rivals(run)
    yield tables.host(run)
    yield tables.accuracy(run)


def column(table, title):
    at = [c.title for c in table.columns].index(title)
    return [line[at] for line in table.lines]


def test_no_cell_is_empty_and_every_mark_has_its_note(run):
    for table in every_table(run):
        for line in table.lines:
            assert len(line) == len(table.columns)
            for cell in line:
                assert cell.strip(), line
                assert "nan" not in cell and "None" not in cell
                for mark in re.findall(r" \[(\d+)\]", cell):
                    note = next(n for n in table.notes if n.startswith(f"[{mark}] "))
                    assert len(note) > len(f"[{mark}] ")


def test_every_row_appears_once_in_the_full_tables(run):
    shown = []
    for mode in run.modes:
        table = tables.full(run, mode)
        columns = [column(table, title) for title in ("op", "T", "H")]
        shown += [(mode, *key) for key in zip(*columns, strict=True)]
    assert sorted(shown) == sorted((r.mode, r.op, str(r.T), str(r.H)) for r in run.rows)


def test_printed_times_reproduce_every_printed_ratio(run):
    checked = 0
    for mode in run.modes:
        table = tables.full(run, mode)
        titles = [c.title for c in table.columns]
        unit = "ms" if "cake, ms" in titles else "us"
        for line in table.lines:
            values = dict(zip(titles, line, strict=True))
            named = [
                ("SOTA/cake", values["SOTA"], "cake"),
                ("SOTA/cake_det", values["SOTA"], "cake_det"),
                ("control", "control", "cake"),
            ]
            for title, top, bottom in named:
                if re.fullmatch(r"\d+\.\d{3}", values[title]):
                    quotient = float(values[f"{top}, {unit}"]) / float(values[f"{bottom}, {unit}"])
                    assert f"{quotient:.3f}" == values[title], line
                    checked += 1
    assert checked >= len(run.rows)


def test_losing_rows_come_first_the_worst_of_them_on_top(h200_dir):
    table = tables.full(load(h200_dir), "eager")
    verdicts = column(table, "verdict")
    assert verdicts[:3] == ["slower"] * 3
    assert "slower" not in verdicts[3:]
    ratios = [float(x) for x in column(table, "SOTA/cake")]
    assert ratios[:3] == sorted(ratios[:3])
    rest = [int(t) for t in column(table, "T")[3:]]
    assert rest[:9] == [64, 64, 64, 256, 256, 256, 1024, 1024, 1024]


def test_an_arm_without_any_time_is_a_note_not_a_column(h200_dir):
    table = tables.full(load(h200_dir), "graph")
    assert not any("bf16x9" in c.title for c in table.columns)
    assert [n for n in table.notes if n.startswith("`cublas_bf16x9`")] == [
        "`cublas_bf16x9` has no time in all 45 rows: fell-back: "
        "same kernels and bits as cublas_fp32: compute capability 9.0 does not emulate"
    ]


def test_summary_has_a_line_per_mode_and_op_and_a_range_per_t(h200_dir):
    table = tables.summary(load(h200_dir))
    assert [c.title for c in table.columns] == [
        "GPU",
        "mode",
        "op",
        "control",
        "det/cake",
        "SOTA/cake T=64",
        "SOTA/cake T=256",
        "SOTA/cake T=1024",
    ]
    assert len(table.lines) == 10
    figure = re.compile(r"\d\.\d{3}(-\d\.\d{3})?")
    assert all(figure.fullmatch(cell) for line in table.lines for cell in line[3:])


def test_previous_has_a_column_only_where_it_ran(h200_dir):
    run = load(h200_dir)
    assert not any("previous" in c.title for c in tables.summary(run).columns)


def test_previous_and_user_arms_are_shown_but_not_ranked(previous_dir):
    run = load(previous_dir)
    assert [c.title for c in tables.summary(run).columns][3:5] == ["previous/new", "control"]
    assert "mine, us" in [c.title for c in tables.full(run, "graph").columns]
    table = tables.rivals(run)
    assert column(table, "call") == ["torch_fp32", "mine"]
    assert table.lines[1][3] == "not ranked [2]"
    assert "[2] `mine` is the user's own arm, not a library call" in table.notes


def test_a_partial_range_says_over_how_many(broken_dir):
    table = tables.summary(load(broken_dir))
    line = next(line for line in table.lines if line[1:3] == ("graph", "wgrad"))
    assert re.fullmatch(r"\d\.\d{3} \(1 of 2\) \[\d\]", line[3])
    assert line[-1].startswith("not run [")


def test_rivals_say_what_is_left_without_them(h200_dir):
    table = tables.rivals(load(h200_dir))
    lines = {line[:2]: line for line in table.lines}
    best = lines["graph", "cublaslt_fp32_best"]
    assert best[2:5] == ("all 45", "18", "18")
    assert float(best[7]) > float(lines["graph", "torch_fp32"][7])
    assert lines["graph", "cublas_bf16x9"][2] == "none of 45"
    assert lines["graph", "sequence"][4].startswith("n/a [")


def test_accuracy_counts_rows_within_the_budget(broken_dir):
    run = load(broken_dir)
    lines = {line[0]: line for line in tables.accuracy(run).lines}
    assert lines["cake"][1] == "15 of 20"
    assert lines["cublaslt_fp32_best"][1] == "10 of 20"
    assert "5.1e-6" in " ".join(lines["cublaslt_fp32_best"])


def test_a_call_that_fell_back_has_no_accuracy_of_its_own(h200_dir):
    lines = {line[0]: line for line in tables.accuracy(load(h200_dir)).lines}
    assert all(cell.startswith("fell-back [") for cell in lines["cublas_bf16x9"][1:7])
    assert lines["torch_fp32"][1] == "all 90"


def test_decimals_beyond_the_tick_are_explained(h200_dir, cpu_dir):
    assert any(
        n.startswith("the timer's tick is 0.032 us") for n in tables.full(load(h200_dir), "graph").notes
    )
    assert not any("tick" in n for n in tables.full(load(cpu_dir), "eager").notes)


def test_host_table_without_figures_has_no_arm(broken_dir):
    assert [c.title for c in tables.host(load(broken_dir)).columns] == ["mode", "op"]


def test_passes_have_a_table_of_their_own(passes_dir, small_dir):
    t = tables.passes(load(passes_dir))
    assert [c.title for c in t.columns] == [
        *(
            "mode",
            "op",
            "T",
            "H",
            "previous, us",
            "new, us",
            "speedup",
            "interval",
            "slower passes",
            "verdict",
        )
    ]
    slower, faster = (dict(zip((c.title for c in t.columns), line, strict=True)) for line in t.lines)
    assert (slower["slower passes"], faster["slower passes"]) == ("16 of 16", "0 of 16")
    for line in (slower, faster):
        assert f"{float(line['previous, us']) / float(line['new, us']):.3f}" == line["speedup"]
    text = markdown.documents(load(passes_dir), [])[markdown.REPORT]
    assert "<summary>Order-balanced passes: all 2 rows</summary>" in text
    assert "preset full, order-balanced passes, on" in text and "Student's t" in text
    assert "Order-balanced" not in markdown.documents(load(small_dir), [])[markdown.REPORT]


def test_passes_without_a_previous_version_are_against_the_best_library_call(passes_dir):
    run = load(passes_dir)
    arms = tuple(a for a in run.manifest.arms if a != "cake_prev")
    t = tables.passes(replace(run, manifest=run.manifest.model_copy(update={"arms": arms})))
    line = dict(zip((c.title for c in t.columns), t.lines[0], strict=True))
    assert line["SOTA"] == "torch_fp32" and line["speedup"] == "1.836" and line["slower passes"] == "0 of 16"


def test_short_times_do_not_print_as_zero_beside_long_ones(small_dir):
    run = load(small_dir)
    row = run.rows[0]
    cells = dict(row.cells)
    for pair, us in ((("cake", "cake"), 119_080.0), (("torch_fp32", "cake"), 4.1)):
        cells[pair] = cells[pair].model_copy(update={"us": us})
    t = tables.full(replace(run, rows=(replace(row, cells=cells),)), "graph")
    line = dict(zip((c.title for c in t.columns), t.lines[0], strict=True))
    assert float(line["torch_fp32, ms"]) > 0
