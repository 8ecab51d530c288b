"""The fixture with which a test decides what is installed beside core."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from core_plugins import PlugIns, forget
from flashrnn import discovery


@pytest.fixture
def plug_ins(monkeypatch: pytest.MonkeyPatch) -> Iterator[PlugIns]:
    """Hides what is really installed, offers what the test offers, and makes the discovery forget it afterwards."""
    installed = PlugIns(monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(discovery, "entry_points", installed.entry_points)
        forget()
        yield installed
    forget()
