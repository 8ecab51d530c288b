"""CUDA kernels of FlashRNN, compiled on first use without a toolkit: the backends `cuda_fused` and `cuda`."""

from __future__ import annotations

from .alternating import CUDA
from .fused import CUDA_FUSED
from .version import __version__

__all__ = ["CUDA", "CUDA_FUSED", "__version__"]
