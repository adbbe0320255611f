"""Which configuration to measure next: the one that promises the recommendation most.

A few probes spread over the space, then the largest gain of `Posterior.gain` (a knowledge
gradient under limits), times the probability that the configuration runs at all. Measuring again
what is promising but unsettled competes with what is new on the same scale, so that a replicate
is proposed where, and only where, it is worth more. Where trials differ widely in what they
cost, the gain per second counts (expected improvement per second, Snoek et al. 2012).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from autotune.core.records import Config, Floats, Ints
from autotune.search.costs import cost_factors
from autotune.search.encoding import Encoding, Features
from autotune.search.posterior import Posterior
from autotune.search.question import config_of
from autotune.space.search_space import SearchSpace

PROBES = 6
PIPELINE_PROBES = 2  # the baseline and another micro-batch count settle a step's formula
FAR_PROBE = 0.6  # of the way up the ladder of micro-batch counts
MAX_GRID = 20_000  # larger spaces are searched in random parts and around the best
MAX_FINALISTS = 400  # configurations whose gain is worked out exactly in one ask
SMALL_GAIN = 5e-3  # below this expected gain the model is doubted and something new is tried
DOUBT = 3.0
MAX_REPEATS = 6  # measurements of one configuration; what they leave open, the confirmation settles
FORMULA = ("micro_batch_count", "global_batch_size")
CENTRES = 5  # of the most promising configurations, whose neighbours are looked at as well


class Candidates:
    """The configurations that may be proposed, as rows of choice indices.

    Attributes:
        rows: All of them, or in a very large space a random part.
        is_whole: True if it is all of them.
    """

    def __init__(
        self,
        encoding: Encoding,
        space: SearchSpace | None,
        seed: int,
        *,
        rows: Ints | None = None,
    ) -> None:
        """List what `space` allows, or take `rows` as all there is."""
        self.encoding = encoding
        self._space = space
        self.sizes = [len(d.choices) for d in encoding.dimensions]
        self.is_whole = rows is not None or math.prod(self.sizes) <= MAX_GRID
        self.rows: Ints = rows if rows is not None else self._allowed(self._listed(seed))
        self.features = encoding.features(self.rows)

    def _listed(self, seed: int) -> Ints:
        """All rows, or many random ones."""
        if self.is_whole:
            flat = np.arange(math.prod(self.sizes))
            return np.stack(np.unravel_index(flat, self.sizes), axis=1)
        rng = np.random.default_rng(seed)
        drawn = [rng.integers(size, size=MAX_GRID // 2) for size in self.sizes]
        return np.unique(np.stack(drawn, axis=1), axis=0)

    def _allowed(self, rows: Ints) -> Ints:
        space = self._space
        if space is None or not (space.rules or space.rows is not None):
            return rows
        keep = [space.allows(Config.from_dict(config_of(self.encoding, row))) for row in rows]
        kept: Ints = rows[np.array(keep, dtype=bool)]
        return kept

    def code(self, rows: Ints) -> Ints:
        """One number per row."""
        code = np.zeros(len(rows), dtype=np.int64)
        for column, size in enumerate(self.sizes):
            code = code * size + rows[:, column]
        return code

    def near(self, tested: Ints) -> tuple[Ints, Features]:
        """All candidates; where they are a part of the space, also what is around the best."""
        if self.is_whole or not len(tested):
            return self.rows, self.features
        rows = np.unique(np.vstack([self.rows, tested, self._around(tested[-CENTRES:])]), axis=0)
        return rows, self.encoding.features(rows)

    def _around(self, centres: Ints) -> Ints:
        """The allowed configurations that differ from one of `centres` in one parameter."""
        found = []
        for column, dimension in enumerate(self.encoding.dimensions):
            moved = np.repeat(centres, len(dimension.choices), axis=0)
            moved[:, column] = np.tile(np.arange(len(dimension.choices)), len(centres))
            found.append(moved)
        return self._allowed(np.unique(np.vstack(found), axis=0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A configuration to measure.

    Attributes:
        row: Its choice indices.
        gain: By how much measuring it is expected to raise the recommendation's worth, on the
            scale of logarithms; None for a probe.
    """

    row: tuple[int, ...]
    gain: float | None = None


