"""The ways that the sm90 family could do a projection, and the one of the least estimated time. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

from ..operand import ITEMSIZE
from .forms import FORMS, STEP
from .projection_estimate import estimate

#: Row tiles walked before the next column tile: 4, 16 and 32 were slower or equal (H200, T of 4096 and more).
RASTER = 8
#: Parts that K is cut in, and elements of K that a part has at least.
SPLITS = (1, 2, 3, 4, 6, 8, 12, 16)
MIN_PART = 256
#: The SMs that a partition is chosen for, whatever a device has: bits must not depend on it.
PARTITION_SMS = 132


@dataclass(frozen=True)
class Way:
    """A form, the parts of K, whether the last wave's tiles are cut, and whether it is the product's
    transpose that is computed.
    """

    form: str
    splits: int = 1
    tail: bool = False
    swapped: bool = False
    raster: int = RASTER


def ways(
    m: int, n: int, k: int, batch: int, out: str, sms: int, *, pinned: int | None = None
) -> Iterator[tuple[float, Way]]:
    """Every way to do ``batch`` products [m, k] @ [k, n] into dtype ``out``, with its estimated time in us;
    ``pinned`` are the
    parts of K.
    """
    cuts = SPLITS if pinned is None else (pinned,)
    stages = ceil(k / STEP)
    for swapped in (False, True):
        rows, columns = (n, m) if swapped else (m, n)
        for name, form in FORMS.items():
            if not form.stores(out):
                continue
            for cut in cuts:
                if pinned is None and cut > 1 and k < cut * MIN_PART:
                    break
                parts = ceil(stages / ceil(stages / cut))
                tiles = -(-rows // form.rows) * -(-columns // form.columns) * batch
                rest = tiles * parts % sms
                for tail in (False, True) if form.height > 1 and 0 < 2 * rest <= sms else (False,):
                    us = estimate(form, rows, columns, k, batch, parts, tail, sms, ITEMSIZE[out])
                    yield us, Way(name, cut, tail, swapped)


def best(m: int, n: int, k: int, batch: int, out: str, sms: int) -> Way:
    """The way of the least estimated time. Its partition depends on the shape alone, its form on the device's
    ``sms`` too.
    """
    pinned = splits(m, n, k, batch, out)
    return min(ways(m, n, k, batch, out, sms, pinned=pinned), key=_us)[1]


def splits(m: int, n: int, k: int, batch: int, out: str) -> int:
    """The parts of K of the shape."""
    return min(ways(m, n, k, batch, out, PARTITION_SMS), key=_us)[1].splits


def _us(way: tuple[float, Way]) -> float:
    return way[0]
