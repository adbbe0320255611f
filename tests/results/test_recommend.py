from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from autotune.core.insight import Belief, Insight
from autotune.core.objective import Goal, Limit, Objective
from autotune.core.outcomes import Outcome
from autotune.core.records import Comparison, Config, Recommendation, TrialRecord
from autotune.results.ranking import candidates, excess_ratio, rank, score
from autotune.results.recommend import decide

BASELINE = Config(cores_per_instance=1)
OBJECTIVE = Objective(name="online", limits=(Limit(metric="latency_p99", bound=0.020),))

Trial = Callable[..., TrialRecord]
Pairs = Callable[..., Comparison]


def batch(size: int, **others: object) -> Config:
    return Config(batch_size=size, cores_per_instance=1, **others)  # type: ignore[arg-type]


# --- ranking -----------------------------------------------------------------------------------


def test_the_best_that_holds_is_first_and_the_undecided_come_after_every_one_that_holds(
    make_trial: Trial,
) -> None:
    records = [
        make_trial(batch(8), throughput=900, outcome=Outcome.UNDECIDED),
        make_trial(BASELINE, throughput=100),
        make_trial(batch(4), throughput=400),
        make_trial(batch(16), throughput=2000, p99_s=0.030),
        make_trial(batch(32), outcome=Outcome.OOM),
    ]
    ranking = rank(records, OBJECTIVE, BASELINE)
    assert [r.config.batch_size for r in ranking.ranked] == [4, 1, 8]
    assert ranking.best is records[2]
    assert ranking.closest is None


def test_a_configuration_counts_by_its_least_favourable_trial(make_trial: Trial) -> None:
    lucky = make_trial(batch(8), number=1, throughput=1000)
    broken = make_trial(batch(8), number=2, throughput=900, p99_s=0.025)
    steady = make_trial(batch(4), number=3, throughput=500)
    assert rank([lucky, broken, steady], OBJECTIVE, BASELINE).ranked == (steady,)


def test_batch_only_differs_in_nothing_else_and_is_not_the_baseline(make_trial: Trial) -> None:
    records = [
        make_trial(BASELINE, throughput=5000),
        make_trial(batch(4), throughput=400),
        make_trial(batch(8), throughput=700),
        make_trial(batch(16, batched_h2d=True), throughput=3000),
    ]
    found = rank(records, OBJECTIVE, BASELINE).batch_only
    assert found is not None and found.config == batch(8)


def test_with_nothing_feasible_the_closest_breaks_its_limit_least(make_trial: Trial) -> None:
    far = make_trial(batch(16), throughput=9000, p99_s=0.080)
    near = make_trial(batch(2), throughput=100, p99_s=0.021)
    ranking = rank([far, near], OBJECTIVE, BASELINE)
    assert ranking.closest is near
    decided = decide(ranking, OBJECTIVE)
    assert decided.status == "infeasible"
    assert decided.record is None
    assert "does not meet it: batch_size=2" in decided.reasons[1]
    assert "21.0 ms" in decided.reasons[1]


def test_nothing_measured_is_infeasible_and_says_so(make_trial: Trial) -> None:
    decided = decide(
        rank([make_trial(BASELINE, outcome=Outcome.OOM)], OBJECTIVE, BASELINE), OBJECTIVE
    )
    assert decided.status == "infeasible"
    assert decided.reasons == ("no trial has a measurement",)


def test_score_follows_each_goals_direction_and_weight(make_trial: Trial) -> None:
    record = make_trial(batch(1))
    verdict = replace(
        record.verdict, objectives={"throughput_items_per_s": 100.0, "latency_p99_s": 0.01}
    )
    record = replace(record, verdict=verdict)
    slower = replace(
        record, verdict=replace(verdict, objectives={**verdict.objectives, "latency_p99_s": 0.02})
    )
    both = Objective(
        name="both", goals=(Goal(metric="throughput"), Goal(metric="latency_p99", weight=2))
    )
    assert score(record, both) > score(slower, both)
    unknown = replace(record, verdict=replace(verdict, objectives={}))
    assert score(unknown, both) == float("-inf")


