"""Host time per call: how long the caller is held up, measured back to back in a child process without CUPTI.

``python -m bench.host`` reads a job as JSON from its input and writes one JSON line an arm and row. A child
of its own, since CUPTI's tracing, once on in a process, makes every launch slower. An arm that fails costs
its own figure; one that takes the child with it is left out, and a new child does the rest.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import IO, Any

import torch

import baselines
import cake
from baselines.gemm import Unsupported
from bench.arms import Arm, cake_arms, library_arms, load_arms
from bench.capture import capture
from bench.model import Picks
from bench.previous import import_package, without_routes
from bench.suites import Row
from bench.tensors import Tensors, tensors_of

#: Calls between two syncs. A GPU's queue holds about 1,000 launches; 20 calls of 4 GEMMs stay far below, so
#: that the host never waits for it.
BATCH = 20
WARM_CALLS, BATCHES = 10, 7
#: A child that says nothing for so long hangs. Preparing an arm may compile kernels and search a library's
#: calls.
STALL_SECONDS = 180.0
RESTARTS = 5

#: (row key, arm name) -> us a call.
Times = dict[tuple[str, str], float]


class HostTimesFailed(Exception):
    """The child could not measure anything at all; the message has its last words."""


@dataclass
class _State:
    """What the children have said so far."""

    times: Times = field(default_factory=dict)
    done: list[tuple[str, str]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    #: The arm and row under way.
    current: tuple[str, str] | None = None
    fatal: str = ""

    def begin(self) -> None:
        """A new child starts."""
        self.current, self.fatal = None, ""

    def take(self, line: bytes) -> None:
        """One line of a child's output; lines that are no message are dropped (libraries print too)."""
        try:
            message = json.loads(line)
            key = (message["row"], message["arm"]) if "row" in message else None
        except (ValueError, KeyError, TypeError):
            return
        if key is None:
            self.fatal = str(message.get("fatal", ""))
        elif message.keys() & {"us", "error", "unsupported"}:
            self.current = None
            self.done.append(key)
            if "us" in message:
                self.times[key] = float(message["us"])
            elif "error" in message:
                self.problems.append(f"{key[1]} on {key[0]}: {message['error']}")
        else:
            self.current = key


def host_times(
    rows: Sequence[Row],
    arms: Sequence[str],
    device: torch.device | str,
    picks: Path,
    arms_file: Path | None = None,
    problems: list[str] | None = None,
    previous: Path | None = None,
) -> Times:
    """Host us per call of every arm on every row it can do; in graph mode a call is one replay.

    ``picks`` is the run's ``picks.json``, ``arms_file`` the user's arm file, ``previous`` the folder of the
    previous version's package. What could not be measured is
    missing, and said in ``problems`` if given. Raises :class:`HostTimesFailed` where the child cannot even
    start measuring.
    """
    from bench.session import WORKSPACE_BYTES

    job = {
        "rows": [row.key for row in rows],
        "arms": list(arms),
        "device": str(device),
        "picks": str(picks),
        "arms_file": None if arms_file is None else str(arms_file),
        "workspace_bytes": WORKSPACE_BYTES,
        "previous": None if previous is None else str(previous),
    }
    return collect(job, [sys.executable, "-m", "bench.host"], problems)


def collect(
    job: Mapping[str, Any],
    command: Sequence[str],
    problems: list[str] | None = None,
    stall: float = STALL_SECONDS,
) -> Times:
    """Run children on a job until it is done, as :func:`host_times`; ``command`` starts one."""
    state = _State()
    for _ in range(RESTARTS + 1):
        before = len(state.done)
        state.begin()
        code, last_words = _child({**job, "skip": state.done}, command, state, stall)
        if code == 0:
            break
        words = state.fatal or last_words or f"exit code {code}"
        if state.current is not None:
            state.problems.append(f"{state.current[1]} on {state.current[0]}: the process ended: {words}")
            state.done.append(state.current)
        elif len(state.done) == before:
            if not state.done:
                raise HostTimesFailed(f"the measuring process ended: {words}")
            state.problems.append(f"the measuring process ended: {words}")
            break
    else:
        state.problems.append(f"gave up after {RESTARTS} restarts of the measuring process")
    if problems is not None:
        problems += state.problems
    return state.times


def _child(job: Mapping[str, Any], command: Sequence[str], state: _State, stall: float) -> tuple[int, str]:
    """One child's life. Returns its exit code and the end of what it wrote to its standard error."""
    root = str(Path(__file__).resolve().parent.parent)
    path = os.pathsep.join(p for p in (root, os.environ.get("PYTHONPATH", "")) if p)
    with tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**os.environ, "PYTHONPATH": path},
        )
        assert child.stdin is not None and child.stdout is not None
        with child.stdout:
            try:
                with contextlib.suppress(
                    BrokenPipeError
                ):  # it ended early: its exit code and last words say why
                    child.stdin.write(json.dumps(job).encode())
                    child.stdin.close()
                heard = _listen(child.stdout, state, stall)
                if heard:
                    child.wait(timeout=stall)  # its output is closed: it is about to end
            except subprocess.TimeoutExpired:
                heard = False
            finally:
                if child.poll() is None:
                    child.kill()
                code = child.wait()
        return (code, _tail(errors)) if heard else (code or 1, f"nothing heard for {stall:g} s")


