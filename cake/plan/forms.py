"""The forms of the sm90 family's projection programs: tiles, and how a CTA shares the work. Pure."""

from __future__ import annotations

from dataclasses import dataclass

#: Rows that a warpgroup multiplies at a time, and elements of K a stage.
BLOCK, STEP = 64, 64


@dataclass(frozen=True)
class Form:
    """A tile of ``rows`` x ``columns``: one a warpgroup (``teams`` is 2, and while one multiplies the other
    stores: ``p``, ping-pong), or one for both (``teams`` is 1: ``c``, cooperative).
    """

    teams: int
    rows: int
    columns: int

    def __str__(self) -> str:
        return f"{'cp'[self.teams - 1]}{self.rows}x{self.columns}"

    @property
    def sharing(self) -> int:
        """Warpgroups a tile."""
        return 2 // self.teams

    @property
    def height(self) -> int:
        """Blocks of 64 rows that a warpgroup has of a tile."""
        return self.rows // BLOCK // self.sharing

    def stores(self, dtype: str) -> bool:
        """Whether there are programs that store the dtype: with 192 sums a thread, FP32 stores spill."""
        return dtype == "bf16" or self.height * self.columns // 2 <= 128


#: By name; each is the fastest one of some row of the dense suite (docs/kernels.md).
FORMS = {
    str(form): form
    for form in (
        Form(2, 128, 192),
        Form(2, 128, 128),
        Form(2, 128, 64),
        Form(2, 128, 32),
        Form(2, 64, 192),
        Form(2, 64, 128),
        Form(2, 64, 64),
        Form(2, 64, 32),
        Form(1, 256, 192),
        Form(1, 256, 128),
        Form(1, 256, 64),
        Form(1, 128, 256),
        Form(1, 128, 192),
        Form(1, 128, 128),
        Form(2, 64, 96),
        Form(1, 128, 96),
        Form(1, 128, 144),
        Form(1, 128, 240),
        Form(1, 256, 136),
        Form(1, 256, 160),
        Form(1, 256, 176),
        Form(2, 128, 176),
    )
}
