from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from bench.model import Flag
from bench.statistics import JUDGEMENT
from bench.store import open_run
from reports import definitions, markdown, write_report
from reports.rows import group, load

GOLDEN = Path(__file__).with_name("golden_small.md")


def render(run_dir, **kwargs):
    return markdown.documents(load(run_dir), [], **kwargs)


def test_whole_report_of_a_small_run(small_dir):
    assert render(small_dir)[markdown.REPORT] == GOLDEN.read_text()


def test_whole_report_of_a_run_with_fp16x2(fp16x2_dir):
    assert render(fp16x2_dir)[markdown.REPORT] == GOLDEN.with_name("golden_fp16x2.md").read_text()


def test_fp16x2_that_the_device_has_not_is_named_once_and_has_no_columns(fp16x2_dir, tmp_path):
    """As `cake_fp16x2` on a CPU: an arm, but nothing to judge."""
    run = load(fp16x2_dir)
    none = {"status": "unsupported", "reason": "no programs", "us": None, "ratio": None, "verdict": None}
    rows = [
        replace(
            row,
            cells={
                (arm, over): cell.model_copy(update=none) if arm == "cake_fp16x2" else cell
                for (arm, over), cell in row.cells.items()
                if over != "cake_fp16x2"
            },
        )
        for row in run.rows
    ]
    text = markdown.documents(replace(run, rows=tuple(rows)), [])[markdown.REPORT]
    assert "`cake_fp16x2`: unsupported on all 2 rows: no programs." in text
    assert "fp16x2/cake" not in text and "SOTA/cake_fp16x2" not in text
    assert "**FP16x2**" not in text and "half the products" not in text


def test_the_same_directory_gives_the_same_bytes(small_dir):
    path = write_report(small_dir)
    first = {p.name: p.read_bytes() for p in [path, *sorted((small_dir / "plots").iterdir())]}
    assert path == small_dir / "report.md"
    assert write_report(small_dir).read_bytes() == first["report.md"]
    assert {p.name: p.read_bytes() for p in [path, *sorted((small_dir / "plots").iterdir())]} == first
    assert str(small_dir) not in path.read_text()


def test_links_point_at_files_that_exist(h200_dir):
    text = write_report(h200_dir).read_text()
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert links == ["plots/ratio.png", "plots/times.png"]
    for link in links:
        assert 0 < (h200_dir / link).stat().st_size < 200_000


def test_headline_counts_every_row_and_names_the_slower(h200_dir):
    text = render(h200_dir)[markdown.REPORT]
    headline = text.splitlines()[2]
    assert re.fullmatch(
        r"\*\*`cake` against the best library call: faster in 84 of 90 rows, same in 3, slower in 3, "
        r"not measured in 0; geomean \d\.\d{3} \[\d\.\d{3}, \d\.\d{3}\] "
        r"\(eager \d\.\d{3}, graph \d\.\d{3}\); control 0\.\d{3}-1\.\d{3}\.\*\*",
        headline,
    )
    top = text[: text.index("## Summary")]
    assert "Slower rows, as SOTA/cake | SOTA/cake_det, in brackets where that arm is not slower:" in top
    figures = r"0\.9\d\d \| 0\.9\d\d"
    assert re.search(rf"- wgrad eager \(3 of 9\): T=64 H=4096 {figures}; T=64 H=5120 {figures}; T=64", top)
    assert re.search(r"- wgrad graph \(3 of 9\): T=64 H=4096 \(\d\.\d{3}\) \| 0\.9\d\d;", top)
    assert "`cake_det` is what a call does by default" in top
    assert "Note:" not in top


def test_a_row_that_is_slower_for_both_arms_is_listed_once(cpu_dir):
    top = render(cpu_dir)[markdown.REPORT].partition("## Summary")[0]
    assert top.count("T=64 H=4096") == len(load(cpu_dir).ops)
    assert re.search(r"- fwd eager \(all 4\): T=64 H=4096 0\.3\d\d \| 0\.3\d\d;", top)


