"""The accuracy gate: an op's outputs against FP64 references made from the same inputs.

The budget is a relative Frobenius error. In a router's ``fwd`` the set of top-8 experts of every token must
also be the same, because that is what its logits are for; of a BF16 output no element may be off by more than
1e-2, absolute and relative.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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


def relative_error(out: torch.Tensor, reference: torch.Tensor) -> tuple[float, float]:
    """(relative Frobenius error, maximum absolute error); both infinite if any element is not finite."""
    difference = out.double() - reference
    absolute = float(difference.abs().max()) if difference.numel() else 0.0
    norm = float(torch.linalg.vector_norm(reference))
    error = float(torch.linalg.vector_norm(difference))
    relative = error / norm if norm else (0.0 if error == 0 else math.inf)
    if not (math.isfinite(relative) and math.isfinite(absolute)):
        return math.inf, math.inf
    return relative, absolute


def element_error(out: torch.Tensor, reference: torch.Tensor) -> float:
    """The largest error of an element over 1 + its size; infinite if one is not finite."""
    error = float(((out.double() - reference).abs_() / reference.abs().add_(1.0)).max())
    return error if math.isfinite(error) else math.inf


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
    errors = [relative_error(tensors.output(kind), refs.by_kind[kind]) for kind in kinds]
    equal, ties, element = None, 0, None
    if row.suite == "router" and "fwd" in row.gemms:
        equal, ties = top_experts(tensors.out, refs.by_kind["fwd"], budget)
    if row.out == "bf16":
        element = max(element_error(tensors.output(kind), refs.by_kind[kind]) for kind in kinds)
    return Accuracy(
        rel_fro=max(e[0] for e in errors),
        max_abs=max(e[1] for e in errors),
        top8_equal=equal,
        top8_ties=ties,
        element=element,
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