def propose(
    posterior: Posterior,
    grid: Candidates,
    *,
    pending: Iterable[tuple[int, ...]] = (),
    barred: Iterable[tuple[int, ...]] = (),
    number: int,
    seed: int,
    lead: Mapping[int, int] | None = None,
) -> Proposal | None:
    """The configuration whose measurement should help most.

    Args:
        pending: Configurations being measured by others.
        barred: Configurations that must not come again.
        number: How many trials there have been, to number the probes.
        lead: Choices that the probes are to see before others: parameter to choice, by index.
    Returns:
        None if there is nothing left to propose.
    """
    rows, features = grid.near(posterior.tested)
    pending = as_rows(pending, len(grid.sizes))
    done = posterior.silent, posterior.often(MAX_REPEATS)
    closed = np.vstack([as_rows(barred, len(grid.sizes)), pending, *done])
    free = ~np.isin(grid.code(rows), grid.code(closed))
    if not free.any():
        return None
    runs = np.where(free, posterior.runs(rows, features), -1.0)
    # A probe is of something new: beside other workers its number may come twice, and what its
    # point of the design is nearest to may have been tried on advice.
    new = free & ~np.isin(grid.code(rows), grid.code(posterior.tested))
    if posterior.surrogate is None or (number < probe_count(grid.encoding) and new.any()):
        seen = np.vstack([posterior.tested, pending])
        ahead = {c: choice for c, choice in (lead or {}).items() if choice not in seen[:, c]}
        runs = np.where(new, runs, -1.0)
        return Proposal(row=_row(rows, _probe(rows, runs, number, grid, seed, ahead)))
    costs, posterior = posterior.costs, posterior.expecting(pending)
    assert posterior.surrogate is not None
    finalists = np.flatnonzero(free)
    if len(finalists) > MAX_FINALISTS:
        rough = posterior.gain(posterior.surrogate.cross(features, rough=True), rough=True) * runs
        finalists = np.argpartition(-rough, MAX_FINALISTS)[:MAX_FINALISTS]
    features, runs = features.take(finalists), runs[finalists]
    cross = posterior.surrogate.cross(features)
    gain = np.where(runs < 0, -1.0, posterior.gain(cross) * runs)
    worth = gain
    if gain.max() < SMALL_GAIN:
        open_row = posterior.unsettled(closed) if number % 2 else None
        if open_row is not None:
            return Proposal(row=open_row, gain=float(max(gain.max(), 0.0)))
        tried = np.isin(grid.code(rows[finalists]), grid.code(posterior.tested))
        worth = posterior.gain(cross, doubt=DOUBT) * np.where(tried, 1e-6, 1.0)
        worth = np.where(runs < 0, -1.0, worth * runs)
    best = int(np.argmax(worth / cost_factors(costs, features)))
    return Proposal(row=_row(rows, int(finalists[best])), gain=float(max(gain.max(), 0.0)))


def probe_count(encoding: Encoding) -> int:
    """Trials before the model chooses; of a pipeline one more per parameter without a formula."""
    if not encoding.is_pipeline:
        return PROBES
    free = [d for d in encoding.dimensions if len(d.choices) > 1 and d.name not in FORMULA]
    return min(PROBES, PIPELINE_PROBES + len(free))


def as_rows(rows: Iterable[tuple[int, ...]], width: int) -> Ints:
    """Choice indices as an array, shape (configurations, parameters)."""
    return np.array(list(rows), dtype=np.int64).reshape(-1, width)


def _row(rows: Ints, index: int) -> tuple[int, ...]:
    return tuple(rows[index].tolist())


def _probe(
    rows: Ints, runs: Floats, number: int, grid: Candidates, seed: int, ahead: Mapping[int, int]
) -> int:
    """Index of the row nearest to a point of a design that spreads over all parameters.

    A parameter with few choices goes through them in turn, in an order of the seed's, so that
    the probes see each; a longer one follows the additive recurrence of the generalised golden
    ratio (Roberts 2018). The ends of long ladders are left out: they say least about the middle.
    A pipeline's second probe has many micro-batches, as the baseline is likely to have few.
    What is `ahead` takes its turn now.
    """
    sizes = grid.sizes
    rng = np.random.default_rng(seed)
    count = len(sizes)
    ratio = 2.0
    for _ in range(40):
        ratio = (1.0 + ratio) ** (1.0 / (count + 1))
    distance = np.zeros(len(rows))
    for column, size in enumerate(sizes):
        place = (rng.random() + (number + 1) * ratio ** -(column + 1.0)) % 1.0
        order = rng.permutation(size)
        name = grid.encoding.dimensions[column].name
        if grid.encoding.is_pipeline and name == "micro_batch_count" and number == 1:
            distance += np.abs(rows[:, column] - round(FAR_PROBE * (size - 1)))
            continue
        if size <= PROBES:
            distance += rows[:, column] != ahead.get(column, order[number % size])
        else:
            distance += ((rows[:, column] + 0.5) / size - (0.1 + 0.8 * place)) ** 2
    return int(np.argmin(np.where(runs > 0.5, distance, distance + 100.0 * (1.0 + (runs < 0)))))
