"""What an exported configuration rests on: the figures, where and when they were seen, how to
see them again, and why they may not carry over."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from autotune.core.codec import to_json_dict
from autotune.core.records import Config, TrialRecord
from autotune.core.units import format_duration
from autotune.results.gain import interval95
from autotune.results.study_result import StudyResult
from autotune.results.words import (
    config_items,
    config_text,
    factor_interval_text,
    factor_text,
    limit_text,
    metric_text,
    quoted,
    rate_interval_text,
    trust_text,
)

_NOT_VERSIONS = ("precision", "cores", "threads")


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What was seen of a configuration.

    Attributes:
        throughput_ci95_items_per_s, latency_p99_ci95_s: None where there is none.
        command: How to measure the configuration again; `study_command`: how to search again.
        unproven: Why the figures are no proof of what was exported; empty: they are.
    """

    study: str
    status: str
    config: Config
    device: str
    workload: str
    measured_at_s: float
    throughput_items_per_s: float | None = None
    throughput_ci95_items_per_s: tuple[float, float] | None = None
    arrival_rate_per_s: float | None = None
    latency_p99_s: float | None = None
    latency_p99_ci95_s: tuple[float, float] | None = None
    gain: float | None = None
    gain_ci95: tuple[float, float] | None = None
    limits: tuple[str, ...] = ()
    trust: str = ""
    versions: tuple[tuple[str, str], ...] = ()
    command: str = ""
    study_command: str = ""
    unproven: tuple[str, ...] = ()

    def lines(self) -> Iterator[str]:
        """For a person, each short enough for a comment."""
        for reason in self.unproven:
            yield f"UNPROVEN: {reason}"
        yield f"study       {self.study} ({self.status}), exported by autotune"
        yield f"model       {self.workload}"
        yield f"config      {config_text(self.config)}"
        rate = metric_text("throughput", self.throughput_items_per_s)
        yield f"throughput  {rate}{_interval(self.throughput_ci95_items_per_s, rate_interval_text)}"
        if self.arrival_rate_per_s is not None:
            yield "            of requests that arrived at that rate"
        latency = metric_text("latency_p99", self.latency_p99_s)
        yield f"P99         {latency}{_interval(self.latency_p99_ci95_s, _latencies)}"
        if self.limits:
            yield f"limits      {', '.join(self.limits)}"
        if self.gain is not None:
            interval = _interval(self.gain_ci95, factor_interval_text)
            yield f"gain        {factor_text(self.gain)} over the baseline{interval}"
        yield f"trust       {self.trust}"
        yield f"measured    {_date(self.measured_at_s)}"
        yield f"device      {self.device}"
        versions = [f"{name} {version}" for name, version in self.versions]
        for start in range(0, len(versions), 4):
            yield f"{'versions' if not start else '':<12}{', '.join(versions[start : start + 4])}"
        yield f"again       {self.command}"
        yield f"the study   {self.study_command}"

    def to_json(self) -> dict[str, Any]:
        """For a program."""
        own = {"config": self.config.as_dict(), "versions": dict(self.versions)}
        return {**to_json_dict(self), **own, "measured_at": _date(self.measured_at_s)}


def evidence_of(
    result: StudyResult,
    record: TrialRecord,
    *,
    latency_ci95_s: tuple[float, float] | None,
    unproven: Sequence[str] = (),
) -> Evidence:
    """The evidence for a study's recommendation.

    Args:
        record: The recommended configuration's.
        latency_ci95_s: Of its P99.
        unproven: Further reasons than the study's own.
    """
    facts, measurement = result.facts, record.measurement
    assert measurement is not None, "what is recommended was measured"
    against = result.recommendation.against_baseline
    environment = {**facts.environment, **measurement.environment}
    return Evidence(
        study=facts.study,
        status=result.status,
        config=record.config,
        device=facts.device or f"none: {facts.origin}",
        workload=facts.workload,
        measured_at_s=record.started_at_s,
        throughput_items_per_s=measurement.throughput_items_per_s,
        throughput_ci95_items_per_s=measurement.throughput_ci95_items_per_s,
        arrival_rate_per_s=measurement.arrival_rate_per_s,
        latency_p99_s=measurement.latency_p99_s,
        latency_p99_ci95_s=latency_ci95_s,
        gain=result.gain,
        gain_ci95=interval95(against) if against else None,
        limits=tuple(map(limit_text, facts.objective.limits)),
        trust=trust_text(record),
        versions=tuple(
            (name, text)
            for name, text in environment.items()
            if name not in _NOT_VERSIONS and not name.startswith("note ") and name.upper() != name
        ),
        command=measure_command(result, record),
        study_command=" ".join(facts.command),
        unproven=(*_own_doubts(result), *unproven),
    )


def measure_command(result: StudyResult, record: TrialRecord) -> str:
    """The command that measures a configuration of a study again."""
    return " ".join(measure_words(result, record))


def measure_words(result: StudyResult, record: TrialRecord) -> tuple[str, ...]:
    """The same, option by option: a line may break between them."""
    load = result.facts.objective.load
    words = ["autotune measure", f"--space {quoted(result.facts.space_path)}"]
    words += [w for w in result.facts.command[1:] if w.startswith("--set")]
    for name, value in config_items(record.config).items():
        key = f"params.{name}" if "." in name else name
        words.append(f"--set {quoted(f'{key}={value}')}")
    if load.seeks_rate and record.measurement and record.measurement.arrival_rate_per_s:
        rate = f"{record.measurement.arrival_rate_per_s:.6g}/s"
        words.append(f"--set {quoted(f'load.{load.kind}.rate={rate}')}")
    return tuple(words)


def _own_doubts(result: StudyResult) -> Iterator[str]:
    if result.status != "confirmed":
        why = next(iter(result.recommendation.reasons), "")
        yield f"the study is {result.status}{f': {why}' if why else ''}"
    if result.facts.origin != "measured":
        yield f"its figures are {result.facts.origin}, not measured"


def _interval(interval: tuple[float, float] | None, text: Any) -> str:
    return f", 95 % interval {text(interval)}" if interval else ", no interval"


def _latencies(interval: tuple[float, float]) -> str:
    return " to ".join(map(format_duration, interval))


def _date(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
