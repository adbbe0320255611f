"""What a study found in a few figures and sentences; the terminal and the report say the same."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from autotune.core.objective import METRICS
from autotune.core.outcomes import Outcome
from autotune.core.records import Comparison, Measurement, Scalar, TrialRecord
from autotune.core.units import format_duration, format_rate
from autotune.results import words
from autotune.results.batch_knee import StudyKnee, delivered_share
from autotune.results.curves import latency_metric
from autotune.results.gain import interval95
from autotune.results.goals import weighted_gain
from autotune.results.ranking import is_batch_only
from autotune.results.recommend import why_infeasible
from autotune.results.study_result import StudyResult, WarmStart

AGAIN = {
    "measured": "measured again in fresh processes",
    "replayed": "drawn again with fresh noise",
    "simulated": "simulated again with fresh noise",
}
"""How the finalists of a study were proven, by the origin of its figures."""

_STATUS_MEANING = {
    "confirmed": "{Again}: the limit holds and so does the gain.",
    "unconfirmed": "From the search alone: not {again}.",
    "undecided": "What it promises could not be shown within the budget.",
    "infeasible": "Nothing that was tried holds the limits.",
    "failed": "Nothing that was tried could be measured.",
}
ORIGIN_NOTICE = {
    "simulated": (
        "Simulated.",
        "Every figure here comes from a declared cost model on a virtual clock; "
        "nothing was measured on a device.",
    ),
    "replayed": (
        "Replayed.",
        "Every figure here comes from a recorded grid, with noise added, on a virtual clock; "
        "nothing was measured in this study.",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A figure with its name and what qualifies it."""

    name: str
    figure: str
    detail: str


def measurement_of(record: TrialRecord | None) -> Measurement:
    """A trial's measurement, one that knows nothing if there is none."""
    return (record.measurement if record else None) or Measurement()


def status_meaning(result: StudyResult) -> str:
    """What the result's status says, in a sentence."""
    again = AGAIN[result.facts.origin]
    text = _STATUS_MEANING[result.status]
    shown = result.recommendation.record
    if result.status == "unconfirmed" and shown is not None and shown.phase == "confirm":
        text = "{Again}: the limit holds; by how much it gains is not known."
    if result.status == "confirmed" and result.facts.objective.front:
        text = "{Again}, and no other that was measured beside it beats it in all goals."
    elif result.status == "confirmed" and result.config == result.facts.baseline:
        text = "{Again}: the limit holds; there is no gain to prove."
    return text.format(again=again, Again=again.capitalize())


def headline(result: StudyResult) -> str:
    """The decision in one line; the configuration it speaks of is `result.shown`."""
    limits = " and ".join(words.limit_text(limit) for limit in result.facts.objective.limits)
    if result.config is None:
        if not result.trial_count:
            return "No trial is complete yet"
        if result.shown is None:
            failure = result.last_failure
            error = words.reason_text(failure).partition("\n")[0] if failure else words.UNKNOWN
            return f"Nothing could be measured: {error}"
        return f"No tested configuration holds {limits}. The closest one, which does not:"
    if result.ending.handed_over:
        return f"Best so far; {result.ending.stopped}"
    if result.status == "undecided":
        return f"Best so far, not proven: {next(iter(result.recommendation.reasons), 'unknown')}"
    if result.config == result.facts.baseline:
        if result.facts.objective.front:
            return "Keep the baseline, or choose from the front"
        return "Keep the baseline: nothing tested was better"
    if result.improvements:
        return f"Use this configuration: {improvements_text(result)} the baseline's"
    if result.gain is None:
        return "Use this configuration"
    if result.knee is not None and result.config == result.knee.config:
        return f"Use the knee: {words.factor_text(result.gain)} the baseline's throughput"
    return f"Use this configuration: {words.factor_text(result.gain)} the baseline's throughput"


def improvements_text(result: StudyResult) -> str:
    """Each goal's ratio to the baseline's: "throughput 3.20×, P99 latency 0.81×"."""
    return ", ".join(
        f"{words.metric_label(metric)} {words.factor_text(ratio)}"
        for metric, ratio in result.improvements.items()
    )


