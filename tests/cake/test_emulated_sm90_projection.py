"""The sm90 projections, run on the CPU: csrc/sm90/projection.cu, compiled by g++ with its instructions
emulated (see tests/cake/test_emulated.py). Boxes are stored, too, when they are waited for, and products read
shared memory through their descriptors.
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

from cake import cpu, operand
from cake.launch.sm90_projection import boxed, parameters
from cake.operand import Problem
from cake.plan.dense import ProjectionKey, ProjectionPlan, by_way, tile_of
from cake.plan.forms import FORMS
from cake.plan.ways import Way
from cake.program import sm90_projection
from cake.program.registry import program

from .emulation import CSRC, build, encode
from .projections import DTYPES, right

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


#: Every form in one layout, of operands and output; one that has two boxes of B in all.
SMALL = "p64x128"
ALL = sm90_projection.keys()
KEYS = [
    key
    for i, form in enumerate(FORMS)
    for key in ALL
    if key.form == form
    and (
        form == SMALL
        or (
            (key.a_unit_k, key.b_unit_k, key.out_unit_n) == (i % 2 > 0, i // 2 % 2 > 0, i % 3 > 0)
            and key.out_dtype == ("f32" if i % 4 < 2 and FORMS[form].stores("f32") else "bf16")
        )
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


def key_of(form: str, a_unit_k: bool, b_unit_k: bool, out_dtype: str, out_unit_n: bool) -> ProjectionKey:
    return ProjectionKey("sm90", form, a_unit_k, b_unit_k, out_dtype, out_unit_n)


#: Of the programs above, so that they are compiled once.
SOME = [
    key_of(SMALL, False, False, "f32", True),
    key_of(SMALL, True, True, "bf16", False),
    key_of(SMALL, True, False, "f32", False),
    key_of(SMALL, False, True, "bf16", True),
]


@pytest.mark.parametrize("key", SOME, ids=str)
def test_batches_in_slots(built, key):
    """Three matrices, each in a slot with NaN around; all with one matrix B."""
    a, b, out = tensors_of(key, 70, 133, 136, batch=3)
    for shared in (b, b[:1].expand(b.shape)):
        for splits in (1, 3):
            tensors = a, shared, out
            check(built, planned(key, tensors, splits=splits, sms=3), tensors, late=3, seed=splits)


@pytest.mark.parametrize("key", SOME, ids=str)
def test_ragged(built, key):
    """Less than a unit of 16 bytes, than a box, than a tile; one more."""
    for i, (m, n, k) in enumerate([(2, 3, 8), (3, 130, 64), (65, 2, 72), (129, 36, 24), (8, 128, 2)]):
        tensors = tensors_of(key, m, n, k)
        check(built, planned(key, tensors, sms=2), tensors, late=i % 4, seed=i)


@pytest.mark.parametrize("key", SOME[:2], ids=str)
def test_any_order_of_turns(built, key):
    """One CTA and several, rings that are passed often and less than once: nothing stops, nothing is lost."""
    tensors = tensors_of(key, 137, 139, 904)
    for seed in range(12):
        plan = planned(key, tensors, splits=1 + seed % 3, sms=(1, 2, 5)[seed // 4])
        check(built, plan, tensors, late=seed % 4, seed=seed)


def test_parts_are_added_in_the_order_of_the_cpu_executor(built):
    key = SOME[0]
    tensors = a, b, out = tensors_of(key, 70, 133, 320)
    expected = torch.empty_like(out)
    for seed in range(3):
        plan = planned(key, tensors, splits=5, sms=5)
        assert launch(built, plan, tensors, late=seed, seed=seed) == ""
        cpu.run_projection(plan, a, b, expected)
        assert (out - expected).norm() <= 2e-7 * expected.norm()


A = "swizzled_descriptor(smem_address(ring) + mine * A_BOX, 8192)"
B = "swizzled_descriptor(smem_address(ring) + A_BYTES, 8192)"
A_STEP, B_STEP = "r * A_BOX + k * (A_UNIT_K ? 32 : 2048)", "behind(b, k * (B_UNIT_K ? 32 : 2048))"
#: What is replaced by what: a first statement by nothing, or an expression by another. All are compiled at
#: once, and the parameter that only planted programs read tells which one is.
MISSING = [
    ("barrier_wait(&barriers.order[group], group ? turn & 1 : (turn & 1) ^ 1);", ""),
    ("barrier_wait(&barriers.full[at.stage], at.phase);", ""),
    ("barrier_wait(&barriers.empty[at.stage], at.phase ^ 1);", ""),
    ("barrier_arrive(&barriers.order[group ^ 1]);", ""),
    ("if (i && thread % 32 == 0) barrier_arrive(&barriers.empty[before]);", ""),
    ("    if (thread % 32 == 0) barrier_arrive(&barriers.empty[before]);", ""),
    ("4 * SHARING", "2 * SHARING"),
    ("4 * SHARING", "8 * SHARING"),
    ("barrier_init(&barriers.order[1], 4)", "barrier_init(&barriers.order[1], 1)"),
    ("blocks * A_BOX + B_BYTES", "blocks * A_BOX"),
    ("at.skip(steps_of(p, w));", ""),
    ("wgmma_commit();", ""),
    ("wgmma_wait<1>();", ""),
    ("    wgmma_wait<0>();", ""),
    ("store_wait_read<OUT_BUFFERS - 1>();", ""),
    ("store_wait_read<0>();", ""),
    ("store_commit();", ""),
    ("fence_async();", ""),
    ("sync();\n      stage(", ""),
    ("sync();\n      const int column", ""),
    ("store_rest(w, to, row, column);", ""),
    (B, B.replace("8192", "4096")),
    (B, B + " ^ 96ull << 32"),
    (B, B + " ^ 1ull << 62"),
    (B, B + " + 2"),
    (A, A + " ^ 96ull << 32"),
    (A, A + " + 2"),
    (A_STEP, A_STEP + " + 32"),
    (B_STEP, B_STEP + " + 2"),
    ("at.step();\n  for (int u", ""),
    ("sync();\n    if (thread == 0) *earlier", ""),
    ("sync();\n    if ((int)*earlier", ""),
    ("p.parts - 1", "p.parts"),
    ("arrive_threads(0, THREADS);", ""),
    ("sync_threads(0, THREADS);", ""),
]


@pytest.fixture(scope="module")
def broken(tmp_path_factory) -> Path:
    """A copy of csrc in which ``spin`` says what is missing: i + 1 for ``MISSING[i]``."""
    csrc = shutil.copytree(CSRC, tmp_path_factory.mktemp("broken") / "csrc")
    source = csrc / "sm90/projection.cu"
    text = source.read_text()
    for what in dict.fromkeys(what for what, _ in MISSING):
        assert text.count(what) == 1, what
        several = what
        for i, (this, instead) in enumerate(MISSING, 1):
            if this == what:
                several = (
                    f"(p.spin == {i} ? {instead} : {several})" if instead else f"if (p.spin != {i}) {what}"
                )
        text = text.replace(what, several)
    source.write_text(text)
    return csrc


#: All in a program with both operands across K; descriptors along K, too, where the bytes between runs of 64
#: elements across K do not matter.
BREAKS = [(SOME[0], i) for i in range(len(MISSING) + 1)] + [
    (SOME[1], i)
    for i, (what, instead) in enumerate(MISSING, 1)
    if what in (A, B) and instead != B.replace("8192", "4096")
]


@pytest.mark.parametrize(("key", "i"), BREAKS, ids=str)
def test_the_emulation_sees_what_is_missing(built, broken, key, i):
    """Else the tests above prove nothing; 0: nothing is, and nothing is seen."""
    tensors = a, b, out = tensors_of(key, 137, 139, 904)

    def seen(late: int, splits: int, seed: int) -> bool:
        plan = replace(planned(key, tensors, splits=splits, sms=1), spin=i)
        out.fill_(float("nan"))
        return bool(launch(built, plan, tensors, late=late, seed=seed, csrc=broken)) or not right(out, a, b)

    seeds = range(10 if i else 1)
    cases = ((late, splits, seed) for seed in seeds for late in (3, 0) for splits in (1, 3))
    assert any(seen(*case) for case in cases) == (i > 0)
