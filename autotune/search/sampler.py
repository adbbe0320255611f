"""What to measure next: an allowed configuration that nobody has tried yet, or one to repeat.

Only the mechanistic sampler repeats, and only what it asks for: where a second measurement of a
promising configuration is worth more than a first one of any other.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np

from autotune.core.errors import UnavailableError, UsageError
from autotune.core.outcomes import Outcome
from autotune.core.records import Config, TrialRecord
from autotune.search.grid import Attempt, Grid, Point
from autotune.search.probes import (
    batch_probes,
    best_point,
    is_batch_only,
    larger_batch,
    one_change_probes,
)
from autotune.search.schedule import OPEN_S, reserve_s
from autotune.search.stock import STOCK, optuna_point
from autotune.search.study_model import StudyModel
from autotune.space.search_space import SearchSpace

SAMPLERS = ("auto", "mechanistic", "gp", "tpe", "random", "grid")
MAX_PROBES = 10
BATCH_SHARES = (0.25, 0.5, 0.75)  # of the way, in doublings, from the baseline to the largest batch
MIN_BASIS = 12  # trials before the model is trusted to say that little is left to gain
GRID_SHARE = 0.8  # of the time for trials that the whole grid may be expected to take
MAX_LOST = 5  # a configuration whose worker died this often is not tried again


Wish = Callable[[Sequence[Attempt], int, int], "Point | None"]
"""From the history, a seed and a number of trials that spare no probe to the point a sampler would
like, allowed and new or not; None if nothing is left."""


class Proposer(Protocol):
    """Says what to measure next; a pure function of the history."""

    @property
    def name(self) -> str: ...

    def propose(self, history: Sequence[Attempt]) -> Config | None:
        """The next configuration, None if there is nothing left to measure."""

    def expected_gain(self, history: Sequence[Attempt]) -> float | None:
        """By how much one more trial is expected to raise the recommendation, relative.

        None while too little is known to say.
        """


class Sampler:
    """Turns what a sampler wishes into what may be run.

    The baseline comes first, then whatever was lost or interrupted, then probes if asked for.
    A proposal is a pure function of the history and the seed, so a resumed study goes on as if
    it had never stopped.

    Attributes:
        name: What is really used.
        model: What the project's own model makes of a history, whichever sampler proposes.
    """

    def __init__(
        self,
        space: SearchSpace,
        name: str,
        model: StudyModel,
        wish: Wish | None,
        *,
        seed: int,
        probes: int = 0,
        batch_shares: Sequence[float] = (),
        repeats: bool = False,
    ) -> None:
        self.name = name
        self.model = model
        self._space = space
        self._grid = Grid(space)
        self._wish = wish
        self._seed = seed
        self._probes = probes
        self._batch_shares = batch_shares
        self._repeats = repeats

    def propose(self, history: Sequence[Attempt], *, beside: int = 0) -> Config | None:
        """The next configuration, None if every allowed one has been tried.

        It has been tried before only if it is to be measured again.

        Args:
            beside: Trials that someone else chose: they inform, but spare none of its probes.
        """
        counted = [attempt for attempt in history if counts(attempt, history)]
        tried = {attempt.config for attempt in counted}
        for config in (self._space.baseline, *(a.config for a in history)):
            point = self._grid.point(config)
            if config not in tried and point is not None and self._grid.allows(point):
                return config
        if self._wish is None:
            return next((c for c in self._grid.in_order() if c not in tried), None)
        taken = {p for p in map(self._grid.point, tried) if p is not None}
        is_early = len(counted) - beside <= len(self._batch_shares)
        if is_early and (probe := self._batch_probe(taken)) is not None:
            return self._grid.config(probe)
        if len(counted) - beside <= self._probes:
            probe = next(self._new_probes(counted, taken), None)
            if probe is not None:
                return self._grid.config(probe)
        if self._space.allowed_count(len(taken) + 1) <= sum(map(self._grid.allows, taken)):
            return None
        point = self._wish(history, self._seed + len(counted), beside)
        if point is not None and not self._repeats:
            point = self._grid.nearest(point, taken)
        return None if point is None else self._grid.config(point)

    def expected_gain(self, history: Sequence[Attempt]) -> float | None:
        """By how much one more trial is expected to raise the recommendation, relative.

        None while too little is known to say.
        """
        done = self._measured(history)
        return None if len(done) < MIN_BASIS else self.model.expected_gain(done)

    def _measured(self, history: Sequence[Attempt]) -> list[TrialRecord]:
        """What the model learns from: finished trials of the space as it is now."""
        inside = (a.record for a in history if a.record and self._grid.point(a.config) is not None)
        return [r for r in inside if r.verdict.outcome.informs_search]

    def _batch_probe(self, taken: set[Point]) -> Point | None:
        """The next of the larger batches alone."""
        base = self._grid.point(self._space.baseline)
        if base is None:
            return None
        done = sum(is_batch_only(self._grid.config(point), self._space.baseline) for point in taken)
        probes = (larger_batch(self._grid, base, s) for s in self._batch_shares[done - 1 :])
        return next((p for p in probes if p and p not in taken and self._grid.allows(p)), None)

    def _new_probes(self, history: Sequence[Attempt], taken: set[Point]) -> Iterator[Point]:
        base = self._grid.point(self._space.baseline)
        if base is None:
            return
        yield from (p for p in batch_probes(self._grid, base, history) if p not in taken)
        batches = [a for a in history if is_batch_only(a.config, self._space.baseline)]
        good = best_point(self._grid, self._space.objective, batches) or base
        for position, point in one_change_probes(self._grid, good):
            # A rule may tie this parameter to another one; then the nearest that keeps it.
            allowed = self._grid.nearest(point, (), pinned=(position,))
            if allowed is not None and allowed not in taken:
                yield allowed


def make_sampler(space: SearchSpace, name: str, seed: int) -> Proposer:
    """A sampler by its name in the space file.

    Raises:
        UsageError: Unknown name, or more curves than a knee is sought on.
        UnavailableError: It needs a package that is missing.
    """
    if name not in SAMPLERS:
        raise UsageError(f"sampler {name!r} is unknown; known: {', '.join(SAMPLERS)}")
    shares: Sequence[float] = ()
    is_auto = name == "auto"
    if is_auto:
        name, _ = chosen(space)
    if name == "knee":
        from autotune.search.knee_search import KneeSampler

        return KneeSampler(space)
    if is_auto and name == "mechanistic":
        # What a sweep over the batch size alone would find: the gain over it is worth knowing.
        shares = BATCH_SHARES[: space.budget.trials // 6]
    if name == "gp" and not _has("torch"):
        raise UnavailableError("sampler gp needs torch: pip install torch, or sampler: auto")
    # A Gaussian process by itself knows nothing of batch sizes; probes show it the curve's knee.
    probes = min(MAX_PROBES, space.budget.trials // 2) if name == "gp" else 0
    model = StudyModel(space, seed)
    return Sampler(
        space,
        name,
        model,
        _wishes(space, name, model),
        seed=seed,
        probes=probes,
        batch_shares=shares,
        repeats=name == "mechanistic",
    )


def chosen(space: SearchSpace) -> tuple[str, str]:
    """What `auto` stands for in a space, and why."""
    if space.objective.knee_share is not None:
        return "knee", ""
    count = space.allowed_count(space.budget.trials + 1)
    if count > space.budget.trials:
        return "mechanistic", ""
    if space.budget.time_s is not None:
        window_s = space.trial.duration_s or 0.0
        left_s = GRID_SHARE * (space.budget.time_s - reserve_s(space))
        if count * (window_s + OPEN_S) > left_s:
            return "mechanistic", ""
    return "grid", f"all {count} configurations fit into the budget"


def counts(attempt: Attempt, history: Sequence[Attempt]) -> bool:
    """True if the attempt used up its configuration.

    A crash does: it would most likely crash again. A lost or interrupted trial does not, unless
    this configuration has taken its worker down `MAX_LOST` times.
    """
    if attempt.record is None or not attempt.record.verdict.outcome.is_retried:
        return True
    lost = [
        a
        for a in history
        if a.config == attempt.config
        and a.record is not None
        and a.record.verdict.outcome is Outcome.LOST
    ]
    return len(lost) >= MAX_LOST and attempt is lost[-1]


# --- wishes ------------------------------------------------------------------------------------


def _wishes(space: SearchSpace, name: str, model: StudyModel) -> Wish | None:
    if name == "grid":
        return None
    grid = Grid(space)
    if name == "random":
        return lambda _history, seed, _beside: _random_point(grid, seed)
    if name == "mechanistic":
        return _mechanistic_wish(grid, model)
    return lambda history, seed, _beside: optuna_point(
        grid, space.objective, STOCK[name](seed), history
    )


def _random_point(grid: Grid, seed: int) -> Point:
    generator = np.random.default_rng(seed)
    return tuple(int(generator.integers(size)) for size in grid.sizes)


def _mechanistic_wish(grid: Grid, model: StudyModel) -> Wish:
    def wish(history: Sequence[Attempt], _seed: int, beside: int) -> Point | None:
        inside = [a for a in history if grid.point(a.config) is not None]
        counted = [a for a in inside if counts(a, inside)]
        done = [a.record for a in counted if a.record is not None]
        proposal = model.next(
            done,
            pending={a.config for a in counted if a.record is None},
            barred={r.config for r in done if not r.verdict.outcome.informs_search},
            number=len(counted) - beside,
        )
        return None if proposal is None else proposal.row

    return wish


def _has(package: str) -> bool:
    return importlib.util.find_spec(package) is not None
