from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from autotune.core.outcomes import Outcome
from autotune.core.records import Config, TrialRecord
from autotune.results import words
from autotune.results.ranking import is_batch_only, rank
from autotune.results.recommend import decide
from autotune.results.study_result import StudyResult
from autotune.results.summary import figures, headline, reasons, standing, status_meaning
from autotune.results.words import trust_text

Make = Callable[..., StudyResult]
Trial = Callable[..., TrialRecord]


def test_an_undecided_study_never_says_use_this(make_study: Make) -> None:
    result = make_study()
    why = ("a gain is not shown", "30 s more would settle it")
    open_ = replace(result.recommendation, status="undecided", reasons=why)
    result = replace(result, recommendation=open_)
    assert headline(result) == "Best so far, not proven: a gain is not shown"
    assert reasons(result) == ["30 s more would settle it"]


def test_a_study_in_which_all_failed_names_the_error_and_no_limit(
    make_study: Make, make_trial: Trial
) -> None:
    result = make_study()
    error = "RuntimeError: shapes (12x64 and 32x1)"
    records = (
        make_trial(Config(), outcome=Outcome.CRASHED, reasons=(error,)),
        make_trial(Config(batch_size=2), outcome=Outcome.OOM, reasons=("no room",)),
        make_trial(Config(batch_size=4), outcome=Outcome.INTERRUPTED, reasons=("stopped",)),
    )
    objective = result.facts.objective
    nothing = decide(rank(records, objective, result.facts.baseline), objective)
    result = replace(result, records=records, recommendation=nothing)
    assert result.status == "failed"
    said = f"{headline(result)} {status_meaning(result)} {' '.join(reasons(result))}"
    assert error in said
    assert "limit" not in said and "infeasible" not in said


def test_the_trials_add_up_and_those_to_be_tried_again_stand_apart(
    make_study: Make, make_trial: Trial
) -> None:
    result = make_study()
    records = (
        *(make_trial(Config(batch_size=b)) for b in (1, 2, 4)),
        make_trial(Config(batch_size=8), outcome=Outcome.INTERRUPTED),
        make_trial(Config(batch_size=16), outcome=Outcome.LOST),
    )
    trials = dict(standing(replace(result, records=records)))["Trials"]
    assert trials == "3 of 32 (3 ok); not counted: 1 lost, 1 interrupted"


def test_no_gain_over_batch_alone_says_whether_any_was_tried(
    make_study: Make, make_trial: Trial
) -> None:
    result = make_study()
    base = result.facts.baseline
    baseline = make_trial(base, phase="baseline")
    both = make_trial(base.changed(batch_size=8, instance_count=2), throughput=900.0)
    slow = make_trial(base.changed(batch_size=8), outcome=Outcome.OVER_LIMIT)
    for records, said in (
        ((baseline, both), "no trial changed the batch size alone"),
        ((baseline, both, slow), "no other batch size alone held the limits"),
    ):
        objective = result.facts.objective
        decided = decide(rank(records, objective, base), objective)
        study = replace(result, records=records, recommendation=decided)
        shown = {figure.name: figure for figure in figures(study)}
        assert shown["Gain over batch size alone"].detail == said


def test_it_says_that_outputs_agree_and_who_was_refused(
    make_study: Make, make_trial: Trial
) -> None:
    result = make_study()
    assert "Outputs" not in dict(standing(result))
    records = tuple(
        replace(r, measurements=(replace(r.measurement, output_difference=2e-7),))
        if r.measurement
        else r
        for r in result.records
    )
    said = dict(standing(replace(result, records=records)))["Outputs"]
    assert said.startswith("as the baseline's, within 2e-07 of their size")
    wrong = make_trial(Config(batch_size=999), outcome=Outcome.WRONG_OUTPUT, reasons=("x",))
    said = dict(standing(replace(result, records=(*result.records, wrong))))["Outputs"]
    assert said == "1 trial refused for theirs"


def test_a_batch_only_finalist_without_time_is_not_said_to_have_failed(
    make_study: Make,
) -> None:
    study = make_study()
    base = study.facts.baseline
    kept = [r for r in study.recommendation.confirmations if not is_batch_only(r.config, base)]
    assert len(kept) < len(study.recommendation.confirmations)
    proof = replace(study.recommendation, confirmations=tuple(kept), against_batch_only=None)
    figure = next(f for f in figures(replace(study, recommendation=proof)) if "alone" in f.name)
    assert figure.figure == "not shown"
    assert figure.detail == "the batch-only configuration was not measured again"


def test_a_winner_that_was_proven_beside_no_rate_of_the_baseline(make_study: Make) -> None:
    result = make_study()
    record, baseline = result.recommendation.record, result.recommendation.baseline
    assert record is not None and baseline is not None and baseline.measurement is not None
    silent = replace(baseline.measurement, throughput_items_per_s=None)
    alone = replace(
        result.recommendation,
        status="unconfirmed",
        record=replace(record, phase="confirm"),
        baseline=replace(baseline, measurements=(silent,)),
        against_baseline=None,
    )
    shown = replace(result, recommendation=alone)
    assert "the limit holds; by how much it gains is not known" in status_meaning(shown)
    gain = next(f for f in figures(shown) if "baseline" in f.name)
    assert (gain.figure, gain.detail) == ("unknown", "the baseline's throughput is not known")
    searched = replace(alone, record=replace(record, phase="search"))
    assert "search alone" in status_meaning(replace(result, recommendation=searched))


def test_the_trust_line_says_what_an_open_limit_needs(make_trial: Trial) -> None:
    record = make_trial(Config())
    assert record.measurement is not None and trust_text(record) == "quiet"
    unsure = replace(record.verdict, outcome=Outcome.UNDECIDED, needed_s=12.0)
    assert trust_text(replace(record, verdict=unsure)) == "undecided: needs 12.0 s more"
    noisy = replace(record.measurement, trust="noisy: a neighbour")
    both = replace(record, verdict=unsure, measurements=(noisy,))
    assert trust_text(both) == "undecided: needs 12.0 s more; noisy: a neighbour"
    unknown = replace(record, verdict=replace(unsure, needed_s=None))
    assert "measure longer (trial.duration)" in trust_text(unknown)
    assert "measure longer (confirm.duration" in trust_text(replace(unknown, phase="confirm"))


def test_tokens_are_shown_where_items_have_lengths(make_study: Make) -> None:
    result = make_study()
    shown = result.recommendation.record
    assert shown is not None and shown.measurement is not None
    assert "Throughput, tokens/s" not in [figure.name for figure in figures(result)]
    measurement = replace(shown.measurement, throughput_tokens_per_s=12_345.0)
    record = replace(shown, measurements=(measurement,))
    result = replace(result, recommendation=replace(result.recommendation, record=record))
    (tokens,) = (figure for figure in figures(result) if "tokens" in figure.name)
    assert (tokens.figure, tokens.detail) == ("12,345", "padding not counted")


def test_small_ratios_keep_their_digits() -> None:
    assert words.factor_text(0.0186) == "0.0186×"
    assert words.factor_interval_text((0.0177, 0.0195)) == "0.0177 to 0.0195"
    assert words.factor_text(0.31) == "0.31×"
    assert words.factor_text(1e-12) == "0.000000×" and words.factor_text(0.0) == "0.00×"
