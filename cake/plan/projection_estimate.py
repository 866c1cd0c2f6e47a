"""About how long a projection by a form of the sm90 family takes on an H200, in us: enough to choose. Pure.

The numbers were fitted to the times of 252 rows of the dense suite there, 30 ways
each. Of those ways the one of the least estimate is 3.7 % slower than the best one, in the geometric mean.
"""

from __future__ import annotations

from math import ceil

from .forms import STEP, Form

#: The launch; a stage of K for itself, and in 1e-7 us for each of its 128-byte products of a row and a
#: column, by form.
START, STAGE = 1.49, 0.0907
PRODUCT = {
    "c128x128": 1.33,
    "c128x192": 1.42,
    "c128x256": 1.43,
    "c256x128": 1.47,
    "c256x192": 1.54,
    "c256x64": 1.89,
    "p128x128": 1.33,
    "p128x192": 1.37,
    "p128x32": 1.42,
    "p128x64": 1.65,
    "p64x128": 1.31,
    "p64x192": 1.37,
    "p64x32": 1.74,
    "p64x64": 1.2,
}
#: A byte on its way to an SM, and of memory.
FEED, BYTE = 9.36e-6, 2.59e-7
#: A tile's way to the output: for itself, and for each element where one or two warpgroups store it.
STORE, ELEMENT = 0.116, (1.24e-5, 5.56e-5)
#: Parts that meet: for themselves, and for a byte of their sums.
MEET, SUM_BYTE = 0.716, 2.03e-5
#: A unit of half height, in units; what of the shorter of products and memory is not hidden.
HALF, SHOWN = 0.628, 0.347


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
    store = STORE + size * ELEMENT[form.teams - 1]
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
