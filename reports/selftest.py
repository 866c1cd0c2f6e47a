"""A selftest's result in words, for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from bench.selftest_model import Bin, Judged, Selftest


def words(test: Selftest) -> list[str]:
    """Line by line: false alarms, what was found of each planted slowdown, the detection curve."""
    runs, long_us = len(test.runs), test.limits["long_us"]
    said = [f"{runs} {'simulated ' if test.simulated else ''}run{'s' * (runs != 1)}"]
    if test.false_alarm_rate is None:
        said.append("no cell of an arm against itself")
    else:
        said.append(
            f"false alarms: {len(test.flagged)} of {test.cells} cells ({100 * test.false_alarm_rate:.2f} %, "
            f"allowed {100 * test.limits['false_alarm_rate']:.1f} %){_missed(test, 'false_alarm_rate')}"
        )
    said += [f"  flagged: {_words(c)}" for c in test.flagged]
    for name, power in test.power.items():
        every = name == "5"
        share = power.all_rows if every else power.long_rows
        rows = "rows" if every else f"rows of {long_us:.0f} us and longer"
        achieved = (
            ""
            if power.percent_median is None
            else f"; achieved {power.percent_median:.2f} % "
            f"({power.percent_min:.2f} to {power.percent_max:.2f} % by row)"
        )
        said.append(
            f"planted {name} %: found {share.count} of {share.of} {rows} ({100 * (share.share or 0):.1f} %, "
            f"asked for {100 * test.limits[f'power_{name}']:.0f} %){_missed(test, f'power_{name}')}{achieved}"
        )
        worst = {kind: s for kind, s in power.by_kind.items() if s.count < s.of}
        if worst:
            parts = ", ".join(f"{kind} {s.count} of {s.of}" for kind, s in worst.items())
            said.append(f"  not all found: {parts}")
    said += _curve(test.by_achieved, long_us)
    said += [f"not measured: {text}" for text in test.unmeasured]
    return said


def _curve(bins: Sequence[Bin], long_us: float) -> list[str]:
    """The detection curve as a table, without the bins that no cell is in."""
    if not bins:
        return []
    table = [("cell shows", f"{long_us:.0f} us and longer", "all rows")]
    for b in bins:
        if b.all_rows.of:
            long, every = (f"{s.count} of {s.of}" for s in (b.long_rows, b.all_rows))
            table.append((_between(b), long, every))
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return [
        "planted cells found, by the slowdown that the cell itself shows:",
        *("  " + "  ".join(word.rjust(w) for word, w in zip(row, widths, strict=True)) for row in table),
    ]


def _between(b: Bin) -> str:
    if b.percent_from is None:
        return f"under {b.percent_below:g} %"
    return (
        f"{b.percent_from:g} % and more"
        if b.percent_below is None
        else f"{b.percent_from:g} to {b.percent_below:g} %"
    )


def _missed(test: Selftest, limit: str) -> str:
    return "" if test.kept.get(limit, True) else " - MISSED"


def _words(cell: Judged) -> str:
    interval = "" if cell.ratio_lo is None else f" [{cell.ratio_lo:.4f}, {cell.ratio_hi:.4f}]"
    return f"{cell.run} {cell.row} {cell.us:.2f} / {cell.over_us:.2f} us = {cell.ratio:.4f}{interval}"
