"""Finding space files and objectives by name, and loading an objective."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Literal

import autotune
from autotune.core.errors import UsageError
from autotune.core.objective import METRICS, Objective
from autotune.space.scalars import nearest
from autotune.space.strict_yaml import shown, shown_long

Kind = Literal["search_spaces", "objectives"]
_SUFFIX: dict[Kind, str] = {"search_spaces": ".yaml", "objectives": ".py"}
_NOUN: dict[Kind, str] = {"search_spaces": "space file", "objectives": "objective"}


def shipped_dir(kind: Kind) -> Path:
    """The folder that ships with the package: inside a wheel, beside the package in a checkout."""
    package = Path(autotune.__file__).resolve().parent
    inside = package / kind
    return inside if inside.is_dir() else package.parent / kind


def is_file(path: Path) -> bool:
    """True for a file; False also for names that no file system can hold."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def find_shipped(kind: Kind, name: str | Path) -> Path:
    """A file by path, else by name in ./search_spaces (./objectives), else a shipped one.

    Raises:
        UsageError: There is none; names the places looked at and the nearest known name.
    """
    path = Path(name)
    if is_file(path):
        return path
    if os.path.isdir(path):  # noqa: PTH112 (Path's raises for names that are too long)
        raise UsageError(f"{path}: a directory, not a {_NOUN[kind]}")
    folders = [Path(kind), shipped_dir(kind)]
    if path.name == str(name):  # a name, not a path: nothing outside the folders is reached
        candidates = [path.name, path.name + _SUFFIX[kind]]
        found = (folder / file for folder in folders for file in candidates)
        for candidate in found:
            if is_file(candidate):
                return candidate
    known = sorted({p.stem for folder in folders for p in folder.glob(f"*{_SUFFIX[kind]}")})
    hint = nearest(path.stem, known) if known else "none are installed"
    looked = ", ".join(["the working directory", *(f"{folder}/" for folder in folders)])
    raise UsageError(f"no {_NOUN[kind]} '{shown(name)}' (looked in {looked}); {hint}")


def load_objective(name: str, base_dir: Path) -> Objective:
    """The `OBJECTIVE` of a file: by name, or by a path relative to the space file.

    The file is code and is run; nothing else in a space file is.

    Raises:
        ValueError: Not found, cannot be run, or does not define an objective.
    """
    is_path = name.endswith(".py") or "/" in name
    try:
        path = base_dir / name if is_path else find_shipped("objectives", name)
    except UsageError as error:
        raise ValueError(str(error)) from None
    if not is_file(path):
        raise ValueError(f"no file {path}")
    objective = getattr(_run(path), "OBJECTIVE", None)
    if not isinstance(objective, Objective):
        raise ValueError(f"{path} does not define OBJECTIVE = Objective(...)")
    for metric in (
        *(goal.metric for goal in objective.goals),
        *(limit.metric for limit in objective.limits),
        *objective.required_limits,
    ):
        if metric not in METRICS:
            raise ValueError(f"{path}: unknown metric '{metric}'; {nearest(metric, METRICS)}")
    if not objective.goals:
        raise ValueError(f"{path}: the objective has no goals")
    return objective


def _run(path: Path) -> object:
    spec = importlib.util.spec_from_file_location(f"autotune_objective_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        reason = shown_long(f"{type(error).__name__}: {error}")
        raise ValueError(f"{path} failed: {reason}") from error
    return module
