"""Tests that run side by side use the same machine, and would wait for each other's devices."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

# What runs tests in the background may ignore signals, and whatever is started from them would too;
# a signal that has a handler is the default one again in a new program.
for _number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, lambda number, frame: None)


@pytest.fixture(autouse=True)
def own_devices(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test has locks of its own, and so have the processes that it starts."""
    place: Path = tmp_path_factory.mktemp("locks")
    monkeypatch.setenv("AUTOTUNE_LOCK_DIR", str(place))
