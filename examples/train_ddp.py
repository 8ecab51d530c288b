"""Training on several GPUs, or on several processes of a CPU: parity again, with DistributedDataParallel.

    torchrun --nproc-per-node 2 examples/train_ddp.py --function lstm

Every process trains on strings of its own, and all hold the same parameters. On a machine with a GPU for each process they
talk through NCCL, else through Gloo.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import Optional

import torch
import torch._dynamo  # DistributedDataParallel would, after the process group is made, which then would never end
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.parallel import DistributedDataParallel

import flashrnn.nn
from state_tracking import parity_batch

LAYERS = {"lstm": flashrnn.nn.LSTM, "gru": flashrnn.nn.GRU, "elman": flashrnn.nn.RNN, "slstm": flashrnn.nn.SLSTM}


class ParityModel(nn.Module):
    """A layer that reads bits, and a guess after each whether their sum so far is odd."""

    def __init__(self, function: str, hidden_size: int) -> None:
        super().__init__()
        self.layer = LAYERS[function](1, hidden_size, batch_first=True)
        self.head = nn.Linear(hidden_size, 1)

    def forward(self, bits: Tensor) -> Tensor:
        """Logits [B, T] of "odd", given bits [B, T] of 0 and 1."""
        h, _ = self.layer(2 * bits.unsqueeze(-1) - 1)
        logits: Tensor = self.head(h).squeeze(-1)
        return logits


def device_of_this_process() -> torch.device:
    """A GPU of its own if there are enough, else the CPU."""
    local_rank, local_size = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    return torch.device("cuda", local_rank) if torch.cuda.device_count() >= local_size else torch.device("cpu")


def train(options: argparse.Namespace, device: torch.device) -> float:
    """Train on random strings; the last loss in nats per bit, averaged over all processes."""
    model = DistributedDataParallel(ParityModel(options.function, options.hidden_size).to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    loss = torch.zeros((), device=device)
    for _ in range(options.steps):
        bits, parity = (x.to(device) for x in parity_batch(options.batch_size, options.length))
        loss = binary_cross_entropy_with_logits(model(bits), parity)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    mean = loss.detach()
    dist.all_reduce(mean)
    return float(mean) / dist.get_world_size()


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Train in this process, one of those that torchrun started."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--function", choices=LAYERS, default="lstm")
    parser.add_argument("--hidden-size", type=int, default=32)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch-size", type=int, default=32, help="of each process")
    parser.add_argument("--length", type=int, default=6, help="bits of a string")
    options = parser.parse_args(argv)
    if "RANK" not in os.environ:
        parser.error("torchrun starts it: torchrun --nproc-per-node 2 examples/train_ddp.py")
    device = device_of_this_process()
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    torch.manual_seed(dist.get_rank())  # other strings in every process; the parameters of the first are sent to all
    loss = train(options, device)
    if dist.get_rank() == 0:
        print(f"{dist.get_world_size()} processes on {device.type}: loss {loss:.3f} nats per bit, 0.693 is guessing")
    dist.destroy_process_group()  # nothing holds the group any more: this ends its threads, which must not outlive Python
    return 0


if __name__ == "__main__":
    sys.exit(main())
