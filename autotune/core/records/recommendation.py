"""What a study says to use, and what that rests on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from autotune.core.records.config import Config
from autotune.core.records.trial import TrialRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A configuration against another, measured in alternating windows.

    Where the arrival rate is sought, each has windows at rates of its own in the same rounds, and
    the ratio is that of their highest rates (`measure.rate_ratio`).

    Attributes:
        ratio: Throughput of `config` over that of `reference`, geometric mean over fresh pairs.
        ratio_ci: Its interval at level 1 - alpha, t over the pairs' log ratios; None with fewer
            than two pairs.
        pair_ratios: One per pair of fresh processes; of sought rates one per round.
        least_ratio: Of sought rates: what was shown of `config` over the most that `reference`
            may hold, 0 if nothing was shown. No interval's end: it has no level.
        interleaved: False if both did not fit in memory and took turns as whole runs.
    """

    config: Config
    reference: Config
    ratio: float
    ratio_ci: tuple[float, float] | None
    alpha: float
    pair_ratios: tuple[float, ...]
    least_ratio: float = 0.0
    interleaved: bool = True

    @property
    def shows_gain(self) -> bool:
        """True if `config` was shown to be faster."""
        return (self.ratio_ci[0] if self.ratio_ci else self.least_ratio) > 1


class TurnRate(NamedTuple):
    """The rate of one window of a confirmation.

    Attributes:
        round, turn: Which window: those of the same turn of several configurations are neighbours.
        at_s: When it began, seconds since the first one. `rate`: items per second.
    """

    round: int
    turn: int
    at_s: float
    rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Reversal:
    """A configuration that led another one at first and trails it at the end.

    Attributes:
        early_ratio: Throughput of `first` over that of `then` in the first minute, above 1.
        late_ratio: The same at the end, below 1.
    """

    first: Config
    then: Config
    early_ratio: float
    late_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sustained:
    """Whether the order of a long confirmation lasted.

    Attributes:
        early_s: Length of the first stretch. `late_from_s`, `late_to_s`: the last one; all in
            seconds since the first window.
        reversals: Pairs whose order changed, each beyond doubt in both stretches.
    """

    early_s: float
    late_from_s: float
    late_to_s: float
    reversals: tuple[Reversal, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """What the study says to use, and what that rests on.

    Attributes:
        status: confirmed, unconfirmed, undecided, infeasible.
        record: The recommended configuration's fresh measurement if there is one, else its
            trial; None when infeasible.
        against_baseline: Fresh and interleaved, None if unconfirmed.
        against_batch_only: The same against the best configuration that differs from the
            baseline in batch size alone; None if there is none or it is the winner itself.
        limit_probability: Probability that the limits hold: what the search's model believes
            after all measurements, at least 1 - alpha where the proof showed it. None without
            limits, and of a study without such a model.
        confirmations: The fresh measurements. `comparisons`: all that were made with them.
        reasons: Sentences for a person.
        sustained: Whether the proof's order lasted; None if it was too short to tell.
        accuracy: Of the recommended configuration on the user's own items; {} without them.
    """

    status: Literal["confirmed", "unconfirmed", "undecided", "infeasible"]
    record: TrialRecord | None = None
    baseline: TrialRecord | None = None
    against_baseline: Comparison | None = None
    against_batch_only: Comparison | None = None
    confirmations: tuple[TrialRecord, ...] = ()
    comparisons: tuple[Comparison, ...] = ()
    reasons: tuple[str, ...] = ()
    limit_probability: float | None = None
    sustained: Sustained | None = None
    accuracy: Mapping[str, float] = field(default_factory=dict)
