"""The data model of a run directory: what is written once, read by reports, gate and other programs.

``manifest.json`` (one :class:`Manifest`), ``rows/<key>.parquet`` (raw samples, columns
:data:`SAMPLE_COLUMNS`), ``rows/<key>.json`` (one :class:`RowFacts`) and ``cells.json`` (one :class:`Cells`).
Times are microseconds.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

#: Bumped whenever a file of an older run can no longer be read as it is.
SCHEMA = 1

Status = Literal["ok", "inaccurate", "unsupported", "fell-back", "error"]
Flag = Literal["thermal", "power-cap", "warm", "shared-gpu", "slow-host"]
Verdict = Literal["faster", "slower", "same", "unclear"]


class Sample(NamedTuple):
    """One timed step; ``us`` is None where ``void`` says why. ``host_us``: what the call took on the host, in
    place; ``pace_us``: what the mark and the flush before it took there; where the timer knows.
    """

    arm: str
    group: int
    position: int
    step: int
    us: float | None
    void: str
    host_us: float | None
    pace_us: float | None


#: Columns of raw samples, one line a timed step.
SAMPLE_COLUMNS = Sample._fields


class _Model(BaseModel):
    # Non-finite errors (an output with NaN) must survive a file; JSON has no number for them.
    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="strings")


class CallFacts(_Model):
    """One GEMM's call: who computed it, by which algorithm, with which kernels."""

    kind: str
    library: str
    function: str
    version: str = ""
    path: str = ""
    algorithm: str = ""
    kernels: tuple[str, ...] = ()


class Accuracy(_Model):
    """Errors of one op's outputs against FP64: the worst over its GEMMs. ``top8_*`` only where the op has a
    router's ``fwd``, ``element`` (the largest |error| over 1 + |reference|) only of BF16 outputs.
    """

    rel_fro: float
    max_abs: float
    top8_equal: bool | None = None
    top8_ties: int = 0
    element: float | None = None


class ArmFacts(_Model):
    """What is known of one arm on one row, besides its samples.

    ``bits`` and ``bits_after`` are SHA-256 of the op's outputs before and after timing (cake's arms only);
    ``program_digest`` tells programs of one name apart. Where versions of cake are compared, ``det_bits`` is
    the SHA-256 of one deterministic call, and ``det_program``, ``det_partition`` and ``det_program_digest``
    are that call's: what decides its bits.
    """

    arm: str
    kind: Literal["cake", "library", "user"]
    status: Status
    reason: str = ""
    flags: tuple[Flag, ...] = ()
    calls: tuple[CallFacts, ...] = ()
    kernels: tuple[str, ...] = ()
    accuracy_before: Accuracy | None = None
    accuracy_after: Accuracy | None = None
    host_us: float | None = None
    program: str | None = None
    partition: str | None = None
    program_digest: str | None = None
    bits: str | None = None
    det_bits: str | None = None
    det_program: str | None = None
    det_partition: str | None = None
    det_program_digest: str | None = None
    bits_after: str | None = None
    voided: int = 0
    slow_visits: int = 0


class ClockReading(_Model):
    """NVML around one group: SM and memory clock in MHz, power in W, temperature in C, throttle reasons by
    name.
    """

    group: int
    sm_mhz: int
    mem_mhz: int
    power_w: float
    temp_c: int
    reasons: tuple[str, ...] = ()


class Block(_Model):
    """Whose the next ``groups`` groups of a merged row are: the run they come from, and what it ran on."""

    run: str
    node: str
    gpu: str
    cublas: str
    layout: str
    groups: int


