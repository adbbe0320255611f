"""Results of several processes as one."""

from __future__ import annotations

import numpy as np
import pytest
from search_fakes import samples

from autotune.core.records import Reported, Result
from autotune.measure.pooling import pooled
from autotune.measure.summary import summarise


def test_windows_stay_apart_and_calls_add_up() -> None:
    parts = [samples(step_s=0.01, starts_s=(0.0, 5.0), duration_s=1.0, items=4) for _ in range(3)]
    whole = pooled(parts)
    assert sorted(np.unique(whole.window)) == [0, 1, 2, 3, 4, 5]  # type: ignore[union-attr]
    one, all_ = summarise(parts[0]), summarise(whole)
    assert all_.call_count == 3 * (one.call_count or 0)
    assert all_.throughput_items_per_s == pytest.approx(one.throughput_items_per_s)
    assert all_.duration_s == pytest.approx(3 * (one.duration_s or 0))


def test_reports_average_and_their_noise_falls() -> None:
    parts = [
        Reported(
            metrics={"throughput_items_per_s": rate, "memory_peak_bytes": memory},
            relative_noise=0.06,
            duration_s=2.0,
        )
        for rate, memory in [(100.0, 5), (400.0, 7), (200.0, 6), (200.0, 6)]
    ]
    whole = pooled(parts)
    assert isinstance(whole, Reported)
    assert whole.metrics["throughput_items_per_s"] == pytest.approx(200.0)
    assert whole.metrics["memory_peak_bytes"] == 7
    assert whole.relative_noise == pytest.approx(0.03)
    assert whole.duration_s == 8.0


def test_kinds_are_not_mixed() -> None:
    mixtures: list[list[Result]] = [[], [Reported(metrics={}), samples()]]
    for parts in mixtures:
        with pytest.raises(ValueError, match="one kind"):
            pooled(parts)
