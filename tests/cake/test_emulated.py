"""The sm90 GEMMs, run on the CPU: csrc/sm90/gemm.cuh, compiled by g++ with its instructions emulated.

Copies and products take effect when they are let go or when they are waited for, threads take turns in any
order: what a wait too few or a barrier too many would do shows here, without a GPU.
"""

from __future__ import annotations

import ctypes
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from cake import operand
from cake.cpu import run as run_on_cpu
from cake.launch.entry import product
from cake.launch.router import MappedParams, aligned, parameters
from cake.operand import OPERANDS
from cake.plan.planner import Plan, by_rule, router_problem
from cake.plan.raster import Raster
from cake.plan.rules import Rule
from cake.plan.tiles import TILES
from cake.program.registry import Program, program

from .emulation import CSRC, encode
from .emulation import build as build_with_gcc
from .products import KINDS, error, inputs, operands, reference

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ to compile the emulation with")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Program -> its GEMM as a function, from csrc or from another folder."""
    folder = tmp_path_factory.mktemp("emulated")

    @cache
    def build(name: str, csrc: Path) -> Any:
        return build_with_gcc(folder, PROGRAMS[name], "gemm.cpp", csrc)

    return build


PROGRAMS: dict[str, Program] = {}


def planned(kind: str, tensors: dict, out: torch.Tensor, tile, emulation: str, splits=None, hold=1) -> Plan:
    first, second = operands(kind, tensors)
    name1, name2, name = OPERANDS[kind]
    p = router_problem(
        kind, operand.view(name1, first), operand.view(name2, second), operand.output_view(name, out)
    )
    rule = Rule(kind, None, None, None, None, None, tile, hold, Raster(2), "test", splits)
    return by_rule(p, "sm90", rule, emulation=emulation)


def launch(
    built,
    plan: Plan,
    tensors: dict,
    out: torch.Tensor,
    *,
    late: int,
    seed: int = 1,
    csrc=CSRC,
):
    """Run a plan into ``out``; what went wrong, or nothing."""
    p = program(plan.program)
    PROGRAMS[p.name] = p
    block = aligned(MappedParams)
    block.params = parameters(plan)
    params = block.params
    first, second = operands(plan.problem.kind, tensors)
    partial = torch.full((plan.partial_floats + 1,), float("nan"))
    counters = torch.zeros(plan.counters + 1, dtype=torch.int32)
    params.out = out.data_ptr()
    encode(block.a, plan.problem.a, p.boxes[0], first.data_ptr())
    encode(block.b, plan.problem.b, p.boxes[1], second.data_ptr())
    params.partial, params.counter = partial.data_ptr(), counters.data_ptr()
    walkers, parts, _ = plan.grid
    emulate = built(p.name, csrc)
    wrong = emulate(ctypes.byref(block), walkers, parts, p.threads, p.smem_bytes, seed, late).decode()
    assert wrong or not counters.any()
    return wrong


