from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from search_fakes import make_space, parameters, served

from autotune.core.codec import from_json_dict, to_json_dict
from autotune.core.objective import Limit, Objective
from autotune.core.outcomes import Outcome
from autotune.core.records import Config, Measurement, TrialRecord, Verdict, WorkloadSpec
from autotune.search.advised import with_advice
from autotune.search.grid import Attempt
from autotune.search.sampler import make_sampler
from autotune.search.warm_start import (
    MAX_TRIALS,
    TURNS,
    Advice,
    PastStudy,
    PastTrial,
    conditions_of,
    differing,
    nearest_past,
    past_of,
)
from autotune.space.search_space import SearchSpace, settled

FINGERPRINT = {
    "workload": "torch /home/someone/models.py:rank",
    "workload options": "password=hunter2",
    "precision": "float32",
    "device": "cpu: 2 cores",
    "limits.latency_p99": "0.02",
    "trial": "2 s, seed 0",
}


def space_with(**changes: object) -> SearchSpace:
    return settled(make_space(sampler="auto", **changes))  # type: ignore[arg-type]


def record(
    number: int, config: Config, factor: float = 1.0, outcome: Outcome = Outcome.OK
) -> TrialRecord:
    """A trial of the fake server, its throughput times `factor`."""
    figures = served(config)
    figures["throughput_items_per_s"] *= factor
    return TrialRecord(
        number=number,
        config=config,
        phase="search",
        verdict=Verdict(outcome=outcome, objectives={"throughput_items_per_s": 1.0}),
        measurements=(Measurement(**figures),) if outcome.is_measured else (),  # type: ignore[arg-type]
    )


