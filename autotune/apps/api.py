"""`autotune.run` for Python scripts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autotune.apps.run import run as run_study
from autotune.apps.view import View
from autotune.core.errors import UsageError
from autotune.results.study_result import StudyResult
from autotune.space.loader import load_space
from autotune.space.search_space import SearchSpace


def run(
    space: SearchSpace | str | Path,
    *,
    overrides: Sequence[str] = (),
    studies_dir: str | Path = "studies",
    view: View | None = None,
    workers: int | None = None,
    dask: Any = None,
) -> StudyResult:
    """Run a study, or go on with it, to its recommendation.

    Needs no `if __name__ == "__main__"`: the processes that measure do not import the script.

    Args:
        space: A space, or a space file's path or name.
        overrides: "key.path=value", laid over the file.
        view: Told of the progress.
        workers: Processes that search, each on a device or on CPU cores of its own; None: one,
            on all of them.
        dask: Runs the workers on other machines: a scheduler's address, or a client.
    Raises:
        UsageError, UnavailableError, StorageError: Before the first trial.
        RunInterrupted: A KeyboardInterrupt with the result so far; what was done is kept.
    """
    if not isinstance(space, (SearchSpace, str, Path)):
        raise UsageError(
            f"space is a {type(space).__name__}: give a space file, whose workload.model names the "
            "model's factory as path.py:factory, since it is built in other processes"
        )
    if not isinstance(space, SearchSpace):
        space = load_space(space, overrides)
    elif overrides:
        raise UsageError("overrides are laid over a file; use dataclasses.replace on a space")
    model: object = space.workload.model
    if not isinstance(model, str):
        raise UsageError(
            f"workload.model is a {type(model).__name__}: name its factory as path.py:factory, "
            "since it is built in other processes"
        )
    return run_study(space, studies_dir=Path(studies_dir), view=view, workers=workers, dask=dask)
