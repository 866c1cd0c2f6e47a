from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from bench.model import Again
from reports import definitions, markdown, tables, versions
from reports.findings import findings
from reports.rows import load
from reports.terminal import print_summary
from reports.versions import against_previous, changed, headline, host_times, slower


@pytest.fixture
def run(previous_dir):
    """Two rows, fwd graph: T=64 faster than before (1.097), T=256 slower (0.949)."""
    made = load(previous_dir)
    manifest = made.manifest.model_copy(update={"previous": {"ref": "main", "commit": "0123456789abcdef"}})
    # Verdicts are the statistics' business; here they are given.
    verdicts = [{"verdict": word, "first_verdict": None, "again": None} for word in ("faster", "slower")]
    return edited(replace(made, manifest=manifest), "cake_prev", *verdicts)


def edited(run, arm, *updates, over="cake"):
    """The run with a cell's fields replaced, one dict a row."""
    rows = []
    for row, update in zip(run.rows, updates, strict=True):
        cell = row.cells[arm, over].model_copy(update=update)
        rows.append(replace(row, cells={**row.cells, (arm, over): cell}))
    return replace(run, rows=tuple(rows))


def test_the_headline_counts_rows_by_verdict(run):
    assert headline(run).startswith(
        "`cake` against the previous version (main, 0123456789ab): faster in 1 of 2 rows, same in 0, "
        "slower in 1, not measured in 0; geomean 1.020"
    )
    failed = {"status": "error", "us": None, "ratio": None, "verdict": None}
    none = edited(run, "cake_prev", failed, failed)
    assert headline(none).endswith("not measured in 2; no geomean, since no row has a ratio.")


def test_a_run_without_a_previous_version_says_nothing(h200_dir):
    run = load(h200_dir)
    assert headline(run) == "" and list(against_previous(run)) == list(changed(run)) == []
    assert list(host_times(run)) == []
    assert "previous" not in " ".join(text for _, text in definitions.definitions(run))


def test_a_slower_row_is_shown_with_its_control_its_repeat_and_the_tick(run):
    [line] = slower(run)
    assert line.startswith("fwd graph T=256 H=4096: 11.20")
    assert "; control pair 11.81 / 11.81 us = 1.000 (range 1.000); not measured again; " in line
    assert line.endswith("; the medians differ by 19 ticks of 32 ns")
    again = Again(us=11.2, over_us=11.8, ratio=11.2 / 11.8, ratio_lo=0.94, ratio_hi=0.955, verdict="slower")
    [line] = slower(edited(run, "cake_prev", {}, {"again": again, "first_verdict": "slower"}))
    assert "; again 11.20 / 11.80 us = 0.949 [0.940, 0.955] (slower, as at first); " in line


def test_against_previous(run):
    said = list(against_previous(run))
    assert said[0] == (
        "graph: previous / new is 0.949-1.097, geomean 1.020; of 2 rows, "
        "1 above, 1 below control (1.000 over all)."
    )
    assert said[1] == "graph: above control: fwd 1 of 2."
    assert said[2] == (
        "graph: none of 2 within control; the others differ by at most 9.7 %; "
        "the lowest is fwd graph T=256 H=4096, 0.949."
    )
    assert said[3].startswith("graph: below control: fwd graph T=256 H=4096: 11.20")
    assert len(said) == 4


def test_the_lowest_row_that_is_not_below_is_shown_in_full(run):
    said = list(against_previous(edited(run, "cake_prev", {}, {"ratio": 1.0})))
    assert said[2].startswith(
        "graph: 1 of 2 within control; the other differs by at most 9.7 %; the lowest is"
    )
    assert "fwd graph T=256 H=4096: 11.2" in said[2] and "; control pair 11.81 / " in said[2]


@pytest.mark.parametrize(
    ("ratios", "words"),
    [((1.1, 1.2), "above control in every cell (2 of 2)"), ((1.0, 0.9), "above control in no cell of 2")],
)
def test_counts_collapse(run, ratios, words):
    cells = [row.cell("cake_prev") for row in run.rows]
    updates = [{"ratio": x, "us": c.us / c.ratio * x} for x, c in zip(ratios, cells, strict=True)]
    assert f"graph: {words}." in list(against_previous(edited(run, "cake_prev", *updates)))


def test_ops_of_which_every_cell_is_above(run):
    other = [replace(r, op="dgrad") for r in run.rows]
    both = replace(run, rows=(*edited(run, "cake_prev", {}, {"ratio": 1.2}).rows, *other))
    assert "graph: above control: fwd every cell (2), dgrad 1 of 2." in list(against_previous(both))


def test_what_was_flagged_and_not_confirmed_is_shown(run):
    again = Again(us=11.8, over_us=11.8, ratio=1.0, verdict="same")
    flagged = [{"again": again, "first_verdict": word, "verdict": "same"} for word in ("faster", "slower")]
    said = list(against_previous(edited(run, "cake_prev", *flagged)))
    assert "graph: faster at first, not confirmed: 1 of 2 rows (fwd graph T=64 H=4096)." in said
    [line] = [s for s in said if s.startswith("graph: slower at first, not confirmed: fwd graph T=256")]
    assert "again 11.80 / 11.80 us = 1.000 (same, not at first)" in line


def test_nothing_changed(run):
    equal = edited(run, "cake_prev", {"bits_equal": True}, {"bits_equal": True})
    assert list(changed(equal)) == [
        "No program, plan or partition changed on all 2 rows.",
        "Deterministic outputs have the same bits on all 2 rows.",
    ]


