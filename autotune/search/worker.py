"""The loop of a study: ask, measure, judge, tell, until a budget or the space is used up."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from autotune.core.errors import StorageError, TrialError, WrongOutput
from autotune.core.outcomes import Outcome
from autotune.core.records import Phase, Reported, Result, TrialRecord, Verdict
from autotune.core.units import format_duration
from autotune.devices.base import DeviceInfo
from autotune.measure.equal_work import Agreement
from autotune.measure.judge import SEARCH_ALPHA, judge
from autotune.measure.summary import summarise
from autotune.search.confirm import reserve_s
from autotune.search.guard import Guard
from autotune.search.study import Asked, StopReason, Study
from autotune.space.search_space import SearchSpace, TrialOptions
from autotune.trial.group import group_spec, trial_plan
from autotune.trial.rate_search import rate_goal, search_rate
from autotune.trial.session import Launcher, Session, open_session

log = logging.getLogger(__name__)

OnResult = Callable[[Phase, int, Result], None]
"""Given the raw result of a trial: its phase, its number, what was measured."""

MAX_SAME_FAILURES = 3  # alike and in a row: a fault of the workload, not of configurations
TIME_GRACE_S = 1.0  # how far the running trial may go beyond the budget of time


def run_trials(
    study: Study,
    space: SearchSpace,
    info: DeviceInfo,
    launcher: Launcher,
    *,
    on_record: Callable[[TrialRecord], None] = lambda record: None,
    on_start: Callable[[Asked], None] = lambda asked: None,
    on_result: OnResult = lambda phase, number, result: None,
    should_stop: Callable[[], bool] = lambda: False,
    time_s: float | None = None,
) -> StopReason:
    """Run trials until there is nothing left to do.

    Args:
        on_record: Told of every finished trial. on_start: of every one that begins.
        on_result: Given the raw result of every trial that has one.
        should_stop: Asked between trials.
        time_s: Seconds from now on the launcher's clock, of which `reserve_s` is kept for the
            confirmation. The trial that runs at the end is cut short and counts as
            interrupted. None: no limit.
    Raises:
        KeyboardInterrupt: Also on SIGTERM, after the running trial has been kept as
            interrupted; that holds for every other error that is no TrialError too.
    """
    until_s = None if time_s is None else launcher.now_s() + time_s
    records: list[TrialRecord] = []
    guard = Guard(study, space, info, launcher)
    try:
        with sigterm_interrupts():
            while not should_stop():
                left_s = None
                if until_s is not None:
                    left_s = until_s - reserve_s(space, records) - launcher.now_s()
                if left_s is not None and left_s <= 0:
                    return StopReason.TIME
                asked = study.ask()
                if isinstance(asked, StopReason):
                    return asked
                on_start(asked)
                record = run_trial(
                    study, asked, guard, space, info, launcher, on_result=on_result, left_s=left_s
                )
                records.append(record)
                on_record(record)
                if failed_alike(records):
                    return StopReason.CRASHES
    except BaseException:
        with contextlib.suppress(StorageError):  # the first error is the one to be told
            study.abandon()
        raise
    return StopReason.INTERRUPTED


def run_trial(
    study: Study,
    asked: Asked,
    guard: Guard,
    space: SearchSpace,
    info: DeviceInfo,
    launcher: Launcher,
    *,
    on_result: OnResult = lambda phase, number, result: None,
    left_s: float | None = None,
) -> TrialRecord:
    """Measure one configuration and tell the study, whatever happens.

    Args:
        guard: Looks at the configuration's outputs before anything is measured.
        left_s: What is left of the budget of time.
    """
    record = TrialRecord(
        number=asked.number,
        config=asked.config,
        phase=asked.phase,
        verdict=Verdict(outcome=Outcome.INTERRUPTED, reasons=("stopped before it was done",)),
        started_at_s=time.time(),
        worker=worker_name(),
    )
    limit_s = space.trial.timeout_s
    if left_s is not None:
        limit_s = min(limit_s, left_s + TIME_GRACE_S)
    began_s, real_began_s = launcher.now_s(), time.monotonic()
    try:
        record = _measured(record, guard, space, info, launcher, limit_s, on_result)
    except TrialError as error:
        record = _failed(record, error)
        if error.outcome is Outcome.TIMEOUT and limit_s < space.trial.timeout_s:
            # Stopped by the budget of time, not by its own limit: it did not get its chance.
            record = _ended(record, Outcome.INTERRUPTED, "the budget of time ran out")
        elif error.outcome is Outcome.TIMEOUT and time.monotonic() - real_began_s >= limit_s:
            reason = f"took longer than {format_duration(limit_s)} (trial.timeout)"
            record = _ended(record, Outcome.TIMEOUT, reason)
    finally:
        record = study.tell(
            replace(
                record,
                duration_s=time.monotonic() - real_began_s,
                cost_s=launcher.now_s() - began_s,
            )
        )
    return record


def failed_alike(records: Sequence[TrialRecord]) -> bool:
    """True if the last `MAX_SAME_FAILURES` trials crashed, or gave no result, in the same words.

    Numbers do not count: they are mostly the configuration's own, as in a shape.
    """
    last = [r.verdict for r in records[-MAX_SAME_FAILURES:]]
    if len(last) < MAX_SAME_FAILURES or not all(v.outcome.is_accident for v in last):
        return False
    if any(r.verdict.outcome.is_measured for r in records) and all(
        v.outcome is Outcome.WRONG_OUTPUT for v in last
    ):
        return False  # held against a baseline that works: they are the configurations' faults
    return len({re.sub(r"\d+", "0", " ".join(v.reasons[:1])) for v in last}) == 1


@contextlib.contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """Let SIGTERM end the run as Ctrl-C does; without effect outside the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt("SIGTERM")

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def worker_name() -> str:
    """This process in the records."""
    return f"{socket.gethostname()}:{os.getpid()}"


