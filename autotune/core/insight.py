"""What the model of a search believes: of every tested configuration, and of what is left open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autotune.core.records import Config, Scalar


@dataclass(frozen=True, slots=True, kw_only=True)
class Belief:
    """What is believed of a tested configuration.

    Attributes:
        score: Expected worth: log items/s where throughput is the goal, the weighted sum of the
            goals' logarithms otherwise. `score_sd`: its standard deviation.
        limit_probability: Probability that every limit holds; 1 without limits.
        trials: How often it was measured.
    """

    config: Config
    score: float
    score_sd: float
    limit_probability: float
    trials: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Alike:
    """The flat region: what is expected to be as good as the best, limits included.

    Attributes:
        within: By how much less than the best still counts as alike, relative.
        count: Configurations of the region, the best included. `tested`: how many were tried.
        values: Of every parameter the values that, changed alone, stay in the region.
        indifferent: Parameters all of whose values do.
    """

    within: float
    count: int
    tested: int
    values: Mapping[str, tuple[Scalar, ...]] = field(default_factory=dict)
    indifferent: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Untried:
    """What was not tried.

    Attributes:
        count: Configurations that the rules allow and no trial has measured, out of `total`;
            None for both where there are too many to count.
        values: Of every parameter with few values those that no trial has had.
        maybe_better: Of the configurations looked at, those untried ones that have at least one
            chance in ten to beat the best by more than `Alike.within` and hold the limits.
    """

    count: int | None
    total: int | None
    values: Mapping[str, tuple[Scalar, ...]] = field(default_factory=dict)
    maybe_better: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Insight:
    """A search seen by its model.

    Attributes:
        beliefs: Of the tested configurations the most promising ones, best expected worth first.
        best: What is to be recommended: of the tested ones that hold their limits with
            `confidence`, the best expected worth. None if there is none.
        expected_gain: By how much one more trial is expected to raise the recommendation,
            relative; None while there is no recommendation.
        alike: Around what is recommended; None while there is no recommendation.
    """

    beliefs: tuple[Belief, ...] = ()
    best: Belief | None = None
    confidence: float = 0.0
    expected_gain: float | None = None
    alike: Alike | None = None
    untried: Untried = Untried(count=None, total=None)

    def of(self, config: Config) -> Belief | None:
        """What is believed of a configuration, None if it was not tested."""
        return next((b for b in self.beliefs if b.config == config), None)
