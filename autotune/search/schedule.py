"""How a confirmation spends its time: who takes part, and how long each is measured."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.core.objective import METRICS, Objective
from autotune.core.records import TrialRecord
from autotune.measure.tail import calls_needed, look_alpha
from autotune.search.rounds import MIN_WINDOW_S, Entrant
from autotune.space.search_space import Confirm, SearchSpace

MIN_ROUNDS = 6
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
    return 0.0 if records and _shortest_s(2, open_s) > most_s else min(wanted_s, most_s)


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
    """Who takes part, and for how long each is measured in a round."""

    entrants: tuple[Entrant, ...]
    duration_s: float
    open_s: float
    notes: tuple[str, ...] = ()

    @classmethod
    def fitting(
        cls,
        entrants: Sequence[Entrant],
        space: SearchSpace,
        options: Confirm,
        time_s: float | None,
    ) -> Schedule | None:
        """The longest rounds that fit `MIN_ROUNDS` times; the least promising are dropped first."""
        open_s = open_cost_s([e.record for e in entrants])
        wanted_s = max(_wanted_s(e, space.objective, options) for e in entrants) / MIN_ROUNDS
        least_s = max(2 * MIN_WINDOW_S, min(options.duration_s / MIN_ROUNDS / 4, wanted_s))
        kept = list(entrants)
        while len(kept) > 1 or (kept and len(entrants) == 1):
            room_s = math.inf
            if time_s is not None:
                room_s = FILL_SHARE * time_s / MIN_ROUNDS / len(kept) - open_s
            if room_s >= least_s:
                dropped = len(entrants) - len(kept)
                were = "finalist was" if dropped == 1 else "finalists were"
                notes = (f"{dropped} {were} not measured again for lack of time",)
                return cls(
                    entrants=tuple(kept),
                    duration_s=min(wanted_s, room_s),
                    open_s=open_s,
                    notes=notes if dropped else (),
                )
            kept.pop()
        return None


def least_s(entrants: Sequence[Entrant]) -> float:
    """Seconds that the shortest confirmation of the best of them takes, beside the baseline."""
    return _shortest_s(min(2, len(entrants)), open_cost_s([e.record for e in entrants]))


def _shortest_s(entrants: int, open_s: float) -> float:
    return MIN_ROUNDS * entrants * (2 * MIN_WINDOW_S + open_s) / FILL_SHARE


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
