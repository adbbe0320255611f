"""Two configurations compared by what was recorded of them."""

from __future__ import annotations

import math
import time
from dataclasses import replace

from autotune.apps.comparable import (
    CompareOptions,
    checked,
    measurement_of,
    metric_of,
    objective_of,
    rule_of,
    side_of,
)
from autotune.apps.operands import Operand
from autotune.apps.samples import load_samples
from autotune.core.errors import StorageError, UsageError
from autotune.core.objective import METRICS, Objective
from autotune.measure.paired import Rule, judge_pairs
from autotune.results.recorded import (
    Estimate,
    from_interval,
    from_samples,
    judge_apart,
    recorded_pairs,
)
from autotune.results.regression import Basis, CompareResult
from autotune.results.words import metric_label


def compare_recorded(a: Operand, b: Operand, options: CompareOptions) -> CompareResult:
    objective = objective_of(a) or objective_of(b) or Objective(name="")
    for operand in (a, b):
        if operand.record is None:
            raise UsageError(f"{operand.name} was never measured: add --fresh to measure both now")
    differences = checked(a, b, a.fingerprint, b.fingerprint, options.anyway)
    start = CompareResult(
        a=side_of(a),
        b=side_of(b),
        metric=metric_of(objective),
        basis="figures",
        origin=a.origin,
        is_gate=options.gate,
        tolerance=options.tolerance,
        interleaved=False,
        differences=differences,
        notes=(*a.notes, *b.notes),
        at_s=time.time(),
    )
    rule = rule_of(options, looks=1)
    if a.study is not None and b.study is not None and a.directory == b.directory:
        if a.config == b.config and a.record == b.record:
            note = (
                "both are the same measurement: --fresh measures the configuration against itself"
            )
            return replace(start, metric_ratio=1.0, notes=(*start.notes, note))
        pairs = recorded_pairs(a.study.recommendation, a.config, b.config)
        if len(pairs) > 1 and start.metric == "throughput":
            return replace(
                start,
                basis="pairs",
                metric_ratio=math.exp(sum(map(math.log, pairs)) / len(pairs)),
                test=judge_pairs([math.log(ratio) for ratio in pairs], rule),
                pair_ratios=pairs,
                interleaved=True,
            )
    return _apart(start, a, b, rule)


def _apart(start: CompareResult, a: Operand, b: Operand, rule: Rule) -> CompareResult:
    """Figures of different times: what changed on the machine in between is in their ratio."""
    field_name = METRICS[start.metric].field
    values = [getattr(measurement_of(x), field_name, None) for x in (a, b)]
    if not values[0] or not values[1]:
        name = (a if not values[0] else b).name
        return replace(start, notes=(*start.notes, f"{name} has no {metric_label(start.metric)}"))
    ratio = values[0] / values[1]
    basis: Basis = "blocks"
    estimates = [_from_samples(x, start.metric) for x in (a, b)]
    if None in estimates:
        basis = "figures"
        estimates = [_from_interval(x, start.metric) for x in (a, b)]
    found = [estimate for estimate in estimates if estimate is not None]
    sign = 1.0 if METRICS[start.metric].better == "higher" else -1.0
    test = judge_apart(found[0], found[1], rule, sign=sign) if len(found) == 2 else None
    notes = ["measured at different times: what changed on the machine in between counts as theirs"]
    if start.metric == "arrival_rate":
        notes = ["each rate was sought on its own: --fresh compares latencies at the same rate"]
    elif test is None:
        notes.append("too little was kept for an interval: --fresh measures both side by side")
    return replace(start, basis=basis, metric_ratio=ratio, test=test, notes=(*start.notes, *notes))


def _from_samples(operand: Operand, metric: str) -> Estimate | None:
    record = operand.record
    if record is None or operand.directory is None:
        return None
    path = operand.directory / "samples" / f"{record.phase}-{record.number}.npz"
    try:
        samples = load_samples(path)
    except StorageError:
        return None  # not kept, or not whole: the figures are
    return from_samples(samples, metric, is_confirmation=record.phase == "confirm")


def _from_interval(operand: Operand, metric: str) -> Estimate | None:
    measurement = measurement_of(operand)
    return None if measurement is None else from_interval(measurement, metric)
