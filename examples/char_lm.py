"""Train a language model of characters on the source code of Python's standard library.

    python examples/char_lm.py --function lstm

One recurrent layer learns to predict the next character. It reads long streams in short pieces and carries its states from
piece to piece (truncated backpropagation through time): last_states of one call, detached, are the states of the next.
Validation is on whole files that it never saw, against a bigram model: the probability of a character given the one before.
The end is a sample and a loss curve; the exit code is 1 if the bigram model is better. On two CPU cores that takes one to
two minutes, depending on the cell; on a GPU it computes in bfloat16.

`--layer flashrnn.nn` and `--layer torch.nn` take the layers of those modules. With one head (`--num-heads 1`) both start
from the same weights and learn the same.
"""

from __future__ import annotations

import argparse
import math
import sys
import sysconfig
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Optional, Union

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import flashrnn.nn
from corpus import ALPHABET, Streams, as_streams, bigram_bits, read_files
from flashrnn import BackendUnavailable
from flashrnn.cells import CELLS
from rnn_layer import RNNLayer

try:
    from matplotlib.figure import Figure
    from tqdm import tqdm
except ImportError as error:
    raise SystemExit(f"char_lm.py: {error}. It needs: pip install matplotlib tqdm") from error

LAYERS = ("functional", "flashrnn.nn", "torch.nn")
NAMES = {"lstm": "LSTM", "gru": "GRU", "elman": "RNN", "slstm": "SLSTM"}  # of the layers in flashrnn.nn and torch.nn
VALIDATION_STREAMS = 128
EVALUATIONS = 6  # how often the validation loss is taken during training
WARM_UP = 50  # steps until the learning rate is reached

Curve = list[tuple[int, float]]
"""(step, loss in bits per character)."""

States = Union[Tensor, tuple[Tensor, ...], None]
"""What a layer returns for its next call, and takes from the last one."""


# ------------------------------------------------------------------------------------------------------------------ model


