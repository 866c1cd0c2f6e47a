"""Run directories on disk: what is written, atomically, and how it is read back.

::

    manifest.json             what ran, where and how
    picks.json                what the library search found, with every candidate's time
    rows/<key>.parquet        raw samples of a finished row, written first
    rows/<key>.json           its facts; a row is finished when this file exists
    rows/<key>.again.*        the same two of a flagged row's re-measurement
    host.json                 host time per call, measured in a child process after the rows
    cells.json                the cells made of all that

A file is written under a temporary name, flushed to disk and renamed, so a killed run leaves whole files or
none.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from pydantic import BaseModel, ValidationError

from bench.model import SAMPLE_COLUMNS, SCHEMA, Cells, Manifest, Picks, RowFacts
from bench.statistics import Array

M = TypeVar("M", bound=BaseModel)

PICKS = "picks.json"
#: Ends the file names of a re-measurement. Row keys have no dot.
AGAIN = ".again"


class StoreError(Exception):
    """A run directory cannot be written or read; the message says what was found and what to do."""


def atomic_write(path: Path, data: bytes) -> None:
    """Write ``path`` whole or not at all: temporary file in the same directory, fsync, rename, fsync of the
    directory.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as f:
            f.write(data)
            f.flush()
            os.fsync(f.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):  # what went wrong first is what the user must hear of
            temporary.unlink(missing_ok=True)
        raise
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


@dataclass(frozen=True)
class RunDir:
    """One run directory. Create one with :func:`create_run`, open one with :func:`open_run`."""

    path: Path

    @property
    def rows_path(self) -> Path:
        """Where the rows' files are."""
        return self.path / "rows"

    def write_manifest(self, manifest: Manifest) -> None:
        """Write ``manifest.json``."""
        self._write_model("manifest.json", manifest)

    def manifest(self) -> Manifest:
        """The run's manifest."""
        return _read_model(self.path / "manifest.json", Manifest)

    def write_row(self, facts: RowFacts, samples: pd.DataFrame, again: bool = False) -> None:
        """Write a finished row, or its re-measurement: samples first, facts last, since the facts file is
        what makes the row finished.
        """
        buffer = io.BytesIO()
        # A fixed order and dtypes: the same samples give the same bytes.
        samples = samples.reindex(columns=list(SAMPLE_COLUMNS)).astype(
            {
                "us": "float64",
                "group": "int32",
                "position": "int32",
                "step": "int32",
                "host_us": "float32",
                "pace_us": "float32",
            }
        )
        samples.to_parquet(buffer, index=False, compression="zstd")
        self.rows_path.mkdir(exist_ok=True)
        stem = _stem(facts.key, again)
        # Facts of an earlier attempt must not stand beside the samples of this one.
        (self.rows_path / f"{stem}.json").unlink(missing_ok=True)
        atomic_write(self.rows_path / f"{stem}.parquet", buffer.getvalue())
        atomic_write(self.rows_path / f"{stem}.json", _dump(facts))

    def finished(self, again: bool = False) -> set[str]:
        """Keys of the rows that are finished, or of those that were measured again."""
        stems = {p.stem for p in self.rows_path.glob("*.json") if not p.name.startswith(".")}
        return {s.removesuffix(AGAIN) for s in stems if s.endswith(AGAIN) == again}

    def row(self, key: str, again: bool = False) -> RowFacts:
        """Facts of a finished row, or of its re-measurement."""
        return _read_model(self.rows_path / f"{_stem(key, again)}.json", RowFacts)

    def samples(self, key: str, again: bool = False) -> pd.DataFrame:
        """Raw samples of a finished row or its re-measurement, columns
        :data:`~bench.model.SAMPLE_COLUMNS`.
        """
        path = self.rows_path / f"{_stem(key, again)}.parquet"
        try:
            return pd.read_parquet(path)
        except (OSError, ValueError) as e:
            raise StoreError(
                f"cannot read samples {path}: {e}; delete {path.stem}.json beside it and "
                f"`cake-bench run --resume {self.path}`"
            ) from e

    def write_cells(self, cells: Cells) -> None:
        """Write ``cells.json``."""
        self._write_model("cells.json", cells)

    def cells(self) -> Cells:
        """The cells of the run; raises :class:`StoreError` where they have not been made yet."""
        return _read_model(self.path / "cells.json", Cells)

    def write_json(self, name: str, data: Any) -> None:
        """Write a further JSON file of the run (``picks.json``, ``host.json``)."""
        atomic_write(self.path / name, (json.dumps(data, indent=1) + "\n").encode())

    def read_json(self, name: str) -> Any | None:
        """A further JSON file of the run, ``None`` where it does not exist."""
        path = self.path / name
        try:
            return json.loads(path.read_text())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as e:
            raise StoreError(f"cannot read {path}: {e}; {self._made_again}") from e

    def read_picks(self) -> Picks:
        """``picks.json``: the searches made so far; none where it does not exist."""
        data = self.read_json(PICKS)
        try:
            return Picks() if data is None else Picks.model_validate(data)
        except ValidationError as e:
            raise StoreError(f"{self.path / PICKS} is damaged: {_first(e)}; {self._made_again}") from e

    @property
    def _made_again(self) -> str:
        return f"delete it to have it made again with `cake-bench run --resume {self.path}`"

    def _write_model(self, name: str, model: BaseModel) -> None:
        atomic_write(self.path / name, _dump(model))


