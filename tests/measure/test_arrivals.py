"""Arrival times: their rate, their seeds, traces and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from autotune.core.errors import UsageError
from autotune.core.records import Load
from autotune.measure import arrivals
from autotune.measure.arrivals import arrival_times, check_load


def poisson(rate: float, seed: int = 0, window: int = 0, duration_s: float = 100.0) -> np.ndarray:
    load = Load(kind="poisson", rate_per_s=rate)
    return arrival_times(load, seed=seed, window=window, duration_s=duration_s)


def test_poisson_arrivals_have_the_rate_and_exponential_gaps() -> None:
    times_s = poisson(1000.0)
    assert times_s.size == pytest.approx(100_000, abs=4 * 316)
    gaps = np.diff(times_s)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.02)
    assert times_s[0] >= 0 and times_s[-1] < 100.0 and gaps.min() >= 0


def test_one_seed_is_one_pattern_at_any_rate() -> None:
    slow, fast = poisson(10.0), poisson(20.0)
    np.testing.assert_allclose(slow, 2.0 * fast[: slow.size])
    assert poisson(10.0, seed=1)[0] != slow[0]
    assert poisson(10.0, window=1)[0] != slow[0]


def test_counted_and_constant_arrivals() -> None:
    constant = Load(kind="constant", rate_per_s=4.0)
    times_s = arrival_times(constant, seed=0, duration_s=1.0)
    np.testing.assert_allclose(times_s, [0, 0.25, 0.5, 0.75])
    counted = arrival_times(constant, seed=0, duration_s=None, count=6)
    np.testing.assert_allclose(counted, np.arange(6) / 4.0)
    exact = arrival_times(Load(kind="poisson", rate_per_s=3.0), seed=0, duration_s=None, count=123)
    assert exact.size == 123


def test_a_trace_is_replayed_from_its_first_arrival(tmp_path: Path) -> None:
    file = tmp_path / "trace.txt"
    file.write_text("# seconds\n100.0\n100.5\n\n100.5\n103\n")
    load = Load(kind="trace", trace=str(file))
    np.testing.assert_allclose(arrival_times(load, seed=0, duration_s=10.0), [0, 0.5, 0.5, 3])
    np.testing.assert_allclose(arrival_times(load, seed=0, duration_s=1.0), [0, 0.5, 0.5])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1\n0.5\n", "trace.txt:2: 0.5 is before the arrival above it"),
        ("1\nnan\n", "trace.txt:2: 'nan' is no time"),
        ("1,2\n", "trace.txt:1: '1,2' is no time"),
        ("\n", "has no arrivals"),
        ("1\ninf\n", "trace.txt:2: 'inf' is no time"),
    ],
)
def test_a_wrong_trace_is_refused_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "trace.txt"
    file.write_text(text)
    with pytest.raises(UsageError, match=message):
        arrival_times(Load(kind="trace", trace=str(file)), seed=0, duration_s=1.0)


def test_too_many_arrivals_and_no_rate_are_refused() -> None:
    with pytest.raises(UsageError, match="at most 20000000"):
        poisson(1e9)
    with pytest.raises(UsageError, match="no number of arrivals"):
        arrival_times(Load(kind="poisson"), seed=0, duration_s=1.0)


def test_a_trace_that_is_no_text_or_too_large_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "trace.txt"
    file.write_bytes(b"\xff\xfe\x00\x01")
    load = Load(kind="trace", trace=str(file))
    with pytest.raises(UsageError, match="is not text"):
        check_load(load, 1.0)
    file.write_text("0\n1\n2\n3\n")
    monkeypatch.setattr(arrivals, "MAX_ARRIVALS", 3)
    with pytest.raises(UsageError, match=r"trace.txt:4: more than 3 arrivals"):
        check_load(load, 1.0)
    monkeypatch.setattr(arrivals, "MAX_TRACE_BYTES", 7)
    arrivals._read_trace.cache_clear()
    with pytest.raises(UsageError, match="8 bytes; at most 7"):
        check_load(load, 1.0)


@pytest.mark.parametrize(
    ("rate", "message"),
    [(1e12, "arrivals within a trial of 2.00 s; at most"), (0.1, "a request comes every 10 s")],
)
def test_rates_at_which_nothing_can_be_measured_are_refused_beforehand(
    rate: float, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        check_load(Load(kind="poisson", rate_per_s=rate), 2.0)
    check_load(Load(kind="poisson", rate_per_s=rate), None)


def test_other_loads_have_nothing_to_refuse() -> None:
    for load in (Load(), Load(clients=8), Load(kind="poisson"), Load(kind="constant")):
        check_load(load, 1e-6)
