"""The layers inside PyTorch: torch.compile, export, autocast, checkpointing, torch.func, other ways to differentiate."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.utils.rnn import PackedSequence, pack_sequence
from torch.utils.checkpoint import checkpoint

import flashrnn.nn
from core_inputs import assert_equal
from core_layers import KINDS, E, H, flat, gradients, layer, make_hx, pair, randn
from flashrnn import DoubleBackwardError, DtypeError, ForwardModeError, TransformError

B, T = 3, 5
EVERY = (*KINDS, "SLSTM")
TAKES_PACKED_SEQUENCES = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 10)  # in one graph
every = pytest.mark.parametrize("kind", EVERY)
torchs_own_warnings = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning:torch",  # of torch.jit, which torch calls itself
    "ignore:At pre-dispatch tracing:UserWarning",  # said in torch 2.4 of every operation that is not torch's own
)


def masks(time: int, rows: int) -> tuple[Tensor, Tensor]:
    """lengths [B] and resets [T, B]."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(0, time + 1, (rows,), generator=generator)
    return lengths, torch.rand(time, rows, generator=generator) < 0.3


@pytest.mark.parametrize(
    ("kind", "options"),
    [("LSTM", {"bidirectional": True, "num_heads": 2}), ("GRU", {"num_layers": 2}), ("RNN", {}), ("SLSTM", {})],
)
def test_compiles_once_for_all_sizes(kind: str, options: dict[str, Any]) -> None:
    from torch._dynamo.testing import CompileCounterWithBackend

    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    module = layer(kind, **options)
    compiled = torch.compile(module, fullgraph=True, dynamic=True, backend=counter)
    counts = []
    for time, rows in ((5, 7), (11, 6), (13, 2)):
        x, hx = randn(time, rows, E), make_hx(module, rows)
        lengths, resets = masks(time, rows)
        expected = module(x, hx, lengths=lengths, resets=resets)
        got = compiled(x, hx, lengths=lengths, resets=resets)
        assert_equal(flat(got), flat(expected))
        assert_equal(gradients(module, got, (x, hx)), gradients(module, expected, (x, hx)))
        with torch.no_grad():
            assert_equal(flat(compiled(x, hx, lengths=lengths, resets=resets)), flat(expected))
        counts.append(counter.frame_count)
    assert counts == counts[:1] * 3
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("lengths", "enforce_sorted"), [([5, 2, 2], True), ([2, 5, 1], False), ([1, 1], True), ([1], True), ([1], False)]
)
def test_compiles_packed_sequences(lengths: list[int], enforce_sorted: bool) -> None:
    torch._dynamo.reset()
    module = layer("LSTM", bidirectional=True)
    compiled = torch.compile(module, fullgraph=TAKES_PACKED_SEQUENCES, backend="aot_eager")
    made = pack_sequence(randn(sum(lengths), E).detach().split(lengths), enforce_sorted=enforce_sorted)
    packed = PackedSequence(made.data.requires_grad_(), *made[1:])
    got, expected = compiled(packed), module(packed)
    assert_equal(flat(got), flat(expected))
    assert_equal(gradients(module, got, packed.data), gradients(module, expected, packed.data))
    torch._dynamo.reset()


@torchs_own_warnings
@every
def test_exports_with_any_batch_and_time(kind: str) -> None:
    module = layer(kind, 2, bidirectional=True).eval().requires_grad_(False)
    dim = torch.export.Dim
    sizes = {0: dim("time", min=2, max=64), 1: dim("batch", min=2, max=64)}
    hx = make_hx(module, B)
    of_hx = tuple({1: sizes[1]} for _ in hx) if isinstance(hx, tuple) else {1: sizes[1]}
    with torch.no_grad():
        exported = torch.export.export(module, (randn(T, B, E), hx), dynamic_shapes={"input": sizes, "hx": of_hx})
        assert [str(node.target) for node in exported.graph.nodes].count("flashrnn.recurrence.default") == 4
        for time, rows in ((5, 3), (2, 7)):
            arguments = (randn(time, rows, E), make_hx(module, rows))
            assert_equal(flat(exported.module()(*arguments)), flat(module(*arguments)), 0)


@pytest.mark.parametrize("reentrant", [False, True])
@every
def test_checkpointing(kind: str, reentrant: bool) -> None:
    module = layer(kind, 2, bidirectional=True, dropout=0.5)
    x, (lengths, resets) = randn(T, B, E), masks(T, B)
    torch.manual_seed(0)
    expected = module(x, lengths=lengths, resets=resets)
    torch.manual_seed(0)
    got = checkpoint(lambda x: tuple(flat(module(x, lengths=lengths, resets=resets))), x, use_reentrant=reentrant)
    assert_equal(got, flat(expected), 0)
    of_expected = [x.grad for x in backward(module, x, flat(expected))]
    of_got = [x.grad for x in backward(module, x, got)]
    assert_equal(of_got, of_expected, 0)


