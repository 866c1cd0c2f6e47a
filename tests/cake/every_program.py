"""Run a small case of every program of this machine's GPU, for a sanitizer:

compute-sanitizer --tool memcheck python -m tests.cake.every_program [PART OF A NAME...]

All sides are ragged; with one CTA a tile, and with K split. Exit code 1 where a result is wrong.
"""

from __future__ import annotations

import sys

import torch

from cake import operand
from cake.launch.projection import BoundProjection
from cake.launch.router import BoundBackward, BoundPlan, device_spec
from cake.operand import Problem
from cake.plan.backward import BackwardKey, joined
from cake.plan.dense import ProjectionKey
from cake.plan.planner import Plan, ProgramKey, by_rule
from cake.plan.raster import Raster
from cake.plan.rules import Rule
from cake.program.registry import Key, keys_of

from .products import error
from .projections import by_key, case, fro

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
K = 200


def matrix(rows: int, cols: int, unit_cols: bool, dtype: str) -> torch.Tensor:
    """Normal values with NaN behind the rows (or columns), which nothing may read."""
    lines, length = (rows, cols) if unit_cols else (cols, rows)
    buffer = torch.full((lines, -(-length // 8) * 8 + 8), float("nan"), device="cuda", dtype=DTYPES[dtype])
    buffer[:, :length] = torch.randn(lines, length, device="cuda")
    return buffer[:, :length] if unit_cols else buffer[:, :length].t()


def made(key: ProgramKey, a: torch.Tensor, b: torch.Tensor, splits: int) -> tuple[Plan, torch.Tensor]:
    out = torch.full((a.shape[0], -(-b.shape[1] // 4) * 4), float("nan"), device="cuda")[:, : b.shape[1]]
    p = Problem("dgrad", operand.view("A", a), operand.view("B", b), operand.output_view("out", out))
    rule = Rule("dgrad", None, None, None, None, None, (key.tile_m, key.tile_n), 1, Raster(2), "test", splits)
    sms = device_spec(0).sms
    return by_rule(p, key.family, rule, sms=sms, emulation=key.emulation, splits=splits), out


#: What a projection may be off by: FP32 outputs, and those rounded to BF16.
PROJECTION = {"f32": 5e-5, "bf16": 4e-3}


def run_projection(key: ProjectionKey) -> float:
    """The largest error of its cases, in units of what is allowed."""
    worst = 0.0
    for splits in (1, 3):
        plan, (a, b, out), at = by_key(key, case(key, K, "cuda:0"), device_spec(0), splits)
        BoundProjection(plan, out.device).launch(at, torch.cuda.current_stream().cuda_stream)
        torch.cuda.synchronize()
        e = fro(out, a, b) / PROJECTION[key.out_dtype]
        worst = e if e != e else max(worst, e)
    return worst


def run(key: Key) -> float:
    """The largest error of its cases."""
    if isinstance(key, ProjectionKey):
        return run_projection(key) * 4e-7
    stream, device = torch.cuda.current_stream().cuda_stream, torch.device("cuda:0")
    if isinstance(key, BackwardKey):
        g = matrix(key.dgrad.tile_m + 8, 136, True, "f32")
        w, x = matrix(136, 72, True, "f32"), matrix(g.shape[0], 72, True, key.wgrad.b_dtype)
        dgrad, dx = made(key.dgrad, g, w, 1)
        wgrad, dw = made(key.wgrad, g.t(), x, 1)
        both = joined(dgrad, wgrad, device_spec(0).sms)
        assert both is not None and both.program == key
        at = [(t.data_ptr(), u.data_ptr(), o.data_ptr()) for t, u, o in ((g, w, dx), (g, x, dw))]
        BoundBackward(both, device, pdl=False).launch(at, stream)
        torch.cuda.synchronize()
        return max(error(dx, (g.double() @ w.double()).cpu()), error(dw, (g.t().double() @ x.double()).cpu()))
    a = matrix(key.tile_m + 8, K, key.a_unit_k, key.a_dtype)
    b = matrix(K, key.tile_n + 8, not key.b_unit_k, key.b_dtype)
    worst = 0.0
    for splits in (1, 3):
        plan, out = made(key, a, b, splits)
        assert plan.program == key
        BoundPlan(plan, device, pdl=False).launch((a.data_ptr(), b.data_ptr(), out.data_ptr()), stream)
        torch.cuda.synchronize()
        e = error(out, (a.double() @ b.double()).cpu())
        worst = e if e != e else max(worst, e)
    return worst


def main(parts: list[str]) -> int:
    torch.manual_seed(0)
    keys = [key for key in keys_of(device_spec(0).arch) if all(part in str(key) for part in parts)]
    wrong = 0
    for key in keys:
        e = run(key)
        wrong += not e <= 4e-7
        print(f"{key} {e:.2e}" + " WRONG" * (not e <= 4e-7), flush=True)
    print(f"{len(keys)} programs, {wrong} wrong")
    return int(wrong > 0 or not keys)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
