"""What a study's records say of its configurations as servers of arriving requests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from autotune.apps.samples import load_samples, samples_path
from autotune.core.errors import AutotuneError
from autotune.core.objective import METRICS, Limit
from autotune.core.outcomes import Outcome
from autotune.core.records import Config, Floats, Ints, Load, Measurement, TrialRecord
from autotune.measure.capacity import Queued
from autotune.measure.queueing import ServiceTimes
from autotune.measure.rate_target import RateGoal
from autotune.measure.scaling import ScalePoint, Scaling, fit_scaling
from autotune.results.study_result import StudyResult
from autotune.results.words import limit_text, metric_label

MAX_CALLS = 2000  # of a trial, so that trials of short calls do not decide the tail alone
QUANTILES = 400  # values that stand for the call times of a trial that kept only quantiles
TRIAL_ERROR, PROOF_ERROR = 0.01, 0.005
"""Relative standard error that different processes add to a measured rate: of a single trial, and
of a confirmation's six rounds. Simulated and replayed figures have none."""

Z95 = 1.96
NO_LIMIT_S = 1e9  # for a queue that has a limit on its mean latency alone


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Known:
    """A tested configuration.

    Attributes:
        record: The proof if there is one, else its trial.
        service: How long its calls take by their items; None: nothing tells.
    """

    record: TrialRecord
    service: ServiceTimes | None = None

    @property
    def config(self) -> Config:
        return self.record.config

    @property
    def measurement(self) -> Measurement:
        return self.record.measurement or Measurement()


def read_known(result: StudyResult, directory: Path) -> tuple[Known, ...]:
    """Every configuration that was measured, with its call times."""
    records = _best_records(result)
    pools: dict[Config, list[tuple[Ints, Floats]]] = {}
    for record in records:
        if record.rate is None and (calls := _calls(record, directory)) is not None:
            pools.setdefault(_family(record.config), []).append(calls)
    fits = {
        family: ServiceTimes.fit(
            np.concatenate([items for items, _ in pool]), np.concatenate([s for _, s in pool])
        )
        for family, pool in pools.items()
    }
    return tuple(
        Known(record=record, service=_service(record, fits.get(_family(record.config))))
        for record in records
    )


def queued(known: Known, limits: Sequence[Limit], load: Load) -> Queued | None:
    """A configuration under arrivals, None where nothing tells how long its calls take."""
    if known.service is None:
        return None
    config = known.config
    means = [limit.bound for limit in limits if limit.metric == "latency_mean"]
    tails = [(x.bound, q) for x in limits if (q := METRICS[x.metric].quantile) is not None]
    goals = tuple(
        RateGoal(
            kind="constant" if load.kind == "constant" else "poisson",
            limit_s=bound,
            quantile=q,
            max_batch=config.batch_size,
            max_delay_s=float(config.get("max_queue_delay", 0.0)),
            servers=config.total_instances,
        )
        for bound, q in tails or [(NO_LIMIT_S, 0.99)]
    )
    return Queued(service=known.service, goals=goals, mean_limit_s=min(means) if means else None)


def within(known: Iterable[Known], limits: Sequence[Limit]) -> tuple[Known, ...]:
    """Those that keep the limits on anything but latency.

    Raises:
        AutotuneError: A limit's figure was measured of none, or none keeps it.
    """
    left = tuple(known)
    for limit in limits:
        field = METRICS[limit.metric].field
        values = [(one, getattr(one.measurement, field)) for one in left]
        told = [(one, float(value)) for one, value in values if value is not None]
        if not told:
            raise AutotuneError(
                f"--limit {limit.metric}: the study has not measured {metric_label(limit.metric)}"
            )
        kept = tuple(one for one, value in told if limit.excess(value) <= 0)
        if not kept:
            nearest = min(told, key=lambda pair: limit.excess(pair[1]))[1]
            text = limit_text(replace(limit, bound=nearest))
            raise AutotuneError(
                f"no tested configuration keeps {limit_text(limit)}; the nearest has "
                f"{text.replace('≤', '=').replace('≥', '=')}"
            )
        left = kept
    return left


def least_throughput(known: Known) -> float:
    """The lower end of the interval of its throughput, 0 if it is unknown."""
    point = scale_point(known, PROOF_ERROR)
    return 0.0 if point is None else point.rate * float(np.exp(-Z95 * point.error))


