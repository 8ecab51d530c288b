"""How to lay a problem out on a GPU: a pure function of plain facts, so that it can be tried for GPUs that are not there.

What is possible is found for every exchange and number of CTAs. Of that the plan takes what is fastest by a model of the
time of a step, which is fed by measured figures.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Optional, Union

from flashrnn.cells import CellSpec

from .device import Device
from .step_time import LOOK_BYTES, Step, step_ns

COLUMN_ROWS = 8
"""Batch rows that are columns of one product on the tensor cores."""

UNITS = 8
"""Units of a block: the rows of half a tile."""

MMA_BYTES = 32
"""Bytes along k that one call of mma consumes."""

STAGES = (8, 6, 4, 3)
TRANSFER_WARPS = 4
PADDING = 16
"""Bytes between rows in shared memory, against bank conflicts."""

COLUMNS, BLOCKS, GRID_UNITS, SPLITS = (1, 2, 4), (1, 2), (8, 16, 24, 32), (1, 2, 4, 8)
"""What is tried: times 8 batch rows a tile, blocks of 8 units a team, units a CTA of a grid, warps a team."""

MOST_COLUMNS = {
    **{(direction, exchange): 2 for direction in ("forward", "backward") for exchange in ("local", "cluster")},
    ("forward", "grid"): 4,
    ("forward", "mailed"): 2,
    ("backward", "grid"): 1,
    ("backward", "clusters"): 4,
    ("backward", "mailed"): 1,
}
"""For more, or in float32, registers do not suffice; the gates of more rows take a grid longer than another wave."""

MAX_TEAMS = 15
"""Each has a barrier of its own, beside that of the CTA."""

OVERHEAD = {("forward", 1): 76, ("forward", 2): 120, ("backward", 1): 100, ("backward", 2): 124}
"""Registers a thread needs besides those that hold R, by direction and blocks a warp: found by compiling, none spills."""
STATE_OVERHEAD = {"local": 4, "cluster": 12, "grid": 20, "clusters": 12}
"""The same, on top, for each state beyond two on the way back."""
SPLIT_OVERHEAD = {"local": 72, "cluster": 80, "grid": 72, "clusters": 80}
"""The same, on top, where a float32 product is made of three."""
MAIL_OVERHEAD = {"forward": {"grid": 44}, "backward": {"grid": 20, "clusters": 28}}
"""The same, on top, where a thread looks at several places in a mailbox."""

NO_OPTIONS = {("forward", "grid"): 32, ("backward", "clusters"): 34}
"""The same, less, where a call has no options, elements have 16 bits and tiles up to 16 rows."""
HELPERS_OVERHEAD, FEW_LOOKS, MOST_LOOKS = {("forward", "grid"): 92, ("backward", "clusters"): 88}, 8, 14
"""All that those need who help a team, in 16 bits and for up to 16 rows; else as much as owners: to keep more for 32 rows
makes a step longer, as measured on an H200. Looks at a mailbox at a time that this allows for; the most that there are."""

BY_MAIL_OVERHEAD = {
    ("forward", 2, 1): (70, 100, 100),
    ("forward", 2, 2): (96, 96, 68),
    ("forward", 4, 1): (100, 130, 130),
    ("backward", 2, 1): (84, 120, 120),
    ("backward", 4, 1): (120, 150, 150),
}
MOST_PIECES = 4
"""By direction, bytes of an element and columns, where operands come out of a mailbox: if all of R stays in registers; if
not, of owners and of those who help. Pieces of 16 bytes that a lane fetches at a time."""

MOST_REGISTERS = {("forward", 2): 240, ("backward", 2): 240, ("forward", 4): 192, ("backward", 4): 232}
"""That a thread is planned with, by direction and bytes of an element: of 255, for what is not foreseen."""

CLUSTER_SIZES = (2, 4, 8, 16)
USABLE = {1: 1.0, 2: 1.0, 4: 0.91, 8: 0.91, 16: 0.85}
"""Of all SMs, by the size of clusters, as measured on an H200: 132, 132, 120, 120 and 112."""

THROUGH_L2 = ("grid", "clusters", "mailed")
"""Exchanges that have a mailbox; they take all CTAs of a tile at a time."""

BARRIER_BYTES, MAILBOX_SLOTS = 16, 16
"""Of a cluster's exchange; of a grid's."""


@dataclass(frozen=True)
class Layout:
    """One fused kernel.

    Attributes:
        exchange: how CTAs hand each other what the next step reads, as in kernels/exchange: "local", "cluster", "grid",
            "mailed" or, on the way back, "clusters".
        ctas: how many share a head and a tile of batch rows.
        cluster: of those, how many form a cluster.
        D: head_dim rounded up.
        columns: times 8 batch rows a tile.
        blocks: blocks of 8 units that a team owns.
        split: warps of a team, which share its product out.
        kept: steps along k whose part of R stays in the registers of a team's leader; the others' is in shared memory.
        helpers_kept: the same, of the other warps of a team.
        transfer_warps, stages: warps that move data, steps that they run ahead. Where teams are split, all but the leader.
        threads, shared_bytes: of a CTA.
        mailbox_bytes: of global memory that a group needs for its exchange.
        step_ns: expected time of a step in nanoseconds.
    """

    exchange: str
    ctas: int
    cluster: int
    D: int
    columns: int
    blocks: int
    split: int
    kept: int
    helpers_kept: int
    transfer_warps: int
    stages: int
    threads: int
    shared_bytes: int
    mailbox_bytes: int
    step_ns: float

    @property
    def rows(self) -> int:
        """Batch rows of a tile."""
        return COLUMN_ROWS * self.columns

    def __str__(self) -> str:
        tiles = {
            "local": "one SM",
            "cluster": f"a cluster of {self.ctas} SMs",
            "grid": f"{self.ctas} SMs through L2",
            "mailed": f"{self.ctas} SMs through L2",
            "clusters": f"{self.ctas} SMs in clusters of {self.cluster} through L2",
        }
        return f"{tiles[self.exchange]} a tile of {self.rows} rows, about {self.step_ns / 1000:.2f} us a step"


@dataclass(frozen=True)
class Pass:
    """What a plan is made for.

    Attributes:
        direction: "forward" or "backward".
        cell: what is computed.
        item_bytes: of an element.
        head_dim: D.
        num_heads, batch_size: NH, B.
        has_options: lengths, resets, or something is clipped or cut, which takes registers.
    """

    direction: str
    cell: CellSpec
    item_bytes: int
    head_dim: int
    num_heads: int
    batch_size: int
    has_options: bool = True

    @property
    def moved_states(self) -> int:
        """States that are moved a step: all that come out (forward); those read, and gradients that come in (backward)."""
        cell = self.cell
        return cell.num_states + (0 if self.direction == "forward" else cell.num_states - len(cell.constant_states))


def round_up(x: int, multiple: int) -> int:
    """The next multiple that is not less than x."""
    return -(-x // multiple) * multiple


def plan(
    wanted: Pass,
    device: Device,
    exchange: Optional[str] = None,
    ctas: Optional[int] = None,
    cluster: Optional[int] = None,
    columns: Optional[int] = None,
) -> Union[Layout, str]:
    """The layout of a fused pass, or why there is none.

    Args:
        wanted: what to plan for.
        device: where.
        exchange, ctas, cluster, columns: None: whatever is fastest; else this one, for tests. "clusters", which there are
            only on the way back, go forward as "grid" or "mailed".
    """
    exchanges: tuple[Optional[str], ...] = (exchange,)
    if exchange == "clusters" and wanted.direction == "forward":
        exchanges, cluster = ("grid", "mailed"), None
    found = [
        x
        for x in layouts(wanted, device)
        if (exchange is None or x.exchange in exchanges)
        and ctas in (None, x.ctas)
        and cluster in (None, x.cluster)
        and columns in (None, x.columns)
    ]
    if found:
        return fastest(found, wanted, device)
    cell, D = wanted.cell, wanted.head_dim
    needed = len(cell.recurrent_gates) * D * D * wanted.item_bytes
    return (
        f"cuda_fused keeps R on the chip: head_dim {D} of {cell.name} needs {needed // 1024} KiB for R, more than fits on "
        f"{device.name} beside the rest; backend='cuda' has no such limit."
    )


def fastest(found: Sequence[Layout], wanted: Pass, device: Device) -> Layout:
    """The layout that takes the least time."""
    return min(found, key=lambda layout: waves(layout, wanted, device) * layout.step_ns)


def columns_for(batch_size: int) -> list[int]:
    """The columns of which no tile would be less than half full."""
    return [columns for columns in COLUMNS if columns == 1 or COLUMN_ROWS * columns < 2 * batch_size]


def layouts(wanted: Pass, device: Device) -> Iterator[Layout]:
    """All that is possible."""
    clusters = [size for size in CLUSTER_SIZES if size <= device.cluster_ctas]
    for columns, blocks, split in product(columns_for(wanted.batch_size), BLOCKS, SPLITS):
        if split == 1:
            yield from layout(wanted, device, "local", 1, 1, columns, blocks, split)
        for ctas in clusters:
            yield from layout(wanted, device, "cluster", ctas, ctas, columns, blocks, split)
        for units in (units for units in GRID_UNITS if units % (UNITS * blocks) == 0):
            ctas = max(2, -(-wanted.head_dim // units))
            if ctas <= device.multiprocessors:
                for exchange in ("grid", "mailed"):
                    yield from layout(wanted, device, exchange, ctas, 1, columns, blocks, split)
            for cluster in clusters if wanted.direction == "backward" else ():
                whole = max(2 * cluster, round_up(ctas, cluster))
                if whole <= usable(cluster, device):
                    yield from layout(wanted, device, "clusters", whole, cluster, columns, blocks, split)


def layout(
    wanted: Pass, device: Device, exchange: str, ctas: int, cluster: int, columns: int, blocks: int, split: int
) -> Iterator[Layout]:
    """The layout with that many CTAs, in all and a cluster, columns, blocks and warps a team, if it fits."""
    cell, item_bytes, forward = wanted.cell, wanted.item_bytes, wanted.direction == "forward"
    by_mail = exchange == "mailed"
    if columns > (MOST_COLUMNS[wanted.direction, exchange] if item_bytes == 2 else 1):
        return
    units = round_up(-(-wanted.head_dim // ctas), UNITS * blocks)
    D, recurrent, gates, teams = units * ctas, len(cell.recurrent_gates), len(cell.gates), units // (UNITS * blocks)
    through_l2 = exchange in THROUGH_L2
    width = D if forward else recurrent * units * (ctas // cluster if through_l2 else 1)  # of the product, along k
    shares_rows = cluster > 1 and not forward and cluster * blocks // 2 % split == 0
    row_parts = split if shares_rows else 1  # of the product; or else a team's warps share out k
    warps, transfer_warps = teams * split, TRANSFER_WARPS if split == 1 else teams * (split - 1)
    threads = 32 * (teams + transfer_warps)
    if by_mail and (blocks > 1 or split == 1):  # one block an owner, and those who help it
        return
    row_blocks = recurrent if forward else 1  # of 8 rows, of 8 units
    if by_mail:  # every warp has all rows, and a part of k in pairs of steps, the last warps less
        tiles, uneven = (row_blocks * teams + 1) // 2, 0
        steps, left = 2 * -(-width * item_bytes // (2 * MMA_BYTES * warps)), 0
    else:
        tiles, uneven = divmod((recurrent * blocks + 1) // 2 if forward else (cluster * blocks + 1) // 2, row_parts)
        steps, left = divmod(width * item_bytes, MMA_BYTES * (split // row_parts))
    if left or uneven or threads > 1024 or (split > 1 and teams > MAX_TEAMS):
        return
    ring = len(cell.input_gates) if forward else len(cell.saved) + wanted.moved_states
    rows, parts = COLUMN_ROWS * columns, 1 if forward else recurrent
    handed = rows * width * item_bytes if forward or through_l2 else 0
    looks = steps // 2 * columns if by_mail else -(-handed // (LOOK_BYTES * (threads - 32)))
    kept, helpers_kept = (
        steps_in_registers(wanted, device, exchange, columns, blocks, threads, tiles, steps, ring, looks, helps)
        for helps in (False, split > 1)
    )
    if min(kept, helpers_kept) < 0:
        return
    array = rows * (units * item_bytes + PADDING)
    gathered = rows * (width * item_bytes + PADDING)
    buffers = 0 if by_mail else (1 if through_l2 else 2) * gathered
    own = 2 * parts * array if through_l2 else 0
    rest = (teams * (steps - kept) + (warps - teams) * (steps - helpers_kept)) * tiles * 512
    initial = 0 if forward else 32 * teams * 2 * columns * blocks * cell.num_states * 4
    sums = (warps - teams) * tiles * columns * 512 if row_parts == 1 else 0
    if by_mail:
        sums = (warps - 1) * teams * row_blocks * columns * 256
    summed = 0 if forward or cluster == 1 else rows * units * cluster * 4
    results = wanted.moved_states + len(cell.saved) if forward else gates - recurrent
    fixed = buffers + own + rest + initial + sums + 2 * summed + 2 * results * array + BARRIER_BYTES
    for stages in STAGES:
        shared = fixed + stages * ring * array
        if shared <= device.shared_bytes:
            mailbox = MAILBOX_SLOTS * cluster * handed if through_l2 else 0
            step = Step(
                warps=warps,
                mma_calls=steps * tiles * columns * (1 if item_bytes == 2 else 6),
                weight_bytes=rest,
                operand_bytes=warps * steps * MMA_BYTES * rows,
                sum_bytes=sums,
                is_split=split > row_parts,
                is_forward=forward,
                gates=gates,
                blocks=blocks,
                columns=columns,
                sources=ctas // cluster,
                handed=handed,
                looks=looks,
                summed=summed,
            )
            place = exchange, ctas, cluster, D, columns, blocks, split
            yield Layout(
                *place, kept, helpers_kept, transfer_warps, stages, threads, shared, mailbox, step_ns(exchange, step)
            )
            return


def steps_in_registers(
    wanted: Pass,
    device: Device,
    exchange: str,
    columns: int,
    blocks: int,
    threads: int,
    tiles: int,
    steps: int,
    ring: int,
    looks: int,
    helps: bool,
) -> int:
    """Along how many steps of k a warp's part of R stays in registers; negative: not even the rest has room there."""
    direction, item_bytes = wanted.direction, wanted.item_bytes
    available = device.registers // (32 * round_up(threads // 32, 4)) // 8 * 8
    if exchange == "mailed":
        pieces = looks if looks <= MOST_PIECES else 2 * MOST_PIECES
        for_all, *overheads = BY_MAIL_OVERHEAD[direction, item_bytes, columns]
        left = min(MOST_REGISTERS[direction, 2], available) - 4 * (tiles * columns + pieces)
        left -= (columns - 1) * wanted.has_options * 4 * max(0, wanted.cell.num_states - 2)
        return steps if left - for_all >= 4 * tiles * steps else min(steps, (left - overheads[helps]) // (4 * tiles))
    overhead = OVERHEAD[direction, blocks]
    cell = wanted.cell
    overhead += (columns - 1) * (4 * tiles + 2 * blocks * (ring + 2 * cell.num_states))
    overhead += (columns - 1) * 8 * blocks * (len(cell.gates) - len(cell.recurrent_gates))
    overhead += SPLIT_OVERHEAD[exchange] if item_bytes == 4 else 0
    overhead += MAIL_OVERHEAD[direction].get(exchange, 0)
    overhead += STATE_OVERHEAD[exchange] * max(0, cell.num_states - 2) if direction == "backward" else 0
    if item_bytes == 2 and columns <= 2 and (direction, exchange) in HELPERS_OVERHEAD:
        at_once = -(-looks // -(-looks // MOST_LOOKS))
        many_looks = 4 * max(0, at_once - FEW_LOOKS)
        if helps:
            overhead = HELPERS_OVERHEAD[direction, exchange] + many_looks
            overhead += 8 * (columns - 1) + 4 * columns * max(0, tiles - 2)
        elif not wanted.has_options:
            overhead -= max(0, NO_OPTIONS[direction, exchange] - many_looks)
    kept = (min(MOST_REGISTERS[direction, item_bytes], available) - overhead) // (4 * tiles)
    if kept >= steps:
        return steps
    return kept - kept % (2 if steps % 2 == 0 else 1)  # operands are best loaded in pairs


def groups_at_once(layout: Layout, device: Device) -> int:
    """How many the device takes at a time."""
    return max(1, usable(layout.cluster, device) // layout.ctas)


def usable(cluster: int, device: Device) -> int:
    """How many SMs clusters of so many get into; some are left over in each part of the chip."""
    return int(USABLE[cluster] * device.multiprocessors)


def waves(layout: Layout, wanted: Pass, device: Device) -> int:
    """How many times the device is filled."""
    return -(-wanted.num_heads * tiles_of(layout, wanted.batch_size) // groups_at_once(layout, device))


def tiles_of(layout: Layout, batch_size: int) -> int:
    """Tiles of batch rows."""
    return -(-batch_size // layout.rows)
