"""Which trials of very many a report shows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from autotune.core.outcomes import Outcome
from autotune.core.records import Config, TrialRecord

BEST_SHARE = 0.4  # of what is shown
MAX_ALIKE = 50  # trials shown of each outcome without a measurement


def thinned(
    records: Sequence[TrialRecord],
    ranked: Sequence[TrialRecord],
    matters: Collection[Config | None],
    count: int,
) -> tuple[TrialRecord, ...]:
    """About `count` of the records in their order.

    All of what `matters`, the best ones, some of each way to fail, and of the others every n-th.
    """
    chosen = {id(r) for r in _chosen(records, ranked, matters, count)}
    others = [r for r in records if id(r) not in chosen]
    left = max(count - len(chosen), 0)
    step = len(others) / left if left else 0.0
    chosen |= {id(others[int(i * step)]) for i in range(min(left, len(others)))}
    return tuple(r for r in records if id(r) in chosen)


def _chosen(
    records: Sequence[TrialRecord],
    ranked: Sequence[TrialRecord],
    matters: Collection[Config | None],
    count: int,
) -> Iterator[TrialRecord]:
    yield from ranked[: int(BEST_SHARE * count)]
    seen: Counter[Outcome] = Counter()
    for record in records:
        outcome = record.verdict.outcome
        if not outcome.is_measured:
            seen[outcome] += 1
        if record.config in matters or 0 < seen[outcome] <= MAX_ALIKE:
            yield record