def scaling_of(
    config: Config, known: Iterable[Known], *, exact: bool
) -> tuple[Scaling | None, Config | None]:
    """The law through what was measured on several numbers of devices, and of which configuration.

    Where that is not the one asked for, the one that lost most counts.

    Args:
        exact: Processes do not differ (simulated, replayed).
    """
    points: dict[Config, list[ScalePoint]] = {}
    for one in known:
        is_proof = one.record.phase == "confirm"
        error = 0.0 if exact else PROOF_ERROR if is_proof else TRIAL_ERROR
        if (point := scale_point(one, error)) is not None:
            points.setdefault(on_one_device(one.config), []).append(point)
    fits = {
        of: fit_scaling(own)
        for of, own in points.items()
        if {1} < {point.device_count for point in own}
    }
    if not fits:
        return None, None
    own = on_one_device(config)
    if own in fits:
        return fits[own], config
    most = max(fit.measured_up_to for fit in fits.values())
    worst = max(fits, key=lambda of: fits[of].slowdown(most))
    return fits[worst], worst


def on_one_device(config: Config) -> Config:
    """The same on one device; "1" written out and left out are the same."""
    rest = {name: value for name, value in config.as_dict().items() if name != "device_count"}
    return Config.from_dict(rest)


def scale_point(known: Known, error: float) -> ScalePoint | None:
    """What a configuration can get done, back to back; None if that is unknown.

    Args:
        error: Added to what its own interval says.
    """
    count = known.config.device_count
    if known.record.rate is not None and known.service is not None:
        # The rate that was found holds a margin of its own; what it is made of does not.
        rate = known.service.capacity_per_s(known.config.batch_size, known.config.total_instances)
        residuals = known.service.residuals
        own = float(residuals.std() / residuals.mean()) / max(residuals.size, 1) ** 0.5
        return ScalePoint(device_count=count, rate=rate, error=float(np.hypot(own, error)))
    m = known.measurement
    rate_found, interval = m.throughput_items_per_s, m.throughput_ci95_items_per_s
    if not rate_found:
        return None
    own = (interval[1] - interval[0]) / (2 * Z95 * rate_found) if interval else TRIAL_ERROR
    return ScalePoint(device_count=count, rate=rate_found, error=float(np.hypot(own, error)))


# --- call times --------------------------------------------------------------------------------


def _best_records(result: StudyResult) -> list[TrialRecord]:
    """One per configuration: its proof, else its last trial that ran undisturbed, else its last."""
    best: dict[Config, TrialRecord] = {}
    for record in (*result.records, *result.recommendation.confirmations):
        outcome = record.verdict.outcome
        if not outcome.is_measured or outcome is Outcome.WRONG_OUTPUT:
            continue
        old = best.get(record.config)
        if old is None or record.phase == "confirm" or _is_quiet(record) >= _is_quiet(old):
            best[record.config] = record
    return list(best.values())


def _is_quiet(record: TrialRecord) -> bool:
    return record.measurement is not None and record.measurement.trust == "quiet"


def _family(config: Config) -> Config:
    """What configurations share whose calls differ in their number of items alone."""
    rest: Mapping[str, bool | int | float | str] = {
        name: value
        for name, value in config.changed(batch_size=1).as_dict().items()
        if name != "max_queue_delay"
    }
    return Config.from_dict(rest)


def _service(record: TrialRecord, family: ServiceTimes | None) -> ServiceTimes | None:
    if record.rate is not None and record.rate.sizes:
        return ServiceTimes.of_facts(record.rate)
    return family


def _calls(record: TrialRecord, directory: Path) -> tuple[Ints, Floats] | None:
    """Items and times of a trial's calls, or values with the quantiles that were kept of them."""
    path = samples_path(directory, record.phase, record.number)
    if path.is_file():
        samples = load_samples(path)
        times_s = samples.end_s - samples.start_s
        step = max(1, times_s.size // MAX_CALLS)
        return samples.item_count[::step], times_s[::step]
    m = record.measurement
    if m is None or m.arrival_rate_per_s is not None:
        return None  # latencies of requests say nothing of calls
    times = _from_quantiles(m)
    if times is None:
        return None
    return np.full(times.size, record.config.batch_size, dtype=np.int64), times


def _from_quantiles(m: Measurement) -> Floats | None:
    """Values with these quantiles; below the lowest that is known all count as that one."""
    known = [
        (q, value)
        for q, value in (
            (0.5, m.latency_p50_s), (0.9, m.latency_p90_s),
            (0.99, m.latency_p99_s), (0.999, m.latency_p999_s),
        )
        if value
    ]  # fmt: skip
    if not known:
        return None
    places = (np.arange(QUANTILES) + 0.5) / QUANTILES
    at, values = zip(*known, strict=True)
    return np.exp(np.interp(places, at, np.log(values)))
