"""Arms: the ways to do a row. An arm is data, ``Arm(name, kind, prepare)``; tensors are arguments, never
closed over.
"""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import cake
from baselines.gemm import Call, Launch, Library, Unsupported
from bench.model import Candidate, Picks
from bench.previous import drop_programs, program_digest
from bench.search import fastest, searched
from bench.suites import Row
from bench.tensors import Tensors
from cake.plan import UnsupportedDevice


class ArmsError(Exception):
    """A user's arm file cannot be used; the message says why."""


@dataclass(frozen=True)
class Prepared:
    """An arm bound to a row's tensors. ``run()`` enqueues the whole op on the current stream (on a CPU: does
    it).

    ``calls`` has one :class:`~baselines.gemm.Call` a GEMM, in the order of ``row.gemms``; ``program`` and
    ``partition`` describe cake's plans, ``digest`` what its programs are made of. ``deterministic()`` binds
    the op with deterministic=True, where its bits are to be compared between versions. ``reload()``, called
    before each visit in eager mode, has the next call load its programs anew.
    """

    run: Callable[[], None]
    calls: tuple[Call, ...] = ()
    program: str | None = None
    partition: str | None = None
    digest: str | None = None
    deterministic: Callable[[], Prepared] | None = None
    reload: Callable[[], None] | None = None


@dataclass(frozen=True)
class Arm:
    """One way to do a row.

    ``prepare(row, tensors)`` returns a :class:`Prepared`, or just a callable; it raises
    :class:`baselines.gemm.Unsupported` where the arm cannot do the row (the reason becomes the cell's).
    ``run()`` must write ``tensors.out``, ``tensors.dX`` and ``tensors.dW`` as the op needs. In graph mode
    the arm is prepared several times, and each ``run`` is captured once and replayed. ``kind`` is ``cake``,
    ``library`` or ``user``. ``native`` names the arm that an emulated arm must differ from.
    """

    name: str
    prepare: Callable[[Row, Tensors], Prepared | Callable[[], None]]
    kind: Literal["cake", "library", "user"] = "user"
    native: str | None = field(default=None)

    def bind(self, row: Row, tensors: Tensors) -> Prepared:
        """``prepare`` with a bare callable made a :class:`Prepared`."""
        prepared = self.prepare(row, tensors)
        if isinstance(prepared, Prepared):
            return prepared
        if not callable(prepared):
            raise TypeError(f"arm {self.name}: prepare returned {prepared!r}; needs a callable or a Prepared")
        return Prepared(prepared)

    def does(self, row: Row) -> bool:
        """Whether the arm exists for this row: ``sequence`` does for ops of two and more GEMMs only, FP32 by
        three products for routers.
        """
        return {SEQUENCE: len(row.gemms) > 1, CAKE_FP16X2: row.suite == "router"}.get(self.name, True)


SEQUENCE = "sequence"
CONTROL = "control"
#: The arm every ratio is over, and the arm that is the user's default.
CAKE, CAKE_DET = "cake", "cake_det"
#: ``cake`` by three FP16 products instead of six BF16 ones, where the device has programs for it.
CAKE_FP16X2 = "cake_fp16x2"
#: What ``cake`` is in another version of the package.
CAKE_PREV = "cake_prev"


def cake_arms(previous: ModuleType | None = None) -> list[Arm]:
    """``cake`` (atomics allowed), ``control`` (the same again), ``cake_det`` (the user's default) and
    ``cake_fp16x2``.

    With another version of the package also ``cake_prev``, its ``cake``; then both give their deterministic
    bits too.
    """
    arms = [
        _cake_arm(CAKE, cake, False, compared=previous is not None),
        _cake_arm(CONTROL, cake, False),
        _cake_arm(CAKE_DET, cake, True),
        _cake_arm(CAKE_FP16X2, cake, False, emulation="fp16x2"),
    ]
    return arms if previous is None else [*arms, _cake_arm(CAKE_PREV, previous, False, compared=True)]


def library_arms(libraries: Sequence[Library], picks: Picks) -> list[Arm]:
    """The arms of the libraries, in their order: ``_first`` and ``_best`` of a searched one, ``sequence`` at
    the end.

    ``picks`` is consulted when an arm is prepared, so arms can be named before the search has run.
    """
    arms = []
    for library in libraries:
        if library.searched:
            arms += [_library_arm(library, picks, "_first"), _library_arm(library, picks, "_best")]
        else:
            arms.append(_library_arm(library, picks, ""))
    return [*arms, _sequence_arm(libraries, picks)]


