"""What only a GPU can show: bits across processes and streams, capture, agreement with the CPU executor."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from functools import partial
from itertools import product

import pytest
import torch

import cake
from cake import planted
from cake.launch import router as launch
from cake.plan import DeviceSpec, UnsupportedDevice
from cake.plan.device import FAMILIES
from tests.cake.products import KINDS, call, error, inputs, reference

pytestmark = pytest.mark.gpu

SHAPES = [(64, 256, 6144), (1024, 256, 4096), (33, 8, 1000)]


def digest(kind: str, shape: tuple[int, int, int], emulation: str) -> str:
    result = call(kind, inputs(*shape, "cuda:0"), emulation=emulation)
    return hashlib.sha256(result.cpu().contiguous().numpy().tobytes()).hexdigest()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_gpu_against_cpu_executor(emulation, kind, shape):
    on_gpu = inputs(*shape, "cuda:0")
    on_cpu = {name: t.cpu() for name, t in on_gpu.items()}
    result = call(kind, on_gpu, emulation=emulation)
    assert error(result, call(kind, on_cpu, emulation=emulation).double()) <= 4e-7
    assert error(result, reference(kind, on_gpu)) <= 4e-7


@pytest.mark.parametrize("kind", KINDS)
def test_shapes_outside_the_suite(emulation, kind):
    for t, h, n in product((0, 1, 3, 16, 63, 65, 333, 4097), (256, 2880, 3072, 7168), (8, 32, 128, 256, 384)):
        tensors = {
            name: torch.randn(shape, device="cuda")
            for name, shape in {"X": (t, h), "W": (n, h), "G": (t, n)}.items()
        }
        x, w, g = (tensors[name].double() for name in "XWG")
        a, b = {"fwd": (x, w.t()), "dgrad": (g, w), "wgrad": (g.t(), x)}[kind]
        expected = a @ b
        result = call(kind, tensors, emulation=emulation).double()
        assert (result - expected).norm() <= 4e-7 * expected.norm(), (t, h, n)


def test_bits_across_processes(emulation):
    code = (
        "from tests.cake.test_router_gpu import KINDS, SHAPES, digest\n"
        f"print(*(digest(k, s, {emulation!r}) for k in KINDS for s in SHAPES))"
    )
    command = [sys.executable, "-c", code]
    runs = {subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(2)}
    assert runs == {" ".join(digest(k, s, emulation) for k in KINDS for s in SHAPES) + "\n"}


@pytest.mark.parametrize("kind", KINDS)
def test_bits_across_streams(emulation, kind):
    """Two streams at once, each with its own workspace: the same bits, many times over."""
    tensors = inputs(64, 256, 6144, "cuda:0")
    expected = call(kind, tensors, emulation=emulation)
    streams = [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()
    results = []
    for _ in range(20):
        for stream in streams:
            with torch.cuda.stream(stream):
                results.append(
                    call(kind, tensors, out=torch.full_like(expected, float("nan")), emulation=emulation)
                )
    torch.cuda.synchronize()
    assert all(torch.equal(r, expected) for r in results)


@pytest.mark.parametrize("op", ["fwd", "dgrad", "wgrad", "bwd", "2fwd+bwd"])
@pytest.mark.parametrize("deterministic", [True, False])
def test_prepared_launches_are_capturable_from_the_first_call(emulation, op, deterministic):
    tensors = inputs(64, 256, 4096, "cuda:0")
    needed = {n: tensors[n] for n in {"fwd": "XW", "dgrad": "GW", "wgrad": "GX"}.get(op, "XWG")}
    prepared = cake.prepare_router(op, **needed, deterministic=deterministic, emulation=emulation)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        before = torch.cuda.memory_stats()["allocation.all.allocated"]
        prepared()
        allocated = torch.cuda.memory_stats()["allocation.all.allocated"] - before
    assert allocated == 0
    for _ in range(3):
        for out in prepared.outputs.values():
            out.fill_(float("nan"))
        graph.replay()
        for name, out in prepared.outputs.items():
            kind = {"out": "fwd", "dX": "dgrad", "dW": "wgrad"}[name]
            assert error(out, reference(kind, tensors)) <= 4e-7


def test_eager_calls_are_capturable_once_warm(emulation):
    tensors = inputs(64, 256, 4096, "cuda:0")
    expected = call("fwd", tensors, emulation=emulation)
    out = torch.empty_like(expected)
    call("fwd", tensors, out=out, emulation=emulation)
    graph = torch.cuda.CUDAGraph()
    side = torch.cuda.Stream()
    with torch.cuda.graph(graph, stream=side):
        call("fwd", tensors, out=out, emulation=emulation)
    cake.clear_caches()
    for _ in range(3):
        out.fill_(float("nan"))
        call("fwd", inputs(64, 256, 4096, "cuda:0", seed=3), emulation=emulation)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, expected)


def test_a_cold_call_is_capturable(emulation):
    """Its program is compiled and loaded while the capture is under way."""
    launch._kernel.cache_clear()
    tensors = inputs(64, 256, 4096, "cuda:0")
    out = torch.empty(64, 256, device="cuda:0")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call("fwd", tensors, out=out, emulation=emulation)
    out.fill_(float("nan"))
    graph.replay()
    assert error(out, reference("fwd", tensors)) <= 4e-7


@pytest.mark.parametrize("kind", ["fwd", "dgrad"])  # with and without a node between that zeroes counters
def test_programmatic_dependent_launch_in_a_graph(emulation, kind):
    tensors = inputs(64, 256, 4096, "cuda:0")
    expected = call(kind, tensors, emulation=emulation)
    outs = [torch.full_like(expected, float("nan")) for _ in range(4)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for out in outs:
            call(kind, tensors, out=out, pdl=True, emulation=emulation)
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    assert all(torch.equal(out, expected) for out in outs)


def test_preparing_inside_a_capture_is_refused_and_leaves_it_intact():
    tensors = inputs(64, 256, 512, "cuda:0")
    out = torch.empty(64, 256, device="cuda:0")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        with pytest.raises(RuntimeError, match="fwd: prepare before the capture begins"):
            cake.prepare_router("fwd", X=tensors["X"], W=tensors["W"], out=out)
        out.zero_()
    graph.replay()
    assert not out.any()


def test_a_dropped_prepared_launch_keeps_its_workspace_until_it_is_done(emulation):
    tensors = inputs(64, 256, 4096, "cuda:0")
    expected = call("fwd", tensors, emulation=emulation)
    prepared = cake.prepare_router("fwd", X=tensors["X"], W=tensors["W"], emulation=emulation)
    out, floats = prepared.outputs["out"], prepared.plans[0].partial_floats
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(200_000_000)  # 0.1 s: all below is enqueued before the launch begins
        prepared()
    del prepared
    taken = torch.full((floats,), float("nan"), device="cuda:0")  # the freed block, were it free
    side.synchronize()
    torch.cuda.synchronize()
    assert bool(taken.isnan().all())
    assert torch.equal(out, expected)


def test_repeat_calls_allocate_nothing():
    tensors = inputs(64, 256, 4096, "cuda:0")
    out = call("fwd", tensors)
    call("fwd", tensors, out=out)
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    for _ in range(5):
        call("fwd", tensors, out=out)
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before


def test_programmatic_dependent_launch_back_to_back():
    """Each call reads what the last one wrote."""
    tensors = inputs(64, 256, 256, "cuda:0")
    x, w = tensors["X"], tensors["W"] * 0.06
    expected = x
    for _ in range(20):
        expected = cake.router_forward(expected, w)
    result = x
    for _ in range(20):
        result = cake.router_forward(result, w, pdl=True)
    assert torch.equal(result, expected)


def test_unsupported_gpu(monkeypatch):
    monkeypatch.setattr("cake.launch.entry.device_spec", lambda index: DeviceSpec("sm_75", 40))
    cake.clear_caches()
    with pytest.raises(
        UnsupportedDevice, match="sm_75 has no program: supported are GPUs of compute capability 8.0"
    ):
        call("fwd", inputs(8, 8, 8, "cuda:0"))


def test_a_gpu_without_fp16x2(monkeypatch):
    monkeypatch.setattr("cake.launch.entry.device_spec", lambda index: DeviceSpec("sm_80", 108))
    cake.clear_caches()
    tensors = inputs(8, 8, 8, "cuda:0")
    said = r"sm_80 has no fp16x2 programs: .* sm90 \(sm_90a\) has them; use emulation='bf16x3'"
    with pytest.raises(UnsupportedDevice, match=said):
        call("fwd", tensors, emulation="fp16x2")
    with pytest.raises(UnsupportedDevice, match=said):
        cake.prepare_router("fwd", X=tensors["X"], W=tensors["W"], emulation="fp16x2")


def test_device_spec_of_this_gpu():
    spec = launch.device_spec(0)
    assert spec.sms == torch.cuda.get_device_properties(0).multi_processor_count
    assert spec.family in FAMILIES


def test_a_failed_call_leaves_the_context_usable():
    tensors = inputs(64, 256, 512, "cuda:0")
    expected = call("fwd", tensors)
    with pytest.raises(ValueError):
        cake.router_forward(tensors["X"], tensors["W"][:12])
    assert torch.equal(call("fwd", tensors), expected)


def eager_calls(op, t, out, emulation):
    if op in KINDS:
        call(op, t, out=out, emulation=emulation)
        return
    if op == "2fwd+bwd":
        for _ in range(2):
            cake.router_forward(t["X"], t["W"], out=out[0], emulation=emulation)
    cake.router_backward(t["G"], t["X"], t["W"], out=out[-2:], emulation=emulation)


@pytest.mark.parametrize("op", ["fwd", "dgrad", "wgrad", "bwd", "2fwd+bwd"])
def test_a_planted_slowdown_changes_time_but_not_bits(emulation, op):
    tensors = inputs(64, 256, 4096, "cuda:0")
    needed = {n: tensors[n] for n in {"fwd": "XW", "dgrad": "GW", "wgrad": "GX"}.get(op, "XWG")}
    plain = cake.prepare_router(op, **needed, emulation=emulation)
    plain()
    expected = {name: out.clone() for name, out in plain.outputs.items()}
    names = tuple(plain.outputs.values())
    out = names[0] if len(names) == 1 else names
    slow = planted.Eager(partial(eager_calls, op, tensors, out, emulation), op, 2_000_000)
    spun = [planted.prepare(op, spin=2_000_000, **needed, out=out, emulation=emulation), slow]
    for run in (*spun, *spun):
        for target in names:
            target.fill_(float("nan"))
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        assert begin.elapsed_time(end) > 0.8  # 2 M clocks take 1.0 ms at the highest clock, 1.98 GHz
        assert all(torch.equal(plain.outputs[name], expected[name]) for name in expected)
