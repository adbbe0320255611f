"""Sought rates proven in rounds: a simulated model on a virtual clock."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from search_fakes import make_space, parameters, record_of

from autotune.core.errors import WrongOutput
from autotune.core.objective import Limit, Objective
from autotune.core.outcomes import Outcome
from autotune.core.records import Config, Load, Result, Samples, WorkloadSpec
from autotune.devices.base import DeviceInfo
from autotune.measure.rate_target import SPARE_SIGMAS
from autotune.search.confirm import Confirmation, Setup
from autotune.search.rate_confirm import FRESH_SEED, confirm_rates
from autotune.search.schedule import MIN_ROUNDS
from autotune.space.search_space import Confirm, SearchSpace
from autotune.trial.rate_search import RateSearch
from autotune.trial.session import Launcher

BASE, GOOD, BEST = Config(batch_size=4), Config(batch_size=32), Config(batch_size=64)
LIMIT_S = 0.006
INFO = DeviceInfo(name="simulated", kind="simulated", description="a test", core_count=4)


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    with Launcher() as launcher:
        yield launcher


def rate_space(limit_s: float = LIMIT_S, alpha: float = 0.01) -> SearchSpace:
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


Proof = tuple[Confirmation, dict[int, Result]]


@pytest.fixture(scope="module")
def proof(launcher: Launcher) -> Proof:
    """The best, one that differs in batch size alone, and what was kept of them."""
    kept: dict[int, Result] = {}
    found = prove(
        launcher, BEST, GOOD, on_result=lambda phase, number, result: kept.update({number: result})
    )
    return found, kept


def test_the_best_is_shown_and_its_gain_has_an_interval(proof: Proof) -> None:
    found, kept = proof
    assert [r.config for r in found.records] == [BEST, BASE, GOOD]
    assert outcomes(found)[BEST] is Outcome.OK
    best, base = (r.measurement for r in found.records[:2])
    assert best is not None and base is not None
    assert best.throughput_items_per_s is not None and base.throughput_items_per_s is not None
    assert best.throughput_ci95_items_per_s is None
    gain = next(c for c in found.comparisons if c.config == BEST)
    assert gain.reference == BASE and gain.interleaved and gain.shows_gain
    assert len(gain.pair_ratios) == MIN_ROUNDS
    assert gain.ratio_ci is not None and gain.ratio_ci[0] < gain.ratio < gain.ratio_ci[1]
    # The rates leave margins that differ; the gain is of the rates without them.
    quotient = best.throughput_items_per_s / base.throughput_items_per_s
    assert gain.ratio == pytest.approx(quotient, rel=0.15)
    assert gain.least_ratio > 1.0
    for record in found.records:
        samples = kept[record.number]
        assert isinstance(samples, Samples) and samples.is_queued
        assert samples.item_count.max() <= record.config.batch_size
        assert record.rate is not None and record.rate.limit_rate_per_s > 0


def test_latencies_are_of_the_rate_that_was_shown(proof: Proof) -> None:
    best = proof[0].records[0]
    assert best.measurement is not None and best.measurement.estimated == ()
    assert best.measurement.latency_p99_s is not None
    assert 0.5 * LIMIT_S < best.measurement.latency_p99_s <= 1.1 * LIMIT_S


def test_batch_size_alone_is_compared_in_all_rounds(proof: Proof) -> None:
    pairs = {(c.config, c.reference): c for c in proof[0].comparisons}
    assert set(pairs) == {(BEST, BASE), (GOOD, BASE)}
    assert all(len(c.pair_ratios) == MIN_ROUNDS for c in pairs.values())


def test_what_promises_less_than_was_shown_is_not_measured_further(launcher: Launcher) -> None:
    worse = Config(batch_size=4, batched_h2d=True)
    found = prove(launcher, BEST, worse)
    assert outcomes(found)[worse] is Outcome.UNDECIDED
    pairs = {c.config: c for c in found.comparisons}
    assert len(pairs[BEST].pair_ratios) == MIN_ROUNDS > len(pairs[worse].pair_ratios)


def test_a_limit_that_holds_at_no_rate_leaves_no_gain(launcher: Launcher) -> None:
    found = prove(launcher, BEST, space=rate_space(limit_s=0.0005))
    assert set(outcomes(found).values()) == {Outcome.OVER_LIMIT}
    assert found.comparisons == ()


def test_a_baseline_that_cannot_run_is_left_out(launcher: Launcher) -> None:
    found = prove(launcher, BEST, base="oom")
    assert outcomes(found) == {BEST: Outcome.OK}
    assert found.comparisons == ()


def test_wrong_outputs_in_a_round_refuse_a_configuration(launcher: Launcher) -> None:
    seen: list[Config] = []

    def check(config: Config, answers: object) -> None:
        seen.append(config)
        if config == GOOD and seen.count(GOOD) == 2:
            raise WrongOutput("outputs differ from the baseline's")

    found = prove(launcher, BEST, GOOD, check=check)
    assert outcomes(found)[GOOD] is Outcome.WRONG_OUTPUT
    assert outcomes(found)[BEST] is Outcome.OK
    assert [c.config for c in found.comparisons] == [BEST]


def test_what_a_trial_found_is_where_the_proof_begins(
    launcher: Launcher, proof: Proof, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds: list[str] = []
    measure = RateSearch.measure

    def spied(self, session, plan):  # type: ignore[no-untyped-def]
        samples = measure(self, session, plan)
        kinds.append(self.history[-1].kind)
        return samples

    monkeypatch.setattr(RateSearch, "measure", spied)
    known = replace(record_of(1, BEST), rate=proof[0].records[0].rate)
    setup = Setup(space=rate_space(), info=INFO, launcher=launcher)
    again = confirm_rates([known], None, setup)
    assert outcomes(again) == {BEST: Outcome.OK}
    assert set(kinds) == {"look"}


def test_a_trial_that_saw_no_rate_is_not_believed(launcher: Launcher, proof: Proof) -> None:
    facts = proof[0].records[0].rate
    assert facts is not None
    record = replace(record_of(1, BEST), rate=replace(facts, rate_per_s=0.0, limit_rate_per_s=0.0))
    found = confirm_rates([record], None, Setup(space=rate_space(), info=INFO, launcher=launcher))
    assert outcomes(found) == {BEST: Outcome.OK}


def test_what_cannot_be_shown_says_what_would_show_it(launcher: Launcher) -> None:
    # So short a time at each rate that the first look is all that fits into the budget.
    found = prove(launcher, BEST, time_s=6.0)
    assert outcomes(found)[BEST] is Outcome.UNDECIDED
    needed = found.needed[BEST]
    assert needed.more_s > 0 and needed.duration_s >= 3.0 and needed.time_s > needed.duration_s
    assert "time" in found.notes[0]  # how far it came depends on the machine
    record = found.records[0]
    assert record.measurement is not None and "latency_p99_s" in record.measurement.estimated
    assert record.measurement.latency_p99_s is not None
    assert record.measurement.latency_p99_s <= LIMIT_S
    assert "may settle it" in record.verdict.reasons[0]


def test_nothing_begins_without_time(launcher: Launcher) -> None:
    found = prove(launcher, BEST, GOOD, time_s=0.0)
    assert found.records == () and found.comparisons == ()
    assert "3 of 3 finalists were not measured again for lack of time" in found.notes[0]


def test_arrivals_are_none_of_a_trial_and_alpha_is_that_of_the_space(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    goals = []
    make = RateSearch.begun_with.__func__  # type: ignore[attr-defined]

    def spied(cls, facts, goal, objective):  # type: ignore[no-untyped-def]
        goals.append(goal)
        return make(cls, facts, goal, objective)

    monkeypatch.setattr(RateSearch, "begun_with", classmethod(spied))
    space = rate_space(alpha=0.02)
    prove(launcher, BEST, space=replace(space, trial=replace(space.trial, seed=7)), time_s=1.0)
    assert {goal.seed for goal in goals} == {FRESH_SEED + 7}
    assert {goal.alpha for goal in goals} == {0.02}
    assert goals[0].sigmas == pytest.approx(2.054 - SPARE_SIGMAS, abs=1e-3)


def test_a_proof_in_which_no_request_comes_measures_nothing(
    launcher: Launcher, proof: Proof
) -> None:
    facts = proof[0].records[0].rate
    assert facts is not None
    slow = replace(facts, medians_s=tuple(1e6 * time_s for time_s in facts.medians_s))
    space = rate_space(limit_s=1e4)
    assert space.confirm is not None
    space = replace(space, confirm=replace(space.confirm, duration_s=1e-3))
    record = replace(record_of(1, BEST), rate=slow)
    found = confirm_rates([record], None, Setup(space=space, info=INFO, launcher=launcher))
    assert found.records == () and found.comparisons == ()
