"""How a confirmation spends its time: who takes part, and how long each is measured."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from autotune.core.objective import METRICS, Objective
from autotune.core.records import TrialRecord
from autotune.measure.tail import calls_needed, look_alpha
from autotune.search.rounds import CALLS_PER_WINDOW, MIN_WINDOW_S, Entrant, alternating_windows
from autotune.space.search_space import Confirm, SearchSpace

MIN_ROUNDS = 6
LEAST_ROUNDS = 3  # where the time is too short for more; fewer say nothing of their spread
RATE_WINDOW_SHARE = 0.25  # of the time at a rate, that a round takes where the rate is sought
RATES_TRIED = 2.0  # rates at which the winner is measured for all of that time
CALLS_FOR_ALPHA = 1.5  # times the calls that a flawless tail needs, so that one slow call may be
MAX_STRETCH = 4.0  # of the measuring time, where a limit needs more calls
OPEN_S = 1.5  # opening and warming up one configuration, until trials have shown it
FILL_SHARE = 0.9  # of the time left is planned for; openings vary
MAX_RESERVE_SHARE = 0.5  # of a budget of time


def reserve_s(space: SearchSpace, records: Sequence[TrialRecord] = ()) -> float:
    """Seconds to keep of the budget of time for the confirmation, at most half of it.

    Nothing is kept where trials have shown that not even the shortest confirmation fits into that
    half: the search has the whole time then.
    """
    open_s = open_cost_s(records)
    wanted_s = proof_s(space, open_s)
    if space.budget.time_s is None:
        return wanted_s
    most_s = MAX_RESERVE_SHARE * space.budget.time_s
    return 0.0 if records and _shortest_s(open_s) > most_s else min(wanted_s, most_s)


def proof_s(space: SearchSpace, open_s: float) -> float:
    """Seconds that the least number of rounds takes, if opening a configuration takes `open_s`."""
    if space.confirm is None:
        return 0.0
    finalists = space.confirm.top + 2  # the baseline and the best batch-only one
    if space.objective.load.seeks_rate:
        each_s = RATE_WINDOW_SHARE * space.confirm.duration_s + open_s
        return MIN_ROUNDS * finalists * each_s + RATES_TRIED * space.confirm.duration_s
    return finalists * (space.confirm.duration_s + MIN_ROUNDS * open_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Who takes part, and for how long each is measured in a round.

    Attributes:
        calls: Of the slowest, that a window has room for.
        together: All of a round are live at once and alternate; else one after the other.
    """

    entrants: tuple[Entrant, ...]
    duration_s: float
    open_s: float
    calls: int = CALLS_PER_WINDOW[0]
    together: bool = True
    notes: tuple[str, ...] = ()

    @classmethod
    def fitting(
        cls,
        entrants: Sequence[Entrant],
        space: SearchSpace,
        options: Confirm,
        time_s: float | None,
        *,
        together: bool = True,
    ) -> Schedule | None:
        """The longest rounds that fit `MIN_ROUNDS` times; the least promising are dropped first.

        Where not even two fit, `LEAST_ROUNDS` times; None: nothing fits.
        """
        open_s = open_cost_s([e.record for e in entrants])
        wanted_s = max(_wanted_s(e, space.objective, options) for e in entrants)
        floor_s = max(2 * MIN_WINDOW_S, min(options.duration_s / 4, wanted_s) / MIN_ROUNDS)
        for rounds, count, calls in _choices(len(entrants)):
            most_s = math.inf if time_s is None else FILL_SHARE * time_s / rounds
            plan = cls(
                entrants=tuple(entrants[:count]),
                duration_s=max(min(wanted_s / rounds, most_s / count - open_s), floor_s),
                open_s=open_s,
                calls=calls,
                together=together,
                notes=_dropped(len(entrants) - count),
            ).shortened(most_s, floor_s)
            if plan.round_s(plan.entrants) <= most_s:
                return plan
        return None

    def shortened(self, most_s: float, floor_s: float) -> Schedule:
        """With so much less measuring as the gaps between windows exceed the time of a round."""
        excess_s = 1.01 * max(self.round_s(self.entrants) - most_s, 0.0) / len(self.entrants)
        return replace(self, duration_s=max(self.duration_s - excess_s, floor_s))

    def round_s(self, entrants: Sequence[Entrant]) -> float:
        """What a round of these takes, opening them included."""
        span_s = len(entrants) * self.duration_s
        if self.together:
            _, span_s = alternating_windows(entrants, self.duration_s, 0.0, self.calls)
        return span_s + len(entrants) * self.open_s


def _choices(count: int) -> Iterator[tuple[int, int, int]]:
    """Rounds, entrants and calls per window, the best first."""
    for rounds in (MIN_ROUNDS, LEAST_ROUNDS):
        for taking_part in range(count, min(count, 2) - 1, -1):
            for calls in CALLS_PER_WINDOW:
                yield rounds, taking_part, calls


def _dropped(count: int) -> tuple[str, ...]:
    were = "finalist was" if count == 1 else "finalists were"
    return (f"{count} {were} not measured again for lack of time",) if count else ()


def least_s(entrants: Sequence[Entrant], *, together: bool = True) -> float:
    """Seconds that the shortest confirmation of the best of them takes, beside the baseline."""
    plan = Schedule(
        entrants=tuple(entrants[:2]),
        duration_s=2 * MIN_WINDOW_S,
        open_s=open_cost_s([e.record for e in entrants]),
        calls=CALLS_PER_WINDOW[-1],
        together=together,
    )
    return LEAST_ROUNDS * plan.round_s(plan.entrants) / FILL_SHARE


def _shortest_s(open_s: float) -> float:
    """The same of two whose calls are short."""
    return LEAST_ROUNDS * 2 * (2 * MIN_WINDOW_S + open_s) / FILL_SHARE


def _wanted_s(entrant: Entrant, objective: Objective, options: Confirm) -> float:
    """How long to measure so that a tail without slow calls is shown to hold."""
    quantiles = [q for limit in objective.limits if (q := METRICS[limit.metric].quantile)]
    measurement = entrant.record.measurement
    if not quantiles or measurement is None or not measurement.call_count:
        return options.duration_s
    calls_per_s = measurement.call_count / max(measurement.duration_s or 0.0, 1e-9)
    calls = max(calls_needed(q, look_alpha(options.alpha)) for q in quantiles)
    wanted_s = CALLS_FOR_ALPHA * calls / calls_per_s
    return min(max(options.duration_s, wanted_s), MAX_STRETCH * options.duration_s)


def open_cost_s(records: Sequence[TrialRecord]) -> float:
    """What measuring a trial once costs beyond its windows."""
    costs = [
        max(r.cost_s - sum(m.duration_s or 0.0 for m in r.measurements), 0.0) / len(r.measurements)
        for r in records
        if r.measurement is not None and r.measurement.duration_s is not None
    ]
    return statistics.median(costs) if costs else OPEN_S
