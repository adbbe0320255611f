"""Finds how to run an AI model on an accelerator, and proves it.

    space = autotune.load_space("online.yaml")
    result = autotune.run(space)

Names load on first use, so that `import autotune` costs nothing.
"""

from __future__ import annotations

from autotune.version import __version__

TYPE_CHECKING = False  # as type checkers know it; importing it would take most of the time
if TYPE_CHECKING:
    from typing import Any

    from autotune.apps.api import run as run
    from autotune.measure.buckets import choose_buckets as choose_buckets
    from autotune.measure.knee import find_knee as find_knee
    from autotune.measure.tail import judge_tail as judge_tail
    from autotune.results.study_result import StudyResult as StudyResult
    from autotune.search.mechanistic import MechanisticSampler as MechanisticSampler
    from autotune.space.loader import load_space as load_space

_LAZY = {
    "load_space": "autotune.space.loader",
    "run": "autotune.apps.api",
    "judge_tail": "autotune.measure.tail",
    "choose_buckets": "autotune.measure.buckets",
    "find_knee": "autotune.measure.knee",
    "MechanisticSampler": "autotune.search.mechanistic",
    "StudyResult": "autotune.results.study_result",
}

__all__ = [
    "MechanisticSampler",
    "StudyResult",
    "__version__",
    "choose_buckets",
    "find_knee",
    "judge_tail",
    "load_space",
    "run",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'autotune' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
