"""Executes a plan on the CPU with torch: the same parts, promotion chunks and order of additions as the GPU
programs.

It is what runs where there is no GPU, and the reference that GPU results are compared with (within 4e-7
relative Frobenius: the tensor cores truncate inside a promotion chunk, this rounds).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .plan.dense import ProjectionPlan
from .plan.partition import CHUNK, GROUP
from .plan.planner import Plan

#: Rows computed together, always padded to this many: every row sees calls of one shape whatever M, so that
#: its bits do not depend on its batch.
ROWS = 64
_TOP_HALF = -65536  # 0xffff0000 as int32
#: Elements of K that the tensor cores take at once. One sum after another, 64 roundings after a large term
#: add up to 1.1e-6 of it; four sums of 16 stay under 7e-7.
STEP = 16
#: FP16x2: the largest magnitude of a row-chunk is scaled to 2^14 and more, below 2^15, so that no part
#: overflows; the second part is held 2^11 times as large, where FP16 is normal.
_TOP, _LOW = 14, 2048.0


def split_bf16x3(x: torch.Tensor) -> list[torch.Tensor]:
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


def _sums_bf16x3(a: list[torch.Tensor], b: list[torch.Tensor]) -> list[torch.Tensor]:
    """What each chunk adds to the sum, in that order: its small products, then the leading one."""
    (i, j), *rest = small_products(len(a), len(b))
    small = torch.bmm(a[i], b[j])
    for i, j in rest:
        small.baddbmm_(a[i], b[j])
    return [small, torch.bmm(a[0], b[0])]


def split_fp16x2(x: torch.Tensor, axis: int) -> list[torch.Tensor]:
    """FP32 or BF16 as ``2^e (h + 2^-11 l)``: FP16-valued FP32 tensors ``h`` and ``l``, and ``e``, an int32 a
    row-chunk, which lies along ``axis`` (kept, of size 1).

    e is the exponent of the largest magnitude less 14, at least -127. Within 2^-22 of a normal x of at least
    2^-28 of that magnitude; a smaller x loses low bits, at most 2^(e - 36). Where x has inf or NaN, so has h.
    """
    x = x.float()
    largest = x.abs().amax(axis, keepdim=True)
    e = ((largest.view(torch.int32) >> 23) - (127 + _TOP)).clamp(min=-127)
    scaled = x * _exp2(-e)
    h = scaled.half().float()
    return [h, ((scaled - h) * _LOW).half().float(), e]


def _exp2(n: torch.Tensor) -> torch.Tensor:
    """2^n exactly, for int32 from -127 (subnormal) to 127."""
    return torch.where(n > -127, (n + 127) << 23, 1 << 22).view(torch.float32)


def _sums_fp16x2(a: list[torch.Tensor], b: list[torch.Tensor]) -> list[torch.Tensor]:
    """What each chunk adds to the sum: all its products, small ones first, scaled back."""
    (ha, la, ea), (hb, lb, eb) = a, b
    acc = torch.bmm(ha, lb).baddbmm_(la, hb).mul_(1 / _LOW)
    for k in range(0, CHUNK, STEP):
        acc.baddbmm_(ha[..., k : k + STEP], hb[:, k : k + STEP])
    # In two steps of half the exponent each: neither leaves the range of FP32 unless their product does.
    e = ea + eb
    half = e >> 1
    return [acc.mul_(_exp2(half)).mul_(_exp2(e - half))]


def _padded(x: torch.Tensor, rows: int, cols: int) -> torch.Tensor:
    if x.shape == (rows, cols):
        return x.contiguous()
    y = x.new_zeros(rows, cols)
    y[: x.shape[0], : x.shape[1]] = x
    return y


def _fold(sums: Sequence[torch.Tensor], per_segment: int, per_group: int) -> torch.Tensor:
    """Chunk sums [C, rows, N] -> the total: in sequence inside a segment, segments inside a group, groups."""
    count = sums[0].shape[0]
    total, group = torch.zeros_like(sums[0][0]), torch.zeros_like(sums[0][0])
    for segment, first in enumerate(range(0, count, per_segment)):
        last = min(first + per_segment, count)
        inside = torch.zeros_like(total)
        for chunk in range(first, last):
            for each in sums:
                inside += each[chunk]
        group += inside
        if (segment + 1) % per_group == 0 or last == count:
            total += group
            group.zero_()
    return total


def run(plan: Plan, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    """``out[M, N] = a[M, K] @ b[K, N]`` by the plan. Views as in ``plan.problem``; writes through ``out``
    only. Neither autograd nor autocast sees it, as they do not see a kernel.
    """
    fp16x2 = plan.program.emulation == "fp16x2"

    def split(chunks: torch.Tensor, axis: int) -> list[torch.Tensor]:
        return split_fp16x2(chunks, axis) if fp16x2 else split_bf16x3(chunks)

    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        m, k = a.shape
        n = b.shape[1]
        chunks = -(-k // CHUNK)
        b_parts = split(_padded(b, chunks * CHUNK, n).view(chunks, CHUNK, n), 1)
        per_segment, per_group = plan.partition.segment // CHUNK, GROUP[plan.program.family]
        for first in range(0, m, ROWS):
            block = a[first : first + ROWS]
            rows = _padded(block, ROWS, chunks * CHUNK).view(ROWS, chunks, CHUNK)
            a_parts = [part.transpose(0, 1) for part in split(rows, 2)]
            sums = (_sums_fp16x2 if fp16x2 else _sums_bf16x3)(a_parts, b_parts)
            out[first : first + ROWS] = _fold(sums, per_segment, per_group)[: block.shape[0]]


def run_projection(plan: ProjectionPlan, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    """``out[..., M, N] = a[..., M, K] @ b[..., K, N]`` by the plan, as it was asked for: where the plan swaps
    it, too. FP32 sums through a segment of K, segments added in order, one rounding to the output's type.

    Writes through ``out`` only. Neither autograd nor autocast sees it.
    """
    with torch.no_grad(), torch.autocast("cpu", enabled=False):
        total: torch.Tensor | None = None
        for first, last in plan.partition.bounds:
            part = a[..., first:last].float() @ b[..., first:last, :].float()
            total = part if total is None else total.add_(part)
        assert total is not None  # K is positive
        out.copy_(total)
