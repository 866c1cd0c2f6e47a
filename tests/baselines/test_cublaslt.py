from __future__ import annotations

import gc

import pytest

from baselines.cublaslt import cublaslt
from baselines.gemm import Library, Unsupported

WORKSPACE = 1 << 20
SPLIT = {
    "ID": 66,
    "TILE_ID": 18,
    "STAGES_ID": 11,
    "SPLITK_NUM": 3,
    "REDUCTION_SCHEME": 2,
    "CTA_SWIZZLING": 1,
    "CUSTOM_OPTION": 4,
    "INNER_SHAPE_ID": 0,
    "CLUSTER_SHAPE_ID": 3,
    "workspace": 2048,
}


def native(bindings, runtime) -> Library:
    return cublaslt("cublaslt_fp32", runtime, WORKSPACE, bindings=bindings)


def emulated(bindings, runtime) -> Library:
    return cublaslt("cublaslt_bf16x9", runtime, WORKSPACE, native="cublaslt_fp32", bindings=bindings)


@pytest.mark.parametrize("kind", ["fwd", "dgrad", "wgrad"])
@pytest.mark.parametrize("pad", [0, 5])
def test_every_candidate_computes_the_product(fake, gemm_of, error, kind: str, pad: int) -> None:
    gemm = gemm_of(kind, 9, 24, 16, pad=pad)
    launches = native(fake.CublasLt(), fake.Runtime()).candidates(gemm)
    assert len(launches) == 2
    for launch in launches:
        gemm.out.fill_(float("nan"))
        launch.run()
        assert error(gemm) < 1e-6


def test_native_asks_for_compute_32f(fake, gemm_of) -> None:
    bindings = fake.CublasLt()
    library = native(bindings, fake.Runtime())
    library.candidates(gemm_of("fwd", 4, 8, 16))[0].run()
    assert bindings.named("matmul_desc_create") == [("matmul_desc_create", (68, 0))]
    # fwd on dense tensors: W transposed, X plain; nothing of emulation
    assert bindings.named("matmul")[0][1][1] == {"compute": 68, "TRANSA": 1, "TRANSB": 0}
    layouts = [arguments for _, arguments in bindings.named("matrix_layout_create")]
    assert layouts == [(0, 8, 16, 8), (0, 8, 4, 8), (0, 16, 4, 16)]
    assert (library.native, library.searched) == (None, True)


def test_bf16x9_asks_for_its_compute_type_and_for_eager(fake, gemm_of) -> None:
    bindings = fake.CublasLt()
    library = emulated(bindings, fake.Runtime())
    launches = library.candidates(gemm_of("fwd", 4, 8, 16))
    launches[0].run()
    desc = bindings.named("matmul")[0][1][1]
    assert desc["compute"] == 78
    assert bindings.objects[desc["EMULATION_DESCRIPTOR"]] == {"STRATEGY": 2}
    assert all(launch.call.algorithm.endswith("BF16x9, strategy EAGER") for launch in launches)
    assert library.native == "cublaslt_fp32"


def test_bf16x9_without_a_strategy_says_so(fake, gemm_of) -> None:
    library = emulated(fake.CublasLt(descriptor=False), fake.Runtime())
    call = library.candidates(gemm_of("fwd", 4, 8, 16))[0].call
    assert "BF16x9, strategy not settable (function cublasLtEmulationDescCreate is not found)" in str(call)


def test_the_heuristic_knows_workspace_and_alignment_and_is_asked_once(fake, gemm_of) -> None:
    bindings = fake.CublasLt()
    gemm = gemm_of("fwd", 4, 8, 16, pad=1)
    for launch in native(bindings, fake.Runtime()).candidates(gemm) * 3:
        launch.run()
    ((_, (_, preference, wanted)),) = bindings.named("matmul_algo_get_heuristic")
    assert wanted == 8
    pointers = {"A": gemm.b, "B": gemm.a, "C": gemm.out, "D": gemm.out}
    alignments = {
        x: max(p for p in (4, 8, 16, 32, 64, 128, 256) if t.data_ptr() % p == 0) for x, t in pointers.items()
    }
    expected = {f"MIN_ALIGNMENT_{x}_BYTES": p for x, p in alignments.items()}
    assert preference == {"MAX_WORKSPACE_BYTES": WORKSPACE, **expected}