class RowFacts(_Model):
    """Facts of one finished row. ``positions[arm][p]`` counts the groups where the arm ran at position p;
    ``blocks`` says whose the groups are in a merged run, and is empty in any other. ``layer``, ``K`` (in
    features), ``out`` (the output's dtype, ``bf16`` or ``f32``) and ``heads`` are of dense rows, whose ``H``
    is None.
    """

    schema_version: int = SCHEMA
    key: str
    suite: str
    op: str
    mode: str
    T: int
    H: int | None
    N: int
    seed: int
    arms: tuple[ArmFacts, ...]
    positions: dict[str, tuple[int, ...]] = Field(default_factory=dict)
    clocks: tuple[ClockReading, ...] = ()
    repeated_groups: int = 0
    slow_host_groups: int = 0
    started: str = ""
    seconds: float = 0.0
    blocks: tuple[Block, ...] = ()
    layer: str | None = None
    K: int | None = None
    out: str | None = None
    heads: int = 1

    @property
    def units(self) -> tuple[int, ...]:
        """Whose each group is: its GPU, or its run where one GPU made them all; empty where not merged."""
        gpus = [(b.node, b.gpu) for b in self.blocks]
        owners: list[object] = list(gpus) if len(set(gpus)) > 1 else [b.run for b in self.blocks]
        known = list(dict.fromkeys(owners))
        each = zip(self.blocks, owners, strict=True)
        return tuple(known.index(owner) for b, owner in each for _ in range(b.groups))


class Candidate(_Model):
    """One library call that the search tried: its median by the search and, for the best two, by the run's
    timer (us).

    ``verified`` says that it met the accuracy budget against FP64; else ``reason`` says what went wrong.
    """

    library: str
    index: int
    function: str = ""
    algorithm: str = ""
    us: float | None = None
    confirmed_us: float | None = None
    verified: bool = False
    reason: str = ""


class GemmSearch(_Model):
    """All candidates of all libraries for one GEMM; times within ``tick_us`` of each other are equal. A
    projection has ``layer``, ``K`` and ``out``, and no ``H``.
    """

    kind: str
    T: int
    H: int | None
    N: int
    layer: str | None = None
    K: int | None = None
    out: str | None = None
    heads: int = 1
    tick_us: float | None = None
    candidates: tuple[Candidate, ...]


class Picks(_Model):
    """``picks.json``: the searches made so far."""

    schema_version: int = SCHEMA
    searches: tuple[GemmSearch, ...] = ()


class Device(_Model):
    """The device measured. On a CPU ``sms`` is the number of cores used and the CUDA fields are empty."""

    name: str
    arch: str
    sms: int
    memory_gb: float = 0.0
    l2_mb: float = 0.0
    driver: str = ""
    power_limit_w: float | None = None
    uuid: str = ""


class L2Proof(_Model):
    """The memory-bound probe, cold and warm (us), and whether their ratio proves the flush."""

    cold_us: float
    warm_us: float
    expected_ratio: float
    proven: bool


class TimerFacts(_Model):
    """The timer, its measured tick, and its cross-check against events behind a delay kernel.

    ``odd_correlations`` counts graph nodes whose correlation id was wrong: they were placed by their order.
    """

    name: Literal["cupti", "events", "host", "cpu"]
    tick_us: float | None = None
    dropped_records: int = 0
    odd_correlations: int = 0
    check_us: float | None = None
    check_events_us: float | None = None


