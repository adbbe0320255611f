"""What is judged and kept of a trial."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from autotune.core.outcomes import Outcome
from autotune.core.pipeline import PipelineFigures
from autotune.core.records.config import Config

SCHEMA_VERSION = 1


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


def measured(records: tuple[TrialRecord, ...]) -> Iterator[TrialRecord]:
    """The records that have a measurement."""
    return (record for record in records if record.verdict.outcome.is_measured)