def test_run_repeats_one_call_on_the_stream_of_the_moment(fake, gemm_of) -> None:
    bindings, runtime = fake.CublasLt(), fake.Runtime()
    _, second = native(bindings, runtime).candidates(gemm_of("fwd", 4, 8, 8))
    bindings.calls.clear()
    for stream in (7, 7, 9):
        runtime.current = stream
        second.run()
    assert {name for name, _ in bindings.calls} == {"matmul"}
    calls = [arguments for _, arguments in bindings.calls]
    assert [arguments[-1] for arguments in calls] == [7, 7, 9]
    assert calls[0][:-1] == calls[1][:-1] == calls[2][:-1]
    (memory,) = runtime.workspaces
    assert calls[0][2:5] == (1, memory.data_ptr(), WORKSPACE)  # the second algorithm, the library's workspace


def test_an_algorithm_is_told_in_words_and_the_wrong_one_is_labelled(fake, gemm_of) -> None:
    library = native(fake.CublasLt([SPLIT, {"ID": 7}]), fake.Runtime())
    first, second = library.candidates(gemm_of("fwd", 4, 8, 8))
    assert first.call.algorithm == (
        "algo 66, tile 128x64, stages 32x5, split-K 3, reduction COMPUTE_TYPE, swizzle 1, option 4, "
        "inner UNDEFINED, cluster 2x1x1, workspace 2048, "
        "known wrong up to 13.7.0: split-K 3 does not divide K=8"
    )
    assert second.call.algorithm == "algo 7, workspace 0"
    divides, _ = library.candidates(gemm_of("fwd", 4, 24, 8))
    assert "known wrong" not in divides.call.algorithm


def test_a_setting_that_the_bindings_do_not_name_is_a_number(fake, gemm_of) -> None:
    library = native(fake.CublasLt([{"ID": 70, "TILE_ID": 999}]), fake.Runtime())
    (launch,) = library.candidates(gemm_of("fwd", 4, 8, 8))
    assert launch.call.algorithm == "algo 70, tile 999, workspace 0"


def test_algorithms_that_failed_or_need_too_much_are_left_out_in_order(fake, gemm_of) -> None:
    offers = [{"ID": 1, "workspace": WORKSPACE + 1}, {"ID": 2, "state": 15}, {"ID": 3}, {"ID": 4}]
    launches = native(fake.CublasLt(offers), fake.Runtime()).candidates(gemm_of("fwd", 4, 8, 8))
    assert [launch.call.algorithm for launch in launches] == ["algo 3, workspace 0", "algo 4, workspace 0"]


def test_no_algorithm_is_unsupported(fake, gemm_of) -> None:
    reason = "cuBLASLt 13.1.0 has no algorithm within 1048576 bytes"
    with pytest.raises(Unsupported, match=reason):
        native(fake.CublasLt([]), fake.Runtime()).candidates(gemm_of("fwd", 4, 8, 8))


def test_the_librarys_own_refusal_is_unsupported(fake, gemm_of) -> None:
    class Refusing(fake.CublasLt):
        def matmul_algo_get_heuristic(self, *arguments: object) -> None:
            raise self.cuBLASLtError("CUBLAS_STATUS_NOT_SUPPORTED")

    with pytest.raises(Unsupported, match=r"has no algorithm for .*NOT_SUPPORTED"):
        native(Refusing(), fake.Runtime()).candidates(gemm_of("fwd", 4, 8, 8))


def test_no_heuristic_query_during_capture(fake, gemm_of) -> None:
    bindings, runtime = fake.CublasLt(), fake.Runtime()
    runtime.in_capture = True
    with pytest.raises(RuntimeError, match="before the capture begins"):
        native(bindings, runtime).candidates(gemm_of("fwd", 4, 8, 8))
    assert bindings.calls == []


def test_descriptors_live_as_long_as_a_launch_and_no_longer(fake, gemm_of) -> None:
    bindings = fake.CublasLt()
    first, second = emulated(bindings, fake.Runtime()).candidates(gemm_of("fwd", 4, 8, 8))
    del first
    gc.collect()
    second.run()
    del second
    gc.collect()
    assert bindings.objects == {}  # handle, descriptors, layouts and preference: all destroyed
