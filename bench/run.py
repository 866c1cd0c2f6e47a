"""Conducts a run: shape by shape and row by row, then host times and cells."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path

from rich.console import Console

from bench import host
from bench.accuracy import budget_of, references
from bench.arms import CAKE, CAKE_FP16X2, CAKE_PREV, CONTROL
from bench.cells import FLAGS, HostTimes, flagged, make_cells
from bench.conduct import measure_row
from bench.environment import shared_gpu
from bench.model import Cell, Cells, Manifest, Picks, TimerFacts
from bench.progress import RunProgress
from bench.resume import continued
from bench.rule import rule_of
from bench.search import Measure, by_timer, events_behind_delay, search_shape, searched
from bench.session import (
    Options,
    Session,
    default_directory,
    make_manifest,
    open_session,
)
from bench.statistics import JUDGEMENT
from bench.store import PICKS, RunDir, StoreError, create_run, finished_rows, open_run, rows_again
from bench.suites import Row, Shape
from bench.tensors import tensors_of
from bench.timers import make_timer
from bench.work import ContextLost

HOST, CELLS = "host.json", "cells.json"
#: The arms of a flagged row's re-measurement.
AGAIN_ARMS = (CAKE, CONTROL, CAKE_PREV)


@dataclass(frozen=True)
class Outcome:
    """What came of a run. ``problems`` are why something was not measured, in words; empty if all was."""

    run: RunDir
    cells: Cells
    problems: tuple[str, ...] = ()

    @property
    def inaccurate(self) -> tuple[str, ...]:
        """The cells of cake's arms that missed the accuracy budget, in words. A previous version that did is
        not this one's fault.
        """
        return _of_cake(self.cells, lambda c: c.status == "inaccurate" and c.arm != CAKE_PREV)

    @property
    def unmeasured(self) -> tuple[str, ...]:
        """All that has no result though it should have one, in words."""

        def failed(c: Cell) -> bool:
            # What the previous version did not have yet cannot be compared, and is no failure; nor is it one
            # that a device has no FP16x2.
            fine = {
                CAKE_PREV: ("ok", "unsupported"),
                CAKE_FP16X2: ("ok", "inaccurate", "unsupported"),
            }.get(c.arm, ("ok", "inaccurate"))
            pending = c.first_verdict in FLAGS and c.again is None
            return c.status not in fine or pending

        return (*self.problems, *_of_cake(self.cells, failed))

    @property
    def exit_code(self) -> int:
        """0 fine, 1 a cake arm is inaccurate, 2 something could not be measured."""
        return 1 if self.inaccurate else 2 if self.unmeasured or self.cells.missing else 0


def _of_cake(cells: Cells, match: Callable[[Cell], bool]) -> tuple[str, ...]:
    """The cells of cake's own arms with such a status, in words: a rival's failure never decides an exit
    code.
    """
    return tuple(
        f"{c.arm} {c.op} {c.mode} "
        + (f"{c.layer} T={c.T}: " if c.layer else f"T={c.T} H={c.H} N={c.N}: ")
        + (c.reason if c.status == "ok" else f"{c.status}: {c.reason}")
        for c in cells.cells
        if match(c) and (c.arm == CONTROL or c.arm.startswith(CAKE))
    )


def conduct(options: Options, console: Console) -> Outcome:
    """Make the run, or go on with one. Finished rows are on disk whatever happens.

    Raises :class:`bench.session.RunRefused`, :class:`bench.store.StoreError`, :class:`bench.arms.ArmsError`,
    :class:`bench.environment.EnvironmentRefused`, :class:`bench.timers.TimerUnavailable` or ``ValueError``
    for what the user can mend.
    """
    began = time.monotonic()
    old = open_run(options.resume) if options.resume else None
    before = old.manifest() if old else None
    session = open_session(options, before)
    try:
        manifest = make_manifest(options, session)
        if old and before:
            run, manifest = old, continued(before, manifest, old.path)
        else:
            run = create_run(options.out or default_directory(manifest))
        # What earlier sessions spent on rows that are kept; what they spent on lost ones is not known.
        spent = sum(run.row(key).seconds for key in run.finished())
        run.write_manifest(manifest)
        for note in manifest.notes:
            console.print(f"note: {note}", soft_wrap=True, highlight=False, markup=False)
        problems = _measure(session, run, console) or _measure_again(session, run, manifest, console)
        manifest = _shared_at_the_end(session, manifest, console)
        problems = problems or _host_times(options, session, run, console)
        facts = session.bench.timer.facts() if session.bench.timer else manifest.timer
        run.write_manifest(_ended(manifest, facts, run, spent + time.monotonic() - began))
    finally:
        session.close()
    return Outcome(run, write_cells(run), tuple(problems))


def cells_of(run: RunDir) -> Cells:
    """A run's cells, made from its files by the rule that it was judged by; nothing is written.

    A rule that this version cannot apply leaves the cells that the run has. Raises
    :class:`bench.store.StoreError` where it has none.
    """
    manifest = run.manifest()
    rule = rule_of(manifest)
    if rule is None and not (run.path / CELLS).is_file():
        raise StoreError(
            f"{run.path} has no cells, and was judged by a rule that this version does not have; to judge a "
            f"copy by this version's: cake-bench report {run.path} --rejudge --out DIR"
        )
    if rule is None:
        return run.cells()
    rows = finished_rows(run, manifest.rows)
    return make_cells(manifest, rows, _read_host(run), rule, rows_again(run))


def write_cells(run: RunDir) -> Cells:
    """Write :func:`cells_of` a run as its ``cells.json``. The rule is recorded where none was."""
    cells, manifest = cells_of(run), run.manifest()
    if not manifest.judgement:
        run.write_manifest(manifest.model_copy(update={"judgement": JUDGEMENT.as_dict()}))
    if rule_of(manifest) is not None:
        run.write_cells(cells)
    return cells


def copied(run: RunDir, out: Path, rejudge: bool) -> RunDir:
    """A copy of a run in another directory, to be judged by this version's rule if asked for.

    Raises :class:`bench.store.StoreError` where a run is there already or nothing can be written.
    """
    if out.resolve().is_relative_to(run.path.resolve()):
        raise StoreError(f"{out} is inside {run.path}, which stays as it is; give a directory elsewhere")
    copy = create_run(out)
    if (out / "rows").is_dir() and any((out / "rows").iterdir()):
        raise StoreError(f"{out} has rows of another run or of a copy that was cut short; remove it first")
    for name in ("rows", PICKS, HOST, CELLS):
        if (source := run.path / name).is_dir():
            shutil.copytree(source, out / name, dirs_exist_ok=True)
        elif source.is_file():
            shutil.copy2(source, out / name)
    manifest = run.manifest()
    rule = {"judgement": JUDGEMENT.as_dict()} if rejudge else {}
    copy.write_manifest(manifest.model_copy(update=rule))
    return copy


def _libraries(run: RunDir, manifest: Manifest) -> dict[str, str]:
    """Version and path of every library that computed something, by name."""
    done = run.finished()
    facts = (run.row(key) for key in manifest.rows if key in done)
    calls = (call for row in facts for arm in row.arms if arm.kind == "library" for call in arm.calls)
    return {call.library: ", ".join(word for word in (call.version, call.path) if word) for call in calls}


def _ended(manifest: Manifest, timer: TimerFacts, run: RunDir, seconds: float) -> Manifest:
    """The manifest of a run that ends now; ``finished`` only if all its rows are."""
    dropped = timer.dropped_records + manifest.timer.dropped_records
    # Some timers see their tick only while the run goes.
    tick = manifest.timer.tick_us or timer.tick_us
    odd = timer.odd_correlations + manifest.timer.odd_correlations
    counted = manifest.timer.model_copy(
        update={"dropped_records": dropped, "odd_correlations": odd, "tick_us": tick}
    )
    update: dict[str, object] = {"timer": counted, "libraries": _libraries(run, manifest)}
    if manifest.finished is None and set(manifest.rows) <= run.finished() and not _flagged(run, manifest):
        update["finished"] = datetime.now(UTC).isoformat(timespec="seconds")
        update["seconds"] = round(seconds, 1)
    return manifest.model_copy(update=update)


def _measure(session: Session, run: RunDir, console: Console) -> list[str]:
    """Measure the rows that are not finished. Returns why it ended early, if it did."""
    finished = run.finished()
    return _rows(session, run, [row for row in session.rows if row.key not in finished], console)


def _measure_again(session: Session, run: RunDir, manifest: Manifest, console: Console) -> list[str]:
    """Measure the rows again that are flagged against the previous version, with :data:`AGAIN_ARMS` alone.

    Returns why it ended early, if it did.
    """
    keys = set(_flagged(run, manifest))
    if not keys:
        return []
    count = f"{len(keys)} row{'' if len(keys) == 1 else 's'}"
    console.print(f"flagged against the previous version: {count}, measured again", highlight=False)
    return _rows(session, run, [row for row in session.rows if row.key in keys], console, again=True)


def _flagged(run: RunDir, manifest: Manifest) -> list[str]:
    """The rows that need a re-measurement and have none."""
    if CAKE_PREV not in manifest.arms:
        return []
    return flagged(manifest, finished_rows(run, manifest.rows), rows_again(run))


def _shared_at_the_end(session: Session, manifest: Manifest, console: Console) -> Manifest:
    """The manifest, flagged if another process has come to the GPU since the run began."""
    if "shared-gpu" in manifest.flags or not shared_gpu(session.bench.device):
        return manifest
    note = "another process was on the GPU when the run ended: every cell is labelled shared-gpu"
    console.print(f"note: {note}", soft_wrap=True, highlight=False)
    return manifest.model_copy(
        update={"flags": (*manifest.flags, "shared-gpu"), "notes": (*manifest.notes, note)}
    )


def _rows(session: Session, run: RunDir, todo: list[Row], console: Console, again: bool = False) -> list[str]:
    """Measure and store rows, or their re-measurements. Returns why it ended early, if it did."""
    picks = run.read_picks()
    resume = f"go on with --resume {run.path}"
    with RunProgress(console, len(todo), sum(_weight(session, row) for row in todo)) as progress:
        try:
            for _, group in groupby(todo, key=lambda row: (row.shape, row.out)):
                for row, measure in _shape(session, run, list(group), picks, progress, again):
                    progress.begin_row(row.key, _weight(session, row))
                    measure()
                picks = run.read_picks()
        except KeyboardInterrupt:
            return [f"interrupted; finished rows are kept: {resume}"]
        except ContextLost as e:
            return [f"{e}; {resume}"]
    return []


def _weight(session: Session, row: Row) -> float:
    """A row's share of the run's time: on a CPU its work; on a GPU steps all take about as long."""
    if session.bench.device.type != "cpu":
        return 1.0
    shape = row.shape
    return shape.T * (shape.H if isinstance(shape, Shape) else shape.K * shape.N) * len(row.gemms)


def _shape(
    session: Session,
    run: RunDir,
    rows: list[Row],
    picks: Picks,
    progress: RunProgress,
    again: bool = False,
) -> Iterator[tuple[Row, Callable[[], None]]]:
    """The rows of one shape, each with what measures and stores it. Tensors live as long as their shape's
    rows.
    """
    bench = session.bench
    tensors = tensors_of(rows[0], bench.device)
    refs = references(tensors)
    kinds = [
        k for k in dict.fromkeys(k for row in rows for k in row.gemms) if searched(picks, rows[0], k) is None
    ]
    if kinds and session.libraries and not again:  # no library call is measured again
        progress.say(f"searching library calls for {rows[0].shape}")
        measure, confirm = _measures(session)
        tick = bench.timer.facts().tick_us if bench.timer else None
        found = search_shape(
            session.libraries,
            rows[0],
            kinds,
            tensors,
            refs,
            measure,
            confirm,
            budget_of(rows[0], bench.budget),
            tick,
        )
        picks = picks.model_copy(update={"searches": (*picks.searches, *found)})
        run.write_json(PICKS, picks.model_dump(mode="json"))
    arms = [arm for arm in session.arms(picks) if not again or arm.name in AGAIN_ARMS]
    for row in rows:

        def work(row: Row = row) -> None:
            run.write_row(*measure_row(bench, row, tensors, refs, arms, progress.advance), again=again)

        yield row, work


def _measures(session: Session) -> tuple[Measure, Measure]:
    """How candidates are timed, and how the best two are confirmed; without a run's timer the first does
    both.
    """
    bench = session.bench
    steps = bench.preset.search_steps
    if bench.device.type == "cpu":
        plain = by_timer(bench.timer or make_timer("cpu", bench.device), bench.cold, steps)
        return plain, plain
    behind = events_behind_delay(bench.cold, steps)
    if bench.timer is None:
        return behind, behind
    return behind, by_timer(bench.timer, bench.cold, steps, untimed=bench.preset.untimed, graph=True)


def _host_times(options: Options, session: Session, run: RunDir, console: Console) -> list[str]:
    """Measure host time per call in a child process, unless the run has it. Returns why there is none.

    On a CPU there is no such figure: a call is over when it returns, so that its latency is the host's time.
    """
    # The replay of a graph of one kernel takes the host the same, whatever it holds.
    rows = [row for row in session.rows if row.suite != "dense" or row.mode == "eager"]
    if session.bench.device.type == "cpu" or run.read_json(HOST) is not None or options.only or not rows:
        return []
    console.print("host time per call, in a process of its own", soft_wrap=True, highlight=False)
    began, problems = time.monotonic(), list[str]()
    try:
        times = host.host_times(
            rows,
            [arm.name for arm in session.arms(Picks())],
            session.bench.device,
            run.path / PICKS,
            options.arms_file,
            problems,
            session.previous.path if session.previous else None,
        )
    except KeyboardInterrupt:
        return [f"interrupted while measuring host times; the rows are kept: go on with --resume {run.path}"]
    except host.HostTimesFailed as e:
        return [f"host times: {e}"]
    entries = [{"row": row, "arm": arm, "us": us} for (row, arm), us in times.items()]
    # An arm without a host time keeps its interval: this is a note, not a run that could not be measured.
    for problem in problems:
        console.print(f"no host time: {problem}", soft_wrap=True, highlight=False, markup=False)
    seconds = round(time.monotonic() - began, 1)
    run.write_json(HOST, {"seconds": seconds, "times": entries, "problems": problems})
    return []


def _read_host(run: RunDir) -> HostTimes:
    data = run.read_json(HOST)
    if data is None:
        return {}
    try:
        return {(entry["row"], entry["arm"]): float(entry["us"]) for entry in data["times"]}
    except (KeyError, TypeError, ValueError) as e:
        raise StoreError(
            f"{run.path / HOST} is damaged ({e!r}); delete it to have it made again with "
            f"`cake-bench run --resume {run.path}`"
        ) from e