def test_changed_bits_of_a_program_that_is_not_known(run):
    other = {"bits_equal": False, "bits_unknown": True, "program": None}
    assert list(changed(edited(run, "cake_prev", other, other))) == [
        "Programs and plans of the previous version are not known.",
        "Deterministic outputs have the same bits on none of 2 rows.",
        "The bits changed on all 2 rows.",
        "It is not known whether the program changed on all 2 rows.",
    ]


def test_what_changed_is_named(run):
    old = {"program": "a", "partition": "k1", "bits_equal": False}
    news = {"program": "b", "partition": "k2"}
    made = edited(
        run,
        "cake_prev",
        old | {"changed": ("program", "plan", "partition", "bits")},
        {"bits_equal": None, "changed": ("program",)},
    )
    made = edited(made, "cake", news, {})
    assert list(changed(made)) == [
        "The program changed on all 2 rows: `a` -> `b` on 1; `sm80_bf16x3` made differently on 1.",
        "The plan changed on 1 of 2 rows (fwd graph T=64 H=4096).",
        "The partition changed on 1 of 2 rows (fwd graph T=64 H=4096): `k1` -> `k2` on 1.",
        "Deterministic outputs have the same bits on 0 of 1 row.",
        "The bits changed on 1 of 2 rows (fwd graph T=64 H=4096).",
        "Bits were not compared on 1 row: one of the versions gave none there.",
    ]


def test_bits_that_must_not_have_changed(run):
    made = edited(run, "cake_prev", {"bits_equal": True}, {"bits_equal": False, "bits_unexplained": True})
    assert list(changed(made))[1:] == [
        "Deterministic outputs have the same bits on 1 of 2 rows.",
        "The bits changed on 1 of 2 rows (fwd graph T=256 H=4096).",
        "They must not have on 1 of 2 rows (fwd graph T=256 H=4096): neither program nor partition of the "
        "deterministic call changed.",
    ]


def test_a_version_without_plans(run):
    made = edited(run, "cake_prev", {"program": None}, {"program": None})
    assert list(changed(made)) == [
        "Programs and plans of the previous version are not known.",
        "Bits were not compared on 2 rows: one of the versions gave none there.",
    ]
    table = tables.full(made, "graph")
    at = [c.title for c in table.columns].index("changed")
    assert all(line[at].startswith("unknown [") for line in table.lines)


def test_host_time_before_and_now(run):
    made = edited(run, "cake_prev", {"host_us": 33.5}, {"host_us": 35.7})
    assert list(host_times(made)) == []
    made = edited(made, "cake", {"host_us": 29.6}, {"host_us": 31.1})
    sentence = "graph, previous -> new: fwd 33.5-35.7 -> 29.6-31.1 us."
    assert list(host_times(made)) == [sentence]
    said = {f.title: f.sentences for f in findings(made)}
    assert said["Host time per call"][0] == sentence


def test_the_full_table_has_the_previous_versions_columns(run):
    again = Again(us=11.2, over_us=11.8, ratio=0.949, verdict="slower")
    made = edited(run, "cake_prev", {"changed": ("plan",)}, {"again": again, "first_verdict": "slower"})
    table = tables.full(made, "graph")
    titles = [c.title for c in table.columns]
    lines = [dict(zip(titles, line, strict=True)) for line in table.lines]
    # The row that became slower stands first.
    assert [line["T"] for line in lines] == ["256", "64"]
    assert [line["previous/new"] for line in lines] == ["0.949", "1.097"]
    assert [line["verdict (previous)"] for line in lines] == ["slower", "faster"]
    assert [line["measured again"] for line in lines] == ["0.949, slower", "no"]
    assert [line["changed"] for line in lines] == ["nothing", "plan"]
    for line in lines:
        quotient = float(line["cake_prev, us"]) / float(line["cake, us"])
        assert f"{quotient:.3f}" == line["previous/new"]
    assert "measured again" not in [c.title for c in tables.full(run, "graph").columns]


def test_its_bits_are_not_those_after_timing(run):
    made = edited(run, "cake_prev", {"bits_equal": False}, {"bits_equal": False})
    lines = {line[0]: line for line in tables.accuracy(made).lines}
    assert lines["cake_prev"][-1].startswith("n/a [")


def test_the_report_and_the_terminal_lead_with_it(run, previous_dir, monkeypatch):
    text = markdown.documents(run, [])["report.md"]
    assert f"**{headline(run)}**" in text
    assert "Rows slower than in the previous version (main, 0123456789ab):\n\n- fwd graph T=256" in text
    assert "| previous commit | 0123456789abcdef |" in text
    assert "In previous/new, previous is `cake_prev` and new is `cake`" in text
    out = io.StringIO()
    monkeypatch.setattr("reports.terminal.load", lambda path: run)
    print_summary(previous_dir, Console(file=out, width=200))
    assert "cake against the previous version (main, 0123456789ab): faster in 1 of 2" in out.getvalue()
    assert "slower than before fwd graph T=256 H=4096: 11.20" in out.getvalue()


def test_a_control_run_is_called_one(run):
    made = replace(run, manifest=run.manifest.model_copy(update={"control_run": True}))
    assert headline(made).startswith("`cake` against a copy of itself (control run): faster in 1 of 2")
    [words] = [w for w in markdown.warnings(made) if "control run" in w]
    assert words.endswith("so previous/new is of equal code.")
    assert versions.name(made) in " ".join(text for _, text in definitions.definitions(made))
