"""Initial states in every form, the dtype of last_states, the axis orders, and the dtype of gradients."""

from __future__ import annotations

from typing import Optional

import pytest
import torch
from torch import Tensor

from core_inputs import BACKENDS, FUNCTIONS, NUM_STATES, Sizes, assert_equal, copies, gradients, make_inputs, run
from flashrnn import flashrnn
from flashrnn.cells import CELLS

SIZES = Sizes(B=3, T=4, NH=2, D=2)
HALVES = (torch.float16, torch.bfloat16)
both = pytest.mark.parametrize("backend", BACKENDS)
every = pytest.mark.parametrize("function", FUNCTIONS)


def named(function: str, states: Tensor) -> dict[str, Tensor]:
    return dict(zip(CELLS[function].states, states.unbind(0)))


@every
@both
def test_states_as_last_states_came(function: str, backend: str) -> None:
    """[NS, B, 1, NH, D] is taken as [NS, B, NH, D] is, and gives a gradient in its own shape."""
    *weights, states = make_inputs(function, SIZES)
    with_time = states.detach().unsqueeze(2).requires_grad_()
    short, long = [*weights, states], [*copies(weights), with_time]
    expected, got = run(function, backend, short), run(function, backend, long)
    assert_equal(got, expected, tolerance=0)
    d_short, d_long = gradients(expected, short), gradients(got, long)
    assert d_long[3].shape == with_time.shape
    assert_equal([*d_long[:3], d_long[3].squeeze(2)], d_short, tolerance=0)


@pytest.mark.parametrize("output_shape", ["SBTHD", "STBHD"])
@every
@both
def test_last_states_feed_the_next_call(function: str, backend: str, output_shape: str) -> None:
    """Two pieces equal the whole, to the bit, in values; and in gradients."""
    tensors = make_inputs(function, SIZES)
    Wx, R, b, states = tensors
    NS, (B, _, NH, D) = NUM_STATES[function], SIZES
    time = output_shape.index("T")
    whole = run(function, backend, tensors, output_shape=output_shape)
    first, between = run(function, backend, [Wx[:, :1], R, b, states], output_shape=output_shape)
    assert between.shape == ((NS, B, 1, NH, D) if time == 2 else (NS, 1, B, NH, D))
    second, last = run(function, backend, [Wx[:, 1:], R, b, between], output_shape=output_shape)
    pieces = (torch.cat([first, second], time), last)
    assert_equal(pieces, whole, tolerance=0)
    assert_equal(gradients(pieces, tensors), gradients(whole, tensors))


@every
@both
def test_states_by_name(function: str, backend: str) -> None:
    tensors = make_inputs(function, SIZES)
    *weights, states = tensors
    expected = run(function, backend, tensors)
    by_name = dict(reversed(list(named(function, states).items())))
    got = run(function, backend, [*weights, by_name])
    assert_equal(got, expected, tolerance=0)
    assert_equal(gradients(got, tensors), gradients(expected, tensors), tolerance=0)
    with_time = {name: x.unsqueeze(1) for name, x in by_name.items()}
    assert_equal(run(function, backend, [*weights, with_time]), expected, tolerance=0)


@every
@both
def test_a_missing_name_means_zeros(function: str, backend: str) -> None:
    *weights, states = make_inputs(function, SIZES)
    for name, x in named(function, states.detach()).items():
        filled = torch.zeros_like(states)
        filled[CELLS[function].states.index(name)] = x
        got = run(function, backend, [*weights, {name: x}])
        assert_equal(got, run(function, backend, [*weights, filled]), tolerance=0)


@every
@both
def test_no_states_mean_zeros(function: str, backend: str) -> None:
    *weights, states = make_inputs(function, SIZES)
    expected = run(function, backend, [*weights, torch.zeros_like(states)])
    assert_equal(run(function, backend, weights), expected, tolerance=0)
    assert_equal(run(function, backend, [*weights, {}]), expected, tolerance=0)


@both
def test_states_by_name_in_mixed_dtypes(backend: str) -> None:
    """They meet in the dtype that holds them all: nothing is rounded; each gets its gradient in its own dtype."""
    Wx, R, b, _ = make_inputs("lstm", SIZES, torch.bfloat16)
    h = torch.randn(3, 2, 2).bfloat16().requires_grad_()
    c = torch.randn(3, 2, 2, requires_grad=True)
    states, last = run("lstm", backend, [Wx, R, b, {"h": h, "c": c}])
    expected = run("lstm", backend, [Wx, R, b, torch.stack([h.float(), c])])
    assert states.dtype == torch.bfloat16 and last.dtype == torch.float32
    assert_equal((states, last), expected, tolerance=0)
    dh, dc = torch.autograd.grad(last.sum(), (h, c))
    assert dh.dtype == torch.bfloat16 and dc.dtype == torch.float32


@both
def test_float16_and_bfloat16_by_name_meet_in_float32(backend: str) -> None:
    weights = make_inputs("lstm", SIZES, torch.bfloat16)[:3]
    h, c = torch.randn(3, 2, 2).half(), torch.randn(3, 2, 2).bfloat16()
    _, last = run("lstm", backend, [*weights, {"h": h, "c": c}])
    assert last.dtype == torch.float32


