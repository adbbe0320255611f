"""What both kinds of comparison share: options, what is compared, what must agree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from autotune.apps.operands import Operand
from autotune.apps.resolve import resolve
from autotune.core.errors import UsageError
from autotune.core.objective import METRICS, Objective
from autotune.core.records import Measurement, TrialRecord
from autotune.core.units import parse_quantity
from autotune.measure.paired import GATE_ALPHA, Rule
from autotune.results.regression import Side
from autotune.search.conditions import fingerprint_of, is_same, shown
from autotune.space.search_space import Confirm

TOLERANCE = 0.05
MIN_TOLERANCE, MAX_TOLERANCE = 0.005, 0.5

_MUST_AGREE = ("workload", "precision", "inputs", "load", "device")
"""Conditions without which two figures say nothing about each other."""

_NOT_SAID = ("objective", "goals", "core count")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareOptions:
    """How to compare.

    Attributes:
        fresh: Measure both again, side by side; else from what was recorded.
        gate: Look for a regression of the first, with `tolerance` as the one not to be missed.
        rate_per_s: Arrivals of an open load; None: the space's own, or the most both hold.
        time_s: Most seconds to measure.
        anyway: Compare although model, load or device differ.
    """

    fresh: bool = False
    gate: bool = False
    tolerance: float = TOLERANCE
    rate_per_s: float | None = None
    time_s: float | None = None
    anyway: bool = False
    studies_dir: Path = Path("studies")
    storage: str = ""


def compare_options(
    *,
    fresh: bool,
    gate: bool,
    tolerance: str,
    time: str,
    rate: str,
    anyway: bool,
    studies_dir: Path,
    storage: str,
) -> CompareOptions:
    """Options from the words of the command line.

    Raises:
        UsageError: A quantity is none, or out of range.
    """
    share = _quantity("--tolerance", tolerance, "ratio")
    if not MIN_TOLERANCE <= share <= MAX_TOLERANCE:
        raise UsageError(f"--tolerance {tolerance}: between 0.5% and 50%")
    if not fresh and (time or rate):
        raise UsageError(f"--{'time' if time else 'rate'} is for --fresh: nothing is measured here")
    return CompareOptions(
        fresh=fresh,
        gate=gate,
        tolerance=share,
        time_s=_quantity("--time", time, "duration") if time else None,
        rate_per_s=_quantity("--rate", rate, "rate") if rate else None,
        anyway=anyway,
        studies_dir=studies_dir,
        storage=storage,
    )


def _quantity(option: str, text: str, kind: str) -> float:
    try:
        value = parse_quantity(text, kind)
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None
    if value <= 0:
        raise UsageError(f"{option} {text}: must be above 0")
    return value


def side_of(operand: Operand) -> Side:
    record, objective = operand.record, objective_of(operand)
    return Side(
        name=operand.name,
        config=operand.config,
        workload=operand.workload,
        device=operand.device,
        limits=objective.limits if objective else (),
        measurement=measurement_of(operand),
        verdict=record.verdict if record else None,
        failure=_failure(record),
        measured_at_s=record.started_at_s if record else 0.0,
    )


def _failure(record: TrialRecord | None) -> str:
    if record is None or record.measurement is not None:
        return ""
    return next(iter(record.verdict.reasons), str(record.verdict.outcome))


def measurement_of(operand: Operand) -> Measurement | None:
    return operand.record.measurement if operand.record else None


def objective_of(operand: Operand) -> Objective | None:
    if operand.study is not None:
        return operand.study.facts.objective
    return operand.space.objective if operand.space is not None else None


def metric_of(objective: Objective) -> str:
    """What is compared: what is served, or, where arrivals decide that, how fast it is."""
    if not objective.load.is_open:
        return "throughput"
    if objective.load.seeks_rate:
        return "arrival_rate"
    tails = [limit.metric for limit in objective.limits if METRICS[limit.metric].quantile]
    return tails[0] if tails else "latency_p99"


def rule_of(options: CompareOptions, *, looks: int, confirm: Confirm | None = None) -> Rule:
    alpha = GATE_ALPHA if options.gate else (confirm or Confirm()).alpha
    return Rule(alpha=alpha, tolerance=options.tolerance, gate=options.gate, looks=looks)


def conditions_now(operand: Operand) -> Mapping[str, str]:
    if operand.fingerprint or operand.space is None:
        return operand.fingerprint
    resolved = resolve(operand.space)
    return fingerprint_of(resolved.space, resolved.info)


def checked(
    a: Operand,
    b: Operand,
    ours: Mapping[str, str],
    theirs: Mapping[str, str],
    anyway: bool,
) -> tuple[str, ...]:
    """What differs between the two, in words.

    Raises:
        UsageError: So much that the comparison would mean nothing.
    """
    if a.origin != b.origin and not anyway:
        raise UsageError(
            f"{a.name} is {a.origin}, {b.name} is {b.origin}: not to be compared (--anyway does it)"
        )
    if not ours or not theirs:
        return ()
    differing = [
        name
        for name in dict.fromkeys((*ours, *theirs))
        if name not in _NOT_SAID and not is_same(name, _essence(name, ours), _essence(name, theirs))
    ]
    texts = {
        name: f"{name}: A has {shown(name, ours.get(name))}, B has {shown(name, theirs.get(name))}"
        for name in differing
    }
    grave = [texts[name] for name in differing if name in _MUST_AGREE]
    if grave and not anyway:
        raise UsageError(
            f"{'; '.join(grave)}. Their figures say nothing about each other (--anyway compares)"
        )
    return tuple(texts.values())


def _essence(name: str, conditions: Mapping[str, str]) -> str:
    """A condition without what does not matter: where a model's file lies."""
    text = conditions.get(name, "")
    if name != "workload":
        return text
    kind, _, model = text.partition(" ")
    return f"{kind} {Path(model).name}"
