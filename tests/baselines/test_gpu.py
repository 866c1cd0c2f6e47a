"""The libraries on a GPU: every candidate right and capturable, BF16x9 seen for what it is, BF16 in heads."""

from __future__ import annotations

import warnings

import pytest
import torch

import baselines
from baselines.emulation import EMULATING, judge
from baselines.gemm import Gemm, Launch, Library, Unsupported
from baselines.provenance import mapped

pytestmark = pytest.mark.gpu

#: T, H, N, padding of the rows: ragged in T and in N's tiles; then a router's shape with padded rows.
SHAPES = [(67, 1032, 136, 0), (64, 4096, 256, 8)]
KINDS = ("fwd", "dgrad", "wgrad")
NAMES = ("torch_fp32", "cublas_fp32", "cublaslt_fp32", "cublas_bf16x9", "cublaslt_bf16x9")
KNOWN_WRONG = "known wrong"

DENSE_NAMES = ("torch_bf16", "cublas_bf16", "cublaslt_bf16")
#: T, in features, out features, heads, padding of the rows or slots: dense, ragged in T, few features, padded
#: rows; then heads inside a wider slot, many heads ragged in T, and one token.
DENSE_SHAPES = [
    (256, 2048, 6144, 0, 0),
    (301, 6144, 576, 0, 0),
    (301, 1032, 32, 0, 8),
    (301, 192, 512, 8, 64),
    (301, 512, 256, 64, 0),
    (1, 512, 256, 4, 0),
]


@pytest.fixture(scope="module")
def libraries() -> dict[str, Library]:
    return {library.name: library for library in baselines.libraries("cuda", 32 * 2**20)}


@pytest.fixture(scope="module")
def dense() -> dict[str, Library]:
    return {library.name: library for library in baselines.libraries("cuda", 32 * 2**20, "dense")}


def check_right(launch: Launch, gemm: Gemm, error, budget: float = 1e-5) -> None:
    """Within the budget; the algorithm known to be wrong may miss it, with a warning as its record."""
    found = error(gemm)
    if KNOWN_WRONG in launch.call.algorithm and not found <= budget:
        warnings.warn(f"{launch.call}: relative error {found:.1e}", stacklevel=2)
    else:
        assert found <= budget, (launch.call, found)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_every_candidate_is_right(libraries, gemm_of, error, name: str, kind: str, shape) -> None:
    *sizes, pad = shape
    gemm = gemm_of(kind, *sizes, device="cuda", pad=pad)
    launches = libraries[name].candidates(gemm)
    assert 1 <= len(launches) <= (8 if libraries[name].searched else 1)
    for launch in launches:
        print(f"{name} {kind} {shape}: {launch.call}, {launch.call.version}, {launch.call.path}")
        assert "libcublas" in launch.call.path
        gemm.out.fill_(float("nan"))
        launch.run()
        check_right(launch, gemm, error)


@pytest.mark.parametrize("f32", [False, True], ids=["bf16", "f32"])
@pytest.mark.parametrize("shape", DENSE_SHAPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", DENSE_NAMES)
def test_every_bf16_candidate_is_right(
    dense, projection_of, error, name: str, kind: str, shape, f32: bool
) -> None:
    *sizes, heads, pad = shape
    gemm = projection_of(kind, *sizes, device="cuda", heads=heads, pad=pad, f32=f32)
    launches = dense[name].candidates(gemm)
    assert 1 <= len(launches) <= (8 if dense[name].searched else 1)
    for launch in launches:
        print(f"{name} {kind} {shape}: {launch.call}, {launch.call.version}, {launch.call.path}")
        assert "libcublas" in launch.call.path
        gemm.out.fill_(float("nan"))
        launch.run()
        check_right(launch, gemm, error, 5e-5 if f32 else 4e-3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", DENSE_NAMES)
def test_bf16_writes_its_heads_and_nothing_beside(dense, projection_of, name: str, kind: str) -> None:
    gemm = projection_of(kind, 301, 192, 256, device="cuda", heads=8, pad=64)
    whole = gemm.out._base
    assert whole is not None
    for launch in dense[name].candidates(gemm):
        whole.fill_(float("nan"))
        launch.run()
        assert int(whole.isnan().sum()) == whole.numel() - gemm.out.numel(), launch.call


@pytest.mark.parametrize("heads", [0, 8])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", DENSE_NAMES)
def test_a_bf16_call_can_be_captured(dense, projection_of, error, name: str, kind: str, heads: int) -> None:
    gemm = projection_of(kind, 301, 192, 512, device="cuda", heads=heads, pad=64)
    side = torch.cuda.Stream()
    for launch in dense[name].candidates(gemm):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            launch.run()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            launch.run()
        gemm.out.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        check_right(launch, gemm, error, 4e-3)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_capture_and_replay_give_the_eager_result(libraries, gemm_of, error, name: str, kind: str) -> None:
    gemm = gemm_of(kind, 67, 1032, 136, device="cuda")
    side = torch.cuda.Stream()
    for launch in libraries[name].candidates(gemm):
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            launch.run()
            eager = gemm.out.clone()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            launch.run()
        gemm.out.fill_(float("nan"))
        graph.replay()
        graph.replay()
        torch.cuda.synchronize()
        check_right(launch, gemm, error)
        assert torch.equal(gemm.out, eager) or KNOWN_WRONG in launch.call.algorithm, launch.call


@pytest.mark.parametrize("name", ["cublas_bf16x9", "cublaslt_bf16x9"])
def test_bf16x9_is_no_rival_where_the_device_does_not_emulate(libraries, gemm_of, name: str) -> None:
    capability = torch.cuda.get_device_capability()
    if capability in EMULATING:
        pytest.skip(f"compute capability {capability} emulates")
    gemm = gemm_of("fwd", 64, 4096, 256, device="cuda")
    outputs = []
    for each in (name, libraries[name].native):
        try:
            libraries[each].candidates(gemm)[0].run()
        except Unsupported as e:
            pytest.skip(f"{each} is unsupported here, hence no rival: {e}")
        outputs.append(gemm.out.clone())
    equal = torch.equal(*outputs)
    print(f"{name}: bits equal to native: {equal}")
    assert judge(capability, (), (), equal)[0] == "fell-back"


def test_cublaslt_refuses_to_search_while_capturing(libraries, gemm_of) -> None:
    gemm = gemm_of("fwd", 64, 256, 64, device="cuda")
    libraries["cublaslt_fp32"].candidates(gemm)
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph, stream=side):
        gemm.out.zero_()  # an empty capture would warn
        with pytest.raises(RuntimeError, match="before the capture begins"):
            libraries["cublaslt_fp32"].candidates(gemm)


def test_one_cublas_is_mapped_for_torch_and_nvmath_alike(libraries, gemm_of) -> None:
    gemm = gemm_of("fwd", 64, 256, 64, device="cuda")
    by_torch, by_cublas, by_lt = (libraries[name].candidates(gemm)[0].call for name in NAMES[:3])
    assert by_torch.path == by_cublas.path
    assert by_torch.version.endswith(by_cublas.version)
    assert "libcublasLt" in by_lt.path
    assert len(mapped("libcublas.so")) == len(mapped("libcublasLt.so")) == 1
