"""Figures out of what a benchmark program prints: its last JSON line, patterns, known formats."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from autotune.core.errors import WrongOutput
from autotune.core.objective import METRICS, Metric
from autotune.core.text import clean
from autotune.core.units import UNITS_BY_KIND

Figures = dict[str, float]
"""Field names of `Measurement` to SI values."""

_BY_FIELD = {metric.field: (name, metric) for name, metric in METRICS.items()}
_SUFFIXES = {"bytes": "B", "mib": "MiB", "gib": "GiB", "kib": "KiB", "mb": "MB", "gb": "GB"}
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_MS = 1e-3
_US = 1e-6
MAX_QUOTED = 60


def read_figures(text: str, options: Mapping[str, Any], *, batch_size: int) -> Figures:
    """The figures of a program's output.

    Args:
        text: The end of what it printed.
        options: Of the workload: `parser`, a key of `PARSERS`, or `metrics`, field names to
            `{"key": ..., "regex": ..., "unit": ...}`; with neither, the last JSON line's
            usual names count.
        batch_size: Items of a query, for programs that count queries.
    Raises:
        WrongOutput: A figure is missing or is no number. Whether a figure can be, and whether
            those that matter are there, is judged by whoever gets it.
    """
    text = clean(text)  # colours may stand before a number, or around a line
    parser = str(options.get("parser") or "json")
    if parser != "json":
        return PARSERS[parser](text, batch_size)
    wanted = dict(options.get("metrics") or {})
    patterns = {field: entry for field, entry in wanted.items() if entry.get("regex")}
    figures = {field: _by_pattern(text, field, entry) for field, entry in patterns.items()}
    if len(patterns) < len(wanted) or not wanted:
        line = last_json_line(text)
        if line is None:
            raise WrongOutput("expected a line with a JSON object, and found none")
        keyed = {field: entry for field, entry in wanted.items() if not entry.get("regex")}
        figures |= _by_keys(line, keyed) if wanted else _by_usual_names(line)
    return figures


def last_json_line(text: str) -> dict[str, Any] | None:
    """The last line that is a JSON object, None if there is none."""
    for line in reversed(text.splitlines()):
        line = line.strip()
        if line.startswith("{") and line.endswith("}"):
            try:
                found = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(found, dict):
                return found
    return None


# --- JSON --------------------------------------------------------------------------------------


def _by_keys(line: Mapping[str, Any], wanted: Mapping[str, Mapping[str, str]]) -> Figures:
    figures = {}
    for field, entry in wanted.items():
        key = entry["key"]
        value = _at(line, key)
        if value is None:
            name = _BY_FIELD[field][0]
            raise WrongOutput(f"expected metric {key} (metrics.{name}) not found")
        unit = entry.get("unit")
        factor = _factor(field, unit) if unit else _factor_in_name(field, key)
        figures[field] = _number(value, key) * factor
    return figures


def _factor_in_name(field: str, key: str) -> float:
    """What the end of a key such as results.p99_ms says that its value is in; else SI."""
    metric = _BY_FIELD[field][1]
    return _units_in_names(metric).get(key.rpartition("_")[2].casefold(), 1.0)


def _units_in_names(metric: Metric) -> dict[str, float]:
    """Factors by the words, in small letters, that stand for a unit in a key; min is a minimum."""
    units = {short.casefold(): factor for short, factor in UNITS_BY_KIND[metric.unit].items()
             if short != "min"}  # fmt: skip
    spelled = {word: units[unit.casefold()] for word, unit in _SUFFIXES.items()
               if unit.casefold() in units}  # fmt: skip
    return units | spelled


def _by_usual_names(line: Mapping[str, Any]) -> Figures:
    """`throughput`, `latency_p99_ms`, `memory_peak_bytes`: a metric's name, its unit behind it."""
    figures = {}
    for key, value in line.items():
        found = usual_name(str(key))
        if found is not None and value is not None:
            field, factor = found
            figures[field] = _number(value, str(key)) * factor
    if not figures:
        names = ", ".join(list(line)[:5]) or "nothing"
        raise WrongOutput(f"expected metric throughput not found; the JSON line has {names}")
    return figures


def usual_name(key: str) -> tuple[str, float] | None:
    """Field and factor of a key such as latency_p99_ms; None for any other."""
    if key in _BY_FIELD:
        return key, 1.0
    for name, metric in METRICS.items():
        if key == name and metric.unit == "rate":
            return metric.field, 1.0
        unit = key.removeprefix(f"{name}_").casefold()
        if unit != key.casefold() and unit in (units := _units_in_names(metric)):
            return metric.field, units[unit]
    return None


def _at(line: Mapping[str, Any], key: str) -> Any:
    """The value under a key, or under a path such as results.p99."""
    if key in line:
        return line[key]
    value: Any = line
    for step in key.split("."):
        value = value.get(step) if isinstance(value, Mapping) else None
    return value


