"""slstm against its formula, for any initial state."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from core_inputs import BACKENDS, RECOMPUTE, Sizes, assert_equal, copies, gradients, make_inputs, run
from core_reference import BOUND, reference

H, C, N, M = range(4)
INITIAL = ("zero", "random", "h only", "c without n", "n below 1", "mixed")
SIZES = Sizes(B=3, T=4, NH=2, D=3)


def logsigmoid(x: float) -> float:
    return -math.log1p(math.exp(-x)) if x > 0 else x - math.log1p(math.exp(x))


def sigmoid(x: float) -> float:
    return math.exp(logsigmoid(x))


def step(i: float, f: float, z: float, o: float, c: float, n: float, m: float) -> tuple[float, float, float, float]:
    """One element of NUMERICS.md's sLSTM in Python's own arithmetic."""
    decayed = logsigmoid(f) + m
    new_m = i if n == 0 else max(i, decayed)
    i_star = math.exp(i - new_m)
    f_star = 0.0 if (n == 0 and c == 0) or decayed - new_m > BOUND else math.exp(decayed - new_m)
    new_c = f_star * c + i_star * math.tanh(z)
    new_n = max(f_star * n + i_star, 1.0)
    return sigmoid(o) * new_c / new_n, new_c, new_n, new_m


def by_element(Wx: Tensor, R: Tensor, b: Tensor, initial: Tensor) -> Tensor:
    """States [4, B, T, NH, D], one element after the other."""
    B, T, _, NH, D = Wx.shape
    out = torch.empty(4, B, T, NH, D, dtype=torch.float64)
    Wx_, R_, b_ = Wx.tolist(), R.tolist(), b.tolist()
    for row in range(B):
        for head in range(NH):
            h, c, n, m = (initial[k, row, head].tolist() for k in range(4))
            for t in range(T):
                new = []
                for d in range(D):
                    gates = [
                        Wx_[row][t][g][head][d] + sum(R_[g][head][d][e] * h[e] for e in range(D)) + b_[g][head][d]
                        for g in range(4)
                    ]
                    new.append(step(*gates, c[d], n[d], m[d]))
                h, c, n, m = (list(x) for x in zip(*new))
                out[:, row, t, head] = torch.tensor([h, c, n, m], dtype=torch.float64)
    return out


def initial_states(kind: str, dtype: torch.dtype = torch.float64, sizes: Sizes = SIZES) -> Tensor:
    """[4, B, NH, D]; "mixed" has elements of all kinds."""
    B, _, NH, D = sizes
    generator = torch.Generator().manual_seed(7)
    states = torch.randn(4, B, NH, D, generator=generator, dtype=torch.float64)
    states[N] = 1 + states[N].abs()
    if kind == "zero":
        states.zero_()
    elif kind == "h only":
        states[C:] = 0
    elif kind == "c without n":
        states[N] = 0
    elif kind == "n below 1":
        states[N] = torch.rand(B, NH, D, generator=generator, dtype=torch.float64)
    elif kind == "mixed":
        which = torch.arange(B * NH * D).view(B, NH, D) % 4
        states[N][which >= 2] = 0
        states[C][(which == 3) | (which == 1)] = 0
        states[N][which == 1] /= 4
    return states.to(dtype).requires_grad_()


@pytest.mark.parametrize("initial", INITIAL)
@pytest.mark.parametrize("backend", BACKENDS)
def test_values_equal_the_formula(backend: str, initial: str) -> None:
    Wx, R, b, _ = make_inputs("slstm", SIZES)
    start = initial_states(initial)
    states, last = run("slstm", backend, [Wx, R, b, start])
    expected = by_element(Wx, R, b, start)
    assert_equal(states, expected)
    assert_equal(last, expected[:, :, -1:])


@pytest.mark.parametrize("initial", INITIAL)
@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_equal_those_of_the_formula(backend: str, initial: str) -> None:
    """Of all four states, and for c without n and n below 1 too, where finite differences do not apply."""
    tensors = [*make_inputs("slstm", SIZES)[:3], initial_states(initial)]
    others = copies(tensors)
    expected = gradients(reference("slstm", others), others, unused=True)
    for recompute in RECOMPUTE[backend]:
        assert_equal(gradients(run("slstm", backend, tensors, recompute=recompute), tensors), expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_states_are_zero_states(backend: str) -> None:
    Wx, R, b, _ = make_inputs("slstm", SIZES)
    assert_equal(run("slstm", backend, [Wx, R, b]), run("slstm", backend, [Wx, R, b, initial_states("zero")]), 0)


ROUNDING = {torch.float16: 2e-3, torch.bfloat16: 2e-2, torch.float32: 3e-5, torch.float64: 1e-12}


@pytest.mark.parametrize("f_star", [1.5, 30.0, 250.0, 260.0, 1e13, 1.8e19, 1.9e19, 1e100, 1.3e154, 1.4e154])
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_c_without_n(backend: str, dtype: torch.dtype, recompute: bool, f_star: float) -> None:
    """It counts while the square of exp(l - m') is a number in the dtype; beyond, the step is that from c = 0."""
    weight = f_star if f_star <= torch.finfo(dtype).max ** 0.5 else 0.0
    z, m = 0.5, math.log(2 * f_star)  # with i = f = 0: l - m' = m - log(2)
    Wx = torch.tensor([0, 0, math.atanh(z), 0], dtype=torch.float64).view(1, 1, 4, 1, 1).requires_grad_()
    start = torch.tensor([0, 1, 0, m], dtype=torch.float64).view(4, 1, 1, 1).requires_grad_()
    R, b, options = torch.zeros(4, 1, 1, 1), torch.zeros(4, 1, 1), {"recompute": recompute and backend != "vanilla"}
    states, last = run("slstm", backend, [Wx, R, b, start], dtype=dtype, **options)
    c = weight + z
    assert_equal(last.flatten().tolist(), [c / 2, c, 1.0, 0.0], ROUNDING[dtype])
    assert states.isfinite().all()
    dWx, d_start = (x.flatten().tolist() for x in torch.autograd.grad(last[H].sum(), (Wx, start)))
    assert_equal(dWx[1:], [weight / 4, (1 - z * z) / 2, c / 4], ROUNDING[dtype])  # by f, z, o
    assert_equal(d_start, [0.0, weight / 2, -weight * c / 2, 0.0], ROUNDING[dtype])


# ------------------------------------------------------------------------------------------------------------ extreme gates


@pytest.mark.parametrize(("gate", "value"), [("i", -200.0), ("f", -200.0), ("i", 200.0), ("f", 200.0)])
@pytest.mark.parametrize("initial", INITIAL)
@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_extreme_gates_are_finite(backend: str, dtype: torch.dtype, initial: str, gate: str, value: float) -> None:
    for where in ("all steps", "first", "last"):
        Wx, R, b, _ = make_inputs("slstm", SIZES, dtype)
        steps = {"all steps": slice(None), "first": slice(0, 1), "last": slice(-1, None)}[where]
        with torch.no_grad():
            Wx[:, steps, "ifzo".index(gate)] = value
        tensors = [Wx, R, b, initial_states(initial, dtype)]
        for recompute in RECOMPUTE[backend]:
            outputs = run("slstm", backend, tensors, recompute=recompute)
            for x in (*outputs, *gradients(outputs, tensors)):
                assert torch.isfinite(x).all(), where


@pytest.mark.parametrize("backend", BACKENDS)
def test_extreme_gates_in_float32_equal_float64(backend: str) -> None:
    for gate, value in ((0, -200.0), (1, -200.0), (0, 200.0)):
        wide = [*make_inputs("slstm", SIZES)[:3], initial_states("random")]
        with torch.no_grad():
            wide[0][:, :, gate] = value
        single = [x.detach().float().requires_grad_() for x in wide]
        got = run("slstm", backend, single)
        expected = run("slstm", "vanilla", [x.detach().double() for x in single])
        torch.testing.assert_close(got, tuple(x.float() for x in expected), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_gradient_of_a_forget_gate_wide_open_keeps_its_digits(backend: str, dtype: torch.dtype) -> None:
    """s(-f), not 1 - s(f), which is 0 for f = 20."""
    Wx = torch.tensor([0.0, 20.0, 0.5, 0.0]).view(1, 1, 4, 1, 1).requires_grad_()
    start = torch.tensor([0.0, 1.0, 1.0, 0.0]).view(4, 1, 1, 1)
    _, last = run("slstm", backend, [Wx, torch.zeros(4, 1, 1, 1), torch.zeros(4, 1, 1), start], dtype=dtype)
    (grad,) = torch.autograd.grad(last[C].sum(), Wx)
    expected = math.exp(logsigmoid(20.0)) * sigmoid(-20.0)  # c' = exp(l) c + ..., m' = 0
    assert math.isclose(grad[0, 0, 1].item(), expected, rel_tol=1e-5 if dtype == torch.float32 else 2**-6)


# ---------------------------------------------------------------------------------------------------- m, and the max in n'


@pytest.mark.parametrize("initial", INITIAL)
@pytest.mark.parametrize("backend", BACKENDS)
def test_m_is_a_constant(backend: str, initial: str) -> None:
    """Its own initial gradient is exactly zero, and what reaches it from outside changes nothing."""
    tensors = [*make_inputs("slstm", SIZES)[:3], initial_states(initial)]
    states, last = run("slstm", backend, tensors)
    with_m = torch.autograd.grad(states.sum() + last.sum(), tensors, retain_graph=True)
    without = torch.autograd.grad(states[:M].sum() + last[:M].sum(), tensors, retain_graph=True)
    alone = torch.autograd.grad(states[M].sum() + last[M].sum(), tensors)
    assert torch.count_nonzero(with_m[3][M]) == 0
    assert all(torch.count_nonzero(x) == 0 for x in alone)
    assert_equal(with_m, without, tolerance=0)


def gradient_of_n(backend: str, n: float, i: float, f: float) -> tuple[float, float, float, float]:
    """n' after one step from n (m = 0), and its gradients by i, f and n."""
    Wx = torch.tensor([i, f, 0.0, 0.0], dtype=torch.float64).view(1, 1, 4, 1, 1).requires_grad_()
    start = torch.tensor([0.0, 0.0, n, 0.0], dtype=torch.float64).view(4, 1, 1, 1).requires_grad_()
    states, _ = run("slstm", backend, [Wx, torch.zeros(4, 1, 1, 1).double(), torch.zeros(4, 1, 1).double(), start])
    dWx, d_start = torch.autograd.grad(states[N].sum(), (Wx, start))
    return states[N].item(), dWx.flatten()[0].item(), dWx.flatten()[1].item(), d_start[N].item()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_tie_of_the_max_goes_to_the_sum(backend: str) -> None:
    assert gradient_of_n(backend, n=0.0, i=0.3, f=0.5) == (1.0, 1.0, 0.0, 0.0)  # i* = 1, no history
    value, di, df, dn = gradient_of_n(backend, n=1.0, i=-800.0, f=0.0)  # f* = 1, i* = 0
    assert (value, di, df, dn) == (1.0, 0.0, 0.5, 1.0)
    assert gradient_of_n(backend, n=1.0, i=1000.0, f=0.0) == (1.0, 1.0, 0.0, 0.0)  # i* = 1, f* = 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_where_one_wins_nothing_passes(backend: str) -> None:
    assert gradient_of_n(backend, n=0.25, i=-5.0, f=0.0) == (1.0, 0.0, 0.0, 0.0)


# ------------------------------------------------------------------------------------------------ decisions after rounding


@pytest.mark.parametrize("T", [1, 3])
@pytest.mark.parametrize("recompute", [False, True])
def test_bfloat16_decides_as_vanilla_does(recompute: bool, T: int) -> None:
    """n from 0 to 2 in float32 steps finer than bfloat16: the saved, rounded activations keep which branch won."""
    count = 513
    generator = torch.Generator().manual_seed(3)
    Wx = torch.randn(16, T, 4, count, 1, generator=generator)
    start = torch.randn(4, 16, count, 1, generator=generator)
    start[N] = torch.linspace(0, 2, count)[:, None]
    start[C, ::2] = 0
    R, b = torch.zeros(4, count, 1, 1), torch.zeros(4, count, 1)
    found = {}
    for backend in BACKENDS:
        tensors = copies([x.requires_grad_() for x in (Wx, R, b, start)])
        _, last = run("slstm", backend, tensors, dtype="bfloat16", recompute=recompute)
        dWx, d_start = torch.autograd.grad(last[N].sum(), (tensors[0], tensors[3]))
        found[backend] = (dWx[:, :, :2], d_start[N])
    for got, expected in zip(found["vanilla_fwbw"], found["vanilla"]):
        assert torch.equal(got != 0, expected != 0)
        assert 0.05 < (got != 0).double().mean() < 0.99  # both branches occur
        torch.testing.assert_close(got, expected, rtol=2**-6, atol=2**-8)


@pytest.mark.parametrize("initial", INITIAL)
def test_bfloat16_gradients_of_a_sequence_equal_vanilla(initial: str) -> None:
    sizes = Sizes(B=8, T=6, NH=2, D=8)
    tensors = [*make_inputs("slstm", sizes, torch.float32)[:3], initial_states(initial, torch.float32, sizes)]
    tensors = [x.detach().mul(0.5 if k < 3 else 1).requires_grad_() for k, x in enumerate(tensors)]
    expected = gradients(run("slstm", "vanilla", tensors, dtype="bfloat16"), tensors)
    got = gradients(run("slstm", "vanilla_fwbw", tensors, dtype="bfloat16"), tensors)
    for x, y in zip(got, expected):
        assert (x - y).norm() <= 0.02 * y.norm()
