"""Where the time of a profile went: copies, compute, idle gaps, communication."""

from __future__ import annotations

import numpy as np

from autotune.core.diagnosis import Breakdown, Kernel
from autotune.core.records import Floats
from autotune.measure.profile import ON_DEVICE, Kind, Profile, kind_of

TOP_KERNELS = 10
SAME_TIME_S = 0.5e-9  # closer than this, one operation ends where the next begins
SHORT_KERNEL_S = 5e-6  # comparable with what it costs to launch one
ALIKE_BURSTS = 0.9  # of the bursts of copies: from then on they tell calls
LONG_PAUSE_S = 100e-6  # between two of the host's operators: calling one takes a tenth of it


def break_down(profile: Profile, *, call_count: int | None = None) -> Breakdown:
    """Where the time went.

    Args:
        call_count: Calls in the profile, where the profiler did not mark them; None: as it did, or
            as bursts of copies show.
    """
    calls = call_count or profile.step_count or _calls_seen(profile)
    on_device = profile.of_kind(*ON_DEVICE)
    if not on_device.any():
        return _from_totals(profile, calls)
    parts = {kind: _union(profile, *kinds) for kind, kinds in _PARTS.items()}
    steps = profile.of_kind("step")
    start_s, end_s = _ends(profile, on_device | steps)
    span = np.asarray([[start_s, end_s]])
    busy, other = parts["compute"], _union(profile, "h2d", "d2h", "copy", "communication")
    inner = np.asarray([[busy[0, 0], busy[-1, 1]]]) if busy.size else span
    gaps = _within_devices(_without(inner, busy), profile.device_starts_s)
    idle = _without(_without(span, busy), other)
    compute = profile.of_kind("compute")
    return Breakdown(
        span_s=end_s - start_s,
        call_count=calls,
        busy_s=_length(busy),
        h2d_s=_length(parts["h2d"]),
        d2h_s=_length(parts["d2h"]),
        communication_s=_length(parts["communication"]),
        h2d_alone_s=_length(_without(parts["h2d"], busy)),
        d2h_alone_s=_length(_without(parts["d2h"], busy)),
        communication_alone_s=_length(_without(parts["communication"], busy)),
        h2d_count=int(profile.of_kind("h2d", "copy").sum()),
        d2h_count=int(profile.of_kind("d2h").sum()),
        gap_count=len(gaps),
        gap_s=_length(gaps),
        idle_s=_length(idle),
        host_s=_length(_of_the_host(profile, idle)),
        kernel_count=int(compute.sum()),
        median_kernel_s=float(np.median(profile.duration_s[compute])) if compute.any() else None,
        kernels=_kernels(profile),
    )


def _calls_seen(profile: Profile) -> int | None:
    """Calls as bursts of copies that operators part, where nearly all have equally many copies."""
    copies, compute = profile.of_kind("h2d", "copy"), profile.of_kind("compute")
    if profile.is_host or not copies.any() or not compute.any():
        return None
    starts = np.sort(profile.start_s[compute])
    before = np.searchsorted(starts, np.sort(profile.start_s[copies]))
    sizes = np.unique(before, return_counts=True)[1]
    usual = int(np.bincount(sizes).argmax())
    is_plain = usual > 1 and (sizes == usual).mean() >= ALIKE_BURSTS
    return len(sizes) if is_plain else None


_PARTS: dict[str, tuple[Kind, ...]] = {
    "compute": ("compute",),
    "h2d": ("h2d", "copy"),
    "d2h": ("d2h",),
    "communication": ("communication",),
}


def _of_the_host(profile: Profile, idle: Floats) -> Floats:
    """Of the idle time, that in which the host did not launch anything either.

    Where the profile holds the host's operators, it is what lies outside of them. Where they are
    all there is, a pause that is much longer than calling one takes.
    """
    if profile.is_host:
        long: Floats = idle[idle[:, 1] - idle[:, 0] > LONG_PAUSE_S]
        return long
    if not profile.of_kind("host").any():
        return np.empty((0, 2))
    return _without(idle, _union(profile, "host"))


def _within_devices(gaps: Floats, device_starts_s: Floats) -> Floats:
    """Gaps but those from the end of one device to the beginning of the next laid behind it."""
    # Of a device that ends computing, the next one may begin where the gap does.
    before = np.searchsorted(device_starts_s, gaps[:, 0] - SAME_TIME_S, side="left")
    behind = np.searchsorted(device_starts_s, gaps[:, 1] + SAME_TIME_S, side="right")
    kept: Floats = gaps[before == behind]
    return kept