class CharModel(nn.Module):
    """Embedding, one recurrent layer, and a linear map to the logits of the next character."""

    def __init__(
        self, layer: str, function: str, backend: str, num_heads: int, head_dim: int, embedding_size: int = 64
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(len(ALPHABET), embedding_size)
        self.layer = make_layer(layer, embedding_size, num_heads, head_dim, function, backend)
        self.head = nn.Linear(num_heads * head_dim, len(ALPHABET))

    def forward(self, x: Tensor, states: States = None) -> tuple[Tensor, States]:
        """Logits [B, T, characters] and last_states, given characters [B, T] and the states before them."""
        h, last_states = self.layer(self.embed(x), states)
        return self.head(h), last_states


def make_layer(layer: str, input_size: int, num_heads: int, head_dim: int, function: str, backend: str) -> nn.Module:
    """A recurrent layer: one made from `flashrnn()`, or that of flashrnn.nn or torch.nn."""
    if layer == "functional":
        return RNNLayer(input_size, num_heads, head_dim, function, backend)
    sizes, name = (input_size, num_heads * head_dim), NAMES[function]
    if layer == "torch.nn":
        module: nn.Module = getattr(nn, name)(*sizes, batch_first=True)
    else:
        module = getattr(flashrnn.nn, name)(*sizes, batch_first=True, num_heads=num_heads, backend=backend)
    return module


def detach(states: States) -> States:
    """The same states, through which no gradient flows."""
    return tuple(x.detach() for x in states) if isinstance(states, tuple) else None if states is None else states.detach()


def precision(x: Tensor) -> AbstractContextManager[Any]:
    """bfloat16 on a GPU, float32 elsewhere. flashrnn() follows autocast."""
    return torch.autocast(x.device.type, torch.bfloat16, enabled=x.is_cuda)


def loss_bits(model: CharModel, x: Tensor, y: Tensor, states: States) -> tuple[Tensor, States]:
    """Mean bits per character, and last_states."""
    with precision(x):
        logits, last_states = model(x, states)
    return cross_entropy(logits.flatten(0, 1).float(), y.flatten()) / math.log(2), last_states


@torch.no_grad()
def evaluate(model: CharModel, streams: Streams, piece: int = 256) -> float:
    """Bits per character of whole streams, with the states carried through each."""
    total, states = 0.0, None
    for x, y in zip(streams[0].split(piece, 1), streams[1].split(piece, 1)):
        bits, states = loss_bits(model, x, y, states)
        total += bits.item() * x.numel()
    return total / streams[0].numel()


@torch.no_grad()
def sample(model: CharModel, prompt: str, count: int, temperature: float) -> str:
    """The prompt and `count` generated characters: after the prompt one step a call, from the states of the last one."""
    x = torch.tensor([[ALPHABET.index(character) for character in prompt]], device=model.head.weight.device)
    text, states = prompt, None
    for _ in range(count):
        with precision(x):
            logits, states = model(x, states)
        x = torch.multinomial(torch.softmax(logits[:, -1].float() / temperature, -1), 1)  # [1, 1]
        text += ALPHABET[int(x.item())]
    return text


# --------------------------------------------------------------------------------------------------------------- training


def until_done(steps: int, minutes: Optional[float]) -> Iterator[float]:
    """Before every step, the fraction of the training that is over: of the minutes if given, else of the steps."""
    start, step, done = time.monotonic(), 0, 0.0
    while done < 1:
        yield done
        step += 1
        done = step / steps if minutes is None else (time.monotonic() - start) / (60 * minutes)


def pieces(streams: Streams, length: int) -> Iterator[tuple[Tensor, Tensor, bool]]:
    """Pieces of the streams one after the other, over and over, and whether the streams begin with this one."""
    while True:
        for start in range(0, streams[0].shape[1] - length + 1, length):
            x, y = (stream[:, start : start + length] for stream in streams)
            yield x, y, start == 0


def learning_rate(peak: float, step: int, done: float) -> float:
    """Linear warm-up, and a cosine from the peak down to a twentieth of it."""
    return peak * min(1.0, step / WARM_UP) * (0.05 + 0.475 * (1 + math.cos(math.pi * done)))


def train(model: CharModel, streams: Streams, valid: Streams, options: argparse.Namespace) -> tuple[Curve, Curve]:
    """Train on the streams piece by piece. Returns the curves of training and validation."""
    optimizer = torch.optim.AdamW(model.parameters())
    train_curve: Curve = []
    valid_curve: Curve = [(0, evaluate(model, valid))]
    states: States = None
    total = options.steps if options.minutes is None else None
    bar = tqdm(until_done(options.steps, options.minutes), total=total, unit="step", desc=options.function)
    for step, (done, (x, y, anew)) in enumerate(zip(bar, pieces(streams, options.sequence_size)), start=1):
        if done >= len(valid_curve) / EVALUATIONS:
            valid_curve.append((step - 1, evaluate(model, valid)))
        optimizer.param_groups[0]["lr"] = learning_rate(options.lr, step, done)
        optimizer.zero_grad()
        loss, states = loss_bits(model, x, y, None if anew else detach(states))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        train_curve.append((step, loss.item()))
        bar.set_postfix_str(f"training {train_curve[-1][1]:.2f}, validation {valid_curve[-1][1]:.2f} bits per character")
    valid_curve.append((len(train_curve), evaluate(model, valid)))
    return train_curve, valid_curve


def plot(path: Path, train_curve: Curve, valid_curve: Curve, bigram: float, title: str) -> None:
    """Save the loss curves as a PNG."""
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    axes.plot(*zip(*train_curve), color="tab:blue", alpha=0.5, linewidth=0.8, label="training")
    axes.plot(*zip(*valid_curve), color="tab:orange", marker="o", markersize=4, label="validation")
    axes.axhline(bigram, color="black", linestyle="--", linewidth=1, label="validation, bigram model")
    axes.set(xlabel="training step", ylabel="loss (bits per character)", title=title, xlim=(0, None), ylim=(0, None))
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, format="png", dpi=150)