def reasons(result: StudyResult) -> list[str]:
    """The recommendation's reasons without those that the headline already says."""
    said: tuple[str, ...] = ()
    if result.config is None:
        said = why_infeasible(result.ranking, result.facts.objective)
    elif result.status == "undecided":
        said = result.recommendation.reasons[:1]
    own = [reason for reason in result.recommendation.reasons if reason not in said]
    return own + (knee_remarks(result.knee, result.facts.params) if result.knee is not None else [])


def figures(result: StudyResult) -> list[Figure]:
    """Throughput, latency, gains and memory of the configuration shown; none: no measurement."""
    shown = result.shown
    if shown is None or shown.measurement is None:
        return []
    measurement = shown.measurement
    tiles = [_throughput_figure(measurement), _latency_figure(result, shown, measurement)]
    if measurement.throughput_tokens_per_s is not None:
        tokens = words.metric_text("throughput", measurement.throughput_tokens_per_s)
        figure, detail = tokens.removesuffix("/s"), "padding not counted"
        tiles.insert(1, Figure(name="Throughput, tokens/s", figure=figure, detail=detail))
    if result.knee is not None:
        tiles.insert(0, _knee_figure(result, result.knee))
    if result.config is not None and result.facts.objective.is_weighted:
        tiles.insert(0, _weighted_figure(result))
    if result.config is not None:
        tiles.append(_gain_figure(result))
    has_batches = not result.facts.baseline.is_pipeline and result.knee is None
    if result.config is not None and has_batches and not result.front:
        tiles.append(_batch_only_figure(result))
    if accuracy := result.recommendation.accuracy:
        tiles.append(_accuracy_figure(accuracy))
    if measurement.memory_peak_bytes is not None:
        text = words.metric_text("memory_peak", measurement.memory_peak_bytes)
        is_pipeline = measurement.pipeline is not None
        detail = "of the fullest rank" if is_pipeline else "all instances together"
        tiles.append(Figure(name="Peak memory", figure=text, detail=detail))
    return tiles


def _throughput_figure(measurement: Measurement) -> Figure:
    value, interval = (
        measurement.throughput_items_per_s,
        measurement.throughput_ci95_items_per_s,
    )
    detail = f"95 % interval {words.rate_interval_text(interval)}" if interval else "no interval"
    figure = words.metric_text("throughput", value).removesuffix("/s")
    return Figure(name="Throughput, items/s", figure=figure, detail=detail)


def _latency_figure(result: StudyResult, shown: TrialRecord, measurement: Measurement) -> Figure:
    metric = latency_metric(result)
    field = METRICS[metric].field
    limit = next((x for x in result.facts.objective.limits if x.metric == metric), None)
    if limit is None:
        detail = "no limit was set"
    elif shown.verdict.outcome is Outcome.UNDECIDED:
        detail = f"not shown to hold ≤ {words.metric_text(metric, limit.bound)}"
    elif shown.verdict.excess.get(field, 0.0) > 0:
        detail = f"breaks ≤ {words.metric_text(metric, limit.bound)}"
    else:
        detail = f"holds ≤ {words.metric_text(metric, limit.bound)}"
    name = words.metric_label(metric)
    figure = words.figure_text(metric, measurement)
    return Figure(name=name[0].upper() + name[1:], figure=figure, detail=detail)


def _weighted_figure(result: StudyResult) -> Figure:
    objective = result.facts.objective
    gain = weighted_gain(result.improvements, objective) if result.improvements else None
    weights = ", ".join(f"{words.metric_label(g.metric)} × {g.weight:g}" for g in objective.goals)
    figure = words.UNKNOWN if gain is None else words.factor_text(gain)
    return Figure(name="Weighted gain", figure=figure, detail=f"over the baseline; {weights}")


def _accuracy_figure(accuracy: Mapping[str, float]) -> Figure:
    """The first figure of the answers to the user's own items, the others beside it."""
    named = [(name.replace("_", " "), f"{value:.4g}") for name, value in accuracy.items()]
    (_, items), *figures = named
    name, figure = figures[0] if figures else ("items run", items)
    others = ", ".join(f"{name} {value}" for name, value in figures[1:])
    return Figure(
        name=name[0].upper() + name[1:],
        figure=figure,
        detail="; ".join(filter(None, [others, f"on {items} items of your own"])),
    )


