"""Whether the order of a long confirmation's first minute lasts."""

from __future__ import annotations

import math

import numpy as np
import pytest

from autotune.core.codec import from_json_dict, to_json_dict
from autotune.core.records import Config, Sustained, TurnRate
from autotune.results.sustained import EARLY_S, LEAST_S, sustained, sustained_text

HOT, COOL, THIRD = Config(batch_size=64), Config(batch_size=32), Config(batch_size=16)


def course(
    factor: float,
    throttled: float = 1.0,
    *,
    seed: int,
    length_s: float = 600.0,
    noise: float = 0.01,
    rounds: int = 6,
) -> list[TurnRate]:
    """A window every 5 s; after two minutes the chip throttles what runs hot."""
    rng = np.random.default_rng(seed)
    times = np.arange(0.0, length_s, 5.0)
    machine = np.exp(0.1 * np.sin(times / 40))  # the same for all, whatever it is
    slow = np.where(times > 120, throttled, 1.0)
    rates = 1000 * factor * machine * slow * np.exp(noise * rng.standard_normal(times.size))
    per_round = math.ceil(times.size / rounds)
    return [
        TurnRate(round=n // per_round, turn=n % per_round, at_s=float(at), rate=float(rate))
        for n, (at, rate) in enumerate(zip(times, rates, strict=True))
    ]


def test_a_leader_that_throttles_is_told() -> None:
    found = sustained({HOT: course(1.1, 0.85, seed=1), COOL: course(1.0, seed=2)})
    assert found is not None
    (reversal,) = found.reversals
    assert (reversal.first, reversal.then) == (HOT, COOL)
    assert reversal.early_ratio == pytest.approx(1.1, rel=0.02)
    assert reversal.late_ratio == pytest.approx(1.1 * 0.85, rel=0.02)
    (text,) = sustained_text(found, ("batch_size",))
    assert "in the first minute batch_size=64 was 1.10× as fast as batch_size=32" in text
    assert "0.94×" in text or "0.93×" in text


def test_whoever_is_named_first_it_is_the_same_reversal() -> None:
    turns = {COOL: course(1.0, seed=2), HOT: course(1.1, 0.85, seed=1)}
    found = sustained(turns)
    assert found is not None
    assert (found.reversals[0].first, found.reversals[0].late_ratio < 1) == (HOT, True)


def test_throttling_that_leaves_the_order_is_no_reversal() -> None:
    turns = {HOT: course(1.3, 0.9, seed=1), COOL: course(1.0, seed=2), THIRD: course(0.8, seed=3)}
    found = sustained(turns)
    assert found is not None and found.reversals == ()
    assert EARLY_S < found.late_from_s < found.late_to_s


def test_equals_are_not_said_to_have_changed_places() -> None:
    reversals = 0
    for seed in range(200):
        turns = {HOT: course(1.0, seed=2 * seed), COOL: course(1.0, seed=2 * seed + 1)}
        found = sustained(turns)
        assert found is not None
        reversals += len(found.reversals)
    assert reversals <= 2


def test_a_short_confirmation_says_nothing() -> None:
    short = LEAST_S - 10
    turns = {HOT: course(1.1, seed=1, length_s=short), COOL: course(1.0, seed=2, length_s=short)}
    assert sustained(turns) is None
    assert sustained({HOT: course(1.1, seed=1)}) is None
    assert sustained({}) is None
    assert sustained({HOT: [], COOL: []}) is None


def test_what_it_says_is_kept_and_read_again() -> None:
    found = sustained({HOT: course(1.1, 0.85, seed=1), COOL: course(1.0, seed=2)})
    assert found is not None
    assert from_json_dict(Sustained, to_json_dict(found)) == found
