"""What comes back from the processes of a trial: raw calls, answers, facts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, Union

import numpy as np
import numpy.typing as npt

from autotune.core.pipeline import RankTrace

Series = Literal["latency", "ttft", "tpot"]
"""Times that every request has; the last two where its answer is streamed in tokens."""

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceFacts:
    """What one instance knows about itself, apart from its calls.

    Attributes:
        cores: Core ids it really ran on. `thread_count`: the framework's threads, read back.
        load_s: Building the model and placing it. `compile_s`: compiling, 0 if nothing is.
        first_call_s: The first call after that; it belongs to neither warm-up nor window.
        warmup_count: Calls of the warm-up. `warmup_steady`: whether their times settled.
        copies_per_call: Host-to-device copy operations of one call.
        memory_peak_bytes: Peak of private memory since the window began; None: unknown.
        precision: The precision that really ran.
        tokens_per_item: Mean length of the items, padding not counted; None: they have none.
        pads: True if a call for fewer items than a batch runs the whole batch all the same.
        rank: What the rank of a pipeline did; None of an instance that runs by itself.
    """

    instance: int
    cores: tuple[int, ...] = ()
    thread_count: int | None = None
    load_s: float = 0.0
    compile_s: float = 0.0
    first_call_s: float = 0.0
    warmup_count: int = 0
    warmup_steady: bool = True
    copies_per_call: int | None = None
    memory_peak_bytes: int | None = None
    precision: str = "float32"
    versions: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    pads: bool = False
    tokens_per_item: float | None = None
    rank: RankTrace | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What one instance's model answered to seeded probe items, before anything was measured.

    A few different items fill the batches in a drawn order, so that every place of a batch can
    be compared with the same item anywhere else, whatever the batch size.

    Attributes:
        item: Which probe item stood at each place, call after call, shape (places,).
        figures: What stands for the output at each place, shape (places, figures).
        widths: How many of the figures are of each output tensor, the first of them its mean,
            the second its mean absolute value; 0 for a tensor that has no axis of items.
        is_discrete: Whether each output tensor holds whole numbers or truth values.
        shapes: Of the output tensors of one run of the model; `run_items`: items of that run.
        precision: The precision that really ran.
    """

    item: Ints
    figures: Floats
    widths: tuple[int, ...]
    is_discrete: tuple[bool, ...]
    shapes: tuple[tuple[int, ...], ...] = ()
    run_items: int = 1
    precision: str = "float32"


