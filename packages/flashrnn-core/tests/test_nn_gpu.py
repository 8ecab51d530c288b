"""The layers in 16 bits against torch.nn in float64, and in CUDA graphs."""

from __future__ import annotations

import copy
from typing import Any, Callable, Optional

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.nn.utils.rnn import pack_padded_sequence

import flashrnn.nn
from core_layers import KINDS, everywhere, flat, make_hx, randn
from flashrnn_testing import TOLERANCES, check_close

E = H = 64
SIZES = {"cpu": (3, 24), "cuda": (16, 256)}  # B, T
every = pytest.mark.parametrize("kind", KINDS)


def make(kind: str, device: str, dtype: torch.dtype, num_layers: int = 2, bidirectional: bool = False) -> nn.Module:
    """A layer of flashrnn.nn of E and H features."""
    torch.manual_seed(0)
    return getattr(flashrnn.nn, kind)(E, H, num_layers, bidirectional=bidirectional).to(device, dtype)


def leaves(values: Any, like: Tensor) -> Any:
    """A tensor, or a tuple of some, with the dtype and on the device of `like`, for which gradients can be asked."""
    if isinstance(values, tuple):
        return tuple(leaves(x, like) for x in values)
    return values.detach().to(like).requires_grad_()


def outcome(module: nn.Module, x: Tensor, hx: Any, lengths: Optional[Tensor] = None) -> dict[str, Tensor]:
    """Output, final states and all gradients by name, with rows packed if they have lengths.

    The outside gradients are numbers that bfloat16 has, so that they are the same in every dtype.
    """
    given = x if lengths is None else pack_padded_sequence(x, lengths, enforce_sorted=False)
    found = flat(module(given, hx))
    outside = [randn(*y.shape, seed=k).detach().bfloat16().to(y) for k, y in enumerate(found)]
    named = {"input": x, **{f"hx[{k}]": state for k, state in enumerate(flat(hx))}, **dict(module.named_parameters())}
    gradients = torch.autograd.grad(found, list(named.values()), outside)
    outputs = {f"output[{k}]": y.detach() for k, y in enumerate(found)}
    return {**outputs, **{f"gradient of {name}": x for name, x in zip(named, gradients)}}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("num_layers", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@everywhere
@every
def test_a_layer_in_16_bits(
    kind: str, device: str, dtype: torch.dtype, num_layers: int, bidirectional: bool, packed: bool
) -> None:
    """It is at most as far from torch.nn in float64 as one call may be from its exact result, times the root of the layers.

    Half of TOLERANCES is what one call may be off. Roundings of different layers are independent, so that their squares add
    up, and a layer does not enlarge those of the one before: weights as they are drawn make it no expansion. Two rows of one
    weight that changed places, or a weight off by 3%, are more than that.
    """
    B, T = SIZES[device]
    ours = make(kind, device, dtype, num_layers, bidirectional)
    theirs = getattr(nn, kind)(E, H, num_layers, bidirectional=bidirectional, device=device, dtype=torch.float64)
    theirs.load_state_dict(ours.state_dict())
    rounded = leaves((randn(T, B, E), make_hx(ours, B)), ours.weight_hh_l0)
    lengths = torch.linspace(1, T, B).long() if packed else None
    got = outcome(ours, *rounded, lengths)
    exact = outcome(theirs, *leaves(rounded, theirs.weight_hh_l0), lengths)
    for name, y in exact.items():
        one_call = (TOLERANCES[dtype].gradient if "gradient" in name else TOLERANCES[dtype].output) / 2
        error = ((got[name].double() - y).norm() / y.norm()).item()
        assert error <= one_call * num_layers**0.5, name


# ------------------------------------------------------------------------------------------------------------ CUDA graphs


def capture(run: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any]:
    """A graph of a call and its static results, after three calls on a side stream, as torch wants it."""
    side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(side)
    with torch.cuda.graph(graph):
        results = run()
    return graph, results


@pytest.mark.gpu
@every
def test_inference_in_a_cuda_graph(kind: str) -> None:
    module = make(kind, "cuda", torch.bfloat16, bidirectional=True).eval()
    B, T = 4, 32
    x = randn(T, B, E).detach().to(module.weight_hh_l0)
    hx = leaves(make_hx(module, B), x)
    lengths, resets = torch.tensor([0, 7, 32, 20], device="cuda"), torch.zeros(T, B, dtype=torch.bool, device="cuda")

    @torch.no_grad()
    def run() -> list[Tensor]:
        return flat(module(x, hx, lengths=lengths, resets=resets))

    graph, replayed = capture(run)
    for seed in (1, 2):
        x.copy_(randn(T, B, E, seed=seed).detach())
        lengths.copy_(lengths.flip(0))
        resets.copy_(randn(T, B, seed=seed) > 1)
        graph.replay()
        for k, (got, expected) in enumerate(zip(replayed, run())):
            check_close(f"output[{k}]", got, expected)


def trainer(kind: str, device: str) -> tuple[Callable[[], Tensor], Tensor]:
    """A training step in mixed precision, which returns its loss, and the batch that it reads."""
    module = make(kind, device, torch.float32)
    optimizer = torch.optim.SGD(module.parameters(), lr=5.0)
    x = randn(32, 4, E).detach().to(module.weight_hh_l0)

    def step() -> Tensor:
        optimizer.zero_grad()
        with torch.autocast(device, torch.bfloat16):
            output, _ = module(x)
        loss = mse_loss(output.float(), x.tanh())
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, x


@pytest.mark.gpu
@every
def test_a_training_step_in_a_cuda_graph(kind: str) -> None:
    (step, x), (captured, its_x) = trainer(kind, "cuda"), trainer(kind, "cuda")
    for _ in range(3):  # as capture does
        step()
    graph, loss = capture(captured)
    expected, got = [], []
    for number in range(20):  # with two batches in turn
        batch = (1 + number % 2) * randn(*x.shape, seed=number % 2).detach()
        x.copy_(batch)
        its_x.copy_(batch)
        graph.replay()
        expected.append(step().item())
        got.append(loss.item())
    assert got == pytest.approx(expected, rel=1e-3)
    assert got[18] < got[0] and got[19] < got[1]


@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream:UserWarning")  # torch itself keeps the captured nodes
@pytest.mark.gpu
@every
def test_make_graphed_callables(kind: str) -> None:
    module = make(kind, "cuda", torch.bfloat16)
    like, eager = module.weight_hh_l0, copy.deepcopy(module)
    graphed = torch.cuda.make_graphed_callables(module, leaves((randn(32, 4, E), make_hx(module, 4)), like))
    for seed in (1, 2):
        inputs = leaves((randn(32, 4, E, seed=seed), make_hx(module, 4, seed=7 * seed)), like)
        got = {name: y.clone() for name, y in outcome(graphed, *inputs).items()}
        for name, y in outcome(eager, *inputs).items():
            check_close(name, got[name], y, gradient="gradient" in name)
