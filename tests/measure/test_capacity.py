"""How many devices, and which configuration at which load: declared call times."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from autotune.measure.capacity import Fleet, Queued, devices_for
from autotune.measure.load_table import HYSTERESIS, LEVELS, load_table, steps, watch_s
from autotune.measure.queueing import ServiceTimes
from autotune.measure.rate_target import RateGoal
from autotune.measure.scaling import ScalePoint, fit_scaling

LIMIT_S = 0.010


def queued(
    fixed_s: float, item_s: float, batch: int, *, servers: int = 1, limit_s: float = LIMIT_S
) -> Queued:
    sizes = np.arange(1.0, batch + 1)
    residuals = np.exp(np.random.default_rng(1).normal(0, 0.05, 2000))
    goal = RateGoal(limit_s=limit_s, max_batch=batch, servers=servers)
    service = ServiceTimes(sizes=sizes, medians_s=fixed_s + item_s * sizes, residuals=residuals)
    return Queued(service=service, goals=(goal,))


QUICK = queued(0.2e-3, 0.5e-3, 4)  # 0.7 ms alone, at most 1,800/s
LARGE = queued(2.0e-3, 0.1e-3, 32)  # 2.1 ms alone, up to 6,150/s


class TestDevicesFor:
    @pytest.mark.parametrize("wanted", [1.0, 99.0, 100.0, 101.0, 799.0, 12345.0])
    def test_the_least_number_that_reaches_it(self, wanted: float) -> None:
        found = devices_for(wanted, lambda n: 100.0 * n)
        assert found == math.ceil(wanted / 100.0)

    @pytest.mark.parametrize("peak", [1, 2, 5, 11, 13])
    def test_capacity_that_falls_again(self, peak: int) -> None:
        def capacity(n: int) -> float:
            return 100.0 * n * (2 * peak - n)

        for least in range(1, peak + 1):
            assert devices_for(capacity(least), capacity) == least
        assert devices_for(capacity(peak) + 1, capacity) is None

    def test_nothing_reaches_what_has_no_capacity(self) -> None:
        assert devices_for(1.0, lambda n: 0.0) is None


class TestQueued:
    def test_the_rate_of_the_limit_is_where_its_share_is_met(self) -> None:
        rate = LARGE.limit_rate()
        assert 0.7 < LARGE.at(rate).margin < 1.3
        assert LARGE.at(0.8 * rate).holds and not LARGE.at(1.05 * rate).holds

    def test_a_limit_on_the_mean_alone(self) -> None:
        free = queued(2.0e-3, 0.1e-3, 32, limit_s=1e9)
        bound = Queued(service=free.service, goals=free.goals, mean_limit_s=0.004)
        rate = bound.limit_rate()
        assert bound.at(rate).mean_s == pytest.approx(0.004, rel=0.02)

    def test_slower_calls_hold_less_than_in_proportion(self) -> None:
        rate = LARGE.limit_rate()
        assert LARGE.slowed(1.5).limit_rate() < rate / 1.5

    def test_what_one_call_exceeds_holds_at_no_rate(self) -> None:
        assert LARGE.slowed(10.0).limit_rate() == 0.0


class TestFleet:
    SCALING = fit_scaling(
        [
            ScalePoint(device_count=n, rate=6000.0 * n / (1 + 0.1 * (n - 1)), error=0.001)
            for n in (1, 2, 4)
        ]
    )

    def test_devices_that_share_nothing_add_up(self) -> None:
        fleet = Fleet(single_per_s=900.0, likely_per_s=1000.0)
        assert [fleet.least(n) for n in (1, 2, 7)] == [900.0, 1800.0, 6300.0]
        assert fleet.likely(3) == 3000.0 and fleet.sharing(9) == 1 and fleet.slowdown(9) == 1.0

    def test_throughput_follows_the_measured_law(self) -> None:
        fleet = Fleet(single_per_s=5950.0, likely_per_s=6000.0, scaling=self.SCALING)
        assert fleet.likely(4) == pytest.approx(24000 / 1.3, rel=0.001)
        assert 0.98 < fleet.least(4) / fleet.likely(4) < 1.0

    def test_anothers_law_is_taken_for_its_slowdown(self) -> None:
        fleet = Fleet(single_per_s=500.0, likely_per_s=600.0, scaling=self.SCALING, is_own=False)
        assert fleet.least(1) == 500.0
        assert fleet.least(4) == pytest.approx(2000.0 / self.SCALING.most_slowdown(4))

    def test_a_limit_costs_more_than_the_slowdown(self) -> None:
        rate = LARGE.limit_rate()
        fleet = Fleet(
            single_per_s=0.9 * rate, likely_per_s=rate, queued=LARGE, scaling=self.SCALING
        )
        assert fleet.least(4) < 4 * 0.9 * rate / 1.3
        assert fleet.multiple(4) == pytest.approx(fleet.least(4) / (0.9 * rate))

    def test_machines_share_nothing(self) -> None:
        fleet = Fleet(single_per_s=5950.0, likely_per_s=6000.0, scaling=self.SCALING, per_machine=4)
        assert fleet.least(10) == pytest.approx(2 * fleet.least(4) + fleet.least(2))
        assert fleet.sharing(10) == 4

    def test_a_rate_that_was_shown_is_never_below_what_the_law_promises(self) -> None:
        fleet = Fleet(
            single_per_s=5950.0,
            likely_per_s=6000.0,
            queued=LARGE,
            scaling=self.SCALING,
            shown={2: 11900.0},
        )
        assert fleet.least(2) == 11900.0


class TestLoadTable:
    FULL_PER_S = 3500.0

    def test_quick_at_low_load_and_large_at_full(self) -> None:
        rows = load_table([QUICK, LARGE], 1, self.FULL_PER_S, headroom=0.3)
        assert [row.share for row in rows] == list(LEVELS)
        assert [row.index for row in rows] == [0, 0, 1, 1, 1]
        for row in rows[:2]:
            assert row.served.mean_s < 0.8 * row.full.mean_s
            assert row.served.holds

    def test_the_full_rate_keeps_what_was_chosen_for_it(self) -> None:
        better = queued(0.2e-3, 0.1e-3, 32)
        rows = load_table([better, LARGE], 1, self.FULL_PER_S, headroom=0.3)
        assert rows[-1].index == 1 and rows[-2].index == 0

    def test_what_would_break_the_limit_is_not_used(self) -> None:
        # Quick on average, but one call in 50 takes longer than the limit.
        quick = queued(0.2e-3, 0.1e-3, 32)
        residuals = np.where(np.arange(1000) % 50 == 0, 40.0, 1.0)
        risky = replace(quick, service=replace(quick.service, residuals=residuals))
        rows = load_table([risky, LARGE], 1, 500.0, headroom=0.1)
        assert risky.at(250.0).mean_s < 0.7 * LARGE.at(250.0).mean_s
        assert [row.index for row in rows] == [1] * len(LEVELS)

    def test_a_server_neither_flutters_nor_is_left_without_a_row(self) -> None:
        rows = load_table([QUICK, LARGE], 1, self.FULL_PER_S, headroom=0.3)
        first, last = steps(rows)
        assert first.up_above_per_s == 0.25 * self.FULL_PER_S and first.down_below_per_s is None
        assert last.up_above_per_s is None and last.down_below_per_s is not None
        assert last.down_below_per_s == pytest.approx((1 - HYSTERESIS) * first.up_above_per_s)
        # The rate that a server measures near the threshold stays within the hysteresis.
        seen = first.up_above_per_s * watch_s(rows)
        assert 3 / math.sqrt(seen) < HYSTERESIS

    def test_one_configuration_has_one_step(self) -> None:
        rows = load_table([LARGE], 0, self.FULL_PER_S, headroom=0.0)
        (only,) = steps(rows)
        assert only.up_above_per_s is None and only.down_below_per_s is None
