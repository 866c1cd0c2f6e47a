"""What a selftest found: the records of ``selftest.json``."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from bench.model import SCHEMA, Verdict


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Share(_Model):
    """How many of how many."""

    count: int
    of: int
    share: float | None = None


class Judged(_Model):
    """One arm of one row of one run, over cake."""

    run: str
    row: str
    us: float
    over_us: float
    ratio: float
    ratio_lo: float | None
    ratio_hi: float | None
    verdict: Verdict


class Achieved(_Model):
    """What was planted in a row as it was achieved, in percent, over all groups of all runs; and how often it
    was found.
    """

    row: str
    us: float
    percent: float
    percent_lo: float | None
    percent_hi: float | None
    found: int
    runs: int


class Power(_Model):
    """How often a planted slowdown was found. ``percent_*``: what was achieved, over the rows of 10 us and
    more.
    """

    target_percent: float
    long_rows: Share
    all_rows: Share
    by_kind: dict[str, Share]
    percent_median: float | None
    percent_min: float | None
    percent_max: float | None
    achieved: tuple[Achieved, ...]
    missed: tuple[Judged, ...]


class Bin(_Model):
    """The planted cells, of all arms and runs, whose ratio of medians is a slowdown of ``percent_from`` and
    more but less than ``percent_below`` (``None``: no end), and how many of them were found.

    The samples that bin a cell also judge it, which favours the judge: an interval holds the ratio shown, so
    a slowdown hidden by noise is not missed in its own bin but is one of the small ones, and none is found
    below the minimum effect. That is why the limits are kept or not by what was planted.
    """

    percent_from: float | None
    percent_below: float | None
    long_rows: Share
    all_rows: Share


class Other(_Model):
    """What another level and minimum effect would have given: shares of cells (power: of long rows)."""

    level: float
    min_effect: float
    false_alarm_rate: float | None
    power: dict[str, float | None]


class RunLine(_Model):
    """One run behind the figures."""

    run: str
    started: str = ""
    commit: str = ""
    device: str = ""
    arms: tuple[str, ...] = ()
    rows: int
    finished: bool


class Selftest(_Model):
    """``selftest.json``."""

    schema_version: int = SCHEMA
    simulated: bool
    false_alarm_rate: float | None
    cells: int
    flagged: tuple[Judged, ...]
    power: dict[str, Power]
    by_achieved: tuple[Bin, ...] = ()
    limits: dict[str, float]
    kept: dict[str, bool]
    others: tuple[Other, ...]
    unmeasured: tuple[str, ...] = ()
    config: dict[str, float] = Field(default_factory=dict)
    runs: tuple[RunLine, ...]

    @property
    def exit_code(self) -> int:
        """0: all limits are kept; 1: one is not; 2: something was not measured."""
        missing = self.unmeasured or self.false_alarm_rate is None or not all(r.finished for r in self.runs)
        return 1 if not all(self.kept.values()) else 2 if missing else 0
