"""Studies and gates as metrics, in the text format of Prometheus (version 0.0.4)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from autotune.core.objective import METRICS
from autotune.core.records import TrialRecord
from autotune.results.gain import interval95
from autotune.results.history import GateEntry
from autotune.results.study_result import StudyResult
from autotune.results.words import config_text

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MAX_LABEL = 400  # characters of a label's value

NAMES: dict[str, str] = {
    "autotune_info": "The version that serves this.",
    "autotune_studies_left_out": "Studies that are not shown: too many, or not readable.",
    "autotune_study_info": "A study; its labels say what it is about and what it recommends.",
    "autotune_study_trials": "Trials by outcome.",
    "autotune_study_trials_planned": "Trials asked for.",
    "autotune_study_trials_running": "Trials that are being run now.",
    "autotune_study_complete": "1 if all trials were run and the result is settled.",
    "autotune_study_elapsed_seconds": "Time of all runs together, virtual time included.",
    "autotune_study_last_trial_timestamp_seconds": "When the last trial that ended had begun.",
    "autotune_best_throughput_items_per_second": "The best trial so far that holds its limits.",
    "autotune_verified_throughput_items_per_second": "Of the confirmed recommendation, fresh.",
    "autotune_verified_throughput_lower_items_per_second": "Lower end of its 95 % interval.",
    "autotune_verified_throughput_upper_items_per_second": "Upper end of its 95 % interval.",
    "autotune_verified_latency_p99_seconds": "P99 latency of the confirmed recommendation.",
    "autotune_verified_memory_peak_bytes": "Its peak memory, all instances together.",
    "autotune_verified_gain_ratio": "Its throughput over the baseline's, side by side.",
    "autotune_verified_gain_lower_ratio": "Lower end of the gain's 95 % interval.",
    "autotune_verified_timestamp_seconds": "When it was measured for that.",
    "autotune_limit": "A limit of the study, in the metric's SI unit.",
    "autotune_gate_ratio": "Speed of a over that of b in the last gate of this pairing.",
    "autotune_gate_passed": "1 passed, 0 failed; none if undecided.",
    "autotune_gate_timestamp_seconds": "When it ran.",
}
"""Every metric with its help; all are gauges."""

Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """A study as it stands.

    Attributes:
        running: Trials that are being run now.
    """

    result: StudyResult
    running: int = 0


Sample = tuple[str, Labels, float]


def render_metrics(samples: Iterable[Sample]) -> str:
    """The samples as text, by metric in the order of `NAMES`; what is not finite is left out."""
    by_name: dict[str, list[str]] = {name: [] for name in NAMES}
    for name, labels, value in samples:
        if math.isfinite(value):
            pairs = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
            by_name[name].append(f"{name}{{{pairs}}} {value!r}")
    lines: list[str] = []
    for name, rows in by_name.items():
        if rows:
            lines += [f"# HELP {name} {NAMES[name]}", f"# TYPE {name} gauge", *rows]
    return "\n".join(lines) + "\n"


def study_samples(watched: Watched) -> Iterator[Sample]:
    """What is to be told of a study."""
    result = watched.result
    facts, own = result.facts, {"study": result.facts.study}
    yield (
        "autotune_study_info",
        {
            **own,
            "status": result.status,
            "model": facts.workload,
            "device": facts.device,
            "origin": facts.origin,
            "config": config_text(result.config) if result.config else "",
        },
        1.0,
    )
    for outcome, count in result.counts.items():
        yield "autotune_study_trials", {**own, "outcome": outcome}, float(count)
    yield "autotune_study_trials_planned", own, float(facts.trials)
    yield "autotune_study_trials_running", own, float(watched.running)
    yield "autotune_study_complete", own, float(result.ending.complete)
    yield "autotune_study_elapsed_seconds", own, result.ending.elapsed_s
    if result.records:
        last_s = max(record.started_at_s for record in result.records)
        yield "autotune_study_last_trial_timestamp_seconds", own, last_s
    for limit in facts.objective.limits:
        sign = "at_most" if METRICS[limit.metric].better == "lower" else "at_least"
        yield "autotune_limit", {**own, "metric": limit.metric, "sign": sign}, limit.bound
    yield from _figures(result, {**own, "origin": facts.origin})


def _figures(result: StudyResult, labels: Labels) -> Iterator[Sample]:
    best = next(iter(result.ranking.ranked), None)
    throughput = best.measurement.throughput_items_per_s if best and best.measurement else None
    yield from _known("autotune_best_throughput_items_per_second", labels, throughput)
    record = result.recommendation.record
    if result.status == "confirmed" and record is not None:
        yield from _verified(result, record, labels)


def _verified(result: StudyResult, record: TrialRecord, labels: Labels) -> Iterator[Sample]:
    measurement, against = record.measurement, result.recommendation.against_baseline
    assert measurement is not None, "what is confirmed was measured"
    lower, upper = measurement.throughput_ci95_items_per_s or (None, None)
    gain = interval95(against) if against else None
    figures = {
        "throughput_items_per_second": measurement.throughput_items_per_s,
        "throughput_lower_items_per_second": lower,
        "throughput_upper_items_per_second": upper,
        "latency_p99_seconds": measurement.latency_p99_s,
        "memory_peak_bytes": measurement.memory_peak_bytes,
        "gain_ratio": against.ratio if against else None,
        "gain_lower_ratio": gain[0] if gain else None,
        "timestamp_seconds": record.started_at_s,
    }
    for name, value in figures.items():
        yield from _known(f"autotune_verified_{name}", labels, value)


def gate_samples(entries: Sequence[GateEntry], most: int) -> Iterator[Sample]:
    """The last gate of each of the `most` pairings that ran last."""
    last = {entry.pairing: entry for entry in sorted(entries, key=lambda entry: entry.at_s)}
    newest = sorted(last.values(), key=lambda entry: entry.at_s, reverse=True)[:most]
    for entry in newest:
        labels = {"a": entry.a, "b": entry.b, "model": entry.model, "device": entry.device}
        yield from _known("autotune_gate_ratio", labels, entry.ratio)
        if entry.status != "undecided":
            yield "autotune_gate_passed", labels, float(entry.status == "passed")
        yield "autotune_gate_timestamp_seconds", labels, entry.at_s


def _known(name: str, labels: Labels, value: float | None) -> Iterator[Sample]:
    if value is not None:
        yield name, labels, float(value)


def _escaped(text: str) -> str:
    short = text if len(text) <= MAX_LABEL else f"{text[: MAX_LABEL - 1]}…"
    return short.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
