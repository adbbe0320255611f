"""What must not change within a study, and what changed since it was last run."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from autotune.core.objective import METRICS, Objective
from autotune.core.records import FILE_RUNTIMES, WorkloadSpec
from autotune.core.text import without_secrets
from autotune.core.units import format_quantity
from autotune.devices.base import DeviceInfo
from autotune.space.command import words_of
from autotune.space.runtimes import runtimes_of
from autotune.space.search_space import SearchSpace
from autotune.space.shipped import is_file
from autotune.workloads.exported import read_model
from autotune.workloads.user_code import neighbours

_LIMITS = "limits."  # before the metric's name, as in a space file
MAX_HASHED_BYTES = 64 * 2**20

VERSION = "version of "
"""Before a package's name."""

_PACKAGES = {
    "torch": ("torch",),
    "torchair": ("torch",),
    "graph": ("torch",),
    "pipeline": ("torch",),
    "onnxruntime": ("onnxruntime", "onnxruntime-gpu", "onnxruntime-cann"),
    "openvino": ("openvino",),
}
"""By runtime the packages that bring it, of which the first that is installed counts."""


def fingerprint_of(space: SearchSpace, info: DeviceInfo) -> dict[str, str]:
    """The conditions that make figures of a study comparable, each in words."""
    workload, trial = space.workload, space.trial
    versions = {**_runtime_versions(space), **info.versions}
    window = f"{trial.duration_s:g} s" if trial.duration_s else f"{trial.iterations} iterations"
    found = {
        "workload": " ".join(part for part in (workload.kind, _model(workload)) if part),
        "precision": workload.precision,
        "inputs": "; ".join(map(str, workload.inputs)),
        "workload options": _plain(workload.options),
        **({"lengths": str(workload.lengths)} if workload.lengths else {}),
        **({"data": str(workload.data)} if workload.data else {}),
        **({"call": workload.call} if workload.call != "auto" else {}),
        **_content(workload),
        "device": f"{info.kind}: {info.description}",
        "core count": str(info.core_count),
        **_objective(space.objective),
        "trial": f"{window}, seed {trial.seed}",
        "python": platform.python_version(),
        **{f"{VERSION}{name}": text for name, text in sorted(versions.items())},
    }
    return {name: without_secrets(text) for name, text in found.items()}


def is_same(name: str, old: str | None, new: str | None) -> bool:
    """Whether a condition has not changed; a version that nobody kept may have been any."""
    if name.startswith(VERSION) and not (old and new):
        return True
    return without_secrets(old or "") == without_secrets(new or "")


def differences(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """The items that differ, as "name was old, now new"."""
    names = [*old, *(name for name in new if name not in old)]
    return [
        f"{name} was {shown(name, old.get(name))}, now {shown(name, new.get(name))}"
        for name in names
        if not is_same(name, old.get(name), new.get(name))
    ]


def space_changes(old: Mapping[str, list[object]], space: SearchSpace) -> Iterator[str]:
    """The parameters whose choices differ, as "name was [...], now [...]"."""
    new = {p.name: list(p.choices) for p in space.params}
    for name in [*old, *(name for name in new if name not in old)]:
        if list(old.get(name, [])) != new.get(name, []):
            yield f"{name} was {old.get(name, 'not there')}, now {new.get(name, 'not there')}"


def _model(workload: WorkloadSpec) -> str:
    """What is measured: a command's words, without the directories of a checkout."""
    words = workload.options.get("command")
    if not isinstance(words, list):
        return workload.model
    if workload.options.get("shell"):
        return " ".join(map(str, words))
    return " ".join(Path(word).name if "/" in word else word for word in map(str, words))


def _objective(objective: Objective) -> dict[str, str]:
    load = objective.load
    rate = "" if load.rate_per_s is None else f" {load.rate_per_s:g}/s"
    if load.clients is not None:
        rate = f" {load.clients} clients"
    return {
        "objective": objective.name,
        "goals": ("front of " if objective.front else "")
        + ", ".join(
            f"{METRICS[g.metric].better} {g.metric} x{g.weight:g}" for g in objective.goals
        ),
        "load": f"{load.kind}{rate} {load.trace}".strip(),
        **({"load file": _digest(Path(load.trace))} if is_file(Path(load.trace)) else {}),
        **{f"{_LIMITS}{limit.metric}": repr(limit.bound) for limit in objective.limits},
    }


def shown(name: str, text: str | None) -> str:
    """A condition as a person reads it."""
    if not text:
        return "none"
    metric = METRICS.get(name.removeprefix(_LIMITS)) if name.startswith(_LIMITS) else None
    return format_quantity(float(text), metric.unit) if metric else text


def _runtime_versions(space: SearchSpace) -> dict[str, str]:
    """Versions of the packages that run the model, in every runtime it may have."""
    found: dict[str, str] = {}
    for runtime in runtimes_of(space.params, space.workload):
        for package in _PACKAGES.get(runtime, ()):
            try:
                found[package] = version(package)
            except PackageNotFoundError:
                continue
            break
    return found


def _content(workload: WorkloadSpec) -> dict[str, str]:
    """Digests of the files it is made of, since a changed one is another workload."""
    if workload.options.get("command"):
        return _programs(workload)
    own = {} if workload.data is None else {"data file": _digest(Path(workload.data.file))}
    return {**own, **model_digests(workload.model)}


def model_files(model: str) -> dict[str, Path]:
    """A model's own file and those beside it that belong to it, the own one first; a built-in: {}.

    These are what a Python file imports, and where a model's file keeps its weights.

    Args:
        model: "path.py:factory" or a file.
    """
    path = Path(model.rsplit(":", 1)[0] if ".py:" in model else model)
    if not model or not path.is_file():
        return {}
    files = {"model file": path}
    if path.suffix == ".py":
        beside = neighbours(path)
        files |= {f"model file {file.relative_to(path.parent)}": file for file in beside}
    elif path.suffix in FILE_RUNTIMES:
        files |= {f"model file {name}": path.parent / name for name in read_model(path).external}
    return files


def model_digests(model: str) -> dict[str, str]:
    """Digests of `model_files`, by the same names."""
    return {name: _digest(file) for name, file in model_files(model).items()}


def _programs(workload: WorkloadSpec) -> dict[str, str]:
    """The files that a command's words name: scripts, programs, models."""
    words = list(words_of(workload))
    request = workload.options.get("request")
    if isinstance(request, Mapping):
        words += [str(request[key]) for key in ("file",) if key in request]
    paths = {word: Path(workload.base_dir) / word for word in words if word}
    return {f"file {word}": _digest(path) for word, path in paths.items() if is_file(path)}


def _digest(path: Path) -> str:
    size = path.stat().st_size
    if size > MAX_HASHED_BYTES:
        return f"{size} bytes"
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]


def _plain(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{k}={_plain(value[k])}" for k in sorted(value))
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_plain, value)) + "]"
    return str(value)
