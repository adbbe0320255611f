"""From a breakdown to a verdict in words: the bottleneck, the next knob, what it should bring."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from autotune.core.diagnosis import Breakdown, Diagnosis, Forecast, Part, Roofline, Source
from autotune.core.records import Config
from autotune.core.units import format_duration
from autotune.measure.account import MANY_COPIES, shares_of
from autotune.measure.breakdown import SHORT_KERNEL_S
from autotune.results.forecast import KNOBS, Reach, Setting, forecast
from autotune.results.words import value_text

MIN_SHARE = 0.02  # a part below this is not worth a sentence
MIN_GAIN = 1.03  # a forecast below this is no reason to change anything
ENOUGH = 0.3  # of the best forecast's gain: the first of a part's own knobs that has it is named

ALIKE = 0.95  # of the largest share: of parts that take as long as that, the first of `_FIRST`

_FIRST: tuple[Part, ...] = (
    "h2d", "queue", "host", "gaps", "memory", "compute", "d2h", "communication",
)  # fmt: skip
"""Copies come first: a switch undoes them, where larger batches cost latency."""

_OPTIONS: dict[Part, tuple[str, ...]] = {
    "queue": ("instance_count", "batch_size"),
    "host": ("batch_size", "instance_count"),
    "h2d": ("batched_h2d", "micro_batch_count", "batch_size", "instance_count"),
    "gaps": ("batch_size", "instance_count"),
    "compute": ("cores_per_instance", "instance_count"),
    "memory": ("batch_size", "cores_per_instance", "instance_count"),
    "communication": (),
    "d2h": ("micro_batch_count", "instance_count", "batch_size"),
}
"""Parameters that act on a part, the one that is made for it first."""

_HEADS: dict[Part, str] = {
    "queue": "Requests wait for a free instance",
    "host": "The host's own work holds it back",
    "h2d": "Copies to the device hold it back",
    "gaps": "The device waits for launches",
    "compute": "Computing itself holds it back",
    "memory": "Memory traffic of the model holds it back",
    "communication": "Communication between devices holds it back",
    "d2h": "Copies from the device hold it back",
}


@dataclass(frozen=True, slots=True)
class _Case:
    """What is judged: the part that holds it back, its share, and where it was seen."""

    part: Part
    share: float
    breakdown: Breakdown
    config: Config
    setting: Setting

    def reach(self, knob: str) -> Reach:
        """Whether the search may take the parameter's next value."""
        return self.setting.reach(knob, self.config)


def diagnose(
    breakdown: Breakdown,
    *,
    source: Source,
    config: Config | None = None,
    setting: Setting | None = None,
    roofline: Roofline | None = None,
    extra: Sequence[Forecast] = (),
    efficiency: float | None = None,
) -> Diagnosis:
    """Name the part that the most time would be saved in, and the parameter that is next.

    What is overlapped by computing costs nothing; so copies count as long as nothing is computed
    beside them, and gaps as long as nothing is copied or communicated in them.

    Args:
        extra: Forecasts that take more than a breakdown; they come before those that do not.
    """
    shares = shares_of(breakdown)
    most = max(shares.values())
    part = next(name for name in _FIRST if shares[name] >= ALIKE * most)
    case = _Case(part, shares[part], breakdown, config or Config(), setting or Setting())
    found = _forecasts(case, extra)
    knob, advice = _next_knob(case, found)
    ordered = sorted(found.values(), key=lambda f: (f.knob != knob, -f.gain))
    return Diagnosis(
        config=config,
        source=source,
        part=part,
        share=shares[part],
        shares={str(name): value for name, value in shares.items()},
        breakdown=breakdown,
        knob=knob,
        forecasts=tuple(ordered),
        roofline=roofline,
        efficiency=efficiency,
        sentences=(
            f"{_HEADS[part]}: {shares[part]:.1%} of the time.",
            *advice,
            *_facts(breakdown),
            *_roofline_facts(roofline),
        ),
    )


def _forecasts(case: _Case, extra: Sequence[Forecast]) -> dict[str, Forecast]:
    """By parameter; of one at the end of its range what lies beyond it."""
    found = {f.knob: f for f in extra}
    for knob in KNOBS:
        setting = case.setting
        if case.reach(knob) == "end":
            others = {name: values for name, values in setting.choices.items() if name != knob}
            setting = replace(setting, choices=others)
        made = forecast(knob, case.breakdown, case.config, setting)
        if knob not in found and made is not None:
            found[knob] = made
    return found


def _next_knob(case: _Case, found: dict[str, Forecast]) -> tuple[str, tuple[str, ...]]:
    """The parameter that is next, and why, in sentences.

    What lies beyond a range comes only where nothing within it is worth a change.
    """
    part = case.part
    options = [found[knob] for knob in _OPTIONS[part] if knob in found]
    inside = [f for f in options if case.reach(f.knob) != "end"]
    for group in (inside, options):
        best = max((f.gain for f in group), default=0.0)
        if best >= MIN_GAIN:
            chosen = next(f for f in group if f.gain - 1 >= ENOUGH * (best - 1))
            text = _forecast_text(chosen, case.breakdown)
            return chosen.knob, (text, *_reach_text(chosen.knob, case))
    knob, text = _without_forecast(case)
    if options or not knob:
        tried = f" ({', '.join(f'{f.knob} {f.gain:.2f}×' for f in options)})" if options else ""
        return "", (f"None of the parameters should change much{tried}. {_last_resort(part)}",)
    return knob, (text, *_reach_text(knob, case))


