"""Which batch size to measure next where the knee of the throughput curve is sought."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autotune.core.errors import UsageError
from autotune.core.records import Config
from autotune.measure.batch_curve import BatchCurve
from autotune.search.grid import Attempt
from autotune.search.sampler import counts
from autotune.space.search_space import SearchSpace

MAX_CURVES = 8
MAX_COMBINATIONS = 100_000  # of the other parameters that are looked at


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The allowed configurations that differ in their batch size alone; `sizes` ascending."""

    config: Config
    sizes: tuple[int, ...]


class KneeSampler:
    """Measures a curve over the batch size until its knee is settled, then the next curve.

    The baseline's own curve comes first, then those that differ least from it. A size may be
    measured again: an isolated point, or one whose limit is a close thing.

    Raises:
        UsageError: There are more than `MAX_CURVES` curves.
    """

    name = "knee"

    def __init__(self, space: SearchSpace) -> None:
        assert space.objective.knee_share is not None
        self._space = space
        self._share = space.objective.knee_share
        self._families = families(space)

    def propose(self, history: Sequence[Attempt]) -> Config | None:
        """The next configuration, None if every knee is settled."""
        counted = [attempt for attempt in history if counts(attempt, history)]
        tried = {attempt.config for attempt in counted}
        for config in (self._space.baseline, *(attempt.config for attempt in history)):
            if config not in tried and self._space.contains(config):
                return config
        running = {attempt.config for attempt in counted if attempt.record is None}
        for family in self._families:
            records = [
                attempt.record
                for attempt in counted
                if attempt.record is not None
                and attempt.config.changed(batch_size=1) == family.config
                and attempt.config.batch_size in family.sizes
            ]
            curve = BatchCurve.of(records, self._space.objective)
            for size in curve.wanted(family.sizes, self._share):
                config = family.config.changed(batch_size=size)
                if config not in running:
                    return config
        return None

    def expected_gain(self, history: Sequence[Attempt]) -> float | None:
        """Nothing: the search ends by itself once the knees are settled."""


def check_knee(space: SearchSpace) -> None:
    """Refuse a space of which no knee can be told.

    Raises:
        UsageError: Arrivals come at a given rate, or there are more than `MAX_CURVES` curves.
    """
    load = space.objective.load
    if load.is_open and not load.seeks_rate:
        raise UsageError(
            f"objective {space.objective.name}: under {load.kind} arrivals of a given rate every "
            "batch size has the same throughput; write load: {closed: {}} or rate: max"
        )
    if space.sampler == "auto":
        families(space)


def families(space: SearchSpace) -> tuple[Family, ...]:
    """One family per allowed combination of the other parameters, the baseline's first.

    Raises:
        UsageError: There are more than `MAX_CURVES`.
    """
    batch = space.parameter("batch_size")
    choices = (space.baseline.batch_size,) if batch is None else batch.choices
    sizes = sorted(int(size) for size in choices)
    found: list[Family] = []
    for config in _others(space):
        allowed = tuple(s for s in sizes if space.allows(config.changed(batch_size=s)))
        if allowed:
            found.append(Family(config=config, sizes=allowed))
        if len(found) > MAX_CURVES:
            names = ", ".join(p.name for p in space.searched if p.name != "batch_size")
            raise UsageError(
                f"objective {space.objective.name} measures a curve over batch_size for every "
                f"combination of {names}: more than {MAX_CURVES} here; fix some of them, such as "
                "by what a study with objective offline_throughput or online_latency finds, or "
                "set sampler: random"
            )
    base = space.baseline.as_dict()

    def distance(family: Family) -> int:
        values = family.config.as_dict()
        return sum(values[name] != base[name] for name in base if name != "batch_size")

    return tuple(sorted(found, key=distance))


def _others(space: SearchSpace) -> Iterator[Config]:
    """The combinations of all parameters but the batch size, which is 1."""
    if space.rows is not None:
        inside = (config for config in space.configs())
        yield from dict.fromkeys(config.changed(batch_size=1) for config in inside)
        return
    others = [p for p in space.searched if p.name != "batch_size"]
    every = itertools.product(*(p.choices for p in others))
    for values in itertools.islice(every, MAX_COMBINATIONS):
        chosen = dict(zip((p.name for p in others), values, strict=True))
        yield space.baseline.changed(batch_size=1, **chosen)
