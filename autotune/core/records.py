"""The values a trial hands from layer to layer: frozen, keyword-only, SI units in the names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, Union

import numpy as np
import numpy.typing as npt

from autotune.core.outcomes import Outcome
from autotune.core.pipeline import PipelineFigures, RankTrace

SCHEMA_VERSION = 1

Scalar = Union[bool, int, float, str]
Series = Literal["latency", "ttft", "tpot"]
"""Times that every request has; the last two where its answer is streamed in tokens."""

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

DIMENSIONS = (
    "batch_size",
    "instance_count",
    "cores_per_instance",
    "batched_h2d",
    "micro_batch_count",
)
"""The five dimensions every configuration has, in the order in which they are shown."""


# --- what is run -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """One way to run the model; the defaults are those of the space file.

    Attributes:
        batch_size: Items per inference call of one instance.
        cores_per_instance: A core count, "cube|vector" on an NPU, or "all".
        extra: Further parameters as sorted pairs, so that a configuration can be a key:
            instance_mode, max_queue_delay (seconds), device_count, env.NAME, a command's
            placeholders.
    """

    batch_size: int = 1
    instance_count: int = 1
    cores_per_instance: int | str = "all"
    batched_h2d: bool = False
    micro_batch_count: int = 1
    extra: tuple[tuple[str, Scalar], ...] = ()

    @classmethod
    def from_dict(cls, values: Mapping[str, Scalar]) -> Config:
        """The inverse of `as_dict`; parameters not named take their default."""
        known = {name: values[name] for name in DIMENSIONS if name in values}
        extra = tuple(sorted((k, v) for k, v in values.items() if k not in DIMENSIONS))
        return cls(**known, extra=extra)  # type: ignore[arg-type]

    def as_dict(self) -> dict[str, Scalar]:
        """All parameters by name, the five dimensions first."""
        return {**{name: getattr(self, name) for name in DIMENSIONS}, **dict(self.extra)}

    def get(self, name: str, default: Scalar) -> Scalar:
        """The value of a parameter, `default` if this configuration has none of that name."""
        return self.as_dict().get(name, default)

    @property
    def is_pipeline(self) -> bool:
        """True if it is of a model that several ranks share."""
        return any(name == "global_batch_size" for name, _ in self.extra)

    @property
    def device_count(self) -> int:
        """Devices of one machine that it takes, each with `instance_count` instances."""
        return int(self.get("device_count", 1))

    @property
    def total_instances(self) -> int:
        """Instances on all its devices together."""
        return self.instance_count * self.device_count

    def environment(self) -> dict[str, str]:
        """The environment variables this configuration sets (its `env.NAME` parameters)."""
        return {k.removeprefix("env."): str(v) for k, v in self.extra if k.startswith("env.")}

    def changed(self, **values: Scalar) -> Config:
        """This configuration with some parameters replaced."""
        return Config.from_dict({**self.as_dict(), **values})


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """How long the items of a sequence model are.

    Attributes:
        values: Lengths to draw from, each as likely as it is often there; if empty, all whole
            numbers from `low` to `high` alike.
        multiple_of: A batch is padded to its longest item, rounded up to a multiple of this.
    """

    values: tuple[int, ...] = ()
    low: int = 1
    high: int = 1
    multiple_of: int = 1

    @property
    def longest(self) -> int:
        """The length that the longest batch is padded to."""
        return self.padded(max(self.values, default=self.high))

    def padded(self, length: int) -> int:
        """What a batch is padded to whose longest item has this length."""
        return -(-length // self.multiple_of) * self.multiple_of


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSpec:
    """One input tensor of a model.

    Attributes:
        shape: Sizes; the text "batch" stands for the batch axis, which need not be first, and
            "length" for an axis along which items differ in length.
        low, high: Range of random data, `high` exclusive for integers; None: the dtype's
            default (0 and 2 for integers, standard normal for floats).
        lengths: Of the axis called "length"; beyond an item's length there are zeros.
    """

    name: str
    shape: tuple[int | str, ...]
    dtype: str = "float32"
    low: float | None = None
    high: float | None = None
    lengths: Lengths | None = None

    def sizes(self, batch_size: int, length: int | None = None) -> tuple[int, ...]:
        """The concrete shape for a batch size, and a length; None: the longest there is."""
        longest = self.lengths.longest if self.lengths else 1
        named = {"batch": batch_size, "length": longest if length is None else length}
        return tuple(named[size] if isinstance(size, str) else size for size in self.shape)

    def at_length(self, length: int) -> InputSpec:
        """The same for items that all have this length."""
        shape = tuple(length if size == "length" else size for size in self.shape)
        return replace(self, shape=shape, lengths=None)

    @property
    def length_axis(self) -> int | None:
        """The axis along which items differ in length, None for an input without one."""
        return self.shape.index("length") if "length" in self.shape else None

    @property
    def batch_axis(self) -> int | None:
        """The axis that counts items, None for an input without one."""
        return self.shape.index("batch") if "batch" in self.shape else None


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSpec:
    """A user's own requests.

    Attributes:
        file: An absolute path of an `.npz` file.
        timing: Measure with its items instead of random ones.
        evaluate: "path.py:function" of outputs and expected outputs; empty: they are compared.
    """

    file: str
    timing: bool = True
    evaluate: str = ""


FILE_RUNTIMES = {".onnx": ("onnxruntime", "openvino"), ".xml": ("openvino",)}
"""Runtimes that take a model's file, by its ending; the first is the default."""

