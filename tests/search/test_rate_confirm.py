"""Sought rates proven one after another: a simulated model on a virtual clock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from search_fakes import make_space, parameters, record_of

from autotune.core.objective import Limit, Objective
from autotune.core.outcomes import Outcome
from autotune.core.records import Config, Load, Result, Samples, WorkloadSpec
from autotune.devices.base import DeviceInfo
from autotune.search import rate_confirm
from autotune.search.confirm import Confirmation, Setup
from autotune.search.rate_confirm import FRESH_SEED, confirm_rates
from autotune.space.search_space import Confirm, SearchSpace
from autotune.trial.rate_search import RateResult
from autotune.trial.session import Launcher

BASE, GOOD, BEST = Config(batch_size=4), Config(batch_size=32), Config(batch_size=64)
LIMIT_S = 0.006
INFO = DeviceInfo(name="simulated", kind="simulated", description="a test", core_count=4)


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    with Launcher() as launcher:
        yield launcher


def rate_space(limit_s: float = LIMIT_S, alpha: float = 0.05) -> SearchSpace:
    return make_space(
        workload=WorkloadSpec(kind="simulated", model="recommender_a3"),
        device="simulated",
        objective=Objective(
            name="o",
            load=Load(kind="poisson"),
            limits=(Limit(metric="latency_p99", bound=limit_s),),
        ),
        params=parameters(batch_size=(4, 32, 64)),
        confirm=Confirm(top=2, duration_s=3.0, alpha=alpha),
    )


def prove(
    launcher: Launcher,
    *configs: Config,
    space: SearchSpace | None = None,
    base: str = "ok",
    **options: object,
) -> Confirmation:
    return confirm_rates(
        [record_of(n, c) for n, c in enumerate(configs, 1)],
        record_of(0, BASE, base),
        Setup(space=space or rate_space(), info=INFO, launcher=launcher, **options),  # type: ignore[arg-type]
    )


def outcomes(found: Confirmation) -> dict[Config, Outcome]:
    return {r.config: r.verdict.outcome for r in found.records}


def test_the_best_and_the_baseline_are_shown_and_their_gain_has_no_interval(
    launcher: Launcher,
) -> None:
    kept: dict[int, Result] = {}
    found = prove(
        launcher, BEST, on_result=lambda phase, number, result: kept.update({number: result})
    )
    assert outcomes(found) == {BEST: Outcome.OK, BASE: Outcome.OK}
    best, base = (r.measurement for r in found.records)
    assert best is not None and base is not None
    assert best.throughput_items_per_s is not None and base.throughput_items_per_s is not None
    assert best.throughput_ci95_items_per_s is None
    (gain,) = found.comparisons
    assert (gain.config, gain.reference) == (BEST, BASE)
    assert gain.ratio == best.throughput_items_per_s / base.throughput_items_per_s
    assert gain.ratio_ci is None and gain.pair_ratios == () and not gain.interleaved
    assert 1.0 < gain.least_ratio <= gain.ratio and gain.shows_gain
    for record in found.records:
        samples = kept[record.number]
        assert isinstance(samples, Samples) and samples.is_open
        assert samples.item_count.max() <= record.config.batch_size


def test_configurations_are_compared_with_each_other_too(launcher: Launcher) -> None:
    found = prove(launcher, BEST, GOOD)
    assert [r.config for r in found.records] == [BEST, BASE, GOOD]
    pairs = {(c.config, c.reference): c for c in found.comparisons}
    assert set(pairs) == {(BEST, BASE), (GOOD, BASE), (BEST, GOOD), (GOOD, BEST)}
    assert not pairs[GOOD, BEST].shows_gain or not pairs[BEST, GOOD].shows_gain


def test_what_promises_less_than_was_shown_is_not_measured_further(launcher: Launcher) -> None:
    worse = Config(batch_size=2)
    found = prove(launcher, BEST, worse)
    seconds = {r.config: r.duration_s for r in found.records}
    assert seconds[worse] < 1.0 < seconds[BASE]
    assert outcomes(found)[worse] is Outcome.UNDECIDED
    against = next(c for c in found.comparisons if (c.config, c.reference) == (worse, BASE))
    assert against.least_ratio == 0.0 and not against.shows_gain


def test_a_limit_that_holds_at_no_rate_leaves_no_gain(launcher: Launcher) -> None:
    found = prove(launcher, BEST, space=rate_space(limit_s=0.0005))
    assert set(outcomes(found).values()) == {Outcome.OVER_LIMIT}
    assert found.comparisons == ()


def test_a_baseline_that_cannot_run_is_left_out(launcher: Launcher) -> None:
    found = prove(launcher, BEST, base="oom")
    assert outcomes(found) == {BEST: Outcome.OK}
    assert found.comparisons == ()


def test_a_gain_over_a_baseline_that_was_not_shown_is_over_its_most(launcher: Launcher) -> None:
    found = prove(launcher, BEST, time_s=16.0)
    assert outcomes(found) == {BEST: Outcome.OK, BASE: Outcome.UNDECIDED}
    (gain,) = found.comparisons
    best, base = (r.measurement for r in found.records)
    assert best is not None and base is not None
    assert best.throughput_items_per_s is not None and base.throughput_items_per_s is not None
    assert gain.ratio < 0.99 * best.throughput_items_per_s / base.throughput_items_per_s
    assert found.notes[-1].startswith("the baseline's rate was not shown: gains are over ")


def test_nothing_begins_without_time(launcher: Launcher) -> None:
    found = prove(launcher, BEST, GOOD, time_s=0.0)
    assert found.records == ()
    assert len(found.notes) == 3 and "lack of time" in found.notes[0]


def test_the_baseline_gets_its_turn_in_a_short_time(launcher: Launcher) -> None:
    found = prove(launcher, BEST, time_s=20.0)
    seconds = {r.config: r.duration_s for r in found.records}
    assert seconds[BEST] <= 10.0 and seconds[BASE] > 1.0


def test_arrivals_are_none_of_a_trial_and_alpha_is_that_of_the_space(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    goals = []
    search = rate_confirm.search_rate

    def spied(session, goal, *rest, **options) -> RateResult:  # type: ignore[no-untyped-def]
        goals.append(goal)
        return search(session, goal, *rest, **options)

    monkeypatch.setattr(rate_confirm, "search_rate", spied)
    space = rate_space(alpha=0.01)
    prove(launcher, BEST, space=replace(space, trial=replace(space.trial, seed=7)))
    assert {goal.seed for goal in goals} == {FRESH_SEED + 7}
    assert {goal.alpha for goal in goals} == {0.01}
    assert goals[0].sigmas == pytest.approx(2.326, abs=1e-3)
