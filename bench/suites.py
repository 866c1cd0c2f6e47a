"""Suites: which rows are measured. Shapes, ops and modes are data."""

from __future__ import annotations

import re
import tomllib
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.layers import LAYERS, DenseShape, Layer, dense_shapes
from bench.model import Cell
from cake.router import OPS

SUITES = ("router", "dense")
MODES = ("eager", "graph")
#: suite -> its ops.
SUITE_OPS: dict[str, tuple[str, ...]] = {"router": tuple(OPS), "dense": ("fwd", "dgrad", "wgrad")}


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


#: The shape of a row, by its suite.
AnyShape = Shape | DenseShape


@dataclass(frozen=True)
class Row:
    """One row of a suite: shape x op x mode, of the dense suite x ``out``, the output's dtype (``bf16`` or
    ``f32``). ``key`` names its files and is stable between runs.
    """

    suite: str
    op: str
    mode: str
    shape: AnyShape
    out: str = ""

    @property
    def key(self) -> str:
        """File-safe and unique within a run, e.g. ``router-2fwd+bwd-graph-T64-H4096-N256`` or
        ``dense-dgrad-graph-q_a-T64``.
        """
        return f"{self.suite}-{self.op}-{self.mode}-{self.shape}" + "-f32" * (self.out == "f32")

    @classmethod
    def from_key(cls, key: str) -> Row:
        """The row of a key; ``ValueError`` if the text is none."""
        row = _router_row(key) or _dense_row(key)
        if row is None or row.op not in SUITE_OPS[row.suite] or row.mode not in MODES:
            raise ValueError(
                f"{key!r} is no row key; needs suite-op-mode-T<n>-H<n>-N<n> or suite-op-mode-layer-T<n>"
            )
        return row

    @property
    def router(self) -> Shape:
        """The shape of a router row. Raises ``TypeError`` for any other."""
        if not isinstance(self.shape, Shape):
            raise TypeError(f"{self.key} is no row of the router suite")
        return self.shape

    @property
    def dense(self) -> DenseShape:
        """The shape of a dense row. Raises ``TypeError`` for any other."""
        if not isinstance(self.shape, DenseShape):
            raise TypeError(f"{self.key} is no row of the dense suite")
        return self.shape

    @property
    def gemms(self) -> tuple[str, ...]:
        """The kinds of the row's GEMMs, in call order."""
        return OPS[self.op]

    @property
    def seed(self) -> int:
        """The row's seed: by suite and shape alone, so all ops and modes of a shape see the same inputs."""
        return zlib.crc32(f"{self.suite}-{self.shape}".encode())


def row_of(cell: Cell) -> Row:
    """The row that a cell is of."""
    if cell.layer is None or cell.K is None:
        return Row(cell.suite, cell.op, cell.mode, Shape(cell.T, cell.H or 0, cell.N))
    layer = LAYERS.get(cell.layer)
    if layer is None or (layer.K, layer.N, layer.heads) != (cell.K, cell.N, cell.heads):
        layer = Layer(cell.layer, cell.K, cell.N, cell.heads)
    return Row(cell.suite, cell.op, cell.mode, DenseShape(layer, cell.T), cell.out or "")


def _router_row(key: str) -> Row | None:
    parts = re.fullmatch(r"router-([^-]+)-(\w+)-T(\d+)-H(\d+)-N(\d+)", key)
    if parts is None:
        return None
    return Row("router", parts[1], parts[2], Shape(*(int(parts[i]) for i in (3, 4, 5))))


def _dense_row(key: str) -> Row | None:
    parts = re.fullmatch(r"dense-(\w+)-(\w+)-(\w+)-T(\d+)(?:-K(\d+)-N(\d+))?(-f32)?", key)
    if parts is None:
        return None
    layer = Layer(parts[3], int(parts[5]), int(parts[6])) if parts[5] else LAYERS.get(parts[3])
    if layer is None:
        return None
    return Row("dense", parts[1], parts[2], DenseShape(layer, int(parts[4])), "f32" if parts[7] else "bf16")


def router_rows(
    shapes: Iterable[Shape] = ROUTER_SHAPES, ops: Sequence[str] = tuple(OPS), modes: Sequence[str] = MODES
) -> list[Row]:
    """All rows of the router suite, rows of one shape together (so that they share inputs and searches)."""
    return [Row("router", op, mode, shape) for shape in shapes for mode in modes for op in ops]