def test_excess_is_relative_to_the_limit_and_unknown_is_no_pass(make_trial: Trial) -> None:
    record = make_trial(batch(1), p99_s=0.025)
    assert excess_ratio(record, OBJECTIVE) == pytest.approx(0.25)
    blind = replace(record, verdict=replace(record.verdict, excess={}))
    assert excess_ratio(blind, OBJECTIVE) == float("inf")


# --- finalists ---------------------------------------------------------------------------------


def test_finalists_are_the_best_figures_but_one_that_holds_always_has_a_seat(
    make_trial: Trial,
) -> None:
    records = [make_trial(BASELINE, throughput=100)]
    records += [
        make_trial(batch(size, batched_h2d=True), throughput=size, outcome=Outcome.UNDECIDED)
        for size in (500, 600, 700)
    ]
    chosen = candidates(rank(records, OBJECTIVE, BASELINE), OBJECTIVE, 2)
    assert [r.config.batch_size for r in chosen] == [700, 1]


def test_an_undecided_trial_whose_estimate_breaks_the_limit_is_no_finalist(
    make_trial: Trial,
) -> None:
    records = [
        make_trial(BASELINE, throughput=100),
        make_trial(batch(9), throughput=900, p99_s=0.021, outcome=Outcome.UNDECIDED),
    ]
    chosen = candidates(rank(records, OBJECTIVE, BASELINE), OBJECTIVE, 3)
    assert [r.config for r in chosen] == [BASELINE]


def test_the_best_batch_only_configuration_is_proven_beside_the_finalists(
    make_trial: Trial,
) -> None:
    records = [
        make_trial(BASELINE, throughput=100),
        make_trial(batch(4), throughput=200),
        *(make_trial(batch(b, batched_h2d=True), throughput=1000 + b) for b in (1, 2, 3)),
    ]
    ranking = rank(records, OBJECTIVE, BASELINE)
    assert candidates(ranking, OBJECTIVE, 2)[-1].config == batch(4)
    left = ranking.without([batch(4), batch(3, batched_h2d=True)])
    assert left.batch_only is None
    assert [r.config.batch_size for r in candidates(left, OBJECTIVE, 1)] == [2]


# --- the decision ------------------------------------------------------------------------------


def test_without_a_proof_the_best_trial_is_unconfirmed(make_trial: Trial) -> None:
    records = [make_trial(BASELINE, throughput=100), make_trial(batch(4), throughput=400)]
    decided = decide(rank(records, OBJECTIVE, BASELINE), OBJECTIVE)
    assert (decided.status, decided.record) == ("unconfirmed", records[1])
    assert decided.against_baseline is None


def test_the_fresh_measurement_decides_not_the_luckiest_trial(
    make_trial: Trial, make_comparison: Pairs
) -> None:
    """The winner's curse: the top of many short trials disappoints when measured again."""
    lucky, honest = batch(8, batched_h2d=True), batch(4, batched_h2d=True)
    records = [
        make_trial(BASELINE, throughput=100),
        make_trial(lucky, throughput=500),
        make_trial(honest, throughput=400),
    ]
    fresh = [
        make_trial(BASELINE, throughput=100),
        make_trial(lucky, throughput=300),
        make_trial(honest, throughput=390),
    ]
    decided = decide(
        rank(records, OBJECTIVE, BASELINE),
        OBJECTIVE,
        fresh=fresh,
        comparisons=[make_comparison(lucky, 3.0), make_comparison(honest, 3.9)],
    )
    assert decided.status == "confirmed"
    assert decided.record is fresh[2]
    assert decided.baseline is fresh[0]
    assert decided.against_baseline is not None and decided.against_baseline.ratio == 3.9


