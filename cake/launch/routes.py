"""The routes in force on each device: found on disk at first use, replaceable while running."""

from __future__ import annotations

import hashlib
import os
import threading
import warnings
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

import torch

from ..plan.device import CPU, DeviceSpec, emulations
from ..plan.planner import ProgramKey
from ..plan.routes import Routes, Target, parse, read
from ..plan.rules import Rule, line
from ..program.compiler import cache_dir
from ..program.registry import program
from . import router

#: Rises whenever a device's routes are replaced; read into the key of every cached plan. What a device was
#: found with is read before its first plan without a promise of bits, and so needs no new one.
generation = 0

#: By torch's index (-1: the CPU) and what the planner sees there.
_tables: dict[tuple[int, DeviceSpec], Routes] = {}
_lock = threading.Lock()

Device = torch.device | str | int | None
Source = Routes | str | os.PathLike[str] | Iterable[Mapping[str, object]] | None


def set_routes(table: Source, *, device: Device = None) -> Routes:
    """Replace a device's routes, seen by the next call with ``deterministic=False``; prepared launches and
    graphs keep their plans.

    ``table`` is the path of a TOML file as ``cake-bench tune`` writes it, its entries as dictionaries, a
    table that :func:`routes` gave, or ``None``: no routes. ``device`` is the current GPU, or the CPU where
    there is none, if not given. The table in force is returned. Raises ``ValueError`` naming what is wrong
    with a route, or that a file is of another device or of other code, and leaves the routes as they were.
    """
    global generation
    at, target = _index(device), target_of(device)
    found, source = _rules(table, target)
    with _lock:
        made = Routes(target.spec.family, found, generation + 1, source)
        _tables[at, target.spec] = made
        # Last: a plan by the old table must not come under the new generation.
        generation = made.generation
    return made


def routes(device: Device = None) -> Routes:
    """The routes in force on a device, an immutable table with its ``generation`` (devices as in
    :func:`set_routes`).
    """
    return of(_index(device), target_of(device).spec)


def of(index: int, spec: DeviceSpec) -> Routes:
    """The routes of a device by its index (-1: the CPU), found on disk the first time."""
    known = _tables.get((index, spec))
    if known is not None:
        return known
    with _lock:
        if (index, spec) not in _tables:
            _tables[index, spec], trouble = _found(index, spec)
            if trouble:
                warnings.warn(trouble, RuntimeWarning, stacklevel=2)
        return _tables[index, spec]


def target_of(device: Device = None) -> Target:
    """What routes measured on a device now would be valid for."""
    index = _index(device)
    return _target(index, CPU if index < 0 else router.device_spec(index))


def path_of(target: Target) -> Path:
    """Where a device's routes are looked for: ``routes/<device key>.toml`` in the cache directory."""
    return cache_dir() / "routes" / f"{target.key}.toml"


def load(path: str | os.PathLike[str], target: Target) -> tuple[Rule, ...]:
    """The routes of a file. Raises ``ValueError`` naming the file and what is wrong with it."""
    try:
        return check(read(Path(path).read_text(encoding="utf-8"), target), target.spec.family)
    except OSError as e:
        raise ValueError(f"cannot read routes from {path}: {e.strerror or e}") from e
    except ValueError as e:
        raise ValueError(f"routes in {path}: {e}") from e


def check(found: tuple[Rule, ...], family: str) -> tuple[Rule, ...]:
    """The routes, each of which has its program. Raises ``ValueError`` naming one that has not."""
    for rule in found:
        assert rule.tile  # parsed as a route, which has one
        for emulation in [rule.emulation] if rule.emulation else emulations(family):
            try:
                program(ProgramKey(family, *rule.tile, True, True, "f32", "f32", emulation))
            except LookupError as e:
                raise ValueError(f"route {line(rule)}: {e.args[0]}") from e
    return found


@cache
def code() -> str:
    """A hash of what decides how fast a plan is: kernels, programs, planner and shipped rules."""
    package, digest = files(__package__.rpartition(".")[0]), hashlib.sha256()
    for part in ("csrc", "plan", "program/registry.py"):
        for name, data in sorted(_contents(package.joinpath(part))):
            digest.update(f"{name}\0{len(data)}\0".encode() + data)
    return digest.hexdigest()[:16]


def _contents(at: Traversable) -> Iterable[tuple[str, bytes]]:
    if at.is_file():
        yield at.name, at.read_bytes()
    elif at.name != "__pycache__":
        for inner in at.iterdir():
            yield from ((f"{at.name}/{name}", data) for name, data in _contents(inner))


def _index(device: Device) -> int:
    if device is None:
        return torch.cuda.current_device() if torch.cuda.is_available() else -1
    chosen = torch.device(device)
    if chosen.type == "cpu":
        return -1
    return torch.cuda.current_device() if chosen.index is None else chosen.index


def _target(index: int, spec: DeviceSpec) -> Target:
    name = "cpu" if index < 0 else torch.cuda.get_device_properties(index).name
    _ = spec.family  # an unsupported device has no routes
    return Target(name, spec, code())


def _rules(table: Source, target: Target) -> tuple[tuple[Rule, ...], str]:
    """The routes that were given, and the file they are from."""
    family = target.spec.family
    if isinstance(table, Routes):
        if table.family != family:
            raise ValueError(f"routes of the {table.family} family; {target.name} has {family}")
        return check(table.rules, family), table.source
    if isinstance(table, str | os.PathLike):
        return load(table, target), str(table)
    return check(parse(table or (), family), family), ""


def _found(index: int, spec: DeviceSpec) -> tuple[Routes, str]:
    """The routes on disk; where they cannot be used there are none, and why and what to do."""
    target = _target(index, spec)
    path = path_of(target)
    try:
        return Routes(spec.family, load(path, target), source=str(path)), ""
    except ValueError as e:
        if isinstance(e.__cause__, FileNotFoundError | NotADirectoryError):
            return Routes(spec.family), ""
        advice = "measure them anew with cake-bench tune --install, or delete the file"
        return Routes(spec.family), f"{e}; the shipped rules are used instead: {advice}"
