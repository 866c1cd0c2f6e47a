"""The sm80 projections, run on the CPU: csrc/sm80/projection.cuh, compiled by g++ with its instructions
emulated (see tests/cake/test_emulated.py).
"""

from __future__ import annotations

import ctypes
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from cake import cpu
from cake.launch.projection import parameters
from cake.plan.dense import ProjectionKey
from cake.plan.device import DeviceSpec
from cake.program import sm80_projection
from cake.program.registry import program

from .emulation import CSRC, build
from .projections import by_key, case, fro, right

SPEC = DeviceSpec("sm_80", 108)

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ to compile the emulation with")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("emulated")

    @cache
    def build_once(key: ProjectionKey, csrc: Path) -> Any:
        return build(folder, program(key), "projection.cpp", csrc)

    return build_once


def launch(built, key, tensors, splits: int, *, late: int, seed: int = 1, csrc: Path = CSRC) -> str:
    """What went wrong, or nothing."""
    plan, _, at = by_key(key, tensors, SPEC, splits)
    p, params = program(key), parameters(plan)
    params.a, params.b, params.out = at
    partial = torch.full((plan.partial_floats + 1,), float("nan"))
    counters = torch.zeros(plan.counters + 1, dtype=torch.int32)
    params.partial, params.counter = partial.data_ptr(), counters.data_ptr()
    tiles, parts, _ = plan.grid
    emulate = built(key, csrc)
    wrong = emulate(ctypes.byref(params), tiles, parts, p.threads, p.smem_bytes, seed, late).decode()
    assert wrong or not counters.any()
    return wrong


#: Every form in one layout, the smallest one in all; both outputs.
KEYS = [
    key
    for i, key in enumerate(sm80_projection.keys())
    if (key.form == "64x64" and i % 2 == (i // 2) % 2) or i in (1, 12)
]


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_programs(built, key):
    """Ragged on all sides, two matrices, K cut and not: values, and nothing beside the view."""
    torch.manual_seed(0)
    tensors = a, b, out = case(key, 200, "cpu")
    lines = out.as_strided((*out.shape[:2], out.stride(1)), out.stride())
    for late, splits in ((0, 1), (1, 1), (1, 3)):
        out.fill_(float("nan"))
        assert launch(built, key, tensors, splits, late=late) == ""
        assert right(out, a, b) and lines[..., out.shape[2] :].isnan().all()


def test_parts_are_added_in_the_order_of_the_cpu_executor(built):
    key = ProjectionKey("sm80", "64x64", True, True, "f32", True)
    tensors = a, b, out = case(key, 300, "cpu", batch=1)
    assert launch(built, key, tensors, 5, late=1) == ""
    expected = torch.empty_like(out)
    cpu.run_projection(by_key(key, tensors, SPEC, 5)[0], a, b, expected)
    assert (out - expected).norm() <= 2e-7 * expected.norm()


@pytest.mark.parametrize(
    ("what", "instead"),
    [("copy_wait<STAGES - 2>();", ";"), ("    __syncthreads();\n    fill", "    fill"), ("*counter = 0", "")],
)
def test_the_emulation_sees_what_is_missing(built, tmp_path, what, instead):
    """Else the tests above prove nothing."""
    csrc = shutil.copytree(CSRC, tmp_path / "csrc")
    source = csrc / "sm80/projection.cuh"
    text = source.read_text()
    assert what in text
    source.write_text(text.replace(what, instead))
    key = ProjectionKey("sm80", "64x64", True, True, "f32", True)
    torch.manual_seed(0)
    tensors = a, b, out = case(key, 700, "cpu", batch=1)

    def seen(seed: int) -> bool:
        out.fill_(float("nan"))
        try:
            wrong = launch(built, key, tensors, 2, late=1, seed=seed, csrc=csrc)
        except AssertionError:  # a counter that was not put back
            return True
        return bool(wrong) or not fro(out, a, b) <= 5e-5

    assert any(seen(seed) for seed in range(10))