def test_ratios_beside_the_baseline_outweigh_absolute_figures(
    make_trial: Trial, make_comparison: Pairs
) -> None:
    """A figure from a fast minute of the machine must not win."""
    one, two = batch(2, batched_h2d=True), batch(4, batched_h2d=True)
    records = [make_trial(c, throughput=100) for c in (BASELINE, one, two)]
    fresh = [
        make_trial(BASELINE, throughput=100),
        make_trial(one, throughput=900),
        make_trial(two, throughput=500),
    ]
    decided = decide(
        rank(records, OBJECTIVE, BASELINE),
        OBJECTIVE,
        fresh=fresh,
        comparisons=[make_comparison(one, 2.0), make_comparison(two, 3.0)],
    )
    assert decided.record is not None and decided.record.config == two


def test_one_that_breaks_its_limit_when_measured_again_is_refused(
    make_trial: Trial, make_comparison: Pairs
) -> None:
    config = batch(8)
    records = [make_trial(BASELINE, throughput=100), make_trial(config, throughput=800)]
    fresh = [make_trial(BASELINE), make_trial(config, p99_s=0.024)]
    decided = decide(
        rank(records, OBJECTIVE, BASELINE),
        OBJECTIVE,
        fresh=fresh,
        comparisons=[make_comparison(config, 8.0)],
    )
    assert decided.status == "confirmed"
    assert decided.record is not None and decided.record.config == BASELINE
    assert decided.reasons == ("no tested configuration was shown to be better than the baseline",)


def test_all_refused_is_infeasible(make_trial: Trial) -> None:
    records = [make_trial(BASELINE, throughput=100)]
    decided = decide(
        rank(records, OBJECTIVE, BASELINE), OBJECTIVE, fresh=[make_trial(BASELINE, p99_s=0.03)]
    )
    assert (decided.status, decided.record) == ("infeasible", None)


def test_a_gain_whose_interval_includes_none_is_not_confirmed(
    make_trial: Trial, make_comparison: Pairs
) -> None:
    config = batch(8)
    records = [make_trial(BASELINE, throughput=100), make_trial(config, throughput=110)]
    comparison = replace(make_comparison(config, 1.05), ratio_ci=(0.97, 1.13))
    decided = decide(
        rank(records, OBJECTIVE, BASELINE), OBJECTIVE, fresh=records, comparisons=[comparison]
    )
    assert decided.status == "undecided"
    assert "99 % interval 0.97 to 1.13, from 6 pairs" in decided.reasons[0]


def test_a_better_one_whose_limit_stays_open_is_mentioned_not_chosen(
    make_trial: Trial, make_comparison: Pairs
) -> None:
    sure, open_ = batch(4), batch(8)
    records = [make_trial(c, throughput=100 * c.batch_size) for c in (BASELINE, sure, open_)]
    fresh = [
        make_trial(BASELINE),
        make_trial(sure),
        make_trial(open_, outcome=Outcome.UNDECIDED, reasons=("500 more calls would settle it",)),
    ]
    against = [make_comparison(sure, 4.0), make_comparison(open_, 8.0)]
    ranking = rank(records, OBJECTIVE, BASELINE)
    advice = {open_: "take more time", sure: "nothing to say of this one"}
    decided = decide(ranking, OBJECTIVE, fresh=fresh, comparisons=against, advice=advice)
    assert decided.status == "confirmed"
    assert decided.record is fresh[1]
    (reason,) = decided.reasons
    assert "batch_size=8" in reason and "promises 8.00× the baseline's throughput" in reason
    assert reason.endswith("could not be shown: take more time")

    far = [against[0], make_comparison(open_, 8.1)]
    undecided = decide(ranking, OBJECTIVE, fresh=fresh, comparisons=far, advice=advice)
    assert undecided.status == "undecided"  # half of what another does is no answer
    assert undecided.record is fresh[1] and "promises 8.1" in undecided.reasons[0]

    alone = decide(
        ranking, OBJECTIVE, fresh=[fresh[0], fresh[2]], comparisons=against[1:], advice=advice
    )
    assert alone.status == "undecided"
    assert alone.record is fresh[2]
    assert alone.reasons == ("500 more calls would settle it", "take more time")