# ----------------------------------------------------------------------------------------------------------- command line


def positive(text: str) -> float:
    """A finite number above 0."""
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"expected a number above 0, got {text}")
    return value


def positive_int(text: str) -> int:
    """An integer above 0."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected an integer above 0, got {text}")
    return value


def parse(argv: Optional[Sequence[str]]) -> argparse.Namespace:
    """The options, checked."""
    description, usage = (__doc__ or "").split("\n\n", 2)[::2]
    parser = argparse.ArgumentParser(description=description, epilog=usage)
    has_gpu = torch.cuda.is_available()

    def add(name: str, default: Union[str, float, None], meaning: str, **how: Any) -> None:
        how.setdefault("type", type(default))
        parser.add_argument(name, default=default, help=f"{meaning} (default: %(default)s)", **how)

    add("--function", "lstm", "the cell", choices=list(CELLS))
    add("--backend", "auto", "as for flashrnn(); `python -m flashrnn` lists them")
    add("--layer", LAYERS[0], "whose layer: made here from flashrnn(), or of flashrnn.nn or torch.nn", choices=LAYERS)
    add("--device", "cuda" if has_gpu else "cpu", "where to run", choices=("cpu", "cuda"))
    add("--steps", 1000, "training steps", type=positive_int)
    add("--minutes", None, "train for this time instead", type=positive)
    add("--lr", 8e-3, "highest learning rate", type=positive)
    add("--num-heads", 4, "heads", type=positive_int)
    add("--head-dim", 64, "size of a head's state", type=positive_int)
    add("--batch-size", 32, "streams read side by side", type=positive_int)
    add("--sequence-size", 64, "characters in a piece, through which gradients flow", type=positive_int)
    add("--seed", 0, "of weights and sample")
    add("--temperature", 0.7, "of the sample: low is safe, high is varied", type=positive)
    add("--folder", sysconfig.get_paths()["stdlib"], "whose *.py files are the text", type=Path)
    add("--megabytes", 4.0, "how much text to read at most", type=positive)
    add("--out", "char_lm_loss.png", "where to save the loss curve", type=Path)
    options = parser.parse_args(argv)
    if options.device == "cuda" and not has_gpu:
        parser.error("--device cuda: torch finds no GPU")
    if options.layer == "torch.nn" and (options.num_heads > 1 or options.function == "slstm"):
        parser.error("--layer torch.nn: torch.nn has layers with one head (--num-heads 1) and no slstm")
    if not options.out.parent.is_dir():
        parser.error(f"--out: there is no folder {options.out.parent}")
    return options


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Train, compare with the bigram model, print a sample, draw the loss; 0 if the model is better."""
    options = parse(argv)
    torch.manual_seed(options.seed)
    train_text, valid_text = (x.to(options.device) for x in read_files(options.folder, int(1e6 * options.megabytes)))
    streams = as_streams(train_text, options.batch_size, options.sequence_size)
    valid = as_streams(valid_text, VALIDATION_STREAMS, 1)
    print(f"{len(train_text):,} characters for training, {len(valid_text):,} for validation, on {options.device}")
    bigram = bigram_bits(streams, valid)
    model = CharModel(options.layer, options.function, options.backend, options.num_heads, options.head_dim)
    model = model.to(options.device)
    try:
        train_curve, valid_curve = train(model, streams, valid, options)
    except BackendUnavailable as error:
        raise SystemExit(f"char_lm.py: {error}") from error
    bits = valid_curve[-1][1]
    print(f"\nA sample at temperature {options.temperature}:\n\n{sample(model, 'def ', 400, options.temperature)}\n")
    title = f"{options.function}, {options.num_heads} x {options.head_dim}, on Python's standard library"
    plot(options.out, train_curve, valid_curve, bigram, title)
    print(f"Loss curve: {options.out.resolve()}")
    print(f"Validation loss in bits per character: {options.function} {bits:.3f}, bigram model {bigram:.3f}")
    return 0 if bits < bigram else 1  # nan is not better


if __name__ == "__main__":
    sys.exit(main())
