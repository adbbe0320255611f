"""Clocks are passed in, so that the same loops run on real and on simulated time."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A monotonic clock in seconds. Its zero means nothing; only differences do."""

    def now_s(self) -> float: ...

    def sleep_until(self, when_s: float) -> None:
        """Return at `when_s`, at once if that has passed."""
        ...


class MonotonicClock:
    """CLOCK_MONOTONIC: the same for all processes of a machine, never set back.

    Args:
        spin_s: Sleeping overshoots by up to about 0.1 ms; this last bit is spun instead.
    """

    def __init__(self, *, spin_s: float = 0.001) -> None:
        self._spin_s = spin_s

    def now_s(self) -> float:
        return time.monotonic()

    def sleep_until(self, when_s: float) -> None:
        while (left_s := when_s - time.monotonic()) > 0:
            # Sleeping for no time lets other threads of this process run meanwhile.
            time.sleep(max(left_s - self._spin_s, 0.0))


class VirtualClock:
    """A clock that moves only when told: sleeping takes no time."""

    def __init__(self, start_s: float = 0.0) -> None:
        self._now_s = start_s

    def now_s(self) -> float:
        return self._now_s

    def sleep_until(self, when_s: float) -> None:
        self._now_s = max(self._now_s, when_s)

    def advance(self, seconds: float) -> None:
        """Let `seconds` (>= 0) pass."""
        if seconds < 0:
            raise ValueError(f"a clock cannot go back by {seconds} s")
        self._now_s += seconds