def test_doubts_stand_beside_the_headline(broken_dir, cpu_dir):
    broken = render(broken_dir)[markdown.REPORT].partition("## Summary")[0]
    assert "**Note:** Timed by `events`, not by CUPTI" in broken
    assert "**Note:** Caches are warm; cold L2 is not proven: memory-bound probe 5.00 us cold" in broken
    assert "**Note:** The run did not finish" in broken
    assert "not measured in 9" in broken
    assert "over 11 rows" in broken
    assert "- 2fwd+bwd graph: T=256 H=4096 (not run)" in broken
    cpu = render(cpu_dir)[markdown.REPORT].partition("## Summary")[0]
    assert "**Note:** Measured on a CPU by its clock" in cpu
    assert "**Note:** The working tree had uncommitted changes." in cpu


def test_what_the_set_up_lacks_or_mixes_is_said_on_top(small_dir):
    run = load(small_dir)
    note = "resumed at 2026-01-02T04:00:00Z with other versions: torch 2.10 -> 2.11"
    timer = run.manifest.timer.model_copy(update={"dropped_records": 1})
    changed = run.manifest.model_copy(update={"git": {}, "notes": (note,), "timer": timer})
    text = markdown.documents(replace(run, manifest=changed), [])[markdown.REPORT]
    top = text.partition("## Summary")[0]
    assert "**Note:** The commit that ran is not recorded" in top
    assert "**Note:** CUPTI dropped 1 record; steps that lack one are void." in top
    assert f"**Note:** R{note[1:]}." in top
    assert "| git commit | not recorded (" in text


def test_groups_are_those_that_ran(small_dir):
    run = load(small_dir)
    (key, facts), *rest = run.facts.items()
    rotated = facts.model_copy(update={"positions": {"cake": (2, 2, 2)}})
    other = rest[0][1].model_copy(update={"positions": {"cake": (4, 4)}})
    text = markdown.documents(replace(run, facts={key: rotated, rest[0][0]: other}), [])[markdown.REPORT]
    assert "per row 6 to 8 groups (3 asked for" in text
    assert "| per row | 6 to 8 groups x 2 timed steps an arm" in text


def test_a_report_over_the_limit_moves_its_full_tables(h200_dir):
    whole = render(h200_dir)
    assert list(whole) == ["report.md"]
    assert len(whole["report.md"]) <= markdown.LIMIT
    limit = len(whole["report.md"]) - 1
    parts = render(h200_dir, limit=limit)
    assert list(parts) == ["report.md", "report-tables.md"]
    assert len(parts["report.md"]) <= limit
    assert "[report-tables.md](report-tables.md)" in parts["report.md"]
    assert f"{len(whole['report.md']):,} characters" in parts["report.md"]
    assert "<details>" not in parts["report.md"]
    for block in re.findall(r"<details>.*?</details>", whole["report.md"], re.DOTALL):
        assert block in parts["report-tables.md"]


def test_a_table_file_that_is_no_longer_needed_goes(small_dir):
    stale = small_dir / markdown.TABLES
    stale.write_text("of an earlier report")
    write_report(small_dir)
    assert not stale.exists()


@pytest.mark.parametrize("name", ["h200_dir", "cpu_dir", "broken_dir", "small_dir"])
def test_tables_have_equal_columns_and_sections_are_complete(request, name):
    text = render(request.getfixturevalue(name))[markdown.REPORT]
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        counts = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
        assert len(counts) == 1, block
    for section in ("Summary", "Findings", "Plots", "Full tables", "Definitions", "Set-up"):
        assert f"\n## {section}\n" in text
    assert text.count("<details>") == text.count("</details>")


def test_reasons_open_no_html_tag(small_dir):
    run = open_run(small_dir)
    cells = run.cells()
    broken = [
        c.model_copy(
            update={"status": "error", "us": None, "ratio": None, "reason": "<built-in function> | x"}
        )
        if c.arm == "torch_fp32"
        else c
        for c in cells.cells
    ]
    text = markdown.documents(
        group(run.manifest(), cells.model_copy(update={"cells": tuple(broken)}), ()), []
    )
    assert "&lt;built-in function>" in text["report.md"]
    assert "<built-in" not in text["report.md"]


