"""What a trial costs, compiling a new batch shape included, changes what is asked for."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from autotune.core.objective import Objective
from autotune.search.costs import TrialCosts, cost_factors
from autotune.search.encoding import Dimension, Encoding
from autotune.search.posterior import Posterior
from autotune.search.proposer import Candidates, propose
from autotune.search.question import Observation, Question

PARAMS: dict[str, tuple[Any, ...]] = {
    "batch_size": (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256),
    "instance_count": (1, 2, 3, 4),
    "cores_per_instance": ("all", 4, 2, 1),
    "batched_h2d": (False, True),
}
OPEN_S, COMPILE_S = 2.0, 40.0
TRIALS = 24


def rate(batch: int, instances: int, cores: int | str, packed: bool) -> float:
    """Items per second of a server that is best in the middle of its batches."""
    share = 1.0 if cores == "all" else int(cores) / 4
    cycle_s = 1e-3 * (0.7 if packed else 1.0) + batch * 2e-5 / share**0.6
    cycle_s *= 1 + 0.5 * max(instances * share - 1.0, 0.0) + (batch / 150) ** 2
    return instances * batch / cycle_s


def searched(*, told: bool, compile_s: float, seed: int) -> tuple[float, int, float]:
    """Seconds spent, batch shapes compiled, and the loss of the best one tried.

    Args:
        told: False to keep the costs from the search.
        compile_s: What the first trial of a batch size costs more.
    """
    code = Encoding([Dimension.of(n, c) for n, c in PARAMS.items()])
    question = Question.of(Objective(name="o"), code)
    candidates = Candidates(code, None, seed)
    rng = np.random.default_rng(seed)
    rates = {tuple(r): rate(*_values(r)) for r in candidates.rows.tolist()}
    seen: list[Observation] = []
    shapes: set[int] = set()
    spent_s, best = 0.0, 0.0
    for number in range(TRIALS):
        proposal = propose(Posterior(code, question, seen), candidates, number=number, seed=seed)
        assert proposal is not None
        row = proposal.row
        cost_s = OPEN_S + (0.0 if row[0] in shapes else compile_s)
        shapes.add(row[0])
        spent_s, best = spent_s + cost_s, max(best, rates[row])
        value = math.log(rates[row]) + rng.normal(0, 0.02)
        known_s = cost_s if told else 0.0
        seen.append(Observation(row=row, values={"throughput": value}, cost_s=known_s))
    return spent_s, len(shapes), 1 - best / max(rates.values())


def _values(row: list[int]) -> tuple[Any, ...]:
    return tuple(choices[i] for choices, i in zip(PARAMS.values(), row, strict=True))


def test_a_costly_new_shape_is_asked_for_less_often_and_the_search_ends_as_well() -> None:
    aware = [searched(told=True, compile_s=COMPILE_S, seed=s) for s in range(3)]
    blind = [searched(told=False, compile_s=COMPILE_S, seed=s) for s in range(3)]
    seconds, shapes, losses = (sum(column) for column in zip(*aware, strict=True))
    assert shapes < sum(n for _, n, _ in blind)
    assert seconds < 0.85 * sum(s for s, _, _ in blind)
    assert losses / 3 < 0.05


def test_even_costs_change_nothing() -> None:
    aware, blind = (searched(told=told, compile_s=0.0, seed=1) for told in (True, False))
    assert aware == blind


def test_what_a_new_shape_costs_is_learned_from_the_trials() -> None:
    code = Encoding([Dimension.of(n, c) for n, c in PARAMS.items()])
    batches = (0, 3, 3, 6, 6, 6, 9, 9)
    rows = [(b, i % 4, i % 3, i % 2) for i, b in enumerate(batches)]
    seen, shapes = [], set()
    for row in rows:
        cost_s = OPEN_S + (0.0 if row[0] in shapes else COMPILE_S)
        shapes.add(row[0])
        seen.append(Observation(row=row, values={"throughput": 1.0}, cost_s=cost_s))
    costs = TrialCosts.fit(seen, code)
    assert costs is not None
    known_and_new = code.features(np.array([(6, 3, 1, 1), (7, 3, 1, 1)]))
    known_s, new_s = costs.predict_s(known_and_new)
    assert new_s > 5 * known_s
    assert known_s == pytest.approx(OPEN_S, rel=1.0)
    low, high = cost_factors(costs, known_and_new)
    assert high > 5 * low
    assert TrialCosts.fit(seen[:5], code) is None  # too few to tell
