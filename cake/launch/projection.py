"""Projection plans on a GPU, and the entries of their calls."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch

from .. import cpu, operand
from ..operand import OPERANDS, AnyKind
from ..plan.dense import ProjectionPlan, plan_projection, projection_problem
from . import sm90_projection
from .entry import Planned, product
from .router import REDUCTIONS, Addresses, Bound, ParameterBlock, Workspace, inverse


class ProjectionParams(ctypes.Structure):
    """``cake::Params`` of csrc/sm80/projection.cuh: same order, same widths."""

    _fields_ = (
        ("a", ctypes.c_void_p),
        ("b", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("partial", ctypes.c_void_p),
        ("counter", ctypes.c_void_p),
        ("lda", ctypes.c_longlong),
        ("ldb", ctypes.c_longlong),
        ("ldo", ctypes.c_longlong),
        ("a_batch", ctypes.c_longlong),
        ("b_batch", ctypes.c_longlong),
        ("out_batch", ctypes.c_longlong),
        ("m", ctypes.c_int),
        ("n", ctypes.c_int),
        ("k", ctypes.c_int),
        ("tiles_m", ctypes.c_int),
        ("tiles_n", ctypes.c_int),
        ("segment", ctypes.c_int),
        ("raster", ctypes.c_int),
        ("band_inverse", ctypes.c_uint),
        ("raster_inverse", ctypes.c_uint),
        ("rest_inverse", ctypes.c_uint),
        ("reduction", ctypes.c_int),
        ("spin", ctypes.c_int),  # read by planted programs only
    )


def parameters(plan: ProjectionPlan) -> ProjectionParams:
    """The parameters of a plan of the sm80 family, its pointers still null."""
    p, (rows, columns) = plan.problem, plan.tiles
    raster = min(plan.raster.height, rows)
    return ProjectionParams(
        lda=p.a.ld,
        ldb=p.b.ld,
        ldo=p.out.ld,
        a_batch=p.a.batch_stride,
        b_batch=p.b.batch_stride,
        out_batch=p.out.batch_stride,
        m=p.m,
        n=p.n,
        k=p.k,
        tiles_m=rows,
        tiles_n=columns,
        segment=plan.partition.segment,
        raster=raster,
        band_inverse=inverse(raster * columns),
        raster_inverse=inverse(raster),
        rest_inverse=inverse(rows % raster or raster),
        reduction=REDUCTIONS[plan.reduction],
        spin=plan.spin,
    )


class _Plain:
    """A GEMM whose parameters have its pointers; ``swapped``: its A is the second of a call's operands."""

    def __init__(self, params: ProjectionParams, swapped: bool) -> None:
        self._params, self._swapped = params, swapped

    def point(self, at: Addresses) -> None:
        """Let the call's operands and the output be at these addresses."""
        first, second, out = at
        p = self._params
        p.a, p.b, p.out = (second, first, out) if self._swapped else (first, second, out)


def _sm80_block(bound: BoundProjection) -> ParameterBlock:
    params = parameters(bound.plan)
    launcher = bound.launcher(bound.plan.grid, params)
    return ParameterBlock((_Plain(params, bound.plan.swapped),), params, launcher)


def _sm90_block(bound: BoundProjection) -> ParameterBlock:
    block = sm90_projection.parameters(bound.plan)
    maps = sm90_projection.Maps(bound.plan, bound.program, block)
    return ParameterBlock((maps,), block, bound.launcher(bound.plan.grid, block))


#: Family -> what makes the parameter block of a bound projection.
BLOCKS: dict[str, Callable[[BoundProjection], ParameterBlock]] = {"sm80": _sm80_block, "sm90": _sm90_block}


class BoundProjection(Bound):
    """A projection's plan, bound."""

    def __init__(
        self, plan: ProjectionPlan, device: torch.device, *, workspace: Workspace | None = None
    ) -> None:
        self.plan = plan
        super().__init__(
            plan.program,
            device,
            pdl=False,
            floats=plan.partial_floats,
            counters=plan.counters,
            workspace=workspace,
        )

    def _block(self) -> ParameterBlock:
        return BLOCKS[self.plan.program.family](self)


class ProjectionEntry(Planned[ProjectionPlan]):
    """A planned projection."""

    def __init__(
        self,
        kind: AnyKind,
        first: torch.Tensor,
        second: torch.Tensor,
        out: torch.Tensor,
        deterministic: bool,
        transposed_out: bool,
    ) -> None:
        name1, name2, name = OPERANDS[kind]
        to = operand.output_view(name, out)
        p = projection_problem(
            kind,
            operand.batched_view(name1, first),
            operand.batched_view(name2, second),
            to.transposed() if transposed_out else to,
        )
        super().__init__(kind, p, first, second, out)
        self._transposed = transposed_out
        _ = self.spec.projection_family  # an unsupported device is an error even where nothing is launched
        if p.m and p.n and p.k and p.batch:
            self.plan = plan_projection(p, self.spec, deterministic=deterministic)

    def _bind(self, plan: ProjectionPlan, workspace: Workspace | None) -> Bound:
        return BoundProjection(plan, self.device, workspace=workspace)

    def _on_cpu(
        self, plan: ProjectionPlan, first: torch.Tensor, second: torch.Tensor, out: torch.Tensor
    ) -> None:
        cpu.run_projection(plan, *product(self.kind, first, second), out.mT if self._transposed else out)