def load_arms(path: Path, taken: Iterable[str] = ()) -> list[Arm]:
    """Arms from a user's Python file, ``ARMS = [Arm("mine", prepare), ...]``; ``taken`` are names they may
    not have.

    Raises :class:`ArmsError` saying what the file does wrong.
    """
    spec = importlib.util.spec_from_file_location(f"bench_user_arms_{path.stem}", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ArmsError(f"arm file {path} is not a Python file that exists")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as e:  # a script that calls sys.exit() would end the program in silence
        raise ArmsError(f"arm file {path} could not be imported: {type(e).__name__}: {e}") from e
    arms: Any = getattr(module, "ARMS", None)
    if not isinstance(arms, (list, tuple)) or not arms or not all(isinstance(a, Arm) for a in arms):
        raise ArmsError(f"arm file {path}: needs a non-empty list ARMS of bench.arms.Arm, has {arms!r}")
    seen = set(taken)
    for arm in arms:
        if not isinstance(arm.name, str) or not arm.name.strip():
            raise ArmsError(f"arm file {path}: an arm's name is {arm.name!r}; needs text that is not empty")
        if arm.name in seen:
            raise ArmsError(f"arm file {path}: the name {arm.name!r} is taken; names must be unique")
        seen.add(arm.name)
    return list(arms)


#: suite -> cake's public function that prepares an op, and those that do a GEMM, by kind (``bwd``: both
#: gradients).
FUNCTIONS = {
    "router": (
        "prepare_router",
        {
            "fwd": "router_forward",
            "dgrad": "router_dgrad",
            "wgrad": "router_wgrad",
            "bwd": "router_backward",
        },
    ),
    "dense": (
        "prepare_projection",
        {"fwd": "projection_forward", "dgrad": "projection_dgrad", "wgrad": "projection_wgrad"},
    ),
}


def _cake_arm(
    name: str, package: ModuleType, deterministic: bool, compared: bool = False, emulation: str | None = None
) -> Arm:
    """An arm of a version of cake; ``compared``: its deterministic bits are wanted as well. ``emulation`` is
    the package's default where it is not given.
    """
    options: dict[str, Any] = {"deterministic": deterministic}
    if emulation is not None:
        options["emulation"] = emulation

    def prepare(row: Row, t: Tensors) -> Prepared:
        prepares, eager = FUNCTIONS[row.suite]
        if emulation is not None and t.X.device.type == "cpu":
            raise Unsupported(
                f"cake's CPU executor is a reference for checking, and {emulation} of it would add a third "
                "to the time of a run; cake_fp16x2 is measured on GPUs"
            )
        used: dict[str, tuple[str, ...]] = {
            prepares: ("X", "W", "G", "out", "deterministic"),
            "clear_caches": (),
        }
        if row.mode == "eager":
            used |= dict.fromkeys(_eager_functions(eager, row.op), ("out", "deterministic"))
        always = {**options, "deterministic": True}
        if lacking := lacks(package, used):
            raise Unsupported(lacking)
        drop_programs(package)  # every instance has its programs at another place: see conduct._instance
        try:
            prepared = _bind_cake(package, row, t, options)
        except UnsupportedDevice as e:
            raise Unsupported(str(e)) from e
        except (TypeError, ValueError) as e:
            if package is cake:
                raise
            # Its own words for a call it does not take: an op or a dtype that came later.
            raise Unsupported(f"this version says: {type(e).__name__}: {e}") from e
        return replace(
            prepared,
            deterministic=partial(_bind_cake, package, row, t, always) if compared else None,
            reload=partial(drop_programs, package) if row.mode == "eager" else None,
        )

    return Arm(name, prepare, "cake")


def _bind_cake(package: ModuleType, row: Row, t: Tensors, options: Mapping[str, Any]) -> Prepared:
    """A version of cake bound to a row's tensors, with its plans, programs and partitions."""
    prepares, eager = FUNCTIONS[row.suite]
    launch = getattr(package, prepares)(row.op, **operands(row.op, t), **options)
    run = launch if row.mode == "graph" else _eager_cake(package, eager, row.op, t, options)
    return described(package, row, launch, run)


def described(package: ModuleType, row: Row, launch: Any, run: Callable[[], None]) -> Prepared:
    """``run`` with the plans, programs and partitions of a prepared launch of a version of cake."""
    plans = tuple(getattr(launch, "plans", ()))
    texts = [str(p) for p in plans] if len(plans) == len(row.gemms) else [""] * len(row.gemms)
    calls = tuple(
        Call(library="cake", function=FUNCTIONS[row.suite][1][kind], algorithm=text)
        for kind, text in zip(row.gemms, texts, strict=True)
    )
    # Where both gradients are one launch, its program is theirs.
    both = getattr(launch, "backward", None)
    made = (*plans[:-2], both) if both is not None else plans
    keys = list(dict.fromkeys(key for p in made if (key := getattr(p, "program", None)) is not None))
    cuts = [str(cut) for p in plans if (cut := getattr(p, "partition", None)) is not None]
    digests = [program_digest(package, key) for key in keys]
    return Prepared(
        run,
        calls,
        program=" + ".join(map(str, keys)) or None,
        partition=" + ".join(cuts) or None,
        digest="+".join(d[:16] for d in digests if d) if digests and all(digests) else None,
    )


def operands(op: str, t: Tensors) -> dict[str, Any]:
    """The tensors of an op, by the names of ``cake.prepare_router``'s arguments."""
    by_op: dict[str, dict[str, Any]] = {
        "fwd": {"X": t.X, "W": t.W, "out": t.out},
        "dgrad": {"G": t.G, "W": t.W, "out": t.dX},
        "wgrad": {"G": t.G, "X": t.X, "out": t.dW},
        "bwd": {"G": t.G, "X": t.X, "W": t.W, "out": (t.dX, t.dW)},
        "2fwd+bwd": {"G": t.G, "X": t.X, "W": t.W, "out": (t.out, t.dX, t.dW)},
    }
    return by_op[op]


def lacks(package: ModuleType, used: Mapping[str, Sequence[str]]) -> str:
    """What a version of cake lacks of the functions and keywords named, in words; empty if nothing."""
    for name, keywords in used.items():
        function = getattr(package, name, None)
        if function is None:
            return f"this version has no {name}"
        known = inspect.signature(function).parameters
        if any(p.kind is p.VAR_KEYWORD for p in known.values()):
            continue
        for keyword in keywords:
            if keyword not in known:
                return f"{name} of this version has no option {keyword}"
    return ""


def _eager_functions(eager: Mapping[str, str], op: str) -> tuple[str, ...]:
    """The public functions that the calls of an op use."""
    return (eager["fwd"], eager["bwd"]) if op == "2fwd+bwd" else (eager[op],)


def _eager_cake(
    package: ModuleType, eager: Mapping[str, str], op: str, t: Tensors, options: Mapping[str, Any]
) -> Callable[[], None]:
    """The calls a user writes for the op, with ``out=`` given (an allocation is not what is compared)."""
    calls: dict[str, Any] = {kind: getattr(package, name, None) for kind, name in eager.items()}

    def fwd() -> None:
        calls["fwd"](t.X, t.W, out=t.out, **options)

    def dgrad() -> None:
        calls["dgrad"](t.G, t.W, out=t.dX, **options)

    def wgrad() -> None:
        calls["wgrad"](t.G, t.X, out=t.dW, **options)

    def bwd() -> None:
        calls["bwd"](t.G, t.X, t.W, out=(t.dX, t.dW), **options)

    def step() -> None:
        fwd()
        fwd()
        bwd()

    return {"fwd": fwd, "dgrad": dgrad, "wgrad": wgrad, "bwd": bwd, "2fwd+bwd": step}[op]


def _library_arm(library: Library, picks: Picks, which: Literal["", "_first", "_best"]) -> Arm:
    def picked(row: Row, kind: str) -> Candidate | None:
        search = searched(picks, row, kind) if which == "_best" else None
        # No candidate was right: the first one then shows what is wrong, through the same gate as every arm.
        return fastest(search, [library.name]) if search else None

    def prepare(row: Row, tensors: Tensors) -> Prepared:
        launches = {
            kind: _candidate(library, tensors, kind, picked(row, kind)) for kind in dict.fromkeys(row.gemms)
        }
        return _in_order(row, launches)

    native = f"{library.native}{which}" if library.native else None
    return Arm(f"{library.name}{which}", prepare, "library", native)


def _sequence_arm(libraries: Sequence[Library], picks: Picks) -> Arm:
    native = {library.name: library for library in libraries if library.native is None}

    def prepare(row: Row, tensors: Tensors) -> Prepared:
        launches = {}
        for kind in dict.fromkeys(row.gemms):
            search = searched(picks, row, kind)
            best = fastest(search, native) if search else None
            if best is None:
                raise Unsupported(f"no library has a verified call for {kind} of {row.shape}")
            launches[kind] = _candidate(native[best.library], tensors, kind, best)
        return _in_order(row, launches)

    return Arm(SEQUENCE, prepare, "library")


def _candidate(library: Library, tensors: Tensors, kind: str, picked: Candidate | None) -> Launch:
    """The launch that the search picked, or the library's first one. A search may be older than this process:
    the call must still be the one that was verified.
    """
    launches = library.candidates(tensors.gemm(kind))
    if picked is None:
        return launches[0]
    for launch in launches[picked.index : picked.index + 1]:
        if (launch.call.function, launch.call.algorithm) == (picked.function, picked.algorithm):
            return launch
    raise Unsupported(
        f"{library.name} no longer offers what the search picked for {kind}: number {picked.index} of its "
        f"{len(launches)} algorithms is not {picked.algorithm or picked.function}; start a new run"
    )


def _in_order(row: Row, launches: dict[str, Launch]) -> Prepared:
    runs = [launches[kind].run for kind in row.gemms]

    def sequence() -> None:
        for run in runs:
            run()

    return Prepared(runs[0] if len(runs) == 1 else sequence, tuple(launches[kind].call for kind in row.gemms))