def _listen(output: IO[bytes], state: _State, stall: float) -> bool:
    """Read messages until the output ends (true) or nothing comes for ``stall`` seconds (false)."""
    rest = b""
    while select.select([output], [], [], stall)[0]:
        data = os.read(output.fileno(), 1 << 16)
        if not data:
            state.take(rest)
            return True
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            state.take(line)
    return False


def _tail(errors: IO[bytes]) -> str:
    errors.seek(0)
    lines = [line for line in errors.read().decode(errors="replace").splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""


# --- the child ----------------------------------------------------------------------------------------------


def time_calls(launch: Callable[[], None], synchronize: Callable[[], None]) -> float:
    """Host us per call on a GPU: the median over batches of back-to-back calls, the device idle before each
    batch.
    """
    for _ in range(WARM_CALLS):
        launch()
    synchronize()
    batches = []
    for _ in range(BATCHES):
        begin = time.perf_counter_ns()
        for _ in range(BATCH):
            launch()
        batches.append((time.perf_counter_ns() - begin) / BATCH)
        synchronize()
    return statistics.median(batches) / 1e3


def _nothing() -> None:
    """What waiting for a CPU is: its calls are over when they return."""


class _ContextLost(Exception):
    """The GPU is lost to this process; a new one must do the rest."""


def measure(job: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The messages of a job: for each arm and row one that it begins, then one with ``us`` or ``error``."""
    if not job["rows"]:
        return
    device = torch.device(job["device"])
    if device.type == "cuda":
        torch.cuda.set_device(device.index or 0)  # an index: torch refuses a bare "cuda"
    path = Path(job["picks"])
    picks = Picks.model_validate_json(path.read_bytes()) if path.is_file() else Picks()
    # Before the first torch.mm, like in the run itself: torch reads its workspace size once.
    previous = import_package(Path(job["previous"])) if job.get("previous") else None
    if previous:
        without_routes(device, cake, previous)
    own = [
        *cake_arms(previous),
        *library_arms(
            baselines.libraries(device.type, job["workspace_bytes"], Row.from_key(job["rows"][0]).suite),
            picks,
        ),
    ]
    user = load_arms(Path(job["arms_file"]), [a.name for a in own]) if job["arms_file"] else []
    arms = [a for a in (*own, *user) if a.name in set(job["arms"])]
    skip = {tuple(key) for key in job.get("skip", ())}
    for _, group in groupby((Row.from_key(key) for key in job["rows"]), key=lambda row: (row.shape, row.out)):
        rows = list(group)
        tensors = None
        for row in rows:
            for arm in arms:
                key = {"row": row.key, "arm": arm.name}
                if (row.key, arm.name) in skip or not arm.does(row):
                    continue
                if tensors is None:
                    tensors = tensors_of(rows[0], device)
                yield key
                yield {**key, **_figure(arm, row, tensors, device)}


def _figure(arm: Arm, row: Row, tensors: Tensors, device: torch.device) -> dict[str, Any]:
    """One arm on one row: its ``us``, or the ``error`` it raised, or why it is ``unsupported``.

    Raises :class:`_ContextLost`.
    """
    try:
        prepared = arm.bind(row, tensors)
        launch = capture(prepared.run).replay if row.mode == "graph" else prepared.run
        # A run on a CPU has no host times; without a GPU this child is still tested.
        return {"us": time_calls(launch, torch.cuda.synchronize if device.type == "cuda" else _nothing)}
    except Unsupported as e:
        return {"unsupported": str(e)}
    except Exception as e:
        if device.type == "cuda":
            try:
                torch.cuda.synchronize()
            except Exception as gone:
                raise _ContextLost(f"{type(e).__name__}: {e}") from gone
        return {"error": f"{type(e).__name__}: {e}"}


def main() -> int:
    """The child: a job on standard input, messages on standard output, whatever libraries print on standard
    error.
    """
    job = json.loads(sys.stdin.read())
    with os.fdopen(os.dup(1), "w", buffering=1) as messages:
        os.dup2(2, 1)
        gc.disable()
        try:
            for message in measure(job):
                print(json.dumps(message), file=messages, flush=True)
        except Exception as e:
            print(json.dumps({"fatal": f"{type(e).__name__}: {e}"}), file=messages, flush=True)
            return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
