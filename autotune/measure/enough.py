"""How much measuring a limit needs, before any of it is done."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.core.objective import METRICS, Objective
from autotune.core.units import format_duration
from autotune.measure.tail import calls_needed, look_alpha


@dataclass(frozen=True, slots=True, kw_only=True)
class Enough:
    """What it takes to show that a limit on a latency quantile holds, per configuration.

    Attributes:
        metric: The limit that needs most, by its name in a space file.
        calls: Calls of one instance without a slow one among them; more if there are some.
        least_s: Seconds that they take where a call is as short as the baseline's; None if that
            is not known.
        most_s: Seconds that they take where a call lasts as long as the limit lets it.
    """

    metric: str
    calls: int
    least_s: float | None
    most_s: float

    def text(self) -> str:
        """As a sentence."""
        each = f"{self.calls:,} calls without a slow one"
        longest = f"{format_duration(self.most_s)} where a call lasts as long as the limit allows"
        if self.least_s is None:
            return f"to show {self.metric} takes {each}: up to {longest}"
        shortest = f"{format_duration(self.least_s)} where it is as short as the baseline's"
        return f"to show {self.metric} takes {each}: {shortest}, {longest}"


def enough(objective: Objective, *, alpha: float, call_s: float | None = None) -> Enough | None:
    """What the objective's limits need under a closed load.

    Args:
        alpha: Probability, at most, of showing a limit that does not hold.
        call_s: How long a call of the baseline takes, None if that is not known.
    Returns:
        None if no quantile is limited, or requests wait in a queue: then it depends on their
        rate and on how the queue ties them together.
    """
    if objective.load.is_queued:
        return None
    needs = [
        (calls_needed(quantile, look_alpha(alpha)), limit)
        for limit in objective.limits
        if (quantile := METRICS[limit.metric].quantile) is not None
    ]
    if not needs:
        return None
    calls, limit = max(needs, key=lambda need: need[0] * need[1].bound)
    return Enough(
        metric=limit.metric,
        calls=calls,
        least_s=None if call_s is None else calls * min(call_s, limit.bound),
        most_s=calls * limit.bound,
    )
