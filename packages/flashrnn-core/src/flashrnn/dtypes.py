"""Dtypes: their names, which one a call computes in, and rounding that lets gradients through."""

from __future__ import annotations

from typing import Optional, Union

import torch
from torch import Tensor

from .errors import ConfigError, describe

DTYPES: dict[str, torch.dtype] = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
}
FLOATING = tuple(DTYPES.values())
AUTOCAST_DEVICES = tuple(kind for kind in ("cpu", "cuda", "mps", "xpu") if torch.amp.is_autocast_available(kind))


def parse_dtype(dtype: Union[str, torch.dtype, None]) -> Optional[torch.dtype]:
    """A torch dtype from itself or its name; None stays None."""
    if dtype is None or (isinstance(dtype, torch.dtype) and dtype in FLOATING):
        return dtype
    if isinstance(dtype, str) and dtype in DTYPES:
        return DTYPES[dtype]
    raise ConfigError(describe("dtype", f"None, a torch dtype or a name among {', '.join(DTYPES)}", repr(dtype)))


def resolve_dtype(dtype: Optional[torch.dtype], Wx: Tensor) -> torch.dtype:
    """The dtype a call computes in: the one asked for, else autocast's in an autocast region, else that of Wx.

    As everywhere in torch, autocast leaves float64 alone.
    """
    if dtype is not None:
        return dtype
    device = Wx.device.type
    if Wx.dtype != torch.float64 and autocast_is_on(device):
        return torch.get_autocast_dtype(device)
    return Wx.dtype


def autocast_is_on(device_type: str) -> bool:
    """Whether this thread is inside an autocast region for that kind of device."""
    return device_type in AUTOCAST_DEVICES and torch.is_autocast_enabled(device_type)


def accumulate_dtype(dtype: torch.dtype) -> torch.dtype:
    """What states live in and products accumulate in: float32, or float64 for float64."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def round_to(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x rounded to values of `dtype` but kept in its own dtype; the gradient passes unrounded."""
    if x.dtype == dtype:
        return x
    rounded = x.to(dtype).to(x.dtype)
    return x + (rounded - x).detach() if x.requires_grad else rounded
