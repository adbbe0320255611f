"""The test on pairs: error rates on simulated machines, guards, what could have been seen."""

from __future__ import annotations

import math
import runpy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from autotune.measure.paired import (
    LOOKS,
    POWER,
    SPREAD_LEAST,
    Rule,
    judge_estimate,
    judge_pairs,
)

BENCH = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "compare.py"))
GATE = BENCH["gate_rule"]()


def draws(count: int, log_ratio: float = 0.0, spread: float = 0.02, seed: int = 0) -> list[float]:
    rng = np.random.default_rng(seed)
    return list(log_ratio + spread * rng.standard_normal(count))


def test_nothing_is_known_of_one_pair() -> None:
    assert judge_pairs([0.1], Rule()) is None


def test_both_sides_are_treated_alike() -> None:
    values = draws(8, 0.04, seed=3)
    test, mirrored = judge_pairs(values, Rule()), judge_pairs([-v for v in values], Rule())
    assert test is not None and mirrored is not None
    assert test.ratio == pytest.approx(1 / mirrored.ratio)
    assert test.interval95[0] == pytest.approx(1 / mirrored.interval95[1])
    assert (test.shown, mirrored.shown) == ("better", "worse")
    assert test.smallest_change == pytest.approx(mirrored.smallest_change)


def test_pairs_that_agree_by_chance_prove_no_more_than_the_least_spread() -> None:
    test = judge_pairs([-0.003] * 6, Rule(alpha=0.001))
    assert test is not None
    assert test.shown == "none"
    width = math.log(test.interval95[1] / test.interval95[0])
    assert width == pytest.approx(2 * 2.571 * SPREAD_LEAST / math.sqrt(6), rel=1e-3)


def test_one_stalled_pair_is_moved_and_does_not_decide() -> None:
    values = draws(12, math.log(0.95), 0.005, seed=1)
    values[4] = 1.2
    test = judge_pairs(values, GATE)
    assert test is not None
    assert test.moved == (4,)
    assert test.is_regression
    assert test.ratio == pytest.approx(0.95, abs=0.01)


def test_of_a_few_pairs_none_is_moved() -> None:
    test = judge_pairs([0.0, 0.001, 0.5], Rule())
    assert test is not None and test.moved == ()


def test_more_looks_ask_for_more() -> None:
    once = judge_estimate(-0.03, 0.006, 5, Rule(alpha=0.01, looks=1))
    often = judge_estimate(-0.03, 0.006, 5, Rule(alpha=0.01, looks=len(LOOKS)))
    assert (once.shown, often.shown) == ("worse", "none")
    assert often.smallest_change > once.smallest_change


def test_what_could_have_been_found_is_with_all_the_pairs_there_might_have_been() -> None:
    values = draws(6, 0.0, 0.02)
    now, after = judge_pairs(values, GATE), judge_pairs(values, GATE, allowed=LOOKS[-1])
    assert now is not None and after is not None
    assert after.smallest_change < now.smallest_change
    assert replace(after, smallest_change=now.smallest_change) == now
    assert judge_pairs(values, GATE, allowed=4) == now


def test_a_change_below_half_of_the_tolerance_is_shown_but_is_no_regression() -> None:
    test = judge_pairs(draws(24, math.log(0.985), 0.004), GATE)
    assert test is not None
    assert test.shown == "worse"
    assert not test.is_regression
    assert test.excluded and test.is_settled


@pytest.mark.parametrize("spread", [0.006, 0.02])
@pytest.mark.parametrize("rule", [Rule(alpha=0.01), Rule(alpha=0.001, gate=True)])
def test_the_smallest_change_is_found_as_often_as_it_says(rule: Rule, spread: float) -> None:
    count, repeats = 12, 600
    error = spread / math.sqrt(count)
    change = judge_estimate(0.0, error, count - 1, rule).smallest_change
    found = 0
    for seed in range(repeats):
        test = judge_pairs(draws(count, math.log1p(-change), spread, seed), rule)
        assert test is not None
        found += test.is_regression if rule.gate else test.shown == "worse"
    # The scatter itself is drawn anew each time, which costs some of the power.
    assert POWER - 0.06 < found / repeats <= 1.0


# --- quick versions of benchmarks/compare.py -----------------------------------------------------


@pytest.mark.parametrize("name", sorted(BENCH["MACHINES"]))
def test_the_gate_on_simulated_machines(name: str) -> None:
    repeats, machine = 50, BENCH["MACHINES"][name]
    alarms = found = 0
    for seed in range(repeats):
        pairs, test = BENCH["simulate"](machine, 0.0, seed)
        alarms += test.is_regression
        assert len(pairs.log_ratios) in LOOKS
        pairs, test = BENCH["simulate"](machine, 0.05, seed)
        found += test.is_regression
    assert alarms == 0
    assert found >= 0.89 * repeats  # 95 %, less two standard deviations of 50 draws


def test_the_interval_holds_its_level_although_measuring_stops_when_it_is_settled() -> None:
    machine, truth = BENCH["MACHINES"]["shared"], 0.97
    held = 0
    for seed in range(120):
        _, test = BENCH["simulate"](machine, 1 - truth, seed)
        held += test.interval95[0] <= truth <= test.interval95[1]
    assert held >= 0.88 * 120
