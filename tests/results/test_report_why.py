from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from autotune.core.records import Config, TrialRecord
from autotune.results.ranking import rank
from autotune.results.recommend import decide
from autotune.results.study_result import StudyResult
from autotune.results.why import Why, what_it_won_by, why

Make = Callable[..., StudyResult]
Trial = Callable[..., TrialRecord]
BASELINE = Config(cores_per_instance=1)


def study_of(make_study: Make, *records: TrialRecord) -> StudyResult:
    result = make_study()
    objective = result.facts.objective
    decided = decide(rank(records, objective, BASELINE), objective)
    return replace(result, records=records, recommendation=decided)


def test_a_changed_setting_is_told_from_two_trials_that_differ_in_it_alone(
    make_study: Make, make_trial: Trial
) -> None:
    one, two = BASELINE.changed(batch_size=48), BASELINE.changed(batch_size=48, instance_count=2)
    result = study_of(
        make_study,
        make_trial(BASELINE, number=0, throughput=100.0),
        make_trial(one, number=1, throughput=1000.0),
        make_trial(two, number=2, throughput=1680.0),
    )
    assert result.config == two
    batch, instances = why(result).effects
    assert batch.startswith("batch_size 1 → 48: 10.0× the throughput at instance_count=1")
    assert instances.startswith("instance_count 1 → 2: 1.68× the throughput at batch_size=48")
    assert instances.endswith("(trials 1 and 2).")


def test_the_pair_nearest_to_the_winner_is_told_and_the_range_of_all(
    make_study: Make, make_trial: Trial
) -> None:
    records = [make_trial(BASELINE, number=0, throughput=100.0)]
    for number, (batch, gain) in enumerate(((2, 1.2), (48, 1.5), (64, 1.9)), 1):
        config = BASELINE.changed(batch_size=batch)
        records.append(make_trial(config, number=2 * number, throughput=50.0 * batch))
        config = config.changed(instance_count=2)
        rate = 50.0 * batch * gain
        records.append(make_trial(config, number=2 * number + 1, throughput=rate))
    effect = why(study_of(make_study, *records)).effects[1]
    assert "instance_count 1 → 2: 1.90× the throughput at batch_size=64" in effect
    assert "over all 3 such pairs 1.20 to 1.90 (trials 6 and 7)." in effect


def test_a_setting_that_no_two_trials_isolate_is_said_to_be_unknown(
    make_study: Make, make_trial: Trial
) -> None:
    wide = BASELINE.changed(batch_size=48)
    both = wide.changed(instance_count=2, batched_h2d=True)
    effects = why(
        study_of(
            make_study,
            make_trial(BASELINE, throughput=100.0),
            make_trial(wide, throughput=1000.0),
            make_trial(both, throughput=2000.0),
        )
    ).effects
    assert effects[0].startswith("batch_size 1 → 48")
    assert effects[1:] == (
        "What instance_count or batched_h2d did by itself is not known: no two trials show it.",
    )


def test_overlapping_intervals_are_said(make_study: Make, make_trial: Trial) -> None:
    far = BASELINE.changed(batch_size=2)
    effect = why(
        study_of(
            make_study, make_trial(BASELINE, throughput=100.0), make_trial(far, throughput=103.0)
        )
    ).effects[0]
    assert "intervals overlap" in effect
    clear = why(
        study_of(
            make_study, make_trial(BASELINE, throughput=100.0), make_trial(far, throughput=150.0)
        )
    ).effects[0]
    assert "overlap" not in clear


def test_nothing_is_said_where_the_records_show_nothing(
    make_study: Make, make_trial: Trial
) -> None:
    far = BASELINE.changed(batch_size=48, instance_count=2)
    lone = study_of(
        make_study, make_trial(BASELINE, throughput=100.0), make_trial(far, throughput=9.0e3)
    )
    assert lone.config == far
    assert why(lone) == Why()
    assert why(study_of(make_study, make_trial(BASELINE))) == Why()
    assert why(make_study(limit_s=0.0005)) == Why()


def test_it_always_says_what_the_configuration_won_by(make_study: Make) -> None:
    result = make_study()
    text = what_it_won_by(result)
    compared = {c.config: c.ratio for c in result.recommendation.comparisons}
    assert result.config is not None
    assert f"it is the fastest of those shown to hold: {compared[result.config]:.1f}×" in text
    assert "; the next, batch_size=" in text
    searched = what_it_won_by(make_study(confirmed=False))
    assert "it is expected to be the best" in searched and "/s; the next, batch_size=" in searched
    base = replace(result.facts, baseline=result.config)
    kept = what_it_won_by(replace(result, facts=base))
    assert kept == "None of the 32 trials was shown to be better than the baseline."
    assert what_it_won_by(make_study(limit_s=0.0005)) == ""


def test_what_the_proof_shows_is_said_by_its_figures(make_study: Make) -> None:
    result = make_study()
    winner, base = result.config, result.facts.baseline
    assert winner is not None
    compared = {c.config: c.ratio for c in result.recommendation.comparisons}
    said = why(result)
    alone = next(c for c in compared if c.changed(batch_size=base.batch_size) == base)
    whole = "\n".join(said.proven)
    assert (
        f"batch_size 1 → {alone.batch_size}: {compared[alone]:.1f}× the throughput (95 %" in whole
    )
    assert not any(effect.startswith("batch_size") for effect in said.effects)