@pytest.mark.parametrize("states_dtype", [None, torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@every
@both
def test_dtypes_of_results(function: str, backend: str, dtype: torch.dtype, states_dtype: Optional[torch.dtype]) -> None:
    """states: what is computed in. last_states: the dtype of the initial states, or what is computed in."""
    *weights, initial = make_inputs(function, SIZES, torch.float32)
    given = weights if states_dtype is None else [*weights, initial.detach().to(states_dtype)]
    for T in (SIZES.T, 0):
        states, last = run(function, backend, [weights[0][:, :T], *given[1:]], dtype=dtype)
        assert states.dtype == dtype
        assert last.dtype == (dtype if states_dtype is None else states_dtype)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@every
@both
def test_float32_states_are_not_rounded_on_the_way(function: str, backend: str, dtype: torch.dtype) -> None:
    """A sequence cut into pieces equals the whole, to the bit, though computed in 16 bits."""
    *weights, initial = [x.detach() for x in make_inputs(function, SIZES, torch.float32)]
    if function == "slstm":
        initial[3] += 1000.3
    Wx, R, b = weights
    whole, last = run(function, backend, [Wx, R, b, initial], dtype=dtype)
    carried, pieces = initial, []
    for t in range(SIZES.T):
        piece, carried = run(function, backend, [Wx[:, t : t + 1], R, b, carried], dtype=dtype)
        pieces.append(piece)
    assert_equal((torch.cat(pieces, 2), carried), (whole, last), tolerance=0)
    assert not torch.equal(last, last.to(dtype).float())


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("function", ["lstm", "elman", "slstm"])
@both
def test_the_product_takes_h_in_the_dtype_computed_in(
    function: str, backend: str, dtype: torch.dtype, recompute: bool
) -> None:
    """Where h enters the product alone, rounding the initial h beforehand changes nothing: results, dR, db and dWx."""
    *weights, initial = make_inputs(function, SIZES, torch.float32)
    rounded = initial.detach().clone()
    rounded[0] = rounded[0].to(dtype).float()
    found = []
    for states in (initial, rounded.requires_grad_()):
        outputs = run(function, backend, [*weights, states], dtype=dtype, recompute=recompute)
        found.append((outputs, gradients(outputs, weights)))
    assert_equal(found[0], found[1], tolerance=0)


@pytest.mark.parametrize("lengths", [None, torch.tensor([4, 0, 2])], ids=["all", "lengths"])
@pytest.mark.parametrize("output_shape", ["SBTHD", "STBHD"])
@pytest.mark.parametrize("input_shape", ["BTGHD", "TBGHD"])
@every
@both
def test_axis_orders(function: str, backend: str, input_shape: str, output_shape: str, lengths: Optional[Tensor]) -> None:
    """Other orders are the default permuted: results, initial states as they came, and gradients."""
    tensors = make_inputs(function, SIZES)
    expected = run(function, backend, tensors, lengths)
    Wx, *rest = copies(tensors)
    if input_shape == "TBGHD":
        Wx = Wx.detach().transpose(0, 1).contiguous().requires_grad_()
    others = [Wx, *rest]
    got = run(function, backend, others, lengths, input_shape=input_shape, output_shape=output_shape)
    assert all(x.is_contiguous() for x in got)
    aligned = tuple(x.transpose(1, 2) if output_shape == "STBHD" else x for x in got)
    assert_equal(aligned, expected, tolerance=0)
    dWx, *d_rest = gradients(aligned, others)
    assert dWx.shape == Wx.shape
    if input_shape == "TBGHD":
        dWx = dWx.transpose(0, 1)
    assert_equal([dWx, *d_rest], gradients(expected, tensors))


@every
@both
def test_resets_are_batch_first_in_every_axis_order(function: str, backend: str) -> None:
    tensors = make_inputs(function, SIZES)
    resets = torch.rand(SIZES.B, SIZES.T, generator=torch.Generator().manual_seed(0)) < 0.4
    expected = run(function, backend, tensors, None, resets)
    Wx, *rest = tensors
    got = run(function, backend, [Wx.transpose(0, 1), *rest], None, resets, input_shape="TBGHD")
    assert_equal(got, expected, tolerance=0)


@every
@both
def test_float32_inputs_computed_in_bfloat16_get_float32_gradients(function: str, backend: str) -> None:
    tensors = make_inputs(function, SIZES, torch.float32)
    outputs = run(function, backend, tensors, dtype="bfloat16")
    assert outputs[0].dtype == torch.bfloat16
    found = gradients(outputs, tensors)
    assert all(x.dtype == torch.float32 for x in found)
    if backend == "vanilla_fwbw":
        for name, x in zip(("R", "b", "states"), found[1:]):
            assert not torch.equal(x, x.bfloat16().float()), f"the gradient of {name} was rounded to bfloat16"


@every
@both
def test_gradients_have_the_dtypes_of_the_inputs(function: str, backend: str) -> None:
    dtypes = (torch.float16, torch.float32, torch.bfloat16, torch.float64)
    tensors = [x.detach().to(d).requires_grad_() for x, d in zip(make_inputs(function, SIZES), dtypes)]
    outputs = flashrnn(*tensors, function=function, backend=backend, dtype="float32")
    assert [x.dtype for x in gradients(outputs, tensors)] == list(dtypes)
