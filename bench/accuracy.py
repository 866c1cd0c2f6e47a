"""The accuracy gate: an op's outputs against FP64 references made from the same inputs.

The budget is a relative Frobenius error. In a router's ``fwd`` the set of top-8 experts of every token must
also be the same, because that is what its logits are for; of a BF16 output no element may be off by more than
1e-2, absolute and relative.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from bench.model import Accuracy
from bench.suites import Row
from bench.tensors import Tensors

#: Relative Frobenius error an arm may have. Native FP32 has 2e-7 to 5e-7, TF32 3e-4.
BUDGET = 2e-6
TOP = 8
#: The same of a projection, by the output's dtype: rounding to BF16 alone is 1.7e-3, and the largest error of
#: an element of a BF16 output, over 1 + its size.
BUDGETS = {"bf16": 4e-3, "f32": 5e-5}
ELEMENT = 1e-2
#: Elements compared at a time: 32 MB of FP64, so that differences stay in a GPU's L2 and take no memory of
#: the size of the output.
BLOCK = 1 << 22


@dataclass(frozen=True)
class References:
    """FP64 results of a shape's GEMMs by kind (``fwd``, ``dgrad``, ``wgrad``), on the tensors' device."""

    by_kind: Mapping[str, torch.Tensor]


def references(tensors: Tensors) -> References:
    """FP64 references of all three GEMMs, made once a shape: every op and mode of a shape has the same
    inputs.
    """
    X, W, G = tensors.X.double(), tensors.W.double(), tensors.G.double()
    return References({"fwd": X @ W.mT, "dgrad": G @ W, "wgrad": G.mT @ X})


def budget_of(row: Row, router: float = BUDGET) -> float:
    """The budget of a row's outputs; ``router`` is that of a router's."""
    return BUDGETS.get(row.out, router)


class Errors(NamedTuple):
    """The errors of an output, all infinite if one of its elements is not finite: relative Frobenius, the
    largest, and the largest of an element over 1 + its size.
    """

    rel_fro: float
    max_abs: float
    element: float


def errors_of(out: torch.Tensor, reference: torch.Tensor) -> Errors:
    """The errors of an output against its FP64 reference of the same shape, block by block."""
    if not out.numel():
        return Errors(0.0, 0.0, 0.0)
    parts = []
    for mine, exact in _blocks(out, reference):
        difference = torch.sub(mine, exact).abs_()  # of BF16 or FP32 and FP64: in FP64
        norms = torch.linalg.vector_norm(difference), torch.linalg.vector_norm(exact)
        largest = difference.max()
        parts.append(torch.stack((*norms, largest, difference.div_(exact.abs().add_(1.0)).max())))
    error, norm, absolute, element = torch.stack(parts).unbind(dim=1)
    total, whole = float(torch.linalg.vector_norm(error)), float(torch.linalg.vector_norm(norm))
    relative = total / whole if whole else (0.0 if total == 0 else math.inf)
    found = Errors(relative, float(absolute.max()), float(element.max()))
    return found if all(map(math.isfinite, found)) else Errors(math.inf, math.inf, math.inf)


def relative_error(out: torch.Tensor, reference: torch.Tensor) -> tuple[float, float]:
    """(relative Frobenius error, maximum absolute error); both infinite if any element is not finite."""
    found = errors_of(out, reference)
    return found.rel_fro, found.max_abs


def _blocks(out: torch.Tensor, reference: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Both by rows of about :data:`BLOCK` elements, head by head."""
    if out.dim() > 2:
        for pair in zip(out, reference, strict=True):
            yield from _blocks(*pair)
        return
    rows = max(BLOCK // max(out.shape[-1], 1), 1)
    yield from zip(out.split(rows), reference.split(rows), strict=True)


def top_experts(out: torch.Tensor, reference: torch.Tensor, budget: float = BUDGET) -> tuple[bool, int]:
    """(every token has the same top-8 experts, tokens whose sets differ by a tie).

    A token's sets may differ where the experts exchanged have FP64 logits closer than ``budget`` times the
    norm of the token's logits: an output within budget on that token may have moved a logit by as much, so
    the order of the two is not the output's to decide. Any other difference, or a logit that is not finite,
    is a failure.
    """
    if not bool(torch.isfinite(out).all()):
        return False, 0
    k = min(TOP, reference.shape[1])
    wanted = torch.zeros_like(reference, dtype=torch.bool).scatter_(1, reference.topk(k, dim=1).indices, True)
    chosen = torch.zeros_like(wanted).scatter_(1, out.double().topk(k, dim=1).indices, True)
    differs = (wanted != chosen).any(dim=1)
    lost = reference.masked_fill(~(wanted & ~chosen), -math.inf).amax(dim=1)
    gained = reference.masked_fill(~(chosen & ~wanted), math.inf).amin(dim=1)
    tolerance = budget * torch.linalg.vector_norm(reference, dim=1)
    tied = differs & (lost - gained <= tolerance)
    return not bool((differs & ~tied).any()), int(tied.sum())


def poison(row: Row, tensors: Tensors) -> None:
    """Fill the op's outputs with NaN, so that an element an arm does not write fails the gate."""
    for kind in set(row.gemms):
        tensors.output(kind).fill_(math.nan)


def measure(row: Row, tensors: Tensors, refs: References, budget: float = BUDGET) -> Accuracy:
    """The errors of the op's outputs as they are now: the worst over its GEMMs."""
    kinds = dict.fromkeys(row.gemms)
    errors = [errors_of(tensors.output(kind), refs.by_kind[kind]) for kind in kinds]
    equal, ties = None, 0
    if row.suite == "router" and "fwd" in row.gemms:
        equal, ties = top_experts(tensors.out, refs.by_kind["fwd"], budget)
    return Accuracy(
        rel_fro=max(e.rel_fro for e in errors),
        max_abs=max(e.max_abs for e in errors),
        top8_equal=equal,
        top8_ties=ties,
        element=max(e.element for e in errors) if row.out == "bf16" else None,
    )


def worst(found: Sequence[Accuracy]) -> Accuracy:
    """The worst of several measurements of one op."""
    top8 = [a.top8_equal for a in found if a.top8_equal is not None]
    elements = [a.element for a in found if a.element is not None]
    return Accuracy(
        rel_fro=float(np.max([a.rel_fro for a in found])),  # NaN, if there is one
        max_abs=float(np.max([a.max_abs for a in found])),
        top8_equal=all(top8) if top8 else None,
        top8_ties=max(a.top8_ties for a in found),
        element=max(elements) if elements else None,
    )


def failure(accuracy: Accuracy, budget: float = BUDGET) -> str:
    """Why the errors miss the gate, in words; empty if they pass."""
    if not math.isfinite(accuracy.rel_fro):
        return "the output has elements that are not finite"
    if not accuracy.rel_fro <= budget:
        return f"relative Frobenius error {accuracy.rel_fro:.2e} is over the budget of {budget:.0e}"
    if accuracy.element is not None and accuracy.element > ELEMENT:
        return (
            f"an element is off by {accuracy.element:.1e} of 1 + its size, over the budget of {ELEMENT:.0e}"
        )
    if accuracy.top8_equal is False:
        return "the top-8 experts of some tokens differ from FP64's"
    return ""
