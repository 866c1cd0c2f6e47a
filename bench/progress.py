"""Progress of a run for people: a bar with the time left on a terminal, a line a row elsewhere. Always on
stderr.
"""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class RunProgress:
    """Counts rows by weight, so that long rows move the bar further and the time left is honest."""

    def __init__(self, console: Console, rows: int, weights: float) -> None:
        self._console = console
        self._rows, self._total = rows, weights
        self._row, self._done, self._weight = 0, 0.0, 0.0
        self._began = time.monotonic()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:3.0f} %"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(elapsed_when_finished=False),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("starting", total=weights)

    def __enter__(self) -> RunProgress:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def say(self, text: str) -> None:
        """Say what is being done now, without moving the bar."""
        if self._console.is_terminal:
            self._bar.update(self._task, description=text)
        else:
            self._console.print(text, soft_wrap=True, highlight=False)

    def begin_row(self, key: str, weight: float) -> None:
        """A row begins; ``weight`` is its share of the total."""
        self._row += 1
        self._weight = weight
        left = ""
        if self._done and not self._console.is_terminal:
            spent = time.monotonic() - self._began
            left = f", about {spent * (self._total - self._done) / self._done:.0f} s left"
        self.say(f"[{self._row}/{self._rows}] {key}{left}".replace("[", r"\["))

    def advance(self, part: float) -> None:
        """``part`` (0 to 1) more of the row is done."""
        self._done += part * self._weight
        self._bar.update(self._task, advance=part * self._weight)
