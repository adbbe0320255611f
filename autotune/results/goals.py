"""What a configuration is worth beside the baseline where several goals count."""

from __future__ import annotations

import math

from autotune.core.objective import METRICS, Objective
from autotune.core.records import Comparison, TrialRecord

RATES = ("throughput", "arrival_rate")


def improvements(
    record: TrialRecord, base: TrialRecord, objective: Objective, compared: Comparison | None
) -> dict[str, float]:
    """Goal to the ratio of the record's figure to the baseline's; those that are unknown left out.

    Args:
        compared: Of the two, measured side by side: the better source of a rate's ratio.
    """
    ratios = {}
    for goal in objective.goals:
        field = METRICS[goal.metric].field
        value, reference = (r.verdict.objectives.get(field) for r in (record, base))
        if goal.metric in RATES and compared is not None and compared.ratio > 0:
            ratios[goal.metric] = compared.ratio
        elif value is not None and reference and value > 0 and reference > 0:
            ratios[goal.metric] = value / reference
    return ratios


def weighted_gain(ratios: dict[str, float], objective: Objective) -> float | None:
    """The product of the improvements, each to the power of its weight; None if one is unknown."""
    total = 0.0
    for goal in objective.goals:
        if goal.metric not in ratios:
            return None
        up = 1.0 if METRICS[goal.metric].better == "higher" else -1.0
        total += up * goal.weight * math.log(ratios[goal.metric])
    return math.exp(total)


def least_gain(
    record: TrialRecord, base: TrialRecord, objective: Objective, compared: Comparison | None
) -> float | None:
    """The weighted gain with the lower end of a rate's interval; other goals have none."""
    ratios = improvements(record, base, objective, compared)
    for metric in RATES:
        if metric in ratios and compared is not None:
            least = compared.ratio_ci[0] if compared.ratio_ci else compared.least_ratio
            ratios[metric] = max(least, 1e-9)
    return weighted_gain(ratios, objective)
