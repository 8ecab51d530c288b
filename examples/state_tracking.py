"""Parity, a task of state tracking: is the number of ones so far odd?

    python examples/state_tracking.py --function lstm

Trained on bit strings of up to 40 bits, tested on 400, with a label at every position. Answering for any length takes a
state that is carried on and changed nonlinearly at every step, so a layer without recurrence of h through R cannot learn it.
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

from flashrnn.cells import CELLS
from rnn_layer import RNNLayer

BATCH_SIZE = 64
GOAL = 0.99


class ParityModel(nn.Module):
    """A recurrent layer that reads bits and says at every position whether their sum so far is odd."""

    def __init__(self, function: str, backend: str, num_heads: int = 1, head_dim: int = 32) -> None:
        super().__init__()
        self.layer = RNNLayer(1, num_heads, head_dim, function, backend)
        self.head = nn.Linear(num_heads * head_dim, 1)

    def forward(self, bits: Tensor) -> Tensor:
        """Logits [B, T] of bits [B, T]."""
        h, _ = self.layer(2 * bits.unsqueeze(-1) - 1)
        logits: Tensor = self.head(h).squeeze(-1)
        return logits


def parity_batch(batch_size: int, length: int, device: str) -> tuple[Tensor, Tensor]:
    """Random bits and the parity at every position, both [B, T]."""
    bits = torch.randint(0, 2, (batch_size, length), device=device)
    return bits.float(), (bits.cumsum(1) % 2).float()


def train(model: ParityModel, length: int, max_steps: int, device: str, lr: float, done_loss: float) -> int:
    """Curriculum: strings get longer as they are mastered, until `length` is. Returns the number of steps taken."""
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    now, mastered = 2, 0
    for step in range(1, max_steps + 1):
        bits, parity = parity_batch(BATCH_SIZE, now, device)
        loss = binary_cross_entropy_with_logits(model(bits), parity)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if now < length and loss.item() < 0.1:
            now = min(now + 1, length)
        mastered = mastered + 1 if now == length and loss.item() < done_loss else 0
        if mastered == 20:
            return step
        if step % 200 == 0:
            print(step, now, loss.item(), flush=True)
    return max_steps


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Train and test; 0 if the test accuracy is above 99%."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--function", choices=list(CELLS), default="lstm")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument("--done", type=float, default=1e-3)
    o = parser.parse_args(argv)
    torch.manual_seed(o.seed)
    torch.set_num_threads(2)
    model = ParityModel(o.function, o.backend)
    t = time.time()
    n = train(model, 40, 3000, "cpu", o.lr, o.done)
    with torch.no_grad():
        bits, parity = parity_batch(256, 400, "cpu")
        right = (model(bits) > 0) == parity.bool()
    print(o, n, f"{time.time() - t:.0f} s", right.float().mean().item(), right[:, -1].float().mean().item(), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
