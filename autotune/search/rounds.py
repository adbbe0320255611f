"""One round of a confirmation: fresh processes of several configurations, measured side by side."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from autotune.core.errors import OutOfMemory, TrialError, TrialKilled, TrialLost
from autotune.core.records import Answers, Config, Plan, Result, TrialRecord, Window
from autotune.devices.base import DeviceInfo
from autotune.space.search_space import SearchSpace
from autotune.trial.group import group_spec, trial_plan
from autotune.trial.session import Launcher, Session, open_session
from autotune.workloads import WORKLOADS

log = logging.getLogger(__name__)

MIN_WINDOW_S = 0.25
CALLS_PER_WINDOW = (8, 4)
"""Calls of the slowest configuration in a window: so many, or fewer where time is short."""

MAX_WINDOWS = 24  # of one configuration in a round
MAX_LOST = 3  # times that a round is measured whose processes are killed by somebody else
STRUCK = (TrialLost, TrialKilled)
"""What befalls a configuration, and says nothing of it."""

GAP_STEPS = 1.5  # a call may outlast its window by nearly one step
MIN_GAP_S = 0.005
START_LEAD_S = 0.05  # until every session has its plan
MEMORY_SHARE = 0.8  # of what is free, that all configurations of a round may take together


@dataclass(frozen=True, slots=True, kw_only=True)
class Entrant:
    """A configuration in the confirmation.

    Attributes:
        record: Its trial, which says how long a call takes and how much memory it needs.
    """

    record: TrialRecord

    @property
    def config(self) -> Config:
        return self.record.config

    @property
    def step_s(self) -> float:
        """How long a slow call takes; 0 if unknown."""
        m = self.record.measurement
        return 0.0 if m is None else m.latency_p99_s or m.latency_mean_s or 0.0

    @property
    def call_s(self) -> float:
        """How long a call takes; 0 if unknown."""
        m = self.record.measurement
        return self.step_s if m is None else m.latency_mean_s or self.step_s

    @property
    def memory_bytes(self) -> int:
        """Peak memory, 0 if unknown."""
        m = self.record.measurement
        return 0 if m is None else m.memory_peak_bytes or 0


Outcomes = Mapping[Config, "Result | TrialError"]
Check = Callable[[Config, tuple[Answers, ...]], object]


def unchecked(config: Config, answers: tuple[Answers, ...]) -> None:
    """Any outputs will do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """An entrant with what it is run in: those of one round may differ in all of it.

    Attributes:
        check: Raises WrongOutput if what its instances answer is not what it should be.
    """

    entrant: Entrant
    space: SearchSpace
    info: DeviceInfo
    check: Check = unchecked

    def open(self, launcher: Launcher) -> Session:
        """A fresh session of it.

        Raises:
            TrialError: It cannot be run.
        """
        spec = group_spec(self.entrant.config, self.space, self.info)
        return open_session(spec, launcher, timeout_s=self.space.trial.timeout_s)


def alternating_windows(
    entrants: Sequence[Entrant],
    duration_s: float,
    start_s: float,
    calls: int = CALLS_PER_WINDOW[0],
) -> tuple[list[tuple[Window, ...]], float]:
    """Absolute windows in which the entrants take turns: A B C, C B A, A B C, ...

    A drift of the machine's speed then weighs on all alike. Where calls are so slow that two
    windows would take longer than was wanted, everyone has one, and the rounds alternate.

    Args:
        duration_s: Time measured per entrant.
        start_s: When the first window starts, monotonic clock.
        calls: Of the slowest entrant, that a window has room for.
    Returns:
        One tuple of windows per entrant, and when the last window ends.
    """
    shortest_s = max([MIN_WINDOW_S, *(calls * e.call_s for e in entrants)])
    count = min(MAX_WINDOWS, int(duration_s / shortest_s)) // 2 * 2 or 1
    window_s = max(duration_s / count, shortest_s)
    windows: list[list[Window]] = [[] for _ in entrants]
    order = list(range(len(entrants)))
    for turn in range(count):
        for index in order if turn % 2 == 0 else reversed(order):
            windows[index].append(Window(start_s=start_s, duration_s=window_s))
            start_s += window_s + max(GAP_STEPS * entrants[index].step_s, MIN_GAP_S)
    return [tuple(w) for w in windows], start_s


def runs_alone(space: SearchSpace) -> bool:
    """True if nothing else of a round may live beside what a space's trials start.

    An outside program's run cannot alternate with another's: each run is a turn. Nor may two
    servers stand side by side, of which each may take a whole device, or the same port, for itself.
    """
    return WORKLOADS[space.workload.kind].is_outside


