"""The measured configurations of a study in their order, and which of them are worth proving."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from autotune.core.insight import Belief, Insight
from autotune.core.objective import METRICS, Objective
from autotune.core.outcomes import Outcome
from autotune.core.records import Config, TrialRecord, measured
from autotune.measure.noise import QUIET, speed_left
from autotune.results.batch_knee import StudyKnee, study_knee
from autotune.results.front import front_records, spread
from autotune.results.goals import RATES

SURE = 0.99  # that limits hold: more makes no difference
_BROKEN = 2
_OUTCOME_ORDER = {Outcome.OK: 0, Outcome.UNDECIDED: 1, Outcome.OVER_LIMIT: _BROKEN}


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
        first = _first(ranked, insight, insight.best, objective).config
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
        chosen = [*chosen[: max(top - 1, 1)], ranking.best]
    if ranking.batch_only is not None and ranking.batch_only not in chosen:
        chosen.append(ranking.batch_only)
    return tuple(chosen)


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


def _first(
    ranked: Sequence[TrialRecord], insight: Insight, pick: Belief, objective: Objective
) -> Belief:
    """The model's pick, unless only a guess at what noise took makes it the best.

    Such a guess says what is worth measuring again. But noise only slows: what was better by its
    bare figures, and is as sure to hold its limits, comes first until then.
    """
    own = next((r for r in ranked if r.config == pick.config), None)
    if own is None or own.measurement is None or speed_left(own.measurement) == 1.0:
        return pick
    holding = {
        belief.config: belief
        for belief in insight.beliefs
        if belief.limit_probability >= min(pick.limit_probability, SURE)
    }
    rivals = [r for r in ranked if r.config in holding and r.verdict.outcome is Outcome.OK]
    best = max(rivals, key=lambda r: score(r, objective), default=own)
    return holding[best.config] if score(best, objective) > score(own, objective) else pick


def _belief_order(record: TrialRecord, belief: Belief, confidence: float) -> int:
    """Like `_OUTCOME_ORDER`: held surely enough, open, broken."""
    if belief.limit_probability >= confidence:
        return 0
    is_broken = record.verdict.outcome is Outcome.OVER_LIMIT and belief.limit_probability < 0.5
    return _BROKEN if is_broken else 1


def _worth(belief: Belief) -> float:
    """Expected worth, a broken limit counted as nothing."""
    return belief.score + math.log(max(belief.limit_probability, 1e-9))


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
    holding = (r for r in records if excess_ratio(r, objective) <= 0 or is_in_doubt(r))
    return sorted(holding, key=lambda r: -_undisturbed_score(r, objective))


def is_in_doubt(record: TrialRecord) -> bool:
    is_noisy = record.measurement is not None and record.measurement.trust != QUIET
    return is_noisy and record.verdict.outcome is Outcome.UNDECIDED


def _undisturbed_score(record: TrialRecord, objective: Objective) -> float:
    """The score with what noise is likely to have taken added to the rates."""
    if record.measurement is None:
        return -math.inf
    weight = sum(goal.weight for goal in objective.goals if goal.metric in RATES)
    return score(record, objective) - weight * math.log(speed_left(record.measurement))