def backward(module: nn.Module, x: Tensor, outputs: Any) -> list[Tensor]:
    """x and the parameters, with their gradients anew."""
    leaves = [x, *module.parameters()]
    for leaf in leaves:
        leaf.grad = None
    sum(y.square().sum() for y in outputs).backward()
    return [leaf.detach().clone().requires_grad_() if leaf.grad is None else leaf for leaf in leaves]


@every
def test_autocast(kind: str) -> None:
    module = getattr(flashrnn.nn, kind)(E, H, 2, bidirectional=True)
    x = randn(T, B, E).detach().float().requires_grad_()
    expected = module(x)
    with torch.autocast("cpu", torch.bfloat16):
        got = module(x)
        from_float32 = module(x, torch.zeros_like(expected[1])) if isinstance(expected[1], Tensor) else None
    assert {y.dtype for y in flat(got)} == {torch.bfloat16}
    assert from_float32 is None or from_float32[1].dtype == torch.float32
    assert_equal(got[0].float(), expected[0], 0.05)
    sum(y.float().sum() for y in flat(got)).backward()
    assert all(leaf.grad.dtype == torch.float32 for leaf in (x, *module.parameters()))
    assert flat(layer(kind)(randn(T, B, E)))[0].dtype == torch.float64  # autocast leaves float64 alone


@pytest.mark.parametrize(
    ("of_weights", "of_input"),
    [
        (torch.float32, torch.int64),
        (torch.float32, torch.float64),  # torch.nn's layers raise here, too: autocast leaves float64 alone
        (torch.float64, torch.float32),
        (torch.bfloat16, torch.complex64),
    ],
)
def test_autocast_does_not_hide_a_wrong_dtype(of_weights: torch.dtype, of_input: torch.dtype) -> None:
    x = torch.zeros(T, B, E, dtype=of_input)
    message = rf"^input: expected {of_weights}, as the weights have, got {of_input}\."
    for some in (x, pack_sequence([x[:, 0], x[:2, 1]])):
        with torch.autocast("cpu", torch.bfloat16), pytest.raises(DtypeError, match=message):
            layer("LSTM").to(of_weights)(some)


@every
def test_functional_call(kind: str) -> None:
    module, other, x = layer(kind, 2, seed=0), layer(kind, 2, seed=1), randn(T, B, E)
    expected = other(x)
    got = torch.func.functional_call(module, dict(other.named_parameters()), (x,))
    assert_equal(flat(got), flat(expected), 0)
    assert_equal(gradients(other, got, x), gradients(other, expected, x), 0)


@every
def test_other_derivatives_name_the_backend_that_has_them(kind: str) -> None:
    module, x = layer(kind), randn(T, B, E)
    with pytest.raises(TransformError, match="backend='vanilla'"):
        torch.func.grad(lambda x: module(x)[0].sum())(x.detach())
    (grad,) = torch.autograd.grad(module(x)[0].square().sum(), x, create_graph=True)
    with pytest.raises(DoubleBackwardError, match="backend='vanilla' has second ones: name it in the call, or in the layer"):
        grad.sum().backward()
    module.backend = "vanilla"
    expected = torch.autograd.grad(module(x)[0].sum(), x)[0]
    assert_equal(torch.func.grad(lambda x: module(x)[0].sum())(x.detach()), expected)


@torchs_own_warnings
@every
def test_forward_mode_names_the_backend_that_has_it(kind: str) -> None:
    module, x = layer(kind), randn(T, B, E)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x.detach(), torch.ones_like(x))
        with pytest.raises(
            ForwardModeError, match="backend='vanilla' has forward-mode ones: name it in the call, or in the layer"
        ):
            module(dual)
        module.backend = "vanilla"
        tangent = forward_ad.unpack_dual(module(dual)[0]).tangent
    assert_equal(tangent.sum(), torch.autograd.grad(module(x)[0].sum(), x)[0].sum())


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("kind", KINDS)
def test_vmap_over_an_ensemble(kind: str) -> None:
    """Of the forward pass; its derivatives by torch.func are those of vanilla."""
    modules = [layer(kind, seed=seed) for seed in range(3)]
    parameters, _ = torch.func.stack_module_state(modules)
    x = randn(T, B, E).detach()
    with torch.no_grad():
        stacked = torch.vmap(lambda some: torch.func.functional_call(modules[0], some, (x,))[0])(parameters)
        assert_equal(stacked, torch.stack([module(x)[0] for module in modules]))


@pytest.mark.parametrize("kind", KINDS)
def test_state_dict_hooks(kind: str) -> None:
    theirs, ours = pair(kind)
    calls: list[str] = []
    ours.register_state_dict_pre_hook(lambda *args: calls.append("save"))
    ours.register_load_state_dict_post_hook(lambda *args: calls.append("load"))
    file = io.BytesIO()
    torch.save(nn.Sequential(ours).state_dict(), file)
    nn.Sequential(ours).load_state_dict(nn.Sequential(theirs).state_dict())
    assert calls == ["save", "load"]
