"""A kernel template instance: what compiling and launching one needs, and where its source is."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files


@dataclass(frozen=True)
class Box:
    """What one copy brings of an operand to shared memory: ``lines`` lines of ``inner`` elements along its
    unit stride; their 16-byte units trade places in lines of ``swizzle`` bytes (0: they do not).
    """

    inner: int
    lines: int
    swizzle: int


@dataclass(frozen=True)
class Program:
    """A kernel template instance: all that compiling and launching it needs.

    ``tensor_core_ops`` are SASS mnemonics that a compiled program must contain; ``smem_bytes`` is dynamic
    shared memory; ``boxes`` are of the operands A and B, and of a second GEMM's, where they are copied so.
    """

    name: str
    kernel: str
    source: str
    defines: dict[str, int]
    threads: int
    smem_bytes: int
    tensor_core_ops: tuple[str, ...]
    boxes: tuple[Box, ...] = ()


def source(path: str) -> str:
    """A source file of ``csrc``."""
    return files(__package__.rpartition(".")[0]).joinpath("csrc", path).read_text()
