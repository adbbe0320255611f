"""From a breakdown to a verdict in words: the bottleneck, the next knob, what it should bring."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from autotune.core.diagnosis import Breakdown, Part
from autotune.core.units import format_duration
from autotune.measure.breakdown import SHORT_KERNEL_S

MANY_COPIES = 4  # of one call: more than its dtypes and a few
COPIES_WHEN_BATCHED = 2  # one per dtype, of which inputs have two as a rule
MIN_SHARE = 0.02  # a part below this is not worth a sentence


@dataclass(frozen=True, slots=True, kw_only=True)
class Bottleneck:
    """What holds a configuration back.

    Attributes:
        part: Where most of the time goes that is not overlapped by computing, or computing itself.
        share: Its share of the time.
        shares: Of all parts; they need not add up to 1, since parts may overlap.
        knob: The parameter to change next, empty if none of ours helps.
        predicted_gain: Throughput after over before if the knob does what it is for; None: unknown.
        sentences: For a person, the verdict first.
    """

    part: Part
    share: float
    shares: dict[Part, float]
    knob: str
    predicted_gain: float | None
    sentences: tuple[str, ...]


def find_bottleneck(breakdown: Breakdown) -> Bottleneck:
    """Name the part that the most time would be saved in.

    What is overlapped by computing costs nothing; so copies count as long as nothing is computed
    beside them, and gaps as long as nothing is copied or communicated in them.
    """
    shares: dict[Part, float] = {
        "h2d": breakdown.share(breakdown.h2d_alone_s),
        "d2h": breakdown.share(breakdown.d2h_alone_s),
        "gaps": breakdown.share(breakdown.idle_s),
        "communication": breakdown.share(breakdown.communication_s),
        "compute": breakdown.utilisation,
    }
    part = max(shares, key=lambda name: shares[name])
    knob, gain, advice = _KNOBS[part](breakdown, shares[part])
    sentences = (f"{_HEADS[part]}: {shares[part]:.1%} of the time.", *advice, *_facts(breakdown))
    return Bottleneck(
        part=part,
        share=shares[part],
        shares=shares,
        knob=knob,
        predicted_gain=gain,
        sentences=sentences,
    )


_HEADS = {
    "h2d": "Copies to the device hold it back",
    "d2h": "Copies from the device hold it back",
    "gaps": "The device waits for launches",
    "communication": "Communication between devices holds it back",
    "compute": "Computing itself holds it back",
}

_Advice = tuple[str, "float | None", tuple[str, ...]]


def _h2d(breakdown: Breakdown, share: float) -> _Advice:
    per_call = breakdown.h2d_copies_per_call
    if per_call is not None and per_call > MANY_COPIES:
        # Amdahl: many small copies cost their number, which batching brings down.
        left = COPIES_WHEN_BATCHED / per_call
        gain = 1 / (1 - share * (1 - left))
        text = (
            f"{per_call:.0f} copies per call: batched_h2d makes them {COPIES_WHEN_BATCHED}, "
            f"which should bring {gain:.2f}×."
        )
        return "batched_h2d", gain, (text,)
    text = (
        "Few copies, but long ones: micro_batch_count hides the next slice's copy under computing, "
        f"at best {1 / (1 - share):.2f}×."
    )
    return "micro_batch_count", 1 / (1 - share), (text,)


def _d2h(_breakdown: Breakdown, share: float) -> _Advice:
    text = "Return less, or in a smaller precision; several instances hide one's copies."
    return "instance_count", 1 / (1 - share), (text,)


def _gaps(breakdown: Breakdown, _share: float) -> _Advice:
    # How much of the gaps a knob fills cannot be told from a profile: only the most there is.
    short = breakdown.median_kernel_s
    busy = max(breakdown.utilisation, 1e-9)
    most = f"At most {1 / busy:.1f}× is there to be had."
    if short is not None and short < SHORT_KERNEL_S:
        text = (
            f"Operators take {format_duration(short)} (median), no longer than launching one: "
            f"a larger batch_size makes them longer, more instances fill the gaps. {most}"
        )
        return "batch_size", None, (text,)
    text = "The host is late: more instances fill the gaps; look for waits in the host's code."
    return "instance_count", None, (f"{text} {most}",)


def _communication(_breakdown: Breakdown, share: float) -> _Advice:
    text = "Overlap it with computing, or split the model over fewer devices."
    return "", 1 / (1 - share) if share < 1 else None, (text,)


def _compute(breakdown: Breakdown, _share: float) -> _Advice:
    text = "Copies and launches are well hidden: a smaller precision or another runtime is left"
    if breakdown.kernels and breakdown.kernels[0].share > 0.5:
        top = breakdown.kernels[0]
        text += f"; {top.name} alone takes {top.share:.0%} of it"
    return "", None, (f"{text}.",)


_KNOBS: dict[Part, Callable[[Breakdown, float], _Advice]] = {
    "h2d": _h2d,
    "d2h": _d2h,
    "gaps": _gaps,
    "communication": _communication,
    "compute": _compute,
}


def _facts(b: Breakdown) -> tuple[str, ...]:
    """The figures behind it, a sentence each."""
    facts = [f"Utilisation {b.utilisation:.1%}: {_of(b.busy_s, b.span_s)} computing."]
    if b.gap_count is not None:
        facts.append(f"{b.gap_count:,} gaps between operators, {format_duration(b.gap_s)} in all.")
    for name, count, seconds in (("to", b.h2d_count, b.h2d_s), ("from", b.d2h_count, b.d2h_s)):
        if count:
            per_call = f", {count / b.call_count:.0f} per call" if b.call_count else ""
            share = f"{b.share(seconds):.1%}"
            facts.append(f"{count:,} copies {name} the device{per_call}: {share} of the time.")
    if b.share(b.communication_s) >= MIN_SHARE:
        facts.append(f"Communication {b.share(b.communication_s):.1%} of the time.")
    return tuple(facts)


def _of(part_s: float, whole_s: float) -> str:
    return f"{format_duration(part_s)} of {format_duration(whole_s)}"
