"""The command line, ``cake-bench``: the composition root, and the one place that may import everything.

One module a command (or two); what they share is in :mod:`bench.cli.common`. Exit codes: 0 fine; 1 a cake arm
is inaccurate, or a row is slower than it was (``gate``); 2 something could not be measured. The report is
written before exiting.
"""

from __future__ import annotations

import typer

from bench.cli import comparing, compiling, gating, listing, running, selftesting, tuning

app = typer.Typer(
    help="Paired, accuracy-gated benchmarks of cake's GEMMs against the best library calls.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("run")(running.run)
app.command("report")(running.report)
app.command("gate")(gating.gate)
app.command("compare")(comparing.compare_runs)
app.command("merge")(comparing.merge_runs)
app.command("selftest")(selftesting.selftest)
app.command("tune")(tuning.tune)
app.command("compile")(compiling.compile_programs)
app.command("list")(listing.list_programs)
