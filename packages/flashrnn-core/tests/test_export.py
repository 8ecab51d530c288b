"""vanilla in exported graphs with any B and T: there its loop is one operation of torch."""

from __future__ import annotations

import io
from typing import Any, Optional

import pytest
import torch
from torch import Tensor, nn

from core_inputs import FUNCTIONS, MASKS, Sizes, assert_equal, gradients, make_inputs
from core_layers import KINDS, E, flat, layer, make_hx, randn
from flashrnn import FlashRNNConfig, flashrnn

VERSION = tuple(map(int, torch.__version__.split(".")[:2]))
pytestmark = [
    pytest.mark.skipif(VERSION < (2, 8), reason="this PyTorch has no scan to export"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:torch", "ignore::FutureWarning", "ignore::UserWarning:torch"),
]
every = pytest.mark.parametrize("function", FUNCTIONS)
SIZES = (Sizes(B=1, T=1), Sizes(B=3, T=7))


class Recurrent(nn.Module):
    def __init__(self, config: FlashRNNConfig) -> None:
        super().__init__()
        _, R, b, _ = make_inputs(config.function)
        self.config, self.R, self.b = config, nn.Parameter(R.detach()), nn.Parameter(b.detach())

    def forward(
        self, Wx: Tensor, states: Optional[Tensor], lengths: Optional[Tensor], resets: Optional[Tensor]
    ) -> tuple[Tensor, Tensor]:
        return flashrnn(Wx, self.R, self.b, states, config=self.config, lengths=lengths, resets=resets)


def arguments(function: str, sizes: Sizes, masked: bool = True) -> list[Any]:
    """What Recurrent takes."""
    Wx, _, _, states = make_inputs(function, sizes)
    if not masked:
        return [Wx, None, None, None]
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(0, sizes.T + 1, (sizes.B,), generator=generator)
    return [Wx, states, lengths, torch.rand(sizes.B, sizes.T, generator=generator) < 0.3]


def export(module: Recurrent, masked: bool = True, strict: bool = False) -> Any:
    """The exported program, for any B and T."""
    given = [None if x is None else x.detach() for x in arguments(module.config.function, Sizes(B=5, T=6), masked)]
    B, T = torch.export.Dim("batch", min=1, max=64), torch.export.Dim("time", min=1, max=512)
    shapes: list[Any] = [{0: B, 1: T}, *([{1: B}, {0: B}, {0: B, 1: T}] if masked else [None] * 3)]
    exported = torch.export.export(module, tuple(given), dynamic_shapes=shapes, strict=strict)
    assert [str(node.target) for node in exported.graph.nodes].count("scan") == 1
    return exported


def saved_and_loaded(exported: Any) -> Any:
    file = io.BytesIO()
    torch.export.save(exported, file)
    file.seek(0)
    return torch.export.load(file)


def check(module: Recurrent, exported: Any, masked: bool = True, tolerance: float = 0) -> None:
    """The exported program computes what the module does, for all SIZES."""
    run = exported.module()
    with torch.no_grad():
        for sizes in SIZES:
            given = arguments(module.config.function, sizes, masked)
            assert_equal(run(*given), module(*given), tolerance)


@every
def test_exports_with_any_batch_and_time(function: str) -> None:
    module = Recurrent(FlashRNNConfig(function, "vanilla"))
    exported = export(module)
    check(module, exported)
    check(module, saved_and_loaded(exported))
    check(module, exported.run_decompositions(), tolerance=1e-12)  # slstm's logsigmoid is then another formula


@pytest.mark.skipif(VERSION < (2, 10), reason="before, torch.compile's front end takes no scan here")
@every
def test_exports_by_the_front_end_of_torch_compile(function: str) -> None:
    """Where no parameter asks for a gradient: torch has no derivative there of a scan with an open batch size."""
    module = Recurrent(FlashRNNConfig(function, "vanilla")).requires_grad_(False)
    exported = export(module, strict=True)
    check(module, saved_and_loaded(exported))


@pytest.mark.parametrize(
    ("function", "options"),
    [
        ("lstm", {"dtype": torch.float16, "forward_clipval": 0.3}),
        ("gru", {"dtype": torch.bfloat16, "output_shape": "STBHD"}),
        ("elman", {"gradient_recurrent_cut": True, "forward_clipval": 0.3}),
        ("slstm", {"dtype": torch.float32, "recompute": True}),
    ],
)
def test_exports_with_options(function: str, options: dict[str, Any]) -> None:
    module = Recurrent(FlashRNNConfig(function, "vanilla", **options))
    check(module, saved_and_loaded(export(module, masked=False)), masked=False)


@pytest.mark.parametrize(
    ("function", "options"),
    [("lstm", {}), ("gru", {"forward_clipval": 0.3}), ("elman", {"gradient_recurrent_cut": True}), ("slstm", {})],
)
def test_what_was_exported_can_be_trained(function: str, options: dict[str, Any]) -> None:
    module = Recurrent(FlashRNNConfig(function, "vanilla", **options))
    run = export(module).module()
    given = arguments(function, Sizes(B=3, T=7))
    expected = gradients(module(*given), [*given[:2], module.R, module.b])
    assert_equal(gradients(run(*given), [*given[:2], run.R, run.b]), expected)


@pytest.mark.parametrize("kind", [*KINDS, "SLSTM"])
def test_layers_are_exported_with_any_time(kind: str) -> None:
    module = layer(kind, bidirectional=True, backend="vanilla", num_heads=2)
    run = saved_and_loaded(export_layer(module, any_batch=True, hx=make_hx(module, 3))).module()
    for time, batch in ((1, 1), (9, 2)):
        given = (randn(time, batch, E), make_hx(module, batch))
        assert_equal(flat(run(*given)), flat(module(*given)), 0)


def test_a_stack_of_layers_is_exported_after_it_was_for_one_batch_size() -> None:
    """What torch keeps of one export has no say in another."""
    module = layer("GRU", 3, backend="vanilla")
    for any_batch in (False, True):
        exported = export_layer(module, any_batch)
    assert [str(node.target) for node in exported.graph.nodes].count("scan") == 3
    x = randn(9, 2, E)
    assert_equal(exported.module()(x, None), module(x), 0)


def export_layer(module: nn.Module, any_batch: bool, hx: Any = None) -> Any:
    """The exported program for inputs [T, B, E] of any T."""
    T, rows = torch.export.Dim("time", min=1, max=64), {}
    if any_batch:
        rows = {1: torch.export.Dim("batch", min=1, max=64)}
    of_hx: Any = None if hx is None else (rows,) * len(hx) if isinstance(hx, tuple) else rows
    shapes = {"input": {0: T, **rows}, "hx": of_hx}
    return torch.export.export(module, (randn(5, 3, E), hx), dynamic_shapes=shapes, strict=False)


def test_a_fixed_time_is_exported_as_its_steps() -> None:
    module, given = Recurrent(FlashRNNConfig("gru", "vanilla")), (make_inputs("gru")[0].detach(), None, *MASKS["both"])
    exported = torch.export.export(module, given)
    assert not any("scan" in str(node.target) for node in exported.graph.nodes)
    assert_equal(exported.module()(*given), module(*given), 0)


def test_without_scan_torch_says_that_time_is_fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("torch.fx.experimental.symbolic_shapes.has_static_value")
    with pytest.raises(Exception, match="specialized"):
        export(Recurrent(FlashRNNConfig("gru", "vanilla")))
