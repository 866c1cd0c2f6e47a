"""Pictures of a dense run: a heat map of ratios, layer by T, and how near cake and SOTA come to the peak."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from reports import dense_tables, plots
from reports import format as fmt
from reports.dense_words import form
from reports.markdown import Plot
from reports.rows import NEW, PREVIOUS, SOTA, Row, Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure

#: A cell's colour is full from this far off 1 on: what is wanted to the percent lies within.
FULL = 0.10
#: Shades a side: few enough for a PNG of 256 colours.
SHADES = 12
#: Heights (inches): of a layer's line in the heat map, of a panel of speeds, of titles and legends.
LINE_IN, PANEL_IN, REST_IN = 0.27, 2.1, 1.25
#: Panels of speeds side by side.
ACROSS = 5
OPS = {"fwd": plots.BLUE, "dgrad": plots.VERMILION, "wgrad": "#009E73"}


def draw(run: Run, folder: Path) -> tuple[list[Plot], list[str]]:
    """Write ``plots/*.png`` into ``folder``; returns the pictures, and what is to be said beside them."""
    import matplotlib

    (folder / "plots").mkdir(exist_ok=True)
    drawn, notes = [], []
    how = form(run.manifest)
    with matplotlib.rc_context(plots.STYLE):
        for arm, word in ((SOTA, "SOTA / cake"), (PREVIOUS, "previous / new")):
            if arm == PREVIOUS and PREVIOUS not in run.arms:
                continue
            if all(r.ratio(arm) is None for r in run.rows):
                notes.append(f"No plot of {word}: no row has the ratio.")
                continue
            name = f"plots/{'ratio' if arm == SOTA else 'previous'}.png"
            plots.save(_heat_map(run, arm, word), folder / name)
            drawn.append(Plot(name, f"{word} of every row, {how}; blue: cake is faster, orange: slower."))
        if dense_tables.peaks(run):
            plots.save(_speeds(run), folder / "plots/speed.png")
            drawn.append(Plot("plots/speed.png", f"TFLOP/s of cake and SOTA by T, {how}."))
        else:
            notes.append("No plot of TFLOP/s: no row has a time.")
    return drawn, notes


def shade(ratio: float) -> int:
    """The place of a ratio's colour: 0 slowest, ``SHADES`` equal, ``2 * SHADES`` fastest."""
    return round(SHADES * (1 + max(-1.0, min(1.0, (ratio - 1) / FULL))))


def _colours() -> ListedColormap:
    from matplotlib.colors import LinearSegmentedColormap, ListedColormap

    smooth = LinearSegmentedColormap.from_list("ratio", [plots.VERMILION, "#FFFFFF", plots.BLUE])
    return ListedColormap([smooth(i / (2 * SHADES)) for i in range(2 * SHADES + 1)])


def _blocks(run: Run) -> list[tuple[str, list[Row]]]:
    """What has a line of panels of its own, GPU x mode x output, with its rows."""
    found = []
    for gpu in run.gpus:
        for mode in run.modes:
            for out in run.outs:
                rows = run.select(gpu, mode, out=out)
                words = [gpu] * (len(run.gpus) > 1) + [mode] + [f"{out} outputs"]
                if rows:
                    found.append((", ".join(words), rows))
    return found


def _heat_map(run: Run, arm: str, word: str) -> Figure:
    from matplotlib.figure import Figure

    blocks = _blocks(run)
    heights = [len({r.layer for r in rows}) * LINE_IN + 0.62 for _, rows in blocks]
    tall = sum(heights) + REST_IN
    figure = Figure(figsize=(plots.WIDTH_IN, tall), dpi=plots.DPI)
    grid = figure.subplots(
        len(blocks), len(run.ops), squeeze=False, gridspec_kw={"height_ratios": heights}, sharex=True
    )
    colours = _colours()
    for line, (where, rows) in zip(grid, blocks, strict=True):
        products = list(dict.fromkeys(r.product for r in rows))
        for axis, op in zip(line, run.ops, strict=True):
            _heat_panel(axis, [r for r in rows if r.op == op], arm, products, run.tokens, colours)
            axis.set_title(f"{op}, {where}", fontweight="bold", fontsize=10)
            axis.set_yticks(range(len(products)), products if axis is line[0] else [""] * len(products))
    figure.suptitle(f"{word}, {_where(run)}", y=1 - 0.12 / tall, va="top", fontsize=12)
    key = (
        f"bold: faster or slower by verdict; plain: same; ? unclear. Colours are full from {1 - FULL:.2f} "
        f"(orange, cake slower) and {1 + FULL:.2f} (blue, cake faster) on."
    )
    figure.text(0.5, 0.16 / tall, key, ha="center", va="bottom", fontsize=9)
    figure.subplots_adjust(
        left=0.18, right=0.99, wspace=0.03, hspace=0.3, top=1 - 0.72 / tall, bottom=0.72 / tall
    )
    return figure


def _heat_panel(
    axis: Axes,
    rows: Sequence[Row],
    arm: str,
    products: Sequence[str],
    tokens: Sequence[int],
    colours: ListedColormap,
) -> None:
    """One op: a line a layer, a column a T; the ratio as a number on its colour."""
    axis.set_xlim(-0.5, len(tokens) - 0.5)
    axis.set_ylim(len(products) - 0.5, -0.5)
    axis.set_xticks(range(len(tokens)), [str(t) for t in tokens])
    axis.set_xlabel("T")
    axis.tick_params(length=0, labelbottom=True)
    for side in ("left", "bottom"):
        axis.spines[side].set_visible(False)
    for r in rows:
        x, y = tokens.index(r.T), products.index(r.product)
        ratio, cell = r.ratio(arm), r.cell(arm)
        if ratio is None or cell is None:
            word = r.why_not(arm)[0]
            axis.text(x, y, word, ha="center", va="center", fontsize=6.5, style="italic", color="#333333")
            continue
        place = shade(ratio)
        box = axis.axhspan(y - 0.46, y + 0.46, (x + 0.03) / len(tokens), (x + 0.97) / len(tokens))
        box.set(facecolor=colours(place), edgecolor="none")
        settled = cell.verdict in ("faster", "slower")
        axis.text(
            x,
            y,
            fmt.ratio(ratio) + "?" * (cell.verdict == "unclear"),
            ha="center",
            va="center",
            fontsize=8.5,
            fontweight="bold" if settled else "normal",
            color="white" if abs(place - SHADES) > 0.75 * SHADES else "black",
        )


def _speeds(run: Run) -> Figure:
    """A panel a layer: TFLOP/s over T, an op a colour, cake solid and SOTA dashed, below the peak."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    panels = [
        (where, product, [r for r in rows if r.product == product])
        for where, rows in _blocks(run)
        for product in dict.fromkeys(r.product for r in rows)
    ]
    across = min(ACROSS, len(panels))
    down = -(-len(panels) // across)
    tall = PANEL_IN * down + REST_IN
    figure = Figure(figsize=(plots.WIDTH_IN, tall), dpi=plots.DPI)
    grid = figure.subplots(down, across, squeeze=False, sharey=True)
    peak = dense_tables.peaks(run)
    most = max(peak.values())
    many = len({where for where, _, _ in panels}) > 1
    for axis in grid.flat[len(panels) :]:
        axis.set_visible(False)
    for axis, (where, product, rows) in zip(grid.flat, panels, strict=False):
        _speed_panel(axis, rows, run, peak.get(rows[0].gpu))
        axis.set_title(f"{product}\n{where}" if many else product, fontsize=9, fontweight="bold", pad=3)
        axis.set_ylim(0, most * 1.06)
    for line in grid:
        line[0].set_ylabel("TFLOP/s")
    handles: list[object] = [Line2D([], [], color=c, linewidth=2, label=op) for op, c in OPS.items()]
    handles.append(Line2D([], [], color="black", marker="o", markersize=4, label="cake"))
    handles.append(Line2D([], [], color="black", linestyle=(0, (2, 1)), label="SOTA"))
    handles.append(Line2D([], [], color=plots.GREY, linewidth=0.9, label="measured peak"))
    figure.legend(handles=handles, loc="lower center", ncols=6, frameon=False, fontsize=9)
    title = f"TFLOP/s at each T, {_where(run)}"
    figure.suptitle(title, y=1 - 0.12 / tall, va="top", fontsize=12)
    figure.subplots_adjust(
        left=0.05, right=0.99, wspace=0.08, hspace=0.55, top=1 - 0.78 / tall, bottom=1.0 / tall
    )
    return figure


def _speed_panel(axis: Axes, rows: Sequence[Row], run: Run, peak: float | None) -> None:
    tokens = sorted({r.T for r in rows})
    axis.grid(axis="y", color="#EEEEEE", linewidth=0.8, zorder=0)
    if peak:
        axis.axhline(peak, color=plots.GREY, linewidth=0.9, zorder=1)
    for op, colour in OPS.items():
        for arm, look in ((SOTA, {"linestyle": (0, (2, 1))}), (NEW, {"marker": "o", "markersize": 3.5})):
            known = [(tokens.index(r.T), us, r) for r in rows if r.op == op and (us := r.us(arm))]
            speeds = [r.tflops(us) or 0.0 for _, us, r in known]
            axis.plot([x for x, _, _ in known], speeds, color=colour, linewidth=1.3, zorder=3, **look)
    axis.set_xlim(-0.3, len(tokens) - 0.7)
    axis.set_xticks(range(len(tokens)), [str(t) for t in tokens], fontsize=7, rotation=90)
    axis.tick_params(axis="y", labelsize=7.5, length=2)


def _where(run: Run) -> str:
    m = run.manifest
    return f"{', '.join(run.gpus)} ({m.device.arch}), {m.suite} suite, {form(m)}, timer {m.timer.name}"
