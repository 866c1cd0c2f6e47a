"""Executes a plan on the CPU with torch: the same parts, promotion chunks and order of additions as the GPU
programs.

It is what runs where there is no GPU, and the reference that GPU results are compared with (within 4e-7
relative Frobenius: the tensor cores truncate inside a promotion chunk, this rounds).
"""

from __future__ import annotations

import torch

from .plan.partition import CHUNK, GROUP
from .plan.planner import Plan

#: Rows computed together, always padded to this many: every row sees calls of one shape whatever M, so that
#: its bits do not depend on its batch.
ROWS = 64
_TOP_HALF = -65536  # 0xffff0000 as int32


def split(x: torch.Tensor) -> list[torch.Tensor]:
    """FP32 as three BF16-valued FP32 tensors whose exact sum it is (BF16: itself), as ``split_bf16x3`` in
    csrc does.
    """
    if x.dtype is torch.bfloat16:
        return [x.float()]
    lead = (x.contiguous().view(torch.int32) & _TOP_HALF).view(torch.float32)
    rest = x - lead
    second = rest.bfloat16().float()
    return [lead, second, (rest - second).bfloat16().float()]


def small_products(a_parts: int, b_parts: int) -> list[tuple[int, int]]:
    """Pairs of parts besides the leading pair, in the order they are multiplied: the smallest first.

    Part i of A times part j of B has weight 2^(-8 (i + j)); pairs of weight 2^-24 and less are dropped.
    """
    return [
        (i, weight - i) for weight in (2, 1) for i in reversed(range(a_parts)) if 0 <= weight - i < b_parts
    ]


def _padded(x: torch.Tensor, rows: int, cols: int) -> torch.Tensor:
    if x.shape == (rows, cols):
        return x.contiguous()
    y = x.new_zeros(rows, cols)
    y[: x.shape[0], : x.shape[1]] = x
    return y


def _fold(leading: torch.Tensor, small: torch.Tensor, per_segment: int) -> torch.Tensor:
    """Chunk sums [C, rows, N] -> the total: in sequence inside a segment, segments inside a group, groups."""
    count = leading.shape[0]
    total, group = torch.zeros_like(leading[0]), torch.zeros_like(leading[0])
    for segment, first in enumerate(range(0, count, per_segment)):
        last = min(first + per_segment, count)
        inside = torch.zeros_like(total)
        for chunk in range(first, last):
            inside += small[chunk]
            inside += leading[chunk]
        group += inside
        if (segment + 1) % GROUP == 0 or last == count:
            total += group
            group.zero_()
    return total


def run(plan: Plan, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    """``out[M, N] = a[M, K] @ b[K, N]`` by the plan. Views as in ``plan.problem``; writes through ``out``
    only. Neither autograd nor autocast sees it, as they do not see a kernel.
    """
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        m, k = a.shape
        n = b.shape[1]
        chunks = -(-k // CHUNK)
        b_parts = [_padded(part, chunks * CHUNK, n).view(chunks, CHUNK, n) for part in split(b.contiguous())]
        for first in range(0, m, ROWS):
            block = a[first : first + ROWS]
            a_parts = [
                _padded(part, ROWS, chunks * CHUNK).view(ROWS, chunks, CHUNK).transpose(0, 1)
                for part in split(block.contiguous())
            ]
            (i, j), *rest = small_products(len(a_parts), len(b_parts))
            small = torch.bmm(a_parts[i], b_parts[j])
            for i, j in rest:
                small.baddbmm_(a_parts[i], b_parts[j])
            leading = torch.bmm(a_parts[0], b_parts[0])
            total = _fold(leading, small, plan.partition.segment // CHUNK)
            out[first : first + ROWS] = total[: block.shape[0]]
