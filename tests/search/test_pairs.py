"""Pairs of fresh processes: when they end, what failures do, what an interruption leaves."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from search_fakes import INFO, FakeLauncher, make_space, record_of, served, use_fakes

from autotune.core.errors import OutOfMemory, TrialCrashed
from autotune.core.records import Config, WorkloadSpec
from autotune.measure.paired import LOOKS, Rule
from autotune.search import pairs as pairs_module
from autotune.search import rounds
from autotune.search.pairs import MAX_RETRIES, Pairs, measure_pairs
from autotune.search.rounds import Contestant, Entrant

FAST, SLOW = Config(batch_size=8, instance_count=2), Config(batch_size=4)
GATE = Rule(alpha=0.0002, gate=True, looks=len(LOOKS))
PLAIN = Rule(looks=len(LOOKS))


def sides(*configs: Config) -> tuple[Contestant, Contestant]:
    first, second = (
        Contestant(entrant=Entrant(record=record_of(n, c)), space=make_space(), info=INFO)
        for n, c in enumerate(configs)
    )
    return first, second


def run(rule: Rule = PLAIN, *configs: Config, **options: Any) -> Pairs:
    chosen = {"metric": "throughput", "duration_s": 1.0, **options}
    return measure_pairs(sides(*(configs or (FAST, SLOW))), FakeLauncher(), rule, **chosen)


def test_a_clear_difference_is_settled_at_the_first_look(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = use_fakes(served, monkeypatch, spread=0.02)
    pairs = run()
    assert len(pairs.log_ratios) == LOOKS[0]
    assert pairs.stopped == ""
    truth = served(FAST)["throughput_items_per_s"] / served(SLOW)["throughput_items_per_s"]
    assert math.exp(sum(pairs.log_ratios) / LOOKS[0]) == pytest.approx(truth, rel=0.05)
    # The opening order alternates, and both are opened afresh for every pair.
    assert opened == [FAST, SLOW, SLOW, FAST] * (LOOKS[0] // 2)


@pytest.mark.parametrize(("kind", "most"), [("server", 1), ("command", 1), ("torch", 2)])
def test_what_may_take_the_whole_device_never_stands_beside_the_other(
    kind: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_fakes(served, monkeypatch)
    opened, live, seen = rounds.open_session, [0], [0]

    @contextmanager
    def counted(*given: Any, **named: Any) -> Iterator[Any]:
        with opened(*given, **named) as session:
            live[0] += 1
            seen[0] = max(seen[0], live[0])
            yield session
            live[0] -= 1

    monkeypatch.setattr(rounds, "open_session", counted)
    ours, theirs = sides(FAST, SLOW)
    outside = replace(make_space(), workload=WorkloadSpec(kind=kind))
    pairs = measure_pairs(
        (replace(ours, space=outside), theirs),
        FakeLauncher(),
        PLAIN,
        metric="throughput",
        duration_s=1.0,
    )
    assert len(pairs.log_ratios) >= LOOKS[0] and not pairs.failures
    assert seen == [most] and pairs.together == (most == 2)
    assert pairs.notes == []


def test_less_of_a_latency_is_better(monkeypatch: pytest.MonkeyPatch) -> None:
    use_fakes(served, monkeypatch)
    pairs = run(PLAIN, Config(batch_size=2), Config(batch_size=8), metric="latency_p99")
    assert min(pairs.log_ratios) > 0


def test_noise_asks_for_more_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    use_fakes(served, monkeypatch, spread=0.05)
    pairs = run(GATE, Config(batch_size=8), Config(batch_size=12))
    assert LOOKS[0] < len(pairs.log_ratios) <= LOOKS[-1]
    assert len(pairs.log_ratios) in LOOKS


def test_what_noise_hides_ends_unsettled(monkeypatch: pytest.MonkeyPatch) -> None:
    use_fakes(served, monkeypatch, spread=2.0)
    pairs = run(GATE, Config(batch_size=8), Config(batch_size=12))
    assert len(pairs.log_ratios) == LOOKS[-1]
    assert pairs.stopped == f"{LOOKS[-1]} pairs did not settle it"


def test_the_time_given_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    use_fakes(served, monkeypatch, spread=2.0)
    launcher = FakeLauncher()
    pairs = measure_pairs(
        sides(FAST, SLOW), launcher, GATE, metric="throughput", duration_s=1.0, time_s=21.0
    )
    assert len(pairs.log_ratios) == 10  # two seconds each
    assert launcher.now_s() <= 21.0
    assert pairs.stopped == "the time given allowed 10 pairs"


def failing(times: int, error: Exception) -> Callable[[Config], Any]:
    left = [times]

    def behave(config: Config) -> Any:
        if config == FAST and left[0] > 0:
            left[0] -= 1
            return error
        return served(config)

    return behave


def test_an_accident_costs_a_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    use_fakes(failing(MAX_RETRIES, TrialCrashed("killed by SIGSEGV")), monkeypatch)
    pairs = run()
    assert len(pairs.log_ratios) == LOOKS[0]
    assert pairs.failures == {}
    assert pairs.notes == ["a pair was measured again, since A failed: killed by SIGSEGV"] * 2


def test_a_side_that_keeps_failing_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    use_fakes(failing(99, TrialCrashed("killed by SIGSEGV", log_tail="last words")), monkeypatch)
    pairs = run()
    assert pairs.log_ratios == []
    assert list(pairs.failures) == [0]
    assert pairs.failures[0].log_tail == "last words"
    assert pairs.pool(0) is None


def test_what_does_not_fit_together_takes_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    use_fakes(failing(1, OutOfMemory("full")), monkeypatch)
    pairs = run()
    assert not pairs.together
    assert len(pairs.log_ratios) == LOOKS[0]


def test_a_figure_that_cannot_be_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def behave(config: Config) -> Any:
        rate = {} if config == SLOW else served(config)
        return {**rate, "latency_p99_s": 0.001, "throughput_items_per_s": rate.get("x", 0.0)}

    use_fakes(behave, monkeypatch)
    assert sorted(run().failures) == [0, 1]


def test_an_interruption_leaves_the_pairs_that_were_complete(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use_fakes(served, monkeypatch)
    inner, calls = pairs_module.run_side_by_side, []

    def interrupted(*words: Any, **options: Any) -> Any:
        calls.append(0)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return inner(*words, **options)

    monkeypatch.setattr(pairs_module, "run_side_by_side", interrupted)
    pairs = Pairs()
    with pytest.raises(KeyboardInterrupt):
        run(into=pairs)
    assert len(pairs.log_ratios) == 3


def test_sides_may_be_the_same_configuration_in_two_spaces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use_fakes(served, monkeypatch)
    a, b = sides(FAST, FAST)
    b = replace(b, space=make_space(study="other"))
    pairs = measure_pairs((a, b), FakeLauncher(), PLAIN, metric="throughput", duration_s=1.0)
    assert pairs.log_ratios == [0.0] * LOOKS[0]
