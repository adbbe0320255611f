"""Where the time of calls goes, from their stage times, a recording and a count of work.

A call's own stage times come from calls that nothing watched. A recording divides the time in
which the model runs into operators and pauses, and the profiler's own time is taken off the pauses,
where it lies. Work and ceilings divide the operators' time by what holds it back.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from autotune.core.diagnosis import Breakdown, Ceilings, Inspection, OpWork, Part, Roofline
from autotune.core.records import Config, Floats, Measurement, Samples, Scalar
from autotune.measure.breakdown import break_down, step_parts_s
from autotune.measure.profile import Profile

MANY_COPIES = 4  # of one call: more than its dtypes and a few
LEADING = 0.3  # share of a call from which on copies are worth a probe before others


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """A cycle of one instance: from the start of a call to that of its next, and what is in it."""

    cycle_s: float
    h2d_s: float
    compute_s: float
    d2h_s: float
    copies: int = 0

    @classmethod
    def of_measurement(cls, measurement: Measurement, config: Config) -> Stages | None:
        """Means of calls back to back; None if the stages are not known."""
        rate, compute_s = measurement.throughput_items_per_s, measurement.compute_mean_s
        if not rate or compute_s is None:
            return None
        return cls(
            cycle_s=config.total_instances * config.batch_size / rate,
            h2d_s=measurement.h2d_mean_s or 0.0,
            compute_s=compute_s,
            d2h_s=measurement.d2h_mean_s or 0.0,
            copies=measurement.copies_per_call or 0,
        )

    @classmethod
    def of_samples(cls, samples: Samples) -> Stages | None:
        """Medians of calls back to back, which what disturbs a few of them does not move."""
        if samples.compute_s is None or not samples.start_s.size:
            return None

        def median(values: Floats | None) -> float:
            return 0.0 if values is None else float(np.median(values))

        copies = samples.facts[0].copies_per_call if samples.facts else None
        return cls(
            cycle_s=median_cycle_s(samples),
            h2d_s=median(samples.h2d_s),
            compute_s=median(samples.compute_s),
            d2h_s=median(samples.d2h_s),
            copies=copies or 0,
        )


def median_cycle_s(samples: Samples) -> float:
    """From the start of an instance's call to that of its next; of one call, how long it took."""
    order = np.lexsort((samples.start_s, samples.window, samples.instance))
    starts, same = samples.start_s[order], np.diff(samples.instance[order]) == 0
    gaps = np.diff(starts)[same & (np.diff(samples.window[order]) == 0)]
    return float(np.median(gaps if gaps.size else samples.end_s - samples.start_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A configuration looked at.

    Attributes:
        plain: Calls back to back that nothing watched, as medians.
        profile: The recorded calls; None where the runtime cannot be recorded.
        calls: How many were. `call_s`: their mean time, the profiler's included.
        queue_s: How long a request of the real load waits for its call, 0 without a queue.
    """

    config: Config
    plain: Stages
    profile: Profile | None = None
    calls: int = 0
    call_s: float = 0.0
    inspection: Inspection = Inspection()
    queue_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where it was looked at.

    Attributes:
        is_host: The device is the host itself. `core_count`: its cores.
    """

    is_host: bool
    core_count: int


def stage_breakdown(stages: Stages) -> Breakdown:
    """One call by its stage times alone: launches and the model's own pauses count as busy."""
    cycle_s = stages.cycle_s
    outside_s = max(cycle_s - stages.h2d_s - stages.d2h_s - stages.compute_s, 0.0)
    # Where stages overlap, what is hidden under computing costs nothing.
    exposed_s = max(cycle_s - stages.compute_s - outside_s, 0.0)
    h2d_s = min(stages.h2d_s, exposed_s)
    return Breakdown(
        span_s=cycle_s,
        call_count=1,
        busy_s=min(stages.compute_s, cycle_s),
        h2d_s=stages.h2d_s,
        h2d_alone_s=h2d_s,
        h2d_count=stages.copies,
        d2h_s=stages.d2h_s,
        d2h_alone_s=min(stages.d2h_s, exposed_s - h2d_s),
        idle_s=outside_s,
        host_s=outside_s,
    )


def recorded_breakdown(recording: Recording, place: Place) -> Breakdown:
    """Where the time goes, from all that was found out."""
    stages = stage_breakdown(recording.plain)
    found = stages
    if recording.profile is not None and recording.calls:
        if place.is_host:
            found = _on_the_host(recording, stages)
        else:
            found = _on_a_device(recording, stages)
    found = _with_growth(found, recording)
    calls = found.call_count or 1
    return replace(
        found,
        queue_s=recording.queue_s * calls,
        shared_s=_shared_s(found, recording, place),
    )


def _on_the_host(recording: Recording, stages: Breakdown) -> Breakdown:
    """Copies as timed; the run's time as operators, short pauses and long ones."""
    assert recording.profile is not None
    seen, calls = break_down(recording.profile, call_count=recording.calls), recording.calls
    operators_s, short_s, long_s = step_parts_s(recording.profile, recording.calls)
    # The profiler's own time lies between operators first, then in those that are called there.
    extra_s = max(operators_s + short_s + long_s - stages.busy_s, 0.0)
    taken_s = min(extra_s, short_s)
    short_s, operators_s = short_s - taken_s, max(operators_s - (extra_s - taken_s), 0.0)
    long_s = min(long_s, stages.busy_s - short_s - operators_s)
    launches_s = operators_s * _launch_share(recording.inspection)
    around_s = stages.busy_s - long_s - short_s - operators_s  # of the operators, but in no step
    gaps_s = short_s + launches_s + around_s
    return replace(
        seen,
        span_s=stages.span_s * calls,
        busy_s=(operators_s - launches_s) * calls,
        h2d_s=stages.h2d_s * calls,
        h2d_alone_s=stages.h2d_alone_s * calls,
        h2d_count=stages.h2d_count * calls,
        d2h_s=stages.d2h_s * calls,
        d2h_alone_s=stages.d2h_alone_s * calls,
        d2h_count=stages.d2h_count * calls,
        idle_s=(stages.idle_s + gaps_s + long_s) * calls,
        host_s=(stages.host_s + long_s) * calls,
    )


def _launch_share(inspection: Inspection) -> float:
    """Of the operators' time, what calling them takes if they have nothing to do."""
    ceilings = inspection.ceilings
    if ceilings is None or not inspection.work:
        return 0.0
    launches_s = len(inspection.work) * ceilings.launch_s
    return launches_s / (launches_s + _least_s(inspection.work, ceilings)[0])


def _on_a_device(recording: Recording, stages: Breakdown) -> Breakdown:
    """The device's own trace, without what the profiler has made the host late by."""
    assert recording.profile is not None
    seen = break_down(recording.profile, call_count=recording.calls)
    if not seen.busy_s:
        return stages
    extra_s = max(recording.call_s - stages.span_s, 0.0) * recording.calls
    taken_s = min(extra_s, seen.idle_s)
    host_s = max(seen.host_s - max(taken_s - (seen.idle_s - seen.host_s), 0.0), 0.0)
    return replace(seen, span_s=seen.span_s - taken_s, idle_s=seen.idle_s - taken_s, host_s=host_s)


# --- work --------------------------------------------------------------------------------------


def roofline_of(inspection: Inspection) -> Roofline | None:
    """A model's work under its device's ceilings; None if either is not known."""
    ceilings = inspection.ceilings
    if ceilings is None or not inspection.work:
        return None
    least_s, memory_s = _least_s(inspection.work, ceilings)
    twice_s, _ = _least_s(inspection.doubled, ceilings)
    return Roofline(
        flops=sum(op.flops for op in inspection.work),
        moved_bytes=sum(op.moved_bytes for op in inspection.work),
        peak_flops_per_s=ceilings.flops_per_s,
        peak_bytes_per_s=ceilings.bytes_per_s,
        growth=twice_s / least_s if inspection.doubled and least_s else None,
        memory_share=memory_s / least_s if least_s else 0.0,
    )


def _least_s(work: Iterable[OpWork], ceilings: Ceilings) -> tuple[float, float]:
    """The time that the ceilings ask for, operator by operator, and that of memory's part of it."""
    total_s = memory_s = 0.0
    for op in work:
        arithmetic_s = op.flops / ceilings.flops_per_s
        traffic_s = op.moved_bytes / rate_of(op.moved_bytes, ceilings) if op.moved_bytes else 0.0
        total_s += max(arithmetic_s, traffic_s)
        memory_s += traffic_s if traffic_s > arithmetic_s else 0.0
    return total_s, memory_s


def rate_of(moved_bytes: float, ceilings: Ceilings) -> float:
    """Bytes per second of an operator that moves so many: small ones stay in caches."""
    sizes = [math.log(size) for size in ceilings.copy_bytes]
    return float(np.interp(math.log(moved_bytes), sizes, ceilings.copy_rates))


def _with_growth(found: Breakdown, recording: Recording) -> Breakdown:
    """What a larger batch would share out, and by what the operators are held back."""
    roofline = roofline_of(recording.inspection)
    if roofline is None:
        return found
    overhead_s = _copy_overhead_s(found, recording.inspection)
    fixed_s = found.h2d_count * (overhead_s or 0.0) + found.idle_s - found.host_s
    if roofline.growth is not None:
        # T(2 b) = g T(b) of F + b t gives F = (2 - g) T(b).
        fixed_s += found.busy_s * min(max(2.0 - roofline.growth, 0.0), 1.0)
    return replace(
        found,
        memory_share=roofline.memory_share,
        per_call_s=fixed_s if roofline.growth is not None else None,
        copy_overhead_s=overhead_s,
    )


def _copy_overhead_s(found: Breakdown, inspection: Inspection) -> float | None:
    """What each copy takes beside its bytes, where these are known; None without copies."""
    ceilings, calls = inspection.ceilings, found.call_count or 1
    if ceilings is None or not found.h2d_count:
        return None
    bytes_s = calls * inspection.input_bytes / ceilings.host_bytes_per_s
    return max(found.h2d_s - bytes_s, 0.0) / found.h2d_count


def _shared_s(found: Breakdown, recording: Recording, place: Place) -> float | None:
    """The demand on what instances share: a host's cores, or a device's queue."""
    if not place.is_host:
        return found.busy_s
    if recording.config.cores_per_instance != "all":
        return 0.0  # each has its own
    busy = recording.inspection.busy_cores
    return None if busy is None else found.span_s * min(busy / place.core_count, 1.0)


# --- the verdict -------------------------------------------------------------------------------


def shares_of(breakdown: Breakdown) -> dict[Part, float]:
    """Of every part the time that would be saved without it, as a share."""
    memory_s = breakdown.busy_s * (breakdown.memory_share or 0.0)
    between_s = breakdown.communication_alone_s
    seconds: dict[Part, float] = {
        "h2d": breakdown.h2d_alone_s,
        "d2h": breakdown.d2h_alone_s,
        "gaps": breakdown.idle_s - breakdown.host_s,
        "communication": breakdown.communication_s if between_s is None else between_s,
        "host": breakdown.host_s,
        "queue": breakdown.queue_s,
        "memory": memory_s,
        "compute": breakdown.busy_s - memory_s,
    }
    return {part: breakdown.share(part_s) for part, part_s in seconds.items()}


def next_values(measurement: Measurement, config: Config) -> dict[str, Scalar]:
    """What a configuration's own trial says should be tried first, by parameter; {}: nothing.

    Stage times tell copies from all the rest, and no more: where copies hold it back, that they are
    batched if they are many, and hidden under computing if they are few.
    """
    stages = Stages.of_measurement(measurement, config)
    if stages is None:
        return {}
    shares = shares_of(stage_breakdown(stages))
    if shares["h2d"] < LEADING or shares["h2d"] < max(shares.values()):
        return {}
    if stages.copies > MANY_COPIES * config.micro_batch_count and not config.batched_h2d:
        return {"batched_h2d": True}
    return {"micro_batch_count": 2 * config.micro_batch_count}
