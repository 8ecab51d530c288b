"""The formulas of the four cells written afresh, in a loop over time with ordinary autograd: nothing of src is used."""

from __future__ import annotations

import math
from typing import Any, Optional

import torch
from torch import Tensor

BOUND = math.log(torch.finfo(torch.float64).max) / 2
"""Of slstm's l - m', reached only with n == 0 and c != 0: beyond, c counts as 0."""


class ClipGradient(torch.autograd.Function):
    """The identity; clips the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, clipval: float) -> Tensor:
        ctx.clipval = clipval
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad.clamp(-ctx.clipval, ctx.clipval), None


def lstm(x: list[Tensor], Rh: list[Tensor], b: list[Tensor], old: list[Tensor]) -> list[Tensor]:
    i, f, z, o = (u + v + w for u, v, w in zip(x, Rh, b))
    c = f.sigmoid() * old[1] + i.sigmoid() * z.tanh()
    return [o.sigmoid() * c.tanh(), c]


def gru(x: list[Tensor], Rh: list[Tensor], b: list[Tensor], old: list[Tensor]) -> list[Tensor]:
    r = (x[0] + Rh[1] + b[1]).sigmoid()
    z = (x[1] + Rh[2] + b[2]).sigmoid()
    n = (x[2] + b[3] + r * (Rh[0] + b[0])).tanh()
    return [z * old[0] + (1 - z) * n]


def elman(x: list[Tensor], Rh: list[Tensor], b: list[Tensor], old: list[Tensor]) -> list[Tensor]:
    return [(x[0] + Rh[0] + b[0]).tanh()]


def slstm(x: list[Tensor], Rh: list[Tensor], b: list[Tensor], old: list[Tensor]) -> list[Tensor]:
    i, f, z, o = (u + v + w for u, v, w in zip(x, Rh, b))
    _, c, n, m = old
    decayed = -torch.log1p(torch.exp(-f.abs())) + f.clamp(max=0) + m  # logsigmoid, stable
    new_m = torch.where(n == 0, i, torch.maximum(i, decayed)).detach()
    i_star = torch.exp(i - new_m)
    exponent = decayed - new_m
    forgotten = (n == 0) & (c == 0) | (exponent > BOUND)
    f_star = torch.where(forgotten, torch.zeros_like(exponent), exponent.clamp(max=BOUND).exp())
    new_c = f_star * c + i_star * z.tanh()
    total = f_star * n + i_star
    new_n = torch.where(total >= 1, total, torch.ones_like(total))  # the sum on a tie
    return [o.sigmoid() * new_c / new_n, new_c, new_n, new_m]


CELLS = {"lstm": lstm, "gru": gru, "elman": elman, "slstm": slstm}


def reference(
    function: str,
    tensors: list[Tensor],
    lengths: Optional[Tensor] = None,
    resets: Optional[Tensor] = None,
    forward_clipval: Optional[float] = None,
    gradient_recurrent_clipval: Optional[float] = None,
    gradient_recurrent_cut: bool = False,
    recompute: bool = False,
) -> tuple[Tensor, Tensor]:
    """states [NS, B, T, NH, D] and last_states [NS, B, 1, NH, D] of float64 Wx, R, b and initial states."""
    Wx, R, b, initial = tensors
    old, history = [x.detach() if k == 3 else x for k, x in enumerate(initial)], []  # slstm's m is a constant
    for t in range(Wx.shape[1]):
        running = None if lengths is None else (t < lengths)[:, None, None]
        if resets is not None:
            reset = resets[:, t, None, None] if running is None else resets[:, t, None, None] & running
            old = [torch.where(reset, torch.zeros_like(s), s) for s in old]
        h = old[0]
        if gradient_recurrent_clipval is not None:
            h = ClipGradient.apply(h, gradient_recurrent_clipval)
        through_R = h.detach() if gradient_recurrent_cut else h
        Rh = torch.einsum("ghoi,bhi->gbho", R, through_R)
        new = CELLS[function](list(Wx[:, t].unbind(1)), list(Rh), list(b), [h, *old[1:]])
        if forward_clipval is not None:
            inside = (new[0].detach().abs() < forward_clipval).to(new[0].dtype)
            clipped = new[0].detach().clamp(-forward_clipval, forward_clipval)
            new[0] = clipped + inside * (new[0] - new[0].detach())
        if running is not None:
            new = [torch.where(running, s_new, s_old) for s_new, s_old in zip(new, old)]
            history.append(torch.stack([torch.where(running, s, torch.zeros_like(s)) for s in new]))
        else:
            history.append(torch.stack(new))
        old = new
    return torch.stack(history, 2), torch.stack(old).unsqueeze(2)