def _reach_text(knob: str, case: _Case) -> Iterator[str]:
    """What has to be changed before the search can follow the advice."""
    value = value_text(knob, case.config.get(knob, ""))
    reach = case.reach(knob)
    if reach == "fixed":
        yield f"This study does not search {knob}: add it to params, with more values than {value}."
    if reach == "end":
        yield f"{knob} has the last value of its range, {value}: widen the range in params."


def _forecast_text(made: Forecast, breakdown: Breakdown) -> str:
    values = [value_text(made.knob, value) for value in (made.before, made.after)]
    change = f"{made.knob} {values[0]} → {values[1]}"
    bound = "at most " if made.at_most else ""
    effect = f"bring {bound}{made.gain:.2f}× the throughput"
    if made.metric == "latency_mean":
        effect = f"divide the mean latency by {made.gain:.2f}"
    text = f"Next: {change}, which should {effect} ({made.formula}; {made.source})."
    copies = breakdown.h2d_copies_per_call
    if made.knob == "batched_h2d" and copies:
        text = f"{copies:.0f} copies per call: batched_h2d makes them few. {text}"
    return text


def _without_forecast(case: _Case) -> tuple[str, str]:
    """The knob for a part where the breakdown does not tell what it would bring."""
    part, b, share = case.part, case.breakdown, case.share
    most = f"At most {1 / (1 - share):.2f}× is there to be had." if share < 1 else ""
    if part == "h2d":
        copies = b.h2d_copies_per_call
        if copies is not None and copies > MANY_COPIES and not case.config.batched_h2d:
            return (
                "batched_h2d",
                f"{copies:.0f} copies per call: batched_h2d makes them few. {most}",
            )
        few = "Few copies, but long ones: " if copies is None or copies <= MANY_COPIES else ""
        return "micro_batch_count", (
            f"{few}micro_batch_count hides the next slice's copy under computing. {most}"
        )
    if part == "gaps":
        short = b.median_kernel_s
        if short is not None and short < SHORT_KERNEL_S:
            return "batch_size", (
                f"Operators take {format_duration(short)} (median), no longer than launching one: "
                f"a larger batch_size makes them longer, more instances fill the gaps. {most}"
            )
        text = "The host is late: more instances fill the gaps; look for waits in the host's code."
        return "instance_count", f"{text} {most}"
    if part in ("d2h", "host", "queue"):
        return "instance_count", f"{_last_resort(part)} {most}"
    return "", ""


def _last_resort(part: Part) -> str:
    """What is left beside the parameters."""
    return {
        "queue": "More instances, or more devices, shorten the wait.",
        "host": "Look for waits and for work in the model's own Python code.",
        "h2d": "Send less, or in a smaller precision.",
        "gaps": "A captured graph or a compiled model launches less.",
        "compute": "A smaller precision, a compiled model or another runtime is left.",
        "memory": "A smaller precision moves fewer bytes; a compiled model fuses operators.",
        "communication": "Overlap it with computing, or split the model over fewer devices.",
        "d2h": "Return less, or in a smaller precision; several instances hide one's copies.",
    }[part]


# --- the figures behind it ---------------------------------------------------------------------


def _facts(b: Breakdown) -> Iterator[str]:
    """A sentence each."""
    yield f"Utilisation {b.utilisation:.1%}: {_of(b.busy_s, b.span_s)} computing."
    if b.kernels and b.kernels[0].share > 0.5:
        yield f"{b.kernels[0].name} alone takes {b.kernels[0].share:.0%} of it."
    if b.gap_count is not None:
        yield f"{b.gap_count:,} gaps between operators, {format_duration(b.gap_s)} in all."
    for name, count, seconds in (("to", b.h2d_count, b.h2d_s), ("from", b.d2h_count, b.d2h_s)):
        if count:
            per_call = f", {count / b.call_count:.0f} per call" if b.call_count else ""
            share = f"{b.share(seconds):.1%}"
            yield f"{count:,} copies {name} the device{per_call}: {share} of the time."
    for what, seconds in (
        ("Communication", b.communication_s),
        ("The host's own work", b.host_s),
        ("Waiting for an instance", b.queue_s),
    ):
        if b.share(seconds) >= MIN_SHARE:
            yield f"{what}: {b.share(seconds):.1%} of the time."


def _roofline_facts(roofline: Roofline | None) -> Iterator[str]:
    if roofline is None or not roofline.moved_bytes:
        return
    yield (
        f"Roofline: {roofline.intensity:.3g} operations per byte, the device turns at "
        f"{roofline.ridge:.3g} ({roofline.peak_flops_per_s / 1e9:.3g} GFLOP/s, "
        f"{roofline.peak_bytes_per_s / 1e9:.3g} GB/s measured): {roofline.bound}-bound while it "
        "computes."
    )


def _of(part_s: float, whole_s: float) -> str:
    return f"{format_duration(part_s)} of {format_duration(whole_s)}"
