"""Synthetic runs of the dense suite with made-up times, written and judged by the store of real runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.cells import make_cells
from bench.model import Accuracy, ArmFacts, Block, CallFacts, ClockReading, Manifest, RowFacts
from bench.statistics import JUDGEMENT
from bench.store import create_run, finished_rows
from tests.reports.conftest import H200, Outcome, noise, samples_of

#: Layer -> features in, features out, heads.
LAYERS = {
    "o_proj": (16384, 6144, 1),
    "q_a": (6144, 2048, 1),
    "q_b": (2048, 16384, 1),
    "kv_a": (6144, 576, 1),
    "shared_down": (2048, 6144, 1),
    "dense_gate_up": (6144, 12288, 1),
    "dense_down": (12288, 6144, 1),
    "indexer_q": (2048, 4096, 1),
    "indexer_k": (6144, 128, 1),
    "indexer_hw": (6144, 32, 1),
    "mlp_4096": (4096, 12288, 1),
    "mlp_5120": (5120, 17408, 1),
    "mla_k": (192, 512, 64),
    "mla_v": (512, 256, 64),
}
TOKENS = (64, 256, 1024, 4096, 16172, 16231, 16384)
OPS = ("fwd", "dgrad", "wgrad")
CAKE = {"cake": "cake", "control": "cake", "cake_det": "cake"}
LIBRARIES = dict.fromkeys(
    ("torch_bf16", "cublas_bf16", "cublaslt_bf16_first", "cublaslt_bf16_best"), "library"
)
FUNCTIONS = {"torch_bf16": "torch.matmul", "cublas_bf16": "cublasGemmEx"}


@dataclass(frozen=True)
class DenseRow:
    """A row of the dense suite, as its key names it."""

    op: str
    layer: str
    T: int
    out: str = "bf16"
    mode: str = "graph"

    @property
    def key(self) -> str:
        return f"dense-{self.op}-{self.mode}-{self.layer}-T{self.T}" + "-f32" * (self.out == "f32")

    @property
    def flops(self) -> float:
        k, n, heads = LAYERS[self.layer]
        return 2.0 * self.T * k * n * heads


def dense_rows(layers: Sequence[str] = tuple(LAYERS), tokens: Sequence[int] = TOKENS, **fields):
    return [DenseRow(op, layer, t, **fields) for layer in layers for t in tokens for op in OPS]


def dense_us(row: DenseRow, arm: str) -> Outcome:
    """The best library call at up to 800 TFLOP/s, and cake 6 % slower to 15 % faster, best at small T."""
    best = 3.0 + row.flops / 800e6
    gain = float(noise("gain", row.key).normal(1.08 if row.T <= 256 else 1.01, 0.025))
    if arm in CAKE or arm == "cake_prev":
        return best / gain * {"cake_det": 1.004, "cake_prev": 1.01}.get(arm, 1.0)
    if row.layer == "mla_k" and arm == "cublaslt_bf16_best":
        return ("unsupported", "no algorithm for these strides")
    return best * {"torch_bf16": 1.05, "cublas_bf16": 1.03, "cublaslt_bf16_first": 1.02}.get(arm, 1.0)


def build_dense(
    path: Path,
    rows: Sequence[DenseRow],
    arms: dict[str, str],
    outcome: Callable[[DenseRow, str], Outcome] = dense_us,
    *,
    spread: float = 0.002,
    left: int = 0,
    nodes: Sequence[str] = ("node-1",),
    passes: int = 16,
    **manifest,
) -> Path:
    """Write a run directory in passes; with several nodes a merged one, whose passes they share out."""
    run = create_run(path)
    keys = tuple(r.key for r in rows)
    h200 = {k: v for k, v in H200.items() if k not in ("spread", "host_us")}
    fields = {
        **h200,
        "run": path.name,
        "command": "cake-bench run --suite dense --out runs/dense",
        "suite": "dense",
        "started": "2026-01-02T03:04:05Z",
        "finished": None if left else "2026-01-02T03:30:05Z",
        "seconds": None if left else 1560.2,
        "node": ", ".join(nodes),
        "rows": keys,
        "arms": tuple(arms),
        "groups": passes,
        "steps": 3,
        "form": "passes",
        "judgement": JUDGEMENT.as_dict(),
        **manifest,
    }
    if len(nodes) > 1:
        fields["merged"] = tuple(f"run-{node} on {node}" for node in nodes)
    run.write_manifest(m := Manifest(**fields))
    for row in rows[: len(rows) - left]:
        outcomes = {arm: outcome(row, arm) for arm in arms}
        k, n, heads = LAYERS[row.layer]
        shared = passes // len(nodes)
        blocks = [
            Block(run=f"run-{x}", node=x, gpu="0", cublas="13", layout="", groups=shared) for x in nodes
        ]
        facts = RowFacts(
            key=row.key,
            suite="dense",
            op=row.op,
            mode=row.mode,
            T=row.T,
            H=None,
            N=n,
            layer=row.layer,
            K=k,
            out=row.out,
            heads=heads,
            seed=1,
            arms=tuple(_facts(row, a, arms[a], o) for a, o in outcomes.items()),
            clocks=(ClockReading(group=0, sm_mhz=1755, mem_mhz=3201, power_w=690.0, temp_c=61),),
            blocks=tuple(blocks) if len(nodes) > 1 else (),
        )
        tick = m.timer.tick_us or 0.001
        run.write_row(facts, samples_of(row, outcomes, passes, 2 * m.steps, spread, tick))
    run.write_cells(make_cells(m, finished_rows(run, keys)))
    return path


def _facts(row: DenseRow, arm: str, kind: str, outcome: Outcome) -> ArmFacts:
    status, reason = ("ok", "") if isinstance(outcome, float) else outcome
    error = Accuracy(rel_fro=2e-5 if row.out == "f32" else 1.7e-3, max_abs=0.01)
    checked = error if status in ("ok", "inaccurate") else None
    call = CallFacts(kind=row.op, library=arm, function=FUNCTIONS.get(arm, "cublasLtMatmul"))
    plan = CallFacts(kind=row.op, library="cake", function="projection", algorithm="128x256, 1 part")
    return ArmFacts(
        arm=arm,
        kind=kind,
        status=status,
        reason=reason,
        calls=(plan if kind == "cake" else call,) if status == "ok" else (),
        accuracy_before=checked,
        accuracy_after=checked,
        bits="ab" if kind == "cake" else None,
        bits_after="ab" if kind == "cake" else None,
        program="projection_sm90_128x256_kx_bf16_r" if kind == "cake" else None,
        partition="1 part" if kind == "cake" else None,
    )
