"""Train a language model of characters on the source code of Python's standard library.

    python examples/char_lm.py --function lstm

One recurrent layer learns to predict the next character. It reads long streams in short pieces and carries its states from
piece to piece (truncated backpropagation through time): last_states of one call, detached, are the states of the next.
The result is compared with a bigram model of the same text, printed with a sample, and drawn as a loss curve. The exit code
is 1 if the bigram model is better. About two minutes on two CPU cores; on a GPU it computes in bfloat16.
"""

from __future__ import annotations

import argparse
import math
import string
import sys
import sysconfig
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Optional

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from flashrnn.cells import CELLS
from rnn_layer import RNNLayer

try:
    from matplotlib.figure import Figure
    from tqdm import tqdm
except ImportError as error:
    raise SystemExit(f"char_lm.py: {error}. It needs: pip install matplotlib tqdm") from error

ALPHABET = string.printable + "\N{REPLACEMENT CHARACTER}"  # the last one stands for every other character
UNKNOWN = len(ALPHABET) - 1
HELD_OUT = 20  # every 20th file is for validation
EVALUATIONS = 12  # how often the validation loss is taken
VALIDATION_STREAMS = 128
Curve = list[tuple[int, float]]
"""(step, loss in bits per character)."""


# ------------------------------------------------------------------------------------------------------------------- text


def read_files(folder: Path, max_size: int) -> tuple[Tensor, Tensor]:
    """Characters of the training and of the validation files among folder/*.py, in order of their names, up to max_size."""
    numbers = {character: number for number, character in enumerate(ALPHABET)}
    parts: tuple[list[int], list[int]] = ([], [])
    for index, path in enumerate(sorted(folder.glob("*.py"))):
        text = path.read_text(encoding="utf-8", errors="replace")
        if sum(map(len, parts)) + len(text) > max_size:
            break
        parts[index % HELD_OUT == HELD_OUT - 1].extend(numbers.get(character, UNKNOWN) for character in text)
    return torch.tensor(parts[0]), torch.tensor(parts[1])


