"""The configurations of a space as points of a lattice: nearness, and what is left to try."""

from __future__ import annotations

import heapq
from collections.abc import Container, Iterator
from typing import NamedTuple

from autotune.core.records import Config, TrialRecord
from autotune.space.search_space import SearchSpace


class Attempt(NamedTuple):
    """A configuration that is being or has been tried; no record: it is running."""

    config: Config
    record: TrialRecord | None = None


Point = tuple[int, ...]
"""Index of the choice of each parameter, in the space's order."""

MAX_VISITED = 200_000  # points looked at for one proposal; bounds the time in a huge space


class Grid:
    """A space's choices by index, so that samplers need not know rules or units."""

    def __init__(self, space: SearchSpace) -> None:
        self.params = space.params
        self.sizes = tuple(len(p.choices) for p in space.params)
        self._space = space
        self._index = [{choice: i for i, choice in enumerate(p.choices)} for p in space.params]
        self._is_numeric = [p.is_numeric for p in self.params]
        self._allowed: dict[Point, bool] = {}

    def config(self, point: Point) -> Config:
        """The configuration at a point."""
        return Config.from_dict(
            {p.name: p.choices[i] for p, i in zip(self.params, point, strict=True)}
        )

    def point(self, config: Config) -> Point | None:
        """Where a configuration lies; None if it is not of this grid."""
        values = config.as_dict()
        known = tuple(
            index[values[p.name]]
            for p, index in zip(self.params, self._index, strict=True)
            if p.name in values and values[p.name] in index
        )
        if len(known) < len(self.params) or self.config(known) != config:
            return None
        return known

    def allows(self, point: Point) -> bool:
        """True if no rule forbids the point."""
        if point not in self._allowed:
            self._allowed[point] = self._space.allows(self.config(point))
        return self._allowed[point]

    def nearest(
        self, wish: Point, taken: Container[Point], pinned: Container[int] = ()
    ) -> Point | None:
        """The allowed point nearest to `wish` that is not taken.

        Distance counts steps along a parameter's choices relative to how many it has; between
        choices without an order it is 1.

        Args:
            pinned: Positions of parameters that must stay as wished.
        Returns:
            None if nothing is left, or nothing within `MAX_VISITED` points.
        """
        if wish not in taken and self.allows(wish):
            return wish
        for visited, point in enumerate(self._outwards(wish, pinned)):
            if point not in taken and self.allows(point):
                return point
            if visited >= MAX_VISITED:
                break
        return None

    def in_order(self) -> Iterator[Config]:
        """All allowed configurations, the last parameter varying fastest."""
        return self._space.configs()

    def _outwards(self, wish: Point, pinned: Container[int]) -> Iterator[Point]:
        """All points by rising distance from `wish`; ties in a fixed order."""
        free = [k for k in range(len(wish)) if k not in pinned and self.sizes[k] > 1]
        # Each parameter's choices by rising cost; a point is a choice of rank per parameter, and
        # raising one rank never lowers the cost, so a heap meets the points in order.
        ladders = [
            sorted((self._step(k, wish[k], i), i) for i in range(self.sizes[k])) for k in free
        ]
        start = (0,) * len(free)
        heap: list[tuple[float, Point]] = [(0.0, start)]
        while heap:
            cost, ranks = heapq.heappop(heap)
            point = list(wish)
            for position, ladder, rank in zip(free, ladders, ranks, strict=True):
                point[position] = ladder[rank][1]
            yield tuple(point)
            # Only ranks at or after the last raised one are raised: each point is met once.
            last = max((j for j, rank in enumerate(ranks) if rank), default=0)
            for j in range(last, len(free)):
                if ranks[j] + 1 < len(ladders[j]):
                    step = ladders[j][ranks[j] + 1][0] - ladders[j][ranks[j]][0]
                    raised = (*ranks[:j], ranks[j] + 1, *ranks[j + 1 :])
                    heapq.heappush(heap, (cost + step, raised))

    def _step(self, position: int, start: int, end: int) -> float:
        if start == end:
            return 0.0
        if not self._is_numeric[position]:
            return 1.0
        return abs(end - start) / (self.sizes[position] - 1)
