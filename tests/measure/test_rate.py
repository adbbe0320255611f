"""The search for a rate: its plans, and what it finds on servers with declared call times."""

from __future__ import annotations

from dataclasses import replace

import pytest
from open_server import CallTime, jittered, run_open, serve_of

from autotune.core.clock import VirtualClock
from autotune.core.records import InstanceFacts, Plan, Samples
from autotune.measure.engine import items_of_calls, run_windows, to_samples
from autotune.measure.rate import MAX_RATES, Evidence, conclude, evaluate, next_plan
from autotune.measure.rate_target import RateGoal

GOAL = RateGoal(limit_s=20e-3, max_batch=16, window_s=20.0)


def answer(plan: Plan, time_s: CallTime, max_batch: int, slowdown: float = 1.0) -> Samples:
    if plan.load.is_open:
        return run_open(
            [lambda items: slowdown * time_s(items)],
            0.0,
            load=plan.load,
            duration_s=plan.windows[0].duration_s or 0.0,
            max_batch=max_batch,
            seed=plan.arrival_seed,
        )
    clock = VirtualClock()
    serve = serve_of(clock, time_s)
    windows, waits_s = run_windows(
        lambda call: serve(call, max_batch), clock, plan, base_s=0.0, serve=serve
    )
    items = items_of_calls(windows, plan, max_batch)
    return to_samples(windows, waits_s, items_per_call=items, facts=InstanceFacts(instance=0))


def search(goal: RateGoal, time_s: CallTime, slowdown: float = 1.0) -> list[Evidence]:
    history: list[Evidence] = []
    while (plan := next_plan(goal, history)) is not None:
        samples = answer(plan, time_s, goal.max_batch, slowdown)
        history.append(evaluate(goal, history, plan, samples))
        assert len(history) < 30
    return history


def share_over(time_s: CallTime, goal: RateGoal, rate: float, duration_s: float = 300.0) -> float:
    samples = run_open([time_s], rate, duration_s=duration_s, max_batch=goal.max_batch, seed=4242)
    return float((samples.request_latency_s() > goal.limit_s).mean())


@pytest.mark.parametrize("slowdown", [1.0, 1.05])
def test_the_rate_it_shows_holds_and_is_near_the_best(slowdown: float) -> None:
    history = search(GOAL, jittered(1.5e-3, 0.7e-3, 0), slowdown)
    finding = conclude(GOAL, history)
    assert finding.status == "pass"

    time_s = jittered(1.5e-3, 0.7e-3, 1)

    def slowed(items: int) -> float:
        return slowdown * time_s(items)

    assert share_over(slowed, GOAL, finding.rate_per_s) <= 0.01
    assert share_over(slowed, GOAL, finding.rate_per_s / 0.88) > 0.01
    assert sum(e.duration_s for e in history) <= MAX_RATES * GOAL.window_s + 4.0


def test_calls_back_to_back_come_first_then_a_pilot_then_looks() -> None:
    history = search(GOAL, jittered(1.5e-3, 0.7e-3, 0))
    assert [e.kind for e in history[:3]] == ["ladder", "pilot", "look"]
    ladder = next_plan(GOAL, [])
    assert ladder is not None and not ladder.load.is_open
    assert [w.item_count for w in ladder.windows] == [1, 2, 4, 6, 12, 16]
    assert history[1].rate_per_s == pytest.approx(0.93 * history[0].target.limit_rate_per_s)
    seeds = [e.seed for e in history[1:]]
    assert len(set(seeds)) == len(seeds)  # no window repeats the arrivals of another


def test_the_same_history_gives_the_same_plan() -> None:
    history = search(GOAL, jittered(1.5e-3, 0.7e-3, 0))
    for count in range(len(history)):
        assert next_plan(GOAL, history[:count]) == next_plan(GOAL, history[:count])


def test_a_trial_that_need_not_prove_stops_after_the_pilot() -> None:
    goal = replace(GOAL, proves=False, window_s=1.0)
    history = search(goal, jittered(1.5e-3, 0.7e-3, 0))
    assert [e.kind for e in history] == ["ladder", "pilot"]
    finding = conclude(goal, history)
    assert finding.status == "undecided" and finding.rate_per_s > 800.0


def test_a_configuration_that_promises_too_little_gets_no_window() -> None:
    history = search(replace(GOAL, worth_per_s=1e6), jittered(1.5e-3, 0.7e-3, 0))
    assert [e.kind for e in history] == ["ladder"]


def test_a_limit_below_one_call_holds_at_no_rate() -> None:
    goal = replace(GOAL, limit_s=1e-3)
    history = search(goal, jittered(1.5e-3, 0.7e-3, 0))
    assert conclude(goal, history).status == "fail"


def test_windows_in_which_no_request_comes_decide_nothing() -> None:
    # A call takes a second: within a look of 0.1 s mostly nothing arrives.
    goal = replace(GOAL, limit_s=5.0, max_batch=4, window_s=0.4)
    history = search(goal, lambda items: 1.0)
    assert sum(e.kind == "look" and e.request_count == 0 for e in history) >= 1
    assert conclude(goal, history).status == "undecided"
