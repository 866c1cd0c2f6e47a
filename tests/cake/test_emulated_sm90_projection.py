"""The sm90 projections, run on the CPU: csrc/sm90/projection.cu, compiled by g++ with its instructions
emulated (see tests/cake/test_emulated.py). Boxes are stored, too, when they are waited for, and products read
shared memory through their descriptors.
"""

from __future__ import annotations

import ctypes
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from cake import cpu, operand
from cake.launch.sm90_projection import boxed, parameters
from cake.operand import Problem
from cake.plan.dense import ProjectionKey, ProjectionPlan, by_way, tile_of
from cake.plan.forms import FORMS
from cake.plan.ways import Way
from cake.program import sm90_projection
from cake.program.registry import program

from .emulation import CSRC, build, encode
from .projections import DTYPES, fro, right

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ to compile the emulation with")

Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("emulated")

    @cache
    def build_once(key: ProjectionKey, csrc: Path) -> Any:
        return build(folder, program(key), "projection_sm90.cpp", csrc)

    return build_once


def slots(batch: int, rows: int, cols: int, unit_cols: bool, dtype: str) -> torch.Tensor:
    """A view with NaN on all sides, each matrix of a batch in a slot of its own."""
    lines, length = (rows, cols) if unit_cols else (cols, rows)
    buffer = torch.full((batch, lines + 7, -(-length // 8) * 8 + 24), float("nan"), dtype=DTYPES[dtype])
    view = buffer[:, 3 : 3 + lines, 8 : 8 + length]
    return view if unit_cols else view.mT


def tensors_of(key: ProjectionKey, m: int, n: int, k: int, batch: int = 1) -> Tensors:
    torch.manual_seed(0)
    a = slots(batch, m, k, key.a_unit_k, "bf16")
    b = slots(batch, k, n, not key.b_unit_k, "bf16")
    a.copy_(torch.randn(a.shape)), b.copy_(torch.randn(b.shape))
    return a, b, slots(batch, m, n, key.out_unit_n, key.out_dtype)


def planned(
    key: ProjectionKey, tensors: Tensors, *, splits: int = 1, tail: bool = False, sms: int = 4
) -> ProjectionPlan:
    a, b, out = tensors
    views = operand.batched_view("A", a), operand.batched_view("B", b), operand.output_view("out", out)
    plan = by_way(Problem("gemm", *views), Way(key.form, splits, tail, raster=2), sms)
    assert plan.program == key, plan.program
    return plan


def launch(
    built, plan: ProjectionPlan, tensors: Tensors, *, late: int, seed: int = 1, csrc: Path = CSRC
) -> str:
    """What went wrong, or nothing."""
    p, block, problem = program(plan.program), parameters(plan), plan.problem
    views = problem.a, problem.b, boxed(problem.out)
    for at, view, box, t in zip((block.a, block.b, block.out), views, p.boxes, tensors, strict=True):
        encode(at, view, box, t.data_ptr(), batched=True)
    partial = torch.full((plan.partial_floats + 1,), float("nan"))
    counters = torch.zeros(plan.counters + 1, dtype=torch.int32)
    block.to, block.partial, block.counter = tensors[2].data_ptr(), partial.data_ptr(), counters.data_ptr()
    emulate = built(plan.program, csrc)
    wrong = emulate(ctypes.byref(block), plan.walkers, p.threads, p.smem_bytes, seed, late).decode()
    return wrong or "counters are not back at zero" * bool(counters.any())


def whole(out: torch.Tensor) -> torch.Tensor:
    """All of the memory that an output of ``slots`` lies in."""
    memory = torch.empty(0, dtype=out.dtype)
    return memory.set_(out.untyped_storage())


def check(built, plan: ProjectionPlan, tensors: Tensors, **options) -> None:
    """Values are right, and nothing is written beside the view."""
    a, b, out = tensors
    memory = whole(out).fill_(float("nan"))
    assert launch(built, plan, tensors, **options) == ""
    assert right(out, a, b)
    assert int(memory.isnan().sum()) == memory.numel() - out.numel()


def _layout(i: int) -> tuple[bool, bool, str, bool]:
    return bool(i & 1), bool(i & 2), "f32" if i & 4 else "bf16", bool(i & 8)


#: Every form in one layout, of operands and output; one that has two boxes of B in all.
SMALL = "p64x128"
KEYS = [
    key
    for i, form in enumerate(FORMS)
    for key in sm90_projection.keys()
    if key.form == form
    and (
        form == SMALL
        or (key.a_unit_k, key.b_unit_k, key.out_unit_n) == (i % 2 > 0, i // 2 % 2 > 0, i % 3 > 0)
        and key.out_dtype == ("f32" if i % 4 < 2 and FORMS[form].stores("f32") else "bf16")
    )
]


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_programs(built, key):
    """Ragged on all sides: values, and nothing beside the view; K whole, and cut in three with halves."""
    rows, columns = tile_of(key.form)
    tensors = tensors_of(key, rows + 9, columns + 11, 328)
    for late, splits, tail, sms in ((0, 1, False, 3), (3, 3, FORMS[key.form].height > 1, 5)):
        plan = planned(key, tensors, splits=splits, tail=tail, sms=sms)
        assert plan.parts == splits and (plan.cut[1] > 0) == tail
        check(built, plan, tensors, late=late)
