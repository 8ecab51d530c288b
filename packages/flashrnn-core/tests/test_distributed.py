"""Training on several processes: data parallel, with sharded parameters (FSDP2), and with heads shared out as a DTensor."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Callable

import pytest
import torch
import torch._dynamo  # before the process group, as in examples/train_ddp.py
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from core_inputs import BACKENDS, FUNCTIONS, Sizes, assert_equal, gradients, make_inputs, weights_like
from flashrnn import flashrnn
from flashrnn import nn as layers

SIZE = 2  # processes

pytestmark = pytest.mark.skipif(not dist.is_available() or sys.platform != "linux", reason="needs gloo over a file")


def run(works: Sequence[Callable[[], Any]], folder: Path) -> list[tuple[Any, ...]]:
    """What each of the works returns, in every process of one group: starting one takes most of the time."""
    torch.multiprocessing.spawn(_process, (works, folder), nprocs=SIZE)
    return [*zip(*(torch.load(folder / str(rank), weights_only=True) for rank in range(SIZE)))]


def _process(rank: int, works: Sequence[Callable[[], Any]], folder: Path) -> None:
    torch.set_num_threads(1)
    store, timeout = f"file://{folder}/store", timedelta(minutes=2)
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=SIZE, timeout=timeout)
    torch.save([work() for work in works], folder / str(rank))
    dist.destroy_process_group()


# --------------------------------------------------------------------------------------------------------------- training


class Model(nn.Module):
    """A bidirectional layer and a linear map."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.layer = getattr(layers, kind)(3, 4, 2, bidirectional=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x)[0])


def make(kind: str, seed: int = 0) -> Model:
    torch.manual_seed(seed)
    return Model(kind).double()


def train(model: nn.Module, rows: slice = slice(None)) -> Tensor:
    """The losses of some steps on these rows of the batch."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    x = torch.randn(5, 6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))[:, rows]
    losses = []
    for _ in range(4):
        optimizer.zero_grad()
        loss = (model(x) - x.cumsum(0).tanh()).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses)


def my_rows() -> slice:
    return slice(dist.get_rank(), None, SIZE)


def data_parallel(kind: str) -> Any:
    model = DistributedDataParallel(make(kind, seed=dist.get_rank()))  # which sends the parameters of rank 0 to all
    return train(model, my_rows()), model.module.state_dict()


def fully_sharded(kind: str) -> Any:
    from torch.distributed.fsdp import fully_shard

    model = make(kind)
    for module in (model.layer, model):
        fully_shard(module, mesh=dist.init_device_mesh("cpu", (SIZE,)))
    losses = train(model, my_rows())
    assert all(type(x).__name__ == "DTensor" for x in model.parameters())
    assert sum(x.to_local().numel() for x in model.parameters()) < 0.6 * sum(x.numel() for x in model.parameters())
    return losses, {name: x.full_tensor() for name, x in model.state_dict().items()}


def test_training_on_two_processes_is_that_on_one(tmp_path: Path) -> None:
    ways = [data_parallel]
    if hasattr(pytest.importorskip("torch.distributed.fsdp"), "fully_shard"):  # from torch 2.6 on
        ways.append(fully_sharded)
    cases = [(kind, way) for kind in ("LSTM", "GRU") for way in ways]
    for (kind, _), ranks in zip(cases, run([partial(way, kind) for kind, way in cases], tmp_path)):
        model = make(kind)
        losses = train(model)
        assert_equal(sum(loss for loss, _ in ranks) / SIZE, losses)
        for _, parameters in ranks:
            assert_equal(parameters, model.state_dict())


# ------------------------------------------------------------------------------------------------------------------ heads

SIZES = Sizes(B=2, T=5, NH=4, D=3)
AXES = {"Wx": 3, "R": 1, "b": 1, "states": 2}  # of the heads
OUTPUTS = (3, 3)  # states, last_states


def own_heads(function: str, backend: str) -> Any:
    """States, last_states and the gradients of all inputs, each a DTensor of which a process computes its own heads."""
    from torch.distributed.tensor import Shard, distribute_tensor
    from torch.distributed.tensor.debug import CommDebugMode
    from torch.distributed.tensor.experimental import local_map

    mesh = dist.init_device_mesh("cpu", (SIZE,))
    inputs = [
        distribute_tensor(x.detach(), mesh, [Shard(axis)]).requires_grad_()
        for x, axis in zip(make_inputs(function, SIZES), AXES.values())
    ]
    by_heads = local_map(
        partial(flashrnn, function=function, backend=backend),
        in_placements=tuple([Shard(axis)] for axis in AXES.values()),
        out_placements=tuple([Shard(axis)] for axis in OUTPUTS),
    )
    with CommDebugMode() as forward:
        outputs = by_heads(*inputs)
    outside = [distribute_tensor(x, mesh, [Shard(axis)]) for x, axis in zip(weights_like(outputs), OUTPUTS)]
    with CommDebugMode() as backward:
        found = [*outputs, *torch.autograd.grad(outputs, inputs, outside)]
    assert forward.get_total_counts() == backward.get_total_counts() == 0
    assert found[0].to_local().shape[3] == SIZES.NH // SIZE
    return [x.detach().full_tensor() for x in found]


def test_heads_shared_out_over_two_processes(tmp_path: Path) -> None:
    pytest.importorskip("torch.distributed.tensor.experimental")  # from torch 2.5 on
    cases = [(function, backend) for function in FUNCTIONS for backend in BACKENDS]
    for (function, backend), ranks in zip(cases, run([partial(own_heads, *case) for case in cases], tmp_path)):
        inputs = make_inputs(function, SIZES)
        outputs = flashrnn(*inputs, function=function, backend=backend)
        for found in ranks:
            assert_equal(found, [*outputs, *gradients(outputs, inputs)])
