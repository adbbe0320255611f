"""One round of a confirmation: fresh processes of several configurations, measured side by side."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from autotune.core.errors import OutOfMemory, TrialError
from autotune.core.records import Config, Plan, Result, TrialRecord, Window
from autotune.devices.base import DeviceInfo
from autotune.space.search_space import SearchSpace
from autotune.trial.group import group_spec, trial_plan
from autotune.trial.session import Launcher, Session, open_session

log = logging.getLogger(__name__)

MIN_WINDOW_S = 0.25
CALLS_PER_WINDOW = 8
MAX_WINDOWS = 24  # of one configuration in a round
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
    def memory_bytes(self) -> int:
        """Peak memory, 0 if unknown."""
        m = self.record.measurement
        return 0 if m is None else m.memory_peak_bytes or 0


Outcomes = Mapping[Config, "Result | TrialError"]


def alternating_windows(
    entrants: Sequence[Entrant], duration_s: float, start_s: float
) -> tuple[list[tuple[Window, ...]], float]:
    """Absolute windows in which the entrants take turns: A B C, C B A, A B C, ...

    A drift of the machine's speed then weighs on all alike.

    Args:
        duration_s: Time measured per entrant.
        start_s: When the first window starts, monotonic clock.
    Returns:
        One tuple of windows per entrant, and when the last window ends.
    """
    shortest_s = max([MIN_WINDOW_S, *(CALLS_PER_WINDOW * e.step_s for e in entrants)])
    count = 2 * max(1, min(MAX_WINDOWS, int(duration_s / shortest_s)) // 2)
    window_s = max(duration_s / count, shortest_s)
    windows: list[list[Window]] = [[] for _ in entrants]
    order = list(range(len(entrants)))
    for turn in range(count):
        for index in order if turn % 2 == 0 else reversed(order):
            windows[index].append(Window(start_s=start_s, duration_s=window_s))
            start_s += window_s + max(GAP_STEPS * entrants[index].step_s, MIN_GAP_S)
    return [tuple(w) for w in windows], start_s


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
) -> Outcomes:
    """Open every entrant afresh, measure each for `duration_s`, close all.

    Args:
        number: Of the round; the opening order alternates with it, arrivals differ by it.
        together: All live at once in alternating windows; else one after the other.
    Returns:
        What came of each, a TrialError where it failed.
    """
    order = list(entrants) if number % 2 == 0 else list(reversed(entrants))
    if together:
        return _side_by_side(order, space, info, launcher, number, duration_s)
    return {e.config: _alone(e, space, info, launcher, number, duration_s) for e in order}


def _side_by_side(
    order: Sequence[Entrant],
    space: SearchSpace,
    info: DeviceInfo,
    launcher: Launcher,
    number: int,
    duration_s: float,
) -> Outcomes:
    outcomes: dict[Config, Result | TrialError] = {}
    live: list[tuple[Entrant, Session]] = []
    rehearsal = _plan(space, number, (Window(duration_s=duration_s),))
    with ExitStack() as stack:
        for entrant in order:
            try:
                spec = group_spec(entrant.config, space, info)
                session = stack.enter_context(
                    open_session(spec, launcher, timeout_s=space.trial.timeout_s)
                )
                session.warm_up(rehearsal)
                live.append((entrant, session))
            except TrialError as error:
                outcomes[entrant.config] = error
        start_s = time.monotonic() + START_LEAD_S
        windows, _ = alternating_windows([e for e, _ in live], duration_s, start_s)
        for (_, session), own in zip(live, windows, strict=True):
            session.begin(_plan(space, number, own))
        for entrant, session in live:
            try:
                outcomes[entrant.config] = session.result()
            except TrialError as error:
                outcomes[entrant.config] = error
    return outcomes


def _alone(
    entrant: Entrant,
    space: SearchSpace,
    info: DeviceInfo,
    launcher: Launcher,
    number: int,
    duration_s: float,
) -> Result | TrialError:
    try:
        spec = group_spec(entrant.config, space, info)
        with open_session(spec, launcher, timeout_s=space.trial.timeout_s) as session:
            return session.measure(_plan(space, number, (Window(duration_s=duration_s),)))
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
