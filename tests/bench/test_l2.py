from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from bench.l2 import _SOURCE, EXPECTED_RATIO, L2, judge
from bench.model import TimerFacts
from bench.timers import StepTime, make_timer
from bench.timers.attribution import FLUSH

KERNELS = ("bench_l2_write", "bench_l2_read", "bench_l2_warm", "bench_l2_probe")


def test_the_proof_needs_the_expected_ratio() -> None:
    proof = judge([7.0, 7.2, 90.0], [4.0, 4.1, 3.9])
    assert (proof.cold_us, proof.warm_us, proof.expected_ratio) == (7.2, 4.0, EXPECTED_RATIO)
    assert proof.proven
    assert not judge([5.0], [4.0]).proven
    assert judge([5.2], [4.0]).proven


@pytest.mark.parametrize(("cold", "warm"), [([], [4.0]), ([7.0], []), ([], [])])
def test_nothing_is_proven_without_times(cold: list[float], warm: list[float]) -> None:
    assert not judge(cold, warm).proven


def test_a_cpu_is_never_flushed() -> None:
    l2 = L2("cpu")
    l2.flush()
    assert l2.prove(make_timer("cpu", "cpu")) is None


def test_flush_kernels_are_known_by_name_and_the_probe_is_not_one() -> None:
    source = _SOURCE.read_text()
    assert all(f"{name}(Sweep s)" in source for name in KERNELS)
    assert frozenset(KERNELS) - FLUSH == {"bench_l2_probe"}


class Scripted:
    """A timer that gives the probe's times by what ran before it."""

    name = "scripted"

    def __init__(self, log: list[str]) -> None:
        self.log = log

    def facts(self) -> TimerFacts:
        return TimerFacts(name="cupti")

    def visit(
        self,
        launch: Callable[[], None],
        *,
        cold: Callable[[], None],
        untimed: int,
        steps: int,
        expected: tuple[str, ...] | None = None,
    ) -> list[StepTime]:
        self.log.clear()
        cold()
        warmed = self.log == ["bench_l2_warm"]
        launch()
        assert self.log[-1] == "bench_l2_probe"
        return [StepTime(None, "void"), StepTime(4.0 if warmed else 7.0)]

    def close(self) -> None: ...


def test_the_proof_compares_flushed_with_warmed(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    l2 = L2("cpu")
    l2.device = torch.device("cuda", 0)
    l2._sweeps = {
        name: SimpleNamespace(launch=lambda stream, name=name: log.append(name)) for name in KERNELS
    }
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 0, raising=False)
    monkeypatch.setattr(torch.cuda, "device", lambda device: torch.no_grad())
    l2.flush()
    assert log == ["bench_l2_write", "bench_l2_read"]
    proof = l2.prove(Scripted(log))
    assert proof is not None and (proof.cold_us, proof.warm_us, proof.proven) == (7.0, 4.0, True)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a"])
def test_the_kernels_compile_and_keep_their_loads(arch: str) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    from cake.program.compiler import compile_cubin

    cubin = compile_cubin(_SOURCE.read_text(), arch, name="bench_l2")
    assert all(name.encode() in cubin for name in KERNELS)


@pytest.mark.gpu
def test_the_flush_is_proven_on_a_gpu() -> None:
    timer = make_timer("cupti", "cuda")
    proof = L2("cuda").prove(timer)
    assert proof is not None and proof.proven, proof


@pytest.mark.gpu
def test_flushed_steps_time_the_op_alone() -> None:
    timer = make_timer("cupti", "cuda")
    l2 = L2("cuda")
    a, b, out = (torch.randn(1024, 1024, device="cuda") for _ in range(3))

    def mm() -> None:
        torch.mm(a, b, out=out)

    steps = timer.visit(mm, cold=l2.flush, untimed=2, steps=5)
    assert [s.void for s in steps] == [""] * 5
    assert not any("bench_l2" in name for s in steps for name in s.kernels)
