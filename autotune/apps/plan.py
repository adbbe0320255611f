"""`autotune plan`: how many devices a rate needs, and which configuration serves which load."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from autotune.apps.plan_options import RATES, PlanOptions
from autotune.apps.plan_records import (
    Known,
    least_throughput,
    on_one_device,
    queued,
    read_known,
    scale_point,
    scaling_of,
    within,
)
from autotune.apps.store import load_result, study_dir, write_whole
from autotune.core.errors import AutotuneError, UsageError
from autotune.core.objective import METRICS, Limit
from autotune.core.outcomes import Outcome
from autotune.core.records import Config, TrialRecord
from autotune.core.units import format_duration, format_rate
from autotune.measure.capacity import SIMULATED_SHARE, Fleet, Queued, devices_for
from autotune.measure.load_table import load_table, steps, watch_s
from autotune.measure.noise import QUIET
from autotune.results.fleet import Basis, FleetPlan, Wanted
from autotune.results.study_result import StudyResult
from autotune.results.words import config_text, limit_text


@dataclass(frozen=True, kw_only=True, eq=False)
class Basics:
    """What a study says to a plan, before anything is measured afresh.

    Attributes:
        known: Configurations on one device that keep the limits on anything but latency.
        queues: Of those whose calls are known, by configuration; {} without a limit on latency.
        full: Serves the full rate. `fleet`: what devices with it hold.
    """

    result: StudyResult
    wanted: Wanted
    known: tuple[Known, ...]
    queues: dict[Config, Queued]
    full: Known
    fleet: Fleet
    basis: Basis
    power_w: float | None = None
    notes: tuple[str, ...] = ()


def plan(study: str, options: PlanOptions) -> FleetPlan:
    """Plan from what a study has recorded.

    Raises:
        UsageError: There is no such study, or it has no trial on one device.
        AutotuneError: It has no figures, a limit was not measured, or nothing holds the rate.
        StorageError: The study, or the table, cannot be read or written.
    """
    found = planned(read_basics(study, options))
    if options.out is not None:
        write_table(found, options.out)
    return found


def write_table(found: FleetPlan, path: Path) -> None:
    """Write the load table for a server.

    Raises:
        UsageError: There is none. StorageError: It cannot be written.
    """
    if not found.rows:
        raise UsageError("--out: without a limit on latency there is no load table to write")
    write_whole(path, f"{json.dumps(found.table_json(), indent=1)}\n".encode())


def read_basics(study: str, options: PlanOptions) -> Basics:
    """What a study says; errors as of `plan`."""
    result = load_result(study, options.studies_dir, options.storage)
    if not result.has_figures:
        raise AutotuneError(f"study {study} has no measured trial to plan by; run it first")
    if any(r.measurement and r.measurement.failed_count is not None for r in result.records):
        raise UsageError(
            f"study {study} is of a server that queues by itself, of which a plan knows too "
            "little; each device holds the rate that the study has shown"
        )
    if result.facts.baseline.is_pipeline:
        raise UsageError(
            f"study {study} is of a pipeline, which takes stage_count x replicas devices by itself "
            "and serves no arrivals; its rate is that of all of them: autotune show"
        )
    limits = _limits(result, options.limits)
    wanted = Wanted(
        rate_per_s=options.rate_per_s,
        limits=limits,
        headroom=options.headroom,
        price_per_hour=options.price_per_hour,
        per_machine=options.per_machine,
    )
    every = read_known(result, study_dir(options.studies_dir, study))
    alone = [one for one in every if one.config.device_count == 1]
    if not alone:
        raise UsageError(
            f"study {study} has no measured trial on one device; add 1 to params.device_count"
        )
    known = within(alone, [x for x in limits if not _is_latency(x)])
    if any(map(_is_latency, limits)):
        return _under_arrivals(result, wanted, every, known, options.power_w)
    full = _recommended(known, result, limits) or max(known, key=least_throughput)
    scaling, of = scaling_of(full.config, every, exact=result.facts.origin != "measured")
    point = scale_point(full, 0.0)
    fleet = Fleet(
        single_per_s=least_throughput(full),
        likely_per_s=point.rate if point else 0.0,
        scaling=scaling,
        is_own=of == full.config,
        per_machine=options.per_machine,
    )
    notes = ("no limit on latency: work is taken to wait in a backlog, and throughput counts",)
    return Basics(
        result=result,
        wanted=wanted,
        known=known,
        queues={},
        full=full,
        fleet=fleet,
        basis="throughput",
        power_w=options.power_w or full.measurement.power_w,
        notes=(*notes, *_scaling_notes(full.config, of), *doubts(full, result)),
    )


def _scaling_notes(full: Config, of: Config | None) -> tuple[str, ...]:
    """Whose scaling was measured, where it was another configuration's."""
    if of is None or of == full:
        return ()
    return (
        f"{config_text(full)} was not measured on several devices; its scaling is taken to be that "
        f"of {config_text(of)}, the worst that was measured",
    )