def step_parts_s(profile: Profile, calls: int) -> tuple[float, float, float]:
    """One call of the host, seconds: operators, short pauses between them, and long ones.

    Medians over the steps, which what disturbs a few of them does not move.
    """
    steps = _union(profile, "step")
    if not steps.size:
        return 0.0, 0.0, 0.0
    pauses = _without(steps, _union(profile, *ON_DEVICE))
    lengths = pauses[:, 1] - pauses[:, 0]
    owner = np.searchsorted(steps[:, 0], pauses[:, 0] + SAME_TIME_S, side="right") - 1
    is_long = lengths > LONG_PAUSE_S
    short_s, long_s = (
        np.bincount(owner[chosen], lengths[chosen], len(steps)) for chosen in (~is_long, is_long)
    )
    operators_s = steps[:, 1] - steps[:, 0] - short_s - long_s
    each = len(steps) / max(calls, 1)  # micro-batches of a call are a step each
    return tuple(each * float(np.median(part)) for part in (operators_s, short_s, long_s))  # type: ignore[return-value]


def _from_totals(profile: Profile, calls: int | None) -> Breakdown:
    """What a profiler summed up by itself: no single operations, hence no count of gaps."""
    totals, types = profile.totals_s, profile.type_times_s
    span_s = sum(totals.values())
    kinds = {name: kind_of(name) for name in types}

    def of(*wanted: Kind) -> float:
        return sum(seconds for name, seconds in types.items() if kinds[name] in wanted)

    whole_s = of("compute")
    kernels = [
        Kernel(name=name, count=0, total_s=s, share=s / whole_s if whole_s else 0.0)
        for name, s in sorted(types.items(), key=lambda item: -item[1])
        if kinds[name] == "compute"
    ]
    return Breakdown(
        span_s=span_s or of(*ON_DEVICE),
        call_count=calls,
        busy_s=totals.get("computing", whole_s),
        h2d_s=of("h2d", "copy"),
        h2d_alone_s=of("h2d", "copy"),
        d2h_s=of("d2h"),
        d2h_alone_s=of("d2h"),
        communication_s=totals.get("communication", of("communication")),
        gap_s=totals.get("free", 0.0),
        idle_s=max(totals.get("free", 0.0) - of("h2d", "copy", "d2h"), 0.0),
        kernels=tuple(kernels[:TOP_KERNELS]),
    )


def _kernels(profile: Profile) -> tuple[Kernel, ...]:
    compute = profile.of_kind("compute")
    if not compute.any():
        return ()
    size = len(profile.labels)
    labels, durations = profile.label[compute], profile.duration_s[compute]
    totals = np.bincount(labels, durations, size)
    counts = np.bincount(labels, minlength=size)
    blocks = np.zeros(size, dtype=np.int64)
    np.maximum.at(blocks, labels, profile.blocks[compute])
    return tuple(
        Kernel(
            name=profile.labels[index],
            count=int(counts[index]),
            total_s=float(totals[index]),
            share=float(totals[index] / totals.sum()) if totals.sum() else 0.0,
            max_blocks=int(blocks[index]),
        )
        for index in np.argsort(-totals)[:TOP_KERNELS]
        if counts[index]
    )


# --- sets of intervals, shape (intervals, 2), sorted and disjoint ------------------------------


def _ends(profile: Profile, chosen: Floats) -> tuple[float, float]:
    starts = profile.start_s[chosen]
    return float(starts.min()), float((starts + profile.duration_s[chosen]).max())


def _union(profile: Profile, *kinds: Kind) -> Floats:
    chosen = profile.of_kind(*kinds)
    starts, durations = profile.start_s[chosen], profile.duration_s[chosen]
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], np.maximum.accumulate((starts + durations)[order])
    if not starts.size:
        return np.empty((0, 2))
    begins = np.concatenate([[True], starts[1:] > ends[:-1] + SAME_TIME_S])
    last = np.concatenate([begins[1:], [True]])
    return np.column_stack([starts[begins], ends[last]])


def _length(intervals: Floats) -> float:
    return float((intervals[:, 1] - intervals[:, 0]).sum())


def _without(intervals: Floats, taken: Floats) -> Floats:
    """The parts of the first that are in none of the second."""
    if not intervals.size or not taken.size:
        return intervals
    edges = np.concatenate([intervals.ravel(), taken.ravel()])
    steps = np.concatenate(
        [
            np.tile([1, -1], len(intervals)),
            np.tile([-2, 2], len(taken)),
        ]
    )
    order = np.argsort(edges, kind="stable")
    depth = np.cumsum(steps[order])
    left = np.flatnonzero(depth[:-1] == 1)
    cut = np.column_stack([edges[order][left], edges[order][left + 1]])
    kept: Floats = cut[cut[:, 1] - cut[:, 0] > SAME_TIME_S]
    return kept