def _number(value: object, key: str) -> float:
    if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
        return float(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise WrongOutput(f"metric {key} is {_quoted(value)}, which is no number")
    try:
        return float(value)
    except OverflowError:
        raise WrongOutput(f"metric {key} is beyond every number") from None


def _quoted(value: object) -> str:
    text = repr(value)
    return text if len(text) <= MAX_QUOTED else f"{text[:MAX_QUOTED]}…"


def _factor(field: str, unit: str | None) -> float:
    metric: Metric = _BY_FIELD[field][1]
    return 1.0 if unit is None else UNITS_BY_KIND[metric.unit][unit]


# --- patterns ----------------------------------------------------------------------------------


def _by_pattern(text: str, field: str, entry: Mapping[str, str]) -> float:
    name = _BY_FIELD[field][0]
    found_all = deque(re.finditer(entry["regex"], text, re.MULTILINE), maxlen=1)
    if not found_all:
        raise WrongOutput(f"expected metric {name} not found by its pattern {entry['regex']!r}")
    (last,) = found_all
    found = _whole_number(text, *last.span(1)) if last.group(1) is not None else ""
    if not _NUMBER.fullmatch(found):
        raise WrongOutput(f"metric {name} is {_quoted(found)}, which is no number")
    return float(found) * _factor(field, entry.get("unit"))


def _whole_number(text: str, start: int, end: int) -> str:
    """What was captured with the digits, points and commas that belong to it.

    A pattern for a decimal point would take 400 out of "400,5" without a word.
    """
    rest = re.compile(r"(?:[.,]?\d+)*").match(text, end)
    captured = text[start:end]
    return captured + (rest.group() if rest and captured[-1:].isdigit() else "")


# --- programs whose format is known ------------------------------------------------------------


def _ais_bench(text: str, _batch_size: int) -> Figures:
    """ais_bench: H2D_latency, NPU_compute_time and D2H_latency in ms, throughput in items.

    Its throughput counts computing alone, and without `--display_all_summary` it tells no copies:
    then the latencies are those of computing. The P99 of the whole is at most the sum of the
    parts'.
    """
    parts = {"h2d": "H2D_latency", "compute": "NPU_compute_time", "d2h": "D2H_latency"}
    parts = {part: name for part, name in parts.items() if part == "compute" or name in text}
    figures: Figures = {}
    for part, name in parts.items():
        line = _line(text, rf"{name} \(ms\):", name)
        figures[f"{part}_mean_s"] = _value(line, r"mean = ", name) * _MS
        figures[f"{part}_p99_s"] = _value(line, r"percentile\(99%\) = ", name) * _MS
    figures["latency_mean_s"] = sum(figures[f"{part}_mean_s"] for part in parts)
    figures["latency_p99_s"] = sum(figures[f"{part}_p99_s"] for part in parts)
    line = _line(text, r"\bthroughput\b", "throughput")
    figures["throughput_items_per_s"] = _value(line, r": *(?=[^:]*$)", "throughput")
    return figures


def _mindspore_lite(text: str, batch_size: int) -> Figures:
    """MindSpore Lite's benchmark: times of one call in ms; it tells no quantile."""
    line = _line(text, r"AvgRunTime = ", "AvgRunTime")
    mean_s = _value(line, r"AvgRunTime = ", "AvgRunTime") * _MS
    if mean_s <= 0:
        raise WrongOutput(f"AvgRunTime is {mean_s / _MS:g} ms, which cannot be")
    return {"latency_mean_s": mean_s, "throughput_items_per_s": batch_size / mean_s}


def _trtexec(text: str, batch_size: int) -> Figures:
    """trtexec: queries per second, each a whole batch, and latencies in ms."""
    figures: Figures = {}
    text = text.rpartition("=== Explanations of")[0] or text  # of each figure, with --verbose
    rate = _value(_line(text, r"\bThroughput: ", "Throughput"), r"Throughput: ", "Throughput")
    figures["throughput_items_per_s"] = rate * batch_size
    line = _line(text, r"(?<!H2D )(?<!D2H )(?<!Host )\bLatency: ", "Latency")
    figures["latency_mean_s"] = _value(line, r"mean = ", "Latency") * _MS
    figures["latency_p50_s"] = _value(line, r"median = ", "Latency") * _MS
    figures["latency_p99_s"] = _value(line, r"percentile\(99%\) = ", "Latency") * _MS
    stages = {"h2d": "H2D Latency", "compute": "GPU Compute Time", "d2h": "D2H Latency"}
    for part, name in stages.items():
        if re.search(rf"{name}: ", text):
            figures[f"{part}_mean_s"] = (
                _value(_line(text, rf"{name}: ", name), r"mean = ", name) * _MS
            )
    return figures


def _perf_analyzer(text: str, _batch_size: int) -> Figures:
    """Triton's perf_analyzer: inferences (items) per second, latencies in microseconds.

    Of several measurements in one run the last counts.
    """
    rate = _value(_line(text, r"\bThroughput: ", "Throughput"), r"Throughput: ", "Throughput")
    figures: Figures = {"throughput_items_per_s": rate}
    names = {"Avg latency: ": "mean", "p50 latency: ": "p50", "p90 latency: ": "p90",
             "p99 latency: ": "p99"}  # fmt: skip
    for words, short in names.items():
        if words in text:
            figures[f"latency_{short}_s"] = _value(_line(text, words, words), words, words) * _US
    return figures


PARSERS: dict[str, Callable[[str, int], Figures]] = {
    "ais_bench": _ais_bench,
    "mindspore_lite": _mindspore_lite,
    "trtexec": _trtexec,
    "perf_analyzer": _perf_analyzer,
}
"""Formats of programs as they print them; takes the text and the batch size."""


def _line(text: str, pattern: str, name: str) -> str:
    found = [line for line in text.splitlines() if re.search(pattern, line)]
    if not found:
        raise WrongOutput(f"expected a line on {name.strip(': ')}, and found none")
    return found[-1]


def _value(line: str, before: str, name: str) -> float:
    match = re.search(rf"{before}({_NUMBER.pattern}|[-+]?(?:nan|inf))(?!\d|[,.]\d)", line)
    if match is None:
        raise WrongOutput(f"no figure for {name} in {_quoted(line.strip())}")
    return float(match.group(1))
