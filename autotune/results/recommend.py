"""From a ranking and its proof to a recommendation, with its reasons in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from autotune.core.objective import METRICS, Objective
from autotune.core.outcomes import Outcome
from autotune.core.records import Comparison, Config, Recommendation, TrialRecord
from autotune.measure.noise import speed_left
from autotune.results.batch_knee import pick_knee
from autotune.results.gain import chained
from autotune.results.goals import RATES, improvements, least_gain, weighted_gain
from autotune.results.ranking import Ranking, is_batch_only, is_in_doubt, score
from autotune.results.words import (
    config_text,
    factor_interval_text,
    factor_text,
    limit_text,
    metric_label,
    metric_text,
)

NO_FACTOR = "the baseline holds the limit at no arrival rate: there is no factor over it"
GAIN_WITHOUT_INTERVAL = (
    "the gain has no interval: fewer than two rounds were measured; "
    "the rate shown to hold is above what the baseline may hold"
)
WEIGHTED_WITHOUT_INTERVAL = (
    "the weighted gain holds with the least throughput of its interval; the other goals are fresh "
    "figures without one"
)
DECISIVE_LOSS = 0.2
"""Share of a configuration's speed, taken from outside, above which noise and not the measuring is
held to have decided against it."""
FAR_BEHIND = 2.0
"""Times the winner's throughput; a rival of more whose limits stayed open undoes a decision."""


def decide(
    ranking: Ranking,
    objective: Objective,
    *,
    fresh: Sequence[TrialRecord] = (),
    comparisons: Sequence[Comparison] = (),
    notes: Sequence[str] = (),
    advice: Mapping[Config, str] | None = None,
) -> Recommendation:
    """Turn the ranking and its proof into a recommendation, always of a tested configuration.

    The fresh measurement decides, not the trial that made a configuration a finalist: the top
    of many noisy trials is expected to disappoint.

    Args:
        fresh: One record per configuration measured again, the baseline's included; none if
            the proof was skipped.
        comparisons: Of those with the baseline, side by side in pairs of fresh processes.
        notes: Sentences that came up while proving.
        advice: By configuration whose limits stayed open: what would settle them.
    """
    start = Recommendation(
        status="infeasible",
        baseline=ranking.baseline,
        confirmations=tuple(fresh),
        comparisons=tuple(comparisons),
    )
    if ranking.best is None:
        return replace(start, reasons=(*why_infeasible(ranking, objective), *notes))
    if not fresh:
        return _decide_unproven(start, ranking, ranking.best, notes)
    return _decide_by_proof(start, ranking, objective, notes, advice or {})


def _decide_unproven(
    start: Recommendation, ranking: Ranking, best: TrialRecord, notes: Sequence[str]
) -> Recommendation:
    """By the search alone: its model's pick; without one, nothing is promised."""
    reasons: tuple[str, ...] = ("not measured again: short trials are all there is",)
    unproven = replace(start, status="unconfirmed", record=best)
    belief = ranking.insight.of(best.config) if ranking.insight else None
    if ranking.insight is not None and ranking.insight.best is None and belief is not None:
        reasons = (doubt_text(belief.limit_probability, ranking.insight.confidence), *reasons)
        unproven = replace(unproven, status="undecided")
    return replace(unproven, reasons=(*reasons, *notes))


def doubt_text(probability: float, confidence: float) -> str:
    """Why a configuration is not recommended although nothing else is."""
    return (
        f"its limits hold with a probability of {100 * probability:.0f} % by what was measured; "
        f"a recommendation needs {100 * confidence:.0f} %, and a second trial where it is close"
    )


def why_infeasible(ranking: Ranking, objective: Objective) -> tuple[str, ...]:
    """Sentences for a study in which nothing holds the limits: which, and what came closest."""
    wanted = " and ".join(limit_text(limit) for limit in objective.limits)
    if ranking.closest is None:
        return ("no trial has a measurement",)
    figures = ", ".join(
        f"{metric_label(limit.metric)} {metric_text(limit.metric, value)}"
        for limit in objective.limits
        if (value := getattr(ranking.closest.measurement, METRICS[limit.metric].field)) is not None
    )
    closest = config_text(ranking.closest.config)
    return (
        f"no tested configuration holds {wanted}",
        f"the closest, which does not meet it: {closest} with {figures}",
    )


