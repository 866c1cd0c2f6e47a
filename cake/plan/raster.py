"""Raster: the order in which tiles are handed out. It never changes bits, only which tiles share the L2 at a
time.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Raster:
    """Tiles in column-major order inside bands of ``height`` row tiles; bands from top to bottom."""

    height: int

    def __post_init__(self) -> None:
        if self.height < 1:
            raise ValueError(f"{self.height=}; needs at least 1")

    def locate(self, tile: int, rows: int, columns: int) -> tuple[int, int]:
        """Row and column of the ``tile``-th tile of a ``rows`` x ``columns`` grid (repeated in
        csrc/common/raster.cuh).
        """
        first = tile // (self.height * columns) * self.height
        height = min(self.height, rows - first)
        inside = tile - first * columns
        return first + inside % height, inside // height

    def __str__(self) -> str:
        return f"bands of {self.height}"
