"""Short sequences that share rows, one behind the other with resets, against one padded row for each.

    python examples/packing.py --layer LSTM

Both ways give the same loss and the same gradients; shared rows have hardly any padding to compute. The exit code is 1 if
they differ.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import NamedTuple, Optional

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.benchmark import Timer

import flashrnn.nn

LAYERS = ("LSTM", "GRU", "RNN", "SLSTM")  # of flashrnn.nn
WIDTH = 64  # features of a step and of the layer
CLOSE = 1e-4  # relative norm of a difference that float32 explains
REPEATS = 5


class Batch(NamedTuple):
    """Rows of equal size: x [B, T, WIDTH], lengths [B], and resets [B, T] if a row holds several sequences."""

    x: Tensor
    lengths: Tensor
    resets: Optional[Tensor] = None

    @property
    def padding(self) -> float:
        """The share of its steps that are padding."""
        return 1 - self.lengths.sum().item() / self.x[..., 0].numel()


def random_sequences(count: int, longest: int) -> list[Tensor]:
    """Sequences [length, WIDTH], most of them short, the first of the longest."""
    lengths = 1 + ((longest - 1) * torch.rand(count) ** 4).round().long()
    lengths[0] = longest
    return [torch.randn(int(length), WIDTH) for length in lengths]


def padded(sequences: Sequence[Tensor]) -> Batch:
    """A row for each sequence."""
    x = pad_sequence(list(sequences), batch_first=True)
    return Batch(x, torch.tensor([len(x) for x in sequences], device=x.device))


def packed(sequences: Sequence[Tensor]) -> Batch:
    """Rows of the longest sequence's size: each sequence goes into the first with room for it, the longest ones before."""
    size, rows = max(map(len, sequences)), list[list[Tensor]]()
    for x in sorted(sequences, key=len, reverse=True):
        row = next((row for row in rows if sum(map(len, row)) + len(x) <= size), None)
        if row is None:
            rows.append(row := [])
        row.append(x)
    batch = padded([torch.cat(row) for row in rows])
    resets = torch.zeros(len(rows), size, dtype=torch.bool, device=batch.x.device)
    for k, row in enumerate(rows):
        starts = torch.tensor([0, *map(len, row[:-1])]).cumsum(0)
        resets[k, starts] = True
    return batch._replace(resets=resets)


def loss_and_gradients(layer: nn.Module, batch: Batch) -> list[Tensor]:
    """A training step without its optimizer. In the padding output and target are both 0."""
    h, _ = layer(batch.x, lengths=batch.lengths, resets=batch.resets)
    loss = (h - batch.x.tanh()).square().sum() / batch.lengths.sum()
    return [loss.detach(), *torch.autograd.grad(loss, list(layer.parameters()))]


def milliseconds(layer: nn.Module, batch: Batch) -> float:
    """The median time of a training step."""
    names = {"step": loss_and_gradients, "layer": layer, "batch": batch}
    timer = Timer("step(layer, batch)", globals=names, num_threads=torch.get_num_threads())
    return 1e3 * timer.timeit(REPEATS).median


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Compare and time both ways."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layer", choices=LAYERS, default="LSTM", help="of flashrnn.nn; default: %(default)s")
    parser.add_argument("--count", type=int, default=128, help="of sequences; default: %(default)s")
    parser.add_argument("--longest", type=int, default=128, help="steps of the longest; default: %(default)s")
    options = parser.parse_args(argv)
    if min(options.count, options.longest) < 1:
        parser.error("--count and --longest: expected integers above 0")
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    layer = getattr(flashrnn.nn, options.layer)(WIDTH, WIDTH, batch_first=True, device=device)
    sequences = random_sequences(options.count, options.longest)
    steps = sum(map(len, sequences))
    print(f"{len(sequences)} sequences of 1 to {options.longest} steps, {steps:,} in all, on {device.type}")
    results: list[list[Tensor]] = []
    times: list[float] = []
    for way in (padded, packed):
        batch = way([x.to(device) for x in sequences])
        results.append(loss_and_gradients(layer, batch))
        times.append(milliseconds(layer, batch))
        print(f"{way.__name__}: {len(batch.x)} rows, {batch.padding:.0%} padding, {times[-1]:.1f} ms a training step")
    difference = max(((x - y).norm() / y.norm()).item() for x, y in zip(*results))
    print(f"Packed takes {times[1] / times[0]:.0%} of the time; loss and gradients differ by {difference:.1e} of their size")
    return 0 if difference < CLOSE else 1


if __name__ == "__main__":
    sys.exit(main())
