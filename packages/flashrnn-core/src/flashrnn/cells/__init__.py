"""The cells: one file each, with the cell's data, step, derivatives and step_backward."""

from __future__ import annotations

from ..errors import ConfigError
from .elman import ELMAN
from .gru import GRU
from .lstm import LSTM
from .slstm import SLSTM
from .spec import CellSpec

CELLS: dict[str, CellSpec] = {cell.name: cell for cell in (LSTM, GRU, ELMAN, SLSTM)}


def get_cell(function: str) -> CellSpec:
    """The cell of that name; ConfigError, listing the names, if there is none."""
    try:
        return CELLS[function]
    except (KeyError, TypeError):
        known = ", ".join(CELLS)
        raise ConfigError(f"function: expected one of {known}, got {function!r}.") from None


__all__ = ["CELLS", "CellSpec", "get_cell"]
