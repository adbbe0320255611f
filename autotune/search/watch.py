"""The machine over a study: how fast it is around each trial, and how often a trial is repeated."""

from __future__ import annotations

import math
from typing import Any

from autotune.measure.noise import MIN_CANARY_RATIO
from autotune.search.study import Study
from autotune.trial.canary import Canary
from autotune.trial.session import Launcher

CANARY = "canary"
"""The study's attribute that keeps the reference for later runs and other workers."""

MAX_REPEATS = 2  # of a noisy trial
REPEAT_SHARE = 0.15  # of the time of a run so far, that repeats may take; one is always allowed
FIRST_READINGS = 3
NEWS = 0.98  # a reference is replaced when the work takes this much less


class Watch:
    """The canary's readings, relative to the best that two in a row agreed on.

    Args:
        canary: None: nothing is known of the machine.
    """

    def __init__(self, study: Study, canary: Canary | None) -> None:
        self._study, self._canary = study, canary
        self._last_s = self._best_s = 0.0
        if canary is not None:
            readings = sorted(canary.read() for _ in range(FIRST_READINGS))
            self._last_s = readings[FIRST_READINGS // 2]
            self._best_s = self._kept_s()  # where none is kept, this reading is news
            self._learn(self._last_s)

    def ratio(self) -> float | None:
        """Speed since the last look, the lower of then and now, relative to the study's best."""
        if self._canary is None:
            return None
        before_s, self._last_s = self._last_s, self._canary.read()
        slower_s = max(before_s, self._last_s)
        self._learn(slower_s)
        return min(self._best_s / slower_s, 1.0)

    @property
    def is_slow(self) -> bool:
        """True if the machine was slow at the last look: what is measured now will be so too."""
        return self._best_s < MIN_CANARY_RATIO * self._last_s

    def _learn(self, work_s: float) -> None:
        if work_s < NEWS * self._best_s:
            self._best_s = min(work_s, self._kept_s())
            self._study.keep(CANARY, {"work_s": self._best_s})

    def _kept_s(self) -> float:
        kept: Any = self._study.attributes().get(CANARY) or {}
        work_s = kept.get("work_s")
        return float(work_s) if isinstance(work_s, (int, float)) and work_s > 0 else math.inf


class Repeats:
    """How often trials may be repeated: twice each, and within a share of the time."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher
        self._began_s = launcher.now_s()
        self._spent_s = 0.0

    def allows(self, made: int, cost_s: float) -> bool:
        """True if a trial that was repeated `made` times, for `cost_s` each, may be again."""
        room_s = REPEAT_SHARE * (self._launcher.now_s() - self._began_s)
        return made < MAX_REPEATS and (self._spent_s == 0 or self._spent_s + cost_s <= room_s)

    def charge(self, cost_s: float) -> None:
        """Count a repeat that was made."""
        self._spent_s += cost_s