def dense_rows(
    shapes: Iterable[DenseShape] | None = None,
    ops: Sequence[str] = SUITE_OPS["dense"],
    modes: Sequence[str] = ("graph",),
    outs: Sequence[str] = ("bf16",),
) -> list[Row]:
    """Rows of the dense suite, those of one shape together; an FP32 output is a gradient's alone."""
    return [
        Row("dense", op, mode, shape, out)
        for shape in (dense_shapes() if shapes is None else shapes)
        for out in outs
        for mode in modes
        for op in ops
        if out == "bf16" or op != "fwd"
    ]


def rows_of(
    shapes: Iterable[AnyShape], ops: Sequence[str], modes: Sequence[str], outs: Sequence[str]
) -> list[Row]:
    """Rows of shapes, each of its own suite; ``outs`` are for dense ones."""
    rows: list[Row] = []
    for shape in dict.fromkeys(shapes):
        if isinstance(shape, DenseShape):
            rows += dense_rows([shape], ops, modes, outs)
        else:
            rows += router_rows([shape], ops, modes)
    return rows


def load_shapes(path: Path, suite: str = "router") -> list[AnyShape]:
    """Shapes from a TOML file: ``shapes = [{T = 64, H = 4096, N = 256}, ...]`` (N defaults to 256), of the
    dense suite ``shapes = [{layer = "mine", T = 64, K = 4096, N = 12288}, ...]``.

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
        example = EXAMPLES[suite]
        raise ValueError(f"{path}: needs a non-empty list, shapes = [{example}]")
    read = _dense_shape if suite == "dense" else _router_shape
    shapes = [read(f"{path}: shapes[{i}]", entry) for i, entry in enumerate(entries)]
    _refuse_other_sizes(path, shapes)
    return shapes


#: suite -> an entry of a file of shapes.
EXAMPLES = {"router": "{T = 64, H = 4096, N = 256}", "dense": '{layer = "mine", T = 64, K = 4096, N = 12288}'}


def _router_shape(where: str, entry: object) -> AnyShape:
    """An entry of a file of router shapes."""
    ok = isinstance(entry, dict) and {"T", "H"} <= entry.keys() <= {"T", "H", "N"}
    if not (isinstance(entry, dict) and ok and all(type(v) is int and v > 0 for v in entry.values())):
        raise ValueError(f"{where} is {entry!r}; needs positive integers T, H and optionally N")
    shape = Shape(**entry)
    if shape.N % 8:
        raise ValueError(f"{where} has N = {shape.N}; N must be a multiple of 8")
    return shape


def _refuse_other_sizes(path: Path, shapes: Iterable[AnyShape]) -> None:
    """A layer's name stands for one size in a report, and the suite's names for its own."""
    known = dict(LAYERS)
    for shape in shapes:
        if not isinstance(shape, DenseShape):
            continue
        layer = known.setdefault(shape.layer.name, shape.layer)
        if (layer.K, layer.N) != (shape.K, shape.N):
            raise ValueError(
                f"{path}: layer {layer.name!r} is {layer.K}->{layer.N} and {shape.K}->{shape.N}; "
                "give one of them another name"
            )


def _dense_shape(where: str, entry: object) -> AnyShape:
    """An entry of a file: a layer of the suite by its name, or one of the user's own."""
    ok = isinstance(entry, dict) and {"layer", "T"} <= entry.keys() <= {"layer", "T", "K", "N"}
    if not (
        isinstance(entry, dict)
        and ok
        and isinstance(entry["layer"], str)
        and re.fullmatch(r"\w+", entry["layer"])
        and all(type(v) is int and v > 0 for name, v in entry.items() if name != "layer")
        and (("K" in entry) == ("N" in entry))
    ):
        raise ValueError(
            f"{where} is {entry!r}; needs layer (letters, digits and _), a positive T, and K and N both or "
            f"neither, e.g. {EXAMPLES['dense']}"
        )
    name = entry["layer"]
    if "K" not in entry:
        if name not in LAYERS:
            raise ValueError(
                f"{where} names layer {name!r} without K and N; the suite has {', '.join(LAYERS)}"
            )
        return DenseShape(LAYERS[name], entry["T"])
    if entry["N"] % 8:
        raise ValueError(f"{where} has N = {entry['N']}; N must be a multiple of 8")
    same = LAYERS.get(name)
    layer = same if same and (same.K, same.N) == (entry["K"], entry["N"]) else None
    return DenseShape(layer or Layer(name, entry["K"], entry["N"]), entry["T"])
