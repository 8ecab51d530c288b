"""Sequences of several lengths: rows that end early, several in one row, packed ones; and reading them backwards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence


@dataclass(frozen=True)
class Direction:
    """One way to read a batch of sequences.

    Attributes:
        layout: "BT" or "TB", the first two axes of the batch.
        lengths: [B] int64, or None.
        resets: [B, T] bool, in the order of reading, or None.
        is_reverse: whether each row is read from its end.
        order: where is_reverse and there are lengths, the step to read at each place: int64, [B, T, 1] or [T, B, 1].
    """

    layout: str
    lengths: Optional[Tensor]
    resets: Optional[Tensor]
    is_reverse: bool = False
    order: Optional[Tensor] = None

    @property
    def suffix(self) -> str:
        """What ends the names of this direction's parameters."""
        return "_reverse" if self.is_reverse else ""

    def turn(self, x: Tensor) -> Tensor:
        """x, whose first axes are `layout`, in the order of reading; or back, since it is its own inverse."""
        if not self.is_reverse:
            return x
        time = self.layout.index("T")
        return x.flip(time) if self.order is None else x.gather(time, self.order.expand_as(x))


def directions(
    layout: str, sequence_size: int, lengths: Optional[Tensor], resets: Optional[Tensor], bidirectional: bool
) -> list[Direction]:
    """The directions a layer reads in: forward, and backward if it is bidirectional.

    Backward, a row is read from its length on, and padding stays where it is. A reset parts a row before its step: read
    backward, the states become zero after that step, before the next one that is read. So what lies between resets is a
    sequence of its own in both directions. At the first step of a row backward reading is over, and a reset changes nothing.
    """
    forward = Direction(layout, lengths, resets)
    if not bidirectional:
        return [forward]
    order = None
    if lengths is not None:
        steps = torch.arange(sequence_size, device=lengths.device)
        order = lengths[:, None] - 1 - steps
        order = torch.where(order < 0, steps, order)  # [B, T]
    if resets is not None:
        read = resets.flip(1) if order is None else resets.gather(1, order)
        resets = torch.cat([torch.zeros_like(read[:, :1]), read], 1)[:, :-1]  # one step later
    if order is not None:
        order = (order if layout == "BT" else order.T).unsqueeze(-1)
    return [forward, Direction(layout, lengths, resets, is_reverse=True, order=order)]


def clear_padding(x: Tensor, layout: str, lengths: Tensor) -> Tensor:
    """x with zeros behind each row's length: a product with NaN there would reach the weights' gradients."""
    steps = torch.arange(x.shape[layout.index("T")], device=x.device)
    padding = steps >= lengths[:, None]  # [B, T]
    return x.masked_fill((padding if layout == "BT" else padding.T).unsqueeze(-1), 0)


class Packing:
    """Where the rows of a PackedSequence stand in a padded batch [T, B, features] with rows in the caller's order.

    torch's pad_packed_sequence does the same with one operation for every different length, each of which costs the backward
    pass a pass over the whole batch; here it is one operation each way.

    Attributes:
        packed: the sequence.
        lengths: [B] int64, on the device of its data.
        places: [packed rows], where each row of its data stands in a batch of which T and B are one axis.
    """

    def __init__(self, packed: PackedSequence) -> None:
        self.packed = packed
        data, sizes, order, _ = packed  # by position: compiled by torch 2.4, a field asked for by its name is never None
        ends = sizes.cumsum(0)  # on the CPU, where batch_sizes lies whatever the device
        numbers = torch.arange(len(data))
        steps = torch.searchsorted(ends, numbers, right=True)
        rows = (numbers - (ends - sizes)[steps]).to(data.device)
        self.shape = len(sizes), int(sizes[0]) if order is None else len(order)
        self.lengths = (torch.arange(self.shape[1]) < sizes[:, None]).sum(0).to(data.device)  # longest row first
        if order is not None:
            rows = order[rows]
            self.lengths = torch.empty_like(self.lengths).index_copy(0, order, self.lengths)
        self.places = steps.to(data.device) * self.shape[1] + rows

    def unpack(self) -> Tensor:
        """The padded batch, [T, B, features], with zeros in the padding."""
        data = self.packed.data
        steps, rows = self.shape
        empty = data.new_zeros((steps * rows, data.shape[1]))
        return empty.index_copy(0, self.places, data).unflatten(0, (steps, rows))

    def pack(self, x: Tensor) -> PackedSequence:
        """A batch [T, B, features], packed as the sequence is."""
        data = x.flatten(0, 1).index_select(0, self.places)
        return PackedSequence(data, self.packed.batch_sizes, self.packed.sorted_indices, self.packed.unsorted_indices)
