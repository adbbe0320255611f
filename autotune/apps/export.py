"""`autotune export`: what a study found, or its model, in a form that other programs take."""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from autotune.apps.store import load_result, study_dir
from autotune.core.errors import StorageError, UsageError
from autotune.core.records import Config
from autotune.results.study_result import StudyResult
from autotune.space.loader import load_space, load_text
from autotune.space.search_space import SearchSpace
from autotune.trial.group import workload_of
from autotune.workloads import WORKLOADS, check_workload, prepare_workload
from autotune.workloads.exported import MODEL_NAME
from autotune.workloads.onnx_file import read_onnx

EXPORTERS: dict[str, str] = {
    "onnx": "autotune.apps.export:onnx",
}
"""Formats, and the functions `(Subject) -> files written` that write them, imported on use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is exported.

    Attributes:
        result: None if a space file alone is exported.
        config: The recommended configuration, else the baseline.
        directory: Where files go.
    """

    space: SearchSpace
    config: Config
    directory: Path
    result: StudyResult | None = None


def export_study(
    study: str, to: str, *, out: Path | None, studies_dir: Path, storage: str = ""
) -> tuple[Path, ...]:
    """Export what a study found.

    Args:
        out: The directory to write into; None: the study's own.
    Returns:
        The files that were written.
    Raises:
        UsageError: There is no such study or format, or it cannot be exported.
    """
    exporter = _exporter(to)
    result = load_result(study, studies_dir, storage)
    space = load_text(result.facts.space_text, result.facts.space_path)
    subject = Subject(
        space=space,
        config=result.config or space.baseline,
        directory=out or study_dir(studies_dir, study),
        result=result,
    )
    return exporter(subject)


def export_space(path: str, to: str, *, out: Path | None) -> tuple[Path, ...]:
    """Export what a space file alone says; the working directory is the default.

    Raises:
        UsageError: The file is wrong, or there is no such format.
    """
    space = load_space(path)
    subject = Subject(space=space, config=space.baseline, directory=out or Path.cwd())
    return _exporter(to)(subject)


def onnx(subject: Subject) -> tuple[Path, ...]:
    """The study's model as an ONNX file with a dynamic batch, checked against the original.

    Weights are those of the study's seed.

    Raises:
        UsageError: The model is no torch model, or cannot be exported.
    """
    space = subject.space
    if WORKLOADS[space.workload.kind].runs != "child":
        raise UsageError(f"a study of kind {space.workload.kind} has no model to export")
    if space.workload.model.endswith(".onnx"):
        raise UsageError(f"{space.workload.model} is an ONNX file already")
    spec = replace(workload_of(subject.config, space.workload), kind="onnxruntime")
    if spec.precision == "bfloat16":  # runtimes lower it themselves
        spec = replace(spec, precision="float32")
    check_workload(spec)
    made = Path(prepare_workload(spec, space.trial.seed).artifact)
    written = [_copied(made / MODEL_NAME, subject.directory / f"{space.study}.onnx")]
    for name in read_onnx(made / MODEL_NAME).external:  # the file refers to them by name
        written.append(_copied(made / name, subject.directory / name))
    return tuple(written)


def _copied(source: Path, target: Path) -> Path:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished = target.with_name(f".{target.name}.unfinished")
        shutil.copyfile(source, unfinished)
        unfinished.replace(target)
    except OSError as error:
        raise StorageError(f"{target} cannot be written ({error.strerror})") from None
    return target


def _exporter(name: str) -> Callable[[Subject], tuple[Path, ...]]:
    if name not in EXPORTERS:
        raise UsageError(f"unknown format {name!r}; known: {', '.join(EXPORTERS)}")
    module, _, function = EXPORTERS[name].partition(":")
    exporter: Callable[[Subject], tuple[Path, ...]] = getattr(
        importlib.import_module(module), function
    )
    return exporter