def doubts(full: Known, result: StudyResult) -> tuple[str, ...]:
    """Why what the plan rests on may be off."""
    found = []
    if full.record.phase != "confirm" and result.facts.origin == "measured":
        found.append("it rests on one short trial, which was not measured again")
    trust = full.measurement.trust
    if trust and trust != QUIET:
        found.append(f"the measurement that it rests on is {trust}")
    return tuple(found)


def _limits(result: StudyResult, given: Sequence[Limit]) -> tuple[Limit, ...]:
    """The study's limits, those given instead where there are any on the same metric."""
    own = {x.metric: x for x in result.facts.objective.limits if x.metric not in RATES}
    return tuple((own | {x.metric: x for x in given}).values())


def _is_latency(limit: Limit) -> bool:
    return limit.metric == "latency_mean" or METRICS[limit.metric].quantile is not None


def _under_arrivals(
    result: StudyResult,
    wanted: Wanted,
    every: Sequence[Known],
    known: Sequence[Known],
    power_w: float | None,
) -> Basics:
    """Where requests arrive and their latency is limited."""
    load, latency = result.facts.objective.load, [x for x in wanted.limits if _is_latency(x)]
    found = [(one, queued(one, latency, load)) for one in known]
    queues = {one.config: queue for one, queue in found if queue is not None}
    if not queues:
        raise AutotuneError(
            f"study {result.facts.study} has kept no call times, so that nothing is known of "
            f"{', '.join(map(limit_text, latency))} for requests that arrive"
        )
    candidates = [one for one in known if one.config in queues]
    full, likely = _full_under_arrivals(candidates, queues, result, latency)
    shown, estimate = _shown_per_s(full.record, result, latency), SIMULATED_SHARE * likely
    # A rate that holds a stricter limit holds this one, but is not all that does.
    rests_on_shown = shown > 0 and (_same_limits(result, latency) or shown >= estimate)
    scaling, of = scaling_of(full.config, every, exact=result.facts.origin != "measured")
    fleet = Fleet(
        single_per_s=shown if rests_on_shown else estimate,
        likely_per_s=max(likely, shown),
        queued=queues[full.config],
        scaling=scaling,
        per_machine=wanted.per_machine,
        shown={
            one.config.device_count: rate
            for one in every
            if on_one_device(one.config) == on_one_device(full.config)
            and (rate := _shown_per_s(one.record, result, latency))
        },
    )
    notes = (*_scaling_notes(full.config, of), *doubts(full, result))
    if not load.is_open:
        notes += (
            "the study called back to back; here its limits are on requests, from their arrival on",
        )
    return Basics(
        result=result,
        wanted=wanted,
        known=tuple(candidates),
        queues=queues,
        full=full,
        fleet=fleet,
        basis="shown" if rests_on_shown else "simulated",
        power_w=power_w or full.measurement.power_w,
        notes=notes,
    )


def _full_under_arrivals(
    known: Sequence[Known],
    queues: dict[Config, Queued],
    result: StudyResult,
    latency: Sequence[Limit],
) -> tuple[Known, float]:
    """What serves the full rate, and the rate at which a simulation of it meets the limits."""
    recommended = _recommended(known, result, latency)
    if recommended is not None:
        rate = queues[recommended.config].limit_rate()
        if rate > 0:
            return recommended, rate
    roughly = {one.config: queues[one.config].limit_rate(is_rough=True) for one in known}
    best = max(known, key=lambda one: roughly[one.config])
    rate = queues[best.config].limit_rate(roughly[best.config])
    if rate <= 0:
        raise AutotuneError(_why_none(queues, latency))
    return best, rate


