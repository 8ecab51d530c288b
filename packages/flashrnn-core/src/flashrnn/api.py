"""flashrnn(): the whole story of a call."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Callable, Optional, Union

import torch
from torch import Tensor

from .checks import check_inputs
from .config import FlashRNNConfig, merge_config
from .dtypes import parse_dtype, resolve_dtype
from .errors import ConfigError, describe
from .problem import Inputs
from .recurrence import recurrence


def flashrnn(
    Wx: Tensor,
    R: Tensor,
    b: Tensor,
    states: Union[Tensor, Mapping[str, Tensor], None] = None,
    function: str = "lstm",
    config: Optional[FlashRNNConfig] = None,
    backend: str = "auto",
    dtype: Union[str, torch.dtype, None] = None,
    *,
    lengths: Optional[Tensor] = None,
    resets: Optional[Tensor] = None,
) -> tuple[Tensor, Tensor]:
    """Run the recurrence of an RNN with several independent heads over a sequence.

    B batch, T time, NH heads, D head dimension, NS states. Gates of Wx, R and b, and states, in order:
    lstm i, f, z, o and h, c; elman g and h; slstm i, f, z, o and h, c, n, m;
    gru Wx (r, z, n), R (g, r, z), b (g, r, z, n) and h, where R_g h + b_g stands inside the reset gate, as in torch.nn.GRU.

    Args:
        Wx: [B, T, NG, NH, D], the input part of the gates' pre-activations, already projected.
        R: [NG, NH, D, D], recurrent weights: gate g of head n receives R[g, n] @ h[n].
        b: [NG, NH, D], bias.
        states: initial states, [NS, B, NH, D], or as last_states came from the previous call, or by name,
            {"h": [B, NH, D], ...}, where a missing name means zeros. None: all zeros.
        function: "lstm", "gru", "elman" or "slstm".
        config: more options, see FlashRNNConfig. An argument of this call left at its default takes the config's value.
        backend: "auto" for the fastest usable one, or a name: `python -m flashrnn` lists them.
        dtype: what is computed in, "float32" or torch.float32 and so on; see FlashRNNConfig.
        lengths: [B] integers in 0..T. After its length a row keeps its states, its outputs are 0, and whatever stands in
            the padding has no influence. On a GPU values outside that range are taken as the nearest one inside.
        resets: [B, T] bool. Where true, all states of the row are zero before that step, and no gradient crosses it.

    Returns:
        states [NS, B, T, NH, D], those after every step, in the dtype computed in, and
        last_states [NS, B, 1, NH, D], those after the last step, in the dtype of the initial states if there are any.
        All inputs but lengths and resets receive gradients. In slstm, m is a constant for differentiation.

    Raises:
        ConfigError, ShapeError, DtypeError, DeviceError: an argument does not fit; see flashrnn.errors.
        BackendUnavailable: the backend named is unknown, not installed, broken, or does not solve this problem.
    """
    config = merge_config(config, function, backend, dtype)
    initial = check_inputs(Wx, R, b, states, lengths, resets, config)
    config = config.settle(config.function, config.backend, resolve_dtype(parse_dtype(config.dtype), Wx))
    return recurrence(config, Inputs(Wx, R, b, initial, lengths, resets))


def named(function: str, backend: str) -> Callable[..., tuple[Tensor, Tensor]]:
    """`flashrnn` for one function and one backend.

    ConfigError for an argument `function` or `backend` that is another, and for a config with another; but a config's
    function="lstm" and backend="auto", which are its defaults, say nothing.
    """
    bound = partial(flashrnn, function=function, backend=backend)

    def call(*tensors: Any, **options: Any) -> tuple[Tensor, Tensor]:
        for name, own in bound.keywords.items():
            if options.get(name, own) != own:
                raise ConfigError(describe(name, repr(own), repr(options[name])))
        configured = getattr(options.get("config"), "function", function)
        if configured not in (FlashRNNConfig.function, function):
            raise ConfigError(describe("config.function", repr(function), repr(configured)))
        return bound(*tensors, **options)

    call.__doc__ = f"`flashrnn.flashrnn` for {function} by {backend}."
    return call
