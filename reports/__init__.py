"""Reports: from the cells of a run directory to tables, findings, plots, Markdown and the terminal."""

from __future__ import annotations

from pathlib import Path


def write_report(run_dir: Path) -> Path:
    """Write ``report.md`` and its plots into a run directory (``report-tables.md`` too if one is too long).

    The same run directory gives the same Markdown to the byte. Returns the path of ``report.md``; raises
    :class:`bench.store.StoreError` where the directory is no run or has no cells yet.
    """
    # The command line starts without matplotlib, which takes longer to import than the rest together.
    from bench.store import atomic_write
    from reports import dense, dense_plots, markdown, plots
    from reports.rows import load

    run = load(run_dir)
    drawn, notes = (dense_plots if run.dense else plots).draw(run, run_dir)
    documents = (dense if run.dense else markdown).documents
    (run_dir / markdown.TABLES).unlink(missing_ok=True)
    for name, text in documents(run, drawn, notes).items():
        atomic_write(run_dir / name, text.encode())
    return run_dir / markdown.REPORT