def _decide_by_proof(
    start: Recommendation,
    ranking: Ranking,
    objective: Objective,
    notes: Sequence[str],
    advice: Mapping[Config, str],
) -> Recommendation:
    fresh = start.confirmations
    base = ranking.baseline.config if ranking.baseline else None
    tried = [record for record in fresh if record.config != base]
    if not tried and ranking.best is not None and ranking.best.config != base:
        # Time was left for the baseline alone, which says nothing of the others.
        return _decide_unproven(start, ranking, ranking.best, notes)
    if not any(record.verdict.outcome.is_measured for record in fresh):
        # Not even the baseline, which ran before: an accident of that time, not of a configuration.
        why = (_why_nobody(tried), *fresh[0].verdict.reasons[:1])
        return replace(start, status="undecided", record=ranking.best, reasons=(*why, *notes))
    start = replace(start, baseline=next((r for r in fresh if r.config == base), ranking.baseline))
    against = {c.config: c for c in start.comparisons if c.reference == base}
    winner, rival = _pick(fresh, against, base, objective)
    if ranking.knee is not None:
        winner, rival, said = pick_knee(start, ranking.knee, winner, rival)
        notes = (*said, *notes)
    if winner is None:
        return replace(start, reasons=(_why_nobody(tried), *notes))
    status, reasons = _status(winner, against.get(winner.config), start.baseline, objective)
    if winner.verdict.outcome is Outcome.UNDECIDED and winner.config in advice:
        reasons = (*reasons, advice[winner.config])
    promise: tuple[str, ...] = ()
    if rival is not None:
        promise = (_promise(rival, against.get(rival.config), advice.get(rival.config)),)
        by_luck = _is_beaten_by_noise(rival) or _is_far_behind(winner, rival, against)
        if by_luck and status == "confirmed":
            # Noise, or a lack of time, decided between the two: that is no decision.
            status, promise, reasons = "undecided", (), (*promise, *reasons)
    return replace(
        start,
        status=status,
        record=winner,
        against_baseline=against.get(winner.config),
        against_batch_only=_against_batch_only(winner, start, base),
        reasons=(*reasons, *promise, *notes),
    )


def _why_nobody(tried: Sequence[TrialRecord]) -> str:
    """Why none of the finalists that were tried again can be recommended."""
    if not any(record.verdict.outcome.is_measured for record in tried):
        return "none of the finalists could be measured again"
    return "none of the finalists that were measured again held its limits"


def _pick(
    fresh: Sequence[TrialRecord],
    against: Mapping[Config, Comparison],
    base: Config | None,
    objective: Objective,
) -> tuple[TrialRecord | None, TrialRecord | None]:
    """The winner among the fresh measurements, and a better one that is not shown to hold."""

    baseline = next((r for r in fresh if r.config == base), None)

    def value(record: TrialRecord) -> float:
        # Absolute figures come from different moments; ratios to a baseline that ran beside do not.
        if not against or not _wants_throughput(objective) or baseline is None:
            return score(record, objective)
        ratios = improvements(record, baseline, objective, against.get(record.config))
        if record.config not in against:  # an accident of its rounds: nothing speaks for it
            ratios |= {metric: 1.0 for metric in RATES if metric in ratios}
        return weighted_gain(ratios, objective) or 0.0

    held = [r for r in fresh if r.verdict.outcome is Outcome.OK]
    unsure = [r for r in fresh if r.verdict.outcome is Outcome.UNDECIDED]
    winner = max(held, key=value, default=None)
    rival = max(unsure, key=value, default=None)
    if rival is None or (winner is not None and value(rival) <= value(winner)):
        return winner, None
    if winner is None or winner.config == base:
        return rival, None
    return winner, rival


