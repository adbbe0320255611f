"""`autotune export`: what a study found, or its model, in a form that other programs take."""

from __future__ import annotations

import importlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from autotune.apps.samples import load_samples, samples_path
from autotune.apps.store import load_result, study_dir
from autotune.core.errors import StorageError, UsageError
from autotune.core.records import Config, TrialRecord, WorkloadSpec
from autotune.measure.tail import quantile_interval
from autotune.results.evidence import Evidence, evidence_of
from autotune.results.study_result import StudyResult
from autotune.results.words import UNKNOWN
from autotune.space.loader import load_space, load_text
from autotune.space.search_space import SearchSpace
from autotune.trial.group import workload_of
from autotune.workloads import WORKLOADS, check_workload, prepare_workload
from autotune.workloads.exported import MODEL_NAME, Model, is_file, model_of
from autotune.workloads.onnx_file import read_onnx


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A format.

    Attributes:
        target: "module:function" of `(Subject) -> files written`, imported on use.
        runtimes: What a configuration must have been measured in for its figures to hold for
            what is written; empty: anything.
        is_config: Whether it is the configuration that is written, and not the model alone.
    """

    target: str
    runtimes: tuple[str, ...] = ()
    is_config: bool = True


FORMATS: dict[str, Format] = {
    "triton": Format(target="autotune.apps.export_triton:triton", runtimes=("onnxruntime",)),
    "onnxruntime": Format(
        target="autotune.apps.export_programs:onnxruntime", runtimes=("onnxruntime",)
    ),
    "openvino": Format(target="autotune.apps.export_programs:openvino", runtimes=("openvino",)),
    "torch": Format(target="autotune.apps.export_programs:torch", runtimes=("torch",)),
    "torch_npu": Format(target="autotune.apps.export_programs:torch_npu", runtimes=("torch",)),
    "onnx": Format(target="autotune.apps.export:onnx", is_config=False),
    "env": Format(target="autotune.apps.export_text:env"),
    "json": Format(target="autotune.apps.export_text:json_file"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is exported.

    Attributes:
        result: None if a space file alone is exported.
        config: The recommended configuration, else the baseline.
        directory: Where files go.
        evidence: What the configuration rests on; None: the model alone is exported.
    """

    space: SearchSpace
    config: Config
    directory: Path
    result: StudyResult | None = None
    evidence: Evidence | None = None

    @property
    def workload(self) -> WorkloadSpec:
        """The workload as the configuration runs it."""
        return workload_of(self.config, self.space.workload)

    @property
    def device(self) -> str:
        """The device that it ran on, such as "npu:0"."""
        ran_on = self.result.facts.device.partition(": ")[0] if self.result else ""
        return ran_on or self.space.device

    @property
    def measured_in(self) -> dict[str, str]:
        """The environment that the configuration was measured in, as it was recorded."""
        record = self.result.recommendation.record if self.result else None
        return dict(record.measurement.environment) if record and record.measurement else {}

    @property
    def cores(self) -> tuple[tuple[int, ...], ...]:
        """Cores of each instance as they were measured with; empty if that is not known."""
        recorded = self.measured_in.get("cores", "").split()
        found = tuple(tuple(int(core) for core in own.split(",")) for own in recorded)
        return found if len(found) == self.config.instance_count else ()

    @property
    def environment(self) -> dict[str, str]:
        """Variables that held when it was measured, the configuration's own included."""
        recorded = self.measured_in
        pinned = {name: text for name, text in recorded.items() if name.upper() == name}
        return {**pinned, **self.config.environment()}


def export_study(
    study: str,
    to: str,
    *,
    out: Path | None,
    studies_dir: Path,
    storage: str = "",
    unproven: bool = False,
) -> tuple[Path, ...]:
    """Export what a study found.

    Args:
        out: The directory to write into; None: the study's own.
        unproven: Export what is not proven as well; the files say so.
    Returns:
        The files that were written.
    Raises:
        UsageError: There is no such study or format, or it cannot be exported.
    """
    form = _format(to)
    result = load_result(study, studies_dir, storage)
    space = load_text(result.facts.space_text, result.facts.space_path)
    directory = study_dir(studies_dir, study)
    evidence = _evidence(result, form, to, space, directory) if form.is_config else None
    if evidence is not None and evidence.unproven and not unproven:
        raise UsageError(
            f"{study} is not exported as proven: {'; '.join(evidence.unproven)}. "
            "--unproven exports it all the same, and the files say so"
        )
    subject = Subject(
        space=space,
        config=result.config or space.baseline,
        directory=out or directory,
        result=result,
        evidence=evidence,
    )
    return _function(form)(subject)


