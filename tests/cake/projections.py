"""BF16 projections for tests: inputs as a layer has them, FP64 references, plans by program."""

from __future__ import annotations

from dataclasses import replace

import torch

import cake
from cake import operand
from cake.operand import Problem
from cake.plan.dense import ProjectionKey, ProjectionPlan, plan_projection, tile_of
from cake.plan.dense_rules import DenseRule
from cake.plan.device import PROJECTIONS, DeviceSpec
from cake.plan.raster import Raster

KINDS = ("fwd", "dgrad", "wgrad")
CALLS = {"fwd": cake.projection_forward, "dgrad": cake.projection_dgrad, "wgrad": cake.projection_wgrad}
OPERANDS = {"fwd": ("X", "W"), "dgrad": ("G", "W"), "wgrad": ("G", "X")}
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
RAGGED = (0, 1, 8, 33, 129, 257)


def padded(*shape: int, device="cpu", dtype=torch.bfloat16) -> torch.Tensor:
    """Normal values in rows padded to 16 bytes and 8 elements more; the padding is NaN."""
    *lines, cols = shape
    buffer = torch.full((*lines, -(-cols // 8) * 8 + 8), float("nan"), device=device, dtype=dtype)
    buffer[..., :cols] = torch.randn(*shape).to(device)
    return buffer[..., :cols]


def inputs(t: int, n: int, k: int, device="cpu", *, heads: int = 0, seed: int = 0) -> dict[str, torch.Tensor]:
    """X, W and G of a layer; of ``heads`` token-major ones, slices of wider slots, heads first."""
    torch.manual_seed(seed)
    if not heads:
        return {
            "X": padded(t, k, device=device),
            "W": padded(n, k, device=device).div_(max(k, 1) ** 0.5),
            "G": padded(t, n, device=device),
        }
    x, g = (padded(t, heads, size, device=device).permute(1, 0, 2) for size in (k, n))
    return {"X": x, "W": padded(heads, n, k, device=device).div_(max(k, 1) ** 0.5), "G": g}


def operands(kind: str, tensors: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    first, second = OPERANDS[kind]
    return tensors[first], tensors[second]


def call(kind: str, tensors: dict[str, torch.Tensor], **options) -> torch.Tensor:
    return CALLS[kind](*operands(kind, tensors), **options)


def matrices(kind: str, tensors: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """``a[..., M, K]`` and ``b[..., K, N]``, views of the operands."""
    first, second = operands(kind, tensors)
    return {"fwd": (first, second.mT), "dgrad": (first, second), "wgrad": (first.mT, second)}[kind]


def fro(result: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> float:
    """Relative Frobenius error against FP64; NaN stays NaN, nothing is 0 off."""
    expected = a.double().cpu() @ b.double().cpu()
    assert result.shape == expected.shape
    off = (result.double().cpu() - expected).norm()
    return float(off / expected.norm()) if expected.numel() and expected.norm() else float(off)


def right(result: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> bool:
    """Within what an output of its type may be off by."""
    expected = a.double().cpu() @ b.double().cpu()
    if result.dtype is torch.float32:
        return fro(result, a, b) <= 5e-5
    off = (result.double().cpu() - expected).abs()
    return fro(result, a, b) <= 4e-3 and bool((off <= 1e-2 + 1e-2 * expected.abs()).all())


def bits(t: torch.Tensor) -> torch.Tensor:
    """As integers, on the CPU: NaN is equal to itself."""
    return t.cpu().contiguous().view(torch.int16 if t.dtype is torch.bfloat16 else torch.int32)


def _matrix(batch: int, rows: int, cols: int, unit_cols: bool, dtype: str, device) -> torch.Tensor:
    lines, length = (rows, cols) if unit_cols else (cols, rows)
    made = padded(batch, lines, length, device=device, dtype=DTYPES[dtype])
    return made if unit_cols else made.mT


Case = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def case(key: ProjectionKey, k: int, device, *, batch: int = 2) -> Case:
    """A, B and a NaN-filled output in the layouts of a program, ragged on all sides: a tile and 9 more."""
    rows, cols = (side + 9 for side in tile_of(key.form))
    a = _matrix(batch, rows, k, key.a_unit_k, "bf16", device)
    b = _matrix(batch, k, cols, not key.b_unit_k, "bf16", device)
    out = _matrix(batch, rows, cols, key.out_unit_n, key.out_dtype, device).fill_(float("nan"))
    return a, b, out


def by_key(
    key: ProjectionKey, tensors: Case, spec: DeviceSpec, splits: int, raster: int = 2
) -> tuple[ProjectionPlan, Case, tuple[int, int, int]]:
    """The plan of a program, the tensors, and where they lie."""
    a, b, out = tensors
    p = Problem(
        "gemm", operand.batched_view("A", a), operand.batched_view("B", b), operand.output_view("out", out)
    )
    rule = DenseRule(
        "gemm", None, None, None, None, None, None, False, key.form, Raster(raster), "a test", splits
    )
    if key.family != spec.projection_family:  # an older family runs there, too
        assert key.family in PROJECTIONS
        spec = replace(spec, arch="sm_80")
    plan = plan_projection(p, spec, rule=rule)
    assert plan.program == key, plan.program
    return plan, tensors, (a.data_ptr(), b.data_ptr(), out.data_ptr())