def test_gain_over_batch_only_is_chained_over_the_rounds_both_ran_in(
    make_trial: Trial, make_comparison: Pairs
) -> None:
    only, winner = batch(4), batch(4, batched_h2d=True)
    records = [make_trial(c, throughput=100) for c in (BASELINE, only, winner)]
    fresh = [make_trial(c) for c in (BASELINE, only, winner)]
    decided = decide(
        rank(records, OBJECTIVE, BASELINE),
        OBJECTIVE,
        fresh=fresh,
        comparisons=[make_comparison(only, 2.0), make_comparison(winner, 3.0)],
    )
    against = decided.against_batch_only
    assert against is not None
    assert (against.config, against.reference) == (winner, only)
    assert against.ratio == pytest.approx(1.5)
    assert len(against.pair_ratios) == 6


@pytest.mark.parametrize("winner", [BASELINE, batch(4)])
def test_gain_over_batch_only_is_none_where_nothing_else_was_changed(
    winner: Config, make_trial: Trial, make_comparison: Pairs
) -> None:
    records = [make_trial(BASELINE, throughput=100), make_trial(batch(4), throughput=400)]
    refused = make_trial(batch(4), throughput=400, outcome=Outcome.OVER_LIMIT)
    fresh = records if winner != BASELINE else [records[0], refused]
    decided = decide(
        rank(records, OBJECTIVE, BASELINE),
        OBJECTIVE,
        fresh=fresh,
        comparisons=[make_comparison(batch(4), 4.0)],
    )
    assert decided.record is not None and decided.record.config == winner
    assert decided.against_batch_only is None


def test_where_time_was_left_for_the_baseline_alone_the_search_decides(make_trial: Trial) -> None:
    """Nothing is said of finalists that nobody measured again."""
    records = [make_trial(BASELINE, throughput=100), make_trial(batch(4), throughput=400)]
    missing = "2 of 2 finalists were not measured again for lack of time"
    for outcome in (Outcome.OK, Outcome.OVER_LIMIT):
        fresh = [make_trial(BASELINE, throughput=100, outcome=outcome)]
        ranking = rank(records, OBJECTIVE, BASELINE)
        decided = decide(ranking, OBJECTIVE, fresh=fresh, notes=(missing,))
        assert decided.status == "unconfirmed"
        assert decided.record is not None and decided.record.config == batch(4)
        assert missing in decided.reasons
        assert not any("held" in reason for reason in decided.reasons)


def test_why_nobody_is_recommended_is_told_apart(make_trial: Trial) -> None:
    records = [make_trial(BASELINE, throughput=100), make_trial(batch(4), throughput=400)]
    ranking = rank(records, OBJECTIVE, BASELINE)
    for outcome, words in (
        (Outcome.CRASHED, "none of the finalists could be measured again"),
        (Outcome.OVER_LIMIT, "none of the finalists that were measured again held its limits"),
    ):
        fresh = [
            make_trial(BASELINE, outcome=Outcome.OVER_LIMIT),
            make_trial(batch(4), outcome=outcome),
        ]
        decided = decide(ranking, OBJECTIVE, fresh=fresh)
        assert decided.status == "infeasible" and decided.reasons == (words,)


def test_a_proof_in_which_nothing_runs_any_more_decides_against_nobody(make_trial: Trial) -> None:
    """Such as on a device that was lost in between."""
    records = [make_trial(BASELINE, throughput=100), make_trial(batch(4), throughput=400)]
    fresh = [
        make_trial(config, outcome=Outcome.CRASHED, reasons=("the device is lost",))
        for config in (BASELINE, batch(4))
    ]
    decided = decide(rank(records, OBJECTIVE, BASELINE), OBJECTIVE, fresh=fresh)
    assert decided.status == "undecided"
    assert decided.record is not None and decided.record.config == batch(4)
    assert decided.reasons == (
        "none of the finalists could be measured again", "the device is lost",
    )  # fmt: skip