def _measured(
    record: TrialRecord,
    guard: Guard,
    space: SearchSpace,
    info: DeviceInfo,
    launcher: Launcher,
    limit_s: float,
    on_result: OnResult,
) -> TrialRecord:
    until_s = time.monotonic() + limit_s
    spec = group_spec(record.config, space, info)
    with open_session(spec, launcher, timeout_s=limit_s) as session:
        agreement = guard.check(record.config, session.answers)
        if space.objective.load.seeks_rate:
            record = _with_rate(record, space, session, until_s, on_result)
            return _with_agreement(record, agreement)
        # The limit holds for the trial as a whole, not for each of its steps.
        session.warm_up(replace(trial_plan(space), deadline_s=until_s - time.monotonic()))
        session.begin(replace(trial_plan(space), deadline_s=until_s - time.monotonic()))
        result = session.result()
    on_result(record.phase, record.number, result)
    measurement = summarise(result)
    verdict = judge(result, measurement, space.objective, alpha=SEARCH_ALPHA)
    if verdict.outcome is Outcome.WRONG_OUTPUT and isinstance(result, Reported):
        raise WrongOutput(f"{verdict.reasons[0]}{result.again}", log_tail=result.log_tail)
    return _with_agreement(replace(record, measurements=(measurement,), verdict=verdict), agreement)


def _with_agreement(record: TrialRecord, agreement: Agreement) -> TrialRecord:
    """The record with what its outputs were found to be."""
    untold = (f"outputs were not compared: {agreement.untold}",) if agreement.untold else ()
    measurements = tuple(
        replace(m, output_difference=agreement.difference, warnings=(*m.warnings, *untold))
        for m in record.measurements
    )
    return replace(record, measurements=measurements)


def _with_rate(
    record: TrialRecord,
    space: SearchSpace,
    session: Session,
    until_s: float,
    on_result: OnResult,
) -> TrialRecord:
    """The configuration's own highest rate, estimated: a trial is too short to prove it."""
    window_s = space.trial.duration_s or TrialOptions().duration_s or 0.0
    goal = rate_goal(record.config, space.objective, window_s=window_s, seed=space.trial.seed)
    found = search_rate(
        session,
        replace(goal, proves=False),
        space.objective,
        left_s=lambda: until_s - time.monotonic(),
    )
    on_result(record.phase, record.number, found.samples)
    return replace(record, measurements=(found.measurement,), verdict=found.verdict)


def _failed(record: TrialRecord, error: TrialError) -> TrialRecord:
    return replace(_ended(record, error.outcome, str(error)), log_tail=error.log_tail)


def _ended(record: TrialRecord, outcome: Outcome, reason: str) -> TrialRecord:
    return replace(record, verdict=Verdict(outcome=outcome, reasons=(reason,)))
