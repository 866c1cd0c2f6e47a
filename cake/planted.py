"""Launches with a slowdown of known size planted in them, to test a benchmark's verdict with. Not for use.

The program of an op's last GEMM is compiled so that its CTAs spin for ``spin`` clocks after their stores,
which may hide a part of that, so what was really planted is to be measured. The bits are those of the plain
launch. GPU only, one thread at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from . import router
from .launch.entry import Entry, Options
from .operand import Kind
from .plan.planner import planted
from .router import OPS, Entries, Op, PreparedRouter, prepare_router


def prepare(op: Op, *, spin: int, **arguments: Any) -> PreparedRouter:
    """:func:`cake.prepare_router` with the same arguments, planted. Raises ``ValueError`` on a CPU."""
    with in_place_of_plain(_Planting(op, spin)):
        return prepare_router(op, **arguments)


class Eager:
    """Eager calls of an op, planted: ``call`` makes them through cake's public functions, as ever, which find
    the last GEMM's launch planted. So the host does for them what it does for plain ones.
    """

    def __init__(self, call: Callable[[], None], op: Op, spin: int) -> None:
        self._call = call
        self._entries = _Planting(op, spin)

    def __call__(self) -> None:
        """Make the calls."""
        with in_place_of_plain(self._entries):
            self._call()

    def clear(self) -> None:
        """Forget its launches, as :func:`cake.clear_caches` does the plain ones."""
        self._entries.clear()


class _Planting(Entries):
    """A cache of entries that plants those of an op's last GEMM."""

    def __init__(self, op: Op, spin: int) -> None:
        super().__init__(router.MAX_ENTRIES)
        if type(spin) is not int or not 0 <= spin < 2**31:
            raise ValueError(f"spin={spin!r}; needs a number of clocks from 0 to 2^31 - 1")
        self._kind, self._spin = OPS[op][-1], spin

    def make(
        self, kind: Kind, first: torch.Tensor, second: torch.Tensor, out: torch.Tensor, options: Options
    ) -> Entry:
        if not first.is_cuda:
            raise ValueError(
                f"a slowdown can be planted in GPU programs only; the tensors are on {first.device}"
            )
        entry = super().make(kind, first, second, out, options)
        if kind == self._kind and entry.plan is not None:
            entry.plan = planted(entry.plan, self._spin)
        return entry


@contextmanager
def in_place_of_plain(entries: Entries) -> Iterator[None]:
    """Have cake's functions make and find their launches in ``entries``, for a while."""
    plain, router._entries = router._entries, entries
    try:
        yield
    finally:
        router._entries = plain
