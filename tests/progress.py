"""A pytest plugin for ``make test``: a bar with the time left where the output is a terminal, pytest's dots
elsewhere."""

from __future__ import annotations

import os

import pytest
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


class Bar:
    """Advances by one per finished test. Drawn only between tests, when pytest does not hold the output
    back."""

    def __init__(self, console: Console) -> None:
        columns = (
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("time left"),
            TimeRemainingColumn(),
        )
        self.progress = Progress(
            *columns, TextColumn("{task.fields[test]}"), console=console, auto_refresh=False, transient=True
        )

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        if not session.config.option.collectonly:
            self.task = self.progress.add_task("", total=len(session.items), test="")
            self.progress.start()

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(
        self, report: pytest.CollectReport | pytest.TestReport
    ) -> tuple[str, str, str] | None:
        """No dot for a test that passed or was skipped: the bar stands in that line."""
        quiet = report.outcome in ("passed", "skipped") and not hasattr(report, "wasxfail")
        category = report.outcome if report.skipped or getattr(report, "when", "") == "call" else ""
        return (category, "", "") if quiet else None

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.progress.update(self.task, advance=1, test=nodeid.partition("::")[0])
        self.progress.refresh()

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        self.progress.stop()


def pytest_configure(config: pytest.Config) -> None:
    console = Console(file=os.fdopen(os.dup(2), "w"))
    if console.is_terminal:
        config.pluginmanager.register(Bar(console), "bar")
