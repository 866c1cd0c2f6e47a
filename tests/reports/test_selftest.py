"""What a selftest says of itself."""

from __future__ import annotations

import numpy as np

from bench.selftest import Observation, summarise
from reports.selftest import words

LONG, SHORT = "router-fwd-graph-T64-H4096-N256", "router-wgrad-graph-T64-H4096-N256"


def observation(run: str, row: str, missing=(), **us: float) -> Observation:
    """Arms that take the same time in every step."""
    return Observation(run, row, {arm: np.full((15, 20), t) for arm, t in us.items()}, 0.032, dict(missing))


def test_every_line():
    test = summarise(
        [
            observation("a", LONG, cake=20.0, control=20.0, cake_planted_1=20.2, cake_planted_5=21.0),
            observation("b", LONG, cake=20.0, control=20.6, cake_planted_1=20.0, cake_planted_5=21.0),
            observation(
                "b", SHORT, {"control": "error: no"}, cake=7.0, cake_planted_1=7.07, cake_planted_5=7.0
            ),
        ]
    )
    assert words(test) == [
        "2 runs",
        "false alarms: 1 of 2 cells (50.00 %, allowed 0.5 %) - MISSED",
        f"  flagged: b {LONG} 20.60 / 20.00 us = 1.0300 [1.0300, 1.0300]",
        "planted 1 %: found 1 of 2 rows of 10 us and longer (50.0 %, asked for 90 %) - MISSED; achieved "
        "0.50 % (0.50 to 0.50 % by row)",
        "  not all found: graph fwd 1 of 2",
        "planted 5 %: found 2 of 3 rows (66.7 %, asked for 100 %) - MISSED; achieved 5.00 % "
        "(5.00 to 5.00 % by row)",
        "planted cells found, by the slowdown that the cell itself shows:",
        "    cell shows  10 us and longer  all rows",
        "   under 0.3 %            0 of 1    0 of 2",
        "    1 to 1.5 %            1 of 1    2 of 2",
        "  5 % and more            2 of 2    2 of 2",
        f"not measured: b {SHORT} control: error: no",
    ]


def test_nothing_planted_and_nothing_measured():
    assert words(summarise([observation("a", LONG, cake=20.0)])) == [
        "1 run",
        "no cell of an arm against itself",
    ]
