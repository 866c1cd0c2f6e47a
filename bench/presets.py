"""How much is measured: frozen presets of rows, groups and steps, one set for GPUs and a smaller one for the
CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from bench.layers import TOKENS, DenseShape, Layer, dense_shapes
from bench.suites import (
    MODES,
    OPS,
    ROUTER_SHAPES,
    SUITE_OPS,
    AnyShape,
    Row,
    Shape,
    dense_rows,
    router_rows,
    rows_of,
)


@dataclass(frozen=True)
class Preset:
    """Rows (shapes x ops x modes) and the samples of each: ``groups`` (rounded up to whole rotations of the
    arms) x ``steps`` timed steps, ``untimed`` steps before them at each visit; ``search_steps`` time one
    library candidate. A row has at most ``at_most`` times as many groups: more than once as many where
    cake's intervals stay wide. Once its groups have taken ``row_seconds``, none is added or measured again
    for a slow host (``None``: no limit). In form ``passes``, ``groups`` counts passes, each of two visits of
    an arm. The timed steps of a visit are as many as fit into ``visit_us``, at least one (``None``: all).
    In graph mode so many ``instances`` of an arm take turns (``None``: every group has one of its own).
    """

    name: str
    shapes: tuple[AnyShape, ...]
    ops: tuple[str, ...]
    modes: tuple[str, ...]
    groups: int
    steps: int
    untimed: int
    search_steps: int
    at_most: int = 1
    row_seconds: float | None = None
    form: Literal["groups", "passes"] = "groups"
    outs: tuple[str, ...] = ("",)
    instances: int | None = None
    visit_us: float | None = None

    def within(self, us: float | None) -> Preset:
        """The preset for a row whose op takes about so long, ``None`` where that is not known."""
        if us is None or self.visit_us is None:
            return self
        return replace(self, steps=max(min(self.steps, int(self.visit_us / us)), 1))

    def rows(self) -> list[Row]:
        """The preset's rows, those of one shape together."""
        return rows_of(self.shapes, self.ops, self.modes, self.outs)


_OPS = tuple(OPS)
# Two untimed steps: on an H200 the first step of a visit reads 0.8 % high, the second 0.5 %, from the third
# on it is flat.
GPU_PRESETS = {
    "full": Preset(
        "full",
        ROUTER_SHAPES,
        _OPS,
        MODES,
        groups=15,
        steps=20,
        untimed=2,
        search_steps=10,
        at_most=4,
        row_seconds=4.0,
    ),
    "quick": Preset(
        "quick",
        tuple(Shape(T, 4096) for T in (64, 256, 1024)),
        _OPS,
        MODES,
        groups=8,
        steps=10,
        untimed=2,
        search_steps=8,
    ),
    "smoke": Preset(
        "smoke", (Shape(64, 4096),), ("fwd", "2fwd+bwd"), MODES, groups=3, steps=4, untimed=1, search_steps=4
    ),
}
# A CPU has no launches to capture, so only eager rows exist there, and cake's CPU executor is a reference,
# not a rival: six FP32 products a GEMM. `quick` takes about 100 s on 2 cores of their own.
CPU_PRESETS = {
    "full": Preset("full", ROUTER_SHAPES, _OPS, ("eager",), groups=15, steps=4, untimed=1, search_steps=4),
    "quick": Preset(
        "quick",
        (Shape(64, 4096), Shape(64, 5120), Shape(64, 6144), Shape(256, 4096)),
        _OPS,
        ("eager",),
        groups=6,
        steps=2,
        untimed=1,
        search_steps=3,
    ),
    "smoke": Preset(
        "smoke",
        (Shape(16, 512, 64),),
        ("fwd", "bwd", "2fwd+bwd"),
        ("eager",),
        groups=3,
        steps=2,
        untimed=1,
        search_steps=2,
    ),
}


#: Order-balanced passes: 16 with up to 5 steps a visit, 10 a pass, give about the samples of a full run.
PASSES, PASS_STEPS = 16, 5


