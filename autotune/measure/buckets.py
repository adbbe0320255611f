"""Which sizes to compile a model for, when requests have many: the cheapest set of buckets.

A request runs in the smallest bucket that holds it and pays for the bucket's size. More buckets
mean less padding, and more compilations and memory. The best set is found exactly: with the sizes
in order, a set of buckets cuts them into runs, so that the best way to serve the sizes up to one
follows from the best ways to serve fewer (dynamic programming over cut points).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from autotune.core.errors import UsageError
from autotune.core.units import format_size

MAX_SIZES = 8192
"""Candidates; of more, rounding up to a multiple makes fewer."""

MAX_SIZE = 2**40
MAX_BUCKETS = 256
MAX_STATES = 2_000_000
"""Partial solutions that are kept while memory is limited."""

MAX_TRIED = 20_000_000
"""Partial solutions that are looked at then."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketCosts:
    """What buckets cost.

    Attributes:
        item: Time of one item in a bucket of a size, in any unit; with compile_s in seconds.
        compile_s: Of one bucket, once. `item_count`: items that will be served until everything
            is compiled again; None: the histogram's own number.
        memory: Bytes that a bucket of a size occupies. `memory_limit_bytes`: of all together.
    """

    item: Callable[[float], float] = float
    compile_s: float = 0.0
    item_count: float | None = None
    memory: Callable[[float], float] | None = None
    memory_limit_bytes: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketSet:
    """Some buckets and what they cost.

    Attributes:
        sizes: Ascending.
        cost: Of all items, and of compiling, in the costs' unit.
        padding: Share of what is computed that is padding, counted in sizes.
        compile_s: Of all buckets. `memory_bytes`: of all, None if it is not known.
    """

    sizes: tuple[int, ...]
    cost: float
    padding: float
    compile_s: float = 0.0
    memory_bytes: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Buckets:
    """The best buckets, and what the usual ones would cost.

    Attributes:
        powers_of_two: As many of them as are allowed, the largest ones, if too many are; None if
            none of these sets fits the memory.
        single: One bucket for all, None if it does not fit.
        unpadded_cost: Of the items alone, each in its own size.
    """

    best: BucketSet
    powers_of_two: BucketSet | None
    single: BucketSet | None
    unpadded_cost: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Problem:
    """Candidate sizes with the items and the sum of sizes up to each, ascending."""

    sizes: npt.NDArray[np.int64]
    items: Floats
    item_cost: Floats
    memory: Floats
    bucket_cost: float
    limit: float
    scale: float = 1.0
    lengths: Mapping[int, float] = field(default_factory=dict)

    def run_cost(self, start: int, end: int) -> float:
        """Cost of a bucket at candidate `end` for what is above candidate `start` (-1: all)."""
        below = self.items[start] if start >= 0 else 0.0
        return float((self.items[end] - below) * self.item_cost[end] + self.bucket_cost)


def choose_buckets(
    lengths: Mapping[int, float] | Sequence[int],
    max_buckets: int = 8,
    *,
    multiple_of: int = 1,
    costs: BucketCosts | None = None,
) -> Buckets:
    """The cheapest set of at most `max_buckets` sizes that holds every request.

    Candidates are the lengths themselves, rounded up to a multiple, and the powers of two; so no
    set of these is cheaper. Where padding is not dearer the more there is of it (a table of
    measured times may be so), sizes outside the candidates might be.

    Args:
        lengths: A length's frequency by length, or every request's length.
        multiple_of: Buckets are multiples of this.
    Raises:
        UsageError: There are no lengths, too many, or no set fits the memory.
    """
    counts = _counts(lengths)
    costs = costs or BucketCosts()
    if not 1 <= max_buckets <= MAX_BUCKETS or not 1 <= multiple_of <= MAX_SIZE:
        raise UsageError(
            f"max_buckets is from 1 to {MAX_BUCKETS} and multiple_of from 1 to {MAX_SIZE}; found "
            f"{max_buckets} and {multiple_of}"
        )
    if costs.item_count is not None and not 0 < costs.item_count < math.inf:
        raise UsageError(f"{costs.item_count:g} items will be served: a number above 0 is wanted")
    powers = _powers_of_two(counts, multiple_of)
    problem = _problem(counts, powers, multiple_of, costs)
    chosen = _cheapest(problem, max_buckets)
    if chosen is None:
        raise UsageError(
            f"no bucket of {problem.sizes[-1]} fits into a memory limit of "
            f"{format_size(problem.limit)}"
        )
    kept: BucketSet | None = None
    for skipped in range(max(0, len(powers) - max_buckets), len(powers)):
        kept = _evaluated(problem, powers[skipped:], costs)
        if kept is not None:
            break
    total = problem.scale * sum(count * costs.item(length) for length, count in counts.items())
    best = _evaluated(problem, chosen, costs)
    assert best is not None, "what was chosen fits"
    return Buckets(
        best=best,
        powers_of_two=kept,
        single=_evaluated(problem, [int(problem.sizes[problem.sizes >= max(counts)][0])], costs),
        unpadded_cost=total,
    )


