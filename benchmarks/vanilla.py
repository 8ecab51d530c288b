"""Time the reference backend against a plain loop over torch's cells, forward + backward, on the CPU.

    python -m benchmarks.vanilla

The loop includes its input product, flashrnn's Wx is given. Medians over alternating runs, written to
benchmarks/results/vanilla-cpu.csv.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import platform
import statistics
import subprocess
import time
from pathlib import Path
from typing import Callable

import torch
from torch import nn

from flashrnn import flashrnn
from flashrnn_testing import create_inputs

LOOPS = {"lstm": nn.LSTMCell, "gru": nn.GRUCell, "elman": nn.RNNCell}
RESULTS = Path(__file__).parent / "results" / "vanilla-cpu.csv"


def torch_cell_loop(function: str, batch_size: int, sequence_size: int, hidden_size: int) -> Callable[[], object]:
    """A training step of a loop over torch's cell, with ordinary autograd."""
    cell = LOOPS[function](hidden_size, hidden_size)
    x = torch.randn(sequence_size, batch_size, hidden_size, requires_grad=True)

    def run() -> object:
        state, outputs = None, []
        for step in x:
            state = cell(step, state)
            outputs.append(state[0] if isinstance(state, tuple) else state)
        return torch.autograd.grad(torch.stack(outputs).sum(), [x, *cell.parameters()])

    return run


def flashrnn_call(
    function: str, backend: str, batch_size: int, sequence_size: int, hidden_size: int
) -> Callable[[], object]:
    """A training step of `flashrnn()` with one head."""
    inputs = create_inputs(batch_size, sequence_size, 1, hidden_size, function, create_states=False, device="cpu")

    def run() -> object:
        states, _ = flashrnn(*inputs, function=function, backend=backend)
        return torch.autograd.grad(states[0].sum(), inputs)

    return run


def medians(contenders: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median time of each in ms. They take turns, each after each other one, so that a busy machine is unfair to none."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    orders = list(itertools.permutations(contenders))
    for turn in range(repeats + 1):
        for name in orders[turn % len(orders)]:
            start = time.perf_counter()
            contenders[name]()
            if turn > 0:
                times[name].append(1e3 * (time.perf_counter() - start))
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--sequence-size", type=int, default=256)
    parser.add_argument("--hidden-size", type=int, default=256)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=30)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    shape = (options.batch_size, options.sequence_size, options.hidden_size)
    rows = []
    for function, cell in LOOPS.items():
        contenders = {f"loop over nn.{cell.__name__}": torch_cell_loop(function, *shape)}
        contenders.update({name: flashrnn_call(function, name, *shape) for name in ("vanilla_fwbw", "vanilla")})
        found = medians(contenders, options.repeats)
        loop = next(iter(found.values()))
        for name, ms in found.items():
            rows.append([function, *shape, name, f"{ms:.1f}", f"{ms / loop:.2f}"])
            print(f"{function:6} {name:22} {ms:8.1f} ms  {ms / loop:5.2f} of the loop")
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    with RESULTS.open("w", newline="") as file:
        file.write(
            f"# forward + backward, float32, {options.threads} threads, {platform.processor() or platform.machine()}, "
        )
        file.write(f"torch {torch.__version__}, Python {platform.python_version()}, commit {commit}\n")
        writer = csv.writer(file)
        writer.writerow(["function", "B", "T", "D", "what", "ms", "relative to the loop"])
        writer.writerows(rows)


if __name__ == "__main__":
    main()
