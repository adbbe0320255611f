"""Why the recommended configuration, in sentences that the study's own records support."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from autotune.core.outcomes import Outcome
from autotune.core.records import Config, Scalar, TrialRecord, measured
from autotune.results import words
from autotune.results.curves import figure
from autotune.results.gain import chained, interval95
from autotune.results.study_result import StudyResult

MAX_OTHERS = 6
"""Settings that a sentence names beside the one it speaks of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """Reasons for a configuration; every part may be empty.

    Attributes:
        proven: What changed settings did in the proof, where two of its configurations show it.
        effects: What each other changed setting did, from trials that differ in it alone.
        refused: Finalists that were faster, with what kept them from being recommended.
    """

    proven: tuple[str, ...] = ()
    effects: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()


def why(result: StudyResult) -> Why:
    """What the records say for the recommended configuration."""
    if result.config is None:
        return Why()
    proven = dict(_proven(result, result.config))
    return Why(
        proven=tuple(proven.values()),
        effects=tuple(_effects(result, result.config, proven.keys())),
        refused=tuple(_refused(result)),
    )


def what_it_won_by(result: StudyResult) -> str:
    """What the recommended configuration has over the others, in a sentence; empty: none is."""
    if result.config is None:
        return ""
    if result.config == result.facts.baseline:
        return (
            f"None of the {result.trial_count:,} trials was shown to be better than the baseline."
        )
    if result.knee is not None and result.config == result.knee.config:
        return (
            f"It is the smallest batch size that delivers {result.knee.share:.0%} of the highest "
            "throughput of its curve."
        )
    if len(result.facts.objective.goals) > 1:
        return "Its improvements over the baseline weigh most together, by the goals' weights."
    compared = factors(result)
    if result.config not in compared:
        return _won_by_trials(result)
    held = [r for r in result.recommendation.confirmations if r.verdict.outcome is Outcome.OK]
    others = [r for r in held if r.config != result.config and r.config in compared]
    gain = f"{words.factor_text(compared[result.config])} the baseline's throughput"
    start = f"Of the {len(result.recommendation.confirmations)} configurations in the proof"
    if not others:
        return f"{start} it alone was shown to hold: {gain}."
    next_best = max(others, key=lambda r: compared[r.config])
    name = words.config_text(next_best.config, _told_apart(result))
    if next_best.config == result.facts.baseline:
        name = "the baseline"
    return (
        f"{start} it is the fastest of those shown to hold: {gain}; the next, {name}, has "
        f"{words.factor_text(compared[next_best.config])}."
    )


def _won_by_trials(result: StudyResult) -> str:
    """By what trials say, where no proof compared it."""
    ranked = result.ranking.ranked
    if len(ranked) < 2 or result.config != ranked[0].config:
        return ""
    rates = [words.metric_text("throughput", figure(r, "throughput")) for r in ranked[:2]]
    name = words.config_text(ranked[1].config, _told_apart(result))
    return (
        f"Of {len(ranked):,} tried configurations that are not over a limit it is expected to be "
        f"the best: {rates[0]}; the next, {name}, reached {rates[1]}."
    )


def _told_apart(result: StudyResult) -> tuple[str, ...]:
    return result.searched or ("batch_size",)


def factors(result: StudyResult) -> dict[Config, float]:
    """Throughput over the baseline's of what was measured beside it."""
    baseline = result.facts.baseline
    against = result.recommendation.comparisons
    return {baseline: 1.0, **{c.config: c.ratio for c in against if c.reference == baseline}}


def is_faster(record: TrialRecord, result: StudyResult) -> bool:
    """True if a finalist was faster than the recommended configuration in the same proof."""
    winner, compared = result.config, factors(result)
    if winner is None or record.config not in compared or winner not in compared:
        return False
    return compared[record.config] > compared[winner]


ALL_ELSE = "all else"


def _proven(result: StudyResult, winner: Config) -> Iterator[tuple[str, str]]:
    """What a changed setting did, by its name, from two configurations of the proof.

    The last is `ALL_ELSE`: what was changed beside the batch size, if that is more than one thing.
    """
    proof, before, after = list(factors(result)), result.facts.baseline.as_dict(), winner.as_dict()
    changed = [name for name in after if name in before and before[name] != after[name]]
    pairs = {name: _proof_pair(name, proof, before[name], after[name], winner) for name in changed}
    against = result.recommendation.against_batch_only
    rival = against.reference if against and {against.reference, winner} <= set(proof) else None
    if rival is not None and "batch_size" in pairs:
        pairs["batch_size"] = (result.facts.baseline, rival)
    for name, pair in pairs.items():
        if pair is not None:
            one, two = (words.value_text(name, config.as_dict()[name]) for config in pair)
            ratio, interval = _proof_text(result, *pair)
            yield name, f"{name} {one} → {two}: {ratio} the throughput{interval}."
    others = [name for name in changed if name != "batch_size"]
    if rival is not None and len(others) > 1:
        ratio, interval = _proof_text(result, rival, winner)
        alone = f"batch_size={rival.batch_size}"
        yield (
            ALL_ELSE,
            f"All changes beside the batch size together: {ratio} the throughput of {alone} "
            f"alone{interval}.",
        )


