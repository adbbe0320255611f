"""Rates of windows, on the machine's clock and on virtual ones."""

from __future__ import annotations

import pytest
from search_fakes import samples

from autotune.core.records import Reported
from autotune.search.turns import turn_rates


def test_windows_keep_their_place_in_time() -> None:
    first = samples(step_s=0.01, starts_s=(100.0, 104.0), items=2)
    second = samples(step_s=0.02, starts_s=(130.0, 134.0), items=2)
    found = turn_rates({0: first, 1: second})
    assert [(t.round, t.turn) for t in found] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [t.at_s for t in found] == pytest.approx([0.0, 4.0, 30.0, 34.0])
    assert [t.rate for t in found] == pytest.approx([200, 200, 100, 100], rel=0.02)


def test_virtual_sessions_follow_each_other() -> None:
    found = turn_rates({n: samples(starts_s=(0.0, 2.0)) for n in range(3)})
    times = [t.at_s for t in found]
    assert times == sorted(times)
    assert times[-1] == pytest.approx(8.0, abs=0.2)


def test_finished_figures_have_no_turns() -> None:
    assert turn_rates({0: Reported(metrics={"throughput_items_per_s": 1.0})}) == ()
    assert turn_rates({}) == ()