def _recommended(
    known: Sequence[Known], result: StudyResult, limits: Sequence[Limit]
) -> Known | None:
    """What the study recommends, if it was for these limits."""
    if result.config is None or not _same_limits(result, limits):
        return None
    wanted = on_one_device(result.config)
    return next((one for one in known if on_one_device(one.config) == wanted), None)


def _same_limits(result: StudyResult, limits: Sequence[Limit]) -> bool:
    own = {x.metric: x for x in result.facts.objective.limits}
    return all(own.get(x.metric) == x for x in limits)


def _covered(result: StudyResult, limits: Sequence[Limit]) -> bool:
    """True if what keeps the study's limits keeps these."""
    own = {x.metric: x for x in result.facts.objective.limits}
    return all(x.metric in own and own[x.metric].excess(x.bound) >= 0 for x in limits)


def _shown_per_s(record: TrialRecord, result: StudyResult, latency: Sequence[Limit]) -> float:
    """The rate that a record was shown to hold under the limits wanted; 0 if none was."""
    is_shown = record.phase == "confirm" and record.verdict.outcome is Outcome.OK
    if not is_shown or not _covered(result, latency):
        return 0.0
    return record.rate.rate_per_s if record.rate is not None else 0.0


def _why_none(queues: dict[Config, Queued], latency: Sequence[Limit]) -> str:
    """Why the limits hold at no rate."""
    config, best = min(
        ((config, queue.at(_idle_rate(queue))) for config, queue in queues.items()),
        key=lambda pair: pair[1].margin,
    )
    return (
        f"no tested configuration holds {', '.join(map(limit_text, latency))} at any rate of "
        f"arrivals, whatever the number of devices: a lone request takes "
        f"{format_duration(best.mean_s)} on average, {format_duration(best.p99_s)} at P99, "
        f"with {config_text(config)}"
    )


def _idle_rate(queue: Queued) -> float:
    goal = queue.goals[0]
    return 0.01 * queue.service.capacity_per_s(goal.max_batch, goal.servers)


def planned(basics: Basics) -> FleetPlan:
    """The number of devices and the load table; errors as of `counted`."""
    return with_table(counted(basics), basics)


def counted(basics: Basics) -> FleetPlan:
    """The number of devices.

    Raises:
        AutotuneError: No number of devices holds the rate.
    """
    wanted, fleet = basics.wanted, basics.fleet
    needed = wanted.capacity_per_s
    devices = devices_for(needed, fleet.least)
    if devices is None:
        raise AutotuneError(_why_impossible(basics))
    likely = min(devices, devices_for(needed, fleet.likely) or devices)
    sharing = fleet.sharing(devices)
    return FleetPlan(
        study=basics.result.facts.study,
        origin=basics.result.facts.origin,
        wanted=wanted,
        config=basics.full.config,
        basis=basics.basis,
        devices=devices,
        likely_devices=likely,
        single_per_s=fleet.least(1),
        likely_per_s=fleet.likely(1),
        least_per_s=fleet.least(devices),
        scaling=fleet.scaling,
        is_extrapolated=fleet.scaling is not None and sharing > fleet.scaling.measured_up_to,
        power_w=basics.power_w,
        notes=basics.notes,
    )


def with_table(found: FleetPlan, basics: Basics) -> FleetPlan:
    """The plan with its load table, where latency is limited."""
    full, configs = basics.full.config, tuple(basics.queues)
    if full not in basics.queues:
        return found
    slowdown = basics.fleet.slowdown(found.devices)
    candidates = [basics.queues[config].slowed(slowdown) for config in configs]
    rows = load_table(
        candidates, configs.index(full), found.full_per_s, headroom=found.wanted.headroom
    )
    return replace(found, configs=configs, rows=rows, steps=steps(rows), watch_s=watch_s(rows))


def _why_impossible(basics: Basics) -> str:
    wanted, fleet = basics.wanted, basics.fleet
    most = max((2**k for k in range(7)), key=fleet.least)
    text = (
        f"no number of devices is sure to hold {format_rate(wanted.rate_per_s)} with "
        f"{wanted.headroom:.0%} of headroom: {most} hold {format_rate(fleet.least(most))} at least"
    )
    if fleet.scaling is None:
        return text
    return (
        f"{text}, and by the scaling that was measured (up to {fleet.scaling.measured_up_to}) more "
        "of them on one machine may hold less; say --per-machine N for several machines"
    )