def test_an_interval_that_says_nothing_is_not_written_out(
    make_trial: Trial, make_comparison: Pairs
) -> None:
    records = [make_trial(BASELINE, throughput=100), make_trial(batch(4), throughput=400)]
    wide = replace(
        make_comparison(batch(4), 2.0), ratio_ci=(0.00408, 1170.0), pair_ratios=(0.5, 8.0)
    )
    decided = decide(
        rank(records, OBJECTIVE, BASELINE), OBJECTIVE, fresh=records, comparisons=[wide]
    )
    assert decided.reasons[0] == (
        "a gain over the baseline is not shown: "
        "99 % interval wider than a factor of 1,000, from 2 pairs"
    )


# --- noise -------------------------------------------------------------------------------------


def disturbed(record: TrialRecord, **measured: object) -> TrialRecord:
    assert record.measurement is not None
    measurement = replace(record.measurement, trust="noisy: a neighbour", **measured)  # type: ignore[arg-type]
    return replace(record, measurements=(measurement,))


def test_a_disturbed_trial_gets_a_seat_if_it_would_be_among_the_best_without(
    make_trial: Trial,
) -> None:
    best, second = make_trial(batch(4), throughput=1000), make_trial(batch(6), throughput=900)
    slowed = make_trial(batch(8), throughput=700)
    quiet = rank([best, second, slowed], OBJECTIVE, BASELINE)
    assert {r.config for r in candidates(quiet, OBJECTIVE, 2)} >= {batch(4), batch(6)}
    for signs in ({"run_queue_wait_ratio": 0.4}, {"canary_ratio": 0.6}):
        ranking = rank([best, second, disturbed(slowed, **signs)], OBJECTIVE, BASELINE)
        assert [r.config for r in ranking.ranked] == [batch(4), batch(6), batch(8)]
        assert candidates(ranking, OBJECTIVE, 2)[0].config == batch(8)  # 700 / 0.6 > 1000


def test_noise_that_decides_between_two_is_no_decision(
    make_trial: Trial, make_comparison: Pairs
) -> None:
    base = make_trial(BASELINE, throughput=100)
    small, large = make_trial(batch(4), throughput=300), make_trial(batch(8), throughput=600)
    ranking = rank([base, small, large], OBJECTIVE, BASELINE)
    unsure = replace(large, verdict=replace(large.verdict, outcome=Outcome.UNDECIDED))
    pairs = [make_comparison(batch(4), 3.0), make_comparison(batch(8), 6.0)]

    def decided(rival: TrialRecord) -> Recommendation:
        return decide(ranking, OBJECTIVE, fresh=[base, small, rival], comparisons=pairs)

    quiet = decided(unsure)
    assert quiet.status == "confirmed" and "promises 6.00" in quiet.reasons[-1]
    assert decided(disturbed(unsure, run_queue_wait_ratio=0.1)).status == "confirmed"
    noisy = decided(disturbed(unsure, run_queue_wait_ratio=0.3))
    assert noisy.record is not None and noisy.record.config == batch(4)
    assert noisy.status == "undecided"
    assert "promises 6.00" in noisy.reasons[0] and "a neighbour" in noisy.reasons[0]
    assert "when the machine is quiet" in noisy.reasons[0]


def test_a_limit_that_noise_may_have_broken_keeps_nobody_from_the_proof(make_trial: Trial) -> None:
    best = make_trial(batch(4), throughput=1000)
    over = make_trial(batch(8), throughput=900, p99_s=0.025, outcome=Outcome.UNDECIDED)
    assert [
        r.config for r in candidates(rank([best, over], OBJECTIVE, BASELINE), OBJECTIVE, 2)
    ] == [batch(4)]
    noisy = disturbed(over, run_queue_wait_ratio=0.3)
    chosen = candidates(rank([best, noisy], OBJECTIVE, BASELINE), OBJECTIVE, 2)
    assert [r.config for r in chosen] == [batch(8), batch(4)]


# --- the search's model ------------------------------------------------------------------------


def believed(config: Config, score: float, probability: float, trials: int = 1) -> Belief:
    return Belief(
        config=config, score=score, score_sd=0.02, limit_probability=probability, trials=trials
    )


