"""About how long a projection by a form of the sm90 family takes on an H200, in us: enough to choose. Pure.

The numbers were fitted to the times of the dense suite's 294 rows there, 8 to 38 ways each, with a cold L2
for T up to 1024 and one launch behind the other for more. Of those ways the one of the least estimate is
2.4 % slower than the best one, in the geometric mean.
"""

from __future__ import annotations

from math import ceil

from .forms import STEP, Form

#: The launch; a stage of K for itself, and in 1e-7 us for each of its 128-byte products of a row and a
#: column, by form.
START, STAGE = 1.44, 0.102
PRODUCT = {
    "c128x128": 1.22,
    "c128x144": 1.52,
    "c128x192": 1.37,
    "c128x240": 1.51,
    "c128x256": 1.43,
    "c128x96": 1.48,
    "c256x128": 1.43,
    "c256x136": 1.58,
    "c256x160": 1.56,
    "c256x176": 1.57,
    "c256x192": 1.51,
    "c256x64": 1.54,
    "p128x128": 1.21,
    "p128x176": 1.38,
    "p128x192": 1.35,
    "p128x32": 2.85,
    "p128x64": 1.41,
    "p64x128": 0.971,
    "p64x192": 1.09,
    "p64x32": 1.53,
    "p64x64": 0.601,
    "p64x96": 1.14,
}
#: A byte on its way to an SM, and of memory.
FEED, BYTE = 3.42e-6, 2.31e-7
#: A tile's way to the output, for each element where two warpgroups store it or one.
ELEMENT = (2.18e-5, 5.91e-5)
#: Parts that meet: for themselves, and for a byte of their sums.
MEET, SUM_BYTE = 0.932, 2.26e-5
#: A unit of half height, in units; what of the shorter of products and memory is not hidden.
HALF, SHOWN = 0.602, 0.436


def estimate(
    form: Form, m: int, n: int, k: int, batch: int, parts: int, tail: bool, sms: int, out_size: int = 2
) -> float:
    """What ``batch`` products [m, k] @ [k, n] of BF16 take with K in ``parts``, in us."""
    tiles = -(-m // form.rows) * -(-n // form.columns) * batch
    stages = ceil(ceil(k / STEP) / parts)
    full, rest = divmod(tiles * parts, sms)
    halves = tail and form.height > 1 and 2 * rest <= sms
    rounds = full + ((HALF if halves else 1.0) if rest else 0.0)
    size = form.rows * form.columns
    step = max(
        size * 2 * STEP * PRODUCT[str(form)] * 1e-7 + STAGE, (form.rows + form.columns) * 2 * STEP * FEED
    )
    store = size * ELEMENT[form.teams - 1]
    if parts > 1:
        store += MEET + size * 4 * (1 + parts) * SUM_BYTE / form.sharing
    product = stages * step
    if form.teams == 1 or rounds < 1:
        us = rounds * (product + store)
    else:
        us = (rounds - 1) * max(product, (product + store) / 2) + product + store
    moved = batch * (2 * (m * k + k * n) + out_size * m * n + (8 * m * n * parts if parts > 1 else 0))
    us, memory = us + START, START + moved * BYTE
    return (us**4 + memory**4) ** 0.25 + SHOWN * min(us, memory)
