"""The knee of a study's throughput over the batch size, and what its proof makes of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from autotune.core.objective import Objective
from autotune.core.outcomes import Outcome
from autotune.core.records import Comparison, Config, Recommendation, TrialRecord
from autotune.measure.batch_curve import BatchCurve
from autotune.measure.knee import SLACK, Knee
from autotune.results.gain import chained, interval95
from autotune.results.words import config_text


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyKnee:
    """The knee of the curve that delivers most there.

    Attributes:
        knee: What the curve shows. `share`: of the peak that was asked for.
        config: The configuration at the knee, `peak` the one at the peak; None if no size may
            be used.
        size_count: Batch sizes of that curve that were measured.
        curve_count: Curves that were measured; each differs from the others in more than its
            batch size.
    """

    knee: Knee
    share: float
    config: Config | None = None
    peak: Config | None = None
    size_count: int = 0
    curve_count: int = 0

    @property
    def throughput_per_s(self) -> float:
        """Estimated at the knee; 0 if there is none."""
        return (self.knee.delivered or 0.0) * (self.knee.peak_throughput_per_s or 0.0)

    @property
    def is_unknown(self) -> bool:
        """True if there is no knee to speak of; `why_unknown` says why."""
        return self.config is None or self.knee.kind == "none"

    @property
    def why_unknown(self) -> str:
        """Why there is no knee, in words; empty if there is one."""
        if not self.is_unknown:
            return ""
        if self.size_count == 0:
            return "no batch size could be measured"
        if self.config is None:
            return "no measured batch size is sure to hold the limits"
        return "fewer than three batch sizes are known"

    def contender(self, records: Iterable[TrialRecord]) -> Config | None:
        """The smallest tested configuration that may be the knee as well; None if there is none."""
        if self.config is None or self.knee.interval is None:
            return None
        family, (low, _) = self.config.changed(batch_size=1), self.knee.interval
        sizes = [
            record.config.batch_size
            for record in records
            if record.config.changed(batch_size=1) == family
            and low <= record.config.batch_size < self.config.batch_size
        ]
        return self.config.changed(batch_size=min(sizes)) if sizes else None

    def proven_as(self, config: Config | None) -> StudyKnee:
        """This knee moved to what the proof recommends, if that is on the same curve."""
        if config is None or self.config is None or self.knee.interval is None:
            return self
        if config.changed(batch_size=1) != self.config.changed(batch_size=1):
            return self
        size, (low, high) = config.batch_size, self.knee.interval
        interval = min(low, size), max(high, size)
        return replace(
            self, config=config, knee=replace(self.knee, batch_size=size, interval=interval)
        )


def study_knee(
    records: Iterable[TrialRecord], objective: Objective, grid: Sequence[int] = ()
) -> StudyKnee | None:
    """The knee of a study's trials; None if the objective does not ask for one.

    Args:
        grid: Batch sizes that could be measured; they matter to the knee's interval alone.
    """
    share = objective.knee_share
    if share is None:
        return None
    families: dict[Config, list[TrialRecord]] = {}
    for record in records:
        families.setdefault(record.config.changed(batch_size=1), []).append(record)
    found = [
        _of_family(config, BatchCurve.of(own, objective), share, len(families), grid)
        for config, own in families.items()
    ]
    empty = _of_family(Config(), BatchCurve.of((), objective), share, 0, ())
    return max(
        found, key=lambda k: (not k.is_unknown, k.throughput_per_s, k.size_count), default=empty
    )


def _of_family(
    config: Config, curve: BatchCurve, share: float, curve_count: int, grid: Sequence[int]
) -> StudyKnee:
    knee = curve.knee(share, grid)

    def at(size: int | None) -> Config | None:
        return None if size is None else config.changed(batch_size=size)

    return StudyKnee(
        knee=knee,
        share=share,
        config=at(knee.batch_size),
        peak=at(knee.peak_batch_size),
        size_count=curve.running_count,
        curve_count=curve_count,
    )


def pick_knee(
    proof: Recommendation,
    knee: StudyKnee,
    winner: TrialRecord | None,
    rival: TrialRecord | None,
) -> tuple[TrialRecord | None, TrialRecord | None, tuple[str, ...]]:
    """The smallest size that the proof shows to be good enough, mostly the search's knee.

    Where the proof refuses that one, what would be chosen by throughput alone.
    """
    fresh = {record.config: record for record in proof.confirmations}
    mine = None if knee.config is None else fresh.get(knee.config)
    if mine is None or knee.config is None:
        return winner, rival, ()
    smaller = knee.contender(r for r in fresh.values() if r.verdict.outcome is Outcome.OK)
    if smaller is not None:
        low, _ = _delivered(proof, knee, smaller)
        if low >= knee.share - SLACK:
            return fresh[smaller], None, ()
    name = f"the knee, {config_text(knee.config, ('batch_size',))},"
    if not mine.verdict.outcome.is_measured or mine.verdict.outcome is Outcome.OVER_LIMIT:
        why = "; ".join(mine.verdict.reasons) or str(mine.verdict.outcome)
        return winner, rival, (f"{name} was refused when measured again: {why}",)
    _, high = _delivered(proof, knee, knee.config)
    if high < knee.share and knee.peak is not None:
        text = f"{name} delivers at most {high:.1%} of the peak, not {knee.share:.0%}"
        peak = fresh[knee.peak]
        return (peak if peak.verdict.outcome is Outcome.OK else mine), None, (text,)
    return mine, None, ()


def _delivered(proof: Recommendation, knee: StudyKnee, config: Config) -> tuple[float, float]:
    """The 95 % interval of a configuration's share of the peak; anything where it is unknown."""
    if config == knee.peak:
        return 1.0, 1.0
    found = delivered_share(proof, replace(knee, config=config))
    return (interval95(found) if found else None) or (0.0, math.inf)


def delivered_share(proof: Recommendation, knee: StudyKnee) -> Comparison | None:
    """The knee's throughput over the peak's, from their fresh measurements beside the baseline.

    None if they are the same, or were not both measured again.
    """
    if knee.config is None or knee.peak is None or knee.config == knee.peak:
        return None
    own = {(c.config, c.reference): c for c in proof.comparisons}
    if direct := own.get((knee.config, knee.peak)):
        return direct
    if proof.baseline is None:
        return None
    base = proof.baseline.config
    mine, peak = own.get((knee.config, base)), own.get((knee.peak, base))
    if peak is None:
        return None
    return _inverted(peak) if knee.config == base else chained(mine, peak) if mine else None


def _inverted(comparison: Comparison) -> Comparison:
    low_high = comparison.ratio_ci
    return replace(
        comparison,
        config=comparison.reference,
        reference=comparison.config,
        ratio=1 / comparison.ratio,
        ratio_ci=(1 / low_high[1], 1 / low_high[0]) if low_high and min(low_high) > 0 else None,
        pair_ratios=tuple(1 / ratio for ratio in comparison.pair_ratios),
        least_ratio=0.0,
    )
