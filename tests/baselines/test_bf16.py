"""The BF16 libraries on recording doubles, and torch's on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

import baselines
from baselines.cublas import cublas_bf16
from baselines.cublaslt import cublaslt_bf16
from baselines.gemm import Gemm, Library, Unsupported
from baselines.torch_blas import torch_bf16

WORKSPACE = 1 << 20
KINDS = ("fwd", "dgrad", "wgrad")
BF16, F32 = 14, 0


def the_library(name: str, fake) -> Library:
    if name == "torch_bf16":
        return torch_bf16("cpu", WORKSPACE)
    if name == "cublas_bf16":
        return cublas_bf16(fake.Runtime(), WORKSPACE, bindings=fake.Cublas())
    return cublaslt_bf16(fake.Runtime(), WORKSPACE, bindings=fake.CublasLt())


@pytest.fixture(params=["torch_bf16", "cublas_bf16", "cublaslt_bf16"])
def library(request: pytest.FixtureRequest, fake) -> Library:
    return the_library(request.param, fake)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("T, pad, heads", [(9, 0, 0), (9, 8, 0), (9, 8, 3), (16, 0, 3), (9, 8, 1), (1, 0, 3)])
@pytest.mark.parametrize("f32", [False, True])
def test_every_candidate_computes_the_product(
    library: Library, projection_of, error, kind: str, T: int, pad: int, heads: int, f32: bool
) -> None:
    gemm = projection_of(kind, T, 24, 16, pad=pad, heads=heads, f32=f32)
    launches = library.candidates(gemm)
    assert len(launches) == (2 if library.searched else 1)
    for launch in launches:
        gemm.out.fill_(float("nan"))
        launch.run()
        assert error(gemm) < (1e-6 if f32 else 4e-3)


def test_nothing_beside_the_output_is_written(library: Library, error) -> None:
    buffer = torch.full((5, 3, 20), float("nan"), dtype=torch.bfloat16)
    a, b = torch.ones(3, 5, 8, dtype=torch.bfloat16), torch.ones(3, 8, 12, dtype=torch.bfloat16)
    gemm = Gemm("fwd", a, b, buffer[..., 4:16].transpose(0, 1))
    library.candidates(gemm)[0].run()
    assert error(gemm) == 0
    assert int(buffer.isnan().sum()) == buffer.numel() - gemm.out.numel()


def test_a_shared_operand_has_batch_stride_zero(library: Library, projection_of, error) -> None:
    gemm = projection_of("fwd", 9, 24, 16, heads=3)
    gemm = replace(gemm, b=gemm.b[:1].expand(3, -1, -1))
    library.candidates(gemm)[0].run()
    assert error(gemm) < 4e-3


@pytest.mark.parametrize("f32, out", [(False, BF16), (True, F32)])
def test_cublas_gets_dtypes_and_computes_in_fp32(fake, projection_of, f32: bool, out: int) -> None:
    bindings = fake.Cublas()
    library = cublas_bf16(fake.Runtime(), WORKSPACE, bindings=bindings)
    gemm = projection_of("fwd", 4, 24, 16, f32=f32)
    (launch,) = library.candidates(gemm)
    launch.run()
    ((_, arguments),) = bindings.named("gemm_ex")
    a, b, c = gemm.b.data_ptr(), gemm.a.data_ptr(), gemm.out.data_ptr()
    assert arguments[1:6] == (1, 0, 16, 4, 24)
    assert arguments[7:13] == (a, BF16, 24, b, BF16, 24)
    assert arguments[14:] == (c, out, 16, 68, -1)
    assert bindings.named("set_math_mode")[0][1][1] == bindings.Math.DEFAULT_MATH
    assert (library.name, library.native, library.searched) == ("cublas_bf16", None, False)
    assert (launch.call.function, launch.call.algorithm) == ("cublasGemmEx", "")


def test_cublas_takes_heads_as_a_strided_batch(fake, projection_of) -> None:
    bindings = fake.Cublas()
    gemm = projection_of("fwd", 4, 24, 16, pad=8, heads=3)
    (launch,) = cublas_bf16(fake.Runtime(), WORKSPACE, bindings=bindings).candidates(gemm)
    launch.run()
    ((_, arguments),) = bindings.named("gemm_strided_batched_ex")
    assert launch.call.function == "cublasGemmStridedBatchedEx"
    assert arguments[8:11] == (BF16, 32, 16 * 32)  # W [3, 16, 24] in rows of 32
    assert arguments[12:15] == (BF16, 3 * 32, 32)  # X [4, 3, 24] in slots of 32
    assert arguments[17:] == (BF16, 3 * 24, 24, 3, 68, -1)  # out [4, 3, 16] in slots of 24


def test_cublaslt_gets_dtypes_and_batches(fake, projection_of) -> None:
    bindings = fake.CublasLt()
    library = cublaslt_bf16(fake.Runtime(), WORKSPACE, bindings=bindings)
    launches = library.candidates(projection_of("fwd", 4, 24, 16, pad=8, heads=3, f32=True))
    assert bindings.named("matmul_desc_create") == [("matmul_desc_create", (68, F32))]
    layouts = [arguments for _, arguments in bindings.named("matrix_layout_create")]
    assert layouts == [(BF16, 24, 16, 32), (BF16, 24, 4, 96), (F32, 16, 4, 72)]
    facts = [facts for facts in bindings.objects.values() if "shape" in facts]
    assert [f["BATCH_COUNT"] for f in facts] == [3, 3, 3]
    assert [f["STRIDED_BATCH_OFFSET"] for f in facts] == [16 * 32, 32, 24]
    assert (library.name, library.native, library.searched) == ("cublaslt_bf16", None, True)
    assert launches[0].call.algorithm == "algo 66, workspace 0"


def test_cublaslt_labels_the_algorithm_that_is_known_to_be_wrong(fake, projection_of) -> None:
    library = cublaslt_bf16(fake.Runtime(), WORKSPACE, bindings=fake.CublasLt([{"ID": 66, "SPLITK_NUM": 5}]))
    (launch,) = library.candidates(projection_of("fwd", 4, 24, 16))
    assert "known wrong up to 13.7.0: split-K 5 does not divide K=24" in launch.call.algorithm


def strided(gemm: Gemm) -> Gemm:
    """The same product of an ``a`` that has no unit stride."""
    return replace(gemm, a=torch.stack([gemm.a, gemm.a], -1)[..., 0])


@pytest.mark.parametrize("name", ["cublas_bf16", "cublaslt_bf16"])
def test_what_blas_cannot_express_is_unsupported(fake, projection_of, name: str) -> None:
    with pytest.raises(Unsupported, match="^a is 9 x 24 with strides"):
        the_library(name, fake).candidates(strided(projection_of("fwd", 9, 24, 16)))


def test_torch_says_where_it_copies(projection_of, error) -> None:
    library = torch_bf16("cpu", WORKSPACE)
    gemm = projection_of("fwd", 9, 24, 16)
    assert str(library.candidates(gemm)[0].call) == "torch.mm"
    assert str(library.candidates(projection_of("fwd", 9, 24, 16, heads=3))[0].call) == "torch.bmm"
    (launch,) = library.candidates(strided(gemm))
    launch.run()
    assert error(gemm) < 4e-3
    assert str(launch.call).startswith("torch.mm[with a copy, as a is 9 x 24 with strides (48, 2)")
    (launch,) = library.candidates(projection_of("wgrad", 9, 24, 16, f32=True))
    assert launch.call.algorithm == "inputs converted to FP32"


@pytest.mark.parametrize(
    "change, message",
    [
        (
            lambda g: replace(g, a=g.a.float()),
            r"^a is torch.float32 .*needs a 2-D or 3-D torch.bfloat16 view",
        ),
        (lambda g: replace(g, b=g.b.half()), r"^b is torch.float16 "),
        (lambda g: replace(g, out=g.out.double()), r"^out is .* torch.bfloat16 or torch.float32 view on cpu"),
        (lambda g: replace(g, out=g.out[None]), r"^out is torch.bfloat16 \[1, 3, 9, 16\]"),
        (lambda g: replace(g, b=g.b[0]), r"shapes do not fit: .* with the same batch in front"),
        (lambda g: replace(g, b=g.b[:2]), r"shapes do not fit"),
        (lambda g: replace(g, out=g.out[:, :8]), r"shapes do not fit"),
        (lambda g: Gemm("fwd", g.a[:0], g.b[:0], g.out[:0]), r"product is empty: M=9, N=16, K=24, batch=0"),
    ],
)
def test_what_does_not_fit_is_unsupported_with_its_reason(
    library: Library, projection_of, change: Callable[[Gemm], Gemm], message: str
) -> None:
    with pytest.raises(Unsupported, match=message):
        library.candidates(change(projection_of("fwd", 9, 24, 16, heads=3)))


def test_fp32_libraries_refuse_bf16_and_batches(projection_of) -> None:
    for library in baselines.libraries("cpu", WORKSPACE):
        with pytest.raises(Unsupported, match=r"needs a 2-D torch.float32 view"):
            library.candidates(projection_of("fwd", 9, 24, 16))
