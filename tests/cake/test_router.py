"""The contracts of the router API, on the CPU executor and (marked gpu) on a GPU."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import cake
from cake import router
from cake.launch import router as launch
from cake.plan import CPU
from cake.plan.partition import GROUP
from cake.plan.tiles import TILES
from cake.router import OPS
from tests.cake.products import (
    BOUND,
    HARD,
    KINDS,
    call,
    componentwise,
    error,
    factors,
    inputs,
    operands,
    reference,
)

RAGGED = [(1, 8, 1), (3, 8, 5), (63, 72, 130), (65, 256, 1027), (200, 384, 2880)]


def equal(x: torch.Tensor, y: torch.Tensor) -> bool:
    return torch.equal(x.contiguous().view(torch.int32), y.contiguous().view(torch.int32))


@pytest.mark.parametrize("shape", RAGGED, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("deterministic", [True, False])
def test_accuracy(device, emulation, kind, shape, deterministic):
    tensors = inputs(*shape, device)
    result = call(kind, tensors, deterministic=deterministic, emulation=emulation)
    assert error(result, reference(kind, tensors)) <= 4e-7


@pytest.mark.parametrize("kind", ["fwd", "wgrad"])
def test_bf16_x(device, emulation, kind):
    tensors = inputs(77, 64, 515, device, bf16=True)
    result = call(kind, tensors, emulation=emulation)
    assert result.dtype is torch.float32
    assert error(result, reference(kind, tensors)) <= 4e-7


def test_bf16_dx(device, emulation):
    tensors = inputs(77, 64, 515, device)
    full = call("dgrad", tensors, emulation=emulation)
    rounded = call("dgrad", tensors, out_dtype=torch.bfloat16, emulation=emulation)
    assert rounded.dtype is torch.bfloat16
    assert torch.equal(rounded, full.bfloat16())
    out = torch.empty(77, 520, device=device, dtype=torch.bfloat16)[:, :515]
    assert call("dgrad", tensors, out=out, emulation=emulation) is out
    assert torch.equal(out, rounded)


@pytest.mark.parametrize("splits", [1, 2, 3, 7, 16])
@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_pinned_splits(device, emulation, kind, splits, deterministic):
    tensors = inputs(1000, 128, 1100, device)
    result = call(kind, tensors, splits=splits, deterministic=deterministic, emulation=emulation)
    assert error(result, reference(kind, tensors)) <= 4e-7


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("t_axis", [0, 1], ids=["first transposed", "second transposed"])
def test_transposed_views(device, emulation, kind, t_axis):
    tensors = inputs(72, 64, 512, device)
    expected = call(kind, tensors, emulation=emulation)
    name = {"fwd": "XW", "dgrad": "GW", "wgrad": "GX"}[kind][t_axis]
    tensors[name] = tensors[name].t().contiguous().t()
    assert tensors[name].stride(0) == 1
    assert equal(call(kind, tensors, emulation=emulation), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_output_is_written_through_the_view_only(device, emulation, kind):
    tensors = inputs(70, 72, 300, device)
    expected = call(kind, tensors, emulation=emulation)
    rows, cols = expected.shape
    buffer = torch.full((rows + 2, cols + 60), 7.0, device=device)
    start = 8
    width = cols + 60
    if width % 4:
        buffer = torch.full((rows + 2, width + 4 - width % 4), 7.0, device=device)
    out = buffer[1 : rows + 1, start : start + cols]
    assert call(kind, tensors, out=out, emulation=emulation) is out
    assert equal(out, expected)
    out.fill_(7.0)
    assert bool((buffer == 7.0).all())


@pytest.mark.parametrize("kind", KINDS)
def test_transposed_output(device, emulation, kind):
    tensors = inputs(72, 64, 512, device)
    expected = call(kind, tensors, emulation=emulation)
    out = torch.empty(expected.shape[::-1], device=device).t()
    call(kind, tensors, out=out, emulation=emulation)
    assert equal(out, expected)


def test_out_may_be_a_disjoint_slice_of_an_input_buffer(device, emulation):
    buffer = torch.randn(64, 512 + 64).to(device)
    tensors = inputs(64, 64, 512, device) | {"X": buffer[:, :512]}
    expected = call("fwd", tensors, emulation=emulation)
    assert equal(call("fwd", tensors, out=buffer[:, 512:], emulation=emulation), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_no_tokens(device, emulation, kind):
    tensors = inputs(0, 64, 512, device)
    result = call(kind, tensors, emulation=emulation)
    assert result.shape == {"fwd": (0, 64), "dgrad": (0, 512), "wgrad": (64, 512)}[kind]
    assert not result.any()


def test_no_features(device, emulation):
    tensors = inputs(5, 64, 0, device)
    out = torch.full((5, 64), float("nan"), device=device)
    assert not call("fwd", tensors, out=out, emulation=emulation).any()
    assert call("dgrad", tensors, emulation=emulation).shape == (5, 0)
    assert call("wgrad", tensors, emulation=emulation).shape == (64, 0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_non_finite_inputs_reach_their_rows_and_columns(device, emulation, kind, bad):
    tensors = inputs(70, 72, 300, device)
    first, second = operands(kind, tensors)
    clean = call(kind, tensors, emulation=emulation)
    row, column = {"fwd": (first, second), "dgrad": (first, second.t()), "wgrad": (first.t(), second.t())}[
        kind
    ]
    row[3, 7] = bad
    column[5, 2] = bad
    result = call(kind, tensors, emulation=emulation)
    assert not result[3].isfinite().any()
    assert not result[:, 5].isfinite().any()
    rest = torch.ones_like(result, dtype=torch.bool)
    rest[3], rest[:, 5] = False, False
    assert torch.equal(result[rest], clean[rest])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("hard", HARD)
def test_componentwise_error_on_hard_inputs(device, emulation, kind, hard):
    tensors = inputs(70, 72, 700, device)
    HARD[hard](kind, *operands(kind, tensors))
    assert componentwise(kind, tensors, call(kind, tensors, emulation=emulation)) <= BOUND


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("exponent", [-118, -126, -134, -149])
def test_tiny_operands_lose_what_is_documented(device, emulation, kind, exponent):
    """Down to the smallest subnormal: an operand is off by 2^-133 at most, whatever the other one is."""
    tensors = inputs(70, 72, 300, device)
    first, second = operands(kind, tensors)
    first.copy_((first.double() * 2.0**exponent).float())
    second *= 2.0**60
    a, b = factors(kind, tensors)
    bound = 1e-6 * (a.abs() @ b.abs()) + 2.0**-133 * b.abs().sum(0)
    assert bool(((call(kind, tensors, emulation=emulation).double().cpu() - a @ b).abs() <= bound).all())


@pytest.mark.parametrize(
    ("x", "w"),
    [
        (2.0**127, 2.0**-100),
        (2.0**-100, 2.0**-20),
        (2.0**-100, 2.0**127),
        (-(2.0**127), 1.0),
        (2.0**-60, 2.0**-60),
        (0.0, 2.0**127),
    ],
)
def test_what_can_be_represented_is_not_lost_on_the_way(device, emulation, x, w):
    """Scales of operands may lie far from that of their product."""
    tensors = inputs(64, 64, 64, device)
    for name, value in (("X", x), ("W", w)):
        tensors[name].zero_()
        tensors[name][:, 0] = value
    assert bool((call("fwd", tensors, emulation=emulation) == x * w).all())


def test_zero_times_anything_is_zero(device, emulation):
    """Even where the scales of row and column together have no FP32 power of two."""
    tensors = inputs(64, 64, 128, device)
    tensors["X"].zero_()
    tensors["W"].zero_()
    tensors["X"][1:, 0] = 2.0**127  # row 0 stays 0
    tensors["W"][:, 1] = -(2.0**127)
    assert not call("fwd", tensors, emulation=emulation).any()


def test_near_flt_max_does_not_overflow(device, emulation):
    tensors = inputs(64, 64, 64, device)
    tensors["X"].zero_()
    tensors["X"][:, 0] = torch.finfo(torch.float32).max
    tensors["W"].fill_(0.5)
    assert error(call("fwd", tensors, emulation=emulation), reference("fwd", tensors)) <= 4e-7


@pytest.mark.parametrize("kind", ["fwd", "dgrad"])
def test_a_token_has_the_same_bits_in_every_batch(device, emulation, kind):
    tensors = inputs(1024, 256, 1024, device)
    whole = call(kind, tensors, emulation=emulation)
    for rows in (slice(0, 64), slice(64, 128), slice(700, 701), slice(1000, 1024)):
        part = {name: t[rows] if name in "XG" else t for name, t in tensors.items()}
        assert equal(call(kind, part, emulation=emulation), whole[rows])


@pytest.mark.parametrize("kind", KINDS)
def test_repeat_bits(device, emulation, kind):
    tensors = inputs(300, 256, 2048, device)
    first = call(kind, tensors, emulation=emulation)
    for _ in range(5):
        out = torch.full_like(first, float("nan"))
        assert equal(call(kind, tensors, out=out, emulation=emulation), first)


@pytest.mark.parametrize("kind", KINDS)
def test_plan_changes_that_keep_the_partition_keep_the_bits(device, emulation, kind, monkeypatch):
    """Tile, grouping and raster come from rules; the bits must not."""
    from cake.plan import rules

    spec = launch.device_spec(0) if device.type == "cuda" else CPU
    family = spec.family_of(emulation)
    tensors = inputs(300, 128, 1300, device)
    expected = call(kind, tensors, splits=7, emulation=emulation)
    for tile in (f"{rows}x{columns}" for rows, columns in TILES[family, emulation]):
        for hold in (1, GROUP[family]):
            for raster in (1, 3):
                rule = {"op": kind, "tile": tile, "hold": hold, "raster": raster, "why": "test"}
                table = (rules.parse(rule, family),)
                monkeypatch.setattr(rules, "shipped", lambda family, table=table: table)
                cake.clear_caches()
                assert equal(call(kind, tensors, splits=7, emulation=emulation), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_autograd_sees_nothing(device, emulation, kind):
    """Parameters are operands like others; a result with a history would have a wrong gradient."""
    tensors = inputs(5, 8, 12, device)
    expected = call(kind, tensors, emulation=emulation)
    leaves = {name: t.clone().requires_grad_() for name, t in tensors.items()}
    out = torch.empty_like(expected)
    assert not call(kind, leaves, emulation=emulation).requires_grad
    assert equal(call(kind, leaves, out=out, emulation=emulation), expected) and not out.requires_grad
    if kind != "dgrad":  # K = 0
        nothing = {n: t[:0] if kind == "wgrad" else t[:, :0] for n, t in leaves.items()}
        assert not call(kind, nothing, out=out.requires_grad_(), emulation=emulation).any()


@pytest.mark.parametrize("kind", KINDS)
def test_autocast_changes_nothing(device, kind):
    """A router stays FP32: what a call computes in is in its tensors, as for a kernel."""
    tensors = inputs(65, 16, 256, device)
    expected = call(kind, tensors)
    with torch.autocast(device.type, dtype=torch.bfloat16):
        assert equal(call(kind, tensors), expected)


def test_a_new_tensor_with_an_equal_key_computes_on_its_own_data(device):
    first, second = inputs(64, 64, 256, device, seed=1), inputs(64, 64, 256, device, seed=2)
    one, two = call("fwd", first), call("fwd", second)
    assert error(one, reference("fwd", first)) <= 4e-7
    assert error(two, reference("fwd", second)) <= 4e-7


def test_entry_cache_is_bounded_and_cleared(device, monkeypatch):
    monkeypatch.setattr(router._entries, "_limit", 4)
    for t in range(1, 8):
        call("fwd", inputs(t, 8, 8, device))
    assert len(router._entries) == 4
    cake.clear_caches()
    assert len(router._entries) == 0


def test_emulations_have_entries_of_their_own():
    tensors = inputs(64, 64, 256, "cpu")
    results = [call("fwd", tensors, emulation=e) for e in ("bf16x3", "fp16x2", "bf16x3", "fp16x2")]
    assert len(router._entries) == 2
    assert not equal(results[0], results[1])
    assert equal(results[0], results[2]) and equal(results[1], results[3])
    assert equal(call("fwd", tensors), results[0])


def test_a_prepared_launch_tells_its_emulation(device, emulation):
    tensors = inputs(64, 64, 256, device)
    [plan] = cake.prepare_router("fwd", X=tensors["X"], W=tensors["W"], emulation=emulation).plans
    assert plan.program.emulation == emulation
    assert ("_fp16x2" in str(plan)) == (emulation == "fp16x2")


def test_entries_in_use_outlive_idle_ones(monkeypatch):
    monkeypatch.setattr(router._entries, "_limit", 3)
    calls = [inputs(t, 8, 8, "cpu") for t in range(1, 6)]
    for tensors in calls[:3]:
        call("fwd", tensors)
    call("fwd", calls[3])  # passes over all three, then drops the oldest
    call("fwd", calls[1])
    call("fwd", calls[4])
    kept = {entry.problem.m for entry in router._entries._kept.values()}
    assert kept == {2, 4, 5}


@pytest.mark.parametrize("op", list(OPS))
@pytest.mark.parametrize("given", [True, False])
def test_prepared_ops(device, emulation, op, given):
    tensors = inputs(70, 64, 515, device)
    needed = {
        name: tensors[name] for kind in OPS[op] for name in {"fwd": "XW", "dgrad": "GW", "wgrad": "GX"}[kind]
    }
    names = list(dict.fromkeys({"fwd": "out", "dgrad": "dX", "wgrad": "dW"}[kind] for kind in OPS[op]))
    expected = {
        n: call({"out": "fwd", "dX": "dgrad", "dW": "wgrad"}[n], tensors, emulation=emulation) for n in names
    }
    out = tuple(torch.full_like(expected[n], float("nan")) for n in names) if given else None
    if given:
        out = tuple(
            t if t.stride(0) % 4 == 0 else torch.empty(t.shape[0], 516, device=device)[:, :515] for t in out
        )
    prepared = cake.prepare_router(
        op, **needed, out=out[0] if given and len(names) == 1 else out, emulation=emulation
    )
    assert len(prepared.plans) == len(OPS[op])
    for _ in range(2):
        for target in prepared.outputs.values():
            target.fill_(float("nan"))
        prepared()
        for name in names:
            assert equal(prepared.outputs[name], expected[name])


def test_router_backward(device, emulation):
    tensors = inputs(70, 64, 515, device)
    dx, dw = cake.router_backward(tensors["G"], tensors["X"], tensors["W"], emulation=emulation)
    assert equal(dx, call("dgrad", tensors, emulation=emulation))
    assert equal(dw, call("wgrad", tensors, emulation=emulation))
    with pytest.raises(TypeError, match="out must be a pair"):
        cake.router_backward(tensors["G"], tensors["X"], tensors["W"], out=dx, emulation=emulation)


def test_threads(device):
    """Two threads share cached entries without mixing their tensors."""
    sets = [inputs(64, 64, 256, device, seed=s) for s in range(2)]
    expected = [call("fwd", s) for s in sets]

    def work(i: int) -> bool:
        return all(equal(call("fwd", sets[i]), expected[i]) for _ in range(20))

    with ThreadPoolExecutor(2) as pool:
        assert all(pool.map(work, range(2)))


class TestErrors:
    """Bad calls say which tensor, what it has, what is needed, and leave the output as it was."""

    def test_not_a_tensor(self, device):
        with pytest.raises(TypeError, match=r"X must be a torch.Tensor, got list"):
            cake.router_forward([1.0], torch.empty(8, 8, device=device))

    def test_dtype(self, device):
        t = inputs(8, 8, 8, device)
        with pytest.raises(TypeError, match=r"W is float64\[8, 8\] .*; W must be float32"):
            cake.router_forward(t["X"], t["W"].double())
        with pytest.raises(TypeError, match=r"X is float16.*; X must be float32 or bfloat16"):
            cake.router_forward(t["X"].half(), t["W"])

    def test_dimensions(self, device):
        with pytest.raises(ValueError, match=r"X is float32\[8\].*; X must have 2 dimensions"):
            cake.router_forward(torch.empty(8, device=device), torch.empty(8, 8, device=device))

    def test_device(self, device):
        t = inputs(8, 8, 8, device)
        with pytest.raises(ValueError, match="W must be a strided tensor on a CPU or a CUDA device"):
            cake.router_forward(t["X"], t["W"].to("meta"))

    def test_no_memory_where_an_equal_call_on_the_cpu_was_kept(self):
        t = inputs(8, 8, 8, "cpu")
        out = cake.router_forward(t["X"], t["W"])
        meta = {name: x.to("meta") for name, x in t.items()} | {"out": out.to("meta")}
        for name in ("X", "W"):
            with pytest.raises(
                ValueError, match=f"{name} must be a strided tensor on a CPU or a CUDA device"
            ):
                cake.router_forward(*(meta[n] if n == name else t[n] for n in ("X", "W")))
        with pytest.raises(ValueError, match="out must be a strided tensor on a CPU or a CUDA device"):
            cake.router_forward(t["X"], t["W"], out=meta["out"])

    @pytest.mark.gpu
    def test_mixed_devices(self):
        t = inputs(8, 8, 8, "cuda:0")
        with pytest.raises(ValueError, match="all tensors must be on one device, got X on cuda:0, W on cpu"):
            cake.router_forward(t["X"], t["W"].cpu())
        with pytest.raises(
            ValueError, match="all tensors must be on one device, got out on cpu, X on cuda:0"
        ):
            cake.router_forward(t["X"], t["W"], out=torch.empty(8, 8))

    def test_sparse(self, device):
        t = inputs(8, 8, 8, device)
        sparse = torch.eye(8).to_sparse().to(device)
        with pytest.raises(
            ValueError, match="X is float32.* of layout torch.sparse_coo on .*; X must be a strided tensor"
        ):
            cake.router_forward(sparse, t["W"])
        with pytest.raises(ValueError, match="out must be a strided tensor"):
            cake.router_forward(t["X"], t["W"], out=sparse)

    def test_backward_features(self, device):
        t = inputs(8, 8, 8, device) | {"W": torch.empty(8, 16, device=device)}
        with pytest.raises(ValueError, match=r"X\[8, 8\] and W\[8, 16\] disagree about H: 8 and 16"):
            cake.router_backward(t["G"], t["X"], t["W"])
        with pytest.raises(ValueError, match=r"X\[8, 8\] and W\[8, 16\] disagree about H: 8 and 16"):
            cake.prepare_router("bwd", **t)

    def test_inner_sizes(self, device):
        with pytest.raises(ValueError, match=r"X\[8, 16\] and W\[8, 8\] disagree about H: 16 and 8"):
            cake.router_forward(torch.empty(8, 16, device=device), torch.empty(8, 8, device=device))
        with pytest.raises(ValueError, match=r"G\[4, 8\] and X\[8, 8\] disagree about T: 4 and 8"):
            cake.router_wgrad(torch.empty(4, 8, device=device), torch.empty(8, 8, device=device))

    @pytest.mark.parametrize("n", [12, 0])
    def test_experts(self, device, n):
        with pytest.raises(ValueError, match=f"N={n} experts; N must be a positive multiple of 8"):
            cake.router_forward(torch.empty(8, 8, device=device), torch.empty(n, 8, device=device))

    def test_views(self, device):
        w = torch.empty(8, 8, device=device)
        with pytest.raises(ValueError, match="X is .* one axis must have unit stride"):
            cake.router_forward(torch.empty(8, 16, device=device)[:, ::2], w)
        with pytest.raises(ValueError, match=r"X is .* stride\(0\) must be a multiple of 4"):
            cake.router_forward(torch.empty(8, 9, device=device)[:, :8], w)
        with pytest.raises(ValueError, match="X is .* its address is 4 bytes past"):
            cake.router_forward(torch.empty(8, 12, device=device)[:, 1:9], w)
        with pytest.raises(ValueError, match=r"X is bfloat16.* stride\(0\) must be a multiple of 8"):
            cake.router_forward(torch.empty(8, 12, device=device, dtype=torch.bfloat16)[:, :8], w)

    def test_out(self, device):
        t = inputs(8, 16, 8, device)
        for shape in ((8, 8), (16, 8)):
            with pytest.raises(
                ValueError, match=r"out has shape .*, needs \[8, 16\] \(from X\[8, 8\] and W\[16, 8\]\)"
            ):
                cake.router_forward(t["X"], t["W"], out=torch.empty(shape, device=device))
        with pytest.raises(TypeError, match="out is bfloat16.*; out must be float32"):
            cake.router_forward(t["X"], t["W"], out=torch.empty(8, 16, device=device, dtype=torch.bfloat16))
        with pytest.raises(TypeError, match="out_dtype=torch.bfloat16 for out; needs float32"):
            cake.router_forward(t["X"], t["W"], out_dtype=torch.bfloat16)
        with pytest.raises(ValueError, match="out is .* it overlaps itself"):
            cake.router_forward(t["X"], t["W"], out=torch.empty(16, device=device).expand(8, 16))

    @pytest.mark.parametrize("cached", [False, True])
    def test_out_overlapping_an_input(self, device, cached):
        buffer = torch.randn(16, 8).to(device)
        x, w, out = buffer[:8], torch.randn(8, 8).to(device), torch.empty(8, 8, device=device)
        if cached:
            cake.router_forward(x, w, out=out)
        before = buffer.clone()
        with pytest.raises(ValueError, match="out overlaps X in memory; out must be a separate buffer"):
            cake.router_forward(x, w, out=buffer[4:12])
        assert torch.equal(buffer, before)
        cake.router_forward(x, w, out=out)

    def test_options(self, device):
        t = inputs(8, 8, 8, device)
        for wrong in ("tf32", None, ["fp16x2"]):
            said = re.escape(f"emulation={wrong!r}; this version has 'bf16x3', 'fp16x2'")
            with pytest.raises(ValueError, match=said):
                cake.router_forward(t["X"], t["W"], emulation=wrong)
            with pytest.raises(ValueError, match=said):
                cake.prepare_router("fwd", X=t["X"], W=t["W"], emulation=wrong)
        for splits in (1, 2):  # an entry each: True == 1 and 2.0 == 2 must not find it
            cake.router_forward(t["X"], t["W"], splits=splits)
        for splits in (0, 17, 1.0, 2.0, True, [1]):
            with pytest.raises(ValueError, match="splits=.*; needs None or an integer from 1 to 16"):
                cake.router_forward(t["X"], t["W"], splits=splits)

    def test_prepare(self, device):
        t = inputs(8, 8, 8, device)
        with pytest.raises(ValueError, match="op='forward'; needs one of fwd, dgrad, wgrad, bwd, 2fwd"):
            cake.prepare_router("forward", X=t["X"], W=t["W"])
        with pytest.raises(TypeError, match="out_dtype=torch.bfloat16 for out; needs float32"):
            cake.prepare_router("fwd", X=t["X"], W=t["W"], out_dtype=torch.bfloat16)
        with pytest.raises(TypeError, match="bwd needs W"):
            cake.prepare_router("bwd", X=t["X"], G=t["G"])
        with pytest.raises(TypeError, match=r"out for bwd must be \(dX, dW\)"):
            cake.prepare_router("bwd", **t, out=t["X"])
        with pytest.raises(ValueError, match="dX overlaps X in memory"):
            cake.prepare_router("bwd", **t, out=(t["X"], torch.empty(8, 8, device=device)))