def as_streams(text: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets [count, L]: a text cut into equal streams, and the same one character later."""
    length = (len(text) - 1) // count
    return text[: count * length].view(count, length), text[1 : count * length + 1].view(count, length)


def bigram_bits(train: tuple[Tensor, Tensor], valid: tuple[Tensor, Tensor]) -> float:
    """Bits per character of a bigram model with add-one smoothing, counted on `train`, evaluated on `valid`."""
    size = len(ALPHABET)
    pairs = (train[0] * size + train[1]).flatten()
    counts = torch.bincount(pairs, minlength=size * size).view(size, size) + 1.0
    bits = -(counts / counts.sum(1, keepdim=True)).log2()
    return bits[valid[0], valid[1]].mean().item()


# ------------------------------------------------------------------------------------------------------------------ model


class CharModel(nn.Module):
    """Embedding, one recurrent layer, and a linear map to the logits of the next character."""

    def __init__(self, function: str, backend: str, num_heads: int, head_dim: int, embedding_size: int = 64) -> None:
        super().__init__()
        self.embed = nn.Embedding(len(ALPHABET), embedding_size)
        self.layer = RNNLayer(embedding_size, num_heads, head_dim, function, backend)
        self.head = nn.Linear(num_heads * head_dim, len(ALPHABET))

    def forward(self, x: Tensor, states: Optional[Tensor] = None) -> tuple[Tensor, Tensor]:
        """Logits [B, T, characters] and last_states, given characters [B, T] and the states before them."""
        h, last_states = self.layer(self.embed(x), states)
        return self.head(h), last_states


def loss_bits(model: CharModel, x: Tensor, y: Tensor, states: Optional[Tensor]) -> tuple[Tensor, Tensor]:
    """Mean bits per character, and last_states; in bfloat16 on a GPU."""
    with torch.autocast(x.device.type, torch.bfloat16, enabled=x.is_cuda):
        logits, last_states = model(x, states)
        return cross_entropy(logits.flatten(0, 1), y.flatten()) / math.log(2), last_states


@torch.no_grad()
def evaluate(model: CharModel, streams: tuple[Tensor, Tensor], piece: int = 256) -> float:
    """Bits per character of whole streams, with the states carried through each."""
    total, states = 0.0, None
    for x, y in zip(streams[0].split(piece, 1), streams[1].split(piece, 1)):
        bits, states = loss_bits(model, x, y, states)
        total += bits.item() * x.numel()
    return total / streams[0].numel()


@torch.no_grad()
def sample(model: CharModel, prompt: str, count: int, temperature: float) -> str:
    """The prompt and `count` generated characters, one step of the layer for each."""
    device = model.head.weight.device
    x = torch.tensor([[ALPHABET.index(character) for character in prompt]], device=device)
    text, states = prompt, None
    for _ in range(count):
        logits, states = model(x, states)
        x = torch.multinomial(torch.softmax(logits[:, -1] / temperature, -1), 1)  # [1, 1]
        text += ALPHABET[int(x.item())]
    return text


# --------------------------------------------------------------------------------------------------------------- training


def until_done(steps: int, minutes: Optional[float]) -> Iterator[float]:
    """Before every step, the fraction of the training that is over: of the minutes if given, else of the steps."""
    start, step = time.monotonic(), 0
    while True:
        done = step / steps if minutes is None else (time.monotonic() - start) / (60 * minutes)
        if done >= 1:
            return
        yield done
        step += 1


def train(
    model: CharModel, streams: tuple[Tensor, Tensor], valid: tuple[Tensor, Tensor], options: argparse.Namespace
) -> tuple[Curve, Curve]:
    """Train on pieces of the streams, with the states carried along. Returns the curves of training and validation."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, weight_decay=0.01)
    train_curve: Curve = []
    valid_curve: Curve = [(0, evaluate(model, valid))]
    length, position, states = streams[0].shape[1], 0, None
    total = options.steps if options.minutes is None else None
    bar = tqdm(until_done(options.steps, options.minutes), total=total, unit="step", desc=options.function)
    for step, done in enumerate(bar, start=1):
        if done >= len(valid_curve) / EVALUATIONS:
            valid_curve.append((step - 1, evaluate(model, valid)))
        if position + options.sequence > length:
            position, states = 0, None
        x, y = (stream[:, position : position + options.sequence] for stream in streams)
        position += options.sequence
        for group in optimizer.param_groups:
            group["lr"] = options.lr * min(1.0, step / 50) * (0.05 + 0.95 * math.cos(math.pi / 2 * done) ** 2)
        loss, states = loss_bits(model, x, y, states)
        states = states.detach()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        train_curve.append((step, loss.item()))
        bar.set_postfix_str(f"train {loss.item():.2f}, valid {valid_curve[-1][1]:.2f} bits/char")
    valid_curve.append((len(train_curve), evaluate(model, valid)))
    return train_curve, valid_curve


def plot(path: Path, train_curve: Curve, valid_curve: Curve, bigram: float, title: str) -> None:
    """Save the loss curves as a PNG."""
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.plot(*zip(*train_curve), color="tab:blue", alpha=0.35, linewidth=0.8, label="training")
    axes.plot(*zip(*valid_curve), color="tab:orange", marker="o", markersize=4, label="validation")
    axes.axhline(bigram, color="black", linestyle="--", linewidth=1, label="bigram model, validation")
    axes.set(xlabel="training step", ylabel="loss (bits per character)", title=title, xlim=(0, None), ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=150)


# ----------------------------------------------------------------------------------------------------------- command line


def parse(argv: Optional[Sequence[str]]) -> argparse.Namespace:
    """The options, checked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--function", choices=list(CELLS), default="lstm", help="the cell (default: %(default)s)")
    parser.add_argument("--backend", default="auto")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--num-heads", type=int, default=4)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--sequence", type=int, default=64)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--lr", type=float, default=4e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--megabytes", type=float, default=4)
    parser.add_argument("--out", type=Path, default=Path("char_lm_loss.png"))
    return parser.parse_args(argv)


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Train, compare with the bigram model, print a sample, draw the loss; 0 if the model is better."""
    options = parse(argv)
    torch.manual_seed(options.seed)
    t = time.time()
    train_text, valid_text = (
        text.to(options.device) for text in read_files(Path(sysconfig.get_paths()["stdlib"]), int(1e6 * options.megabytes))
    )
    streams, valid = as_streams(train_text, options.batch), as_streams(valid_text, VALIDATION_STREAMS)
    bigram = bigram_bits(streams, valid)
    print(len(train_text), len(valid_text), bigram, time.time() - t, flush=True)
    model = CharModel(options.function, options.backend, options.num_heads, options.head_dim).to(options.device)
    train_curve, valid_curve = train(model, streams, valid, options)
    print(time.time() - t, valid_curve)
    plot(options.out, train_curve, valid_curve, bigram, options.function)
    print(sample(model, "def ", 400, options.temperature))
    print(time.time() - t)
    return int(valid_curve[-1][1] >= bigram)


if __name__ == "__main__":
    sys.exit(main())
