"""Eager calls: found among those made before, or checked and made, then run."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import torch

from ..operand import AnyKind
from . import routes
from .bounded import Bounded
from .entry import Planned, can_be_kept
from .router import Addresses

E = TypeVar("E", bound=Planned[Any])

#: The options of a call as they were given, four (:class:`Repeatable`): a named tuple takes 0.2 us to make,
#: and is needed once.
Given = tuple[Any, ...]


class Calls(Bounded[E], Generic[E]):
    """The bounded cache of eager calls of one kind of GEMM, and what makes its entries.

    ``last`` has, by kind, the entry last found for outputs that the caller gave.
    """

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.last: dict[str, E] = {}

    def clear(self) -> None:
        """Forget all entries. A call under way has the ``last`` of before."""
        super().clear()
        self.last = {}

    def options(self, given: Given) -> Any:
        """The options, checked one by one. Raises ``ValueError`` naming one no program has."""
        raise NotImplementedError

    def check(
        self,
        kind: Any,
        first: torch.Tensor,
        second: torch.Tensor,
        out: torch.Tensor | None,
        out_dtype: torch.dtype | None,
        options: Any,
    ) -> None:
        """All that can be wrong with a call's tensors but for views and overlaps: ``TypeError`` or
        ``ValueError``.
        """
        raise NotImplementedError

    def new_output(
        self,
        kind: Any,
        first: torch.Tensor,
        second: torch.Tensor,
        out_dtype: torch.dtype | None,
        options: Any,
    ) -> torch.Tensor:
        """An output for a call that gave none."""
        raise NotImplementedError

    def make(
        self, kind: Any, first: torch.Tensor, second: torch.Tensor, out: torch.Tensor, options: Any
    ) -> E:
        """A new entry, neither bound nor kept."""
        raise NotImplementedError

    def resolve(
        self,
        kind: AnyKind,
        first: torch.Tensor,
        second: torch.Tensor,
        out: torch.Tensor | None,
        out_dtype: torch.dtype | None,
        given: Given,
        stream: int,
        bind: bool = True,
    ) -> tuple[E, torch.Tensor, Addresses]:
        """Look a GEMM's launch up, or check the call and make it; ``bind`` it, too. Runs nothing.

        Its entry, the tensor it will write, where its tensors lie.
        """
        entry = None
        splits = given[2]
        if (
            splits is not None and type(splits) is not int
        ):  # it would find the entry of an equal int: True == 1
            self.options(given)
        try:
            at = at1, at2, at0 = first.data_ptr(), second.data_ptr(), 0 if out is None else out.data_ptr()
            generation = routes.generation
            key: Given = (
                kind,
                given,
                out_dtype,
                stream,
                generation,
                first.shape,
                first.stride(),
                first.dtype,
                first.get_device(),  # numbers: a torch.device takes 0.1 us to hash
                second.shape,
                second.stride(),
                second.dtype,
                second.get_device(),
                None if out is None else (out.shape, out.stride(), out.dtype, out.get_device()),
            )
            if usual := can_be_kept(at1, at2) and (out is None or can_be_kept(at0)):
                entry = self.get(key)
        except (
            AttributeError,
            RuntimeError,
            TypeError,
        ):  # no dense tensor, or an unhashable option: say which
            self.check(kind, first, second, out, out_dtype, self.options(given))
            raise
        if entry is None:
            options = self.options(given)
            self.check(kind, first, second, out, out_dtype, options)
            target = out
            if target is None:
                target = self.new_output(kind, first, second, out_dtype, options)
                at = at1, at2, target.data_ptr()
            entry = self.make(kind, first, second, target, options)
            entry.check_overlap(first, second, target, at)
            if bind:
                entry.bind()
            if usual:
                entry.kept, entry.stream, entry.generation = True, stream, generation
                self.put(key, entry)
        elif out is None:
            target = entry.new_output()
            at = at1, at2, target.data_ptr()
        else:
            target = out
            entry.check_overlap(first, second, out, at)
        return entry, target, at

    def call(
        self,
        kind: AnyKind,
        first: torch.Tensor,
        second: torch.Tensor,
        out: torch.Tensor | None,
        out_dtype: torch.dtype | None,
        given: Given,
    ) -> torch.Tensor:
        """One eager GEMM."""
        last = self.last  # of before the look-up: what is cleared meanwhile stays so
        entry = last.get(kind)
        if entry is not None and out is not None:
            try:
                at = first.data_ptr(), second.data_ptr(), out.data_ptr()
                here = at == entry.at
                repeats = entry.repeats(given, out_dtype, here, first, second, out)
            except (AttributeError, RuntimeError):  # no dense tensor: said below
                repeats = False
            if repeats and (here or entry.takes(first, second, out, at)):
                entry.used = True
                entry.run(first, second, out, at, entry.stream)
                return out
        stream = stream_of(first)
        entry, target, at = self.resolve(kind, first, second, out, out_dtype, given, stream)
        entry.run(first, second, target, at, stream)
        if out is not None and entry.kept and given[2] is None:
            entry.found(given, out_dtype, first, second, out)
            last[kind] = entry
        return target


def stream_of(first: Any) -> int:
    """The raw current stream of a call, of its first tensor's device; 0 for what is on no GPU."""
    index = first.get_device() if isinstance(first, torch.Tensor) else -1
    return int(torch._C._cuda_getCurrentRawStream(index)) if index >= 0 else 0
