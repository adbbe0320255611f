"""Open loads through real processes and threads, and on the virtual clock of simulated models."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from autotune.core.objective import Limit, Objective
from autotune.core.outcomes import Outcome
from autotune.core.records import (
    Config,
    GroupSpec,
    InputSpec,
    Load,
    Plan,
    Samples,
    Window,
    WorkloadSpec,
)
from autotune.devices import device_kind, find_device
from autotune.results.words import figure_text
from autotune.trial.rate_search import rate_goal, search_rate
from autotune.trial.session import Launcher, open_session

MODELS = Path(__file__).with_name("models.py")


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    with Launcher() as launcher:
        yield launcher


def real(config: Config, factory: str = "sleeps_2_ms_per_item") -> GroupSpec:
    info = find_device("cpu")
    kind = device_kind("cpu")
    inputs = (InputSpec(name="x", shape=("batch", 16)),)
    return GroupSpec(
        config=config,
        workload=WorkloadSpec(kind="torch", model=f"{MODELS}:{factory}", inputs=inputs),
        devices=("cpu",),
        cores=((0,),) * config.instance_count,
        environment=kind.environment(config, info),
    )


def simulated(config: Config) -> GroupSpec:
    return GroupSpec(
        config=config,
        workload=WorkloadSpec(kind="simulated", model="recommender_a3"),
        devices=("simulated",),
        cores=((),) * config.instance_count,
    )


def poisson(rate: float, duration_s: float = 1.0) -> Plan:
    return Plan(
        windows=(Window(duration_s=duration_s),) * 2,
        load=Load(kind="poisson", rate_per_s=rate),
        deadline_s=20,
    )


def measured(launcher: Launcher, spec: GroupSpec, plan: Plan) -> Samples:
    with open_session(spec, launcher, timeout_s=20) as session:
        result = session.measure(plan)
    assert isinstance(result, Samples)
    return result


def served(samples: Samples) -> list[tuple[int, int]]:
    """Window and index of every request that was served."""
    assert samples.first_request is not None
    return [
        (int(window), int(first) + i)
        for window, first, items in zip(
            samples.window, samples.first_request, samples.item_count, strict=True
        )
        for i in range(items)
    ]


def all_of(samples: Samples) -> list[tuple[int, int]]:
    return [(w, i) for w, arrivals in enumerate(samples.arrivals_s) for i in range(arrivals.size)]


@pytest.mark.parametrize("mode", ["process", "thread"])
def test_instances_share_one_queue_and_serve_every_request_once(
    launcher: Launcher, mode: str
) -> None:
    config = Config(batch_size=8, instance_count=2, cores_per_instance=1).changed(
        instance_mode=mode
    )
    samples = measured(launcher, real(config), poisson(200.0, 0.5))
    assert sorted(served(samples)) == all_of(samples)
    assert set(samples.instance) == {0, 1}
    assert np.all(samples.request_latency_s() > 0.002)
    before = np.zeros(samples.start_s.size, dtype=bool)
    for window, arrivals_s in enumerate(samples.arrivals_s):
        own = samples.window == window
        assert samples.first_request is not None
        last = samples.first_request[own] + samples.item_count[own] - 1
        before[own] = samples.start_s[own] >= arrivals_s[last]
    assert before.all()  # nothing is served before it arrives


@pytest.mark.parametrize("mode", ["process", "thread"])
def test_clients_send_again_when_they_are_answered(launcher: Launcher, mode: str) -> None:
    config = Config(batch_size=4, instance_count=2, cores_per_instance=1).changed(
        instance_mode=mode
    )
    plan = Plan(windows=(Window(duration_s=0.4),) * 2, load=Load(clients=6), deadline_s=20)
    samples = measured(launcher, real(config), plan)
    assert sorted(served(samples)) == all_of(samples)
    assert set(samples.instance) == {0, 1} and samples.item_count.max() <= 4
    for window, arrivals_s in enumerate(samples.arrivals_s):
        ended_s = np.sort(samples.of_window(window).request_latency_s() + arrivals_s)
        assert np.all(arrivals_s[:6] == arrivals_s[0])  # all clients begin at once
        # Each further request is sent when an earlier one has been answered, no sooner.
        sent_s = np.sort(arrivals_s[6:])
        np.testing.assert_allclose(sent_s, ended_s[: sent_s.size], atol=1e-9)
    assert np.all(samples.request_latency_s() > 0.002)


def test_clients_of_a_simulated_model(launcher: Launcher) -> None:
    config = Config(batch_size=16, instance_count=2, cores_per_instance="12|24")
    plan = Plan(windows=(Window(iterations=3000),), load=Load(clients=20), deadline_s=20)
    samples = measured(launcher, simulated(config), plan)
    assert sorted(served(samples)) == all_of(samples) and samples.item_count.sum() == 3000
    assert set(samples.instance) == {0, 1}


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_a_call_runs_with_as_many_items_as_were_taken(
    launcher: Launcher, micro_batches: int
) -> None:
    config = Config(batch_size=8, cores_per_instance=1, micro_batch_count=micro_batches)
    samples = measured(launcher, real(config), poisson(250.0))
    assert len(set(samples.item_count)) >= 3
    assert samples.compute_s is not None
    assert np.all(samples.compute_s >= 0.002 * samples.item_count)  # never fewer ...
    few, many = samples.item_count.min(), samples.item_count.max()
    fastest_s = [samples.compute_s[samples.item_count == n].min() for n in (few, many)]
    assert fastest_s[0] < 0.75 * fastest_s[1]  # ... nor the whole batch


def test_the_shared_index_is_not_left_open(launcher: Launcher) -> None:
    config = Config(batch_size=8, instance_count=2, cores_per_instance=1)
    with open_session(real(config), launcher, timeout_s=20) as session:
        session.measure(poisson(50.0, 0.2))
        before = len(list(Path("/proc/self/fd").iterdir()))
        for _ in range(3):
            session.measure(poisson(50.0, 0.2))
        gc.collect()
        assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_simulated_instances_share_a_queue(launcher: Launcher) -> None:
    config = Config(batch_size=128, instance_count=4, cores_per_instance="16|16")
    samples = measured(launcher, simulated(config), poisson(50_000.0))
    assert sorted(served(samples)) == all_of(samples)
    assert set(samples.instance) == {0, 1, 2, 3}
    assert 1 < samples.item_count.mean() < 128


def test_a_delay_makes_batches_larger_and_latency_longer(launcher: Launcher) -> None:
    plain = Config(batch_size=128)
    delayed = plain.changed(max_queue_delay=0.004)
    at_once = measured(launcher, simulated(plain), poisson(5000.0))
    waited = measured(launcher, simulated(delayed), poisson(5000.0))
    assert waited.item_count.mean() > 1.5 * at_once.item_count.mean()
    assert waited.request_latency_s().mean() > at_once.request_latency_s().mean() + 0.001


def test_the_highest_rate_of_a_simulated_model(launcher: Launcher) -> None:
    config = Config(batch_size=64)
    objective = Objective(
        name="o",
        load=Load(kind="poisson"),
        limits=(
            Limit(metric="latency_p99", bound=0.006),
            Limit(metric="memory_peak", bound=64e9),
        ),
    )
    goal = rate_goal(config, objective, window_s=4.0, seed=1)
    with open_session(simulated(config), launcher) as session:
        found = search_rate(session, goal, objective)
    assert found.verdict.outcome is Outcome.OK
    rate = found.finding.rate_per_s
    assert found.measurement.arrival_rate_per_s == rate
    assert found.measurement.throughput_items_per_s == rate
    assert (
        found.verdict.excess["latency_p99_s"] <= 0 and "memory_peak_bytes" in found.verdict.excess
    )
    fresh = measured(launcher, simulated(config), poisson(rate, 10.0))
    assert (fresh.request_latency_s() > 0.006).mean() <= 0.01
    beyond = measured(launcher, simulated(config), poisson(rate / 0.85, 10.0))
    assert (beyond.request_latency_s() > 0.006).mean() > 0.01


def test_latencies_of_an_estimated_rate_are_marked_as_estimates(launcher: Launcher) -> None:
    config, limit = Config(batch_size=64), Limit(metric="latency_p99", bound=0.006)
    objective = Objective(name="o", load=Load(kind="poisson"), limits=(limit,))
    goal = replace(rate_goal(config, objective, window_s=1.0, seed=1), proves=False)
    with open_session(simulated(config), launcher) as session:
        found = search_rate(session, goal, objective)
    assert found.verdict.outcome is Outcome.UNDECIDED
    p99_s = found.measurement.latency_p99_s
    assert p99_s is not None and "latency_p99_s" in found.measurement.estimated
    assert figure_text("latency_p99", found.measurement).startswith("≈ ")
    fresh = measured(launcher, simulated(config), poisson(found.finding.rate_per_s, 5.0))
    assert p99_s == pytest.approx(np.quantile(fresh.request_latency_s(), 0.99), rel=0.25)


def test_the_limit_that_is_met_first_chooses_the_rate(launcher: Launcher) -> None:
    config = Config(batch_size=64)
    p99 = Limit(metric="latency_p99", bound=0.006)
    rates = []
    for limits in ((p99,), (p99, Limit(metric="latency_p50", bound=0.0024))):
        objective = Objective(name="o", load=Load(kind="poisson"), limits=limits)
        goal = rate_goal(config, objective, window_s=8.0, seed=1)
        with open_session(simulated(config), launcher) as session:
            found = search_rate(session, goal, objective)
        assert found.verdict.outcome is Outcome.OK
        rates.append(found.finding.rate_per_s)
    fresh = measured(launcher, simulated(config), poisson(rates[1], 10.0)).request_latency_s()
    assert (fresh > 0.0024).mean() <= 0.5 and (fresh > 0.006).mean() <= 0.01
    first = measured(launcher, simulated(config), poisson(rates[0], 10.0)).request_latency_s()
    assert (first > 0.0024).mean() > 0.5 and rates[1] > 0.5 * rates[0]


def test_no_rate_keeps_a_limit_below_one_call(launcher: Launcher) -> None:
    config = Config(batch_size=64)
    limits = (Limit(metric="latency_p99", bound=0.0005),)
    objective = Objective(name="o", load=Load(kind="poisson"), limits=limits)
    goal = rate_goal(config, objective, window_s=1.0, seed=1)
    with open_session(simulated(config), launcher) as session:
        found = search_rate(session, goal, objective)
    assert found.verdict.outcome is Outcome.OVER_LIMIT
    assert found.verdict.excess["latency_p99_s"] > 0
    assert "holds at no arrival rate" in found.verdict.reasons[0]