def test_the_models_pick_is_the_best_and_worth_counts_a_broken_limit_as_nothing(
    make_trial: Trial,
) -> None:
    lucky = make_trial(batch(16), number=1, throughput=2000, p99_s=0.0199)
    steady = make_trial(batch(8), number=2, throughput=1500)
    open_ = make_trial(batch(12), number=3, throughput=1800, p99_s=0.021)
    hopeless = make_trial(batch(64), number=4, throughput=4000, p99_s=0.080)
    beliefs = (
        believed(batch(64), 8.3, 0.001),
        believed(batch(16), 7.5, 0.30),
        believed(batch(12), 7.5, 0.80),
        believed(batch(8), 7.3, 0.97),
    )
    insight = Insight(beliefs=beliefs, best=beliefs[3], confidence=0.95)
    ranking = rank([lucky, steady, open_, hopeless], OBJECTIVE, BASELINE, insight)
    assert ranking.best is steady
    assert hopeless not in ranking.ranked
    chosen = candidates(ranking, OBJECTIVE, 2)
    assert {r.config for r in chosen} == {batch(8), batch(12)}
    decided = decide(ranking, OBJECTIVE)
    assert (decided.status, decided.record) == ("unconfirmed", steady)


def test_a_guess_at_what_noise_took_is_proven_but_never_put_before_a_better_figure(
    make_trial: Trial,
) -> None:
    """The model takes the disturbed ones for 3375 and 3230; the figures are all there is."""
    best = make_trial(batch(16), throughput=3000)
    slowed = disturbed(make_trial(batch(12), throughput=2700), canary_ratio=0.8)
    slower = disturbed(make_trial(batch(8), throughput=2100), canary_ratio=0.65)
    beliefs = (
        believed(batch(12), 8.12, 0.9999),
        believed(batch(8), 8.08, 0.9999),
        believed(batch(16), 8.0, 0.9998),
    )
    insight = Insight(beliefs=beliefs, best=beliefs[0], confidence=0.95)
    ranking = rank([best, slowed, slower], OBJECTIVE, BASELINE, insight)
    assert decide(ranking, OBJECTIVE).record is best
    assert {r.config for r in candidates(ranking, OBJECTIVE, 2)} == {batch(12), batch(16)}
    assert {r.config for r in candidates(ranking, OBJECTIVE, 1)} == {batch(12), batch(16)}
    # What is less sure to hold its limits has to wait for the proof.
    unsure = replace(insight, beliefs=(*beliefs[:2], replace(beliefs[2], limit_probability=0.96)))
    assert rank([best, slowed, slower], OBJECTIVE, BASELINE, unsure).best is slowed
    # And a quiet trial's luck is no reason to leave the model's pick.
    quiet = make_trial(batch(12), throughput=2700)
    assert rank([best, quiet, slower], OBJECTIVE, BASELINE, insight).best is quiet


def test_without_a_pick_nothing_is_promised(make_trial: Trial) -> None:
    record = make_trial(batch(16), throughput=2000, p99_s=0.0199)
    insight = Insight(beliefs=(believed(batch(16), 7.6, 0.62),), confidence=0.95)
    decided = decide(rank([record], OBJECTIVE, BASELINE, insight), OBJECTIVE)
    assert decided.status == "undecided"
    assert decided.record is record
    assert "probability of 62 %" in decided.reasons[0]
    assert "needs 95 %" in decided.reasons[0]


def test_of_repeats_the_middle_one_is_shown_and_a_fresh_measurement_speaks_for_itself(
    make_trial: Trial,
) -> None:
    repeats = [
        make_trial(batch(8), number=n, throughput=t, p99_s=p)
        for n, (t, p) in enumerate([(1000, 0.018), (1100, 0.019), (1050, 0.0205)])
    ]
    belief = believed(batch(8), 7.0, 0.96, trials=3)
    insight = Insight(beliefs=(belief,), best=belief, confidence=0.95)
    assert rank(repeats, OBJECTIVE, BASELINE, insight).ranked == (repeats[0],)
    refused = make_trial(batch(8), throughput=1000, p99_s=0.023, phase="confirm")
    assert rank([refused], OBJECTIVE, BASELINE, insight).ranked == ()
