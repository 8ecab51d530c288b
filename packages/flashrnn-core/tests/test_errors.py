"""Every wrong call: the class of the error, and that its message names the argument, what was expected and what came."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from flashrnn import ConfigError, DeviceError, DtypeError, FlashRNNConfig, FlashRNNError, ShapeError, flashrnn, step

B, T, NH, D = 2, 5, 3, 4  # D equals the number of gates: only the order of axes tells them apart


def zeros(*shape: int, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Tensor:
    return torch.zeros(shape, dtype=dtype, device=device)


def call(**changed: Any) -> tuple[Tensor, Tensor]:
    """A good call of the lstm, but for what is changed."""
    return flashrnn(**{"Wx": zeros(B, T, 4, NH, D), "R": zeros(4, NH, D, D), "b": zeros(4, NH, D), **changed})


def refusal(expected: type[FlashRNNError], **changed: Any) -> str:
    """The message of the error that this call raises."""
    with pytest.raises(expected) as caught:
        call(**changed)
    assert type(caught.value) is expected
    return str(caught.value)


GRU = {"function": "gru", "Wx": zeros(B, T, 3, NH, D), "R": zeros(3, NH, D, D)}
TBGHD = {"config": FlashRNNConfig(input_shape="TBGHD"), "Wx": zeros(T, B, 4, NH, D)}
STBHD = {"config": FlashRNNConfig(output_shape="STBHD")}
META = {"device": "meta"}


def test_the_call_that_is_changed_here_is_good() -> None:
    states, last_states = call()
    assert states.shape == (2, B, T, NH, D) and last_states.shape == (2, B, 1, NH, D)
    call(**GRU), call(**TBGHD), call(**STBHD)


@pytest.mark.parametrize(
    ("changed", "argument", "expected", "got"),
    [
        # rank
        ({"Wx": zeros(B, T, 48)}, "Wx", "5 axes [B, T, NG, NH, D]", "[2, 5, 48]"),
        ({"Wx": zeros(B, T, 4, NH * D)}, "Wx", "5 axes [B, T, NG, NH, D]", "[2, 5, 4, 12]"),
        ({**TBGHD, "Wx": zeros(T, B, 4, NH * D)}, "Wx", "5 axes [T, B, NG, NH, D]", "[5, 2, 4, 12]"),
        ({"R": zeros(4 * D, D)}, "R", "4 axes [NG, NH, D, D]", "[16, 4]"),
        ({"R": zeros(4, NH, D, 7)}, "R", "4 axes [NG, NH, D, D]", "[4, 3, 4, 7]"),
        ({"b": zeros(48)}, "b", "[NG, NH, D] = [4, 3, 4]", "[48]"),
        ({"states": zeros(B, NH, D)}, "states", "[NS, B, NH, D] = [2, 2, 3, 4]", "[2, 3, 4]"),
        # sizes
        ({"R": zeros(3, NH, D, D)}, "R", "[NG, NH, D, D] = [4, 3, 4, 4] (gates i, f, z, o)", "[3, 3, 4, 4]"),
        ({"R": zeros(4, 0, D, D)}, "R", "at least one head", "[4, 0, 4, 4]"),
        ({"R": zeros(4, NH, 0, 0)}, "R", "at least 1", "[4, 3, 0, 0]"),
        ({**GRU, "R": zeros(4, NH, D, D)}, "R", "[NG, NH, D, D] = [3, 3, 4, 4] (gates g, r, z)", "[4, 3, 4, 4]"),
        ({**GRU, "b": zeros(3, NH, D)}, "b", "[NG, NH, D] = [4, 3, 4] (gates g, r, z, n)", "[3, 3, 4]"),
        ({**GRU, "Wx": zeros(B, T, 4, NH, D)}, "Wx", "= [2, 5, 3, 3, 4] (gates r, z, n)", "[2, 5, 4, 3, 4]"),
        ({**TBGHD, "Wx": zeros(T, B, 3, NH, D)}, "Wx", "[T, B, NG, NH, D] = [5, 2, 4, 3, 4]", "[5, 2, 3, 3, 4]"),
        # states
        ({"states": zeros(4, B, NH, D)}, "states", "[NS, B, NH, D] = [2, 2, 3, 4] (states h, c)", "[4, 2, 3, 4]"),
        (
            {"states": zeros(2, B, NH, D), "function": "slstm"},
            "states",
            "= [4, 2, 3, 4] (states h, c, n, m)",
            "[2, 2, 3, 4]",
        ),
        ({"states": zeros(2, B, T, NH, D)}, "states", "[NS, B, 1, NH, D] = [2, 2, 1, 3, 4]", "[2, 2, 5, 3, 4]"),
        ({"states": zeros(2, 1, B, NH, D)}, "states", "[NS, B, 1, NH, D] = [2, 2, 1, 3, 4]", "[2, 1, 2, 3, 4]"),
        ({**STBHD, "states": zeros(2, B, 1, NH, D)}, "states", "[NS, 1, B, NH, D] = [2, 1, 2, 3, 4]", "[2, 2, 1, 3, 4]"),
        ({"states": {"c": zeros(B, D)}}, "states['c']", "[B, NH, D] = [2, 3, 4]", "[2, 4]"),
        ({"states": {"c": zeros(B, T, NH, D)}}, "states['c']", "[B, 1, NH, D] = [2, 1, 3, 4]", "[2, 5, 3, 4]"),
        ({"states": {"h": zeros(B, NH, D), "n": zeros(B, NH, D)}}, "states", "names among h, c for lstm", "n"),
        ({"states": {"hidden": zeros(B, NH, D)}}, "states", "names among h, c for lstm", "hidden"),
        ({"states": {0: zeros(B, NH, D)}}, "states", "names among h, c for lstm", "0"),
        # lengths and resets
        ({"lengths": torch.tensor([3, 6])}, "lengths", "from 0 to T = 5", "from 3 to 6"),
        ({"lengths": torch.tensor([-1, 5])}, "lengths", "from 0 to T = 5", "from -1 to 5"),
        ({"lengths": torch.tensor([3, 6]), "backend": "vanilla"}, "lengths", "from 0 to T = 5", "from 3 to 6"),
        ({**TBGHD, "lengths": torch.tensor([3, 6])}, "lengths", "from 0 to T = 5", "from 3 to 6"),
        ({"lengths": torch.tensor([3, 3, 3])}, "lengths", "[B] = [2]", "[3]"),
        ({"lengths": torch.tensor(3)}, "lengths", "[B] = [2]", "[]"),
        ({"resets": zeros(B, dtype=torch.bool)}, "resets", "[B, T] = [2, 5]", "[2]"),
        ({**TBGHD, "resets": zeros(T, B, dtype=torch.bool)}, "resets", "[B, T] = [2, 5]", "[5, 2]"),
    ],
)
def test_shapes(changed: dict[str, Any], argument: str, expected: str, got: str) -> None:
    message = refusal(ShapeError, **changed)
    assert message.startswith(f"{argument}: expected ")
    assert expected in message.partition(", got ")[0]
    assert got in message.partition(", got ")[2]


@pytest.mark.parametrize(
    ("argument", "given", "swapped"),
    [
        ("Wx", zeros(B, T, NH, 4, D), "NG and NH"),
        ("Wx", zeros(B, T, 4, D, NH), "NH and D"),
        ("Wx", zeros(B, 4, T, NH, D), "T and NG"),
        ("Wx", zeros(B, NH, 4, T, D), "T and NH"),
        ("Wx", zeros(B, D, 4, NH, T), "T and D"),
        ("Wx", zeros(B, NH, NH, 4, D), "NG and NH"),  # with T = NH, T and NG could be meant too
        ("R", zeros(NH, 4, D, D), "NG and NH"),
        ("b", zeros(NH, 4, D), "NG and NH"),
        ("b", zeros(4, D, NH), "NH and D"),
        ("states", zeros(2, NH, B, D), "B and NH"),
        ("states", zeros(2, NH, 1, B, D), "B and NH"),
        ("states", zeros(2, B, D, NH), "NH and D"),
        ("resets", zeros(T, B, dtype=torch.bool), "B and T"),
    ],
)
def test_swapped_axes_are_recognised(argument: str, given: Tensor, swapped: str) -> None:
    message = refusal(ShapeError, **{argument: given})
    assert message.startswith(f"{argument}: expected ")
    assert f"The axes {swapped} look swapped" in message


def test_swapped_axes_of_time_first() -> None:
    config = FlashRNNConfig(input_shape="TBGHD")
    message = refusal(ShapeError, Wx=zeros(4, B, T, NH, D), config=config)
    assert message.endswith("The axes T and NG look swapped for input_shape 'TBGHD'.")


@pytest.mark.parametrize(
    ("given", "todo"),
    [
        (zeros(B, T, 4 * NH * D), "Write Wx.unflatten(-1, (4, 3, 4)), if its features are in that order."),
        (zeros(B, T, 4, NH * D), "Write Wx.unflatten(-1, (3, 4)), if its features are in that order."),
        (zeros(B, 4 * NH * D, T), "Its last two axes look swapped, of which NG, NH and D have to be the last."),
        (zeros(B, T, 47), "got shape [2, 5, 47]."),
        (zeros(B, T), "got shape [2, 5]."),
    ],
)
def test_flat_axes_are_recognised(given: Tensor, todo: str) -> None:
    assert refusal(ShapeError, Wx=given).endswith(todo)


@pytest.mark.parametrize(
    ("argument", "given", "expected", "got"),
    [
        ("Wx", zeros(B, T, 4, NH, D, dtype=torch.int32), "float16, bfloat16, float32, float64", "torch.int32"),
        ("Wx", zeros(B, T, 4, NH, D, dtype=torch.complex64), "float16, bfloat16, float32, float64", "torch.complex64"),
        ("R", zeros(4, NH, D, D, dtype=torch.int64), "float16, bfloat16, float32, float64", "torch.int64"),
        ("b", zeros(4, NH, D, dtype=torch.bool), "float16, bfloat16, float32, float64", "torch.bool"),
        ("states", zeros(2, B, NH, D, dtype=torch.int8), "float16, bfloat16, float32, float64", "torch.int8"),
        ("lengths", torch.tensor([1.0, 2.0]), "an integer tensor", "torch.float32"),
        ("lengths", torch.tensor([True, False]), "an integer tensor", "torch.bool"),
        ("resets", zeros(B, T), "a bool tensor", "torch.float32"),
        ("resets", zeros(B, T, dtype=torch.int64), "a bool tensor", "torch.int64"),
        ("Wx", None, "a tensor", "NoneType"),
        ("R", [[1.0]], "a tensor", "list"),
        ("b", 0.0, "a tensor", "float"),
        ("states", (zeros(B, NH, D), zeros(B, NH, D)), "a tensor", "tuple"),
        ("lengths", [3, 5], "a tensor", "list"),
        ("resets", [[True]], "a tensor", "list"),
    ],
)
def test_types(argument: str, given: Any, expected: str, got: str) -> None:
    message = refusal(DtypeError, **{argument: given})
    assert message.startswith(f"{argument}: expected ")
    assert expected in message and f", got {got}." in message


GOOD = {
    "Wx": zeros(B, T, 4, NH, D),
    "R": zeros(4, NH, D, D),
    "b": zeros(4, NH, D),
    "states": zeros(2, B, NH, D),
    "lengths": zeros(B, dtype=torch.int64),
    "resets": zeros(B, T, dtype=torch.bool),
}
torchs_own_warnings = pytest.mark.filterwarnings("ignore:.*in (beta|prototype)", "ignore:Sparse CSR")


@torchs_own_warnings
@pytest.mark.parametrize("argument", GOOD)
def test_sparse_and_nested(argument: str) -> None:
    x = GOOD[argument]
    message = f"{argument}: expected a dense tensor, got one of layout torch.sparse_coo. Write {argument}.to_dense()."
    assert refusal(DtypeError, **{argument: x.to_sparse()}) == message
    message = f"{argument}: expected a dense tensor, got a nested one. torch.nested.to_padded_tensor makes one."
    assert refusal(DtypeError, **{argument: torch.nested.as_nested_tensor(list(x))}) == message
    if x.ndim > 1:
        assert refusal(DtypeError, **{argument: torch.nested.as_nested_tensor(list(x), layout=torch.jagged)}) == message
        assert "torch.sparse_csr" in refusal(DtypeError, **{argument: x.to_sparse_csr()})
    if x.is_floating_point() and torch.backends.mkldnn.is_available():
        assert "got one of layout torch._mkldnn" in refusal(DtypeError, **{argument: x.to_mkldnn()})


@torchs_own_warnings
def test_sparse_states_by_name_and_of_a_step() -> None:
    assert refusal(DtypeError, states={"c": zeros(B, NH, D).to_sparse()}).startswith("states['c']: expected a dense tensor")
    nested = torch.nested.as_nested_tensor(list(GOOD["Wx"][:, 0]))
    with pytest.raises(DtypeError, match="Wx: expected a dense tensor, got a nested one"):
        step(nested, GOOD["R"], GOOD["b"])


def test_types_of_states_by_name() -> None:
    assert refusal(DtypeError, states={"h": None}).startswith("states['h']: expected a tensor")
    message = refusal(DtypeError, states={"h": zeros(B, NH, D), "c": zeros(B, NH, D, dtype=torch.int32)})
    assert message.startswith("states['c']: expected ") and "torch.int32" in message


@pytest.mark.parametrize(
    ("argument", "given"),
    [
        ("R", zeros(4, NH, D, D, **META)),
        ("b", zeros(4, NH, D, **META)),
        ("states", zeros(2, B, NH, D, **META)),
        ("states['c']", {"h": zeros(B, NH, D), "c": zeros(B, NH, D, **META)}),
        ("lengths", zeros(B, dtype=torch.int64, **META)),
        ("resets", zeros(B, T, dtype=torch.bool, **META)),
    ],
)
def test_mixed_devices(argument: str, given: Any) -> None:
    message = refusal(DeviceError, **{argument.partition("[")[0]: given})
    assert message.startswith(f"{argument}: expected a tensor on cpu, as Wx is, got one on meta.")


def test_all_on_another_device_than_the_cpu_is_no_error() -> None:
    states, _ = call(Wx=zeros(B, T, 4, NH, D, **META), R=zeros(4, NH, D, D, **META), b=zeros(4, NH, D, **META))
    assert states.device.type == "meta" and states.shape == (2, B, T, NH, D)


@pytest.mark.parametrize("value", [-1.0, 0, 0.0, float("nan"), float("inf"), -float("inf"), 1e39, 10**400, True, "1"])
@pytest.mark.parametrize("option", ["forward_clipval", "gradient_recurrent_clipval"])
def test_clip_values(option: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        FlashRNNConfig(**{option: value})
    message = str(caught.value)
    assert message.startswith(f"{option}: expected None or a number above 0") and f", got {value!r}." in message


@pytest.mark.parametrize("name", ["float16", "float32", "float64", "int64"])
def test_clip_values_of_numpy(name: str) -> None:
    numpy = pytest.importorskip("numpy")
    value = getattr(numpy, name)(2)
    config = FlashRNNConfig(forward_clipval=value, gradient_recurrent_clipval=value)
    assert config == FlashRNNConfig(forward_clipval=2, gradient_recurrent_clipval=2.0)
    assert type(config.forward_clipval) is type(config.gradient_recurrent_clipval) is float
    call(config=config)
    for wrong in (getattr(numpy, name)(-1), numpy.float32("nan"), numpy.bool_(True), numpy.ones(1, name)):
        with pytest.raises(ConfigError, match="forward_clipval: expected None or a number above 0"):
            FlashRNNConfig(forward_clipval=wrong)


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("function", "LSTM", "lstm, gru, elman, slstm"),
        ("function", None, "lstm, gru, elman, slstm"),
        ("backend", None, "a string"),
        ("dtype", "float33", "float16, bfloat16, float32, float64"),
        ("dtype", torch.int32, "float16, bfloat16, float32, float64"),
        ("dtype", float, "float16, bfloat16, float32, float64"),
        ("gradient_recurrent_cut", 1, "True or False"),
        ("recompute", None, "True or False"),
        ("input_shape", "BTHGD", "'BTGHD' or 'TBGHD'"),
        ("output_shape", ["SBTHD"], "'SBTHD' or 'STBHD'"),
    ],
)
def test_options(option: str, value: Any, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        FlashRNNConfig(**{option: value})
    message = str(caught.value)
    assert message.startswith(f"{option}: expected ") and expected in message and f", got {value!r}." in message
    if option in ("function", "backend", "dtype"):
        assert refusal(ConfigError, **{option: value}) == message


def test_a_config_that_is_none() -> None:
    message = refusal(ConfigError, config={"function": "lstm"})
    assert message == "config: expected a FlashRNNConfig or None, got dict."


@pytest.mark.parametrize(
    ("option", "argument", "configured"),
    [
        ("function", "gru", "slstm"),
        ("backend", "vanilla", "vanilla_fwbw"),
        ("dtype", "float32", torch.bfloat16),
        ("dtype", torch.float64, "float16"),
    ],
)
def test_a_call_that_contradicts_its_config(option: str, argument: Any, configured: Any) -> None:
    message = refusal(ConfigError, **{option: argument}, config=FlashRNNConfig(**{option: configured}))
    assert message.startswith(f"{option}: the call says ")
    assert all(str(value).replace("torch.", "") in message for value in (argument, configured))


def test_a_call_that_agrees_with_its_config() -> None:
    config = FlashRNNConfig("gru", "vanilla_fwbw", "float64")
    states, _ = call(**GRU, backend="vanilla_fwbw", dtype=torch.float64, config=config)
    assert states.dtype == torch.float64 and states.shape[0] == 1
    gru = {name: x for name, x in GRU.items() if name != "function"}
    assert call(**gru, config=config)[0].shape[0] == 1  # an argument left at its default says nothing


@pytest.mark.parametrize(
    ("error", "builtin"),
    [(ShapeError, ValueError), (DtypeError, TypeError), (DeviceError, ValueError), (ConfigError, ValueError)],
)
def test_errors_are_also_those_of_python(error: type[Exception], builtin: type[Exception]) -> None:
    assert issubclass(error, FlashRNNError) and issubclass(error, builtin)
