"""Programs as people write them for nn.LSTM and nn.GRU: with `flashrnn.nn` in the place of `nn` they compute the same.

Each takes the module that has the layers, and returns what it computed: losses, predictions, parameters.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence, pad_packed_sequence, pad_sequence

import flashrnn.nn
from core_inputs import assert_equal
from core_layers import everywhere

STEPS = 4  # of training


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def train(model: nn.Module, loss_of: Any, optimizer: Any = None) -> list[Tensor]:
    """A few steps of Adam. Returns the losses and the parameters after them."""
    optimizer = optimizer or torch.optim.Adam(model.parameters(), lr=0.05)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.detach())
    assert losses[-1] < losses[0]
    return [*losses, *(x.detach().clone() for x in model.parameters())]


# ---------------------------------------------------------------------------------------------- programs for both


class Tagger(nn.Module):
    def __init__(self, layers: Any, words: int = 12, tags: int = 4) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, 6, padding_idx=0)
        self.lstm = layers.LSTM(6, 5, num_layers=2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(10, tags)

    def forward(self, words: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(self.embed(words), lengths, batch_first=True, enforce_sorted=False)
        output, _ = self.lstm(packed)
        output, _ = pad_packed_sequence(output, batch_first=True, total_length=words.shape[1])
        return self.head(output)


def tagging(layers: Any) -> list[Tensor]:
    """Tags of words, in packed batches of sentences of all lengths."""
    torch.manual_seed(0)
    model = Tagger(layers)
    lengths = torch.tensor([3, 7, 1, 5])
    words = pad_sequence([torch.randint(1, 12, (length,)) for length in lengths], batch_first=True)
    tags = (words % 4).masked_fill(words == 0, -100)
    return train(model, lambda: cross_entropy(model(words, lengths).flatten(0, 1), tags.flatten(), ignore_index=-100))


class Translator(nn.Module):
    def __init__(self, layers: Any) -> None:
        super().__init__()
        self.embed = nn.Embedding(10, 6)
        self.encoder = layers.GRU(6, 8, num_layers=2)
        self.decoder = layers.GRU(6, 8, num_layers=2)
        self.head = nn.Linear(8, 10)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        _, hidden = self.encoder(self.embed(source))
        output, _ = self.decoder(self.embed(target), hidden)
        return self.head(output)

    @torch.no_grad()
    def translate(self, source: Tensor, length: int) -> Tensor:
        _, hidden = self.encoder(self.embed(source))
        word, words = source.new_zeros(1, source.shape[1]), []
        for _ in range(length):
            output, hidden = self.decoder(self.embed(word), hidden)
            word = self.head(output).argmax(-1)
            words.append(word)
        return torch.cat(words)


def translation(layers: Any) -> list[Tensor]:
    """A sequence to a sequence: the encoder's last states start the decoder, which is then run word by word."""
    torch.manual_seed(0)
    model = Translator(layers)
    source = torch.randint(1, 10, (6, 5))
    target = source.flip(0)
    start = torch.cat([torch.zeros_like(target[:1]), target[:-1]])
    results = train(model, lambda: cross_entropy(model(source, start).flatten(0, 1), target.flatten()))
    return [*results, model.eval().translate(source, 6)]


