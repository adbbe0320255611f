"""From records to a recommendation: which configurations to prove, and what the proof says."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from autotune.core.insight import Belief, Insight
from autotune.core.objective import METRICS, Objective
from autotune.core.outcomes import Outcome
from autotune.core.records import Comparison, Config, Recommendation, TrialRecord, measured
from autotune.measure.noise import QUIET, speed_left
from autotune.results.batch_knee import StudyKnee, pick_knee, study_knee
from autotune.results.front import front_records, spread
from autotune.results.gain import chained
from autotune.results.goals import RATES, improvements, least_gain, weighted_gain
from autotune.results.words import (
    config_text,
    factor_text,
    limit_text,
    metric_label,
    metric_text,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """The measured configurations of a study, one record each.

    Attributes:
        ranked: Those not shown to break a limit: first those that hold it, best first, then
            the undecided ones, best first.
        baseline: The baseline's record, whatever came of it; None if it was never tried.
        batch_only: The best that differs from the baseline in its batch size alone.
        closest: With nothing ranked, the one that breaks its limits least.
        knee: Where the objective asks for it; its configuration is the best.
        insight: What the search's model believes; its pick is the best.
        front: Where the objective asks for it: those that no other beats in all goals, by their
            figures.
    """

    ranked: tuple[TrialRecord, ...] = ()
    baseline: TrialRecord | None = None
    batch_only: TrialRecord | None = None
    closest: TrialRecord | None = None
    knee: StudyKnee | None = None
    insight: Insight | None = None
    front: tuple[TrialRecord, ...] = ()

    @property
    def best(self) -> TrialRecord | None:
        """The best that holds its limits; if there is none, the best undecided one."""
        return self.ranked[0] if self.ranked else None

    def without(self, proven: Collection[Config]) -> Ranking:
        """The ranking of what has not been proven yet; the baseline stays the same."""
        batch_only = self.batch_only
        return replace(
            self,
            ranked=tuple(r for r in self.ranked if r.config not in proven),
            front=tuple(r for r in self.front if r.config not in proven),
            batch_only=None if batch_only and batch_only.config in proven else batch_only,
        )


def rank(
    records: Sequence[TrialRecord],
    objective: Objective,
    baseline: Config,
    insight: Insight | None = None,
) -> Ranking:
    """Order the measured trials by the objective.

    With `insight`, by what the search's model believes of every configuration: its worth and
    whether the limits hold, from all trials together. Without it, a configuration measured
    several times counts by its least favourable trial: the best of several short trials is
    mostly the luckiest. A fresh measurement (phase confirm) always speaks for itself.
    """
    knee = study_knee(records, objective)
    if knee is not None or objective.front:
        insight = None  # it knows one best configuration only
    beliefs = {} if insight is None else {b.config: b for b in insight.beliefs}

    def key(record: TrialRecord) -> tuple[int, float]:
        belief = None if record.phase == "confirm" else beliefs.get(record.config)
        if insight is None or belief is None:
            return (_OUTCOME_ORDER[record.verdict.outcome], -score(record, objective))
        return (_belief_order(record, belief, insight.confidence), -_worth(belief))

    order = sorted(_one_each(records, objective, beliefs), key=key)
    ranked = [r for r in order if key(r)[0] < _BROKEN]
    first = knee.config if knee is not None else None
    if insight is not None and insight.best is not None:
        first = insight.best.config
    ranked.sort(key=lambda r: r.config != first)
    broken = [r for r in order if key(r)[0] == _BROKEN]
    batch_only = [r for r in ranked if is_batch_only(r.config, baseline)]
    closest = min(broken, key=lambda r: excess_ratio(r, objective), default=None)
    return Ranking(
        ranked=tuple(ranked),
        baseline=next((r for r in reversed(records) if r.config == baseline), None),
        batch_only=next(iter(_promising(batch_only, objective, insight)), None),
        closest=None if ranked else closest,
        knee=knee,
        insight=insight,
        front=tuple(front_records(_promising(ranked, objective), objective))
        if objective.front
        else (),
    )


def _one_each(
    records: Sequence[TrialRecord], objective: Objective, beliefs: Mapping[Config, Belief]
) -> Iterator[TrialRecord]:
    """One measured record per configuration: the middle one of believed ones, else the worst."""
    groups: dict[Config, list[TrialRecord]] = {}
    for record in measured(tuple(records)):
        groups.setdefault(record.config, []).append(record)
    for config, group in groups.items():
        group.sort(key=lambda r: (_OUTCOME_ORDER[r.verdict.outcome], -score(r, objective)))
        yield group[len(group) // 2] if config in beliefs else group[-1]


def _belief_order(record: TrialRecord, belief: Belief, confidence: float) -> int:
    """Like `_OUTCOME_ORDER`: held surely enough, open, broken."""
    if belief.limit_probability >= confidence:
        return 0
    is_broken = record.verdict.outcome is Outcome.OVER_LIMIT and belief.limit_probability < 0.5
    return _BROKEN if is_broken else 1


def _worth(belief: Belief) -> float:
    """Expected worth, a broken limit counted as nothing."""
    return belief.score + math.log(max(belief.limit_probability, 1e-9))


def candidates(ranking: Ranking, objective: Objective, top: int) -> tuple[TrialRecord, ...]:
    """The configurations worth proving: `top` of them, and the best batch-only one.

    The best that already holds its limits has a seat. The others go to the best figures, those
    of undecided trials too if their estimates hold: a short trial has too few calls to show
    the limit of a large batch; the fresh measurement has enough. Where the search's model has
    beliefs, these are the figures. A knee is proven beside the peak that it is nearly as good
    as; of a front, configurations that lie far apart.
    """
    if ranking.knee is not None:
        return _knee_candidates(ranking, ranking.knee, objective)
    if ranking.front and ranking.best is not None:
        return spread(ranking.front, ranking.best, objective, top)
    chosen = _promising(ranking.ranked, objective, ranking.insight)[:top]
    if ranking.best is not None and ranking.best not in chosen:
        chosen = [*chosen[: top - 1], ranking.best]
    if ranking.batch_only is not None and ranking.batch_only not in chosen:
        chosen.append(ranking.batch_only)
    return tuple(chosen)


def _knee_candidates(
    ranking: Ranking, knee: StudyKnee, objective: Objective
) -> tuple[TrialRecord, ...]:
    """The knee, the peak, and the smallest size that may be the knee as well.

    Where these are proven, refused or the baseline, the next best two.
    """
    base = ranking.baseline.config if ranking.baseline else None
    left = [record for record in ranking.ranked if record.config != base]
    wanted = (knee.config, knee.peak, knee.contender(left))
    found = [r for config in dict.fromkeys(wanted) for r in left if r.config == config]
    return tuple(found or _promising(left, objective)[:2] or ranking.ranked[:1])


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


def is_batch_only(config: Config, baseline: Config) -> bool:
    """True if the batch size, and nothing else, was changed."""
    return config != baseline and config == baseline.changed(batch_size=config.batch_size)


def score(record: TrialRecord, objective: Objective) -> float:
    """How good a measured trial is, higher is better, see `Objective.score`."""
    return objective.score(record.verdict.objectives)


def excess_ratio(record: TrialRecord, objective: Objective) -> float:
    """The largest excess over a limit, relative to the limit; <= 0 holds, inf if unknown."""
    worst = -math.inf
    for limit in objective.limits:
        excess = record.verdict.excess.get(METRICS[limit.metric].field)
        if excess is None or math.isnan(excess):
            return math.inf
        worst = max(worst, excess / abs(limit.bound) if limit.bound else excess)
    return worst


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

_BROKEN = 2
_OUTCOME_ORDER = {Outcome.OK: 0, Outcome.UNDECIDED: 1, Outcome.OVER_LIMIT: _BROKEN}


def _promising(
    records: Sequence[TrialRecord], objective: Objective, insight: Insight | None = None
) -> list[TrialRecord]:
    """Those whose estimates hold every limit, best figures first, shown to hold or not.

    With `insight`: best expected worth first. Without, a noisy trial is taken for what it would
    have been without the noise, and not refused for a limit that only the noise may have broken:
    the fresh measurement tells.
    """
    beliefs = {} if insight is None else {b.config: _worth(b) for b in insight.beliefs}
    if beliefs:
        believed = [r for r in records if r.config in beliefs]
        return sorted(believed, key=lambda r: -beliefs[r.config])
    holding = (r for r in records if excess_ratio(r, objective) <= 0 or _is_in_doubt(r))
    return sorted(holding, key=lambda r: -_undisturbed_score(r, objective))


def _is_in_doubt(record: TrialRecord) -> bool:
    is_noisy = record.measurement is not None and record.measurement.trust != QUIET
    return is_noisy and record.verdict.outcome is Outcome.UNDECIDED


def _is_beaten_by_noise(record: TrialRecord) -> bool:
    """True if its limits stayed open while something outside took much of its speed.

    What takes less is the everyday scatter of a shared machine, on which nothing would ever be
    decided.
    """
    if record.measurement is None or not _is_in_doubt(record):
        return False
    return speed_left(record.measurement) <= 1 - DECISIVE_LOSS


def _is_far_behind(
    winner: TrialRecord, rival: TrialRecord, against: Mapping[Config, Comparison]
) -> bool:
    """True if what is shown to hold is no answer beside what a rival ran at the same time."""
    ours, theirs = against.get(winner.config), against.get(rival.config)
    return ours is not None and theirs is not None and theirs.ratio > FAR_BEHIND * ours.ratio


def _undisturbed_score(record: TrialRecord, objective: Objective) -> float:
    """The score with what noise is likely to have taken added to the rates."""
    if record.measurement is None:
        return -math.inf
    weight = sum(goal.weight for goal in objective.goals if goal.metric in RATES)
    return score(record, objective) - weight * math.log(speed_left(record.measurement))


def _decide_by_proof(
    start: Recommendation,
    ranking: Ranking,
    objective: Objective,
    notes: Sequence[str],
    advice: Mapping[Config, str],
) -> Recommendation:
    fresh = start.confirmations
    base = ranking.baseline.config if ranking.baseline else None
    start = replace(start, baseline=next((r for r in fresh if r.config == base), ranking.baseline))
    against = {c.config: c for c in start.comparisons if c.reference == base}
    winner, rival = _pick(fresh, against, base, objective)
    if ranking.knee is not None:
        winner, rival, said = pick_knee(start, ranking.knee, winner, rival)
        notes = (*said, *notes)
    if winner is None:
        reason = "none of the finalists held its limits when measured again"
        return replace(start, reasons=(reason, *notes))
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
    if _is_in_doubt(rival) and rival.measurement is not None:
        return f"{text} ({rival.measurement.trust}); run it again when the machine is quiet"
    return f"{text}: {advice}" if advice else text


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
    (low, high), level = compared.ratio_ci, f"{100 * (1 - compared.alpha):g} %"
    return f"{level} interval {low:.3g} to {high:.3g}, from {len(compared.pair_ratios)} pairs"


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