CALLS = ("auto", "positional", "keywords", "dict", "tuple")
"""Ways to hand inputs to a model: `auto` goes by the names and types of its parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSpec:
    """What is measured, as the space file's `workload` says it.

    Attributes:
        kind: A key of the workloads table: torch, command, replay, simulated, ...
        model: A built-in's name, an absolute "path.py:factory", a model file, a grid or a
            cost model; empty for a command.
        options: Everything else the kind understands (sizes of a built-in, a replay's noise
            and seed, a command's words and metrics), as plain data.
        base_dir: Directory of the space file, against which relative paths were resolved.
        call: How a torch model gets its inputs: one of `CALLS`.
        lengths: Of the items, where inputs have an axis "length".
        data: Requests of the user's, and what the answers are held against.
        artifact: Directory of what was made of the model for its runtime outside of any trial
            (an ONNX export); empty if nothing was.
    """

    kind: str
    model: str = ""
    precision: str = "float32"
    inputs: tuple[InputSpec, ...] = ()
    options: Mapping[str, object] = field(default_factory=dict)
    base_dir: str = ""
    call: str = "auto"
    lengths: Lengths | None = None
    data: DataSpec | None = None
    artifact: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How requests arrive.

    Attributes:
        kind: "closed": each instance starts its next call when the last has ended.
        rate_per_s: Arrivals per second of an open load; None: the highest that holds.
        trace: File of arrival times for "trace".
        clients: Of a closed load: each of so many clients sends its next request when the last
            has been answered, all into one queue; None: each instance calls back to back.
    """

    kind: Literal["closed", "poisson", "constant", "trace"] = "closed"
    rate_per_s: float | None = None
    trace: str = ""
    clients: int | None = None

    @property
    def is_open(self) -> bool:
        """True if requests arrive whether or not the last one has been answered."""
        return self.kind != "closed"

    @property
    def is_queued(self) -> bool:
        """True if instances take requests from one queue, as many as wait, up to a batch."""
        return self.is_open or self.clients is not None

    @property
    def seeks_rate(self) -> bool:
        """True if the rate is to be found: the highest that holds."""
        return self.kind in ("poisson", "constant") and self.rate_per_s is None


# --- what crosses into the children ------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSpec:
    """A group of instances that runs one configuration.

    Attributes:
        devices: Device names such as "cpu" or "npu:0", `config.device_count` of them; instances
            fill one after the other.
        cores: Host cores of each instance, `config.total_instances` tuples of core ids.
        environment: Variables set before any framework is imported.
        seed: Seed of weights and of random inputs.
        preload: Modules that the devices' side in a trial imports.
        traits: What was found out about the devices that their side in a trial needs to know.
    """

    config: Config
    workload: WorkloadSpec
    devices: tuple[str, ...]
    cores: tuple[tuple[int, ...], ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    seed: int = 0
    preload: tuple[str, ...] = ()
    traits: Mapping[str, str] = field(default_factory=dict)

    def device_of(self, instance: int) -> str:
        """The device that an instance runs on."""
        return self.devices[instance // self.config.instance_count]


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A stretch of time that is measured; exactly one of `duration_s`, `iterations` is set.

    Attributes:
        start_s: Start on the machine's monotonic clock; None: as soon as all instances are warm.
        iterations: Calls of the whole group, shared out evenly over the instances; where there is
            a queue, the number of requests.
        item_count: Items of each call without a queue; None: the configuration's batch size.
    """

    start_s: float | None = None
    duration_s: float | None = None
    iterations: int | None = None
    item_count: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a session is to measure.

    Attributes:
        windows: Measured one after the other.
        arrival_seed: Seed of an open load's arrivals.
        deadline_s: Seconds from now after which the group is killed.
    """

    windows: tuple[Window, ...]
    load: Load = Load()
    arrival_seed: int = 0
    kind: Literal["time", "profile"] = "time"
    deadline_s: float = 60.0


# --- what comes back ---------------------------------------------------------------------------


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


# --- what is judged and kept -------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The figures of one measurement; None is unknown, never zero.

    Attributes:
        throughput_items_per_s: Items per second of wall-clock time, with its 95 % interval.
        throughput_tokens_per_s: The same in tokens, padding not counted; of a server that streams
            those of its answers. None without either.
        arrival_rate_per_s: Requests per second that arrived under an open load; where the rate
            is sought, the highest that holds.
        latency_*_s: Of one call, of one request under an open load, from due to end;
            nearest-rank quantiles.
        ttft_*_s, tpot_*_s: Time to the first token of an answer, and from token to token.
        failed_count: Requests that a server did not answer as it should, None without a server.
        output_difference: Largest difference of an output from the baseline's on the same items,
            relative to the size of the output; None if it was not compared.
        canary_ratio: Speed of the machine around the measurement, relative to the best that was
            seen of it in the study; None if it was not looked at.
        estimated: Fields that were not measured, but follow from a simulation fed with what was.
        trust: "quiet", or "noisy: why".
        device_busy_ratio: Share of the time in which the device was busy, by its own telemetry.
        power_w: Mean power of the device, everybody's work included.
        telemetry: Further figures that the device told of itself while it was measured.
        environment: Versions, pinned settings and the effective core split.
        pipeline: Where a pipeline's time went; its `memory_peak_bytes` is the fullest rank's.
    """

    throughput_items_per_s: float | None = None
    throughput_ci95_items_per_s: tuple[float, float] | None = None
    throughput_tokens_per_s: float | None = None
    arrival_rate_per_s: float | None = None
    call_count: int | None = None
    latency_mean_s: float | None = None
    latency_p50_s: float | None = None
    latency_p90_s: float | None = None
    latency_p99_s: float | None = None
    latency_p999_s: float | None = None
    ttft_mean_s: float | None = None
    ttft_p50_s: float | None = None
    ttft_p90_s: float | None = None
    ttft_p99_s: float | None = None
    tpot_mean_s: float | None = None
    tpot_p50_s: float | None = None
    tpot_p90_s: float | None = None
    tpot_p99_s: float | None = None
    failed_count: int | None = None
    h2d_mean_s: float | None = None
    h2d_p99_s: float | None = None
    compute_mean_s: float | None = None
    compute_p99_s: float | None = None
    d2h_mean_s: float | None = None
    d2h_p99_s: float | None = None
    copies_per_call: int | None = None
    memory_peak_bytes: int | None = None
    device_busy_ratio: float | None = None
    power_w: float | None = None
    energy_per_item_j: float | None = None
    load_s: float | None = None
    compile_s: float | None = None
    first_call_s: float | None = None
    warmup_count: int | None = None
    duration_s: float | None = None
    faults_per_call: float | None = None
    output_difference: float | None = None
    run_queue_wait_ratio: float | None = None
    canary_ratio: float | None = None
    estimated: tuple[str, ...] = ()
    trust: str = "quiet"
    warnings: tuple[str, ...] = ()
    telemetry: Mapping[str, float] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    pipeline: PipelineFigures | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RateFacts:
    """What a search for a configuration's highest arrival rate has found.

    A later search of the same configuration begins with it.

    Attributes:
        rate_per_s: The rate that was shown to hold, else the one that is promised to.
        limit_rate_per_s: Where a simulation of the queue just meets the limit.
        sizes, medians_s: Median time of a call by its items.
        residuals: Call times over that median, ascending.
    """

    rate_per_s: float
    limit_rate_per_s: float
    sizes: tuple[float, ...] = ()
    medians_s: tuple[float, ...] = ()
    residuals: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a measurement means under the objective.

    Attributes:
        objectives: Metric field to value, in the objective's order; empty if nothing was measured.
        excess: Metric field to how far its limit is exceeded, in the metric's unit; <= 0 holds.
        reasons: Sentences for a person; the first is the most telling.
        needed_s: Seconds of further measuring that would settle what is undecided; None if
            nothing is, or no reachable time would.
    """

    outcome: Outcome
    objectives: Mapping[str, float] = field(default_factory=dict)
    excess: Mapping[str, float] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()
    needed_s: float | None = None


Phase = Literal["baseline", "search", "confirm", "measure"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRecord:
    """A trial as it is kept.

    Attributes:
        number: Its number in the study, or in the confirmation.
        started_at_s: Wall clock (Unix time), for people only; durations never use it.
        cost_s: What the trial cost, starts of processes included, on the trial's own clock.
        measurements: All that were made of it; the last one counts, the quietest of them.
        log_tail: The last lines the children printed, only kept when something went wrong.
        rate: Where the arrival rate is sought: what the search for it has found.
    """

    number: int
    config: Config
    phase: Phase
    verdict: Verdict
    measurements: tuple[Measurement, ...] = ()
    profile: Mapping[str, object] | None = None
    started_at_s: float = 0.0
    duration_s: float = 0.0
    cost_s: float = 0.0
    worker: str = ""
    log_tail: str = ""
    rate: RateFacts | None = None
    schema_version: int = SCHEMA_VERSION

    @property
    def measurement(self) -> Measurement | None:
        """The measurement that counts: the only one, or the quietest of a repeated trial."""
        return self.measurements[-1] if self.measurements else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A configuration against another, measured in alternating windows.

    Where the arrival rate is sought, each has windows at rates of its own in the same rounds, and
    the ratio is that of their highest rates (`measure.rate_ratio`).

    Attributes:
        ratio: Throughput of `config` over that of `reference`, geometric mean over fresh pairs.
        ratio_ci: Its interval at level 1 - alpha, t over the pairs' log ratios; None with fewer
            than two pairs.
        pair_ratios: One per pair of fresh processes; of sought rates one per round.
        least_ratio: Of sought rates: what was shown of `config` over the most that `reference`
            may hold, 0 if nothing was shown. No interval's end: it has no level.
        interleaved: False if both did not fit in memory and took turns as whole runs.
    """

    config: Config
    reference: Config
    ratio: float
    ratio_ci: tuple[float, float] | None
    alpha: float
    pair_ratios: tuple[float, ...]
    least_ratio: float = 0.0
    interleaved: bool = True

    @property
    def shows_gain(self) -> bool:
        """True if `config` was shown to be faster."""
        return (self.ratio_ci[0] if self.ratio_ci else self.least_ratio) > 1


class TurnRate(NamedTuple):
    """The rate of one window of a confirmation.

    Attributes:
        round, turn: Which window: those of the same turn of several configurations are neighbours.
        at_s: When it began, seconds since the first one. `rate`: items per second.
    """

    round: int
    turn: int
    at_s: float
    rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Reversal:
    """A configuration that led another one at first and trails it at the end.

    Attributes:
        early_ratio: Throughput of `first` over that of `then` in the first minute, above 1.
        late_ratio: The same at the end, below 1.
    """

    first: Config
    then: Config
    early_ratio: float
    late_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Sustained:
    """Whether the order of a long confirmation lasted.

    Attributes:
        early_s: Length of the first stretch. `late_from_s`, `late_to_s`: the last one; all in
            seconds since the first window.
        reversals: Pairs whose order changed, each beyond doubt in both stretches.
    """

    early_s: float
    late_from_s: float
    late_to_s: float
    reversals: tuple[Reversal, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """What the study says to use, and what that rests on.

    Attributes:
        status: confirmed, unconfirmed, undecided, infeasible.
        record: The recommended configuration's fresh measurement if there is one, else its
            trial; None when infeasible.
        against_baseline: Fresh and interleaved, None if unconfirmed.
        against_batch_only: The same against the best configuration that differs from the
            baseline in batch size alone; None if there is none or it is the winner itself.
        limit_probability: Probability that the limits hold: what the search's model believes
            after all measurements, at least 1 - alpha where the proof showed it. None without
            limits, and of a study without such a model.
        confirmations: The fresh measurements. `comparisons`: all that were made with them.
        reasons: Sentences for a person.
        sustained: Whether the proof's order lasted; None if it was too short to tell.
        accuracy: Of the recommended configuration on the user's own items; {} without them.
    """

    status: Literal["confirmed", "unconfirmed", "undecided", "infeasible"]
    record: TrialRecord | None = None
    baseline: TrialRecord | None = None
    against_baseline: Comparison | None = None
    against_batch_only: Comparison | None = None
    confirmations: tuple[TrialRecord, ...] = ()
    comparisons: tuple[Comparison, ...] = ()
    reasons: tuple[str, ...] = ()
    limit_probability: float | None = None
    sustained: Sustained | None = None
    accuracy: Mapping[str, float] = field(default_factory=dict)


def measured(records: tuple[TrialRecord, ...]) -> Iterator[TrialRecord]:
    """The records that have a measurement."""
    return (record for record in records if record.verdict.outcome.is_measured)
