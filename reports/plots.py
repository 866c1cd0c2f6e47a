"""The two pictures of a report: SOTA/cake row by row with the control band, and times against the floors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reports import format as fmt
from reports.floors import Floors, floors_of
from reports.markdown import Plot
from reports.rows import DET, FP16X2, JUDGED, NEW, SOTA, Row, Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Okabe and Ito's colours: told apart with any colour vision; markers differ too, for print in grey.
BLUE, VERMILION, PURPLE, GREY, BAND = "#0072B2", "#D55E00", "#CC79A7", "#5A5A5A", "#C9C9C9"
VERDICTS: dict[str, dict[str, Any]] = {
    "faster": {"color": BLUE, "marker": "o"},
    "same": {"color": GREY, "marker": "D"},
    "unclear": {"color": GREY, "marker": "o", "markerfacecolor": "white"},
    "slower": {"color": VERMILION, "marker": "s"},
}
WIDTH_IN, DPI = 12.0, 100
STYLE: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#888888",
    "xtick.color": "#333333",
    "ytick.color": "#333333",
}
#: Tick steps of a ratio axis, finest first.
STEPS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)


def draw(run: Run, folder: Path) -> tuple[list[Plot], list[str]]:
    """Write ``plots/*.png`` into ``folder``; returns the pictures, and what is to be said beside them."""
    import matplotlib

    (folder / "plots").mkdir(exist_ok=True)
    floors = floors_of(run.manifest.device.name)
    drawn, notes = [], []
    # Figures are made without pyplot: no global state, and Agg whatever the user's backend is.
    with matplotlib.rc_context(STYLE):
        if any(r.ratio(SOTA) is not None for r in run.rows):
            band = ", 1.000 is the line, the grey band the control range" if run.manifest.arms else ""
            save(_ratio_figure(run), folder / "plots/ratio.png")
            drawn.append(Plot("plots/ratio.png", f"SOTA / cake per row with its interval{band}."))
        else:
            notes.append("No plot of SOTA / cake: no row has the ratio.")
        if any(r.us(NEW) is not None or r.us(SOTA) is not None for r in run.rows):
            save(_times_figure(run, floors), folder / "plots/times.png")
            against = " against the read and tensor floors" if floors else ""
            drawn.append(Plot("plots/times.png", f"Time per op{against}."))
        else:
            notes.append("No plot of times: no row has a time.")
    if floors:
        notes.append(
            f"Floors of {floors.device}: read {floors.fill_us:g} us + distinct inputs / "
            f"{floors.read_tb_s:.1f} TB/s; tensor six BF16 products at {floors.bf16_tflops:g} TFLOP/s "
            f"({floors.source})."
        )
    else:
        name = run.manifest.device.name
        notes.append(f"No floors are drawn: read and tensor rates of {name} have not been measured.")
    return drawn, notes


def ratio_ticks(lo: float, hi: float, most: int = 9) -> list[float]:
    """Ticks of a ratio axis from ``lo`` to ``hi``: the finest steps that give at most ``most``."""
    # Equal steps crowd at the upper end of a logarithmic axis: over more than a factor of 4 they mislead.
    for step in STEPS if hi < 4 * lo else ():
        first, last = math.ceil(lo / step - 1e-9), math.floor(hi / step + 1e-9)
        if last - first + 1 <= most:
            return [round(i * step, 6) for i in range(first, last + 1)]
    return decade_ticks(lo, hi)


def decade_ticks(lo: float, hi: float, most: int = 12) -> list[float]:
    """Ticks of a logarithmic axis at 1, 2 and 5 of each decade, or at powers of ten alone."""
    exponents = range(math.floor(math.log10(lo)), math.ceil(math.log10(hi)) + 1)
    ticks = [m * 10.0**e for e in exponents for m in (1, 2, 5) if lo <= m * 10.0**e <= hi]
    return ticks if len(ticks) <= most else [10.0**e for e in exponents if lo <= 10.0**e <= hi]


def _ratio_figure(run: Run) -> Figure:
    from matplotlib.figure import Figure

    panels = [(gpu, mode) for gpu in run.gpus for mode in run.modes if run.select(gpu, mode)]
    most = max(len(_blocks(run, *panel)[0]) for panel in panels)
    tall = 0.19 * most + 1.5
    figure = Figure(figsize=(WIDTH_IN, tall), dpi=DPI)
    axes = figure.subplots(1, len(panels), squeeze=False, sharex=True)[0]
    values = [v for r in run.rows for v in _extent(r)]
    lo, hi = min([*values, 1.0]), max([*values, 1.0])
    pad = max((hi / lo) ** 0.04, 1.004)
    for axis, (gpu, mode) in zip(axes, panels, strict=True):
        axis.set_xscale("log")
        axis.set_xlim(lo / pad, hi * pad)
        _ratio_panel(axis, run, gpu, mode)
        axis.set_title(mode if len(run.gpus) == 1 else f"{gpu}, {mode}", fontweight="bold", fontsize=11)
        ticks = ratio_ticks(lo / pad, hi * pad)
        axis.set_xticks(ticks, [f"{t:g}" for t in ticks])
        axis.minorticks_off()
        axis.set_xlabel("best library call us / cake us (log scale)")
    figure.suptitle(f"SOTA / cake, {_where(run)}", x=0.5, y=1 - 0.12 / tall, va="top", fontsize=12)
    figure.legend(handles=_ratio_legend(run), loc="lower center", ncols=7, frameon=False, fontsize=9)
    figure.subplots_adjust(left=0.085, right=0.955, wspace=0.27, top=1 - 0.62 / tall, bottom=0.78 / tall)
    return figure


def _ratio_panel(axis: Axes, run: Run, gpu: str, mode: str) -> None:
    lines, blocks = _blocks(run, gpu, mode)
    axis.axvline(1.0, color="black", linewidth=0.8, zorder=2)
    axis.grid(axis="x", color="#EEEEEE", linewidth=0.8, zorder=0)
    at = axis.get_yaxis_transform()
    for op, first, rows in blocks:
        axis.text(-0.012, first - 1, op, transform=at, fontweight="bold", va="center", ha="right", fontsize=9)
        band = next((c for r in rows if (c := r.cell(SOTA)) and c.control_lo is not None), None)
        if band is not None and band.control_lo is not None and band.control_hi is not None:
            ends = [first - 0.5, first + len(rows) - 0.5]
            axis.fill_betweenx(ends, band.control_lo, band.control_hi, color=BAND, linewidth=0, zorder=1)
    for y, row in enumerate(lines):
        cell, ratio = (row.cell(SOTA), row.ratio(SOTA)) if row else (None, None)
        if row is None:
            continue
        if cell is None or ratio is None:
            word = row.why_not(SOTA)[0]
            axis.text(1.01, y, word, transform=at, va="center", fontsize=7.5, style="italic", color=VERMILION)
            continue
        look = VERDICTS[cell.verdict or "unclear"]
        if cell.ratio_lo is not None and cell.ratio_hi is not None:
            axis.plot([cell.ratio_lo, cell.ratio_hi], [y, y], color=look["color"], linewidth=1.6, zorder=3)
            for end in (cell.ratio_lo, cell.ratio_hi):
                axis.plot([end, end], [y - 0.22, y + 0.22], color=look["color"], linewidth=1.2, zorder=3)
        axis.plot([ratio], [y], linestyle="none", markersize=5, zorder=4, **look)
        axis.text(1.01, y, fmt.ratio(ratio), transform=at, va="center", fontsize=7.5, color=look["color"])
    axis.set_ylim(len(lines) - 0.3, -0.7)
    names = "T x H" + " x N" * any(r.show_n for r in lines if r)
    for x, text, side in ((-0.012, names, "right"), (1.01, "ratio", "left")):
        axis.annotate(text, (x, 1.0), (0, 4), "axes fraction", "offset points", ha=side, fontsize=7.5)
    shown = [(y, r) for y, r in enumerate(lines) if r is not None]
    axis.set_yticks([y for y, _ in shown], [_shape(r) for _, r in shown], fontsize=7.5)
    axis.tick_params(axis="y", length=0)


def _blocks(run: Run, gpu: str, mode: str) -> tuple[list[Row | None], list[tuple[str, int, list[Row]]]]:
    """The lines of a panel, a header line before each op, and each op's first line and rows."""
    lines: list[Row | None] = []
    blocks = []
    for op in run.ops:
        rows = run.select(gpu, mode, op)
        if rows:
            blocks.append((op, len(lines) + 1, rows))
            lines += [None, *rows]
    return lines, blocks


def _ratio_legend(run: Run) -> list[object]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    seen = {c.verdict for r in run.rows if (c := r.cell(SOTA)) and c.ratio is not None}
    words = {
        "faster": "cake faster",
        "same": "same",
        "unclear": "unclear",
        "slower": "cake slower",
    }
    level = run.manifest.judgement.get("level")
    bars = f"{100 * level:g} % interval" if level is not None else "interval"
    handles: list[object] = [
        Line2D([], [], linestyle="none", markersize=6, label=words[v], **look)
        for v, look in VERDICTS.items()
        if v in seen
    ]
    handles.append(Line2D([], [], color=GREY, marker="|", linewidth=1.6, label=bars))
    handles.append(Patch(color=BAND, label="control range (cake / cake)"))
    return handles


def _times_figure(run: Run, floors: Floors | None) -> Figure:
    from matplotlib.figure import Figure

    modes = [(gpu, mode) for gpu in run.gpus for mode in run.modes if run.select(gpu, mode)]
    tall = 2.9 * len(modes) + 1.6
    figure = Figure(figsize=(WIDTH_IN, tall), dpi=DPI)
    grid = figure.subplots(len(modes), len(run.ops), squeeze=False, sharey=True)
    times = [us for r in run.rows for a in (*JUDGED, SOTA) if (us := r.us(a)) is not None]
    unit = fmt.unit_for(times)
    for i, (line, (gpu, mode)) in enumerate(zip(grid, modes, strict=True)):
        for axis, op in zip(line, run.ops, strict=True):
            axis.set_yscale("log")
            _times_panel(axis, run.select(gpu, mode, op), floors, unit)
            if i == 0:
                axis.set_title(op, fontweight="bold", fontsize=11)
        where = mode if len(run.gpus) == 1 else f"{gpu}\n{mode}"
        line[0].set_ylabel(f"{where}, {unit.name} (log scale)")
    axis = grid[0][0]
    ticks = decade_ticks(*axis.get_ylim())
    axis.set_yticks(ticks, [f"{t:g}" for t in ticks])
    for axis in grid.flat:
        axis.minorticks_off()
    figure.suptitle(f"Time per op at each T and H, {_where(run)}", y=1 - 0.12 / tall, va="top", fontsize=12)
    figure.legend(handles=_times_legend(run, floors), loc="lower center", ncols=5, frameon=False, fontsize=9)
    figure.subplots_adjust(
        left=0.07, right=0.985, wspace=0.08, hspace=0.36, top=1 - 0.72 / tall, bottom=1.1 / tall
    )
    return figure


def _times_panel(axis: Axes, rows: Sequence[Row], floors: Floors | None, unit: fmt.Unit) -> None:
    axis.grid(axis="y", color="#EEEEEE", linewidth=0.8, zorder=0)
    for x, row in enumerate(rows):
        new, sota, det = (row.us(NEW), row.us(SOTA), row.us(DET))
        if new and sota:
            axis.plot([x, x], [new / unit.us, sota / unit.us], color="#BBBBBB", linewidth=1.2, zorder=2)
        if sota:
            axis.plot([x], [sota / unit.us], marker="s", color=VERMILION, markersize=4.5, zorder=3)
        if det:
            axis.plot(
                [x],
                [det / unit.us],
                marker="o",
                color=BLUE,
                markerfacecolor="white",
                markersize=5.5,
                zorder=4,
            )
        if new:
            axis.plot([x], [new / unit.us], marker="o", color=BLUE, markersize=4, zorder=5)
        if half := row.us(FP16X2):
            axis.plot([x], [half / unit.us], marker="^", color=BLUE, markersize=4.5, zorder=6)
        if not new and not sota:
            axis.text(
                x,
                0.5,
                row.why_not(NEW)[0],
                transform=axis.get_xaxis_transform(),
                rotation=90,
                ha="center",
                va="center",
                fontsize=7,
                style="italic",
                color=VERMILION,
            )
        if floors and row.H is not None:
            ends = [x - 0.38, x + 0.38]
            read, tensor = (f(row.op, row.T, row.H, row.N) for f in (floors.read_us, floors.tensor_us))
            axis.plot(ends, [read / unit.us] * 2, color="black", linewidth=1.3, zorder=2)
            axis.plot(
                ends, [tensor / unit.us] * 2, color=PURPLE, linewidth=1.6, linestyle=(0, (2, 1)), zorder=2
            )
    axis.set_xlim(-0.7, len(rows) - 0.3)
    axis.set_xticks(range(len(rows)), [_width(r) for r in rows], rotation=90, fontsize=7)
    axis.tick_params(axis="x", length=2, pad=2)
    below = axis.get_xaxis_transform()
    for t in dict.fromkeys(r.T for r in rows):
        at = [x for x, r in enumerate(rows) if r.T == t]
        middle = (sum(at) / len(at), 0.0)
        axis.annotate(f"T={t}", middle, (0, -29), below, "offset points", ha="center", va="top", fontsize=8)
        if at[0]:
            axis.axvline(at[0] - 0.5, color="#DDDDDD", linewidth=0.8, zorder=1)


def _times_legend(run: Run, floors: Floors | None) -> list[object]:
    from matplotlib.lines import Line2D

    handles: list[object] = [
        Line2D([], [], linestyle="none", marker="o", color=BLUE, markersize=5, label="cake")
    ]
    if DET in run.arms:
        handles.append(
            Line2D(
                [],
                [],
                linestyle="none",
                marker="o",
                color=BLUE,
                markerfacecolor="white",
                markersize=6,
                label="cake_det (the default)",
            )
        )
    if FP16X2 in run.judged:
        handles.append(
            Line2D([], [], linestyle="none", marker="^", color=BLUE, markersize=5, label=FP16X2),
        )
    handles.append(
        Line2D(
            [],
            [],
            linestyle="none",
            marker="s",
            color=VERMILION,
            markersize=5,
            label="SOTA (best library call)",
        )
    )
    if floors:
        handles.append(Line2D([], [], color="black", linewidth=1.3, label="read floor"))
        handles.append(
            Line2D([], [], color=PURPLE, linewidth=1.6, linestyle=(0, (2, 1)), label="tensor floor (BF16x3)")
        )
    return handles


def _extent(row: Row) -> list[float]:
    """What the ratio axis must hold of a row: its ratio, interval and control range."""
    cell = row.cell(SOTA)
    if cell is None or cell.ratio is None:
        return []
    return [
        v
        for v in (cell.ratio, cell.ratio_lo, cell.ratio_hi, cell.control_lo, cell.control_hi)
        if v is not None
    ]


def _where(run: Run) -> str:
    m = run.manifest
    return f"{', '.join(run.gpus)} ({m.device.arch}), {m.suite} suite, timer {m.timer.name}"


def _shape(row: Row) -> str:
    return f"{row.T} x {_width(row)}"


def _width(row: Row) -> str:
    return " x ".join(str(v) for v in [row.H, row.N if row.show_n else None] if v is not None)


def save(figure: Figure, path: Path) -> None:
    """Write a PNG of 256 colours, a third of the size of a full one; it holds no date and no version."""
    import numpy as np
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from PIL import Image

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    picture = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
    # Maximum coverage keeps rare colours: the median cut turned the few slower rows from vermilion to brown.
    few = picture.quantize(256, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    few.save(path, format="PNG", optimize=True)
