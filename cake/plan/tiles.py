"""The tiles that there are programs for."""

from __future__ import annotations

_SM90 = ((64, 32), (64, 40), (64, 48), (64, 64), (128, 64), (128, 80), (128, 96), (128, 128))

#: Family and emulation -> rows x columns of a tile. FP16x2's four converting warps have whole columns of B
#: each, in eights.
TILES = {
    ("sm80", "bf16x3"): ((64, 64), (128, 64)),
    ("sm90", "bf16x3"): _SM90,
    ("sm90", "fp16x2"): tuple((m, n) for m, n in _SM90 if n % 32 == 0),
}
