"""Text as streams of characters for examples/char_lm.py, and the bigram model that it has to beat."""

from __future__ import annotations

import string
from pathlib import Path

import torch
from torch import Tensor

ALPHABET = string.printable + "\N{REPLACEMENT CHARACTER}"  # the last one stands for every other character
HELD_OUT = 20  # every 20th file is for validation

Streams = tuple[Tensor, Tensor]
"""Inputs and targets, the same one character later, both [B, L]."""


def read_files(folder: Path, max_size: int) -> tuple[Tensor, Tensor]:
    """The training and the validation files among folder/*.py, in order of their names, up to max_size characters in all."""
    numbers, unknown = {character: number for number, character in enumerate(ALPHABET)}, len(ALPHABET) - 1
    parts: tuple[list[int], list[int]] = ([], [])
    for index, path in enumerate(sorted(folder.glob("*.py"))):
        text = path.read_text(encoding="utf-8", errors="replace")
        if sum(map(len, parts)) + len(text) > max_size:
            break
        parts[index % HELD_OUT == HELD_OUT - 1].extend(numbers.get(character, unknown) for character in text)
    return torch.tensor(parts[0], dtype=torch.long), torch.tensor(parts[1], dtype=torch.long)


def as_streams(text: Tensor, count: int, min_length: int) -> Streams:
    """A text cut into `count` streams of one length."""
    length = (len(text) - 1) // count
    if length < min_length:
        needed = count * min_length + 1
        raise SystemExit(f"too little text: expected at least {needed} characters, got {len(text)}.")
    return text[: count * length].view(count, length), text[1 : count * length + 1].view(count, length)


def bigram_bits(train: Streams, valid: Streams) -> float:
    """Bits per character of a bigram model with add-one smoothing, counted on `train`, evaluated on `valid`."""
    size = len(ALPHABET)
    pairs = (train[0] * size + train[1]).flatten()
    counts = torch.bincount(pairs, minlength=size * size).view(size, size) + 1.0
    bits = -(counts / counts.sum(1, keepdim=True)).log2()
    return bits[valid[0], valid[1]].mean().item()
