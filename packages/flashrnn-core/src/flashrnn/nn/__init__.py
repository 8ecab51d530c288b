"""Layers with the constructor, the call and the parameters of torch.nn's, and what puts them into a model that has those."""

from __future__ import annotations

from .base import RNNBase
from .convert import Conversion, convert
from .modules import GRU, LSTM, RNN, SLSTM

__all__ = ["GRU", "LSTM", "RNN", "SLSTM", "Conversion", "RNNBase", "convert"]
