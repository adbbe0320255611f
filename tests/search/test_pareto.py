"""The search for a front: what a measurement adds to it, and that it beats chance."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from autotune.core.objective import Goal, Limit, Objective
from autotune.search.encoding import Dimension, Encoding
from autotune.search.pareto import DIRECTIONS, FrontPosterior, _directions, _reach, posterior_of
from autotune.search.posterior import Posterior
from autotune.search.question import Observation, Question

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
OBJECTIVE = Objective(
    name="pareto", goals=(Goal(metric="throughput"), Goal(metric="latency_p99")), front=True
)
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@pytest.fixture(scope="module")
def bench() -> Iterator[dict[str, object]]:
    sys.path.insert(0, str(BENCHMARKS))
    try:
        yield runpy.run_path(str(BENCHMARKS / "pareto.py"))
    finally:
        sys.path.remove(str(BENCHMARKS))


def posterior(objective: Objective, tried: tuple[int, ...]) -> Posterior:
    """Of a server of 1 ms and 50 µs per item, tried at some batch sizes."""
    encoding = Encoding([Dimension.of("batch_size", BATCHES)])
    seen = []
    for batch in tried:
        step_s = 1e-3 + 5e-5 * batch
        values = {"throughput": np.log(batch / step_s), "latency_p99": np.log(1.2 * step_s)}
        seen.append(Observation(row=(BATCHES.index(batch),), values=values))
    return posterior_of(encoding, Question.of(objective, encoding), seen)


def gains(objective: Objective, tried: tuple[int, ...]) -> dict[int, float]:
    model = posterior(objective, tried)
    assert model.surrogate is not None
    rows = np.arange(len(BATCHES))[:, None]
    found = model.gain(model.surrogate.cross(model.encoding.features(rows)))
    return dict(zip(BATCHES, found.tolist(), strict=True))


def test_only_a_front_gets_the_posterior_of_a_front():
    assert type(posterior(OBJECTIVE, (1, 64))) is FrontPosterior
    assert type(posterior(replace(OBJECTIVE, front=False), (1, 64))) is Posterior


def test_gaps_of_the_front_promise_more_than_what_is_measured():
    gain = gains(OBJECTIVE, (1, 2, 4, 128, 256))
    assert min(gain[16], gain[32]) > 3 * max(gain[b] for b in (1, 2, 4, 128, 256))
    assert all(value >= 0.0 for value in gain.values())


def test_what_breaks_a_limit_promises_nothing():
    limited = replace(OBJECTIVE, limits=(Limit(metric="latency_p99", bound=3e-3),))
    gain = gains(limited, (1, 2, 256))
    assert gain[128] < 0.02 * gain[16]


def test_directions_measure_the_hypervolume():
    """The mean over directions of the farthest reach is the hypervolume, to a constant."""
    from math import pi

    from autotune.measure.front import hypervolume

    rng = np.random.default_rng(0)
    directions = np.abs(rng.standard_normal((20_000, 2)))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    values = np.array([[0.2, 1.0], [0.7, 0.6], [1.0, 0.1]])
    mean = _reach(values, directions).max(axis=0).mean()
    assert pi / 4 * mean == pytest.approx(hypervolume(values, np.zeros(2)), rel=0.02)
    assert _directions(3).shape == (DIRECTIONS, 3)


@pytest.mark.parametrize("kind", ["cliff", "interference"])
def test_it_finds_more_of_the_front_than_chance(bench: dict, kind: str) -> None:
    land = replace(bench["simulate"](kind, 3), limit_s=None)
    share = {}
    for name in ("mechanistic", "random"):
        game = bench["Game"](land, 3, 30)
        bench["STRATEGIES"][name](game)
        assert len(game.history) == 30
        share[name] = bench["share_found"](land, [trial.index for trial in game.history])
    assert share["mechanistic"] > 0.9
    assert 1 - share["mechanistic"] < 0.6 * (1 - share["random"])