def _promise(rival: TrialRecord, compared: Comparison | None, advice: str | None) -> str:
    gain = f"{factor_text(compared.ratio)} the baseline's throughput" if compared else "more"
    text = f"{config_text(rival.config)} promises {gain}, but its limits could not be shown"
    if is_in_doubt(rival) and rival.measurement is not None:
        return f"{text} ({rival.measurement.trust}); run it again when the machine is quiet"
    return f"{text}: {advice}" if advice else text


def _is_beaten_by_noise(record: TrialRecord) -> bool:
    """True if its limits stayed open while something outside took much of its speed.

    What takes less is the everyday scatter of a shared machine, on which nothing would ever be
    decided.
    """
    if record.measurement is None or not is_in_doubt(record):
        return False
    return speed_left(record.measurement) <= 1 - DECISIVE_LOSS


def _is_far_behind(
    winner: TrialRecord, rival: TrialRecord, against: Mapping[Config, Comparison]
) -> bool:
    """True if what is shown to hold is no answer beside what a rival ran at the same time."""
    ours, theirs = against.get(winner.config), against.get(rival.config)
    return ours is not None and theirs is not None and theirs.ratio > FAR_BEHIND * ours.ratio


def _status(
    winner: TrialRecord,
    compared: Comparison | None,
    base: TrialRecord | None,
    objective: Objective,
) -> tuple[Literal["confirmed", "unconfirmed", "undecided"], tuple[str, ...]]:
    if winner.verdict.outcome is Outcome.UNDECIDED:
        return "undecided", winner.verdict.reasons
    if objective.front:
        return "confirmed", ()
    if base is not None and winner.config == base.config:
        return "confirmed", ("no tested configuration was shown to be better than the baseline",)
    if objective.is_weighted and base is not None and base.measurement is not None:
        least = least_gain(winner, base, objective, compared)
        if least is None or least <= 1.0:
            return "undecided", ("a gain over the baseline in the weighted goals is not shown",)
        return "confirmed", (WEIGHTED_WITHOUT_INTERVAL,)
    if not _wants_throughput(objective):
        return "confirmed", ()
    if compared is None and base is not None and _holds_at_no_rate(base, objective):
        return "confirmed", (NO_FACTOR,)
    if compared is None:
        return "unconfirmed", ("it was measured again, but not compared with the baseline",)
    if not compared.shows_gain:
        return "undecided", (f"a gain over the baseline is not shown: {_extent_text(compared)}",)
    return "confirmed", () if compared.ratio_ci else (GAIN_WITHOUT_INTERVAL,)


def _holds_at_no_rate(base: TrialRecord, objective: Objective) -> bool:
    """True if the baseline was shown to break the limit whatever the rate of arrivals."""
    broken = base.phase == "confirm" and base.verdict.outcome is Outcome.OVER_LIMIT
    return objective.load.seeks_rate and broken


def _extent_text(compared: Comparison) -> str:
    if compared.ratio_ci is None:
        return f"the rate it holds is {compared.least_ratio:.3g} of what the baseline may hold"
    level, interval = f"{100 * (1 - compared.alpha):g} %", factor_interval_text(compared.ratio_ci)
    return f"{level} interval {interval}, from {len(compared.pair_ratios)} pairs"


def _wants_throughput(objective: Objective) -> bool:
    return any(goal.metric in RATES for goal in objective.goals)


def _against_batch_only(
    winner: TrialRecord, proof: Recommendation, base: Config | None
) -> Comparison | None:
    """The winner against the best batch-only configuration that was proven beside it."""
    if base is None or winner.config == base or is_batch_only(winner.config, base):
        return None
    held = {
        record.config
        for record in proof.confirmations
        if record.verdict.outcome in (Outcome.OK, Outcome.UNDECIDED)
        and is_batch_only(record.config, base)
    }
    with_base = {c.config: c for c in proof.comparisons if c.reference == base}
    rivals = [with_base[config] for config in held if config in with_base]
    if not rivals or winner.config not in with_base:
        return None
    rival = max(rivals, key=lambda c: c.ratio)
    direct = (
        c for c in proof.comparisons if (c.config, c.reference) == (winner.config, rival.config)
    )
    return next(direct, None) or chained(with_base[winner.config], rival)
