from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import cake
from cake.launch import entry
from cake.launch import router as launch
from cake.plan.device import EMULATIONS, families

GPU = [pytest.param(name, marks=pytest.mark.gpu) for name in ("cuda", "cuda-sm80")]


@pytest.fixture(params=["cpu", *GPU])
def device(request, monkeypatch):
    """Every contract test runs on the CPU executor and, where there is one, on a GPU: with the family made
    for it and with the one for all.
    """
    if request.param == "cpu":
        return torch.device("cpu")
    if request.param == "cuda-sm80":
        spec = launch.device_spec(0)
        if spec.family == "sm80":
            pytest.skip(f"{spec.arch} has no family but sm80, which is tested as cuda")
        plain = replace(spec, arch=spec.arch.rstrip("a"))
        for module in (launch, entry):
            monkeypatch.setattr(module, "device_spec", lambda index: plain)
        cake.clear_caches()
    return torch.device("cuda", 0)


@pytest.fixture(params=EMULATIONS)
def emulation(request):
    """Contract tests run with every emulation that their device, else the GPU, has programs for."""
    on_gpu = "device" not in request.fixturenames or request.getfixturevalue("device").type == "cuda"
    if on_gpu and not {*families(arch := launch.device_spec(0).arch)} & {*EMULATIONS[request.param]}:
        pytest.skip(f"{arch} has no {request.param} program")
    return request.param


@pytest.fixture(autouse=True)
def fresh_caches():
    yield
    cake.clear_caches()