def test_definitions_follow_the_manifest(small_dir, cpu_dir):
    small, cpu = (render(d)[markdown.REPORT].partition("## Definitions")[2] for d in (small_dir, cpu_dir))
    assert "T 64/256 x H 4096, N 256" in small
    assert "3 groups" in small and "for 2 untimed and 2 timed steps" in small
    assert "CUPTI activity records" in small
    assert f"{100 * JUDGEMENT.level:g} % interval" in small
    assert "wall time of the op by the monotonic clock" in cpu
    assert "T 64 x H 5120/6144, N 256" in cpu
    assert "`graph`" not in cpu
    for word in (
        "row",
        "shapes",
        "ops",
        "modes",
        "latency",
        "runs",
        "SOTA",
        "ratio",
        "control",
        "interval",
        "verdict",
    ):
        assert f"- **{word}**: " in small


def test_what_is_made_anew_is_said_where_it_was_recorded(h200_dir, cpu_dir):
    def said(run_dir, **changes):
        run = load(run_dir)
        changed = replace(run, manifest=run.manifest.model_copy(update=changes))
        return dict(definitions.definitions(changed)).get("instances", "")

    both = said(h200_dir)
    assert both.startswith(
        "in graph mode every arm is prepared and captured 5 times, and these instances take "
    )
    assert "; in eager mode cake's programs are loaded anew before every visit, a library's kernels " in both
    assert both.endswith("on an H200 by 0.3 to 0.7 %, which more steps do not average out")
    assert "captured anew for every group" in said(h200_dir, instances=0)
    assert "in eager mode" not in said(h200_dir, reloads=False)
    assert said(h200_dir, instances=1).startswith("in eager mode")
    assert "from pass to pass" in said(h200_dir, form="passes")
    assert said(h200_dir, instances=None, reloads=None) == ""
    assert said(cpu_dir, instances=5, reloads=True) == ""  # a CPU has no programs to load


def test_flags_that_occur_are_defined(h200_dir, cpu_dir):
    h200, cpu = (dict(definitions.definitions(load(d))) for d in (h200_dir, cpu_dir))
    assert "flag" not in h200
    assert cpu["flag"] == "`warm` the L2 was not proven cold. It is said beside a time, and removes none"
    run = load(h200_dir)
    key, cell = next(iter(run.rows[0].cells.items()))
    cells = {**run.rows[0].cells, key: cell.model_copy(update={"flags": get_args(Flag)})}
    made = replace(run, rows=(replace(run.rows[0], cells=cells), *run.rows[1:]))
    flags = dict(definitions.definitions(made))["flag"]
    assert all(f"`{flag}` " in flags for flag in get_args(Flag))


def test_what_is_not_known_of_the_device_is_left_out(cpu_dir):
    run = load(cpu_dir)
    assert "| last-level cache | 32 MiB |" in markdown.table(definitions.setup(run))
    device = run.manifest.device.model_copy(update={"l2_mb": 0.0, "memory_gb": 0.0})
    manifest = run.manifest.model_copy(update={"device": device})
    table = markdown.table(definitions.setup(replace(run, manifest=manifest)))
    assert "cache" not in table and "memory" not in table and "not recorded" not in table


def test_a_dirty_tree_is_said(h200_dir, cpu_dir):
    words = "The working tree had uncommitted changes."
    assert words in markdown.warnings(load(cpu_dir)) and words not in markdown.warnings(load(h200_dir))


def test_a_warm_view_says_so_everywhere(warm_dir, small_dir):
    text = render(warm_dir)[markdown.REPORT]
    assert text.startswith("# router suite, preset full, warm L2, on ")
    assert text.splitlines()[2].startswith("**warm L2: `cake` against the best library call: ")
    assert "**Note:** A warm view, as asked by `--warm-l2`" in text and "cold L2 is" not in text
    assert "nothing is flushed before a step" in text and "L2 is overwritten" not in text
    assert "| cold L2 | not wanted: a warm view" in text
    assert "warm" not in render(small_dir)[markdown.REPORT].partition("## Definitions")[0]


def test_a_run_of_host_times_alone_says_that_nothing_was_timed(small_dir):
    run = load(small_dir)
    host = run.manifest.model_copy(
        update={"timer": run.manifest.timer.model_copy(update={"name": "host"}), "l2": None}
    )
    text = markdown.documents(replace(run, manifest=host), [])[markdown.REPORT]
    assert "**Note:** No intervals were timed, as asked by `--timer host`: no row has a ratio." in text
    assert "not by CUPTI" not in text and "Caches are warm" not in text
