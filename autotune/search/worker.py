"""The loop of a study: ask, measure, judge, tell, until a budget or the space is used up."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
import signal
import socket
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from autotune.core.errors import StorageError, TrialError, TrialKilled, UsageError
from autotune.core.outcomes import Outcome
from autotune.core.records import Phase, Result, TrialRecord, Verdict
from autotune.core.units import format_duration
from autotune.devices.base import DeviceInfo
from autotune.search.attempt import Bench, Room, quietest
from autotune.search.guard import Guard
from autotune.search.schedule import OPEN_S, reserve_s
from autotune.search.study import LOOK_S, Asked, StopReason, Study
from autotune.search.watch import Repeats, Watch
from autotune.space.search_space import SearchSpace
from autotune.trial.canary import open_canary
from autotune.trial.server import WORDS_S
from autotune.trial.session import Launcher
from autotune.workloads import WORKLOADS

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
    watch: Watch | None = None,
    time_s: float | None = None,
) -> StopReason:
    """Run trials until there is nothing left to do.

    Args:
        on_record: Told of every finished trial. on_start: of every one that begins.
        on_result: Given the raw result of every trial that has one.
        should_stop: Asked between trials.
        watch: On the machine; None: a fresh one.
        time_s: Seconds from now on the launcher's clock, of which `reserve_s` is kept for the
            confirmation. The trial that runs at the end is cut short and counts as
            interrupted. None: no limit.
    Raises:
        UsageError: The baseline cannot be run as it was asked for.
        KeyboardInterrupt: Also on SIGTERM, after the running trial has been kept as
            interrupted; that holds for every other error that is no TrialError too.
    """
    until_s = None if time_s is None else launcher.now_s() + time_s
    records: list[TrialRecord] = []
    bench = Bench(
        space=space,
        info=info,
        launcher=launcher,
        guard=Guard(study, space, info, launcher),
        watch=watch or Watch(study, open_canary(space.workload, info, launcher)),
        repeats=Repeats(launcher),
    )
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
                    if study.is_unsure():
                        time.sleep(LOOK_S)  # a trial of a worker elsewhere may have to be taken up
                        continue
                    return asked
                on_start(asked)
                room = _room(study, records, space, left_s)
                record = run_trial(
                    study,
                    asked,
                    bench,
                    on_result=on_result,
                    left_s=left_s,
                    room=room,
                    is_first=not records,
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
    bench: Bench,
    *,
    on_result: OnResult = lambda phase, number, result: None,
    left_s: float | None = None,
    room: Room | None = None,
    is_first: bool = False,
) -> TrialRecord:
    """Measure one configuration and tell the study, whatever happens.

    Args:
        left_s: What is left of the budget of time. `room`: for an extension of the window.
        is_first: True for the first trial of a run.
    """
    launcher = bench.launcher
    record = TrialRecord(
        number=asked.number,
        config=asked.config,
        phase=asked.phase,
        verdict=Verdict(outcome=Outcome.INTERRUPTED, reasons=("stopped before it was done",)),
        started_at_s=time.time(),
        worker=worker_name(bench.info),
    )
    began_s, real_began_s = launcher.now_s(), time.monotonic()
    until_s = math.inf if left_s is None else real_began_s + left_s + TIME_GRACE_S

    def tried() -> TrialRecord:
        return _tried(
            record,
            bench,
            on_result=on_result,
            until_s=until_s,
            room=room or Room(),
            is_first=is_first,
        )

    try:
        try:
            record = tried()
        except TrialKilled as error:
            log.warning("trial %d: %s; it is measured once more", record.number, error)
            record = _once_more(record, error, tried)
    finally:
        record = study.tell(
            replace(
                record,
                duration_s=time.monotonic() - real_began_s,
                cost_s=launcher.now_s() - began_s,
            )
        )
    return record


def _tried(
    record: TrialRecord,
    bench: Bench,
    *,
    on_result: OnResult,
    until_s: float,
    room: Room,
    is_first: bool,
) -> TrialRecord:
    """Measure a configuration; the record with what came of it.

    Args:
        until_s: When the budget of time is used up, on the monotonic clock.
    Raises:
        TrialKilled: Somebody else ended it. UsageError: The baseline cannot be run.
    """
    space, began_s = bench.space, time.monotonic()
    timeout_s = space.trial.timeout_s
    try:
        record, result = quietest(
            record,
            bench,
            limit_s=min(timeout_s, until_s - began_s),
            room=room,
            is_first=is_first,
        )
        on_result(record.phase, record.number, result)
    except TrialKilled:
        raise
    except TrialError as error:
        record, now_s = _failed(record, error), time.monotonic()
        is_late = now_s >= until_s - (WORDS_S if _is_server(space) else 0.0)
        if error.outcome is Outcome.TIMEOUT and is_late:
            # Stopped by the budget of time, not by a limit of its own: it had no chance.
            record = _ended(record, Outcome.INTERRUPTED, "the budget of time ran out")
        elif error.outcome is Outcome.TIMEOUT and now_s - began_s >= timeout_s:
            reason = f"took longer than {format_duration(timeout_s)} (trial.timeout)"
            record = _ended(record, Outcome.TIMEOUT, reason)
    except UsageError as error:
        if record.config == space.baseline:
            raise  # a mistake of the user's; what only this configuration cannot do is none
        record = _ended(record, Outcome.CRASHED, str(error))
    return record


def _once_more(
    record: TrialRecord, first: TrialKilled, tried: Callable[[], TrialRecord]
) -> TrialRecord:
    """The record of a second try, which says what came of the first one."""
    try:
        again = tried()
    except TrialKilled as error:
        record = _failed(record, error)
        return _ended(record, record.verdict.outcome, f"tried twice: {error}")
    if again.measurement is None:
        return again
    warnings = (*again.measurement.warnings, f"tried twice; the first time: {first}")
    shown = replace(again.measurement, warnings=warnings)
    return replace(again, measurements=(*again.measurements[:-1], shown))


def _is_server(space: SearchSpace) -> bool:
    return WORKLOADS[space.workload.kind].runs == "server"


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
    """Let SIGTERM end the run as Ctrl-C does; without effect outside the main thread.

    A hangup too, unless somebody has seen to it: the command line, or `nohup`.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, _frame: object) -> None:
        raise KeyboardInterrupt(signal.Signals(number).name)

    numbers = [signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
        numbers.append(signal.SIGHUP)
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, action in before.items():
            signal.signal(number, action)


def worker_name(info: DeviceInfo) -> str:
    """This process and its device in the records."""
    return f"{socket.gethostname()}:{os.getpid()} {info.name}"


def _room(
    study: Study, records: Sequence[TrialRecord], space: SearchSpace, left_s: float | None
) -> Room:
    """What a budget of time leaves for extensions; without one there is no end of it."""
    shown = [
        r.measurement.throughput_items_per_s or 0.0
        for r in records
        if r.verdict.outcome is Outcome.OK and r.measurement is not None
    ]
    bar = max(shown, default=0.0)
    if left_s is None:
        return Room(bar=bar)
    costs = [r.cost_s for r in records]
    usual_s = statistics.median(costs) if costs else (space.trial.duration_s or 0.0) + OPEN_S
    progress = study.progress()
    to_come = max(progress.total - progress.done, 1)  # the present one included
    spare_s = max(left_s - to_come * usual_s, 0.0)
    return Room(spare_s=spare_s, share_s=spare_s / to_come, bar=bar)


def _failed(record: TrialRecord, error: TrialError) -> TrialRecord:
    return replace(_ended(record, error.outcome, str(error)), log_tail=error.log_tail)


def _ended(record: TrialRecord, outcome: Outcome, reason: str) -> TrialRecord:
    return replace(record, verdict=Verdict(outcome=outcome, reasons=(reason,)))