def _knee_figure(result: StudyResult, found: StudyKnee) -> Figure:
    knee = found.knee
    if found.is_unknown or knee.interval is None:
        return Figure(name="Knee", figure="unknown", detail=found.why_unknown)
    low, high = knee.interval
    where = "sure to 90 %" if low == high else f"between {low} and {high} (90 %)"
    shape = {
        "inside": f"peak at {knee.peak_batch_size}",
        "outside_range": "still rising at the largest batch: the true one lies beyond",
        "flat": f"flat: every size delivers {found.share:.0%} of the highest throughput",
        "none": "",
    }[knee.kind]
    delivered = delivered_share(result.recommendation, found)
    parts = [shape] if knee.kind == "outside_range" and low == high else [where, shape]
    if found.config != found.peak and knee.kind != "flat":
        share = knee.delivered if delivered is None else delivered.ratio
        parts.append(f"delivers {share:.1%} of it")
    return Figure(name="Knee", figure=f"batch {knee.batch_size}", detail="; ".join(parts))


def knee_remarks(found: StudyKnee, params: Mapping[str, tuple[Scalar, ...]]) -> list[str]:
    """What else the curve shows that a person should know, in sentences."""
    knee = found.knee
    remarks = []
    wanted = math.prod(len(choices) for name, choices in params.items() if name != "batch_size")
    if 0 < found.curve_count < wanted:
        remarks.append(f"curves measured: {found.curve_count} of {wanted} at most")
    if found.curve_count > 1 and found.config is not None:
        remarks.append(
            f"{found.curve_count} curves were measured; this is the knee of the one that "
            "delivers most there"
        )
    if knee.cliffs:
        remarks.append(f"throughput falls for good at batch {_listed(knee.cliffs)}")
    if knee.padding_steps:
        remarks.append(f"throughput dips at batch {_listed(knee.padding_steps)}, then recovers")
    if len(knee.peaks) > 1:
        remarks.append(f"the curve has several peaks: at batch {_listed(knee.peaks)}")
    if knee.remeasure:
        remarks.append(f"far off its neighbours and not measured again: {_listed(knee.remeasure)}")
    return remarks


def _listed(sizes: tuple[int, ...]) -> str:
    return ", ".join(map(str, sizes))


def _gain_figure(result: StudyResult) -> Figure:
    name = "Gain over the baseline"
    if result.config == result.facts.baseline:
        return Figure(name=name, figure="none", detail="it is the baseline")
    if result.gain is None:
        return Figure(name=name, figure=words.UNKNOWN, detail=_why_no_gain(result))
    throughput = measurement_of(result.recommendation.baseline).throughput_items_per_s
    rate = f"baseline {format_rate(throughput)}" if throughput else ""
    against = result.recommendation.against_baseline
    proof = _interval_text(against) if against else "single trials, no interval"
    return Figure(
        name=name,
        figure=words.factor_text(result.gain),
        detail="; ".join(part for part in (proof, rate) if part),
    )


def _why_no_gain(result: StudyResult) -> str:
    baseline = result.recommendation.baseline
    if baseline is None or baseline.measurement is None:
        return "the baseline has no measurement"
    if result.facts.objective.load.seeks_rate:
        return "the baseline was not shown to hold the limit at any rate"
    return "the baseline's throughput is not known"


def _batch_only_figure(result: StudyResult) -> Figure:
    name, against = "Gain over batch size alone", result.recommendation.against_batch_only
    if against is None:
        figure = "not shown" if _has_rival(result) else "none"
        return Figure(name=name, figure=figure, detail=_why_no_rival(result))
    reference = f"batch_size={against.reference.batch_size}"
    figure = words.factor_text(against.ratio)
    interval = interval95(against)
    if not (interval[0] > 1 if interval else against.shows_gain):
        return Figure(
            name=name,
            figure="none shown",
            detail=f"{figure} over {reference}; {_interval_text(against)}",
        )
    return Figure(name=name, figure=figure, detail=f"{_interval_text(against)}; {reference}")


