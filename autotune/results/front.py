"""The front of a study that wants trade-offs: what no other configuration beats in all goals."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from autotune.core.objective import METRICS, Objective
from autotune.core.records import Comparison, Config, Floats, Recommendation, TrialRecord
from autotune.measure.front import non_dominated, spread_out
from autotune.results.gain import chained, interval95

TELLABLE = 0.05
"""Two fresh figures without an interval that are nearer than this are not told apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontPoint:
    """A configuration on the front.

    Attributes:
        record: Its fresh measurement if it has one, else its trial.
        beaten_by: Another one that was shown to be better in one goal and is worse in none.
    """

    record: TrialRecord
    beaten_by: Config | None = None

    @property
    def is_proven(self) -> bool:
        """True if it was measured again."""
        return self.record.phase == "confirm"


def front_records(records: Sequence[TrialRecord], objective: Objective) -> list[TrialRecord]:
    """Those that no other beats in all goals, by the first goal, the best first."""
    known = [r for r in records if math.isfinite(objective.score(r.verdict.objectives))]
    if not known:
        return []
    values = goal_values(known, objective)
    kept = np.flatnonzero(non_dominated(values))
    return [known[i] for i in sorted(kept, key=lambda i: -values[i, 0])]


def goal_values(records: Sequence[TrialRecord], objective: Objective) -> Floats:
    """Logarithms of the goals, higher is better, shape (records, goals)."""
    metrics = [METRICS[goal.metric] for goal in objective.goals]
    values = [[math.log(r.verdict.objectives[m.field]) for m in metrics] for r in records]
    signs = [1.0 if m.better == "higher" else -1.0 for m in metrics]
    return np.array(values, dtype=np.float64).reshape(-1, len(metrics)) * signs


def spread(
    records: Sequence[TrialRecord], best: TrialRecord, objective: Objective, count: int
) -> tuple[TrialRecord, ...]:
    """At most `count` of the front that lie far apart: the best, the ends, what is between."""
    first = np.array([i for i, record in enumerate(records) if record is best], dtype=np.int64)
    chosen = spread_out(goal_values(records, objective), count, first)
    return tuple(records[i] for i in chosen)


def front_points(
    records: Sequence[TrialRecord],
    seemed: Collection[Config],
    proof: Recommendation,
    objective: Objective,
) -> tuple[FrontPoint, ...]:
    """The front as it stands after the proof, with what the fresh measurements show of it.

    Args:
        seemed: What was on the front by the search's trials. It is shown all the same if it was
            found to be beaten.
    """
    front = front_records(records, objective)
    fresh = [r for r in records if r.phase == "confirm"]

    def beaten_by(record: TrialRecord) -> Config | None:
        if record.phase != "confirm":
            return None
        others = (r for r in fresh if r.config != record.config)
        return next((r.config for r in others if _beats(r, record, proof, objective)), None)

    still = {record.config for record in front}
    gone = [r for r in fresh if r.config in seemed and r.config not in still and beaten_by(r)]
    shown = sorted((*front, *gone), key=lambda r: -goal_values([r], objective)[0, 0])
    return tuple(FrontPoint(record=r, beaten_by=beaten_by(r)) for r in shown)


def _beats(
    one: TrialRecord, other: TrialRecord, proof: Recommendation, objective: Objective
) -> bool:
    """True if the first is shown to be better in a goal, and is worse in none by its figures."""
    pair = goal_values([one, other], objective)
    if (pair[0] < pair[1]).any():
        return False
    for index, goal in enumerate(objective.goals):
        direct = _compared(one.config, other.config, proof) if goal.metric == "throughput" else None
        interval = interval95(direct) if direct else None
        if interval is not None:
            if interval[0] > 1.0:
                return True
        elif pair[0, index] - pair[1, index] > TELLABLE:
            return True
    return False


def _compared(one: Config, other: Config, proof: Recommendation) -> Comparison | None:
    """Throughput of one over another, from the rounds in which both ran."""
    own = {(c.config, c.reference): c for c in proof.comparisons}
    if direct := own.get((one, other)):
        return direct
    if proof.baseline is None:
        return None
    left, right = own.get((one, proof.baseline.config)), own.get((other, proof.baseline.config))
    return chained(left, right) if left and right else None
