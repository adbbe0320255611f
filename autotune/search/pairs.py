"""Two configurations measured again side by side, pair after pair, until the question is settled.

Both are opened afresh for every pair and measured in alternating windows A B B A; they may differ
in anything: model file, options, limits, device.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from autotune.core.errors import OutOfMemory, TrialError, WrongOutput
from autotune.core.objective import METRICS
from autotune.core.records import Result
from autotune.measure.paired import LOOKS, RatioTest, Rule, judge_pairs
from autotune.measure.pooling import pooled
from autotune.measure.summary import summarise
from autotune.search.rounds import Contestant, fits_in_memory, run_side_by_side, runs_alone
from autotune.trial.session import Launcher

MAX_RETRIES = 2
"""Pairs measured again because a process failed, in all; then its side counts as failed."""

TURNS_NOTE = "the two do not fit in memory together: measured in turns, which is less precise"


@dataclass(slots=True, kw_only=True)
class Pairs:
    """What has been measured so far.

    Attributes:
        log_ratios: Of the metric, positive where the first side is better; one per pair.
        results: Of the first side and of the second, one per pair each.
        failures: By side, why it could not be measured.
        together: False if the two took turns as whole runs.
        stopped: Why measuring ended before the question was settled; empty if it is.
    """

    log_ratios: list[float] = field(default_factory=list)
    results: tuple[list[Result], list[Result]] = field(default_factory=lambda: ([], []))
    failures: dict[int, TrialError] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    together: bool = True
    stopped: str = ""
    began_s: float = field(default_factory=time.time)

    def pool(self, side: int) -> Result | None:
        """All pairs of a side together, None if it has none."""
        return pooled(self.results[side]) if self.results[side] else None


def measure_pairs(
    sides: tuple[Contestant, Contestant],
    launcher: Launcher,
    rule: Rule,
    *,
    metric: str,
    duration_s: float,
    time_s: float | None = None,
    into: Pairs | None = None,
    on_progress: Callable[[str], None] = lambda text: None,
) -> Pairs:
    """Measure pairs until the rule's question is settled, at most `LOOKS[-1]` of them.

    Args:
        rule: Its looks are those at `LOOKS`.
        metric: A key of `METRICS`.
        duration_s: Time measured per side in a pair.
        time_s: Seconds to spend on the launcher's clock; None: no limit but the number of pairs.
        into: Filled as pairs come in, so that an interruption loses none.
    """
    pairs = into if into is not None else Pairs()
    pairs.together = not any(runs_alone(side.space) for side in sides)
    if pairs.together and not fits_in_memory([side.entrant for side in sides], sides[0].info):
        pairs.together = False
        pairs.notes.append(TURNS_NOTE)
    began_s, retries, rounds = launcher.now_s(), 0, 0
    while len(pairs.log_ratios) < LOOKS[-1]:
        done = len(pairs.log_ratios)
        spent_s = launcher.now_s() - began_s
        if time_s is not None and spent_s + spent_s / max(rounds, 1) > time_s:
            pairs.stopped = f"the time given allowed {done} pairs"
            return pairs
        on_progress(_progress(pairs, rule))
        outcomes = run_side_by_side(
            sides, launcher, number=rounds, duration_s=duration_s, together=pairs.together
        )
        rounds += 1
        failed = _take(pairs, outcomes, metric)
        if pairs.together and any(isinstance(e, OutOfMemory) for e in failed.values()):
            pairs.together = False
            pairs.notes.append(TURNS_NOTE)
        elif failed and retries == MAX_RETRIES:
            pairs.failures = failed
            return pairs
        elif failed:
            retries += 1
            pairs.notes += [
                f"a pair was measured again, since {'AB'[i]} failed: {e}" for i, e in failed.items()
            ]
        elif len(pairs.log_ratios) in LOOKS and _is_settled(pairs, rule):
            return pairs
    pairs.stopped = f"{LOOKS[-1]} pairs did not settle it"
    return pairs


def _take(pairs: Pairs, outcomes: list[Result | TrialError], metric: str) -> dict[int, TrialError]:
    """Keep a pair, or say which sides failed."""
    failed: dict[int, TrialError] = {}
    figures: list[float] = []
    for index, outcome in enumerate(outcomes):
        try:
            if isinstance(outcome, TrialError):
                raise outcome
            figures.append(_figure(outcome, metric))
        except TrialError as error:
            failed[index] = error
    if not failed:
        sign = 1.0 if METRICS[metric].better == "higher" else -1.0
        pairs.log_ratios.append(sign * math.log(figures[0] / figures[1]))
        for index, outcome in enumerate(outcomes):
            assert not isinstance(outcome, TrialError), "checked above"
            pairs.results[index].append(outcome)
    return failed


def _figure(result: Result, metric: str) -> float:
    value = getattr(summarise(result), METRICS[metric].field)
    if value is None or not 0 < value < math.inf:
        raise WrongOutput(f"{metric} is {'unknown' if value is None else f'{value:g}'}")
    return float(value)


def _is_settled(pairs: Pairs, rule: Rule) -> bool:
    test = judge_pairs(pairs.log_ratios, rule)
    return test is not None and test.is_settled


def _progress(pairs: Pairs, rule: Rule) -> str:
    done = len(pairs.log_ratios)
    target = next(look for look in LOOKS if look > done)
    test: RatioTest | None = judge_pairs(pairs.log_ratios, rule)
    so_far = f"; so far {test.ratio:.3g}×" if test is not None else ""
    return f"pair {done + 1} of {target}, {LOOKS[-1]} at most{so_far}"