class StageTimes(NamedTuple):
    """Where the time of one call went, seconds."""

    h2d_s: float
    compute_s: float
    d2h_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """Raw calls of a group, in no particular order; every array has shape (calls,).

    Attributes:
        window: Index of the window in the plan. `instance`: index of the instance.
        due_s: When the call should have started: its start under a closed load, the arrival of
            its oldest request where there is a queue. Monotonic clock, like the next two.
        item_count: Items of the call.
        cpu_s: CPU time of the calling thread. `switch_count`: its involuntary context
            switches. `fault_count`: its minor page faults.
        h2d_s, compute_s, d2h_s: Stage times of the call, None where the device cannot tell.
        first_request: Index of the call's oldest request among its window's arrivals. `late_s`:
            how long after it could have begun the call began, the load generator's own delay.
            None where there is no queue, like the next two.
        run_queue_wait_s: Time the group's threads waited for a core, per window.
        arrivals_s: Arrivals, one array per window, ascending: as scheduled, or as the clients
            sent them. A call serves `item_count` of them from `first_request` on; those of no
            call were never served.
        rate_per_s: Arrivals per second that were asked for, None if none were.
        clients: Of a closed load with so many clients, else None.
        ttft_s, tpot_s: Of a request whose answer is streamed: from when it was due until its first
            token, and from one token to the next on average (NaN where there is only one).
            `token_count`: tokens of the answer. None where nothing is streamed.
        in_server: The calls are requests to a server that queues and batches by itself: their
            times include the waiting there.
        failures: Requests that were not answered as they should be, by what came instead; they
            count as never served.
        telemetry: What the device told of itself meanwhile (`devices.readings.summed_up`).
    """

    window: Ints
    instance: Ints
    due_s: Floats
    start_s: Floats
    end_s: Floats
    item_count: Ints
    cpu_s: Floats
    switch_count: Ints
    fault_count: Ints
    h2d_s: Floats | None = None
    compute_s: Floats | None = None
    d2h_s: Floats | None = None
    first_request: Ints | None = None
    late_s: Floats | None = None
    ttft_s: Floats | None = None
    tpot_s: Floats | None = None
    token_count: Ints | None = None
    run_queue_wait_s: tuple[float, ...] = ()
    arrivals_s: tuple[Floats, ...] = ()
    rate_per_s: float | None = None
    clients: int | None = None
    in_server: bool = False
    failures: Mapping[str, int] = field(default_factory=dict)
    facts: tuple[InstanceFacts, ...] = ()
    telemetry: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_queued(self) -> bool:
        """True if requests waited in a queue, so that a call serves as many as it found there."""
        return self.first_request is not None

    @property
    def latency_s(self) -> Floats:
        """From when the call was due until it ended."""
        return self.end_s - self.due_s

    def request_latency_s(self) -> Floats:
        """Latency of every request in the order of arrival, window after window.

        From its arrival until the call ended; infinite for a request that was never served.
        Without a queue a request is a call, in the order in which they ended.
        """
        if self.first_request is None:
            # Not by time alone: fresh sessions on virtual clocks all begin at zero.
            return self.latency_s[np.lexsort((self.end_s, self.window))]
        arrivals_s = np.concatenate([*self.arrivals_s, np.empty(0)])
        return np.asarray(self._by_request(self.end_s) - arrivals_s)

    def series(self, name: Series) -> Floats | None:
        """One of the times that every request has, in the order of arrival; None if unknown.

        Infinite for a request that was never served; a request without such a time (one token has
        none per further token) is left out.
        """
        if name == "latency":
            return self.request_latency_s()
        times_s = self.aligned(name)
        return None if times_s is None else np.asarray(times_s[~np.isnan(times_s)])

    def aligned(self, name: Series) -> Floats | None:
        """The same with NaN for a request that has no such time, so that series can be paired."""
        if name == "latency":
            return self.request_latency_s()
        times_s = self.ttft_s if name == "ttft" else self.tpot_s
        if times_s is None:
            return None
        if self.first_request is None:
            return np.asarray(times_s[np.lexsort((self.end_s, self.window))])
        return self._by_request(times_s)

    def _by_request(self, of_calls: Floats) -> Floats:
        """A figure of every call as one of every request, infinite where there was no call."""
        assert self.first_request is not None
        figures = [np.full(arrivals.size, np.inf) for arrivals in self.arrivals_s]
        for index, own_figures in enumerate(figures):
            own = self.window == index
            counts, firsts = self.item_count[own], self.first_request[own]
            offsets = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
            own_figures[np.repeat(firsts, counts) + offsets] = np.repeat(of_calls[own], counts)
        return np.concatenate([*figures, np.empty(0)])

    def of_window(self, index: int) -> Samples:
        """The calls of one window."""
        keep = self.window == index
        arrays: dict[str, Any] = {
            name: None if getattr(self, name) is None else getattr(self, name)[keep]
            for name in SAMPLE_ARRAYS
        }
        if arrays["first_request"] is not None:
            arrays["window"] = np.zeros_like(arrays["window"])  # it indexes the arrivals
        return replace(
            self,
            **arrays,
            run_queue_wait_s=self.run_queue_wait_s[index : index + 1],
            arrivals_s=self.arrivals_s[index : index + 1],
        )


SAMPLE_ARRAYS = (
    "window", "instance", "due_s", "start_s", "end_s", "item_count",
    "cpu_s", "switch_count", "fault_count", "h2d_s", "compute_s", "d2h_s",
    "first_request", "late_s", "ttft_s", "tpot_s", "token_count",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Reported:
    """A finished measurement by an outside program or from a recorded grid.

    Attributes:
        metrics: Field names of `Measurement` to values, unknown ones left out.
        relative_noise: Standard deviation of the reported P99, relative; 0: exact.
        duration_s: How long it took, on whichever clock it ran.
        command_line: How to repeat it by hand, empty for a record.
    """

    metrics: Mapping[str, float]
    relative_noise: float = 0.0
    duration_s: float = 0.0
    command_line: str = ""
    log_tail: str = ""

    @property
    def again(self) -> str:
        """What to add to a complaint about it: how to see it again, if that can be done."""
        return f"; to see it again: {self.command_line}" if self.command_line else ""


Result = Union[Samples, Reported]
