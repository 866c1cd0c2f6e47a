"""What only a GPU can show of projections: every program against FP64, streams, capture, memory."""

from __future__ import annotations

import hashlib
import subprocess
import sys

import pytest
import torch

import cake
from cake.launch import router as launch
from cake.launch.projection import BoundProjection
from cake.plan import DeviceSpec
from cake.plan.dense import ProjectionKey, tile_of
from cake.plan.device import families
from cake.program.registry import keys_of

from .projections import KINDS, bits, by_key, call, case, fro, inputs, matrices, operands, padded, right

pytestmark = pytest.mark.gpu

#: Every projection program there is; those that this GPU does not run are skipped.
PROGRAMS = [key for key in keys_of("sm_90a") if isinstance(key, ProjectionKey)]
T = (0, 1, 8, 33, 129, 257, 301, 1001, 2049)
#: N, K and heads: dense, narrow, with heads.
LAYERS = [(256, 512, 0), (32, 1024, 0), (576, 200, 0), (136, 192, 5)]


@pytest.fixture(params=PROGRAMS, ids=str)
def key(request):
    if request.param.family not in families(launch.device_spec(0).arch):
        pytest.skip(f"{launch.device_spec(0).arch} does not run the {request.param.family} family")
    return request.param


@pytest.fixture
def device(device):
    """What only a GPU can show is not asked of a CPU."""
    if device.type == "cpu":
        pytest.skip("a GPU's alone")
    return device


def run(key: ProjectionKey, tensors, splits: int, raster: int = 2, times: int = 1) -> torch.Tensor:
    plan, (_, _, out), at = by_key(key, tensors, launch.device_spec(0), splits, raster)
    bound = BoundProjection(plan, out.device)
    for _ in range(times):
        out.fill_(float("nan"))
        bound.launch(at, torch.cuda.current_stream().cuda_stream)
    torch.cuda.synchronize()
    return out


def like(out: torch.Tensor) -> torch.Tensor:
    """Another output of the same strides."""
    return torch.empty_strided(out.shape, out.stride(), dtype=out.dtype, device=out.device)


@pytest.mark.parametrize("splits", [1, 3, 16])
@pytest.mark.parametrize("k", [8, 200, 1288])
def test_programs(key, k, splits):
    """Ragged on all sides; again and again, which shows whether counters are put back."""
    torch.manual_seed(0)
    tensors = a, b, _ = case(key, k, "cuda:0")
    assert right(run(key, tensors, splits, times=3), a, b)


def test_programs_write_inside_their_view_only(key):
    torch.manual_seed(0)
    a, b, out = case(key, 200, "cuda:0")
    shape = out.shape if key.out_unit_n else out.mT.shape
    buffer = torch.full((2, shape[1] + 7, shape[2] + 32 - shape[2] % 8), float("nan"), device="cuda:0").to(
        out.dtype
    )
    view = buffer[:, 3 : 3 + shape[1], 8 : 8 + shape[2]]
    target = view if key.out_unit_n else view.mT
    for splits in (1, 3):
        assert right(run(key, (a, b, target), splits), a, b)
        assert int(buffer.isnan().sum()) == buffer.numel() - view.numel()


@pytest.mark.parametrize("splits", [1, 3])
def test_bits_of_programs(key, splits):
    """The same in every run, with every raster, and those of a family's other tiles."""
    torch.manual_seed(0)
    tensors = a, b, out = case(key, 1288, "cuda:0")
    first = bits(run(key, tensors, splits))
    for raster in (1, 2, 7):
        assert torch.equal(bits(run(key, tensors, splits, raster)), first)
    base = min(k.form for k in PROGRAMS if k.family == key.family)
    alike = ProjectionKey(key.family, base, key.a_unit_k, key.b_unit_k, key.out_dtype, key.out_unit_n)
    if alike in PROGRAMS:
        assert torch.equal(bits(run(alike, (a, b, like(out)), splits)), first)


@pytest.mark.parametrize("what", [float("nan"), float("inf")])
def test_programs_keep_what_is_not_finite(key, what):
    torch.manual_seed(0)
    tensors = a, b, _ = case(key, 200, "cuda:0")
    a[0, tile_of(key.form)[0] - 1, 199] = what
    reached = ~(a.double() @ b.double()).isfinite()
    for splits in (1, 3):
        assert torch.equal(~run(key, tensors, splits).isfinite(), reached)


