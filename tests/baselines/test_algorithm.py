from __future__ import annotations

import pytest

from baselines.algorithm import suspicion


@pytest.mark.parametrize(
    "version, splits, k, wrong",
    [
        ("13.7.0", 3, 4096, True),
        ("13.0.0", 5, 6144, True),
        ("13.7.1", 3, 4096, False),
        ("13.10.0", 3, 4096, False),
        ("13.1.0", 4, 4096, False),
        ("13.1.0", 1, 4097, False),
    ],
)
def test_algorithm_66_is_suspect_where_its_splits_do_not_divide_k(version, splits, k, wrong) -> None:
    assert bool(suspicion({"ID": 66, "SPLITK_NUM": splits}, version, k)) is wrong
    assert suspicion({"ID": 67, "SPLITK_NUM": splits}, version, k) == ""
