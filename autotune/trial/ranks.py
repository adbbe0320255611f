"""The child's side of a rank: joins the others, then steps and measures with them as one."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from autotune.core.clock import Clock
from autotune.core.errors import AutotuneError
from autotune.core.pipeline import Pass, RankTrace, StepTrace
from autotune.core.records import Answers, InstanceFacts, Plan, Samples, StageTimes
from autotune.devices import collective_backend, framework_device, open_device
from autotune.devices.base import Device, Seat
from autotune.devices.collectives import Meeting, join
from autotune.measure.engine import MIN_WARMUP_CALLS, is_steady, to_samples
from autotune.measure.load import CallRecord
from autotune.measure.noise import read_run_queue_wait_s
from autotune.trial import messages
from autotune.workloads import load_workload

if TYPE_CHECKING:
    from autotune.workloads.pipeline.ranks.rank import Rank

KEPT_STEPS = 8  # of a window, whose pieces are kept
PEER_GRACE_S = 2.0
"""A rank that has lost another waits so long before it complains: why that one went says more."""

LOOPBACK = "127.0.0.1"

_T = TypeVar("_T")
_LOST_PEER = re.compile(
    r"gloo|nccl|hccl|cncl|connection|peer|socket|broken pipe|timed? ?out", re.IGNORECASE
)


class RankProcess:
    """The one rank of a process, with the face of the instances of other processes.

    Args:
        listener: Rank 0's socket, on which the others find it; they have it as well, and close
            it. -1: rank 0 is to open it.
    """

    answers: tuple[Answers, ...] = ()

    def __init__(self, request: messages.Open, clock: Clock, listener: int) -> None:
        assert request.meeting is not None
        (self._number,) = request.instances
        self._request, self._meeting, self._clock = request, request.meeting, clock
        self._listener = listener
        self._spec = request.spec
        self._warm_count, self._warm_steady = 0, True
        self._device: Device | None = None
        self._rank: Rank | None = None
        self.first: Pass | None = None
        self.reference: Pass | None = None

    def open(self) -> None:
        """Join the others, build this rank's stages, run the first step."""
        self._guarded(self._open)

    def warm_up(self, max_s: float, sizes: Sequence[int]) -> None:
        """Step until all have settled, for at most so long by rank 0's clock."""
        self._guarded(lambda: self._warm_up(max_s))

    def measure(self, plan: Plan, base_s: float, shared: object = None) -> Samples:
        """Run the plan's windows; rank 0 hands over the steps, the others what they did."""
        return self._guarded(lambda: self._measure(plan, base_s))

    def evaluate(self) -> dict[str, float]:
        """A pipeline has no items of the user's to answer."""
        return {}

    def squared_norms(self, steps: int) -> tuple[tuple[float, float], ...]:
        """Of gradients, over steps on fresh items: of micro-batches, and of the whole batch."""
        assert self._rank is not None
        rank = self._rank
        return self._guarded(lambda: rank.squared_norms(steps))

    def gathered(self, value: _T) -> list[_T]:
        """What every rank has, known to all of them."""
        assert self._rank is not None
        return self._rank.gathered(value)

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Whether the error says that memory ran out, as the device knows it."""
        knows = self._device is not None and self._device.is_out_of_memory(error)
        return knows or isinstance(error, MemoryError)

    def explain(self, error: BaseException) -> str:
        """The error in one sentence, as the device knows it; empty if it does not."""
        return self._device.explain(error) if self._device is not None else ""

    # --- opening -------------------------------------------------------------------------------

    def _open(self) -> None:
        spec, number = self._spec, self._number
        name = spec.devices[number]
        seat = Seat(config=spec.config, traits=spec.traits)
        self._device = device = open_device(self._request.device_kind, name, seat)
        device.bind(spec.cores[number])
        began_s = self._clock.now_s()
        self._join()
        self._rank = load_workload(spec.workload.kind)(
            rank=number,
            spec=spec,
            device=framework_device(name),
            clock=self._clock,
            wait=device.synchronize,
            known=self._meeting.known,
        )
        device.bind(spec.cores[number])  # again: building may have started threads
        self._load_s = self._clock.now_s() - began_s
        self.reference = self._rank.reference
        began_s = self._clock.now_s()
        self.first = self._rank.first_step()
        device.synchronize()
        self._first_call_s = self._clock.now_s() - began_s

    def _join(self) -> None:
        meeting, is_first = self._meeting, self._number == 0
        if meeting.host == LOOPBACK:
            # A container's own name may lead nowhere; ranks of one machine need no other way.
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        if not is_first and self._listener >= 0:
            os.close(self._listener)
        place = Meeting(
            host=meeting.host,
            port=meeting.port,
            rank=self._number,
            count=len(self._spec.devices),
            limit_s=meeting.limit_s,
            listener=self._listener if is_first else -1,
            has_agent=meeting.has_agent,
        )
        join(place, collective_backend(self._request.device_kind))

    # --- stepping ------------------------------------------------------------------------------

    def _step(self, is_over: Callable[[], bool]) -> tuple[StepTrace, bool]:
        """One step of all: its length is the longest rank's; rank 0 says whether to stop."""
        assert self._rank is not None
        trace = self._rank.step()
        stops = float(self._number == 0 and is_over())
        longest_s, stop = self._rank.together(trace.duration_s, stops)
        return trace._replace(duration_s=longest_s), stop > 0

    def _warm_up(self, max_s: float) -> None:
        until_s = self._clock.now_s() + max_s
        times_s: list[float] = []
        while True:
            trace, is_over = self._step(lambda: self._clock.now_s() >= until_s)
            times_s.append(trace.duration_s)
            steady = is_steady(times_s)
            if (steady and len(times_s) >= MIN_WARMUP_CALLS) or (is_over and len(times_s) >= 2):
                self._warm_count, self._warm_steady = len(times_s), steady
                return

    def _measure(self, plan: Plan, base_s: float) -> Samples:
        assert self._rank is not None and self._device is not None
        self._device.reset_memory_peak()
        kept: deque[StepTrace] = deque(maxlen=KEPT_STEPS)
        windows: list[list[CallRecord]] = []
        waits_s: list[float] = []
        next_s = base_s
        for window in plan.windows:
            start_s = next_s if window.start_s is None else window.start_s
            self._clock.sleep_until(start_s)
            self._rank.together(0.0)
            waited_s = read_run_queue_wait_s(whole_process=True)
            until_s = None if window.duration_s is None else start_s + window.duration_s
            calls = self._window(start_s, until_s, window.iterations, kept)
            windows.append(calls if self._number == 0 else [])
            waits_s.append(read_run_queue_wait_s(whole_process=True) - waited_s)
            next_s = self._clock.now_s() if until_s is None else until_s
        facts = self._facts(tuple(kept))
        items = int(self._spec.config.get("global_batch_size", 1))
        samples = to_samples(windows, tuple(waits_s), items_per_call=items, facts=facts)
        return replace(samples, h2d_s=None, compute_s=None, d2h_s=None)  # stages are `facts.rank`'s

    def _window(
        self, at_s: float, until_s: float | None, iterations: int | None, kept: deque[StepTrace]
    ) -> list[CallRecord]:
        """The steps of a window, put end to end: how the ranks agree to go on is no part of it."""
        calls: list[CallRecord] = []
        is_over = False
        while not is_over:
            cpu_s = time.thread_time()
            trace, is_over = self._step(
                lambda: (
                    self._clock.now_s() >= until_s
                    if until_s is not None
                    else len(calls) + 1 >= (iterations or 1)
                )
            )
            kept.append(trace)
            end_s = at_s + trace.duration_s
            stages = StageTimes(0.0, 0.0, 0.0)
            cpu_s = time.thread_time() - cpu_s
            calls.append(CallRecord(at_s, at_s, end_s, *stages, cpu_s, 0, 0))
            at_s = end_s
        return calls

    def _facts(self, steps: tuple[StepTrace, ...]) -> InstanceFacts:
        assert self._rank is not None and self._device is not None
        peak = self._device.memory_peak_bytes()
        config, rank = self._spec.config, self._rank
        rounds = int(config.get("gradient_accumulation", 1))
        trace = RankTrace(
            rank=self._number,
            replica=rank.replica,
            place=rank.place,
            stages=rank.stages,
            layers=rank.layers,
            schedule=str(config.get("schedule", "GPipe")),
            chunks=len(rank.stages),
            micro_batches=config.micro_batch_count * rounds,
            rounds=rounds,
            steps=steps,
            memory_peak_bytes=peak,
        )
        return InstanceFacts(
            instance=self._number,
            cores=self._spec.cores[self._number],
            thread_count=self._device.thread_count(),
            load_s=self._load_s,
            first_call_s=self._first_call_s,
            warmup_count=self._warm_count,
            warmup_steady=self._warm_steady,
            memory_peak_bytes=peak,
            precision=self._spec.workload.precision,
            versions={**rank.versions, **self._spec.environment, **self._device.facts()},
            notes=(*self._request.notes, *rank.notes),
            rank=trace,
        )

    def _guarded(self, action: Callable[[], _T]) -> _T:
        """Run something of all ranks; where another one is gone, it is the one to say why.

        What went wrong in a layer is raised as it was: the pipeline wraps it into an error that
        tells the shapes of its inputs.
        """
        try:
            with _word_of_where_it_hangs():
                return action()
        except AutotuneError:
            raise
        except RuntimeError as error:
            cause: BaseException = error
            while cause.__cause__ is not None:
                cause = cause.__cause__
            if _LOST_PEER.search(str(cause)) and not self.is_out_of_memory(cause):
                time.sleep(PEER_GRACE_S)
            if cause is error:
                raise
            raise cause from None


@contextlib.contextmanager
def _word_of_where_it_hangs() -> Iterator[None]:
    """Meanwhile the signal that ends a rank lets its last lines say where it was.

    Not beyond that: the last lines of one that has failed are its error's.
    """
    try:
        faulthandler.register(signal.SIGTERM, all_threads=False, chain=True)
    except (OSError, ValueError, AttributeError, RuntimeError):  # its stderr may be anything
        yield
        return
    try:
        yield
    finally:
        faulthandler.unregister(signal.SIGTERM)
