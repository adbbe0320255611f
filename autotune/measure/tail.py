"""The tail of a latency: its quantile, and whether a limit on that quantile is shown to hold.

A quantile of few, dependent samples says little: on batches or in a queue one slow moment makes
many slow requests. `judge_tail` therefore counts how many independent samples a series is worth
and tests those with the exact binomial distribution. Its answer may be "undecided".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from autotune.measure.arguments import flags, real

MIN_BLOCKS, MAX_BLOCKS = 20, 100
MIN_BLOCK_LENGTH = 200  # long enough that blocks are nearly independent of each other
CLEAR_EXCESS = 1.5  # an estimate below this many floors may be chance; above, it is widened
WIDENING = 0.1  # by the spread of a variance estimate: its one-sided 90 % bound
MAX_LOOKS = 3
REACHABLE_N = 1e12

Status = Literal["pass", "fail", "undecided"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TailVerdict:
    """Whether the share of samples over a limit is at most 1 - quantile.

    Attributes:
        status: "pass": shown to hold; "fail": shown to be broken; else "undecided".
        estimate: Share of the samples that were over the limit.
        lower, upper: One-sided bounds of the true share, each wrong with probability alpha.
        effective_n: Independent samples that the series is worth.
        variance_ratio: Samples that count as one independent sample.
        needed_n: Further samples that would settle it if the share stays as estimated; 0 if
            settled, None if no reachable number would.
    """

    status: Status
    estimate: float
    lower: float
    upper: float
    effective_n: float
    variance_ratio: float
    needed_n: int | None


def quantile(values: Sequence[float] | npt.NDArray[np.float64], q: float) -> float:
    """The nearest-rank quantile: the smallest value that a share `q` of all does not exceed.

    It is always one of the values, so that min <= P50 <= P99 <= max. Infinite values count
    (a request that never ended).

    Raises:
        ValueError: No values, a NaN among them, or `q` outside 0 to 1.
    """
    array = np.asarray(values, dtype=np.float64).ravel()
    if array.size == 0:
        raise ValueError("a quantile of no values is not defined")
    if not 0.0 <= q <= 1.0:
        raise ValueError(f"a quantile lies between 0 and 1, found {q}")
    if np.isnan(array).any():
        raise ValueError("a quantile of values with NaN is not defined")
    rank = max(math.ceil(q * array.size - 1e-9), 1)  # 0.07 * 100 is a little above 7
    return float(np.partition(array, rank - 1)[rank - 1])


def judge_tail(
    over_limit: Sequence[bool] | npt.NDArray[np.bool_],
    *,
    quantile: float = 0.99,
    alpha: float = 0.05,
    variance_floor: float = 1.0,
) -> TailVerdict:
    """Judge whether at most a share 1 - `quantile` of requests is over a limit.

    Args:
        over_limit: Whether each sample was over the limit, in time order; not the latencies.
        quantile: Strictly between 0 and 1.
        alpha: Probability, at most, of a false "pass", and of a false "fail".
        variance_floor: Least number of samples that count as one, see `variance_floor_for`:
            a short series cannot show by itself how dependent its samples are.
    Returns:
        Without a sample: undecided, its estimate NaN.
    Raises:
        ValueError: An argument is of another kind, or out of its range.
    """
    quantile, alpha = _levels(quantile, alpha)
    variance_floor = real("variance_floor", variance_floor)
    if variance_floor < 1.0:
        raise ValueError(f"variance_floor is at least 1, found {variance_floor:g}")
    over = flags("over_limit", over_limit)
    n, target = over.size, 1.0 - quantile
    share = float(over.mean()) if n else math.nan
    ratio = variance_ratio(over, variance_floor)
    # However dependent its samples are, a series is worth one.
    effective_n = max(n / ratio, 1.0) if n else 0.0
    lower, upper = _bounds(share, effective_n, alpha)
    status: Status = "pass" if upper <= target else "fail" if lower > target else "undecided"
    return TailVerdict(
        status=status,
        estimate=share,
        lower=lower,
        upper=upper,
        effective_n=effective_n,
        variance_ratio=ratio,
        needed_n=0 if status != "undecided" else _needed(share, n, ratio, target, alpha),
    )


def quantile_interval(
    values: Sequence[float] | npt.NDArray[np.float64], q: float, *, alpha: float = 0.05
) -> tuple[float, float] | None:
    """An interval of a quantile at level 1 - alpha, from order statistics.

    The ranks are those of the binomial distribution, for as many independent values as the series
    is worth (David & Nagaraja, Order Statistics, 2003, section 7.1).

    Args:
        values: In time order.
    Returns:
        None if the values are too few to bound it.
    """
    from scipy.special import bdtr

    array = np.asarray(values, dtype=np.float64).ravel()
    if array.size == 0:
        return None
    effective = int(array.size / variance_ratio(array > quantile(array, q)))
    if effective < 1:
        return None
    ranks = np.arange(effective + 1)
    below = bdtr(ranks, effective, q)  # P(Bin(n, q) <= rank)
    low = int(np.searchsorted(below, alpha / 2, side="right"))
    high = int(np.searchsorted(below, 1 - alpha / 2, side="left")) + 1
    if low < 1 or high > effective:
        return None
    return quantile(array, low / effective), quantile(array, high / effective)


def variance_ratio(over_limit: npt.NDArray[np.bool_], floor: float = 1.0) -> float:
    """How many samples count as one independent sample, at least `floor`.

    Estimated from the spread between the means of contiguous blocks. An estimate that clearly
    exceeds the floor is replaced by its upper bound, since blocks are few.
    """
    from scipy.special import gammaincinv

    n = over_limit.size
    block_count = int(n / max(10.0 * floor, MIN_BLOCK_LENGTH))
    block_count = min(max(block_count, MIN_BLOCKS), MAX_BLOCKS)
    length = n // block_count
    if length == 0:
        return floor
    means = over_limit[: length * block_count].reshape(block_count, length).mean(axis=1)
    share = float(means.mean())
    if not 0.0 < share < 1.0:
        return floor
    # The spread to expect of independent samples with this very share among them.
    expected = share * (1.0 - share) / (length - 1.0 / block_count)
    ratio = float(means.var(ddof=1)) / expected
    if ratio > CLEAR_EXCESS * floor:
        freedom = block_count - 1
        ratio *= freedom / (2.0 * float(gammaincinv(freedom / 2.0, WIDENING)))
    return max(ratio, floor)


def variance_floor_for(
    *,
    max_batch: int = 1,
    utilisation: float | None = None,
    mean_stall_samples: float = 0.0,
) -> float:
    """The variance floor of a load, in samples that count as one.

    Args:
        max_batch: Requests that one call of an open load may serve; 1 for a closed load, whose
            sample is the call itself.
        utilisation: Busy share of the servers of an open load; None: a closed load, no queue.
        mean_stall_samples: Mean length of the host's stalls, in samples.
    Returns:
        At least 1; infinite for an open load at a utilisation of 1 or more, where the queue
        grows without end and no window can show that a limit holds.
    """
    if utilisation is None:
        queue = 1.0
    elif utilisation < 1.0:
        queue = 2.0 * utilisation / (1.0 - utilisation) ** 2
    else:
        queue = math.inf
    return max(1.0, float(max_batch), queue, 2.0 * mean_stall_samples)


def calls_needed(quantile: float, alpha: float, variance_floor: float = 1.0) -> int:
    """Samples without which a "pass" is out of reach, even if none is over the limit.

    Raises:
        ValueError: A level is out of its range, or the floor is not finite.
    """
    quantile, alpha = _levels(quantile, alpha)
    if not 1.0 <= variance_floor < math.inf:
        raise ValueError(f"variance_floor is at least 1 and finite, found {variance_floor}")
    return math.ceil(variance_floor * math.log(alpha) / math.log(quantile) - 1e-9)


def look_sizes(first_n: int, max_n: int) -> tuple[int, ...]:
    """After how many samples to judge, when an undecided window may be doubled up to `max_n`.

    At most three looks, each at `look_alpha`: looking again and again would pass by luck.
    """
    return tuple(n for n in (first_n << look for look in range(MAX_LOOKS)) if n <= max_n)


def look_alpha(alpha: float, look_count: int = MAX_LOOKS) -> float:
    """The level of each of up to three doubling looks that together err with probability `alpha`.

    Pocock's boundary for looks at n, 2n and 4n, fitted for `alpha` from 0.1 % to 10 % (on the
    safe side below 1 %): three looks at 2.2 % for a total of 5 %, at 0.4 % for 1 %.
    """
    if not 1 <= look_count <= MAX_LOOKS:
        raise ValueError(f"1 to {MAX_LOOKS} looks, found {look_count}")
    if look_count == 1:
        return alpha
    return alpha * ((0.68, 0.51)[look_count - 2] + 0.024 * math.log(alpha))


def _levels(quantile: float, alpha: float) -> tuple[float, float]:
    quantile, alpha = real("quantile", quantile), real("alpha", alpha)
    if not 0.0 < quantile < 1.0:
        raise ValueError(f"quantile lies between 0 and 1, found {quantile}")
    if not 0.0 < alpha < 0.5:
        raise ValueError(f"alpha lies between 0 and 0.5, found {alpha}")
    return quantile, alpha


def _bounds(share: float, n: float, alpha: float) -> tuple[float, float]:
    """One-sided exact (Clopper-Pearson) bounds of a share, for fractional counts too."""
    from scipy.special import betaincinv

    if n == 0:
        return 0.0, 1.0
    count = share * n
    lower = float(betaincinv(count, n - count + 1.0, alpha)) if share > 0.0 else 0.0
    upper = float(betaincinv(count + 1.0, n - count, 1.0 - alpha)) if share < 1.0 else 1.0
    return lower, upper


def _needed(share: float, n: int, ratio: float, target: float, alpha: float) -> int | None:
    """Further samples with the same share over the limit after which a bound clears the target."""
    if math.isinf(ratio):
        return None
    if n == 0:
        return calls_needed(1.0 - target, alpha, ratio)

    def settled(total: float) -> bool:
        lower, upper = _bounds(share, total / ratio, alpha)
        return upper <= target or lower > target

    low, high = float(n), 2.0 * n
    while not settled(high):
        low, high = high, 2.0 * high
        if high > REACHABLE_N:
            return None
    while high - low > max(0.5, 1e-3 * high):
        middle = (low + high) / 2.0
        low, high = (low, middle) if settled(middle) else (middle, high)
    return math.ceil(high) - n
