"""The layers of the dense suite: projections of LLM training, as they are in a model's memory. Data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

#: Tokens: small batches, large ones, and ragged ones beside the largest.
TOKENS = (64, 256, 1024, 4096, 16172, 16231, 16384)


@dataclass(frozen=True, order=True)
class Layer:
    """A projection of ``K`` features in to ``N`` out, ``heads`` times over.

    Heads are token-major: X is ``[T, heads, slot]``, of whose slots the first K elements are used, G and the
    output ``[T, heads, N]``. The weight is ``[heads, N, K]`` (``out_in``) or ``[heads, K, N]``.
    """

    name: str
    K: int
    N: int
    heads: int = 1
    slot: int | None = None
    weight: Literal["out_in", "in_out"] = "out_in"


#: Ten of GLM-5.2, two MLPs of others, and the two batched projections of its latent attention.
LAYERS = {
    layer.name: layer
    for layer in (
        Layer("o_proj", 16384, 6144),
        Layer("q_a", 6144, 2048),
        Layer("q_b", 2048, 16384),
        Layer("kv_a", 6144, 576),
        Layer("shared_down", 2048, 6144),
        Layer("dense_gate_up", 6144, 12288),
        Layer("dense_down", 12288, 6144),
        Layer("indexer_q", 2048, 4096),
        Layer("indexer_k", 6144, 128),
        Layer("indexer_hw", 6144, 32),
        Layer("mlp_4096", 4096, 12288),
        Layer("mlp_5120", 5120, 17408),
        Layer("mla_k", 192, 512, heads=64, slot=256, weight="in_out"),
        Layer("mla_v", 512, 256, heads=64),
    )
}


@dataclass(frozen=True, order=True)
class DenseShape:
    """A layer and its number of tokens."""

    layer: Layer
    T: int

    @property
    def K(self) -> int:
        """Features in."""
        return self.layer.K

    @property
    def N(self) -> int:
        """Features out."""
        return self.layer.N

    def __str__(self) -> str:
        own = "" if LAYERS.get(self.layer.name) == self.layer else f"-K{self.K}-N{self.N}"
        return f"{self.layer.name}-T{self.T}{own}"


def dense_shapes(layers: Iterable[str] = LAYERS, tokens: Iterable[int] = TOKENS) -> tuple[DenseShape, ...]:
    """Layers x tokens."""
    return tuple(DenseShape(LAYERS[name], t) for t in tokens for name in layers)
