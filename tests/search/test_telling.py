"""Every outcome reaches Optuna as the vocabulary says, and never a NaN."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from optuna.trial import TrialState
from search_fakes import make_space, record_of

from autotune.core.objective import Goal, Limit, Objective
from autotune.core.outcomes import Outcome
from autotune.core.records import Config
from autotune.search.telling import RUNS, checked, directions, told

OBJECTIVE = Objective(
    name="o",
    goals=(Goal(metric="throughput"), Goal(metric="latency_p99")),
    front=True,
    limits=(Limit(metric="memory_peak", bound=1e9), Limit(metric="latency_p99", bound=0.05)),
)
ONE = make_space().objective


@pytest.mark.parametrize("outcome", list(Outcome))
def test_state_and_constraints_of_every_outcome(outcome: Outcome) -> None:
    message = told(record_of(0, Config(), outcome.value), ONE)
    complete = outcome.is_measured or outcome.is_infeasible
    assert message.state is (TrialState.COMPLETE if complete else TrialState.FAIL)
    assert (message.values is not None) == complete
    assert list(message.constraints) == ["latency_p99_s", RUNS]
    assert message.attributes["outcome"] == outcome.value
    if outcome.is_infeasible:
        assert message.values == (0.0,)
        assert all(value > 0 for value in message.constraints.values())
    if outcome.is_measured:
        assert message.values == (
            record_of(0, Config()).verdict.objectives["throughput_items_per_s"],
        )
        assert message.constraints[RUNS] < 0


def test_constraints_keep_the_order_of_the_objective() -> None:
    record = record_of(0, Config())
    swapped = replace(
        record,
        verdict=replace(record.verdict, excess={"latency_p99_s": 1.0, "memory_peak_bytes": -2.0}),
    )
    for each in (swapped, record_of(0, Config(), "oom")):
        assert list(told(each, replace(OBJECTIVE, goals=ONE.goals)).constraints) == [
            "memory_peak_bytes",
            "latency_p99_s",
            RUNS,
        ]


def test_what_cannot_run_is_worse_than_anything_in_every_direction() -> None:
    assert directions(OBJECTIVE) == ["maximize", "minimize"]
    values = told(record_of(0, Config(), "oom"), OBJECTIVE).values
    assert values is not None
    assert values[0] == 0.0
    assert values[1] > 1e9
    assert all(map(math.isfinite, values))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_figure_that_is_no_number_is_a_wrong_output(value: float) -> None:
    record = record_of(0, Config())
    for name in ("objectives", "excess"):
        figures = dict.fromkeys(getattr(record.verdict, name), value)
        verdict = replace(record.verdict, **{name: figures})  # type: ignore[arg-type]
        broken = replace(record, verdict=verdict)
        result = checked(broken, ONE)
        assert result.verdict.outcome is Outcome.WRONG_OUTPUT
        assert "not a number" in result.verdict.reasons[0]
        assert told(result, ONE).state is TrialState.FAIL


def test_a_missing_goal_is_a_wrong_output() -> None:
    assert checked(record_of(0, Config()), OBJECTIVE).verdict.outcome is Outcome.WRONG_OUTPUT


def test_attributes_are_readable() -> None:
    attributes = told(record_of(0, Config(), latency_p99_s=0.0123), ONE).attributes
    assert attributes["latency_p99_ms"] == pytest.approx(12.3)
    assert attributes["memory_peak_mib"] == pytest.approx(1e6 / 2**20)
