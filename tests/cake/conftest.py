from __future__ import annotations

import pytest
import torch

import cake


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request):
    """Every contract test runs on the CPU executor and, where there is one, on a GPU."""
    return torch.device(request.param, 0) if request.param == "cuda" else torch.device("cpu")


@pytest.fixture(autouse=True)
def fresh_caches():
    yield
    cake.clear_caches()