def empty(kind: str, tensors: dict, dtype=torch.float32) -> torch.Tensor:
    a, b = product(kind, *operands(kind, tensors))
    return torch.full((a.shape[0], -(-b.shape[1] // 8) * 8), float("nan"), dtype=dtype)[:, : b.shape[1]]


#: Every tile in one layout, in turns, and the smallest one in all of them: compiling takes 2 s each.
CASES = [
    (emulation, tile, kind)
    for (family, emulation), tiles in TILES.items()
    if family == "sm90"
    for i, tile in enumerate(tiles)
    for j, kind in enumerate(KINDS)
    if i % 3 == j or i == 0
]


@pytest.mark.parametrize(("emulation", "tile", "kind"), CASES)
def test_tiles_and_layouts(built, emulation, tile, kind):
    """Ragged on all sides: tiles and chunks that hang over."""
    for late in (0, 3):
        tensors = inputs(150, 72, 328, "cpu", seed=late)
        out = empty(kind, tensors)
        plan = planned(kind, tensors, out, tile, emulation)
        assert launch(built, plan, tensors, out, late=late, seed=late) == ""
        assert error(out, reference(kind, tensors)) < 4e-7


@pytest.mark.parametrize("emulation", ["bf16x3", "fp16x2"])
@pytest.mark.parametrize(
    ("splits", "hold", "reduction"), [(3, 1, "spread"), (4, 2, "spread"), (3, 1, "ordered"), (2, 2, "direct")]
)
def test_split_k(built, emulation, splits, hold, reduction):
    """The order of additions is the CPU executor's, to the last rounding of a product's own sums."""
    tensors = inputs(70, 40, 520, "cpu")
    out, expected = empty("fwd", tensors), empty("fwd", tensors)
    plan = replace(planned("fwd", tensors, out, (64, 32), emulation, splits, hold), reduction=reduction)
    for late in range(4):
        assert launch(built, plan, tensors, out.fill_(float("nan")), late=late, seed=late) == ""
        assert error(out, reference("fwd", tensors)) < 4e-7
    run_on_cpu(plan, *product("fwd", *operands("fwd", tensors)), expected)
    assert error(out, expected.double()) < 2e-7


@pytest.mark.parametrize("emulation", ["bf16x3", "fp16x2"])
def test_walkers_go_over_tiles(built, emulation):
    tensors = inputs(200, 72, 200, "cpu")
    out = empty("dgrad", tensors)
    plan = replace(planned("dgrad", tensors, out, (64, 32), emulation), walkers=3)
    assert plan.tiles == (4, 7)
    for late in (1, 2):
        assert launch(built, plan, tensors, out.fill_(float("nan")), late=late) == ""
        assert error(out, reference("dgrad", tensors)) < 4e-7


@pytest.mark.parametrize("emulation", ["bf16x3", "fp16x2"])
@pytest.mark.parametrize("kind", KINDS)
def test_bf16_x_and_dx(built, kind, emulation):
    tensors = inputs(70, 40, 136, "cpu", bf16=True)
    out = empty(kind, tensors, torch.bfloat16 if kind == "dgrad" else torch.float32)
    plan = planned(kind, tensors, out, (64, 32), emulation)
    assert launch(built, plan, tensors, out, late=3) == ""
    assert error(out, reference(kind, tensors)) < (3e-3 if kind == "dgrad" else 4e-7)


def test_fp16x2_has_the_range_of_fp32(built):
    """Rows and columns scaled over 2^+-40, and products of extremes that can be represented."""
    tensors = inputs(64, 32, 192, "cpu")
    for name in ("X", "W"):
        rows = tensors[name].shape[0]
        tensors[name] *= torch.exp2(torch.linspace(-40, 40, rows).round()).unsqueeze(1)
    tensors["X"][3] *= 2.0**80
    tensors["W"][:] *= 2.0**-40
    out = empty("fwd", tensors)
    plan = planned("fwd", tensors, out, (64, 32), "fp16x2")
    assert launch(built, plan, tensors, out, late=3) == ""
    expected = reference("fwd", tensors)
    bound = tensors["X"].double().abs() @ tensors["W"].double().abs().t()
    assert ((out.double() - expected).abs() <= 1e-6 * bound).all()


@pytest.mark.parametrize(
    ("what", "instead", "late"),
    [
        ("barrier_wait(&ring.a[warp][slot], slot_phase);", ";", 1),
        ("barrier_wait(&ring.b[warp][slot], slot_phase);", ";", 1),
        ("barrier_wait(&ring.handed, phase);", ";", 0),
        ("barrier_wait(&ring.taken, phase ^ 1);", ";", 0),
        ("      wgmma_wait<0>();\n#if FP16X2", "#if FP16X2", 2),
        ("barrier_wait(&ring.empty[stage], phase ^ 1);", ";", 3),
        ("barrier_wait(&ring.full[stage], phase);", ";", 0),
        ("barrier_arrive(&ring.empty[stage]);", ";", 0),
        ("barrier_init(&ring.full[i], 128);", "barrier_init(&ring.full[i], 4);", 0),
        ("barrier_init(&ring.handed, TILE_THREADS);", "barrier_init(&ring.handed, 4);", 0),
        ("    __syncwarp();  // all of the warp have read the slot\n", "", 0),
    ],
)
def test_the_emulation_sees_what_is_missing(built, tmp_path, what, instead, late):
    """Else the tests above prove nothing."""
    csrc = shutil.copytree(CSRC, tmp_path / "csrc")
    text = (csrc / "sm90/gemm.cuh").read_text()
    broken = text.replace(what, instead)
    assert broken != text
    (csrc / "sm90/gemm.cuh").write_text(broken)
    tensors = inputs(64, 32, 1024, "cpu")
    out, expected = empty("fwd", tensors), reference("fwd", tensors)
    plan = planned("fwd", tensors, out, (64, 32), "bf16x3", splits=1)

    def seen(seed: int) -> bool:
        wrong = launch(built, plan, tensors, out, late=late, seed=seed, csrc=csrc)
        return bool(wrong) or not error(out, expected) < 4e-7

    assert any(seen(seed) for seed in range(10))
