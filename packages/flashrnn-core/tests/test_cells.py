"""The cells as data and as mathematics; a new cell needs no more than its CellSpec."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Optional

import pytest
import torch
from torch import Tensor

from core_inputs import BACKENDS, FUNCTIONS, NUM_GATES, NUM_STATES, assert_equal, copies, gradients
from flashrnn import ConfigError, FlashRNNConfig, flashrnn
from flashrnn.cells import CELLS, CellSpec, get_cell

IFZO = ("i", "f", "z", "o")
TABLE = {  # states; gates; gates of Wx, R and b: the table of NUMERICS.md
    "elman": (("h",), ("g",), ("g",), ("g",), ("g",)),
    "lstm": (("h", "c"), IFZO, IFZO, IFZO, IFZO),
    "gru": (("h",), ("g", "r", "z", "n"), ("r", "z", "n"), ("g", "r", "z"), ("g", "r", "z", "n")),
    "slstm": (("h", "c", "n", "m"), IFZO, IFZO, IFZO, IFZO),
}


def test_there_are_these_cells() -> None:
    assert sorted(CELLS) == sorted(TABLE) == sorted(FUNCTIONS)
    assert all(get_cell(name) is cell and cell.name == name for name, cell in CELLS.items())


@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_data_of_a_cell(function: str) -> None:
    cell = CELLS[function]
    assert (cell.states, cell.gates, cell.input_gates, cell.recurrent_gates, cell.bias_gates) == TABLE[function]
    assert cell.num_states == NUM_STATES[function]
    assert (len(cell.input_gates), len(cell.recurrent_gates), len(cell.bias_gates)) == NUM_GATES[function]
    assert cell.constant_states == (("m",) if function == "slstm" else ())


@pytest.mark.parametrize("name", ["rnn", "LSTM", "", None, ["lstm"]])
def test_an_unknown_cell_is_refused_with_the_known_ones(name: Any) -> None:
    with pytest.raises(ConfigError, match="lstm, gru, elman, slstm"):
        get_cell(name)


def old_states(cell: CellSpec, shape: tuple[int, ...]) -> list[Tensor]:
    """Random; n of slstm in -0.5..2 held at 0 from below, so that all branches occur, and c zero here and there."""
    states = [torch.randn(shape, dtype=torch.float64) for _ in cell.states]
    if cell.name == "slstm":
        states[2] = (torch.rand(shape, dtype=torch.float64) * 2.5 - 0.5).clamp(min=0)
        states[1][::2] = 0
    return [x.requires_grad_() for x in states]


def check_step_backward(cell: CellSpec, shape: tuple[int, ...] = (64, 5)) -> None:
    torch.manual_seed(0)
    gates = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for _ in cell.gates]
    old = old_states(cell, shape)
    new, saved = cell.step(gates, old)
    assert len(new) == len(cell.states) and len(saved) == len(cell.saved)
    assert all(x.shape == shape for x in (*new, *saved))
    grads = [torch.randn(shape, dtype=torch.float64) for _ in new]
    moving = [k for k, x in enumerate(new) if x.requires_grad]
    expected = torch.autograd.grad([new[k] for k in moving], [*gates, *old], [grads[k] for k in moving], allow_unused=True)
    with torch.no_grad():
        d_gates, d_old = cell.step_backward(grads, cell.derivatives(saved, old, new))
    assert len(d_gates) == len(gates) and len(d_old) == len(old)
    for got, want, x in zip((*d_gates, *d_old), expected, (*gates, *old)):
        zero = torch.zeros_like(x)
        assert_equal(zero if got is None else got, zero if want is None else want)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_step_backward_is_the_gradient_of_step(function: str) -> None:
    check_step_backward(CELLS[function])


def test_slstm_packs_both_exponentials_without_loss() -> None:
    from flashrnn.cells.slstm import pack_exponentials, unpack_exponentials

    one = torch.tensor(1.0)
    some = torch.tensor([0.0, 1e-30, 0.25, 1.0])
    for i_star, f_star in [(one.expand(4), some), (some, one.expand(4)), (one.expand(4), torch.full((4,), 7.0))]:
        packed = pack_exponentials(i_star, f_star).to(torch.bfloat16).float()
        expected = tuple(x.to(torch.bfloat16).float() for x in (i_star, f_star))
        assert_equal(unpack_exponentials(packed), expected, tolerance=0)


# ------------------------------------------------------------------------------------------------------------ badly ordered

GOOD: dict[str, Any] = {
    "name": "toy",
    "states": ("h", "s"),
    "gates": ("a", "u", "v"),
    "input_gates": ("u", "v"),
    "recurrent_gates": ("a", "u"),
    "bias_gates": ("v",),
    "saved": ("a", "v"),
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"states": ("s", "h")}, "first state"),
        ({"recurrent_gates": ("u", "v")}, "recurrent gates .* first"),
        ({"recurrent_gates": ("u", "a")}, "recurrent gates .* first"),
        ({"input_gates": ("a", "u")}, "input gates .* last"),
        ({"input_gates": ("v", "u")}, "input gates .* last"),
        ({"bias_gates": ("a",)}, "bias gates .* last"),
        ({"saved": ("a", "u", "v", "w")}, "saves 4 .* at most 3"),
    ],
)
def test_a_badly_ordered_cell_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"toy.*{message}"):
        CellSpec(**{**GOOD, **change}, **STEPS)


# --------------------------------------------------------------------------------------------------------------- a new cell


def toy_step(gates: Sequence[Tensor], states: Sequence[Tensor]) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """s' = a s / 2 + tanh(u);  h' = h / 4 + sin(s') s(v), with a through tanh."""
    h, s = states
    a, u, v = gates[0].tanh(), gates[1].tanh(), gates[2].sigmoid()
    s_new = a * s / 2 + u
    return (h / 4 + s_new.sin() * v, s_new), (a, u, v)


def toy_derivatives(saved: Sequence[Tensor], old: Sequence[Tensor], new: Sequence[Tensor]) -> tuple[Tensor, ...]:
    a, u, v = saved
    s_old, s_new = old[1], new[1]
    return v * s_new.cos(), s_old / 2 * (1 - a * a), 1 - u * u, s_new.sin() * v * (1 - v), a / 2


def toy_step_backward(
    grads: Sequence[Tensor], derivatives: Sequence[Tensor]
) -> tuple[tuple[Tensor, ...], tuple[Optional[Tensor], ...]]:
    dh, ds = grads
    h_by_s, s_by_a, s_by_u, h_by_v, s_by_s = derivatives
    ds = ds + dh * h_by_s
    return (ds * s_by_a, ds * s_by_u, dh * h_by_v), (dh / 4, ds * s_by_s)


STEPS: dict[str, Any] = {"step": toy_step, "derivatives": toy_derivatives, "step_backward": toy_step_backward}
TOY = CellSpec(**{**GOOD, "saved": ("a", "u", "v")}, **STEPS)


def toy_inputs(B: int = 3, T: int = 4, NH: int = 2, D: int = 3) -> list[Tensor]:
    torch.manual_seed(0)
    shapes = ((B, T, 2, NH, D), (2, NH, D, D), (1, NH, D), (2, B, NH, D))
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


def toy_loop(Wx: Tensor, R: Tensor, b: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
    """The toy cell in a loop of its own."""
    (h, s), history = states, []
    for t in range(Wx.shape[1]):
        Rh = torch.einsum("ghoi,bhi->gbho", R, h)
        (h, s), _ = toy_step((Rh[0], Rh[1] + Wx[:, t, 0], Wx[:, t, 1] + b[0]), (h, s))
        history.append(torch.stack((h, s)))
    return torch.stack(history, 2), torch.stack((h, s)).unsqueeze(2)


def test_the_toy_is_a_cell() -> None:
    check_step_backward(TOY)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_toy_cell_runs(monkeypatch: pytest.MonkeyPatch, backend: str, recompute: bool) -> None:
    monkeypatch.setitem(CELLS, "toy", TOY)
    tensors = toy_inputs()
    others = copies(tensors)
    config = FlashRNNConfig(function="toy", backend=backend, recompute=recompute)
    got, expected = flashrnn(*tensors, config=config), toy_loop(*others)
    assert_equal(got, expected)
    assert_equal(gradients(got, tensors), gradients(expected, others))


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("masked", [False, True])
def test_a_toy_cell_has_every_option(monkeypatch: pytest.MonkeyPatch, masked: bool, recompute: bool) -> None:
    monkeypatch.setitem(CELLS, "toy", TOY)
    masks = {"lengths": torch.tensor([4, 0, 2]), "resets": torch.rand(3, 4) < 0.4} if masked else {}
    for clipval, cut, forward_clipval in ((0.05, False, None), (None, True, None), (0.05, True, 0.2), (None, False, 0.2)):
        found = []
        for backend in BACKENDS:
            tensors = toy_inputs()
            config = FlashRNNConfig("toy", backend, None, forward_clipval, clipval, cut, recompute=recompute)
            outputs = flashrnn(*tensors, config=config, **masks)
            found.append((outputs, gradients(outputs, tensors)))
        assert_equal(found[1], found[0])
