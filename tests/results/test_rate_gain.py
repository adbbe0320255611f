"""Gains between sought rates that have no interval: decided by what was shown, shown as such."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from autotune.core.objective import Limit, Objective
from autotune.core.outcomes import Outcome
from autotune.core.records import Comparison, Config, Load, Recommendation, TrialRecord
from autotune.results.ranking import rank
from autotune.results.recommend import decide
from autotune.results.report import render
from autotune.results.study_result import StudyResult
from autotune.results.summary import figures
from autotune.results.tables import to_json

BASELINE = Config(cores_per_instance=1)
BATCH, WINNER = BASELINE.changed(batch_size=8), BASELINE.changed(batch_size=16, batched_h2d=True)
OBJECTIVE = Objective(
    name="online",
    limits=(Limit(metric="latency_p99", bound=0.020),),
    load=Load(kind="poisson"),
)

Make = Callable[..., StudyResult]
Trial = Callable[..., TrialRecord]


def gain(config: Config, reference: Config, ratio: float, least: float) -> Comparison:
    return Comparison(
        config=config,
        reference=reference,
        ratio=ratio,
        ratio_ci=None,
        alpha=0.01,
        pair_ratios=(),
        least_ratio=least,
        interleaved=False,
    )


def decided(make_trial: Trial, least: float) -> Recommendation:
    rates = {BASELINE: 100.0, BATCH: 280.0, WINNER: 300.0}
    records = [
        make_trial(c, throughput=rate, number=n) for n, (c, rate) in enumerate(rates.items())
    ]
    comparisons = [
        gain(WINNER, BASELINE, 3.0, least),
        gain(BATCH, BASELINE, 2.8, least),
        gain(WINNER, BATCH, 1.07, 0.95),
    ]
    ranking = rank(records, OBJECTIVE, BASELINE)
    return decide(ranking, OBJECTIVE, fresh=records, comparisons=comparisons)


def test_a_rate_above_what_the_baseline_may_hold_is_confirmed_without_an_interval(
    make_trial: Trial,
) -> None:
    recommendation = decided(make_trial, least=2.7)
    assert recommendation.status == "confirmed"
    assert recommendation.record is not None and recommendation.record.config == WINNER
    assert recommendation.reasons[0].startswith("the gain has no interval")


@pytest.mark.parametrize("least", [0.0, 0.9, 1.0])
def test_a_rate_that_the_baseline_may_hold_too_is_no_gain(make_trial: Trial, least: float) -> None:
    recommendation = decided(make_trial, least)
    assert recommendation.status == "undecided"
    assert "a gain over the baseline is not shown" in recommendation.reasons[0]
    assert "interval" not in recommendation.reasons[0]


def test_no_interval_of_a_gain_is_shown_anywhere(make_study: Make, make_trial: Trial) -> None:
    recommendation = decided(make_trial, least=2.7)
    result = replace(make_study(), recommendation=recommendation)
    data = to_json(result)
    assert data["gain"] == 3.0 and data["gain_ci95"] is None
    assert data["gain_batch_only"] == 1.07 and data["gain_batch_only_ci95"] is None
    shown = {f.name: f for f in figures(result)}
    assert shown["Gain over the baseline"].detail.startswith("no interval")
    assert shown["Gain over batch size alone"].figure == "none shown"
    proof = (
        render(result, now_s=0.0, version="0").split("The finalists were")[1].split("</table>")[0]
    )
    assert "each at rates of its own" in proof and "95 %" not in proof


def test_a_baseline_that_holds_at_no_rate_leaves_no_factor(make_trial: Trial) -> None:
    base = make_trial(BASELINE, throughput=100.0, number=0, outcome=Outcome.OVER_LIMIT)
    winner = make_trial(WINNER, throughput=300.0, number=1)
    fresh = [replace(record, phase="confirm") for record in (base, winner)]
    ranking = rank([base, winner], OBJECTIVE, BASELINE)
    recommendation = decide(ranking, OBJECTIVE, fresh=fresh)
    assert recommendation.status == "confirmed"
    assert "at no arrival rate" in recommendation.reasons[0]
    closed = replace(OBJECTIVE, load=Load())
    assert decide(ranking, closed, fresh=fresh).status == "unconfirmed"
