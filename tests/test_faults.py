"""The short form of `benchmarks/faults.py`: a handful of faults on every storage."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
import faults
from postgresql import Server


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("storage", "kinds"),
    [
        ("journal", ["tool killed", "worker killed", "file limit", "clock set"]),
        ("sqlite", ["child killed", "tool killed", "read-only"]),
        ("postgresql", ["server killed", "tool killed"]),
    ],
)
def test_nothing_is_lost_left_or_wrong(
    storage: str, kinds: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if storage == "postgresql" and not Server.program():
        pytest.skip("PostgreSQL is not installed")
    monkeypatch.setattr(faults, "BATCHES", range(7, 10))
    tally = faults.Tally()
    faults.play(storage, len(kinds), seed=0, per_study=len(kinds), tally=tally, order=kinds)
    assert tally.is_clean, tally
    assert set(tally.faults) <= set(kinds) and sum(tally.faults.values()) >= 1
    assert tally.studies >= 1
