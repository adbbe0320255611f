"""The knee of a throughput-over-batch curve: the smallest batch size that is nearly the best.

Every answer is read off many curves that the measurements leave possible, so that it is as sure as
they are. Nothing is concluded about sizes outside the measured range, except that it was too short.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from autotune.core.records import Floats, Ints
from autotune.measure import arguments
from autotune.measure.curve import draw_log_times

Kind = Literal["inside", "outside_range", "flat", "none"]
Flags = npt.NDArray[np.bool_]

SLACK, SURE = 0.02, 0.95  # the knee delivers share - SLACK with probability SURE
HOLDS_WITHIN = 0.03  # a P99 holds that is surely within this of the limit ...
HOLDS_SURE, HOLDS_ALONE = 3.5, 2.0  # ... by these standard errors, on the curve and by itself
ISOLATED = 0.25  # further than this off both neighbours: re-measure before believing
NEIGHBOUR_RATIO = 4.0  # sizes further apart are not neighbours in this sense
STEEP = 0.5  # throughput over size to this power, between two points, leaves no room for a peak
MOST_REPEATS = 4  # of a size near the limit, which noise alone may put on the wrong side
REFINED = 3  # smaller knees are looked for while less than one in so many sizes is measured
HIDDEN = 0.1  # probability of a knee among the unmeasured smaller sizes that is looked into
LIKELY = 0.5  # an unmeasured size more likely than this to be the knee is measured
MAX_POINTS = 1000  # of a curve: the work grows with their cube
REAL = (1e-15, 1e15)  # items per second, or seconds: no real figure lies beyond
LEAST_NOISE = 1e-6  # relative; below, what cannot be told apart would be
CLIFF, STEP, DIP = 0.10, 0.05, 0.03  # least falls that are named, noise permitting


@dataclass(frozen=True, slots=True, kw_only=True)
class Knee:
    """What a throughput-over-batch curve shows; sizes are sizes that were given.

    Attributes:
        batch_size: The smallest that delivers the share of the peak; None if no size may be used.
        interval: Sizes between which the knee lies with 90 % probability; of those that were
            given and, if one was given, of the grid.
        peak_batch_size: The size with the highest throughput under the limit.
        peak_throughput_per_s: Estimated throughput there.
        delivered: Estimated share of the peak at `batch_size`.
        kind: "outside_range": still rising at the largest size, the true peak and its knee lie
            beyond; "flat": every size delivers the share; "none": no size may be used, or fewer
            than three are known.
        cliffs: Sizes at which throughput falls for good.
        padding_steps: Sizes at which it falls and recovers later.
        peaks: Local maxima; more than one is a warning to hill climbers.
        remeasure: Isolated points, more than 25 % off both neighbours. Until measured again, low
            ones are left out, and high ones where even a call would be faster than at the size
            before.
        measure_next: Sizes whose measurement would tell most, those to re-measure first.
    """

    batch_size: int | None
    interval: tuple[int, int] | None
    peak_batch_size: int | None
    peak_throughput_per_s: float | None
    delivered: float | None
    kind: Kind
    cliffs: tuple[int, ...]
    padding_steps: tuple[int, ...]
    peaks: tuple[int, ...]
    remeasure: tuple[int, ...]
    measure_next: tuple[int, ...]


def find_knee(
    batch_sizes: Sequence[int],
    throughput_per_s: Sequence[float],
    *,
    share: float = 0.95,
    latency_p99_s: Sequence[float] | None = None,
    limit_s: float | None = None,
    noise: float = 0.03,
    grid: Sequence[int] = (),
) -> Knee:
    """Find the smallest batch size that delivers `share` of the true peak.

    Args:
        batch_sizes: Sizes in any order; a size measured several times appears several times.
        throughput_per_s: Of each; 0 for a size that cannot run.
        latency_p99_s: P99 of each, any figure for one that cannot run; with `limit_s`, only
            sizes whose P99 holds, within 3 %, may be used.
        noise: Relative standard error of a single figure.
        grid: Further sizes that could be measured, so that the interval may reach them.
    Raises:
        ValueError: Lengths differ, or a value is of another kind or out of its range.
    """
    curve = _curve(batch_sizes, throughput_per_s, latency_p99_s, limit_s, share, noise)
    grid = [int(size) for size in arguments.sizes("grid", grid)]
    if not curve.sizes.size:
        return _no_knee(curve)
    beyond = np.append(curve.sizes, 2.0 * curve.sizes[-1])
    drawn = _draw(curve, beyond, noise)
    speed, usable = drawn.speed[:, :-1], drawn.shown[:-1] & ~curve.doubtful
    if not usable.any():
        return _no_knee(curve)
    sizes = curve.sizes[usable]
    ratio = speed[:, usable] / speed[:, usable].max(axis=1, keepdims=True)
    pick = _pick(ratio, share)
    knee = int(sizes[pick])
    typical = np.exp(np.median(np.log(speed), axis=0))
    peak = int(np.argmax(np.where(usable, typical, 0.0)))
    trusted = curve.sizes[~curve.doubtful], typical[~curve.doubtful]
    cliffs, steps = _falls(*trusted, noise)
    longer = float(np.mean(share * drawn.speed[:, -1] > speed.max(axis=1)))
    rising = peak == usable.size - 1 and longer > 0.5 and not curve.failed.size
    kind = _kind(curve, ratio, share, rising)
    return Knee(
        batch_size=knee,
        interval=_interval(curve, sizes, ratio, knee, share, noise, grid),
        peak_batch_size=int(curve.sizes[peak]),
        peak_throughput_per_s=float(typical[peak]),
        delivered=float(np.median(ratio[:, pick])),
        kind=kind,
        cliffs=cliffs,
        padding_steps=steps,
        peaks=_peaks(*trusted, noise),
        remeasure=curve.remeasure,
        measure_next=_suggest(curve, knee, int(curve.sizes[peak]), kind),
    )


def next_points(
    batch_sizes: Sequence[int],
    throughput_per_s: Sequence[float],
    grid: Sequence[int],
    *,
    share: float = 0.95,
    latency_p99_s: Sequence[float] | None = None,
    limit_s: float | None = None,
    noise: float = 0.03,
    tolerance: float = 0.0025,
) -> tuple[int, ...]:
    """Which sizes of `grid` to measure next; none: the knee is settled.

    Begins with the smallest and the largest, then the middle unless these two say enough; then
    the size at which the peak most likely hides, weighed by what not knowing it would cost; at
    last a size that more likely than not is the knee, and smaller ones that may be, as long as
    two thirds of the grid are left. Isolated points, and sizes whose P99 is near the limit, are
    repeated.

    Args:
        batch_sizes, throughput_per_s, latency_p99_s: What is measured so far, as `find_knee`.
        tolerance: Expected loss of throughput, beyond the allowed 1 - `share` and relative to
            the peak over the whole grid, at which to stop.
    Raises:
        ValueError: As `find_knee`; or the grid is empty or lacks a measured size.
    """
    curve = _curve(batch_sizes, throughput_per_s, latency_p99_s, limit_s, share, noise)
    every = np.unique(arguments.sizes("grid", grid))
    known = np.union1d(curve.sizes, curve.failed)
    if not every.size or not np.isin(known, every).all():
        raise ValueError("the grid must hold sizes, all measured ones among them")
    if curve.remeasure:
        return curve.remeasure[:1]
    size_count = every.size
    every = _within_reach(curve, every)
    left = np.flatnonzero(~np.isin(every, curve.sizes))
    if not left.size:
        return ()
    ends = [0] if curve.failed.size else [0, every.size - 1]
    if wanted := tuple(dict.fromkeys(int(every[end]) for end in ends if end in left)):
        return wanted
    cost, best, knee, pick = _outlook(curve, every, _draw(curve, every, noise), share)
    middle = (every.size - 1) // 2
    if middle in left and not _says_enough(curve):
        return (int(every[middle]),)
    if cost.mean() >= tolerance:
        promise = np.bincount(best, cost, minlength=every.size)
        often = np.zeros(every.size)
        often[np.searchsorted(every, curve.sizes)] = curve.counts
        promise[often >= (1 if limit_s is None else MOST_REPEATS)] = 0.0
        return (int(every[np.argmax(promise)]),) if promise.max() > 0.0 else ()
    likely = np.bincount(knee, minlength=every.size) / knee.size
    if wanted := tuple(int(every[index]) for index in left if likely[index] > LIKELY):
        return wanted
    smaller = left[every[left] < pick] if pick is not None else left[:0]
    if REFINED * (known.size + 1) > size_count or likely[smaller].sum() <= HIDDEN:
        return ()
    below = np.cumsum(likely[smaller])
    return (int(every[smaller[np.searchsorted(below, 0.5 * below[-1])]]),)


def _says_enough(curve: _Curve) -> bool:
    """Whether three sizes are measured, or two between which throughput grows steeply."""
    if curve.sizes.size != 2:
        return curve.sizes.size > 2
    steepness = math.log(curve.speed[1] / curve.speed[0]) / math.log(
        curve.sizes[1] / curve.sizes[0]
    )
    return steepness >= STEEP


def _within_reach(curve: _Curve, grid: Floats) -> Floats:
    """The grid without the sizes that failed, and what is larger than one that was too large."""
    too_large = curve.failed[curve.failed > curve.sizes.max(initial=0.0)]
    reach: Floats = grid[~np.isin(grid, curve.failed) & (grid < too_large.min(initial=np.inf))]
    return reach


# --- what was measured ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Curve:
    """Measured figures, one per size in ascending order; sizes that cannot run apart."""

    sizes: Floats
    speed: Floats
    latency: Floats | None
    limit: float
    counts: Floats
    isolated: Flags
    doubtful: Flags
    failed: Floats

    @property
    def remeasure(self) -> tuple[int, ...]:
        return tuple(int(size) for size in self.sizes[self.isolated])


def _curve(
    batch_sizes: Sequence[int],
    throughput_per_s: Sequence[float],
    latency_p99_s: Sequence[float] | None,
    limit_s: float | None,
    share: float,
    noise: float,
) -> _Curve:
    """Check the arguments and average repeated measurements."""
    sizes = arguments.sizes("batch_sizes", batch_sizes)
    speed = arguments.reals("throughput_per_s", throughput_per_s)
    if sizes.shape != speed.shape:
        raise ValueError(f"{sizes.size} batch sizes but {speed.size} throughputs")
    if np.unique(sizes).size > MAX_POINTS:
        raise ValueError(f"batch_sizes: more than {MAX_POINTS} different ones")
    if ((speed != 0.0) & ((speed < REAL[0]) | (speed > REAL[1]))).any():
        raise ValueError(
            f"throughput_per_s: each is 0 or from {REAL[0]:g} to {REAL[1]:g}, found "
            f"{speed.min():g} to {speed.max():g}"
        )
    share, noise = arguments.real("share", share), arguments.real("noise", noise)
    if not 0.0 < share <= 1.0 or not LEAST_NOISE <= noise < 1.0:
        raise ValueError(
            f"share lies between 0 and 1, noise between {LEAST_NOISE:g} and 1, found {share:g} "
            f"and {noise:g}"
        )
    if (limit_s is None) != (latency_p99_s is None):
        raise ValueError("latency_p99_s and limit_s go together")
    if limit_s is not None and arguments.real("limit_s", limit_s) <= 0.0:
        raise ValueError(f"limit_s is above 0, found {limit_s:g}")
    runs = speed > 0.0
    unique, at = np.unique(sizes[runs], return_inverse=True)
    counts = np.bincount(at, minlength=unique.size).astype(np.float64)

    def mean(values: Floats) -> Floats:
        return np.exp(np.bincount(at, np.log(values), minlength=unique.size) / counts)

    latency = None
    if latency_p99_s is not None:
        latency = arguments.reals("latency_p99_s", latency_p99_s, finite=False)
        if latency.shape != sizes.shape:
            raise ValueError(f"{sizes.size} batch sizes but {latency.size} latencies")
        if not ((latency >= REAL[0]) & (latency <= REAL[1]))[runs].all():
            raise ValueError(
                "latencies must be positive and finite, one for each size that runs, from "
                f"{REAL[0]:g} to {REAL[1]:g} s"
            )
        latency = mean(latency[runs])
    average = mean(speed[runs])
    isolated = _isolated(unique, average) & (counts < 2)
    # A high point is believable where a call still takes longer than at the size before.
    faster = np.diff(unique / average, prepend=0.0) < 0.0
    low = np.diff(average, prepend=0.0) < 0.0
    return _Curve(
        sizes=unique,
        speed=average,
        latency=latency,
        limit=math.inf if limit_s is None else limit_s,
        counts=counts,
        isolated=isolated,
        doubtful=isolated & (faster | low),
        failed=np.setdiff1d(sizes, unique),
    )


def _isolated(sizes: Floats, speed: Floats) -> Flags:
    """Interior points more than a quarter above, or below, both of their near neighbours."""
    isolated = np.zeros(sizes.size, dtype=bool)
    for i in range(1, sizes.size - 1):
        near = sizes[i + 1] <= NEIGHBOUR_RATIO * sizes[i] <= NEIGHBOUR_RATIO**2 * sizes[i - 1]
        around = speed[i - 1], speed[i + 1]
        off = speed[i] < (1 - ISOLATED) * min(around) or speed[i] > (1 + ISOLATED) * max(around)
        isolated[i] = near and off
    return isolated


# --- curves it leaves possible -------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Drawn:
    """Curves on a grid.

    Attributes:
        speed: Throughputs, shape (DRAWS, sizes).
        holds: Whether the latency limit holds in a draw.
        shown: Whether it is shown to hold, shape (sizes,).
    """

    speed: Floats
    holds: Flags
    shown: Flags


def _draw(curve: _Curve, grid: Floats, noise: float) -> _Drawn:
    use = ~curve.doubtful if (~curve.doubtful).sum() > 1 else np.ones(curve.sizes.size, dtype=bool)
    sizes, errors = curve.sizes[use], noise / np.sqrt(curve.counts[use])
    speed = np.exp(np.log(grid) - draw_log_times(sizes, sizes / curve.speed[use], errors, grid))
    if curve.latency is None:
        everywhere = np.ones(grid.size, dtype=bool)
        return _Drawn(speed=speed, holds=np.ones_like(speed, dtype=bool), shown=everywhere)
    latency = draw_log_times(sizes, curve.latency[use], errors, grid, rough=True)
    bound = math.log(curve.limit * (1.0 + HOLDS_WITHIN))
    shown = latency.mean(axis=0) + HOLDS_SURE * latency.std(axis=0) <= bound
    # Its neighbours must not talk a size below the limit that by itself is too close to it.
    shown[np.searchsorted(grid, sizes)] &= (
        np.log(curve.latency[use]) + HOLDS_ALONE * errors <= bound
    )
    return _Drawn(speed=speed, holds=latency <= math.log(curve.limit), shown=shown)


# --- reading the draws ---------------------------------------------------------------------------


def _pick(ratio: Floats, share: float) -> int:
    """The first size that is sure enough to deliver the share, else the likely best."""
    sure = (ratio >= share - SLACK).mean(axis=0) >= SURE
    return int(np.argmax(sure)) if sure.any() else int(np.argmax(ratio.mean(axis=0)))


def _outlook(
    curve: _Curve, grid: Floats, drawn: _Drawn, share: float
) -> tuple[Floats, Ints, Ints, float | None]:
    """What the present pick loses in each draw beyond 1 - `share`; where peak and knee are; it."""
    speed = np.where(drawn.holds, drawn.speed, 0.0)
    peak = speed.max(axis=1)
    knee = np.argmax(speed >= share * peak[:, None], axis=1)
    usable = np.flatnonzero(np.isin(grid, curve.sizes) & drawn.shown)
    delivered, pick = np.zeros_like(peak), None
    if usable.size:
        known = drawn.speed[:, usable]
        place = _pick(known / known.max(axis=1, keepdims=True), share)
        delivered, pick = known[:, place], float(grid[usable[place]])
    possible = peak > 0.0
    relative = np.divide(delivered, peak, out=np.full_like(peak, share), where=possible)
    return np.maximum(share - relative, 0.0), speed.argmax(axis=1), knee, pick


def _interval(
    curve: _Curve,
    sizes: Floats,
    ratio: Floats,
    knee: int,
    share: float,
    noise: float,
    grid: Sequence[int],
) -> tuple[int, int]:
    """Where 90 % of the drawn curves have their knee, among measured sizes or all of the grid."""
    knees = np.argmax(ratio >= share, axis=1)
    every = _within_reach(curve, np.union1d(curve.sizes, np.asarray(grid, dtype=np.float64)))
    if every.size > curve.sizes.size:
        sizes = every
        knees = _outlook(curve, every, _draw(curve, every, noise), share)[2]
    low, high = np.quantile(knees, [0.05, 0.95], method="nearest")
    return int(min(sizes[low], knee)), int(max(sizes[high], knee))


def _kind(curve: _Curve, ratio: Floats, share: float, rising: bool) -> Kind:
    if curve.sizes.size < 3:
        return "none"
    if rising:
        return "outside_range"
    return "flat" if float(np.median(ratio, axis=0).min()) >= share else "inside"


def _no_knee(curve: _Curve) -> Knee:
    return Knee(
        batch_size=None,
        interval=None,
        peak_batch_size=None,
        peak_throughput_per_s=None,
        delivered=None,
        kind="none",
        cliffs=(),
        padding_steps=(),
        peaks=(),
        remeasure=curve.remeasure,
        measure_next=curve.remeasure,
    )


def _falls(sizes: Floats, speed: Floats, noise: float) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Sizes at which throughput falls for good, and at which it falls but recovers later."""
    cliffs, steps = [], []
    clear = 2.0 * math.sqrt(2.0) * noise  # two standard errors of a difference
    for i in range(1, sizes.size):
        before = float(speed[i - 1])
        fall = 1.0 - float(speed[i]) / before
        if speed[i:].max() >= before:
            if fall > max(STEP, clear):
                steps.append(int(sizes[i]))
        elif fall > max(CLIFF, clear):
            cliffs.append(int(sizes[i]))
    return tuple(cliffs), tuple(steps)


