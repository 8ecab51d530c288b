"""What a program of both kernels has in common: its place, and how it reads, writes and multiplies tiles.

A program takes one head and BLOCK_B batch rows through time. Strides are int64, in multiples of UNIT elements, so that the
compiler knows how many elements it may move at once; units are contiguous. Missing tensors are None.

A tile is [BLOCK_B, SHARES, BLOCK_D / SHARES]: each warp has a share of the units. The rows of R are ordered so that tensor
cores give a warp its share, and a thread neighbouring units. So a product is a tile where it stands, and reading and writing
moves nothing between warps; between them go only the columns of the next product.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .plan import TRITON

SHARES_FIRST = tl.constexpr(TRITON >= (3, 7))
"""Whether a tile's first two axes change places. Either is right; a warp's lanes are dealt out along the last axis and then
along the first, from Triton 3.7 on the second: that has to be the rows."""


@triton.jit
def place(B, NH, D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_B: tl.constexpr, SHARES: tl.constexpr):
    """The program's head; its units and rows, which broadcast to a tile; and which of them there are, a tile."""
    program = tl.program_id(0)
    SIZE: tl.constexpr = BLOCK_D // SHARES
    share, unit, row = tl.arange(0, SHARES), tl.arange(0, SIZE), tl.arange(0, BLOCK_B)
    if SHARES_FIRST:
        units = share[:, None, None] * SIZE + unit[None, None, :]
        rows = (program // NH) * BLOCK_B + row[None, :, None]
    else:
        units = share[None, :, None] * SIZE + unit[None, None, :]
        rows = (program // NH) * BLOCK_B + row[:, None, None]
    return program % NH, units, rows, (units < D) & (rows < B)


@triton.jit
def rows_first(tile):
    """A tile as [BLOCK_B, SHARES, BLOCK_D / SHARES]; or that as a tile."""
    return tl.permute(tile, (1, 0, 2)) if SHARES_FIRST else tile


@triton.jit
def columns_of(tile, R):
    """A tile as a factor of R: [BLOCK_D, BLOCK_B], in the dtype of R."""
    columns = tl.permute(rows_first(tile.to(R.dtype)), (1, 2, 0))
    return tl.reshape(columns, (columns.shape[0] * columns.shape[1], columns.shape[2]))


@triton.jit
def product(R, columns, SHARES: tl.constexpr, PRECISION: tl.constexpr):
    """R times columns, float32, as a tile."""
    BLOCK_D: tl.constexpr = columns.shape[0]
    BLOCK_B: tl.constexpr = columns.shape[1]
    blocks = tl.dot(R, columns, input_precision=PRECISION)
    blocks = tl.reshape(blocks, (BLOCK_D // 16 // SHARES, SHARES, 2, 8, BLOCK_B))
    return rows_first(tl.reshape(tl.permute(blocks, (4, 1, 3, 0, 2)), (BLOCK_B, SHARES, BLOCK_D // SHARES)))


@triton.jit
def known_units(tile, units, D: tl.constexpr, BLOCK_D: tl.constexpr):
    """A tile with zeros in the padding of units: a product makes NaN of infinity there, the next one NaN of all units."""
    if D < BLOCK_D:
        return tl.where(units < D, tile, 0.0)
    else:
        return tile


@triton.jit
def tile_of(units, rows, head, row_stride, head_stride, UNIT: tl.constexpr):
    """Where a tile lies in a tensor [..., B, NH, D]."""
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
def matrix(
    k: tl.constexpr,
    COUNT: tl.constexpr,
    R,
    NH,
    head,
    TURNED: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    SHARES: tl.constexpr,
):
    """R[k, head] of a contiguous R [COUNT, NH, D, D] as [out, in], or turned as [in, out], padded with zeros.

    Its rows are in the order that `product` expects. Where there is no R[k], a matrix that nobody reads.
    """
    BLOCKS: tl.constexpr = BLOCK_D // 16 // SHARES
    row = tl.arange(0, BLOCK_D)
    block = row // 16
    first = ((((block % SHARES) * 8 + row % 8) * BLOCKS + block // SHARES) * 2 + row // 8 % 2)[:, None]
    second = tl.arange(0, BLOCK_D)[None, :]
    if k >= COUNT:
        return tl.zeros((BLOCK_D, BLOCK_D), R.dtype.element_ty)
    else:
        inside = second * D + first if TURNED else first * D + second
        return tl.load(R + ((k * NH + head).to(tl.int64) * (D * D) + inside), (first < D) & (second < D), 0.0)


@triton.jit
def lengths_of(lengths, rows, B, T):
    """How many steps each row has, shaped as rows."""
    if lengths is None:
        return tl.zeros_like(rows) + T
    else:
        return tl.minimum(tl.load(lengths + rows, rows < B, 0), T).to(tl.int32)


@triton.jit
def reset_of(resets, rows, ends, t, T):
    """Whether each row is reset before step t, shaped as rows; not in padding, nor where there is no step t."""
    if resets is None:
        return rows < 0
    else:
        asked = (tl.zeros_like(ends) <= t) & (t < ends)
        return tl.load(resets + rows.to(tl.int64) * T + t, asked, 0) != 0