def create_run(path: Path) -> RunDir:
    """A new run directory. Raises :class:`StoreError` if it cannot be written or already holds a run."""
    if (path / "manifest.json").exists():
        raise StoreError(
            f"{path} already holds a run; give another --out, or --resume {path} to go on with it"
        )
    try:
        (path / "rows").mkdir(parents=True, exist_ok=True)
        probe = path / f".probe.{os.getpid()}"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as e:
        raise StoreError(
            f"cannot write to {path}: {e.strerror or e}; give a directory that can be written with --out DIR"
        ) from e
    return RunDir(path)


def open_run(path: Path) -> RunDir:
    """An existing run directory. Raises :class:`StoreError` if there is none or its schema is another
    version's.
    """
    if not (path / "manifest.json").is_file():
        raise StoreError(
            f"{path} is no run directory: it has no manifest.json; give the directory that a run wrote"
        )
    run = RunDir(path)
    run.manifest()
    return run


def sample_arrays(samples: pd.DataFrame) -> dict[str, Array]:
    """Per arm an array ``[groups, steps]`` of us (NaN where void), all arms with the same groups in the same
    order.
    """
    if samples.empty:
        return {}
    groups, steps = int(samples["group"].max()) + 1, int(samples["step"].max()) + 1
    arrays: dict[str, Array] = {}
    for arm, part in samples.groupby("arm", sort=False):
        array = np.full((groups, steps), np.nan)
        array[part["group"].to_numpy(), part["step"].to_numpy()] = part["us"].to_numpy(dtype=float)
        arrays[str(arm)] = array
    return arrays


def finished_rows(run: RunDir, order: Iterable[str]) -> list[tuple[RowFacts, dict[str, Array]]]:
    """The finished rows in the order given, each with its arms' sample arrays."""
    done = run.finished()
    return [(run.row(key), sample_arrays(run.samples(key))) for key in order if key in done]


def rows_again(run: RunDir) -> dict[str, tuple[RowFacts, dict[str, Array]]]:
    """The re-measurements of flagged rows, by key, each as :func:`finished_rows` gives a row."""
    keys = sorted(run.finished(again=True))
    return {key: (run.row(key, again=True), sample_arrays(run.samples(key, again=True))) for key in keys}


def _dump(model: BaseModel) -> bytes:
    return (model.model_dump_json(indent=1) + "\n").encode()


def _read_model(path: Path, model: type[M]) -> M:
    try:
        data = json.loads(path.read_text())
    except FileNotFoundError as e:
        raise StoreError(
            f"{path} does not exist; `cake-bench run --resume {_run_of(path)}` finishes the run"
        ) from e
    except (OSError, ValueError) as e:
        raise StoreError(f"cannot read {path}: {e}; {_unreadable(path)}") from e
    version = data.get("schema_version") if isinstance(data, dict) else None
    if version != SCHEMA:
        raise StoreError(
            f"{path} has schema version {version}, this program reads version {SCHEMA}; "
            "measure again, or use the version of cake-bench that wrote it (see `git` in its manifest)"
        )
    try:
        return model.model_validate(data)
    except ValidationError as e:
        raise StoreError(f"{path} is damaged: {_first(e)}; {_unreadable(path)}") from e


def _first(error: ValidationError) -> str:
    """The first thing a model has against a file, on one line."""
    first = error.errors()[0]
    return f"{'.'.join(str(part) for part in first['loc']) or 'as a whole'}: {first['msg']}"


def _unreadable(path: Path) -> str:
    """What to do about a file that cannot be read."""
    if path.name == "manifest.json":
        return "measure again, or put back the file that the run wrote"
    if path.name == "cells.json":
        return f"`cake-bench report {_run_of(path)}` makes it again"
    return f"delete it, and `cake-bench run --resume {_run_of(path)}` measures the row again"


def _stem(key: str, again: bool) -> str:
    return f"{key}{AGAIN}" if again else key


def _run_of(path: Path) -> Path:
    return path.parent.parent if path.parent.name == "rows" else path.parent
