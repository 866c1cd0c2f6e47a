"""The library search: which of a library's calls is fastest for a GEMM, after all of them were verified.

A rival is the best call a user could make, so every candidate of every library is verified against FP64 (some
library versions return wrong split-K results), timed cold, and the best two of each library are timed again
by the run's timer.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence

import torch

from baselines.gemm import Gemm, Launch, Library, Unsupported
from bench.accuracy import BUDGET, References, relative_error
from bench.capture import capture
from bench.model import Candidate, GemmSearch, Picks
from bench.statistics import resolved
from bench.suites import Row
from bench.tensors import Tensors, shape_of
from bench.timers import Timer

Measure = Callable[[Callable[[], None]], float | None]

#: About 1 ms of an H200's clock: longer than the host needs to queue the first replays behind it.
DELAY_CYCLES = 2_000_000
#: How many of a library's candidates the run's timer confirms.
CONFIRMED = 2


def events_behind_delay(cold: Callable[[], None], steps: int) -> Measure:
    """A measure of a launch on a GPU: events around graph replays, queued behind a delay kernel.

    Plain event pairs have host gaps inside and lie under 40 us; behind the delay the queue never runs dry.
    """

    def measure(run: Callable[[], None]) -> float | None:
        graph = capture(run)
        pairs = [
            (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(steps)
        ]
        graph.replay()
        torch.cuda.synchronize()
        torch.cuda._sleep(DELAY_CYCLES)
        for begin, end in pairs:
            cold()
            begin.record()
            graph.replay()
            end.record()
        torch.cuda.synchronize()
        return 1e3 * statistics.median(begin.elapsed_time(end) for begin, end in pairs)

    return measure


def by_timer(
    timer: Timer, cold: Callable[[], None], steps: int, untimed: int = 1, graph: bool = False
) -> Measure:
    """A measure of a launch by the run's own timer, as a graph replay where asked."""

    def measure(run: Callable[[], None]) -> float | None:
        launch = capture(run).replay if graph else run
        times = [
            t.us for t in timer.visit(launch, cold=cold, untimed=untimed, steps=steps) if t.us is not None
        ]
        return statistics.median(times) if times else None

    return measure


def search_gemm(
    libraries: Sequence[Library],
    gemm: Gemm,
    reference: torch.Tensor,
    measure: Measure,
    confirm: Measure,
    budget: float = BUDGET,
) -> tuple[Candidate, ...]:
    """All candidates of the libraries for one GEMM: verified, measured, the best two of each library
    confirmed.

    A candidate that cannot run, or is wrong, is kept with its reason. Confirming is left out where a library
    has one candidate only and the measures are the same.
    """
    found: list[Candidate] = []
    for library in libraries:
        try:
            launches = library.candidates(gemm)
        except Unsupported as e:
            found.append(Candidate(library=library.name, index=0, reason=str(e)))
            continue
        tried = [
            _try(library.name, i, launch, gemm, reference, measure, budget)
            for i, launch in enumerate(launches)
        ]
        timed = sorted((c for c in tried if c.us is not None), key=lambda c: c.us or 0.0)[:CONFIRMED]
        for candidate in timed:
            if confirm is measure:
                update: dict[str, object] = {"confirmed_us": candidate.us}
            else:
                update = _confirm(confirm, launches[candidate.index])
            tried[candidate.index] = candidate.model_copy(update=update)
        found += tried
    return tuple(found)


def search_shape(
    libraries: Sequence[Library],
    row: Row,
    kinds: Iterable[str],
    tensors: Tensors,
    refs: References,
    measure: Measure,
    confirm: Measure,
    budget: float = BUDGET,
    tick_us: float | None = None,
) -> list[GemmSearch]:
    """The searches of a shape's GEMMs, one a kind; ``tick_us`` is that of the timer that confirms."""
    return [
        GemmSearch.model_validate(
            {
                "kind": kind,
                **shape_of(row),
                "tick_us": tick_us,
                "candidates": search_gemm(
                    libraries, tensors.gemm(kind), refs.by_kind[kind], measure, confirm, budget
                ),
            }
        )
        for kind in kinds
    ]


def searched(picks: Picks, row: Row, kind: str) -> GemmSearch | None:
    """The search of a GEMM of a row's shape, ``None`` if it has not been made."""
    wanted = {"kind": kind, **shape_of(row)}
    for search in picks.searches:
        if all(getattr(search, name) == value for name, value in wanted.items()):
            return search
    return None


def fastest(search: GemmSearch, libraries: Iterable[str]) -> Candidate | None:
    """The fastest verified candidate among the libraries: by the run's timer, where that has seen any of
    them.

    Of candidates no more than a tick slower than the fastest, one of the last library named: libraries are
    named from the thickest (``torch.mm``, whose calls take the host longest) to the thinnest.
    """
    names = list(libraries)
    fit = [c for c in search.candidates if c.library in names and c.verified and c.us is not None]
    fit = [c for c in fit if c.confirmed_us is not None] or fit

    def us(c: Candidate) -> float:
        return c.confirmed_us or c.us or 0.0

    best = min(map(us, fit), default=0.0)
    tied = [c for c in fit if not resolved(us(c), best, search.tick_us)]
    return min(tied, key=lambda c: (-names.index(c.library), us(c)), default=None)


def _confirm(confirm: Measure, launch: Launch) -> dict[str, object]:
    """What the run's timer says of a candidate; one that fails now is no longer verified."""
    try:
        return {"confirmed_us": confirm(launch.run)}
    except Exception as e:  # as in _try
        return {"verified": False, "reason": f"when confirmed: {type(e).__name__}: {e}"}


def _try(
    library: str,
    index: int,
    launch: Launch,
    gemm: Gemm,
    reference: torch.Tensor,
    measure: Measure,
    budget: float,
) -> Candidate:
    call = launch.call
    candidate = Candidate(library=library, index=index, function=call.function, algorithm=call.algorithm)
    try:
        gemm.out.fill_(float("nan"))
        launch.run()
        error, _ = relative_error(gemm.out, reference)
        if not error <= budget:
            return candidate.model_copy(update={"reason": f"wrong: relative Frobenius error {error:.2e}"})
        us = measure(launch.run)
    except (
        Exception
    ) as e:  # a candidate is not a user's input: whatever it raises is its own failure, kept as such
        return candidate.model_copy(update={"reason": f"{type(e).__name__}: {e}"})
    return candidate.model_copy(
        update={"verified": True, "us": us, "reason": "" if us is not None else "no step had a time"}
    )
