"""sLSTM: exponential input and forget gates, a normaliser n and a stabiliser m (Beck et al. 2024, xLSTM).

    l  = logsigmoid(f) + m;   m' = i where n == 0, else max(i, l)
    i* = exp(i - m');         f* = exp(l - m'), but 0 where n == 0 and c == 0, or l - m' > bound
    c' = f* c + i* tanh(z);   n' = max(f* n + i*, 1);   h' = s(o) c' / n'

m is a constant for differentiation. What is saved survives rounding to 16 bits: one of i*, f* is exactly 1, so one number
keeps both (f* where i* is 1, -i* where f* is); s(-f), the slope of logsigmoid, is negative where the 1 of the max won.
What a cell is: see cells/lstm.py.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .activations import exp, is_negative, log1p, negated, reciprocal, sigmoid, tanh, through_sigmoid, through_tanh


@triton.jit
def slstm_step(i, f, z, o, c, n, m, MATH: tl.constexpr, DTYPE: tl.constexpr):
    """The new h, c, n and m, and what is saved: the exponentials, the slope, z, o."""
    z, o = tanh(z, MATH), sigmoid(o, MATH)
    small = exp(-tl.abs(f), MATH)
    decayed = tl.minimum(f, 0.0) - log1p(small, MATH) + m
    keep_f = tl.where(f < 0, 1.0, small) * reciprocal(1 + small, MATH)
    first = n == 0
    input_is_one = first | (i >= decayed)
    m = tl.where(input_is_one, i, decayed)
    exponent = tl.where(first, decayed - i, -tl.abs(i - decayed))  # positive only where n == 0
    forgotten = (first & (c == 0)) | (exponent > bound(DTYPE))
    other = exp(tl.where(forgotten, float("-inf"), exponent), MATH)  # one of i*, f* is 1, this is the other
    i_star = tl.where(input_is_one, 1.0, other)
    f_star = tl.where(input_is_one, other, 1.0)
    c = f_star * c + i_star * z
    total = f_star * n + i_star
    n = tl.where(total < 1, 1.0, total)
    exponentials = tl.where(input_is_one, f_star, negated(other))
    return o * (c * reciprocal(n, MATH)), c, n, m, exponentials, tl.where(total < 1, negated(keep_f), keep_f), z, o


@triton.jit
def bound(dtype: tl.constexpr):
    """Half the log of the largest number: `bound` in flashrnn.cells.slstm says what for."""
    if dtype == tl.float16:
        return 5.5449332
    elif dtype == tl.bfloat16:
        return 44.359463
    else:
        return 44.361420


@triton.jit
def slstm_step_backward(dh, dc, dn, exponentials, signed_keep_f, z, o, c_old, n_old, c_new, n_new, MATH: tl.constexpr):
    """The gradients of i, f, z, o, and of the old c and n."""
    forget_is_one = is_negative(exponentials)
    i_star = tl.where(forget_is_one, -exponentials, 1.0)
    f_star = tl.where(forget_is_one, 1.0, exponentials)
    # n_new is 1 at least, and 0 only in padding, where nothing may become NaN.
    share = reciprocal(tl.maximum(n_new, 1.0), MATH)
    ratio, d_ratio = c_new * share, dh * o * share
    dc += d_ratio
    dn = tl.where(is_negative(signed_keep_f), 0.0, dn - d_ratio * ratio)
    di = (dc * z + dn) * i_star
    df = (dc * c_old + dn * n_old) * f_star * tl.abs(signed_keep_f)
    dz = through_tanh(dc * i_star, z)
    do = through_sigmoid(dh * ratio, o)
    return di, df, dz, do, dc * f_star, dn * f_star