def fits_in_memory(entrants: Sequence[Entrant], info: DeviceInfo) -> bool:
    """True if all entrants can be live at once; unknown sizes are taken to fit."""
    return sum(e.memory_bytes for e in entrants) <= MEMORY_SHARE * _free_bytes(info)


def run_round(
    entrants: Sequence[Entrant],
    space: SearchSpace,
    info: DeviceInfo,
    launcher: Launcher,
    *,
    number: int,
    duration_s: float,
    together: bool,
    check: Check = unchecked,
    calls: int = CALLS_PER_WINDOW[0],
) -> Outcomes:
    """One round of entrants of the same space, see `run_side_by_side`.

    Args:
        check: Of everyone's outputs.
    Returns:
        What came of each, a TrialError where it failed.
    """
    order = [Contestant(entrant=e, space=space, info=info, check=check) for e in entrants]
    for _ in range(MAX_LOST):
        outcomes = run_side_by_side(
            order,
            launcher,
            number=number,
            duration_s=duration_s,
            together=together,
            calls=calls,
        )
        if not any(isinstance(outcome, STRUCK) for outcome in outcomes):
            break
    return {e.config: outcome for e, outcome in zip(entrants, outcomes, strict=True)}


def run_side_by_side(
    contestants: Sequence[Contestant],
    launcher: Launcher,
    *,
    number: int,
    duration_s: float,
    together: bool,
    calls: int = CALLS_PER_WINDOW[0],
) -> list[Result | TrialError]:
    """Open everyone afresh, measure each for `duration_s`, close all.

    Args:
        number: Of the round; the opening order alternates with it, arrivals differ by it.
        together: All live at once in alternating windows; else one after the other.
        calls: Of the slowest, that a window has room for.
    Returns:
        What came of each, in their order; a TrialError where it failed.
    """
    order = list(range(len(contestants)))
    if number % 2:
        order.reverse()
    runners = [contestants[index] for index in order]
    if together:
        found = _in_turns(runners, launcher, number, duration_s, calls)
    else:
        found = [_alone(runner, launcher, number, duration_s) for runner in runners]
    return [found[order.index(index)] for index in range(len(contestants))]


def _in_turns(
    runners: Sequence[Contestant], launcher: Launcher, number: int, duration_s: float, calls: int
) -> list[Result | TrialError]:
    outcomes: list[Result | TrialError | None] = [None] * len(runners)
    live: list[tuple[int, Session]] = []
    with ExitStack() as stack:
        for index, runner in enumerate(runners):
            try:
                session = stack.enter_context(runner.open(launcher))
                runner.check(runner.entrant.config, session.answers)
                session.warm_up(_plan(runner.space, number, (Window(duration_s=duration_s),)))
                live.append((index, session))
            except TrialError as error:
                outcomes[index] = error
        start_s = time.monotonic() + START_LEAD_S
        entrants = [runners[index].entrant for index, _ in live]
        windows, _ = alternating_windows(entrants, duration_s, start_s, calls)
        for (index, session), own in zip(live, windows, strict=True):
            session.begin(_plan(runners[index].space, number, own))
        for index, session in live:
            try:
                outcomes[index] = session.result()
            except TrialError as error:
                outcomes[index] = error
    return [outcome for outcome in outcomes if outcome is not None]


def _alone(
    runner: Contestant, launcher: Launcher, number: int, duration_s: float
) -> Result | TrialError:
    try:
        with runner.open(launcher) as session:
            runner.check(runner.entrant.config, session.answers)
            return session.measure(_plan(runner.space, number, (Window(duration_s=duration_s),)))
    except TrialError as error:
        return error


def _plan(space: SearchSpace, number: int, windows: tuple[Window, ...]) -> Plan:
    """A plan whose limit of time leaves room for the windows themselves."""
    last = windows[-1]
    ends_s = (last.duration_s or 0.0) + (
        last.start_s - time.monotonic() if last.start_s is not None else 0.0
    )
    return replace(
        trial_plan(space, arrival_seed=number + 1),  # trials have 0: fresh arrivals, fresh noise
        windows=windows,
        deadline_s=space.trial.timeout_s + max(ends_s, 0.0),
    )


def _free_bytes(info: DeviceInfo) -> float:
    import psutil

    if info.kind == "cpu":
        free = float(psutil.virtual_memory().available)
        return free if info.memory_total_bytes is None else min(free, info.memory_total_bytes)
    return math.inf if info.memory_total_bytes is None else float(info.memory_total_bytes)


def ran_out_of_memory(outcomes: Outcomes) -> bool:
    """True if an entrant did not fit beside the others."""
    return any(isinstance(outcome, OutOfMemory) for outcome in outcomes.values())
