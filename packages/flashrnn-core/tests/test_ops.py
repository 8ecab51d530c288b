"""The operation as PyTorch sees it: opcheck, torch.compile, export, checkpointing, other ways to differentiate."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint

from core_inputs import FUNCTIONS, MASKS, RESETS, Sizes, assert_equal, copies, make_inputs, run, weights_like
from flashrnn import ConfigError, DoubleBackwardError, FlashRNNConfig, ForwardModeError, ShapeError, TransformError, flashrnn

every = pytest.mark.parametrize("function", FUNCTIONS)
torchs_own_warnings = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning:torch",  # of torch.jit, which torch calls itself
    "ignore:At pre-dispatch tracing:UserWarning",  # said in torch 2.4 of every operation that is not torch's own
)


def arguments(function: str, tensors: Sequence[Any], masked: bool = False, **options: Any) -> tuple[Any, ...]:
    """What torch.ops.flashrnn.recurrence takes."""
    config = FlashRNNConfig(function, "vanilla_fwbw", tensors[0].dtype, **options)
    masks = MASKS["both"] if masked else (None, None)
    requires_grad = any(x is not None and x.requires_grad for x in tensors)
    return (*tensors, *masks, *config.values(), requires_grad)


# ---------------------------------------------------------------------------------------------------------------- opcheck


@pytest.mark.parametrize("recompute", [False, True])
@every
def test_opcheck(function: str, recompute: bool) -> None:
    torch.library.opcheck(
        torch.ops.flashrnn.recurrence.default, arguments(function, make_inputs(function), recompute=recompute)
    )


def test_opcheck_with_every_option() -> None:
    Wx, *rest = make_inputs("lstm", dtype=torch.float32)
    options = {"input_shape": "TBGHD", "output_shape": "STBHD", "forward_clipval": 0.5, "gradient_recurrent_clipval": 0.1}
    args = arguments("lstm", [Wx.detach().transpose(0, 1).contiguous().requires_grad_(), *rest], masked=True, **options)
    torch.library.opcheck(torch.ops.flashrnn.recurrence.default, args)


@pytest.mark.parametrize("sizes", [Sizes(T=0), Sizes(B=0)], ids=["T0", "B0"])
def test_opcheck_without_a_step(sizes: Sizes) -> None:
    torch.library.opcheck(torch.ops.flashrnn.recurrence.default, arguments("gru", make_inputs("gru", sizes)))


@every
def test_opcheck_of_the_backward_pass(function: str) -> None:
    tensors = [x.detach() for x in make_inputs(function)]
    *args, _ = arguments(function, tensors, recompute=True)
    results = torch.ops.flashrnn.recurrence(*args, True)
    grads = [torch.ones_like(x) for x in results[:2]]
    for needs in ([True] * 4, [False, True, False, True]):
        torch.library.opcheck(torch.ops.flashrnn.recurrence_backward.default, (*args, *results, *grads, needs))


# ---------------------------------------------------------------------------------------------------------- compile, export


def check_compiled(
    function: str, backend: str, compiler: str, sizes: Sequence[Sizes], tolerance: float, **masks: Any
) -> int:
    """Compile without a graph break, compare with eager for all these sizes; how often it was compiled."""
    from torch._dynamo.testing import CompileCounterWithBackend

    torch._dynamo.reset()
    counter = CompileCounterWithBackend(compiler)

    def layer(x: Tensor, Wx: Tensor, R: Tensor, b: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        states, last = flashrnn(Wx * x, R, b, states, function=function, backend=backend)
        return states.sin() * x, last

    compiled = torch.compile(layer, fullgraph=True, backend=counter)
    for size in sizes:
        x = torch.full((size.D,), 0.7, dtype=torch.float64, requires_grad=True)
        tensors = [x, *make_inputs(function, size)]
        expected, got = layer(*tensors), compiled(*tensors)
        assert_equal(got, expected, tolerance)
        weights = weights_like(expected)
        assert_equal(torch.autograd.grad(got, tensors, weights), torch.autograd.grad(expected, tensors, weights), tolerance)
    torch._dynamo.reset()
    return counter.frame_count


@pytest.mark.parametrize("backend", ["auto", "vanilla_fwbw"])
@every
def test_compiles_once_for_all_sizes(function: str, backend: str) -> None:
    sizes = [Sizes(B=2, T=3), Sizes(B=5, T=4), Sizes(B=3, T=7), Sizes(B=9, T=2)]
    count = check_compiled(function, backend, "aot_eager", sizes, tolerance=1e-12)
    assert count <= 2  # for the first size, and for any


@pytest.mark.skipif(not any(map(shutil.which, ("g++", "c++", "clang++"))), reason="inductor needs a C++ compiler on a CPU")
@torchs_own_warnings
def test_compiles_with_inductor() -> None:
    assert check_compiled("lstm", "auto", "inductor", [Sizes()], tolerance=1e-10) == 1


@pytest.mark.parametrize("backend", ["auto", "vanilla_fwbw"])
def test_compiles_with_masks_and_options(backend: str) -> None:
    torch._dynamo.reset()
    config = FlashRNNConfig("slstm", backend, None, 0.5, 0.1, recompute=True)

    def layer(Wx: Tensor, R: Tensor, b: Tensor, h: Tensor, lengths: Tensor, resets: Tensor) -> tuple[Tensor, Tensor]:
        return flashrnn(Wx, R, b, {"h": h}, config=config, lengths=lengths, resets=resets)

    *weights, states = make_inputs("slstm")
    tensors = [*weights, states[0].detach().requires_grad_()]
    expected = layer(*tensors, *MASKS["both"])
    got = torch.compile(layer, fullgraph=True, backend="aot_eager")(*tensors, *MASKS["both"])
    weights = weights_like(expected)
    assert_equal(got, expected)
    assert_equal(torch.autograd.grad(got, tensors, weights), torch.autograd.grad(expected, tensors, weights))


@pytest.mark.parametrize("inside", [False, True], ids=["outside", "inside"])
@every
def test_last_states_of_a_compiled_call_may_be_changed(function: str, inside: bool) -> None:
    """In place and before the backward pass, which does not read them; in the compiled graph, or after it."""
    torch._dynamo.reset()

    def layer(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        states, last = flashrnn(*tensors, function=function, backend="vanilla_fwbw")
        if inside:
            last.detach()[:, 0] = 0
        return states, last

    tensors = make_inputs(function)
    got, last = torch.compile(layer, fullgraph=True, backend="aot_eager")(*tensors)
    if not inside:
        last.detach()[:, 0] = 0
    assert not last[:, 0].any()
    expected, _ = run(function, "vanilla_fwbw", tensors)
    weights = weights_like((expected,))
    assert_equal(torch.autograd.grad(got, tensors, weights), torch.autograd.grad(expected, tensors, weights))


class Layer(torch.nn.Module):
    """An elman network of 2 heads of 2."""

    def __init__(self) -> None:
        super().__init__()
        _, R, b, _ = make_inputs("elman")
        self.R, self.b = torch.nn.Parameter(R.detach()), torch.nn.Parameter(b.detach())

    def forward(self, Wx: Tensor) -> tuple[Tensor, Tensor]:
        return flashrnn(Wx, self.R, self.b, function="elman")


@torchs_own_warnings
def test_exports_with_any_batch_and_time() -> None:
    layer, dim = Layer(), torch.export.Dim
    dynamic = ({0: dim("batch", min=2, max=64), 1: dim("time", min=2, max=64)},)
    with torch.no_grad():
        exported = torch.export.export(layer, (make_inputs("elman")[0].detach(),), dynamic_shapes=dynamic)
        assert any("flashrnn.recurrence" in str(node.target) for node in exported.graph.nodes)
        for sizes in (Sizes(), Sizes(B=4, T=6)):
            Wx = make_inputs("elman", sizes)[0].detach()
            assert_equal(exported.module()(Wx), layer(Wx), tolerance=0)


# ----------------------------------------------------------------------------------------------------------- differentiation


@pytest.mark.parametrize("backend", ["auto", "vanilla_fwbw"])
@every
def test_a_second_derivative_is_refused_with_what_has_it(function: str, backend: str) -> None:
    tensors = make_inputs(function)
    states, _ = run(function, backend, tensors)
    grads = torch.autograd.grad(states.square().sum(), tensors, create_graph=True)
    for grad in grads:
        with pytest.raises(DoubleBackwardError, match=f"{backend!r} has first derivatives only; backend='vanilla'"):
            torch.autograd.grad(grad.sum(), tensors, retain_graph=True, allow_unused=True)


@torchs_own_warnings
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("backend", ["auto", "vanilla_fwbw"])
def test_forward_mode_is_refused_and_never_a_silent_zero(backend: str, requires_grad: bool) -> None:
    Wx, *rest = [x.detach().requires_grad_(requires_grad) for x in make_inputs("lstm")]
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(Wx, torch.ones_like(Wx))
        with pytest.raises(ForwardModeError, match="backend='vanilla'"):
            run("lstm", backend, [dual, *rest])


@torchs_own_warnings
@every
def test_vanilla_has_forward_mode_too(function: str) -> None:
    Wx, *rest = make_inputs(function)
    with forward_ad.dual_level():
        states, _ = run(function, "vanilla", [forward_ad.make_dual(Wx, torch.ones_like(Wx)), *rest])
        tangent = forward_ad.unpack_dual(states).tangent[0].sum()
    (dWx,) = torch.autograd.grad(run(function, "vanilla", [Wx, *rest])[0][0].sum(), Wx)
    assert_equal(tangent, dWx.sum())


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("recompute", [False, True])
@every
def test_checkpointing(function: str, recompute: bool, reentrant: bool) -> None:
    tensors = make_inputs(function)
    others = copies(tensors)

    def layer(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        states, last = run(function, "vanilla_fwbw", list(tensors), recompute=recompute)
        return states.sin(), last

    expected, got = layer(*tensors), checkpoint(layer, *others, use_reentrant=reentrant)
    assert_equal(got, expected, tolerance=0)
    sum(x.square().sum() for x in expected).backward()
    sum(x.square().sum() for x in got).backward()
    assert_equal([x.grad for x in others], [x.grad for x in tensors], tolerance=0)


def test_without_gradients_nothing_is_recorded() -> None:
    tensors = make_inputs("lstm")
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            states, last = run("lstm", "vanilla_fwbw", tensors)
        assert not states.requires_grad and not last.requires_grad
    frozen = [x.detach() for x in tensors]
    assert not any(x.requires_grad for x in run("lstm", "vanilla_fwbw", frozen))


# ---------------------------------------------------------------------------------------- torch.func, and exported graphs


def square_sum(config: FlashRNNConfig, inputs: Sequence[Tensor], Wx: Tensor) -> Tensor:
    return flashrnn(Wx, *inputs[1:], config=config)[0].square().sum()


def gradient_of_Wx(loss: Any, Wx: Tensor) -> Tensor:
    Wx = Wx.detach().clone().requires_grad_()
    (found,) = torch.autograd.grad(loss(Wx), Wx)
    return found


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("clipval", [None, 0.01])
@pytest.mark.parametrize("backend", ["vanilla", "vanilla_fwbw"])
def test_vmap_has_the_gradients_of_the_call_itself(backend: str, clipval: Any) -> None:
    config = FlashRNNConfig("lstm", backend, gradient_recurrent_clipval=clipval)
    inputs = [x.detach() for x in make_inputs("lstm")]
    expected = gradient_of_Wx(lambda Wx: square_sum(config, inputs, Wx), inputs[0])
    mapped = gradient_of_Wx(lambda Wx: torch.vmap(lambda x: square_sum(config, inputs, x))(Wx[None]).sum(), inputs[0])
    torch.testing.assert_close(mapped, expected)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("masks", [("lengths",), ("resets",), ("lengths", "resets")], ids="+".join)
@pytest.mark.parametrize("backend", ["vanilla", "vanilla_fwbw"])
def test_vmap_over_lengths_and_resets(backend: str, masks: tuple[str, ...]) -> None:
    inputs = [x.detach() for x in make_inputs("lstm")]
    several = {"lengths": torch.tensor([[3, 1], [0, 2], [3, 3]]), "resets": torch.stack([RESETS, ~RESETS, RESETS])}

    def call(*given: Tensor) -> tuple[Tensor, Tensor]:
        return flashrnn(*inputs, backend=backend, **dict(zip(masks, given)))

    rows = [several[name] for name in masks]
    for mapped, *expected in zip(torch.vmap(call)(*rows), *map(call, *rows)):
        torch.testing.assert_close(mapped, torch.stack(expected))


def test_vmap_over_gradients_and_lengths() -> None:
    """torch.func wraps the mapped lengths once more."""
    inputs, lengths = [x.detach() for x in make_inputs("lstm")], torch.tensor([[3, 1], [0, 2]])

    def loss(Wx: Tensor, lengths: Tensor) -> Tensor:
        return flashrnn(Wx, *inputs[1:], backend="vanilla", lengths=lengths)[0].square().sum()

    gradient = torch.func.grad(loss)
    mapped = torch.vmap(gradient, (None, 0))(inputs[0], lengths)
    torch.testing.assert_close(mapped, torch.stack([gradient(inputs[0], x) for x in lengths]))
    with pytest.raises(ShapeError, match="lengths: expected values from 0 to T = 3"):
        gradient(inputs[0], torch.tensor([3, 4]))


def test_derivatives_of_torch_func_name_the_backend_that_has_them() -> None:
    inputs = [x.detach() for x in make_inputs("lstm")]
    with pytest.raises(TransformError, match="backend='vanilla'"):
        torch.func.grad(lambda Wx: square_sum(FlashRNNConfig(backend="vanilla_fwbw"), inputs, Wx))(inputs[0])
    config = FlashRNNConfig(backend="vanilla", gradient_recurrent_clipval=0.01)
    expected = gradient_of_Wx(lambda Wx: square_sum(config, inputs, Wx), inputs[0])
    torch.testing.assert_close(torch.func.grad(lambda Wx: square_sum(config, inputs, Wx))(inputs[0]), expected)
    with pytest.raises(ForwardModeError, match="gradient_recurrent_clipval"):
        torch.func.jvp(lambda Wx: square_sum(config, inputs, Wx), (inputs[0],), (inputs[0],))


class Recurrent(torch.nn.Module):
    def __init__(self, config: FlashRNNConfig, inputs: Sequence[Tensor]) -> None:
        super().__init__()
        self.config = config
        for name, x in zip(("R", "b", "states"), inputs[1:]):
            self.register_buffer(name, x)

    def forward(self, Wx: Tensor) -> Tensor:
        return flashrnn(Wx, self.R, self.b, self.states, config=self.config)[0]


@torchs_own_warnings
def test_what_was_exported_for_inference_can_be_trained() -> None:
    inputs = [x.detach() for x in make_inputs("lstm")]
    config = FlashRNNConfig(backend="vanilla_fwbw", gradient_recurrent_clipval=0.01)
    exported = torch.export.export(Recurrent(config, inputs), (inputs[0],)).module()
    expected = gradient_of_Wx(lambda Wx: square_sum(config, inputs, Wx), inputs[0])
    torch.testing.assert_close(gradient_of_Wx(lambda Wx: exported(Wx).square().sum(), inputs[0]), expected)


@torchs_own_warnings
@pytest.mark.skipif(not hasattr(torch.compiler, "is_exporting"), reason="this PyTorch does not say that it exports")
def test_vanilla_is_not_exported_without_its_clip() -> None:
    inputs = [x.detach() for x in make_inputs("lstm")]
    config = FlashRNNConfig(backend="vanilla", gradient_recurrent_clipval=0.01)
    with pytest.raises(ConfigError, match="vanilla_fwbw"):
        torch.export.export(Recurrent(config, inputs), (inputs[0],))
