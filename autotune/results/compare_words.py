"""A comparison as a person reads it: in a terminal, and as markdown beside a change in CI."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from autotune.core.objective import METRICS
from autotune.core.units import format_duration, format_rate
from autotune.measure.paired import POWER
from autotune.results.regression import BASIS_TEXT, CompareResult, Side
from autotune.results.summary import ORIGIN_NOTICE
from autotune.results.words import (
    config_text,
    factor_interval_text,
    factor_text,
    metric_label,
    metric_text,
    outcome_text,
)

MAX_CELL = 120  # characters of a foreign text in a table


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A named finding."""

    name: str
    text: str


def percent(share: float) -> str:
    """A change: "2.3 %"."""
    return f"{100 * share:.2g} %" if share < 0.1 else f"{100 * share:.0f} %"


def headline(result: CompareResult) -> str:
    """What was found, in one sentence."""
    a, b = result.a, result.b
    if result.found == "failed":
        side, name = (a, "A") if a.failure else (b, "B")
        return f"{name} could not be measured: {side.failure}"
    test = result.test
    if test is None:
        if result.metric_ratio is None:
            return "they cannot be compared"
        return f"A over B is {factor_text(result.metric_ratio)}; how sure that is, is not known"
    by = f"{factor_text(test.ratio)} as fast as B"
    if result.found in ("faster", "slower"):
        sure = f"95 % interval {factor_interval_text(test.interval95)}"
        return f"A is {result.found}: {by}, {sure}"
    if result.found == "alike":
        return f"no difference: one of {percent(test.rule.tolerance)} is excluded either way"
    return f"no difference is shown beyond doubt (A is {by})"


def gate_text(result: CompareResult) -> str:
    """What the gate decided and why."""
    test, tolerance = result.test, percent(result.tolerance)
    if result.a.failure:
        return f"failed: A could not be measured: {result.a.failure}"
    if result.broken_limit:
        return f"failed: A breaks a limit that B holds: {result.broken_limit}"
    if test is None or result.b.failure:
        why = result.b.failure and f"B could not be measured: {result.b.failure}"
        return f"undecided: {why or 'there is no interval; --fresh measures one'}"
    slowdown = percent(1 - test.ratio)
    if result.status == "failed":
        return f"failed: A is {slowdown} slower"
    if result.status == "passed":
        text = f"passed: a slowdown of {tolerance} is excluded"
        return f"{text}; one of {slowdown} is there" if test.shown == "worse" else text
    could = f"a slowdown of {percent(test.smallest_change)} would have been found"
    return f"undecided: {could}, one of {tolerance} is to be"


def findings(result: CompareResult) -> Iterator[Line]:
    """The figures behind the headline."""
    label, test = metric_label(result.metric), result.test
    if result.metric_ratio is not None:
        text = factor_text(result.metric_ratio)
        if test is not None and METRICS[result.metric].better == "lower":
            low, high = test.interval95
            text += f"  95 % interval {factor_interval_text((1 / high, 1 / low))}"
        elif test is not None:
            text += f"  95 % interval {factor_interval_text(test.interval95)}"
        yield Line(name=f"{label[0].upper()}{label[1:]}, A over B", text=text)
    if result.rate_per_s is not None:
        yield Line(name="Arrivals", text=f"{format_rate(result.rate_per_s)}, the same for both")
    if test is not None:
        found = f"found in {POWER:.0%} of such comparisons".replace("%", " %")
        text = f"{percent(test.smallest_change)} slower, {found}"
        yield Line(name="Smallest change to be seen", text=text)
    basis = BASIS_TEXT[result.basis].format(n=len(result.pair_ratios))
    if not result.interleaved and result.pair_ratios:
        basis = basis.replace("side by side", "in turns")
    yield Line(name="Rests on", text=basis)
    if result.is_gate:
        yield Line(name="Gate", text=gate_text(result))
    if result.elapsed_s:
        yield Line(name="Time", text=format_duration(result.elapsed_s))
    for side, name in ((result.a, "A"), (result.b, "B")):
        if side.measurement is not None and side.measurement.trust != "quiet":
            yield Line(name=f"Trust of {name}", text=side.measurement.trust)


def remarks(result: CompareResult) -> list[str]:
    """Sentences that qualify the finding."""
    stopped = [f"not settled: {result.stopped}"] if result.stopped else []
    return list(dict.fromkeys((*stopped, *result.notes, *result.differences)))


def figure_texts(side: Side) -> list[str]:
    """A side's own figures."""
    m = side.measurement
    if m is None:
        return [side.failure.partition("\n")[0] or "not measured"]
    texts = [metric_text("throughput", m.throughput_items_per_s)]
    if m.latency_p99_s is not None:
        texts.append(f"P99 {metric_text('latency_p99', m.latency_p99_s)}")
    if side.verdict is not None and side.limits:
        texts.append(f"limits: {outcome_text(side.verdict.outcome)}")
    return texts


def compare_lines(result: CompareResult) -> Iterator[str]:
    """A comparison in a terminal."""
    yield ""
    yield headline(result)
    if result.origin in ORIGIN_NOTICE:
        yield " ".join(ORIGIN_NOTICE[result.origin])
    for name, side in (("A", result.a), ("B", result.b)):
        yield f"  {name}  {side.name}"
        if config_text(side.config) not in side.name:
            yield f"     {config_text(side.config)}"
        yield f"     {'  '.join(figure_texts(side))}"
    for line in findings(result):
        yield f"  {line.name:<27} {line.text}"
    yield from (f"  - {remark}" for remark in remarks(result))


def markdown(result: CompareResult) -> str:
    """A comparison as markdown, for a comment or a job's summary."""
    mark = {"passed": "✅ ", "failed": "❌ ", "undecided": "⚠️ "}[result.status]
    lines = [f"### {mark if result.is_gate else ''}{_plain(headline(result))}", ""]
    if result.origin in ORIGIN_NOTICE:
        lines += [f"**{ORIGIN_NOTICE[result.origin][0]}** {ORIGIN_NOTICE[result.origin][1]}", ""]
    lines += ["| | A | B |", "|---|---|---|"]
    sides = (result.a, result.b)
    rows: dict[str, list[str]] = {
        "what": [side.name for side in sides],
        "configuration": [config_text(side.config) for side in sides],
        "figures": [", ".join(figure_texts(side)) for side in sides],
        "model": [side.workload for side in sides],
        "device": [side.device for side in sides],
    }
    for name, cells in rows.items():
        if any(cells):
            lines.append(f"| {name} | {' | '.join(map(_plain, cells))} |")
    lines += ["", "| | |", "|---|---|"]
    lines += [f"| {line.name} | {_plain(line.text)} |" for line in findings(result)]
    if found := remarks(result):
        lines += ["", *(f"- {_plain(remark)}" for remark in found)]
    return "\n".join([*lines, ""])


def _plain(text: str) -> str:
    """Text that is no markup in a markdown table."""
    first = text.partition("\n")[0]
    first = first if len(first) <= MAX_CELL else f"{first[:MAX_CELL]}…"
    for character in "\\`*_|<>[]#":
        first = first.replace(character, f"\\{character}")
    return first
