"""Parity, a task of state tracking: is the number of ones so far odd?

    python examples/state_tracking.py --function lstm

Trained on strings of at most 40 bits, tested on 400, with a label at every position. All four cells learn it: the new
state is a nonlinear function of the whole old one, through R. Recurrences linear or diagonal in the state with factors
between 0 and 1 cannot: Merrill et al. 2024, "The Illusion of State in State-Space Models"; Grazzi et al. 2025, "Unlocking
State-Tracking in Linear RNNs Through Negative Eigenvalues".
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from typing import Optional

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from flashrnn import BackendUnavailable
from flashrnn.cells import CELLS
from rnn_layer import RNNLayer

GOAL = 0.99  # accuracy on the long strings
BATCH_SIZE = 64
TEST_SIZE = 256
LONGER_BELOW = 0.1  # a loss that calls for longer strings, in nats per bit
SOLVED_BELOW = 1e-3  # a loss that ends the training when 20 batches in a row reach it


class ParityModel(nn.Module):
    """A recurrent layer that reads bits and says at every position whether their sum so far is odd."""

    def __init__(self, function: str, backend: str = "auto", num_heads: int = 1, head_dim: int = 32) -> None:
        super().__init__()
        self.layer = RNNLayer(1, num_heads, head_dim, function, backend)
        self.head = nn.Linear(num_heads * head_dim, 1)

    def forward(self, bits: Tensor) -> Tensor:
        """Logits [B, T] of "odd", given bits [B, T] of 0 and 1."""
        h, _ = self.layer(2 * bits.unsqueeze(-1) - 1)
        logits: Tensor = self.head(h).squeeze(-1)
        return logits


def parity_batch(batch_size: int, length: int) -> tuple[Tensor, Tensor]:
    """Random bits, and the parity up to every position, both [B, T]."""
    bits = torch.randint(0, 2, (batch_size, length))
    return bits.float(), (bits.cumsum(1) % 2).float()


def train(model: ParityModel, max_length: int, max_steps: int) -> int:
    """Train on strings that get longer, from 2 bits to max_length, as they are learned. Returns the number of steps."""
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    length, solved = min(2, max_length), 0
    for step in range(1, max_steps + 1):
        bits, parity = parity_batch(BATCH_SIZE, length)
        loss = binary_cross_entropy_with_logits(model(bits), parity)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step}: length {length}, loss {loss.item():.4f}", flush=True)
        solved = solved + 1 if length == max_length and loss.item() < SOLVED_BELOW else 0
        if solved == 20:
            return step
        if loss.item() < LONGER_BELOW:
            length = min(length + 1, max_length)
    return max_steps


@torch.no_grad()
def test(model: ParityModel, length: int) -> tuple[float, float]:
    """Accuracy over all positions of random strings, and at the last one."""
    bits, parity = parity_batch(TEST_SIZE, length)
    right = ((model(bits) > 0) == (parity > 0)).float()
    return right.mean().item(), right[:, -1].mean().item()


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Train and test; 0 if the accuracy at the test length is above 99%."""
    parser = argparse.ArgumentParser(description="Learn the parity of short bit strings, test it on long ones.")
    parser.add_argument("--function", choices=list(CELLS), default="lstm", help="the cell (default: %(default)s)")
    parser.add_argument("--backend", default="auto", help="as for flashrnn() (default: %(default)s)")
    parser.add_argument("--length", type=int, default=40, help="of the training's strings (default: %(default)s)")
    parser.add_argument("--test-length", type=int, default=400, help="of the test's strings (default: %(default)s)")
    parser.add_argument(
        "--max-steps", type=int, default=4000, help="of training, if it is not solved (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of weights and strings (default: %(default)s)")
    options = parser.parse_args(argv)
    if min(options.length, options.test_length, options.max_steps) < 1:
        parser.error("--length, --test-length and --max-steps: expected integers above 0")
    torch.manual_seed(options.seed)
    start = time.perf_counter()
    model = ParityModel(options.function, options.backend)
    try:
        steps = train(model, options.length, options.max_steps)
    except BackendUnavailable as error:
        raise SystemExit(f"state_tracking.py: {error}") from error
    print(f"{options.function}: {steps} steps on up to {options.length} bits, {time.perf_counter() - start:.0f} s")
    accuracy, last = test(model, options.test_length)
    print(f"Accuracy on {options.test_length} bits: {accuracy:.2%} over all positions, {last:.2%} at the last one")
    return 0 if accuracy > GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
