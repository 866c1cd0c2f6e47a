"""The libraries on a GPU: every candidate right and capturable, and BF16x9 seen for what it is."""

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


@pytest.fixture(scope="module")
def libraries() -> dict[str, Library]:
    return {library.name: library for library in baselines.libraries("cuda", 32 * 2**20)}


def check_right(launch: Launch, gemm: Gemm, error) -> None:
    """Within 1e-5; the algorithm known to be wrong may miss it, with a warning as its record."""
    found = error(gemm)
    if KNOWN_WRONG in launch.call.algorithm and not found <= 1e-5:
        warnings.warn(f"{launch.call}: relative error {found:.1e}", stacklevel=2)
    else:
        assert found <= 1e-5, launch.call


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
