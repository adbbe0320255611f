"""Hostile input to everything that reads, a short version of benchmarks/fuzz.py."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

FUZZ = runpy.run_path(str(Path(__file__).parents[1] / "benchmarks" / "fuzz.py"), run_name="fuzz")
INPUTS = 4000
SHARES: dict[str, int] = FUZZ["shares"](INPUTS, list(FUZZ["TARGETS"]))


@pytest.mark.parametrize("target", SHARES)
def test_only_documented_errors_and_bounded_time_and_memory(target: str, tmp_path: Path) -> None:
    tried = list(FUZZ["fuzz"](target, SHARES[target], 1, tmp_path))
    findings = [(f.what, f.data, f.trace) for _, f, _ in tried if f is not None]
    assert not findings, findings[:3]
    assert {ended for _, _, ended in tried} <= {"accepted", "refused"}


def test_what_hangs_or_raises_something_else_is_found(tmp_path: Path) -> None:
    def read(data: bytes, _: Path) -> None:
        raise KeyError(data)

    target = FUZZ["Target"](
        read=read, seeds=lambda _: [b"x"], errors=(ValueError,), mutate=lambda data, _: data
    )
    finding, _ = FUZZ["_tried"]("made up", target, b"x", tmp_path)
    assert finding.what == "KeyError: b'x'"