def _counts(lengths: Mapping[int, float] | Sequence[int]) -> dict[int, float]:
    if isinstance(lengths, Mapping):
        counts = {int(k): float(v) for k, v in lengths.items() if v}
    else:
        found, frequency = np.unique(np.asarray(lengths, dtype=np.int64), return_counts=True)
        counts = {int(k): float(v) for k, v in zip(found, frequency, strict=True)}
    if not counts:
        raise UsageError("there are no lengths")
    for length, count in counts.items():
        if not 1 <= length <= MAX_SIZE or not 0 < count < math.inf:
            raise UsageError(
                f"length {length:g} with the frequency {count:g}: both are above 0, and a length "
                f"at most {MAX_SIZE}"
            )
    if not math.isfinite(sum(counts.values()) * max(counts)):
        raise UsageError("the frequencies are too large to be added up")
    return dict(sorted(counts.items()))


def _up(length: int, multiple_of: int) -> int:
    return -(-length // multiple_of) * multiple_of


def _powers_of_two(counts: Mapping[int, float], multiple_of: int) -> list[int]:
    """Powers of two, rounded up to the multiple, into each of which some length falls."""
    sizes = {_up(1 << (length - 1).bit_length(), multiple_of) for length in counts}
    return sorted(sizes)


def _problem(
    counts: Mapping[int, float], powers: Sequence[int], multiple_of: int, costs: BucketCosts
) -> _Problem:
    sizes = sorted({_up(length, multiple_of) for length in counts} | set(powers))
    if len(sizes) > MAX_SIZES:
        raise UsageError(
            f"{len(sizes)} different sizes, {MAX_SIZES} are the most: round them up to a multiple "
            f"(--multiple-of {2 * multiple_of})"
        )
    lengths = np.array(list(counts))
    running = np.concatenate([[0.0], np.cumsum(list(counts.values()))])
    scale = costs.item_count / running[-1] if costs.item_count is not None else 1.0
    items = running[np.searchsorted(lengths, sizes, side="right")] * scale
    item_cost = np.array([float(costs.item(size)) for size in sizes])
    memory = np.array([float(costs.memory(size)) if costs.memory else 0.0 for size in sizes])
    for name, values in (("time of an item", item_cost), ("memory", memory)):
        if not (np.isfinite(values).all() and (values >= 0).all()):
            raise UsageError(f"the {name} is not a number from 0 on for every size")
    limit = math.inf if costs.memory_limit_bytes is None else costs.memory_limit_bytes
    return _Problem(
        sizes=np.array(sizes, dtype=np.int64),
        items=items,
        item_cost=item_cost,
        memory=memory,
        bucket_cost=costs.compile_s,
        limit=limit,
        scale=scale,
        lengths=counts,
    )


def _cheapest(problem: _Problem, max_buckets: int) -> list[int] | None:
    """The sizes of the cheapest set, None if none fits the memory."""
    if math.isinf(problem.limit):
        return _without_limit(problem, max_buckets)
    each = float(problem.memory[0])
    if each > 0 and (problem.memory == each).all():  # then the limit is one on their number
        most = int(problem.limit / each)
        return _without_limit(problem, min(max_buckets, most)) if most else None
    return _within_limit(problem, max_buckets)


def _without_limit(problem: _Problem, max_buckets: int) -> list[int]:
    """cost[k][j]: k buckets, the largest at candidate j, hold everything up to it."""
    items, item_cost, count = problem.items, problem.item_cost, len(problem.sizes)
    cost = items * item_cost + problem.bucket_cost
    came: list[npt.NDArray[np.int64]] = []
    ends = _holding_all(problem)
    best, best_end, best_rounds = _least(cost, ends), ends[int(np.argmin(cost[ends]))], 0
    for rounds in range(1, min(max_buckets, count)):
        new = np.full(count, math.inf)
        where = np.zeros(count, dtype=np.int64)
        for end in range(1, count):
            tried = cost[:end] + (items[end] - items[:end]) * item_cost[end]
            where[end] = int(np.argmin(tried))
            new[end] = tried[where[end]] + problem.bucket_cost
        cost = new
        came.append(where)
        least = _least(cost, ends)
        if least < best:
            best, best_end, best_rounds = least, ends[int(np.argmin(cost[ends]))], rounds
    chosen, end = [int(best_end)], int(best_end)
    for rounds in reversed(range(best_rounds)):
        end = int(came[rounds][end])
        chosen.append(end)
    return [int(problem.sizes[index]) for index in reversed(chosen)]


def _holding_all(problem: _Problem) -> npt.NDArray[np.int64]:
    """Candidates that hold every request."""
    return np.flatnonzero(problem.items >= problem.items[-1])


def _least(cost: Floats, ends: npt.NDArray[np.int64]) -> float:
    return float(cost[ends].min())


_State = tuple[float, float, tuple[int, ...]]
"""Cost, memory and chosen candidates of a partial set."""


def _within_limit(problem: _Problem, max_buckets: int) -> list[int] | None:
    """The same with all partial sets that no other beats in both cost and memory.

    Raises:
        UsageError: There are too many of them.
    """
    count = len(problem.sizes)
    states: list[list[_State]] = [
        [(problem.run_cost(-1, end), float(problem.memory[end]), (end,))]
        if problem.memory[end] <= problem.limit
        else []
        for end in range(count)
    ]
    ends, tried = _holding_all(problem), 0
    best = min((s for end in ends for s in states[end]), default=None)
    for _ in range(1, min(max_buckets, count)):
        new: list[list[_State]] = [[] for _ in range(count)]
        total = 0
        for end in range(1, count):
            own = float(problem.memory[end])
            grown = [
                (cost + problem.run_cost(start, end), memory + own, (*chosen, end))
                for start in range(end)
                for cost, memory, chosen in states[start]
                if memory + own <= problem.limit
            ]
            new[end] = _undominated(grown)
            total += len(new[end])
            tried += sum(map(len, states[:end]))
            if total > MAX_STATES or tried > MAX_TRIED:
                raise UsageError(
                    "the memory limit makes too many combinations: round the lengths up to a "
                    "larger multiple, or allow fewer buckets"
                )
        states = new
        found = min((s for end in ends for s in states[end]), default=None)
        if found is not None and (best is None or found[0] < best[0]):
            best = found
    return None if best is None else [int(problem.sizes[index]) for index in best[2]]


def _undominated(states: list[_State]) -> list[_State]:
    kept: list[_State] = []
    for state in sorted(states):
        if not kept or state[1] < kept[-1][1]:
            kept.append(state)
    return kept


def _evaluated(problem: _Problem, sizes: Sequence[int], costs: BucketCosts) -> BucketSet | None:
    """What a set of candidates costs, None if it does not fit the memory."""
    indices = [int(index) for index in np.searchsorted(problem.sizes, list(sizes))]
    memory = float(problem.memory[indices].sum())
    if memory > problem.limit * (1 + 1e-12):
        return None
    starts = [-1, *indices[:-1]]
    cost = sum(problem.run_cost(start, end) for start, end in zip(starts, indices, strict=True))
    below = [0.0 if start < 0 else float(problem.items[start]) for start in starts]
    computed = sum(
        (float(problem.items[end]) - start) * int(problem.sizes[end])
        for start, end in zip(below, indices, strict=True)
    )
    wanted = problem.scale * sum(length * count for length, count in problem.lengths.items())
    return BucketSet(
        sizes=tuple(map(int, sizes)),
        cost=cost,
        padding=1.0 - wanted / computed,
        compile_s=costs.compile_s * len(indices),
        memory_bytes=memory if costs.memory else None,
    )
