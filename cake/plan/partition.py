"""K partitions: how a sum is cut and put together again. This is what decides bits, so it knows nothing of
devices.

A sum over K is cut into aligned segments. Inside a segment, tensor-core sums are promoted to FP32 every
``CHUNK`` elements and added in sequence; segments are added in sequence inside groups, groups in sequence.
Any CTA may hold one segment or one whole group: the order of additions, hence the bits, stay the same.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Elements of K the tensor cores may sum before the promotion into FP32: 64 gives 1.9e-7 relative error, 256
#: 2.5e-7, all of K=6144 up to 3.3e-6 (they truncate).
CHUNK = 64
#: Segments added in sequence before the groups are, by program family: as many as one CTA may hold. Two on
#: Hopper: 16 tiles of 128 x 128 (T = 1024, N = 256) x 8 groups are one wave.
GROUP = {"sm80": 4, "sm90": 2}
MAX_SEGMENTS = 16
#: A shorter segment is not worth a partial sum's way through memory.
MIN_SEGMENT = 256


@dataclass(frozen=True)
class Partition:
    """``k`` cut into segments of ``segment`` elements (a multiple of ``CHUNK``; the last may be shorter)."""

    k: int
    segment: int

    def __post_init__(self) -> None:
        if self.k <= 0 or self.segment <= 0 or self.segment % CHUNK:
            raise ValueError(
                f"{self.k=}, {self.segment=}: need a positive K and a positive multiple of {CHUNK}"
            )
        if self.segments > MAX_SEGMENTS:
            raise ValueError(f"{self.k=}, {self.segment=}: {self.segments} segments, at most {MAX_SEGMENTS}")

    @property
    def segments(self) -> int:
        """Number of segments, 1 to 16."""
        return -(-self.k // self.segment)

    @property
    def bounds(self) -> list[tuple[int, int]]:
        """``(begin, end)`` of every segment."""
        return [(b, min(b + self.segment, self.k)) for b in range(0, self.k, self.segment)]

    def __str__(self) -> str:
        return f"K{self.k}={self.segments}x{self.segment}/{CHUNK}"


def cut(k: int, segments: int) -> Partition:
    """K cut into (at most) that many aligned segments of equal length."""
    chunks = -(-k // CHUNK)
    return Partition(k, -(-chunks // segments) * CHUNK)


def by_k(k: int) -> Partition:
    """The partition of ``fwd`` and ``dgrad``: a function of K alone, so a token's result never depends on its
    batch.
    """
    return cut(k, min(MAX_SEGMENTS, -(-k // MIN_SEGMENT)))


def for_wgrad(t: int, n: int, h: int) -> Partition:
    """The partition of ``wgrad``, whose K is T: :func:`filling`."""
    return filling(t, n, h)


def filling(k: int, m: int, n: int, batch: int = 1, shortest: int = MIN_SEGMENT) -> Partition:
    """K cut only where the output alone gives too few tiles to fill a GPU, into segments of ``shortest`` and
    more.

    A function of the shape, not of the device: 128 tiles of 128 x 128 are taken as enough, 65 too.
    """
    tiles = batch * -(-m // 128) * -(-n // 128)
    wanted = 128 // tiles
    return cut(k, max(1, min(MAX_SEGMENTS, wanted, -(-k // shortest))))


def pinned(k: int, splits: int) -> Partition:
    """The partition a caller asked for: ``splits`` segments, 1 to 16 (fewer where K has not that many
    chunks).
    """
    if not 1 <= splits <= MAX_SEGMENTS:
        raise ValueError(f"splits={splits}; needs 1 to {MAX_SEGMENTS}")
    return cut(k, splits)