#: Of a dense row, the timed steps of a visit take no longer, if that leaves one.
VISIT_US = 3000.0


def _dense(
    name: str,
    shapes: tuple[DenseShape, ...],
    mode: str,
    passes: int,
    *,
    steps: int = 2,
    search_steps: int = 2,
    instances: int | None = None,
) -> Preset:
    """A preset of the dense suite, which is judged by passes."""
    return Preset(
        name,
        shapes,
        SUITE_OPS["dense"],
        (mode,),
        groups=passes,
        steps=steps,
        untimed=1,
        search_steps=search_steps,
        form="passes",
        outs=("bf16",),
        instances=instances,
        visit_us=VISIT_US,
    )


# Seven arms on 294 rows of 10 us to 5 ms, by what steps (0.3 ms and their time), instances (5 ms) and checks
# take on an H200: about 7.7 minutes; with an instance a pass and three steps a visit it would be 12.
DENSE_GPU_PRESETS = {
    "full": _dense("full", dense_shapes(), "graph", PASSES, steps=3, search_steps=5, instances=8),
    "quick": _dense(
        "quick",
        dense_shapes(("q_a", "kv_a", "dense_down", "indexer_k", "mla_k"), (64, 1024, 16384)),
        "graph",
        8,
        steps=3,
        search_steps=5,
    ),
    "smoke": _dense("smoke", dense_shapes(("kv_a", "mla_v"), (64, 301)), "graph", 4, search_steps=3),
}
_SMALL = (DenseShape(Layer("plain", 136, 72), 33), DenseShape(Layer("wide", 64, 256), 64))
DENSE_CPU_PRESETS = {
    "full": _dense("full", dense_shapes(("kv_a", "indexer_k", "indexer_hw"), TOKENS[:2]), "eager", 4),
    "quick": _dense("quick", dense_shapes(("indexer_k", "indexer_hw"), TOKENS[:1]), "eager", 4),
    "smoke": _dense("smoke", _SMALL, "eager", 3),
}


def preset_for(name: str, device: str, suite: str = "router") -> Preset:
    """The preset of this name for a device type (``cuda`` or ``cpu``) and a suite; ``ValueError`` names the
    ones there are.
    """
    tables = {
        "router": (CPU_PRESETS, GPU_PRESETS),
        "dense": (DENSE_CPU_PRESETS, DENSE_GPU_PRESETS),
    }
    table = tables[suite][device != "cpu"]
    if name not in table:
        raise ValueError(f"preset {name!r} is unknown; presets are {', '.join(table)}")
    return table[name]


def in_passes(preset: Preset, count: int | None = None) -> Preset:
    """The preset's rows in order-balanced passes; ``ValueError`` if ``count`` is below 3."""
    count = PASSES if count is None else count
    if count < 3:
        raise ValueError(f"passes is {count}; needs 3 or more, since the interval is over passes")
    return replace(preset, form="passes", groups=count, steps=min(preset.steps, PASS_STEPS), at_most=1)


def left_out(rows: Sequence[Row]) -> list[str]:
    """What of the full suite (router: 9 shapes x 5 ops x 2 modes; dense: 98 shapes x 3 ops) these rows leave
    out, in words, one line a reason.
    """
    full = dense_rows() if rows and rows[0].suite == "dense" else router_rows()
    missing = {row.key for row in full} - {row.key for row in rows}
    if not missing:
        return []
    lines = [f"{len(missing)} of the {len(full)} rows of the full suite are left out"]
    for title, get in (
        ("modes", lambda row: row.mode),
        ("ops", lambda row: row.op),
        ("shapes", lambda row: str(row.shape)),
    ):
        kept = {get(row) for row in rows}
        every = list(dict.fromkeys(get(row) for row in full))
        gone = [word for word in every if word not in kept]
        if gone:
            words = ", ".join(gone) if len(gone) < len(every) else f"all {len(gone)}"
            lines.append(f"left out {title}: {words}")
    return lines