def export_space(path: str, to: str, *, out: Path | None) -> tuple[Path, ...]:
    """Export what a space file alone says; the working directory is the default.

    Raises:
        UsageError: The file is wrong, or there is no such format.
    """
    form = _format(to)
    if form.is_config:
        raise UsageError(f"--to {to} needs a study: a space file recommends nothing")
    space = load_space(path)
    subject = Subject(space=space, config=space.baseline, directory=out or Path.cwd())
    return _function(form)(subject)


def onnx(subject: Subject) -> tuple[Path, ...]:
    """The study's model as an ONNX file with a dynamic batch, checked against the original.

    Weights are those of the study's seed.

    Raises:
        UsageError: The model is no torch model, or cannot be exported.
    """
    if is_file(subject.space.workload):
        raise UsageError(f"{subject.space.workload.model} is a model file already")
    _, written = onnx_model(subject, f"{subject.space.study}.onnx")
    return written


def onnx_model(subject: Subject, name: str) -> tuple[Model, tuple[Path, ...]]:
    """The model in ONNX form, as a file of that name among what is exported.

    Returns:
        The model, and the files that were written: those of an export, and none for a file of the
        user's, which stays where it is.
    Raises:
        UsageError: It has no model, or it cannot be exported.
    """
    spec = child_workload(subject)
    if spec.precision == "bfloat16":  # runtimes lower it themselves
        spec = replace(spec, precision="float32")
    if spec.kind == "torch":
        spec = replace(spec, kind="onnxruntime")
    check_workload(spec)
    prepared = prepare_workload(spec, subject.space.trial.seed)
    model = model_of(prepared)
    if not prepared.artifact:
        return model, ()
    made = Path(prepared.artifact)
    written = [copied(made / MODEL_NAME, subject.directory / name)]
    for external in read_onnx(made / MODEL_NAME).external:  # the file refers to them by name
        written.append(copied(made / external, written[0].parent / external))
    return replace(model, path=written[0]), tuple(written)


def child_workload(subject: Subject) -> WorkloadSpec:
    """The workload, if it is a model of its own.

    Raises:
        UsageError: It is not.
    """
    kind = subject.space.workload.kind
    if WORKLOADS[kind].runs != "child":
        raise UsageError(f"a study of kind {kind} has no model to export; env and json hold it all")
    return subject.workload


def copied(source: Path, target: Path) -> Path:
    """Copy a file as a whole.

    Raises:
        StorageError: It cannot be written.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished = target.with_name(f".{target.name}.unfinished")
        shutil.copyfile(source, unfinished)
        unfinished.replace(target)
    except OSError as error:
        raise StorageError(f"{target} cannot be written ({error.strerror})") from None
    return target


def _evidence(
    result: StudyResult, form: Format, to: str, space: SearchSpace, directory: Path
) -> Evidence:
    """What a recommendation rests on.

    Raises:
        UsageError: There is none.
    """
    record = result.recommendation.record
    if record is None or record.measurement is None:
        raise UsageError(
            f"{result.facts.study} is {result.status}: there is no configuration to export"
        )
    ran_in = workload_of(record.config, space.workload).kind
    doubts = []
    if form.runtimes and ran_in not in form.runtimes:
        doubts.append(
            f"it was measured with {ran_in}, and {to} runs the model with "
            f"{' or '.join(form.runtimes)}"
        )
    if form.runtimes and record.config.device_count > 1:
        doubts.append(
            f"it was measured on {record.config.device_count} devices together, and what {to} gets "
            "is for one of them"
        )
    interval = _latency_interval(record, directory)
    return evidence_of(result, record, latency_ci95_s=interval, unproven=doubts)


def _latency_interval(record: TrialRecord, directory: Path) -> tuple[float, float] | None:
    """The 95 % interval of the P99, from the calls that were kept."""
    path = samples_path(directory, record.phase, record.number)
    if not path.is_file() or "latency_p99_s" in getattr(record.measurement, "estimated", ()):
        return None
    return quantile_interval(load_samples(path).request_latency_s(), 0.99)


def _format(name: str) -> Format:
    if name not in FORMATS:
        raise UsageError(f"unknown format {name!r}; known: {', '.join(FORMATS)}")
    return FORMATS[name]


def _function(form: Format) -> Callable[[Subject], tuple[Path, ...]]:
    module, _, function = form.target.partition(":")
    exporter: Callable[[Subject], tuple[Path, ...]] = getattr(
        importlib.import_module(module), function
    )
    return exporter


def evidence_lines(subject: Subject) -> list[str]:
    """The evidence for a comment at the head of a file, none of its lines broken."""
    assert subject.evidence is not None, UNKNOWN
    return [part for line in subject.evidence.lines() for part in line.splitlines()]