def _proof_pair(
    name: str, proof: Sequence[Config], before: Scalar, after: Scalar, winner: Config
) -> tuple[Config, Config] | None:
    """Two configurations of the proof that differ in one setting alone, nearest to the winner."""
    pairs = [
        (one, two)
        for one in proof
        if one.as_dict().get(name) == before and (two := one.changed(**{name: after})) in proof
    ]
    return min(pairs, key=lambda pair: _distance(pair[1], winner), default=None)


def _proof_text(result: StudyResult, one: Config, two: Config) -> tuple[str, str]:
    """How two configurations of the proof compare, and the interval of that."""
    compared, interval = factors(result), None
    against = {
        c.config: c
        for c in result.recommendation.comparisons
        if c.reference == result.facts.baseline
    }
    if one == result.facts.baseline:
        interval = interval95(against[two])
    elif one in against and two in against:
        chain = chained(against[two], against[one])
        interval = None if chain is None else interval95(chain)
    ratio = words.factor_text(compared[two] / compared[one])
    if interval is None or not interval[1] < math.inf:
        return ratio, ""
    return ratio, f" (95 % interval {words.factor_interval_text(interval)})"


def _effects(result: StudyResult, winner: Config, known: Collection[str]) -> list[str]:
    """A sentence per further setting that was changed; none if no two trials tell anything."""
    trials = {r.config: r for r in measured(result.records) if figure(r, "throughput") is not None}
    before, after = result.facts.baseline.as_dict(), winner.as_dict()
    effects, untold = [], []
    changed = [name for name in after if name in before and before[name] != after[name]]
    for name in (name for name in changed if name not in known):
        pairs = _pairs(tuple(trials.values()), trials, name, before[name], after[name])
        if pairs:
            effects.append(_effect_text(name, pairs, winner, result.searched))
        else:
            untold.append(name)
    if effects and untold:
        names = " or ".join(untold)
        effects.append(f"What {names} did by itself is not known: no two trials show it.")
    return effects


def _pairs(
    records: Sequence[TrialRecord],
    trials: dict[Config, TrialRecord],
    name: str,
    before: Scalar,
    after: Scalar,
) -> list[tuple[TrialRecord, TrialRecord]]:
    """Trials with the one and with the other value that are alike in everything else."""
    return [
        (record, other)
        for record in records
        if record.config.as_dict().get(name) == before
        and (other := trials.get(record.config.changed(**{name: after}))) is not None
    ]


def _effect_text(
    name: str,
    pairs: Sequence[tuple[TrialRecord, TrialRecord]],
    winner: Config,
    searched: Sequence[str],
) -> str:
    one, two = min(pairs, key=lambda pair: _distance(pair[1].config, winner))
    value = [words.value_text(name, r.config.as_dict()[name]) for r in (one, two)]
    others = [other for other in searched if other != name]
    at = f" at {words.config_text(two.config, others)}" if others else ""
    if len(others) > MAX_OTHERS:
        at = " with all else alike"
    text = (
        f"{name} {value[0]} → {value[1]}: {words.factor_text(_ratio(one, two))} the throughput{at}"
    )
    if _may_be_noise(one, two):
        text += ", though the two trials' intervals overlap"
    if len(pairs) > 1:
        ratios = sorted(_ratio(*pair) for pair in pairs)
        text += f"; over all {len(pairs)} such pairs "
        text += words.factor_range_text((ratios[0], ratios[-1]))
    return f"{text} (trials {one.number} and {two.number})."


def _distance(config: Config, winner: Config) -> tuple[int, float]:
    """How unlike two configurations are: settings that differ, then how far the batches are."""
    mine, its = config.as_dict(), winner.as_dict()
    differing = sum(mine.get(name) != value for name, value in its.items() if name != "batch_size")
    return differing, abs(math.log(config.batch_size / winner.batch_size))


def _ratio(one: TrialRecord, two: TrialRecord) -> float:
    return (figure(two, "throughput") or math.nan) / (figure(one, "throughput") or math.nan)


def _may_be_noise(one: TrialRecord, two: TrialRecord) -> bool:
    intervals = [
        r.measurement.throughput_ci95_items_per_s for r in (one, two) if r.measurement is not None
    ]
    if len(intervals) < 2 or intervals[0] is None or intervals[1] is None:
        return False
    return intervals[0][0] <= intervals[1][1] and intervals[1][0] <= intervals[0][1]


def _refused(result: StudyResult) -> list[str]:
    compared = factors(result)
    faster = [
        record
        for record in result.recommendation.confirmations
        if record.verdict.outcome is not Outcome.OK and is_faster(record, result)
    ]
    return [
        f"{words.config_text(r.config, _told_apart(result))} reached "
        f"{words.factor_text(compared[r.config])} the baseline's throughput, but is "
        f"{words.outcome_text(r.verdict.outcome)}: "
        f"{words.reason_text(r) or 'its limits were not shown to hold'}."
        for r in sorted(faster, key=lambda r: -compared[r.config])
    ]
