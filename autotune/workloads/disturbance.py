"""A declared disturbance of a simulated machine: a neighbour, a falling clock."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from autotune.core.errors import UsageError

OPTION = "disturbance"


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbance:
    """What happens to a simulated machine, by the study's virtual clock.

    Attributes:
        neighbour_share: Share of every core that another process takes from `neighbour_from_s`
            until `neighbour_until_s`.
        throttle_per_s: How much of its full speed the machine loses per second from
            `throttle_from_s` on, down to `throttle_floor`.
        cold_factor: How many times as long calls take until `cold_until_s`.
    """

    neighbour_share: float = 0.0
    neighbour_from_s: float = 0.0
    neighbour_until_s: float = math.inf
    throttle_per_s: float = 0.0
    throttle_from_s: float = 0.0
    throttle_floor: float = 0.5
    cold_factor: float = 1.0
    cold_until_s: float = 0.0

    @classmethod
    def of(cls, options: Mapping[str, object]) -> Disturbance | None:
        """The option `disturbance` of a workload, None if there is none.

        Raises:
            UsageError: It is no mapping of the names above to numbers within their bounds.
        """
        given = options.get(OPTION)
        if given is None:
            return None
        if not isinstance(given, Mapping):
            raise UsageError(f"workload.{OPTION}: {given!r} is not a mapping")
        for name, value in given.items():
            if name not in cls.__dataclass_fields__:
                known = ", ".join(cls.__dataclass_fields__)
                raise UsageError(f"workload.{OPTION}.{name}: unknown; known: {known}")
            if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
                raise UsageError(f"workload.{OPTION}.{name}: {value!r} is not a number from 0 on")
        found = cls(**given)
        if found.neighbour_share >= 1:
            raise UsageError(
                f"workload.{OPTION}.neighbour_share: {found.neighbour_share} is not < 1"
            )
        if not 0 < found.throttle_floor <= 1:
            raise UsageError(f"workload.{OPTION}.throttle_floor: not above 0 and at most 1")
        if found.cold_factor < 1:
            raise UsageError(f"workload.{OPTION}.cold_factor: {found.cold_factor} is not from 1 on")
        return found

    def share_lost(self, now_s: float) -> float:
        """Share of a core that the neighbour has."""
        is_there = self.neighbour_from_s <= now_s < self.neighbour_until_s
        return self.neighbour_share if is_there else 0.0

    def speed(self, now_s: float) -> float:
        """Of a core while it runs, relative to its best."""
        slower = self.throttle_per_s * max(0.0, now_s - self.throttle_from_s)
        return max(self.throttle_floor, 1.0 - slower)

    def stretch(self, now_s: float) -> float:
        """How many times as long a call takes that begins now."""
        cold = self.cold_factor if now_s < self.cold_until_s else 1.0
        return cold / (self.speed(now_s) * (1.0 - self.share_lost(now_s)))
