"""Proposals: the baseline first, never twice, everything once, the same for the same seed."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from search_fakes import LIMIT_S, make_space, parameters, record_of, served

from autotune.core.errors import UnavailableError, UsageError
from autotune.core.records import Config
from autotune.search import sampler as sampler_module
from autotune.search.grid import Attempt
from autotune.search.proposer import MAX_REPEATS
from autotune.search.sampler import (
    MAX_LOST,
    MIN_BASIS,
    SAMPLERS,
    chosen,
    counts,
    make_sampler,
)
from autotune.space.search_space import Budget, SearchSpace


def run(space: SearchSpace, name: str, count: int, seed: int = 0, start: int = 0) -> list[Config]:
    """The first `count` proposals; a batch above 16 is over its limit, of 32 with 2 it is out."""
    history: list[Attempt] = []
    for number in range(count):
        sampler = make_sampler(space, name, seed)  # as if resumed after every trial
        config = sampler.propose(history)
        if config is None:
            break
        history.append(Attempt(config, record_of(number, config, outcome_of(config))))
    return [a.config for a in history]


def outcome_of(config: Config) -> str:
    if config.batch_size >= 32 and config.instance_count == 2:
        return "oom"
    return "over_limit" if served(config)["latency_p99_s"] > LIMIT_S else "ok"


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_sampler_tries_all_then_stops(name: str) -> None:
    space = make_space(trials=23)  # one less than there are, or auto would walk through the grid
    tried = run(space, name, 150)
    assert tried[0] == space.baseline
    assert len(set(tried)) == space.combination_count
    if name in ("auto", "mechanistic"):  # which may measure again, but not for ever
        assert max(Counter(tried).values()) <= MAX_REPEATS
    else:
        assert len(tried) == space.combination_count
    assert set(tried) == set(space.configs())


@pytest.mark.parametrize("name", ["auto", "gp", "tpe", "random", "mechanistic"])
def test_the_same_seed_gives_the_same_proposals(name: str) -> None:
    space = make_space(params=parameters(batch_size=tuple(range(1, 65)), instance_count=(1, 2, 3)))
    assert run(space, name, 16) == run(space, name, 16)
    if name in ("tpe", "random"):  # the others find the same best points, whatever the seed
        assert run(space, name, 16) != run(space, name, 16, seed=1)


def test_the_baseline_is_first_even_if_it_is_not_the_first_choice() -> None:
    baseline = Config(batch_size=8, instance_count=2)
    assert run(make_space(baseline=baseline), "grid", 1) == [baseline]


def test_gp_begins_with_doubled_batches_then_single_changes() -> None:
    space = make_space(
        params=parameters(
            batch_size=(1, 2, 3, 4, 6, 8, 12, 16), instance_count=(1, 2), batched_h2d=(False, True)
        )
    )
    tried = run(space, "gp", 7)
    assert [c.batch_size for c in tried[:5]] == [1, 2, 4, 8, 16]
    assert {(c.instance_count, c.batched_h2d) for c in tried[:5]} == {(1, False)}
    # 8 is the best of these that keeps the limit; one other parameter changes at a time.
    assert [(c.batch_size, c.instance_count, c.batched_h2d) for c in tried[5:7]] == [
        (8, 2, False),
        (8, 1, True),
    ]


def test_auto_sees_what_a_sweep_over_the_batch_alone_would_find() -> None:
    sizes = tuple(2**i for i in range(9))
    choices = parameters(batch_size=sizes, instance_count=(1, 2, 3, 4, 5))
    space = make_space(params=choices)
    tried = run(space, "auto", 4)
    assert [c.batch_size for c in tried] == [1, 4, 16, 64]
    assert {c.instance_count for c in tried} == {1}
    few = replace(space, budget=Budget(trials=6))
    assert make_sampler(few, "auto", 0)._batch_shares == (0.25,)


def test_probes_stop_at_a_batch_that_cannot_run() -> None:
    space = make_space()
    history = [Attempt(Config(), record_of(0, Config()))]
    for number, (batch, outcome) in enumerate([(2, "ok"), (4, "oom")], 1):
        config = Config(batch_size=batch)
        assert make_sampler(space, "gp", 0).propose(history) == config
        history.append(Attempt(config, record_of(number, config, outcome)))
    following = make_sampler(space, "gp", 0).propose(history)
    assert following is not None
    assert following.batch_size <= 2


def test_a_small_budget_keeps_half_for_the_model() -> None:
    space = make_space(budget=Budget(trials=4))
    assert make_sampler(space, "gp", 0)._probes == 2


def test_what_another_worker_runs_is_not_proposed() -> None:
    space = make_space(params=parameters(batch_size=(1, 2)))
    sampler = make_sampler(space, "random", 0)
    assert sampler.propose([Attempt(Config(), None)]) == Config(batch_size=2)
    assert sampler.propose([Attempt(Config(), None), Attempt(Config(batch_size=2), None)]) is None


def test_an_interrupted_configuration_comes_again_before_anything_new() -> None:
    space = make_space()
    stopped = Config(batch_size=16, batched_h2d=True)
    history = [
        Attempt(Config(), record_of(0, Config())),
        Attempt(stopped, record_of(1, stopped, "interrupted")),
        Attempt(Config(batch_size=2), record_of(2, Config(batch_size=2))),
    ]
    assert make_sampler(space, "random", 0).propose(history) == stopped
    history.append(Attempt(stopped, record_of(3, stopped)))
    assert make_sampler(space, "random", 0).propose(history) != stopped


def test_a_configuration_that_keeps_killing_its_worker_is_given_up() -> None:
    space = make_space(params=parameters(batch_size=(1, 2)))
    deadly = Config(batch_size=2)
    history = [Attempt(Config(), record_of(0, Config()))]
    for number in range(1, MAX_LOST + 1):
        assert make_sampler(space, "grid", 0).propose(history) == deadly
        history.append(Attempt(deadly, record_of(number, deadly, "lost")))
    assert make_sampler(space, "grid", 0).propose(history) is None
    assert sum(counts(a, history) for a in history) == 2


def test_a_crash_uses_its_configuration_up() -> None:
    space = make_space(params=parameters(batch_size=(1, 2)))
    history = [Attempt(Config(), record_of(0, Config(), "crashed"))]
    assert make_sampler(space, "grid", 0).propose(history) == Config(batch_size=2)


def test_trials_outside_a_changed_space_do_no_harm() -> None:
    old = make_space()
    history = [
        Attempt(c, record_of(n, c)) for n, c in enumerate(old.configs()) if c.batch_size <= 16
    ]
    narrower = make_space(
        params=parameters(batch_size=(1, 4, 64), instance_count=(1, 2), mode=("a", "b")),
        baseline=Config(extra=(("mode", "a"),)),
    )
    for name in SAMPLERS:
        config = make_sampler(narrower, name, 0).propose(history)
        assert config == narrower.baseline


@pytest.mark.timeout(120)
def test_a_huge_space_is_never_walked_through() -> None:
    values = tuple(range(1, 1001))
    space = make_space(params=parameters(batch_size=values, a=values, b=(0.0, 0.5, 1.0)))
    space = replace(space, baseline=Config(extra=(("a", 1), ("b", 0.0))))
    assert len(set(run(space, "auto", 14))) > 10


def test_the_model_finds_the_knee_of_a_simple_landscape() -> None:
    space = make_space(
        params=parameters(
            batch_size=tuple(range(1, 65)), instance_count=(1, 2, 3, 4), batched_h2d=(False, True)
        )
    )
    tried = run(space, "auto", 25)
    holding = [c for c in space.configs() if outcome_of(c) == "ok"]
    best = max(served(c)["throughput_items_per_s"] for c in holding)
    found = max(served(c)["throughput_items_per_s"] for c in tried if outcome_of(c) == "ok")
    assert found >= 0.97 * best


def test_names_and_missing_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="known: auto"):
        make_sampler(make_space(), "bayes", 0)
    monkeypatch.setattr(sampler_module, "_has", lambda package: False)
    with pytest.raises(UnavailableError, match="needs torch"):
        make_sampler(make_space(), "gp", 0)
    assert make_sampler(make_space(trials=20), "auto", 0).name == "mechanistic"


def test_auto_tries_the_whole_grid_where_that_is_cheaper_than_the_budget() -> None:
    space = make_space()  # 24 configurations
    assert chosen(space) == ("grid", "all 24 configurations fit into the budget")
    assert chosen(make_space(trials=23))[0] == "mechanistic"
    assert make_sampler(space, "auto", 0).name == "grid"
    assert make_sampler(space, "mechanistic", 0).name == "mechanistic"
    hurried, at_leisure = (replace(space, budget=Budget(time_s=s)) for s in (100.0, 400.0))
    assert chosen(hurried)[0] == "mechanistic"
    assert chosen(at_leisure)[0] == "grid"


def test_what_one_more_trial_is_expected_to_gain_falls() -> None:
    space = make_space(trials=20)
    history = [
        Attempt(c, record_of(i, c, outcome_of(c))) for i, c in enumerate(run(space, "auto", 20))
    ]
    sampler = make_sampler(space, "auto", 0)
    assert sampler.expected_gain(history[: MIN_BASIS - 1]) is None
    late = sampler.expected_gain(history)
    early = sampler.expected_gain([a for a in history if a.config.batch_size < 8] * 2)
    assert late is not None
    assert early is not None
    assert late < early
