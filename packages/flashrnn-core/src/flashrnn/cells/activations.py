"""Gradients through the activations, given their values, each as one fused operation of torch."""

from __future__ import annotations

import torch
from torch import Tensor


def through_sigmoid(grad: Tensor, s: Tensor) -> Tensor:
    """grad * s * (1 - s), where s = sigmoid(x)."""
    return torch.ops.aten.sigmoid_backward(grad, s)


def through_tanh(grad: Tensor, y: Tensor) -> Tensor:
    """grad * (1 - y^2), where y = tanh(x)."""
    return torch.ops.aten.tanh_backward(grad, y)