def truncated_backpropagation(layers: Any) -> list[Tensor]:
    """A stream in pieces: states are handed on, detached."""
    torch.manual_seed(0)
    lstm, head = layers.LSTM(2, 8, 2), nn.Linear(8, 2)
    model = nn.ModuleList([lstm, head])
    stream = torch.sin(0.3 * torch.arange(41.0))[:, None, None] * torch.ones(1, 3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    hidden = (torch.zeros(2, 3, 8), torch.zeros(2, 3, 8))
    losses = []
    for start in range(0, 40, 8):
        hidden = tuple(state.detach() for state in hidden)
        output, hidden = lstm(stream[start : start + 8], hidden)
        loss = mse_loss(head(output), stream[start + 1 : start + 9])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return [*losses, *hidden, *model.parameters()]


class Encoder(nn.Module):
    def __init__(self, layers: Any, classes: int = 3) -> None:
        super().__init__()
        self.gru = layers.GRU(4, 6, num_layers=2, bidirectional=True, dropout=0.0)
        self.head = nn.Linear(12, classes)

    def forward(self, sentences: PackedSequence) -> Tensor:
        self.gru.flatten_parameters()
        _, hidden = self.gru(sentences)
        hidden = hidden.view(self.gru.num_layers, 2, -1, self.gru.hidden_size)
        return self.head(torch.cat([hidden[-1, 0], hidden[-1, 1]], dim=-1))


def encoding(layers: Any) -> list[Tensor]:
    """The class of a sentence, from the last states of both directions."""
    torch.manual_seed(0)
    model = Encoder(layers)
    sentences = pack_sequence([torch.randn(length, 4) for length in (7, 4, 4, 2)])
    labels = torch.tensor([0, 1, 2, 1])
    return [*train(model, lambda: cross_entropy(model(sentences), labels)), model.eval()(sentences)]


def streaming(layers: Any) -> list[Tensor]:
    """A detector that hears one frame at a time says what it says of the whole recording."""
    torch.manual_seed(0)
    lstm, head = layers.LSTM(3, 8, batch_first=True).eval(), nn.Linear(8, 1)
    frames = torch.randn(1, 20, 3)
    with torch.inference_mode():
        whole = head(lstm(frames)[0])
        state, said = None, []
        for t in range(frames.shape[1]):
            output, state = lstm(frames[:, t : t + 1], state)
            said.append(head(output))
    assert_equal(torch.cat(said, 1), whole)
    return [whole, *state]


def learnt_start(layers: Any) -> list[Tensor]:
    """Initial states that are parameters, and weights that are normalised."""
    torch.manual_seed(0)
    gru = nn.utils.parametrizations.weight_norm(layers.GRU(3, 5), "weight_hh_l0")
    start = nn.Parameter(torch.zeros(1, 1, 5))
    model = nn.Module()
    model.gru, model.start = gru, start
    x, target = torch.randn(6, 4, 3), torch.rand(6, 4, 5)
    return train(model, lambda: mse_loss(gru(x, start.expand(-1, 4, -1))[0], target))


@pytest.mark.parametrize("program", [tagging, translation, truncated_backpropagation, encoding, streaming, learnt_start])
def test_a_program_computes_the_same_with_ours(program: Any) -> None:
    assert_equal(program(flashrnn.nn), program(nn), 1e-10)


# ------------------------------------------------------------------------------------------------- reinforcement learning


class Agent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = flashrnn.nn.GRU(3, 8)
        self.policy = nn.Linear(8, 2)

    def act(self, observation: Tensor, is_first: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [B, actions] in one step of the environments, some of which have begun anew."""
        output, hidden = self.gru(observation[None], hidden, resets=is_first[None])
        return self.policy(output[0]), hidden

    def forward(self, observations: Tensor, is_first: Tensor, hidden: Tensor) -> Tensor:
        """Logits [T, B, actions] of a rollout in which episodes end and begin."""
        return self.policy(self.gru(observations, hidden, resets=is_first)[0])


def test_reinforcement_learning_with_episodes_that_end_inside_a_rollout() -> None:
    torch.manual_seed(0)
    agent, reference = Agent(), nn.GRU(3, 8)
    reference.load_state_dict(agent.gru.state_dict())
    observations, is_first = torch.randn(9, 4, 3), torch.rand(9, 4) < 0.3
    hidden = torch.zeros(1, 4, 8)
    acted, expected, by_hand = [], [], hidden
    with torch.no_grad():
        state = hidden
        for observation, first in zip(observations, is_first):
            logits, state = agent.act(observation, first, state)
            acted.append(logits)
            output, by_hand = reference(observation[None], by_hand * ~first[None, :, None])
            expected.append(agent.policy(output[0]))
        assert_equal(torch.stack(acted), torch.stack(expected))
        assert_equal(agent(observations, is_first, hidden), torch.stack(acted))
    actions, advantages = torch.stack(acted).argmax(-1), torch.rand(9, 4)

    def loss() -> Tensor:
        chosen = agent(observations, is_first, hidden).log_softmax(-1).gather(-1, actions[..., None])[..., 0]
        return -(advantages * chosen).mean()

    train(agent, loss)


# ----------------------------------------------------------------------------------------------------------- mixed precision


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
@everywhere
def test_mixed_precision_with_a_gradient_scaler(device: str, kind: str, dtype: torch.dtype) -> None:
    torch.set_default_dtype(torch.float32)
    losses = []
    for enabled in (True, False):
        torch.manual_seed(0)
        model = nn.Sequential(getattr(flashrnn.nn, kind)(4, 16, num_layers=2, num_heads=2, batch_first=True)).to(device)
        head, x, y = nn.Linear(16, 4).to(device), torch.randn(8, 10, 4).to(device), torch.randn(8, 10, 4).to(device)
        parameters = [*model.parameters(), *head.parameters()]
        optimizer, scaler = torch.optim.Adam(parameters, lr=0.01), torch.amp.GradScaler(device, enabled=enabled)
        for _ in range(10):
            optimizer.zero_grad()
            with torch.autocast(device, dtype, enabled=enabled):
                output, _ = model(x)
                loss = mse_loss(head(output).float(), y)
            assert output.dtype == (dtype if enabled else torch.float32)
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(parameters, 1.0)
            scaler.step(optimizer)
            scaler.update()
        assert all(x.dtype == x.grad.dtype == torch.float32 for x in parameters)
        losses.append(loss.detach())
    assert losses[0].item() == pytest.approx(losses[1].item(), rel=0.01)


@everywhere
def test_a_gradient_scaler_sees_an_overflow(device: str) -> None:
    torch.set_default_dtype(torch.float32)
    model = flashrnn.nn.GRU(4, 16, num_heads=2).to(device)
    before = [x.detach().clone() for x in model.parameters()]
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler(device, init_scale=2.0**40)
    with torch.autocast(device, torch.float16):
        output, _ = model(torch.randn(10, 8, 4, device=device))
    scaler.scale(output.float().square().mean()).backward()
    scaler.step(optimizer)
    scaler.update()
    assert_equal([x.detach() for x in model.parameters()], before, 0)
    assert scaler.get_scale() == 2.0**39


# -------------------------------------------------------------------------------------------------- checkpoints and export


def test_training_goes_on_from_a_checkpoint_of_the_other_layers() -> None:
    lengths = torch.tensor([4, 2])
    words, tags = torch.randint(1, 12, (2, 4)), torch.randint(0, 4, (2, 4))

    def model_and_optimizer(layers: Any) -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = Tagger(layers)
        return model, torch.optim.AdamW(model.parameters(), lr=0.02)

    def go_on(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Tensor]:
        return train(model, lambda: cross_entropy(model(words, lengths).flatten(0, 1), tags.flatten()), optimizer)

    unbroken = model_and_optimizer(nn)
    go_on(*unbroken)
    expected = go_on(*unbroken)
    for before, after in ((nn, flashrnn.nn), (flashrnn.nn, nn)):
        model, optimizer = model_and_optimizer(before)
        go_on(model, optimizer)
        file = io.BytesIO()
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        file.seek(0)
        saved = torch.load(file, weights_only=True)
        model, optimizer = model_and_optimizer(after)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        assert_equal(go_on(model, optimizer), expected, 1e-9)


class Forecaster(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = flashrnn.nn.LSTM(2, 6, num_layers=2, batch_first=True)
        self.head = nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


@pytest.mark.filterwarnings(  # all of them torch's own, the last two those of torch 2.4
    "ignore::DeprecationWarning:torch",
    "ignore:At pre-dispatch tracing:UserWarning",
    "ignore:You are using `torch.load`:FutureWarning",
)
def test_a_model_is_exported_saved_and_loaded() -> None:
    model, file = Forecaster().eval().requires_grad_(False), io.BytesIO()
    dynamic = {"x": {0: torch.export.Dim("batch", min=1, max=64), 1: torch.export.Dim("time", min=2, max=512)}}
    torch.export.save(torch.export.export(model, (torch.randn(3, 10, 2),), dynamic_shapes=dynamic), file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    for batch, time in ((3, 10), (5, 33), (2, 2)):
        x = torch.randn(batch, time, 2)
        assert_equal(loaded(x), model(x), 0)