@pytest.mark.parametrize("layer", LAYERS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_ragged_tokens(device, kind, layer):
    n, k, heads = layer
    for t in T:
        tensors = inputs(t, n, k, device, heads=heads)
        for dtype in (torch.bfloat16, torch.float32):
            assert right(call(kind, tensors, out_dtype=dtype), *matrices(kind, tensors)), t


@pytest.mark.parametrize("kind", KINDS)
def test_gpu_against_cpu_executor(kind):
    for heads in (0, 3):
        on_gpu = inputs(333, 136, 1000, "cuda:0", heads=heads)
        on_cpu = {name: t.cpu() for name, t in on_gpu.items()}
        got = call(kind, on_gpu, out_dtype=torch.float32).cpu().double()
        expected = call(kind, on_cpu, out_dtype=torch.float32).double()
        assert (got - expected).norm() <= 5e-5 * expected.norm()


def digest(kind: str) -> str:
    result = call(kind, inputs(1001, 136, 1000, "cuda:0"))
    return hashlib.sha256(bits(result).numpy().tobytes()).hexdigest()


def test_bits_across_processes():
    code = "from tests.cake.test_projection_gpu import KINDS, digest\nprint(*map(digest, KINDS))"
    command = [sys.executable, "-c", code]
    runs = {subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(2)}
    assert runs == {" ".join(map(digest, KINDS)) + "\n"}


@pytest.mark.parametrize("kind", KINDS)
def test_bits_across_streams(device, kind):
    """Two streams at once, each with its own workspace."""
    tensors = inputs(2049, 64, 200, device)
    expected = call(kind, tensors)
    streams = [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()
    results = []
    for _ in range(20):
        for stream in streams:
            with torch.cuda.stream(stream):
                results.append(call(kind, tensors, out=torch.full_like(expected, float("nan"))))
    torch.cuda.synchronize()
    assert all(torch.equal(r, expected) for r in results)


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("heads", [0, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_prepared_launches_are_capturable_from_the_first_call(device, kind, heads, deterministic):
    tensors = inputs(2049, 64, 200, device, heads=heads)
    needed = dict(
        zip({"fwd": "XW", "dgrad": "GW", "wgrad": "GX"}[kind], operands(kind, tensors), strict=True)
    )
    prepared = cake.prepare_projection(kind, **needed, deterministic=deterministic)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        before = torch.cuda.memory_stats()["allocation.all.allocated"]
        prepared()
        allocated = torch.cuda.memory_stats()["allocation.all.allocated"] - before
    assert allocated == 0
    (out,) = prepared.outputs.values()
    for _ in range(3):
        out.fill_(float("nan"))
        graph.replay()
        assert right(out, *matrices(kind, tensors))


@pytest.mark.parametrize("kind", KINDS)
def test_a_cold_call_is_capturable(device, kind):
    """Its program is loaded while the capture is under way, its workspace is from the capture's pool."""
    cake.clear_caches()
    tensors = inputs(2049, 64, 200, device)
    a, b = matrices(kind, tensors)
    out = torch.empty(a.shape[0], b.shape[1], device=device, dtype=torch.bfloat16)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call(kind, tensors, out=out)
    cake.clear_caches()
    for _ in range(3):
        out.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert right(out, a, b)


def test_preparing_inside_a_capture_is_refused():
    tensors = inputs(64, 64, 200, "cuda:0")
    graph = torch.cuda.CUDAGraph()
    side = padded(8, 8, device="cuda:0")
    with torch.cuda.graph(graph):
        side.add_(0)
        with pytest.raises(RuntimeError, match="fwd: prepare before the capture begins"):
            cake.prepare_projection("fwd", X=tensors["X"], W=tensors["W"], out=torch.empty_like(tensors["G"]))


@pytest.mark.parametrize("kind", KINDS)
def test_repeat_calls_allocate_nothing(device, kind):
    tensors = inputs(2049, 64, 200, device, heads=3)
    out = call(kind, tensors)
    call(kind, tensors, out=out)
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    for _ in range(10):
        call(kind, tensors, out=out)
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == before
    assert right(out, *matrices(kind, tensors))


def test_an_unsupported_gpu_is_an_error_that_says_what_is_supported(monkeypatch):
    cake.clear_caches()
    monkeypatch.setattr("cake.launch.entry.device_spec", lambda index: DeviceSpec("sm_75", 40))
    tensors = inputs(8, 8, 8, "cuda:0")
    with pytest.raises(ValueError, match="sm_75 has no program"):
        call("fwd", tensors)


def test_large_products_are_right():
    """More tiles than SMs, K of many stages."""
    tensors = inputs(1001, 2048, 6144, "cuda:0")
    for kind in KINDS:
        assert fro(call(kind, tensors, out_dtype=torch.float32), *matrices(kind, tensors)) <= 5e-5
