"""Draw the sweeps that a result file holds, as PNGs beside it.

    python -m benchmarks.plot benchmarks/results/FILE.csv

A sweep is a quantity that takes at least three values while the rest stays: batch size, sequence length, or head_dim at one
width NH * D.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Optional

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from .contenders import CONTENDERS, MODULES, TORCH
from .results import Results, Row, read

FEWEST = 3
"""Points that make a sweep."""

# The palette of Okabe and Ito, which colour-blind people can tell apart; markers tell the lines apart without colours.
STYLES: dict[str, dict[str, Any]] = {
    "auto": {"color": "black", "marker": ".", "linestyle": ":", "zorder": 3},
    "cuda_fused": {"color": "#0072B2", "marker": "o"},
    "cuda": {"color": "#56B4E9", "marker": "s"},
    "triton_fused": {"color": "#009E73", "marker": "^"},
    "vanilla_fwbw": {"color": "#E69F00", "marker": "v"},
    "vanilla": {"color": "#CC79A7", "marker": "D"},
    TORCH: {"color": "#D55E00", "marker": "X", "linestyle": "--"},
}

LABELS = {"batch": "batch size B", "time": "sequence length T", "head-dim": "heads x head dimension, NH x D"}


class Sweep(NamedTuple):
    """Rows of one function and dtype that differ in one quantity.

    Attributes:
        quantity: "batch", "time" or "head-dim".
        fixed: what stays, as text.
        rows: of all contenders.
    """

    quantity: str
    fixed: tuple[str, ...]
    rows: list[Row]


def swept_value(quantity: str, row: Row) -> int:
    """The place of a row on the horizontal axis."""
    return {"batch": row.B, "time": row.T, "head-dim": row.D}[quantity]


def fixed_part(quantity: str, row: Row) -> tuple[str, ...]:
    """What is the same for all rows of a sweep."""
    shape, B, T = f"{row.NH}x{row.D}", f"B {row.B}", f"T {row.T}"
    kept = {"batch": (shape, T), "time": (shape, B), "head-dim": (f"width {row.NH * row.D}", B, T)}
    return (row.function, row.dtype, *kept[quantity])


def sweeps(rows: Sequence[Row]) -> Iterator[Sweep]:
    """All sweeps among the rows."""
    for quantity in LABELS:
        groups: dict[tuple[str, ...], list[Row]] = {}
        for row in rows:
            groups.setdefault(fixed_part(quantity, row), []).append(row)
        for fixed, group in groups.items():
            if len({swept_value(quantity, row) for row in group}) >= FEWEST:
                yield Sweep(quantity, fixed, sorted(group, key=lambda row: swept_value(quantity, row)))


def draw(path: Path) -> list[Path]:
    """Draw every sweep of a result file. Returns the files drawn."""
    results = read(path)
    drawn = []
    for sweep in sweeps(results.rows):
        name = "-".join((path.stem, sweep.quantity, *sweep.fixed)).replace(" ", "")
        drawn.append(path.with_name(f"{name}.png"))
        figure_of(sweep, results).savefig(drawn[-1], format="png", dpi=150)
    return drawn


def figure_of(sweep: Sweep, results: Results) -> Figure:
    """Two panels that share their axes: forward, and forward and backward."""
    figure = Figure(figsize=(10, 5), layout="constrained")
    left, right = figure.subplots(1, 2, sharex=True, sharey=True)
    draw_panel(left, sweep, "fw_ms", "forward")
    draw_panel(right, sweep, "fwbw_ms", "forward + backward")
    left.set_ylabel("time (ms)")
    figure.suptitle(f"{', '.join(sweep.fixed)}\n{results.origin}")
    figure.legend(*right.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    return figure


def draw_panel(axes: Axes, sweep: Sweep, column: str, title: str) -> None:
    """One line a contender; a gap where it failed."""
    for what in (what for what in CONTENDERS if any(row.what == what for row in sweep.rows)):
        rows = [row for row in sweep.rows if row.what == what]
        values = [float("nan") if getattr(row, column) is None else getattr(row, column) for row in rows]
        axes.plot([swept_value(sweep.quantity, row) for row in rows], values, label=label(rows[0]), **STYLES[what])
    axes.set(title=title, xlabel=LABELS[sweep.quantity], yscale="log")
    axes.set_xscale("log", base=2)
    ticks = {swept_value(sweep.quantity, row): row for row in sweep.rows}
    axes.xaxis.set_major_locator(FixedLocator(list(ticks)))
    axes.set_xticklabels([f"{row.NH}x{D}" if sweep.quantity == "head-dim" else str(D) for D, row in ticks.items()])
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())
    axes.grid(alpha=0.3)


def label(row: Row) -> str:
    """The name of a line."""
    if row.what != TORCH:
        return row.what
    return f"torch.nn.{MODULES[row.function]} (one head, with its input product)"


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Draw the file named; 1 if it holds no sweep."""
    description, usage = (__doc__ or "").split("\n\n", 1)
    parser = argparse.ArgumentParser(
        description=description, epilog=usage, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("csv", type=Path)
    path = parser.parse_args(argv).csv
    try:
        drawn = draw(path)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    print("\n".join(f"Plot: {file}" for file in drawn) or f"{path} holds no sweep of {FEWEST} points or more.")
    return 0 if drawn else 1


if __name__ == "__main__":
    sys.exit(main())
