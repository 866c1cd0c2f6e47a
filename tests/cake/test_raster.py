from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cake.plan.raster import Raster


@given(height=st.integers(1, 40), rows=st.integers(1, 40), columns=st.integers(1, 40))
def test_every_tile_once(height, rows, columns):
    raster = Raster(height)
    seen = [raster.locate(t, rows, columns) for t in range(rows * columns)]
    assert sorted(seen) == [(r, c) for r in range(rows) for c in range(columns)]


def test_order():
    assert [Raster(2).locate(t, 3, 2) for t in range(6)] == [(0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (2, 1)]


def test_rejects_zero():
    with pytest.raises(ValueError, match="height=0"):
        Raster(0)
