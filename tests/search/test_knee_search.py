"""Which batch size the search for a knee asks for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.core.errors import UsageError
from autotune.core.objective import Objective
from autotune.core.outcomes import Outcome
from autotune.core.records import (
    Config,
    Load,
    Measurement,
    Scalar,
    TrialRecord,
    Verdict,
    WorkloadSpec,
)
from autotune.search.grid import Attempt
from autotune.search.knee_search import KneeSampler, check_knee, families
from autotune.search.sampler import make_sampler
from autotune.space.rules import Rule
from autotune.space.search_space import Parameter, SearchSpace, settled

OBJECTIVE = Objective(name="knee", knee_share=0.95)


def a_space(
    *rules: str, baseline: Config | None = None, **others: tuple[Scalar, ...]
) -> SearchSpace:
    params = {"batch_size": (1, 2, 4, 8, 16, 32, 64), **others}
    return settled(
        SearchSpace(
            study="knee",
            workload=WorkloadSpec(kind="simulated"),
            device="simulated",
            objective=OBJECTIVE,
            params=tuple(Parameter(name=n, choices=c) for n, c in params.items()),
            rules=tuple(Rule(text=rule) for rule in rules),
            wanted_baseline=baseline or Config(),
        )
    )


def done(config: Config, number: int, outcome: Outcome = Outcome.OK) -> Attempt:
    """A server of 1 ms and 50 µs per item."""
    rate = config.batch_size / (1e-3 + 5e-5 * config.batch_size)
    figures = (Measurement(throughput_items_per_s=rate),) if outcome.is_measured else ()
    record = TrialRecord(
        number=number,
        config=config,
        phase="search",
        verdict=Verdict(outcome=outcome),
        measurements=figures,
    )
    return Attempt(config, record)


def sizes_asked(space: SearchSpace) -> list[Config]:
    sampler = KneeSampler(space)
    history: list[Attempt] = []
    while (config := sampler.propose(history)) is not None:
        assert len(history) < 40
        history.append(done(config, len(history)))
    return [attempt.config for attempt in history]


def test_it_is_what_auto_means_for_a_knee() -> None:
    assert make_sampler(a_space(), "auto", 0).name == "knee"
    assert make_sampler(a_space(), "random", 0).name == "random"


def test_the_ends_come_first_and_no_size_twice() -> None:
    asked = [config.batch_size for config in sizes_asked(a_space())]
    assert asked[:2] == [1, 64]
    assert len(set(asked)) == len(asked) < 7


def test_what_others_measure_is_not_asked_for_again() -> None:
    sampler = KneeSampler(a_space(instance_count=(1, 2)))
    history = [done(Config(), 0), Attempt(Config(batch_size=64))]
    config = sampler.propose(history)
    # Nothing is known of the curve while its end is being measured: the next curve begins.
    assert config == Config(instance_count=2)


def test_a_lost_trial_is_run_again_first() -> None:
    history = [done(Config(), 0), done(Config(batch_size=64), 1, Outcome.LOST)]
    assert KneeSampler(a_space()).propose(history) == Config(batch_size=64)


def test_a_baseline_in_the_middle_comes_first_all_the_same() -> None:
    asked = sizes_asked(a_space(baseline=Config(batch_size=8)))
    assert [config.batch_size for config in asked[:3]] == [8, 1, 64]


def test_rules_leave_sizes_and_curves_out() -> None:
    space = a_space("batch_size % micro_batch_count == 0", micro_batch_count=(1, 4, 8))
    found = {f.config.micro_batch_count: f.sizes for f in families(space)}
    assert found == {1: (1, 2, 4, 8, 16, 32, 64), 4: (4, 8, 16, 32, 64), 8: (8, 16, 32, 64)}
    few = a_space("instance_count * micro_batch_count == 4", instance_count=(1, 2, 4),
                  micro_batch_count=(1, 2, 4), baseline=Config(micro_batch_count=4))  # fmt: skip
    assert len(families(few)) == 3


def test_the_curves_nearest_to_the_baseline_come_first() -> None:
    space = a_space(instance_count=(1, 2), batched_h2d=(False, True))
    differing = [(f.config.instance_count == 2) + f.config.batched_h2d for f in families(space)]
    assert differing == [0, 1, 1, 2]


def test_a_space_without_a_knee_is_refused() -> None:
    fixed = replace(OBJECTIVE, load=Load(kind="constant", rate_per_s=100.0))
    with pytest.raises(UsageError, match="given rate"):
        check_knee(replace(a_space(), objective=fixed))
    sought = replace(OBJECTIVE, load=Load(kind="constant"))
    check_knee(replace(a_space(), objective=sought))
    with pytest.raises(UsageError, match="more than 8"):
        check_knee(a_space(instance_count=tuple(range(1, 10))))
