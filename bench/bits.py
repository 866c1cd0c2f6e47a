"""The bits of an op's outputs, as one short text: equal texts, equal outputs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch

#: Outputs of more bytes are folded where they are: to copy 400 MB to the host and hash them takes 1 s.
FOLDED = 16 << 20
#: Words folded at a time, and odd multipliers (of 64 bits, as int64) that make a word's place count.
CHUNK = 1 << 24
MULTIPLIERS = (0x1E3779B97F4A7C15, 0x3C6EF372FE94F82B)


def digest(outputs: Iterable[torch.Tensor]) -> str:
    """SHA-256 over the bytes of the outputs in order; of a large one over its :func:`fold`."""
    made = hashlib.sha256()
    for out in outputs:
        raw = out.contiguous().view(torch.uint8)
        if raw.numel() > FOLDED:
            made.update(f"{raw.numel()} bytes ".encode())
            raw = fold(raw)
        made.update(raw.cpu().numpy().data)
    return made.hexdigest()


def fold(raw: torch.Tensor) -> torch.Tensor:
    """Bytes (a multiple of 4) as 16 bytes, on their device: two sums of all 32-bit words, each times an odd
    number of its place, modulo 2^64. One word changed changes both; several are missed once in 2^64 or so.
    """
    words = raw.view(-1).view(torch.int32)
    sums = torch.zeros(len(MULTIPLIERS), dtype=torch.int64, device=raw.device)
    for first in range(0, words.numel(), CHUNK):
        part = words[first : first + CHUNK].long()
        place = torch.arange(first, first + part.numel(), device=raw.device)
        for i, multiplier in enumerate(MULTIPLIERS):
            # Of the product the high bits count as well: neighbours' multiples differ in few low ones.
            mixed = place * multiplier
            sums[i] += (part * ((mixed ^ (mixed >> 29)) | 1)).sum()
    return sums.view(torch.uint8)