class Manifest(_Model):
    """What ran, where and how. Written when a run starts; ``finished`` is filled in when it ends.

    ``groups`` are those asked for; a row has up to ``at_most`` times as many, and none is added or measured
    again for a slow host once ``row_seconds`` are over (``None``: no limit). ``instances``: how many times
    each arm was prepared and captured in graph mode, 0: anew for every group; ``reloads``: whether cake's
    programs were loaded anew before each visit in eager mode; ``None`` in runs of before this was recorded.
    ``pause_ms``: for how long the device idled before each timed step, 0: as long as the L2's flush.
    ``most``: a tuner's candidates of a row, at most; ``None``: as many as is usual for the suite.
    ``merged`` describes the runs that a merged one is made of, one line each. ``cake_digest`` is the SHA-256
    of the files of the cake package that ran.
    """

    schema_version: int = SCHEMA
    run: str
    command: str
    suite: str
    preset: str
    started: str
    finished: str | None = None
    seconds: float | None = None
    node: str
    device: Device
    versions: dict[str, str]
    libraries: dict[str, str] = Field(default_factory=dict)
    environment: dict[str, str] = Field(default_factory=dict)
    git: dict[str, str] = Field(default_factory=dict)
    rows: tuple[str, ...]
    arms: tuple[str, ...]
    groups: int
    steps: int
    untimed: int
    at_most: int = 1
    row_seconds: float | None = None
    instances: int | None = None
    reloads: bool | None = None
    timer: TimerFacts
    l2: L2Proof | None = None
    flags: tuple[Flag, ...] = ()
    notes: tuple[str, ...] = ()
    workspace_bytes: int = 0
    budget: float = 2e-6
    layout: str = "one process"
    previous: dict[str, str] = Field(default_factory=dict)
    control_run: bool = False
    form: Literal["groups", "passes"] = "groups"
    l2_state: Literal["cold", "warm"] = "cold"
    pause_ms: float = 0.0
    most: int | None = None
    judgement: dict[str, float] = Field(default_factory=dict)
    merged: tuple[str, ...] = ()
    cake_digest: str = ""

    @property
    def dirty(self) -> bool:
        """Whether the working tree that ran had changes that were not committed."""
        return self.git.get("dirty") == "yes"


class Again(_Model):
    """The re-measurement of a row that was flagged against a version of cake."""

    us: float
    over_us: float
    ratio: float
    ratio_lo: float | None = None
    ratio_hi: float | None = None
    verdict: Verdict


class Cell(_Model):
    """One arm on one row, and its ratio to ``over``.

    ``us`` is the median of all timed steps (of passes the geometric mean of their medians, ``slower_passes``
    of which have ``over`` as the slower; in a merged run the median over GPUs); ``ratio`` is
    ``us(arm) / us(over)`` from unrounded medians, above 1 where ``over`` is the faster.
    ``ratio_lo``/``ratio_hi`` bound it by resampling groups of paired medians;
    ``control_lo``/ ``control_hi`` is the range of the control ratio over the rows of the same GPU, mode and
    op. Arm ``sota`` repeats the fastest ok library cell (``call`` names its arm first), once over each of
    ``cake`` and ``cake_det``. A cell that is not ``ok`` has no time and ``reason`` says why.

    ``bits_equal``: whether the outputs before and after timing have the same bits; for arm ``cake_prev``
    whether its deterministic outputs have those of the working tree's. There ``changed`` names what differs
    from the working tree's (``program``, ``plan``, ``partition``, ``bits``), ``bits_unexplained`` that the
    bits do though neither program nor partition of the deterministic call does, ``bits_unknown`` that they do
    and it is not known whether one of those does, and a verdict other than ``same`` stands only if
    re-measuring the row (``again``) repeats it; ``first_verdict`` is the one before.

    A dense row has a ``layer`` of ``K`` features in and ``N`` out, ``heads`` times over, an output of dtype
    ``out`` (``bf16`` or ``f32``), and no ``H``.
    """

    gpu: str
    arch: str
    sms: int
    node: str
    devices: int
    suite: str
    op: str
    mode: str
    T: int
    H: int | None
    N: int
    arm: str
    call: str
    status: Status
    reason: str = ""
    flags: tuple[Flag, ...] = ()
    us: float | None = None
    over: str
    ratio: float | None = None
    ratio_lo: float | None = None
    ratio_hi: float | None = None
    verdict: Verdict | None = None
    control_lo: float | None = None
    control_hi: float | None = None
    rel_fro: float | None = None
    top8_equal: bool | None = None
    host_us: float | None = None
    program: str | None = None
    partition: str | None = None
    bits_equal: bool | None = None
    changed: tuple[str, ...] = ()
    bits_unexplained: bool = False
    first_verdict: Verdict | None = None
    again: Again | None = None
    slower_passes: int | None = None
    cublas: str = ""
    layout: str = ""
    bits_unknown: bool = False
    layer: str | None = None
    K: int | None = None
    out: str | None = None
    heads: int = 1


