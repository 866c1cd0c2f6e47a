from __future__ import annotations

import gc
import threading

import pytest
import torch

from baselines.cublas import cublas
from baselines.gemm import Gemm, Unsupported

WORKSPACE = 4096


@pytest.mark.parametrize("kind", ["fwd", "dgrad", "wgrad"])
@pytest.mark.parametrize("pad", [0, 5])
def test_the_call_computes_the_product(fake, gemm_of, error, kind: str, pad: int) -> None:
    gemm = gemm_of(kind, 9, 24, 16, pad=pad)
    library = cublas("cublas_fp32", fake.Runtime(), WORKSPACE, bindings=fake.Cublas())
    (launch,) = library.candidates(gemm)
    launch.run()
    assert error(gemm) < 1e-6


def test_native_asks_for_fp32_and_nothing_else(fake, gemm_of) -> None:
    bindings = fake.Cublas()
    library = cublas("cublas_fp32", fake.Runtime(), WORKSPACE, bindings=bindings)
    (launch,) = library.candidates(gemm_of("fwd", 4, 8, 8))
    assert [name for name, _ in bindings.calls] == ["create", "set_pointer_mode", "set_math_mode"]
    assert bindings.named("set_math_mode")[0][1][1] == bindings.Math.DEFAULT_MATH
    assert (library.native, library.searched, launch.call.algorithm) == (None, False, "")
    assert (launch.call.function, launch.call.version) == ("cublasSgemm", "cuBLAS 13.1.0")


def test_bf16x9_asks_for_its_math_mode_and_for_eager(fake, gemm_of) -> None:
    bindings = fake.Cublas()
    library = cublas("cublas_bf16x9", fake.Runtime(), WORKSPACE, native="cublas_fp32", bindings=bindings)
    (launch,) = library.candidates(gemm_of("fwd", 4, 8, 8))
    handle = bindings.named("set_math_mode")[0][1][0]
    assert bindings.named("set_math_mode", "set_emulation_strategy") == [
        ("set_math_mode", (handle, 4)),
        ("set_emulation_strategy", (handle, 2)),
    ]
    assert library.native == "cublas_fp32"
    assert str(launch.call) == "cublasSgemm[FP32_EMULATED_BF16X9_MATH, strategy EAGER]"


def test_a_cublas_without_emulation_is_unsupported(fake, gemm_of) -> None:
    bindings = fake.Cublas(emulates=False)
    library = cublas("cublas_bf16x9", fake.Runtime(), WORKSPACE, native="cublas_fp32", bindings=bindings)
    reason = "cuBLAS 13.1.0 refuses math mode FP32_EMULATED_BF16X9_MATH: .*not found"
    with pytest.raises(Unsupported, match=reason):
        library.candidates(gemm_of("fwd", 4, 8, 8))


def test_run_repeats_one_call_and_sets_the_stream_only_when_it_changes(fake, gemm_of) -> None:
    bindings, runtime = fake.Cublas(), fake.Runtime()
    library = cublas("cublas_fp32", runtime, WORKSPACE, bindings=bindings)
    (first,), (second,) = (library.candidates(gemm_of(kind, 4, 8, 8)) for kind in ("fwd", "dgrad"))
    bindings.calls.clear()
    for stream, launch in ((7, first), (7, first), (7, second), (9, first), (9, second)):
        runtime.current = stream
        launch.run()
    changed = ["set_stream", "set_workspace"]  # the first resets the workspace, so both, in this order
    assert [name for name, _ in bindings.calls] == [*changed, *["sgemm"] * 3, *changed, *["sgemm"] * 2]
    assert [arguments[1] for _, arguments in bindings.named("set_stream")] == [7, 9]
    (memory,) = runtime.workspaces  # one for all calls
    assert {arguments[1:] for _, arguments in bindings.named("set_workspace")} == {
        (memory.data_ptr(), WORKSPACE)
    }
    calls = bindings.named("sgemm")
    assert calls[0] == calls[1] == calls[3]
    assert calls[2] == calls[4] != calls[0]


def test_a_handle_is_never_made_during_a_capture(fake, gemm_of) -> None:
    bindings, runtime = fake.Cublas(), fake.Runtime()
    runtime.in_capture = True
    library = cublas("cublas_fp32", runtime, WORKSPACE, bindings=bindings)
    with pytest.raises(RuntimeError, match="cublas_fp32: ask for candidates before the capture begins"):
        library.candidates(gemm_of("fwd", 4, 8, 8))
    assert not bindings.calls and not runtime.workspaces


def test_each_thread_has_a_handle_of_its_own(fake, gemm_of) -> None:
    bindings, gemm = fake.Cublas(), gemm_of("fwd", 4, 8, 8)
    library = cublas("cublas_fp32", fake.Runtime(), WORKSPACE, bindings=bindings)
    library.candidates(gemm)
    thread = threading.Thread(target=library.candidates, args=(gemm,))
    thread.start()
    thread.join()
    assert len(bindings.named("create")) == 2


def test_a_launch_outlives_its_library_and_then_the_handle_goes(fake, gemm_of) -> None:
    bindings = fake.Cublas()
    library = cublas("cublas_fp32", fake.Runtime(), WORKSPACE, bindings=bindings)
    (launch,) = library.candidates(gemm_of("fwd", 4, 8, 8))
    del library
    gc.collect()
    launch.run()
    assert not bindings.named("destroy")
    del launch
    gc.collect()
    assert len(bindings.named("destroy")) == 1


f32 = torch.empty


@pytest.mark.parametrize(
    "a, b, out, message",
    [
        (f32(4, 8, dtype=torch.float64), f32(8, 8), f32(4, 8), "^a is torch.float64"),
        (f32(4, 8, device="meta"), f32(8, 8), f32(4, 8), "^a is torch.float32 .* on meta"),
        (f32(4, 8), f32(9, 8), f32(4, 8), "shapes do not fit"),
        (f32(4, 8), f32(8, 8), f32(8, 4), "shapes do not fit"),
        (f32(0, 8), f32(8, 8), f32(0, 8), "the product is empty: M=0"),
        (f32(4, 16)[:, ::2], f32(8, 8), f32(4, 8), "^a is 4 x 8 with strides"),
    ],
)
def test_what_does_not_fit_is_unsupported_with_its_reason(fake, a, b, out, message: str) -> None:
    library = cublas("cublas_fp32", fake.Runtime(), WORKSPACE, bindings=fake.Cublas())
    with pytest.raises(Unsupported, match=message):
        library.candidates(Gemm("fwd", a, b, out))
