"""The timer's tick, from the grid on which durations fall.

Stamps are converted between clocks before we see them, so their own common divisor is 1; but a duration of n
ticks still reads as n times the tick, to within a nanosecond of rounding (32 ns on Hopper).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

#: Under this many different durations a grid may be chance.
MIN_DISTINCT = 12
#: Share of durations that must lie on the grid. The rest may be odd: one bad stamp in a hundred.
SHARE = 0.99
LARGEST_NS = 4096


def estimate_tick(durations_ns: Sequence[int], rounding_ns: int = 1) -> int | None:
    """The largest tick in ns whose multiples hold the durations to within ``rounding_ns``.

    Ticks up to three roundings cannot be told from 1, and 1 is what they give. ``None`` where fewer than
    ``MIN_DISTINCT`` different durations were seen.
    """
    durations = np.asarray([d for d in durations_ns if d > 0], dtype=np.int64)
    if np.unique(durations // (2 * rounding_ns + 1)).size < MIN_DISTINCT:
        return None
    # A single odd duration cannot veto a grid, so the bound on the tick is the 1 % quantile, not the minimum.
    largest = min(LARGEST_NS, int(np.quantile(durations, 1 - SHARE)) + rounding_ns)
    for tick in range(largest, 3 * rounding_ns, -1):
        off = durations % tick
        if np.mean(np.minimum(off, tick - off) <= rounding_ns) >= SHARE:
            return tick
    return 1