class Cells(_Model):
    """``cells.json``: the cells of a run and the rows that have none yet."""

    schema_version: int = SCHEMA
    cells: tuple[Cell, ...]
    missing: tuple[str, ...] = ()


class Tried(_Model):
    """A plan that was measured against the shipped rule's: ``ratio`` is that one's time over its own, above 1
    where this one is the faster.
    """

    name: str
    plan: str
    status: Status
    reason: str = ""
    flags: tuple[Flag, ...] = ()
    us: float | None = None
    ratio: float | None = None
    ratio_lo: float | None = None
    ratio_hi: float | None = None
    verdict: Verdict | None = None


class TunedRow(_Model):
    """A row whose plans were measured, fastest first. ``base`` is the shipped rule's; ``route`` and ``rule``
    are the TOML of what should take its place, empty where nothing is faster; ``arm`` is the route's.
    """

    row: str
    base: Tried
    tried: tuple[Tried, ...]
    arm: str = ""
    route: str = ""
    rule: str = ""


class Tuning(_Model):
    """``tuning.json``: what a tuner found."""

    schema_version: int = SCHEMA
    run: str
    device: Device
    started: str
    rows: tuple[TunedRow, ...]
    suite: str = "router"
    flags: tuple[Flag, ...] = ()
    missing: tuple[str, ...] = ()

    def of(self, *statuses: Status) -> tuple[str, ...]:
        """The plans that ended so, in words."""
        return tuple(
            f"{row.row} {t.name}: {t.status}: {t.reason}"
            for row in self.rows
            for t in (row.base, *row.tried)
            if t.status in statuses
        )

    @property
    def exit_code(self) -> int:
        """0 fine, 1 a plan is inaccurate, 2 something could not be measured."""
        if self.of("inaccurate"):
            return 1
        return 2 if self.missing or self.of("error", "unsupported") else 0


class GateFinding(_Model):
    """Why a gate is not green, for one row: ``row`` is its key, empty for what concerns the whole run.

    ``slower``: confirmed against the previous version; ``inaccurate``: a cake arm missed the accuracy budget;
    ``bits``: output bits changed where they must not; ``missing``: no result of the row; ``unmeasured``: a
    result that does not say whether the row is slower. Times and ratios only where there are any; ``ratio``
    is previous over new.
    """

    kind: Literal["slower", "inaccurate", "bits", "missing", "unmeasured"]
    row: str
    gpu: str = ""
    arm: str = ""
    reason: str = ""
    previous_us: float | None = None
    new_us: float | None = None
    ratio: float | None = None
    ratio_lo: float | None = None
    ratio_hi: float | None = None
    control_lo: float | None = None
    control_hi: float | None = None
    again: Again | None = None


class GateResult(_Model):
    """What a gate says of a run, or of two. ``rows`` are all it looked at, as (GPU, key); ``dismissed`` were
    flagged slower once and not confirmed, ``faster`` are confirmed faster, ``unclear`` could hide the effect
    sought, ``not_compared`` are not in the version before.
    """

    schema_version: int = SCHEMA
    run: str
    against: str
    form: Literal["paired", "across runs"]
    rows: tuple[tuple[str, str], ...]
    findings: tuple[GateFinding, ...] = ()
    faster: tuple[str, ...] = ()
    dismissed: tuple[str, ...] = ()
    unclear: tuple[str, ...] = ()
    not_compared: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def of(self, *kinds: str) -> tuple[GateFinding, ...]:
        """The findings of these kinds."""
        return tuple(f for f in self.findings if f.kind in kinds)

    @property
    def exit_code(self) -> int:
        """1 a row is slower, a cake arm inaccurate, or bits changed; else 2 something is missing or not
        measured; else 0.
        """
        if self.of("slower", "inaccurate", "bits"):
            return 1
        return 2 if self.findings else 0