def _has_rival(result: StudyResult) -> bool:
    """True if another batch size alone held the limits and the winner is more than that."""
    if result.config is None or result.ranking.batch_only is None:
        return False
    baseline = result.facts.baseline
    return result.config.changed(batch_size=baseline.batch_size) != baseline


def _why_no_rival(result: StudyResult) -> str:
    """Why there is no gain over the best batch-only configuration to tell."""
    if not any(is_batch_only(r.config, result.facts.baseline) for r in result.records):
        return "no trial changed the batch size alone"
    if result.ranking.batch_only is None:
        return "no other batch size alone held the limits"
    if not _has_rival(result):
        return "nothing but the batch size was changed"
    if not result.recommendation.confirmations:
        return "not measured side by side"
    again = {
        record.verdict.outcome
        for record in result.recommendation.confirmations
        if is_batch_only(record.config, result.facts.baseline)
    }
    if not again:
        return "the batch-only configuration was not measured again"
    if again == {Outcome.OVER_LIMIT}:
        return "the batch-only configuration did not hold when measured again"
    return "the batch-only configuration could not be compared when measured again"


def _interval_text(comparison: Comparison) -> str:
    interval = interval95(comparison)
    if interval is None:
        return "no interval: rates, not pairs"
    if not interval[1] < float("inf"):
        return "too few pairs for an interval"
    return f"95 % interval {words.factor_interval_text(interval)}"


def _warm_start_text(start: WarmStart) -> str:
    held = {
        True: "its figures held up",
        False: "its figures did not hold up, and no more of its advice was taken",
        None: "none of its figures could be compared",
    }
    return f"from study {start.study}; {held[start.agrees]}"


def standing(result: StudyResult) -> list[tuple[str, str]]:
    """How far the search went, how long it took, and whether its figures can be trusted."""
    ending = result.ending
    trials = f"{result.trial_count} of {result.facts.trials}"
    counted = {o: n for o, n in result.counts.items() if not Outcome(o).is_retried}
    if counted:
        trials += f" ({words.counts_text(counted)})"
    if apart := {o: n for o, n in result.counts.items() if o not in counted}:
        trials += f"; not counted: {words.counts_text(apart)}"
    if ending.complete:
        search = f"complete: {ending.stopped}" if ending.stopped else "complete"
    else:
        search = f"not complete: {ending.stopped or 'still running'}"
    pairs = [("Trials", trials), ("Search", search)]
    if result.warm_start is not None:
        pairs.append(("Warm start", _warm_start_text(result.warm_start)))
    if ending.elapsed_s:
        clock = "Time" if result.facts.origin == "measured" else "Time, mostly virtual"
        pairs.append((clock, format_duration(ending.elapsed_s)))
    if text := _outputs_text(result):
        pairs.append(("Outputs", text))
    probability = result.recommendation.limit_probability
    if probability is not None:
        pairs.append(("Limits hold", f"with a probability of {_percent(probability)}"))
    if result.shown is not None and result.shown.measurement is not None:
        pairs.append(("Trust", words.trust_text(result.shown)))
    return pairs


def _outputs_text(result: StudyResult) -> str:
    """Whether outputs were compared with the baseline's, and who was refused for them."""
    wrong = result.counts.get(Outcome.WRONG_OUTPUT.value, 0)
    refused = f"{wrong} trial{'s' * (wrong > 1)} refused for theirs" if wrong else ""
    trials = (r for r in result.records if r.config == result.config and r.measurement)
    measurement = measurement_of(next(trials, None))
    difference = measurement.output_difference
    if difference is None or result.config == result.facts.baseline:
        return refused
    precision = measurement.environment.get("precision", "")
    within = f", within {difference:.1g} of their size" if difference else ""
    text = f"as the baseline's{within} ({precision})"
    return f"{text}; {refused}" if refused else text


def _percent(probability: float) -> str:
    """A probability, never 100 %: no measurement shows that."""
    return f"{min(100 * probability, 99.9):.3g} %"
