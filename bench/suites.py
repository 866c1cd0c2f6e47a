"""Suites: which rows are measured, and the tensors of a row. Shapes, ops and modes are data."""

from __future__ import annotations

import re
import tomllib
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from baselines.gemm import Gemm
from cake.router import OPS

MODES = ("eager", "graph")


@dataclass(frozen=True, order=True)
class Shape:
    """A router shape: T tokens, H features in, N experts out."""

    T: int
    H: int
    N: int = 256

    def __str__(self) -> str:
        return f"T{self.T}-H{self.H}-N{self.N}"


#: The published router comparison: 9 shapes (FACTS of the field: 256 experts; GLM/DeepSeek-like widths).
ROUTER_SHAPES = tuple(Shape(T, H) for H in (4096, 5120, 6144) for T in (64, 256, 1024))


@dataclass(frozen=True)
class Row:
    """One row of a suite: shape x op x mode. ``key`` names its files and is stable between runs."""

    suite: str
    op: str
    mode: str
    shape: Shape

    @property
    def key(self) -> str:
        """File-safe and unique within a run, e.g. ``router-2fwd+bwd-graph-T64-H4096-N256``."""
        return f"{self.suite}-{self.op}-{self.mode}-{self.shape}"

    @classmethod
    def from_key(cls, key: str) -> Row:
        """The row of a key; ``ValueError`` if the text is none."""
        parts = re.fullmatch(r"(\w+)-([^-]+)-(\w+)-T(\d+)-H(\d+)-N(\d+)", key)
        if parts is None or parts[2] not in OPS or parts[3] not in MODES:
            raise ValueError(f"{key!r} is no row key; needs suite-op-mode-T<n>-H<n>-N<n>")
        return cls(parts[1], parts[2], parts[3], Shape(*(int(parts[i]) for i in (4, 5, 6))))

    @property
    def gemms(self) -> tuple[str, ...]:
        """The kinds of the row's GEMMs, in call order."""
        return OPS[self.op]

    @property
    def seed(self) -> int:
        """The row's seed: by suite and shape alone, so all ops and modes of a shape see the same inputs."""
        return zlib.crc32(f"{self.suite}-{self.shape}".encode())


@dataclass(frozen=True)
class Tensors:
    """A row's FP32 tensors: inputs X[T,H], W[N,H], G[T,N]; outputs out[T,N], dX[T,H], dW[N,H]."""

    X: torch.Tensor
    W: torch.Tensor
    G: torch.Tensor
    out: torch.Tensor
    dX: torch.Tensor
    dW: torch.Tensor

    def output(self, kind: str) -> torch.Tensor:
        """The output tensor of a GEMM kind."""
        return {"fwd": self.out, "dgrad": self.dX, "wgrad": self.dW}[kind]

    def gemm(self, kind: str) -> Gemm:
        """The GEMM of a kind as the product of views that a library sees."""
        a, b = {
            "fwd": (self.X, self.W.t()),
            "dgrad": (self.G, self.W),
            "wgrad": (self.G.t(), self.X),
        }[kind]
        return Gemm(kind, a, b, self.output(kind))


def router_tensors(row: Row, device: torch.device | str) -> Tensors:
    """FP32 inputs from the row's seed, X ~ N(0,1), W ~ 0.02 N, G ~ 0.001 N, and outputs filled with NaN."""
    s = row.shape
    gen = torch.Generator().manual_seed(row.seed)

    def normal(m: int, n: int, scale: float) -> torch.Tensor:
        return (torch.randn(m, n, generator=gen) * scale).to(device)

    def poisoned(m: int, n: int) -> torch.Tensor:
        return torch.full((m, n), float("nan"), device=device)

    return Tensors(
        X=normal(s.T, s.H, 1.0),
        W=normal(s.N, s.H, 0.02),
        G=normal(s.T, s.N, 0.001),
        out=poisoned(s.T, s.N),
        dX=poisoned(s.T, s.H),
        dW=poisoned(s.N, s.H),
    )


def router_rows(
    shapes: Iterable[Shape] = ROUTER_SHAPES, ops: Sequence[str] = tuple(OPS), modes: Sequence[str] = MODES
) -> list[Row]:
    """All rows of the router suite, rows of one shape together (so that they share inputs and searches)."""
    return [Row("router", op, mode, shape) for shape in shapes for mode in modes for op in ops]


def load_shapes(path: Path) -> list[Shape]:
    """Shapes from a TOML file: ``shapes = [{T = 64, H = 4096, N = 256}, ...]`` (N defaults to 256).

    Raises ``ValueError`` naming the entry and what is needed.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise ValueError(f"cannot read shapes from {path}: {e.strerror or e}") from e
    except UnicodeDecodeError as e:
        raise ValueError(f"cannot read shapes from {path}: it is not UTF-8 text") from e
    except tomllib.TOMLDecodeError as e:
        raise ValueError(f"cannot read shapes from {path}: {e}") from e
    entries = data.get("shapes")
    if not isinstance(entries, list) or not entries:
        raise ValueError(f"{path}: needs a non-empty list, shapes = [{{T = 64, H = 4096, N = 256}}]")
    shapes = []
    for i, entry in enumerate(entries):
        ok = isinstance(entry, dict) and {"T", "H"} <= entry.keys() <= {"T", "H", "N"}
        if not ok or not all(type(v) is int and v > 0 for v in entry.values()):
            raise ValueError(
                f"{path}: shapes[{i}] is {entry!r}; needs positive integers T, H and optionally N"
            )
        shape = Shape(**entry)
        if shape.N % 8:
            raise ValueError(f"{path}: shapes[{i}] has N = {shape.N}; N must be a multiple of 8")
        shapes.append(shape)
    return shapes
