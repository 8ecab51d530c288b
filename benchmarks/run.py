"""Time flashrnn's backends and torch.nn's recurrent layers, forward and forward + backward, and write a result file.

    python -m benchmarks.run --sweep head-dim --function lstm --plot
    python -m benchmarks.run --shape 12x64 --batch 16 --time 1024 --contender cuda_fused torch.nn
    python -m benchmarks.run --sweep table --compare benchmarks/results/OLD.csv

flashrnn is given Wx; torch.nn's layers have one head of size NH * D and include their input product. A contender that does
not take a case is left out with the reason, one that fails leaves empty cells. Needs matplotlib and tqdm, on a GPU triton.
"""

from __future__ import annotations

import argparse
import gc
import sys
from collections.abc import Sequence
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import NamedTuple, Optional

import torch
from tqdm import tqdm

from flashrnn.cells import CELLS

from . import contenders, results
from .compare import THRESHOLD, compare
from .contenders import CONTENDERS
from .plot import draw
from .results import FOLDER, Row
from .shapes import DTYPES, SWEEPS, Case, cases_of, positive
from .timing import median_ms, peak_mb


class Job(NamedTuple):
    """A contender and what it is to compute."""

    case: Case
    contender: str


def plan(cases: Sequence[Case], names: Sequence[str], device: torch.device) -> list[Job]:
    """All that can be timed. Prints each reason why something cannot, once, with the cases it holds for."""
    jobs: list[Job] = []
    skipped: dict[tuple[str, str], list[Case]] = {}
    for case, name in product(cases, names):
        reason = contenders.why_not(name, case, device)
        if reason is None:
            jobs.append(Job(case, name))
        else:
            skipped.setdefault((name, reason), []).append(case)
    for (name, reason), missed in skipped.items():
        more = f" and {len(missed) - 1} more" if len(missed) > 1 else ""
        print(f"{name} is left out ({missed[0]}{more}): {reason}")
    return jobs


def measure(job: Job, device: torch.device) -> Row:
    """Time one job. What fails, and what would have come after it, stays empty; the error is printed."""
    found: list[Optional[float]] = []
    try:
        calls = contenders.prepare(job.contender, job.case, device)
        found.append(round(median_ms(calls.forward, device), 4))
        found.append(round(median_ms(calls.training, device), 4))
        peak = peak_mb(calls.training, device)
        found.append(None if peak is None else round(peak, 2))
    except Exception as error:
        part = ("forward", "forward + backward", "memory")[len(found)]
        sentence = str(error).strip().partition("\n")[0]
        tqdm.write(f"{job.contender} failed ({job.case}, {part}): {type(error).__name__}: {sentence}")
    return Row(*job.case, job.contender, *found)


def run(jobs: Sequence[Job], path: Path, device: torch.device) -> list[Row]:
    """Time all jobs and write each row as it is found."""
    rows = []
    bar = tqdm(jobs, unit="run")
    for job in bar:
        bar.set_postfix_str(f"{job.contender}, {job.case}")
        rows.append(measure(job, device))
        results.append(path, rows[-1])
        if rows[-1].fwbw_ms is None:  # what failed may have left memory behind
            gc.collect()
            with suppress(RuntimeError):  # nor does a GPU in error stop the run
                torch.cuda.empty_cache()
    return rows


# ----------------------------------------------------------------------------------------------------------- command line


def heads(text: str) -> tuple[int, int]:
    """NH and D, written as 12x64."""
    NH, D = (positive(part) for part in text.split("x"))
    return NH, D


def parse(argv: Optional[Sequence[str]]) -> argparse.Namespace:
    """The options, checked."""
    description, usage = (__doc__ or "").split("\n\n", 1)
    parser = argparse.ArgumentParser(
        description=description, epilog=usage, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--sweep", nargs="+", choices=SWEEPS, help="the shapes of these sweeps")
    what.add_argument("--shape", nargs="+", type=heads, metavar="NHxD", help="these heads, e.g. 12x64, ...")
    parser.add_argument("--batch", nargs="+", type=positive, default=[16], metavar="B", help="... batch sizes ...")
    parser.add_argument("--time", nargs="+", type=positive, default=[1024], metavar="T", help="... and sequence lengths")
    on_gpu = torch.cuda.is_available()
    parser.add_argument("--function", nargs="+", choices=CELLS, default=list(CELLS), help="default: all")
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, default=["bfloat16" if on_gpu else "float32"])
    parser.add_argument("--contender", nargs="+", choices=CONTENDERS, default=CONTENDERS, help="default: all")
    parser.add_argument("--device", type=torch.device, default="cuda" if on_gpu else "cpu", help="default: a GPU if any")
    parser.add_argument("--name", default="", help="the end of the result file's name")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where to write it; default: benchmarks/results")
    parser.add_argument("--plot", action="store_true", help="draw every sweep as a PNG beside the result file")
    parser.add_argument("--compare", type=Path, metavar="CSV", help="an older result file; status 1 if this is slower")
    parser.add_argument(
        "--threshold", type=float, default=THRESHOLD, help="how many times as long is still good: %(default)s"
    )
    options = parser.parse_args(argv)
    if options.device.type == "cuda" and not on_gpu:
        parser.error("--device: torch finds no GPU")
    try:
        options.reference = results.read(options.compare) if options.compare else None
    except (OSError, ValueError) as error:
        parser.error(f"--compare: {error}")
    return options


def chosen_cases(options: argparse.Namespace) -> list[Case]:
    """What the options ask for."""
    if options.sweep:
        return cases_of(options.sweep, options.function, options.dtype)
    every = product(options.dtype, options.function, options.shape, options.batch, options.time)
    return [Case(function, *shape, B, T, dtype) for dtype, function, shape, B, T in every]


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Measure, write, draw and compare."""
    options = parse(argv)
    if options.device.type == "cuda":
        options.device = torch.device("cuda", options.device.index or 0)
        torch.cuda.set_device(options.device)
    torch.manual_seed(0)
    header = results.describe(options.device)
    path = options.folder / results.file_name(header, options.name)
    jobs = plan(chosen_cases(options), options.contender, options.device)
    if not jobs:
        raise SystemExit("Nothing is left to time.")
    results.start(path, header)
    rows = run(jobs, path, options.device)
    print(f"\n{results.render(rows)}\n\nResults: {path}")
    for drawn in draw(path) if options.plot else ():
        print(f"Plot: {drawn}")
    if options.reference is None:
        return 0
    return compare(options.reference, results.Results(header, rows), options.threshold)


if __name__ == "__main__":
    sys.exit(main())