def _peaks(sizes: Floats, speed: Floats, noise: float) -> tuple[int, ...]:
    """Local maxima with a clear dip on either side, the ends of the range apart."""
    dip = 1.0 - max(DIP, 2.0 * math.sqrt(2.0) * noise)
    peaks: list[int] = []
    top = bottom = 0
    rising = True
    for i in range(sizes.size):
        if rising:
            top = i if speed[i] >= speed[top] else top
            if speed[i] < dip * speed[top]:
                peaks.append(int(sizes[top]))
                rising, bottom = False, i
        else:
            bottom = i if speed[i] <= speed[bottom] else bottom
            if dip * speed[i] > speed[bottom]:
                rising, top = True, i
    if rising:
        peaks.append(int(sizes[top]))
    return tuple(peaks)


def _suggest(curve: _Curve, knee: int, peak: int, kind: Kind) -> tuple[int, ...]:
    """Isolated points, twice a range that is too short, the middles of gaps at knee and peak."""
    sizes = [int(size) for size in curve.sizes]
    wanted = list(curve.remeasure)
    if kind == "outside_range":
        wanted.append(2 * sizes[-1])
    for below, above in itertools.pairwise(sizes):
        middle = round(math.sqrt(below * above))
        if (above in (knee, peak) or below == peak) and below < middle < above:
            wanted.append(middle)
    return tuple(dict.fromkeys(wanted))
