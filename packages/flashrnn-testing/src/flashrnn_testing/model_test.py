"""model_test: one backend against another, on random inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional, Union

import torch
from torch import Tensor

from flashrnn import FlashRNNConfig
from flashrnn.dtypes import parse_dtype

from .inputs import create_inputs
from .results import compare, compute


def model_test(
    batch_size: int,
    sequence_size: int,
    num_heads: int,
    head_dim: int,
    function: str,
    backend: str = "auto",
    backend_cmp: str = "vanilla",
    device: Union[str, torch.device, None] = None,
    dtype: Union[str, torch.dtype] = torch.float32,
    include_backward: bool = True,
    tensor_compare_kwargs: Optional[Mapping[str, Any]] = None,
    *,
    create_states: bool = True,
    lengths: Optional[Tensor] = None,
    resets: Optional[Tensor] = None,
    seed: int = 0,
    **options: Any,
) -> bool:
    """Compare two backends on random inputs: every state at every step, and all gradients.

    Args:
        batch_size, sequence_size, num_heads, head_dim: B, T, NH, D.
        function: "lstm", "gru", "elman" or "slstm".
        backend: the one under test.
        backend_cmp: the one that is taken as right.
        device: where to run; None: the GPU if there is one, else the CPU.
        dtype: of the inputs, and what is computed in.
        include_backward: whether to compare gradients, those of the initial states included.
        tensor_compare_kwargs: {"atol": ..., "rtol": ...} instead of the table in `flashrnn_testing.tolerances`.
        create_states: whether to start from random states, none of them zero, or from zeros.
        lengths, resets: as for `flashrnn()`.
        seed: of the random inputs.
        options: further options of FlashRNNConfig, e.g. gradient_recurrent_clipval=0.1.

    Returns:
        True.

    Raises:
        Mismatch: an AssertionError that names the tensor, the largest difference and its index.
    """
    dtype = parse_dtype(dtype) or torch.float32
    Wx, *states, R, b = create_inputs(
        batch_size, sequence_size, num_heads, head_dim, function, create_states, dtype, device, seed
    )
    actual, expected = (
        compute(
            FlashRNNConfig(function=function, backend=name, **options),
            *(Wx, R, b, states[0] if states else None, lengths, resets),
            include_backward=include_backward,
        )
        for name in (backend, backend_cmp)
    )
    compare(actual, expected, dtype, **(tensor_compare_kwargs or {}))
    return True
