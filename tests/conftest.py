"""Tests that run side by side use the same machine, and would wait for each other's devices."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_devices(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test has locks of its own, and so have the processes that it starts."""
    place: Path = tmp_path_factory.mktemp("locks")
    monkeypatch.setenv("AUTOTUNE_LOCK_DIR", str(place))
