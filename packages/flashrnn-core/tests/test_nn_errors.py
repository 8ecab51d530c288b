"""What a layer refuses, in its constructor and in its call, and that the sentence says what is wrong."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence

import flashrnn.nn
from core_layers import E, H, layer
from flashrnn import BackendUnavailable, ConfigError, DeviceError, DtypeError, ShapeError

B, T = 2, 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"input_size": 0}, "input_size: expected an integer of at least 1, got 0."),
        ({"hidden_size": 4.0}, "hidden_size: expected an integer of at least 1, got 4.0."),
        ({"num_layers": True}, "num_layers: expected an integer of at least 1, got True."),
        ({"num_heads": -1}, "num_heads: expected an integer of at least 1, got -1."),
        ({"num_heads": 3}, "num_heads: expected a divisor of hidden_size = 4, got 3."),
        ({"bias": 1}, "bias: expected True or False, got 1."),
        ({"batch_first": None}, "batch_first: expected True or False, got None."),
        ({"bidirectional": "yes"}, "bidirectional: expected True or False, got 'yes'."),
        ({"dropout": 1.5}, "dropout: expected a probability, from 0 to 1, got 1.5."),
        ({"dropout": True}, "dropout: expected a probability, from 0 to 1, got True."),
        ({"proj_size": 2}, "proj_size: expected 0, got 2. torch.nn.LSTM has a projection of h, flashrnn.nn has none."),
        ({"backend": None}, "backend: expected a string, got None."),
    ],
)
def test_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        flashrnn.nn.LSTM(**{"input_size": E, "hidden_size": H, **options})
    assert str(caught.value) == message


def test_sizes_of_numpy() -> None:
    numpy = pytest.importorskip("numpy")
    layer = flashrnn.nn.LSTM(*(numpy.int64(size) for size in (E, H, 2)), num_heads=numpy.int32(2))
    kept = (layer.input_size, layer.hidden_size, layer.num_layers, layer.num_heads, layer.head_dim)
    assert kept == (E, H, 2, 2, H // 2) and {type(size) for size in kept} == {int}


@pytest.mark.parametrize("nonlinearity", ["relu", None])
def test_only_tanh(nonlinearity: Any) -> None:
    message = f"nonlinearity: expected 'tanh', got {nonlinearity!r}. torch.nn.RNN has 'relu', flashrnn.nn has not."
    for arguments, options in (((1, nonlinearity), {}), ((), {"nonlinearity": nonlinearity})):
        with pytest.raises(ConfigError) as caught:
            flashrnn.nn.RNN(E, H, *arguments, **options)
        assert str(caught.value) == message


def x(*shape: int, dtype: torch.dtype = torch.float64, device: str = "cpu") -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype, device=device)


GOOD, META = x(T, B, E), {"device": "meta"}


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        (
            (x(T, B, 4),),
            {},
            ShapeError,
            "input: expected shape [T, B, input_size] or [T, input_size] with input_size = 3, got",
        ),
        ((x(3),), {}, ShapeError, "input: expected shape [T, B, input_size] or [T, input_size] with input_size = 3, got"),
        (([GOOD],), {}, DtypeError, "input: expected a tensor, got list."),
        ((GOOD.to_sparse(),), {}, DtypeError, "input: expected a dense tensor, got one of layout torch.sparse_coo."),
        ((GOOD.float(),), {}, DtypeError, "input: expected torch.float64, as the weights have, got torch.float32. Write"),
        ((x(T, B, E, **META),), {}, DeviceError, "input: expected a tensor on cpu, as the weights are, got one on meta."),
        ((GOOD, x(1, B, H)), {}, DtypeError, "hx: expected a tuple (h_0, c_0), got Tensor."),
        ((GOOD, (x(1, B, H),)), {}, DtypeError, "hx: expected a tuple (h_0, c_0), got one of 1."),
        (
            (GOOD, (x(1, B, H), x(1, 3, H))),
            {},
            ShapeError,
            "hx[1]: expected shape [num_layers * num_directions, B, hidden_size] = [1, 2, 4], got shape [1, 3, 4].",
        ),
        (
            (GOOD, (x(1, H), x(1, H))),
            {},
            ShapeError,
            "hx[0]: expected shape [num_layers * num_directions, B, hidden_size] = [1",
        ),
        (
            (x(T, E), (x(1, 1, H), x(1, 1, H))),
            {},
            ShapeError,
            "hx[0]: expected shape [num_layers * num_directions, hidden_size] = [1, 4], got shape [1, 1, 4].",
        ),
        ((GOOD, (x(1, B, H), None)), {}, DtypeError, "hx[1]: expected a tensor, got NoneType."),
        (
            (GOOD, (x(1, B, H, dtype=torch.int64),) * 2),
            {},
            DtypeError,
            "hx[0]: expected a tensor of float16, bfloat16, float32",
        ),
        (
            (GOOD, (x(1, B, H), x(1, B, H, **META))),
            {},
            DeviceError,
            "hx[1]: expected a tensor on cpu, as input is, got one on",
        ),
        ((GOOD,), {"lengths": [5, 5]}, DtypeError, "lengths: expected a tensor, got list."),
        ((GOOD,), {"lengths": x(B)}, DtypeError, "lengths: expected an integer tensor, got torch.float64."),
        (
            (GOOD,),
            {"lengths": torch.tensor([5, 6])},
            ShapeError,
            "lengths: expected values from 0 to T = 5, got values from 5 to 6",
        ),
        (
            (GOOD,),
            {"lengths": torch.tensor([-1, 0])},
            ShapeError,
            "lengths: expected values from 0 to T = 5, got values from -1",
        ),
        (
            (GOOD,),
            {"lengths": torch.tensor([5, 5, 5])},
            ShapeError,
            "lengths: expected shape [B] = [2] for an input of [T, B, input_size], got shape [3].",
        ),
        (
            (x(T, E),),
            {"lengths": torch.tensor([5])},
            ShapeError,
            "lengths: expected shape [] = [] for an input of [T, input_size]",
        ),
        ((GOOD,), {"resets": [True]}, DtypeError, "resets: expected a tensor, got list."),
        (
            (GOOD,),
            {"resets": x(T, B)},
            DtypeError,
            "resets: expected a bool tensor, got torch.float64. Write resets.bool().",
        ),
        (
            (GOOD,),
            {"resets": x(B, T, dtype=torch.bool)},
            ShapeError,
            "resets: expected shape [T, B] = [5, 2] for an input of [T, B, input_size], got shape [2, 5].",
        ),
        (
            (GOOD,),
            {"resets": x(T, B, dtype=torch.bool, **META)},
            DeviceError,
            "resets: expected a tensor on cpu, as input is",
        ),
    ],
)
def test_calls(arguments: Any, options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        layer("LSTM")(*arguments, **options)
    assert type(caught.value) is error and str(caught.value).startswith(message)


def test_batch_first_is_said() -> None:
    with pytest.raises(ShapeError, match=r"^input: expected shape \[B, T, input_size\] or \[T, input_size\]"):
        layer("GRU", batch_first=True)(x(B, T, 4))
    with pytest.raises(
        ShapeError, match=r"^resets: expected shape \[B, T\] = \[2, 5\] for an input of \[B, T, input_size\]"
    ):
        layer("GRU", batch_first=True)(x(B, T, E), resets=x(T, B, dtype=torch.bool))


def test_one_state_is_a_tensor() -> None:
    with pytest.raises(DtypeError, match=r"^hx: expected a tensor, got tuple"):
        layer("GRU")(GOOD, (x(1, B, H),))
    with pytest.raises(DtypeError, match=r"^hx: expected a tuple \(h_0, c_0, n_0, m_0\), got one of 2"):
        layer("SLSTM")(GOOD, (x(1, B, H),) * 2)


def test_packed_sequences() -> None:
    packed = pack_padded_sequence(GOOD, torch.tensor([5, 3]))
    for name, value in (("lengths", torch.tensor([5, 3])), ("resets", x(T, B, dtype=torch.bool))):
        with pytest.raises(ConfigError, match=rf"^{name}: expected None with a PackedSequence, got Tensor"):
            layer("LSTM")(packed, **{name: value})
    with pytest.raises(
        ShapeError, match=r"^input: expected data of shape \[rows, input_size\] with input_size = 3, got shape \[8, 4\]"
    ):
        layer("LSTM")(pack_padded_sequence(x(T, B, 4), torch.tensor([5, 3])))
    with pytest.raises(ShapeError, match=r"^hx: expected shape .* = \[1, 2, 4\], got shape \[1, 1, 4\]"):
        layer("GRU")(packed, x(1, 1, H))
    with pytest.raises(DtypeError, match=r"^input: expected torch.float32, as the weights have, got torch.float64"):
        layer("GRU").float()(packed)


@pytest.mark.parametrize(
    ("kind", "name", "value", "error", "message"),
    [
        ("GRU", "bias_ih_l0", x(8), ShapeError, "shape [gates * hidden_size] = [12], got shape [8]."),
        ("GRU", "bias_ih_l0", x(4), ShapeError, "shape [gates * hidden_size] = [12], got shape [4]."),
        ("LSTM", "bias_hh_l1", x(4), ShapeError, "shape [gates * hidden_size] = [16], got shape [4]."),
        (
            "LSTM",
            "weight_ih_l0",
            x(16, 4),
            ShapeError,
            "shape [gates * hidden_size, features] = [16, 3], got shape [16, 4].",
        ),
        ("RNN", "weight_hh_l1", x(8, 4), ShapeError, "shape [gates * hidden_size, head_dim] = [4, 4], got shape [8, 4]."),
        ("SLSTM", "bias_hh_l0", None, DtypeError, "a tensor, got NoneType."),
        ("LSTM", "weight_ih_l0", None, DtypeError, "a tensor, got NoneType."),
        ("GRU", "bias_hh_l0", x(12, **META), DeviceError, "a tensor on cpu, as input is, got one on meta. Move it first."),
    ],
)
def test_parameters_that_were_exchanged(kind: str, name: str, value: Any, error: type[Exception], message: str) -> None:
    module = layer(kind, 2)
    if value is not None:
        with pytest.raises(error) as caught:
            torch.func.functional_call(module, {name: value}, (GOOD,))
        assert str(caught.value) == f"{name}: expected {message}"
        value = torch.nn.Parameter(value)
    setattr(module, name, value)
    with pytest.raises(error) as caught:
        module(GOOD)
    assert str(caught.value) == f"{name}: expected {message}"


def test_weights_without_memory() -> None:
    module, message = (
        layer("LSTM", device="meta"),
        r"^weight_ih_l0: expected a tensor on cpu, as input is, got one on meta\. Give",
    )
    for some in (GOOD, pack_padded_sequence(GOOD, torch.tensor([5, 3]))):
        with pytest.raises(DeviceError, match=message):
            module(some)


def test_a_backend_that_is_not_there() -> None:
    with pytest.raises(BackendUnavailable, match=r"^backend: expected one of auto, .*, got 'mine'\.$"):
        layer("LSTM", backend="mine")(GOOD)
