"""Time the layers of flashrnn.nn and of torch.nn side by side, forward and in a training step, and write a result file.

    python -m benchmarks.layers

A training step is the forward pass and the gradients of the input and of all parameters. The two libraries take turns, so
that a change of the GPU's clock is unfair to none. On a GPU it needs triton.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Optional

import torch
from torch import nn

import flashrnn.nn

from . import results
from .contenders import MODULES, layer_calls
from .results import FOLDER, Row
from .shapes import DTYPES, Case, positive
from .timing import median_ms, peak_mb

LIBRARIES = {"flashrnn.nn": flashrnn.nn, "torch.nn": nn}
MEANING = (
    "{num_layers} layers with one head of size D and an input of that width. fw_ms: forward under no_grad; fwbw_ms: forward "
    "and the gradients of the input and of all parameters; medians of {rounds} medians, taken in turns. peak_mb: memory of "
    "the latter beyond its inputs, 10^6 bytes."
)


def measure(case: Case, num_layers: int, rounds: int, device: torch.device) -> list[Row]:
    """A row for each library."""
    calls = {name: layer_calls(library, case, device, num_layers) for name, library in LIBRARIES.items()}
    times: dict[tuple[str, str], list[float]] = {}
    for _, (name, pair) in product(range(rounds), calls.items()):
        for kind, call in pair._asdict().items():
            times.setdefault((name, kind), []).append(median_ms(call, device))
    rows = []
    for name, pair in calls.items():
        fw, fwbw = (round(statistics.median(times[name, kind]), 4) for kind in pair._fields)
        peak = peak_mb(pair.training, device)
        rows.append(Row(*case, name, fw, fwbw, None if peak is None else round(peak, 2)))
    return rows


def speedup(ours: Row, theirs: Row) -> str:
    """A sentence on a pair of rows."""
    assert ours.fwbw_ms is not None and theirs.fwbw_ms is not None
    return f"{ours.case}: the training step of {ours.what} is {theirs.fwbw_ms / ours.fwbw_ms:.2f} times as fast"


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Measure, write and print."""
    description, usage = (__doc__ or "").split("\n\n", 1)
    parser = argparse.ArgumentParser(
        description=description, epilog=usage, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    on_gpu = torch.cuda.is_available()
    parser.add_argument("--function", nargs="+", choices=MODULES, default=["lstm", "gru"], help="default: %(default)s")
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16", help="default: %(default)s")
    sizes = {"num-layers": 2, "width": 768, "batch": 16, "time": 1024}
    for name, default in {**sizes, "rounds": 5}.items():
        parser.add_argument(f"--{name}", type=positive, default=default, help="default: %(default)s")
    parser.add_argument("--device", type=torch.device, default="cuda" if on_gpu else "cpu", help="default: a GPU if any")
    parser.add_argument("--name", default="layers", help="the end of the result file's name")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where to write it; default: benchmarks/results")
    options = parser.parse_args(argv)
    torch.manual_seed(0)
    meaning = MEANING.format(num_layers=options.num_layers, rounds=options.rounds)
    header = {**results.describe(options.device), "meaning": meaning}
    path = options.folder / results.file_name(header, options.name)
    results.start(path, header)
    found = []
    for function in options.function:
        case = Case(function, 1, options.width, options.batch, options.time, options.dtype)
        ours, theirs = measure(case, options.num_layers, options.rounds, options.device)
        for row in (ours, theirs):
            results.append(path, row)
        found += [ours, theirs]
        print(speedup(ours, theirs))
    print(f"\n{results.render(found)}\n\nResults: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