def past_study(space: SearchSpace, count: int = 16) -> PastStudy:
    configs = list(space.configs())[:: max(1, space.allowed_count(1000) // count)]
    records = [record(i, config) for i, config in enumerate(configs)]
    past = past_of(space, FINGERPRINT, records, ended_at_s=100.0)
    assert past is not None
    return past


# --- what is kept ------------------------------------------------------------------------------


def test_nothing_secret_and_no_path_is_kept() -> None:
    params = parameters(batch_size=(1, 2, 4), **{"env.TOKEN": ("s3cret",)})
    space = space_with(
        params=params,
        workload=WorkloadSpec(kind="torch", model="/home/someone/models.py:rank"),
    )
    records = [record(i, c) for i, c in enumerate(space.configs())]
    past = past_of(space, FINGERPRINT, records, ended_at_s=0.0)
    assert past is not None
    kept = repr(past)
    for secret in ("hunter2", "s3cret", "someone"):
        assert secret not in kept
    other = replace(space, params=parameters(batch_size=(1, 2, 4), **{"env.TOKEN": ("another",)}))
    assert differing(past, conditions_of(other, FINGERPRINT)) == ("fixed parameters",)


def test_noise_is_taken_out_of_what_is_kept_and_compared() -> None:
    space = space_with()
    quiet = [record(i, c) for i, c in enumerate(space.configs())]
    noisy = []
    for trial in quiet:
        figures = trial.measurements[0]
        slowed = replace(
            figures,
            throughput_items_per_s=0.7 * (figures.throughput_items_per_s or 0.0),
            latency_p99_s=(figures.latency_p99_s or 0.0) / 0.7,
            run_queue_wait_ratio=0.3,
            trust="noisy: something else ran",
        )
        noisy.append(replace(trial, measurements=(slowed,)))
    past = past_of(space, FINGERPRINT, noisy, ended_at_s=0.0)
    clean = past_of(space, FINGERPRINT, quiet, ended_at_s=0.0)
    assert past is not None and clean is not None
    for now, then in zip(past.trials, clean.trials, strict=True):
        for name in ("throughput_items_per_s", "latency_p99_s"):
            assert now.figures[name] == pytest.approx(then.figures[name])
    advice = Advice(past, space, ())
    assert advice.agrees(quiet) is True and advice.agrees(noisy) is True


def test_a_long_study_is_kept_in_part_its_best_first() -> None:
    space = space_with(params=parameters(batch_size=tuple(range(1, 400))))
    records = [record(i, c) for i, c in enumerate(space.configs())]
    past = past_of(space, FINGERPRINT, records, ended_at_s=0.0)
    assert past is not None and len(past.trials) <= MAX_TRIALS
    sizes = [trial.config.batch_size for trial in past.trials]
    assert sizes[: MAX_TRIALS // 2] == list(range(1, MAX_TRIALS // 2 + 1))
    assert max(sizes) > 380


def test_a_study_kept_by_the_first_version_still_loads() -> None:
    text = (Path(__file__).parents[1] / "golden" / "past_v1.json").read_text("utf-8")
    past = from_json_dict(PastStudy, json.loads(text))
    assert past.study == "a" and past.best == Config(
        batch_size=768, instance_count=3, cores_per_instance="12|24", batched_h2d=True
    )
    assert {t.outcome for t in past.trials} >= {Outcome.OK, Outcome.OVER_LIMIT, Outcome.OOM}
    assert past.trials[0].figures["throughput_items_per_s"] > 1e6
    assert from_json_dict(PastStudy, to_json_dict(past)) == past


def test_a_study_with_hardly_a_figure_advises_nobody() -> None:
    space = space_with()
    lone = [record(0, space.baseline), record(1, Config(batch_size=32), outcome=Outcome.OOM)]
    assert past_of(space, FINGERPRINT, lone, ended_at_s=0.0) is None


# --- which study is like this one --------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("trial", "5 s, seed 9", ()),
        ("precision", "bfloat16", ("precision",)),
        ("limits.latency_p99", "0.01", ("limits.latency_p99",)),
        ("device", "cpu: 64 cores", ("device",)),
        ("device", "npu: Atlas", None),
        ("workload", "torch other.py:rank", None),
    ],
)
def test_likeness(name: str, value: str, expected: tuple[str, ...] | None) -> None:
    past = PastStudy(study="old", conditions=FINGERPRINT, ended_at_s=0.0, trials=())
    assert differing(past, {**FINGERPRINT, name: value}) == expected


def test_another_command_line_is_another_model() -> None:
    conditions = {**FINGERPRINT, "workload": "command", "workload options": "abc"}
    past = PastStudy(study="old", conditions=conditions, ended_at_s=0.0, trials=())
    assert differing(past, conditions) == ()
    assert differing(past, {**conditions, "workload options": "def"}) is None


def test_the_most_similar_study_is_taken_then_the_latest() -> None:
    def past(study: str, ended_at_s: float, **changes: str) -> PastStudy:
        conditions = {**FINGERPRINT, **changes}
        return PastStudy(study=study, conditions=conditions, ended_at_s=ended_at_s, trials=())

    pasts = [
        past("newest", 30.0, precision="int8"),
        past("old", 10.0),
        past("newer", 20.0),
        past("foreign", 40.0, workload="torch x"),
    ]
    found = nearest_past(pasts, FINGERPRINT)
    assert found is not None and found.study == "newer"
    assert nearest_past(pasts[3:], FINGERPRINT) is None


# --- what it advises ---------------------------------------------------------------------------


def test_its_best_under_the_new_limit_is_tried_after_the_baseline() -> None:
    space = space_with()
    strict = replace(
        space,
        objective=Objective(name="x", limits=(Limit(metric="latency_p99", bound=0.0065),)),
    )
    past = past_study(space, count=24)
    for wanted, largest in ((space, 8), (strict, 4)):
        advice = Advice(past, wanted, ())
        sampler = with_advice(make_sampler(wanted, "mechanistic", 0), advice, wanted.baseline)
        first = sampler.propose([])
        assert first == wanted.baseline
        second = sampler.propose([Attempt(first, record(0, first))])
        assert second is not None
        assert (second.batch_size, second.instance_count) == (largest, 2)
        assert second.batched_h2d


def test_further_advice_is_taken_only_if_its_figures_hold_up() -> None:
    space = space_with()
    advice = Advice(past_study(space, count=12), space, ())
    first = advice.best
    assert first is not None
    tried = [space.baseline, first]
    right = [record(i, c, 1.05) for i, c in enumerate(tried)]
    wrong = [record(0, space.baseline), record(1, first, 0.3)]
    second = advice.next(2, tried, right)
    assert advice.agrees(right) is True and second not in (None, *tried)
    assert advice.turns_taken(2, right) == 1
    assert advice.agrees(wrong) is False and advice.next(2, tried, wrong) is None
    failed = [record(0, space.baseline), record(1, first, outcome=Outcome.OOM)]
    assert advice.agrees(failed) is False
    # Still running elsewhere: then the search goes on by itself.
    assert advice.agrees([]) is None and advice.next(2, tried, []) is None


def noisy(trial: TrialRecord) -> TrialRecord:
    measurement = replace(trial.measurements[0], trust="noisy: something else ran")
    return replace(trial, measurements=(measurement,))


def test_noisy_trials_may_disagree_more() -> None:
    space = space_with()
    configs = list(space.configs())[::4]
    past = past_study(space, count=24)
    apart = [record(i, c, 0.3 + 0.7 * (i % 2)) for i, c in enumerate(configs)]
    advice = Advice(past, space, ())
    assert advice.agrees(apart) is False
    assert advice.agrees([noisy(trial) for trial in apart]) is True


def test_what_holds_with_room_to_spare_comes_second() -> None:
    space = space_with()  # a batch of 12 has 14 ms of 14.5, one of 8 has 10
    space = replace(space, params=parameters(batch_size=(1, 2, 4, 8, 12, 16)))
    past = replace(past_study(space), best=Config(batch_size=12, instance_count=1))
    advice = Advice(past, space, ())
    assert advice.best == space.baseline.changed(batch_size=12)
    tried = [space.baseline, advice.best]
    records = [record(i, c) for i, c in enumerate(tried)]
    assert advice.next(2, tried, records) == space.baseline.changed(batch_size=8)


def test_advice_and_the_search_itself_take_turns() -> None:
    space = space_with(params=parameters(batch_size=(1, 2, 4, 8, 16, 32), instance_count=(1, 2, 3)))
    advice = Advice(past_study(space), space, ())
    inner = make_sampler(space, "mechanistic", 0)
    sampler = with_advice(inner, advice, space.baseline)
    history: list[Attempt] = []
    own = 0
    for begun in range(12):
        config = sampler.propose(history)
        assert config is not None
        beside = advice.turns_taken(begun, [a.record for a in history if a.record])
        own += config == inner.propose(history, beside=beside)
        history.append(Attempt(config, record(begun, config)))
    assert own >= 12 - len(TURNS)
    assert advice.turns_taken(12, [a.record for a in history if a.record]) == len(TURNS)


def test_a_common_factor_is_no_disagreement_where_conditions_differ() -> None:
    space = space_with()
    past = past_study(space, count=24)
    configs = [space.baseline, *list(space.configs())[5:20:5]]
    slower = [record(i, c, 0.6) for i, c in enumerate(configs)]
    advice = Advice(past, space, ("version of torch",))
    assert advice.agrees(slower) is True
    factors = advice._common_factors(slower)
    assert 0.6 <= factors["throughput_items_per_s"] < 0.65
    assert factors["latency_p99_s"] == pytest.approx(1.0)


def test_advice_that_comes_late_is_not_taken() -> None:
    space = space_with()
    advice = Advice(past_study(space), space, ())
    tried = [c for c in space.configs() if c != advice.best][: TURNS[-1] + 1]
    assert advice.next(1, tried[:1], []) == advice.best
    records = [record(i, c) for i, c in enumerate(tried)]
    assert advice.agrees(records) and advice.next(len(tried), tried, records) is None


def test_trials_outside_the_new_space_say_nothing() -> None:
    old = space_with()
    narrow = space_with(params=parameters(batch_size=(3, 20, 300), instance_count=(4,)))
    advice = Advice(past_study(old), narrow, ("fixed parameters",))
    assert advice.best is None
    wide = space_with(params=parameters(batch_size=(3, 6, 20), instance_count=(1, 2)))
    config = Advice(past_study(old), wide, ()).best
    assert config is not None and wide.contains(config)  # a batch of 8 then stands for 6 now


def test_damaged_trials_are_no_obstacle() -> None:
    space = space_with()
    odd = PastTrial(
        config=Config(batch_size=2), outcome=Outcome.OK, figures={"throughput_items_per_s": 0.0}
    )
    nonsense = PastTrial(
        config=Config(batch_size=-5, cores_per_instance="?"), outcome=Outcome.OK, figures={"x": 1.0}
    )
    past = replace(past_study(space), trials=(odd, nonsense))
    best = Advice(past, space, ()).best
    assert best is None or space.contains(best)


@pytest.mark.parametrize("name", ["random", "grid"])
def test_random_and_grid_follow_no_advice(name: str) -> None:
    space = space_with()
    advice = Advice(past_study(space), space, ())
    sampler = make_sampler(space, name, 0)
    assert with_advice(sampler, advice, space.baseline) is sampler
    mechanistic = make_sampler(space, "mechanistic", 0)
    assert with_advice(mechanistic, advice, space.baseline) is not mechanistic
