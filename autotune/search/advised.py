"""A sampler that an earlier study advises: its advice comes right after the baseline."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.core.records import Config
from autotune.search.grid import Attempt
from autotune.search.sampler import Proposer, Sampler, counts
from autotune.search.warm_start import Advice

TAKES_ADVICE = ("mechanistic", "gp", "tpe")
"""Not random and grid, which are wanted as they are."""


class AdvisedSampler:
    """Follows advice while there is any, and `inner` before and after.

    What is tried on advice is an ordinary trial to `inner`. A proposal is a pure function of the
    history, as it is without advice.
    """

    def __init__(self, inner: Sampler, advice: Advice, baseline: Config) -> None:
        self._inner = inner
        self._advice = advice
        self._baseline = baseline

    @property
    def name(self) -> str:
        return self._inner.name

    def propose(self, history: Sequence[Attempt]) -> Config | None:
        """The next configuration, None if there is nothing left to measure."""
        counted = [attempt for attempt in history if counts(attempt, history)]
        tried = list(dict.fromkeys(attempt.config for attempt in counted))
        beside = 0
        # The baseline and whatever was lost come first.
        if self._baseline in tried and all(attempt.config in tried for attempt in history):
            records = [attempt.record for attempt in counted if attempt.record is not None]
            if (advised := self._advice.next(len(counted), tried, records)) is not None:
                return advised
            beside = self._advice.turns_taken(len(counted), records)
        return self._inner.propose(history, beside=beside)

    def expected_gain(self, history: Sequence[Attempt]) -> float | None:
        """As `inner` says."""
        return self._inner.expected_gain(history)


def with_advice(inner: Proposer, advice: Advice, baseline: Config) -> Proposer:
    """The sampler with advice, or itself where there is none to take.

    A knee takes none: it wants its whole curve.
    """
    if not isinstance(inner, Sampler) or inner.name not in TAKES_ADVICE or advice.best is None:
        return inner
    return AdvisedSampler(inner, advice, baseline)
