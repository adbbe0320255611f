"""Where the time of a configuration goes, what holds it back, and which parameter is next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from autotune.core.records import Config, Scalar

Part = Literal["queue", "host", "h2d", "gaps", "compute", "memory", "communication", "d2h"]
"""Where time goes: waiting for an instance, the host's own work, copies to the device, launches
and idle gaps, arithmetic, memory traffic of the arithmetic, other devices, copies back."""

Source = Literal["profile", "trial", "declared", "files"]

HOLDS_WITHIN = 0.25
"""A forecast holds if what was measured is no farther from it than this, relative."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """A type of operation: how often, how long in all, on how many cores at most (0: unknown)."""

    name: str
    count: int
    total_s: float
    share: float
    max_blocks: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """The time of some calls of one instance; shares are of the span and the wait before it.

    Attributes:
        span_s: From the first operation's start to the last one's end.
        call_count: Calls (steps) in it. None, here and below: not told.
        busy_s: Time in which the device computed; overlapping operations count once.
        h2d_s, d2h_s, communication_s: The same of these.
        h2d_alone_s, d2h_alone_s, communication_alone_s: Of these, the time in which nothing was
            computed.
        h2d_count, d2h_count: Copies. Those whose direction is not told count as to the device.
        gap_count, gap_s: Stretches between computing operations in which nothing was computed.
        idle_s: Of the gaps, the time in which nothing was copied nor communicated either.
        host_s: Of the idle time, that in which the host was at work of its own or away, rather
            than launching operations.
        memory_share: Of the busy time, the share in which memory traffic sets the pace.
        queue_s: How long requests waited for their call, one request per call.
        per_call_s: Of the span, what a larger batch would share out: it does not grow with it.
        copy_overhead_s: What each copy costs beside its bytes, of one copy.
        shared_s: Of the span, the demand on what instances have in common, so that they wait for
            each other there.
        kernel_count: Computing operations. `median_kernel_s`: how long the middle one took.
    """

    span_s: float
    call_count: int | None = None
    busy_s: float = 0.0
    h2d_s: float = 0.0
    d2h_s: float = 0.0
    communication_s: float = 0.0
    h2d_alone_s: float = 0.0
    d2h_alone_s: float = 0.0
    communication_alone_s: float | None = None
    h2d_count: int = 0
    d2h_count: int = 0
    gap_count: int | None = None
    gap_s: float = 0.0
    idle_s: float = 0.0
    host_s: float = 0.0
    memory_share: float | None = None
    queue_s: float = 0.0
    per_call_s: float | None = None
    copy_overhead_s: float | None = None
    shared_s: float | None = None
    kernel_count: int = 0
    median_kernel_s: float | None = None
    kernels: tuple[Kernel, ...] = ()

    @property
    def utilisation(self) -> float:
        """Share of the span in which the device computed."""
        return self.busy_s / self.span_s if self.span_s else 0.0

    def share(self, seconds: float) -> float:
        """Of the span, and of the wait before it where there was a queue."""
        whole_s = self.span_s + self.queue_s
        return seconds / whole_s if whole_s else 0.0

    @property
    def h2d_copies_per_call(self) -> float | None:
        """None if the calls are not known."""
        return self.h2d_count / self.call_count if self.call_count else None


class OpWork(NamedTuple):
    """Work of one operator in one call: arithmetic, and bytes read and written."""

    name: str
    flops: float
    moved_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """What an instance's part of a device was seen to do at best.

    Attributes:
        flops_per_s: Of a matrix product in the model's precision.
        copy_bytes, copy_rates: Bytes that a copy within the device moves, reading and writing
            counted, and its bytes per second; small ones stay in caches. Ascending.
        launch_s: Calling an operator that has nothing to do.
        host_bytes_per_s: Of a large copy from the host.
    """

    flops_per_s: float
    copy_bytes: tuple[float, ...]
    copy_rates: tuple[float, ...]
    launch_s: float
    host_bytes_per_s: float

    @property
    def bytes_per_s(self) -> float:
        """Of the largest copy."""
        return self.copy_rates[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """What an instance found out about its model and its part of the device, apart from its calls.

    Attributes:
        ceilings: None where the runtime is not torch.
        input_bytes: That are copied to the device for one call.
        work: Operators of one call. `doubled`: the same with twice the items; () if not counted.
        busy_cores: CPU time of the process per second of calls; None if others share the process.
    """

    ceilings: Ceilings | None = None
    input_bytes: int = 0
    work: tuple[OpWork, ...] = ()
    doubled: tuple[OpWork, ...] = ()
    busy_cores: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """Work of one call against what the device was seen to do (Williams et al. 2009).

    Attributes:
        flops, moved_bytes: Of one call, counted operator by operator.
        peak_flops_per_s, peak_bytes_per_s: Ceilings, measured on the instance's part of the device
            by a matrix product and by a copy.
        growth: By which factor the model's time grows when the batch doubles, by the same ceilings.
        memory_share: Of the time that the ceilings ask for, the part of operators that memory holds
            back.
    """

    flops: float
    moved_bytes: float
    peak_flops_per_s: float
    peak_bytes_per_s: float
    growth: float | None = None
    memory_share: float = 0.0

    @property
    def intensity(self) -> float:
        """Operations per byte."""
        return self.flops / self.moved_bytes if self.moved_bytes else 0.0

    @property
    def ridge(self) -> float:
        """The intensity from which on arithmetic is the limit."""
        return self.peak_flops_per_s / self.peak_bytes_per_s if self.peak_bytes_per_s else 0.0

    @property
    def bound(self) -> Literal["compute", "memory"]:
        """What holds the model back while it computes."""
        return "memory" if self.memory_share > 0.5 else "compute"

    @property
    def least_s(self) -> float:
        """The shortest a call could take by the two ceilings."""
        return max(self.flops / self.peak_flops_per_s, self.moved_bytes / self.peak_bytes_per_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What changing one parameter should bring, and what it was seen to bring.

    Attributes:
        knob: The parameter. `before`, `after`: its values.
        gain: Factor by which the metric should improve; above 1 is better.
        metric: throughput, or latency_mean where arrivals decide the throughput.
        at_most: The formula is a bound, which holds where what runs side by side shares nothing
            else, such as the memory's bandwidth.
        formula: With the figures put in. `source`: where it is from.
        measured: The factor that was measured, None if it was not. `measured_ci`: its interval.
        trials: Numbers of the two trials that measured it; () if windows side by side did.
    """

    knob: str
    before: Scalar
    after: Scalar
    gain: float
    metric: Literal["throughput", "latency_mean"] = "throughput"
    at_most: bool = False
    formula: str = ""
    source: str = ""
    measured: float | None = None
    measured_ci: tuple[float, float] | None = None
    trials: tuple[int, ...] = ()

    @property
    def error(self) -> float | None:
        """How far the measured gain is from the forecast, relative; None if it was not measured."""
        return None if self.measured is None else self.measured / self.gain - 1.0

    @property
    def holds(self) -> bool | None:
        """True if the measured gain is within `HOLDS_WITHIN` of the forecast."""
        return None if self.error is None else abs(self.error) <= HOLDS_WITHIN


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The verdict on one configuration.

    Attributes:
        config: None if a profile was read of which it is not known.
        source: profile: it was recorded; trial: from the stage times of its trial; declared: from
            a simulated device's cost model; files: from a profiler's files.
        part: What holds it back: the part that most time would be saved in.
        share: Its share of the time. `shares`: of all parts; they need not add up to 1, since
            some overlap.
        knob: The parameter to change next, empty if none of ours helps.
        forecasts: Of the knob first, then of other parameters, the most promising ones first.
        efficiency: Throughput of all instances over that of as many alone; None if it is not known.
        sentences: For a person, the verdict first.
        files: The profile's, relative to the study's directory where there is one.
        made_at_s: When, Unix time; 0 if it follows from the trials alone.
    """

    config: Config | None = None
    source: Source
    part: Part
    share: float
    shares: Mapping[str, float]
    breakdown: Breakdown
    knob: str = ""
    forecasts: tuple[Forecast, ...] = ()
    roofline: Roofline | None = None
    efficiency: float | None = None
    sentences: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    made_at_s: float = 0.0

    @property
    def forecast(self) -> Forecast | None:
        """Of the knob that is next, None if nothing can be said of it."""
        return next((f for f in self.forecasts if f.knob == self.knob), None)
