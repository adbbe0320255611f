"""The open loop on virtual clocks: latencies by hand, several instances, against the simulation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from open_server import jittered, run_open

from autotune.core.objective import Limit, Objective
from autotune.core.outcomes import Outcome
from autotune.core.records import Load
from autotune.measure.judge import judge
from autotune.measure.noise import unserved_count, utilisation
from autotune.measure.queueing import ServiceTimes, simulate
from autotune.measure.summary import summarise

CONSTANT = Load(kind="constant", rate_per_s=10.0)
P99 = Objective(name="o", limits=(Limit(metric="latency_p99", bound=20e-3),))


def test_latency_counts_from_the_scheduled_arrival() -> None:
    # Arrivals every 0.1 s, calls of 0.25 s that take up to two: 0 | 1 2 | 3 4 | ...
    samples = run_open([lambda items: 0.25], 10.0, load=CONSTANT, duration_s=0.5, max_batch=2)
    np.testing.assert_allclose(samples.request_latency_s(), [0.25, 0.4, 0.3, 0.45, 0.35])
    assert samples.item_count.tolist() == [1, 2, 2]
    assert samples.due_s.tolist() == pytest.approx([0.0, 0.1, 0.3])
    assert summarise(samples).arrival_rate_per_s == 10.0


def test_two_instances_take_turns_in_the_order_of_time() -> None:
    samples = run_open([lambda items: 0.15] * 2, 10.0, load=CONSTANT, duration_s=1.0, max_batch=1)
    np.testing.assert_allclose(samples.request_latency_s(), 0.15)
    assert np.bincount(samples.instance).tolist() == [5, 5]


def test_a_slow_instance_does_not_hold_up_the_other() -> None:
    slow, fast = (lambda items: 0.95), (lambda items: 0.05)
    samples = run_open([slow, fast], 10.0, load=CONSTANT, duration_s=1.0, max_batch=1)
    assert np.bincount(samples.instance).tolist() == [1, 9]
    assert np.sort(samples.request_latency_s())[:9] == pytest.approx(0.05)


def test_what_was_never_served_is_over_any_limit() -> None:
    samples = run_open([lambda items: 0.31], 10.0, load=CONSTANT, duration_s=2.0, max_batch=1)
    served = samples.item_count.sum()
    assert served == 10  # until one second after the window
    assert unserved_count(samples) == 10
    assert np.isinf(samples.request_latency_s()).sum() == 10
    assert any("never served" in warning for warning in summarise(samples).warnings)
    verdict = judge(samples, summarise(samples), P99)
    assert verdict.outcome is not Outcome.OK


def test_windows_have_arrivals_of_their_own_and_can_be_told_apart() -> None:
    samples = run_open([lambda items: 1e-3], 200.0, duration_s=1.0, windows=2)
    first, second = samples.of_window(0), samples.of_window(1)
    assert second.arrivals_s[0][0] >= 2.0  # a second to drain lies between
    assert not np.allclose(first.arrivals_s[0][:50], second.arrivals_s[0][:50] - 2.0)
    together = np.concatenate([first.request_latency_s(), second.request_latency_s()])
    np.testing.assert_array_equal(together, samples.request_latency_s())


@pytest.mark.parametrize(
    ("fixed_s", "item_s", "max_batch", "servers", "delay_s"),
    [(2e-3, 3e-3, 4, 1, 0.0), (1.5e-3, 0.7e-3, 16, 1, 2e-3), (2e-3, 6e-5, 64, 2, 0.0)],
)
@pytest.mark.parametrize("load", [0.3, 0.6])
def test_the_simulation_is_the_loop(
    fixed_s: float, item_s: float, max_batch: int, servers: int, delay_s: float, load: float
) -> None:
    rate = load * servers * max_batch / (fixed_s + item_s * max_batch)
    samples = run_open(
        [jittered(fixed_s, item_s, seed) for seed in range(servers)],
        rate,
        duration_s=min(200.0, 200_000 / rate),
        max_batch=max_batch,
        max_delay_s=delay_s,
    )
    real_s = samples.request_latency_s()
    service = ServiceTimes.fit(samples.item_count, samples.end_s - samples.start_s)
    simulated = [
        simulate(
            samples.arrivals_s[0], service, np.random.default_rng(seed),
            max_batch=max_batch, max_delay_s=delay_s, servers=servers,
        )
        for seed in range(5)
    ]  # fmt: skip
    assert np.mean(simulated) == pytest.approx(real_s.mean(), rel=0.02)
    p99 = np.mean([np.quantile(latency_s, 0.99) for latency_s in simulated])
    assert p99 == pytest.approx(np.quantile(real_s, 0.99), rel=0.03)


def test_without_noise_loop_and_simulation_agree_exactly() -> None:
    samples = run_open([lambda items: 1e-3 + 1e-4 * items] * 2, 3000.0, max_delay_s=5e-4)
    sizes = np.arange(1, 17)
    service = ServiceTimes.fit(sizes, 1e-3 + 1e-4 * sizes, least=1)
    simulated = simulate(
        samples.arrivals_s[0], service, np.random.default_rng(0),
        max_batch=16, max_delay_s=5e-4, servers=2,
    )  # fmt: skip
    np.testing.assert_allclose(simulated, samples.request_latency_s(), atol=1e-9)


def test_a_moderate_load_is_shown_to_hold_and_an_overload_to_break() -> None:
    objective = replace(P99, limits=(Limit(metric="latency_p99", bound=60e-3),))
    calm = run_open([jittered(2e-3, 1e-3, 0)], 300.0, duration_s=120.0)
    assert utilisation(calm) < 0.7
    assert judge(calm, summarise(calm), objective).outcome is Outcome.OK
    flood = run_open([jittered(2e-3, 1e-3, 0)], 1500.0, duration_s=20.0)
    assert utilisation(flood) > 1.0
    assert judge(flood, summarise(flood), objective).outcome is Outcome.OVER_LIMIT


def test_a_busy_queue_is_not_judged_on_few_requests() -> None:
    samples = run_open([jittered(2e-3, 1e-3, 0)], 700.0, duration_s=1.0)
    verdict = judge(
        samples, summarise(samples), replace(P99, limits=(Limit(metric="latency_p99", bound=1.0),))
    )
    assert verdict.outcome is Outcome.UNDECIDED
    assert "more requests (" in verdict.reasons[0]


def test_a_load_generator_that_is_late_is_said() -> None:
    samples = run_open([lambda items: 1e-3], 100.0)
    assert summarise(samples).trust == "quiet"
    assert samples.late_s is not None
    late = replace(samples, late_s=samples.late_s + 0.5e-3)
    assert "the client is saturated" in summarise(late).trust
