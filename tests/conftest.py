from __future__ import annotations

import pytest
import torch


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests marked ``gpu`` where there is no CUDA device, with that reason."""
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="no CUDA device")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)


@pytest.fixture(autouse=True, scope="session")
def kernel_cache_of_the_test_run(tmp_path_factory: pytest.TempPathFactory):
    """Tests compile into a cache of their own: never into, or out of, the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CAKE_CACHE_DIR", str(tmp_path_factory.mktemp("cake-cache")))
        yield
