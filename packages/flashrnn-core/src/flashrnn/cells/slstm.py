"""sLSTM: exponential input and forget gates, a normaliser n and a stabiliser m (Beck et al. 2024, xLSTM).

    l  = logsigmoid(f) + m                 log of the decayed stabiliser
    m' = i          where n == 0           no history yet: m is "minus infinity"
         max(i, l)  elsewhere
    i* = exp(i - m');  f* = exp(l - m'), but 0 where n == 0 and c == 0, or l - m' > bound
    c' = f* c + i* tanh(z)
    n' = max(f* n + i*, 1)
    h' = s(o) c' / n'

m is a constant for differentiation: the gradient that reaches it is ignored and it passes none on. The gradient of the max
in n' goes to the branch that won, to the sum on a tie. The bound is reached only where n == 0 but c != 0: see `bound`.

What `step` saves is chosen so that rounding it to 16 bits changes no decision: which of i*, f* is 1 and which branch of the
max won are kept in sign bits, and s(-f), the derivative of logsigmoid(f), is kept rather than computed from a rounded s(f).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Optional

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from .activations import through_sigmoid, through_tanh
from .spec import CellSpec, Tensors


def bound(dtype: torch.dtype) -> float:
    """The largest l - m' that counts: that of the largest f* whose square is a number in `dtype`, that of the results.

    Where n == 0 there is no history, m' = i, and l - m' may be anything. A c that is there nevertheless, as only an initial
    state can be, is weighed by f* = exp(l - m'): h' grows with f*, the gradient of n with its square. So f* is at most 255
    in float16, 1.8e19 in bfloat16 and float32, 1.3e154 in float64; where it would be larger, c counts as 0.
    """
    return math.log(torch.finfo(dtype).max) / 2


def slstm_step(
    gates: Sequence[Tensor], states: Sequence[Tensor], dtype: Optional[torch.dtype] = None
) -> tuple[Tensors, Tensors]:
    """One step of the formula at the top of this file; `dtype` is that of the results, None that of the tensors."""
    i, f, z, o = gates
    _, c, n, m = states
    decayed = logsigmoid(f) + m.detach()
    no_history = n == 0
    m_new = torch.where(no_history, i, torch.maximum(i, decayed)).detach()
    i_star = torch.exp(i - m_new)
    exponent = decayed - m_new
    forgotten = (no_history & (c == 0)) | (exponent > bound(dtype or i.dtype))
    f_star = exponent.masked_fill(forgotten, -math.inf).exp()
    z, o = z.tanh(), o.sigmoid()
    c_new = f_star * c + i_star * z
    total = f_star * n + i_star
    sum_won = total >= 1
    n_new = torch.where(sum_won, total, torch.ones_like(total))
    h_new = o * (c_new / n_new)
    keep_f = (-f).sigmoid()
    saved = (pack_exponentials(i_star, f_star), torch.where(sum_won, keep_f, -keep_f), z, o)
    return (h_new, c_new, n_new, m_new), saved


def pack_exponentials(i_star: Tensor, f_star: Tensor) -> Tensor:
    """i* and f* as one number without loss: one of them is always exactly 1, and the sign says which.

    f* where i* == 1; -i* (possibly -0.0) where f* == 1.
    """
    return torch.where(i_star == 1, f_star, -i_star)


def unpack_exponentials(packed: Tensor) -> tuple[Tensor, Tensor]:
    """(i*, f*) from one number."""
    forget_is_one = torch.signbit(packed)
    one = torch.ones_like(packed)
    return torch.where(forget_is_one, -packed, one), torch.where(forget_is_one, one, packed)


def slstm_derivatives(saved: Sequence[Tensor], old: Sequence[Tensor], new: Sequence[Tensor]) -> Tensors:
    """Of h' by o and by c'; then the numbers that make those of c' and n' by i, f, z and the old c and n."""
    packed, signed_keep_f, z, o = saved
    i_star, f_star = unpack_exponentials(packed)
    one_won = torch.signbit(signed_keep_f)
    _, c_old, n_old, _ = old
    _, c_new, n_new, _ = new
    ratio = c_new / n_new
    h_by_o, h_by_c, c_by_z = through_sigmoid(ratio, o), o / n_new, through_tanh(i_star, z)
    return h_by_o, h_by_c, ratio, one_won, z, i_star, c_by_z, c_old, n_old, f_star * signed_keep_f.abs(), f_star


def slstm_step_backward(
    grads: Sequence[Tensor], derivatives: Sequence[Tensor]
) -> tuple[Tensors, tuple[Optional[Tensor], ...]]:
    """Gradients of (i, f, z, o) and of the old (h, c, n, m); m's is zero."""
    dh, dc, dn, _ = grads
    h_by_o, h_by_c, ratio, one_won, z, i_star, c_by_z, c_old, n_old, f_star_by_f, f_star = derivatives
    d_ratio = dh * h_by_c
    dc = dc + d_ratio
    dn = (dn - d_ratio * ratio).masked_fill(one_won, 0)
    di = (dc * z + dn) * i_star
    df = (dc * c_old + dn * n_old) * f_star_by_f
    return (di, df, dc * c_by_z, dh * h_by_o), (None, dc * f_star, dn * f_star, None)


GATES = ("i", "f", "z", "o")

SLSTM = CellSpec(
    name="slstm",
    states=("h", "c", "n", "m"),
    gates=GATES,
    input_gates=GATES,
    recurrent_gates=GATES,
    bias_gates=GATES,
    saved=("exponentials", "keep_f", "z", "o"),
    step=slstm_step,
    derivatives=slstm_derivatives,
    step_backward=slstm_step_backward,
    constant_states=("m",),
    step_takes_dtype=True,
)
