"""FlashRNNConfig: every option of a call, checked when it is made."""

from __future__ import annotations

from dataclasses import dataclass, fields
from numbers import Real
from typing import Any, Optional, Union

import torch

from .cells import get_cell
from .dtypes import parse_dtype
from .errors import ConfigError, describe
from .layouts import INPUT, INPUT_SHAPES, OUTPUT, OUTPUT_SHAPES

LARGEST_CLIPVAL = torch.finfo(torch.float32).max


@dataclass(frozen=True)
class FlashRNNConfig:
    """Options of `flashrnn()`. Each has one meaning in all backends.

    Attributes:
        function: "lstm", "gru", "elman" or "slstm".
        backend: "auto" takes the fastest usable backend; a name or alias runs that backend or raises.
        dtype: what is computed in, as a torch dtype or its name ("float16", "bfloat16", "float32", "float64"). None: the
            autocast dtype inside an autocast region, else the dtype of Wx.
        forward_clipval: v > 0 clips every new h to [-v, v]; the gradient is zero where it was clipped. None: no clipping.
        gradient_recurrent_clipval: v > 0 clips the gradient that reaches h(t) from step t + 1 through R (for gru: plus
            its direct path) to [-v, v], before the outside gradient of step t is added. None: no clipping.
        gradient_recurrent_cut: that gradient is zero through R; c, n and gru's direct path keep theirs.
        input_shape: axis order of Wx, "BTGHD" or "TBGHD".
        output_shape: axis order of the returned states, "SBTHD" or "STBHD".
        recompute: save no gates for the backward pass; it computes them again from the saved h.

    Raises:
        ConfigError: an option has a value that it cannot have.
    """

    function: str = "lstm"
    backend: str = "auto"
    dtype: Union[str, torch.dtype, None] = None
    forward_clipval: Optional[float] = None
    gradient_recurrent_clipval: Optional[float] = None
    gradient_recurrent_cut: bool = False
    input_shape: str = INPUT
    output_shape: str = OUTPUT
    recompute: bool = False

    def __post_init__(self) -> None:
        get_cell(self.function)
        parse_dtype(self.dtype)
        if not isinstance(self.backend, str):
            raise ConfigError(describe("backend", "a string", repr(self.backend)))
        for name in ("forward_clipval", "gradient_recurrent_clipval"):
            object.__setattr__(self, name, _as_clipval(name, getattr(self, name)))
        _check_bool("gradient_recurrent_cut", self.gradient_recurrent_cut)
        _check_among("input_shape", self.input_shape, INPUT_SHAPES)
        _check_among("output_shape", self.output_shape, OUTPUT_SHAPES)
        _check_bool("recompute", self.recompute)

    def values(self) -> tuple[Any, ...]:
        """The values of the fields in order: FlashRNNConfig(*config.values()) == config."""
        return tuple([getattr(self, name) for name in FIELDS])

    def settle(self, function: str, backend: str, dtype: Optional[torch.dtype]) -> FlashRNNConfig:
        """The same options with these three in the place of its own."""
        if (function, backend, dtype) == (self.function, self.backend, self.dtype):
            return self
        return FlashRNNConfig(function, backend, dtype, *self.values()[3:])


FIELDS = tuple(field.name for field in fields(FlashRNNConfig))


def _as_clipval(name: str, value: Any) -> Optional[float]:
    """A real number, numpy's too, as a float."""
    if value is None:
        return None
    try:
        number = 0.0 if isinstance(value, bool) or not isinstance(value, Real) else float(value)
    except OverflowError:
        number = 0.0
    if not 0 < number <= LARGEST_CLIPVAL:
        raise ConfigError(describe(name, f"None or a number above 0, at most {LARGEST_CLIPVAL:.3g}", repr(value)))
    return number


def _check_bool(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise ConfigError(describe(name, "True or False", repr(value)))


def _check_among(name: str, value: object, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ConfigError(describe(name, " or ".join(map(repr, known)), repr(value)))


def merge_config(
    config: Optional[FlashRNNConfig], function: str, backend: str, dtype: Union[str, torch.dtype, None]
) -> FlashRNNConfig:
    """The options of one call: those of `config`, with the call's own arguments in their place.

    An argument left at its default says nothing. ConfigError if the call and its config contradict each other.
    """
    if config is None:
        return FlashRNNConfig(function, backend, dtype)
    if not isinstance(config, FlashRNNConfig):
        raise ConfigError(describe("config", "a FlashRNNConfig or None", type(config).__name__))
    return config.settle(
        _agree("function", function, config.function, "lstm"),
        _agree("backend", backend, config.backend, "auto"),
        _agree("dtype", parse_dtype(dtype), parse_dtype(config.dtype), None),
    )


def _agree(name: str, argument: Any, configured: Any, default: Any) -> Any:
    if argument == default:
        return configured
    if configured not in (default, argument):
        raise ConfigError(
            f"{name}: the call says {argument!r} and its config {configured!r}. Give it in one place, or the same in both."
        )
    return argument
