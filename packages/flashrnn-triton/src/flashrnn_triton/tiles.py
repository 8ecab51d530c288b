"""What a program of both kernels has in common: its place, and how it reads and writes tiles [BLOCK_D units, BLOCK_B rows].

A program takes one head and BLOCK_B batch rows through time. Strides are int64, in multiples of UNIT elements, so that the
compiler knows how many elements it may move at once; units are contiguous. Missing tensors are None.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def place(B, NH, D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_B: tl.constexpr):
    """The program's head; its units [BLOCK_D, 1] and rows [1, BLOCK_B]; and which of them there are, [BLOCK_D, BLOCK_B]."""
    program = tl.program_id(0)
    units = tl.arange(0, BLOCK_D)[:, None]
    rows = (program // NH) * BLOCK_B + tl.arange(0, BLOCK_B)[None, :]
    return program % NH, units, rows, (units < D) & (rows < B)


@triton.jit
def tile_of(units, rows, head, row_stride, head_stride, UNIT: tl.constexpr):
    """Where a tile lies in a tensor [..., B, NH, D], [BLOCK_D, BLOCK_B]."""
    return (rows * row_stride + head * head_stride) * UNIT + units


@triton.jit
def load(WANTED: tl.constexpr, x, s: tl.constexpr, stride, tile, there, UNIT: tl.constexpr):
    """The tile of x[s] as float32; zeros if it is not wanted, or there is no x."""
    if WANTED and (x is not None):
        return tl.load(x + (tile + s * stride * UNIT), there, 0.0).to(tl.float32)
    else:
        return tl.zeros(there.shape, tl.float32)


@triton.jit
def store(WANTED: tl.constexpr, x, s: tl.constexpr, stride, tile, value, there, UNIT: tl.constexpr):
    """Write the tile of x[s], if it is wanted and there is an x."""
    if WANTED and (x is not None):
        tl.store(x + (tile + s * stride * UNIT), value.to(x.dtype.element_ty), there)


@triton.jit
def load_last(k: tl.constexpr, NG: tl.constexpr, COUNT: tl.constexpr, x, stride, tile, there, UNIT: tl.constexpr):
    """The tile of gate k as float32, where x [COUNT, ...] holds the last of NG gates; zeros if it is not among them."""
    return load((k >= NG - COUNT) and (k < NG), x, k - (NG - COUNT), stride, tile, there, UNIT)


@triton.jit
def store_last(k: tl.constexpr, NG: tl.constexpr, COUNT: tl.constexpr, x, stride, tile, value, there, UNIT: tl.constexpr):
    """Write the tile of gate k, where x [COUNT, ...] holds the last of NG gates, if it is among them."""
    store((k >= NG - COUNT) and (k < NG), x, k - (NG - COUNT), stride, tile, value, there, UNIT)


@triton.jit
def matrix(k: tl.constexpr, COUNT: tl.constexpr, R, NH, head, TURNED: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """R[k, head] of a contiguous R [COUNT, NH, D, D] as [out, in], or turned as [in, out], padded with zeros.

    Where there is no R[k], a matrix that nobody reads.
    """
    first = tl.arange(0, BLOCK_D)[:, None]
    second = tl.arange(0, BLOCK_D)[None, :]
    if k >= COUNT:
        return tl.zeros((BLOCK_D, BLOCK_D), R.dtype.element_ty)
    else:
        inside = second * D + first if TURNED else first * D + second
        return tl.load(R + ((k * NH + head).to(tl.int64) * (D * D) + inside), (first < D) & (second < D), 0.0)


@triton.jit
def lengths_of(lengths, rows, B, T):
    """How many steps each row has, [1, BLOCK_B]."""
    if lengths is None:
        return tl.zeros_like(rows) + T
    else:
        return tl.minimum(tl.load(lengths + rows, rows < B, 0), T).to(tl.int32)


@triton.jit
def reset_of(resets, rows, ends, t, T):
    """Whether each row is reset before step t, [1, BLOCK_B]; not in padding, nor where there is no step t."""
    if resets is None:
        return rows < 0
    else:
        asked = (tl.zeros_like(ends) <= t) & (t < ends)
        return tl.load(resets + rows.to(tl.int64) * T + t, asked, 0) != 0
