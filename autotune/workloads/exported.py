"""Models in files: a user's own, or a torch model exported to ONNX outside of any trial.

An export is kept in the user's cache directory under a digest of all that went into it (model,
options, seed, the files of its code, versions), so that the next trial, study or process finds it.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from autotune.core.codec import from_json_dict, to_json_dict
from autotune.core.errors import UnavailableError, UsageError
from autotune.core.records import FILE_RUNTIMES, InputSpec, WorkloadSpec
from autotune.core.text import keepable
from autotune.workloads import torch_module, user_code
from autotune.workloads.base import Limits
from autotune.workloads.graph_inputs import BatchInputs, batch_inputs
from autotune.workloads.ir_file import read_ir
from autotune.workloads.lengths import with_lengths
from autotune.workloads.model_file import ModelFile
from autotune.workloads.onnx_file import read_onnx

MODEL_NAME, INPUTS_NAME = "model.onnx", "inputs.json"
PACKAGES = ("onnx", "onnxscript")
"""What exporting needs beside torch and onnxruntime, which checks the result."""

EXPORT_LIMIT_S = 600.0
CACHE_LIMIT_BYTES = 8 * 2**30
REASON_LIMIT = 600  # characters of the exporter's last lines that are shown
_READERS: dict[str, Callable[[Path], ModelFile]] = {".onnx": read_onnx, ".xml": read_ir}
FORMAT = 1
"""Part of an export's digest; raised whenever exporting changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What the exporting process is asked.

    Attributes:
        inputs_only: Only build the model, and say what its inputs are.
    """

    workload: WorkloadSpec
    seed: int
    directory: str
    inputs_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """The inputs of a model, with the ranges of their data, and how it wants to be called."""

    inputs: tuple[InputSpec, ...]
    call: str = "positional"


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model file ready to be loaded.

    Attributes:
        precision: Of its weights. `fixed_batch`: the only batch it takes; None: any.
    """

    path: Path
    inputs: tuple[InputSpec, ...]
    precision: str
    fixed_batch: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def takes_part_batches(self) -> bool:
        """True if the first items of a batch can be fed alone, as a piece of its memory."""
        axes = {spec.batch_axis for spec in self.inputs}
        return self.fixed_batch is None and axes <= {0, None}


def is_file(spec: WorkloadSpec) -> bool:
    """True for a model's file, False for what must be exported first."""
    return Path(spec.model).suffix in FILE_RUNTIMES


def read_model(path: Path) -> ModelFile:
    """What a model's file says of itself.

    Raises:
        UsageError: It cannot be read, is no model, or lacks its weights.
    """
    return _READERS[path.suffix](path)


def check(spec: WorkloadSpec) -> None:
    """Find mistakes early; imports no framework.

    Raises:
        UsageError: The file or what is to be exported is wrong.
        UnavailableError: A package is missing.
    """
    if not is_file(spec):
        torch_module.check(spec)
        for package in PACKAGES:
            if importlib.util.find_spec(package) is None:
                raise UnavailableError(
                    f"workload.runtime: {spec.kind} needs the package {package} to export "
                    f"{spec.model}; install it with: pip install 'autotune-npu[onnx]'"
                )
        return
    runtimes = FILE_RUNTIMES[Path(spec.model).suffix]
    if spec.kind not in runtimes:
        raise UsageError(
            f"workload.runtime: {spec.kind} cannot run {spec.model}; {' or '.join(runtimes)} can"
        )
    if spec.options:
        raise UsageError(f"workload.options.{next(iter(spec.options))}: a model's file has none")
    file, _ = _file(spec)
    if spec.precision not in ("float32", file.precision):
        raise UsageError(
            f"workload.precision: {file.path.name} has weights of {file.precision}; "
            f"a file cannot be run in {spec.precision}"
        )


def limits(spec: WorkloadSpec) -> Limits:
    """A fixed batch, and what was taken for granted."""
    if not is_file(spec):
        return Limits()
    file, found = _file(spec)
    if found.fixed_batch is None:
        return Limits(notes=found.notes)
    name = next(item.name for item in found.inputs if item.batch_axis is not None)
    note = (
        f"input {name} of {file.path.name} has the batch {found.fixed_batch} fixed, so that a "
        f"call takes {found.fixed_batch} per micro-batch; export it with a dynamic batch for more"
    )
    rule = f"batch_size == {found.fixed_batch} * micro_batch_count"
    return Limits(rules=(rule,), notes=(*found.notes, note))


def model_of(spec: WorkloadSpec) -> Model:
    """The model to load: the user's file, or the export that `prepare` made."""
    if is_file(spec):
        file, found = _file(spec)
        return Model(
            path=file.path,
            inputs=found.inputs,
            precision=file.precision,
            fixed_batch=found.fixed_batch,
            notes=found.notes,
        )
    directory = Path(spec.artifact)
    declared = json.loads((directory / INPUTS_NAME).read_text(encoding="utf-8"))
    by_name = {item.name: item for item in from_json_dict(Declared, declared).inputs}
    path = directory / MODEL_NAME
    names = [item.name for item in read_onnx(path).inputs]  # an unused one may have been dropped
    return Model(path=path, inputs=tuple(by_name[name] for name in names), precision=spec.precision)


def prepare(spec: WorkloadSpec, seed: int) -> WorkloadSpec:
    """Export the model unless that was done before; a file needs nothing.

    Args:
        seed: Seed of the weights, so that every runtime has the same ones.
    Raises:
        UsageError: The model cannot be exported, or the export computes something else.
    """
    if is_file(spec) or spec.artifact:
        return spec
    directory = cache_dir() / _key(spec, seed)
    if not (directory / INPUTS_NAME).is_file():
        _export(spec, seed, directory)
    else:
        with contextlib.suppress(OSError):  # a cache that others keep may be read-only
            os.utime(directory)
    return replace(spec, artifact=str(directory))


def declared_inputs(spec: WorkloadSpec, seed: int) -> Declared:
    """The inputs of a torch model, as it is built in a process of its own.

    Raises:
        UsageError: It cannot be built.
    """
    with tempfile.TemporaryDirectory(prefix="autotune-") as directory:
        request = Request(workload=spec, seed=seed, directory=directory, inputs_only=True)
        _run_exporter(request)
        text = Path(directory, INPUTS_NAME).read_text(encoding="utf-8")
    return from_json_dict(Declared, json.loads(text))


def cache_dir() -> Path:
    """Where exports are kept: $XDG_CACHE_HOME/autotune/onnx, ~/.cache by default."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "autotune" / "onnx"


def _file(spec: WorkloadSpec) -> tuple[ModelFile, BatchInputs]:
    file = read_model(Path(spec.base_dir, spec.model))
    found = batch_inputs(file, spec.inputs)
    return file, replace(found, inputs=with_lengths(found.inputs, spec.lengths))


def _key(spec: WorkloadSpec, seed: int) -> str:
    """A digest of all that decides what the export is."""
    factory = user_code.FactoryPath.parse(spec.model, spec.base_dir)
    if factory is None:
        files = sorted(Path(torch_module.__file__).parent.glob("models/*.py"))
    else:
        files = [factory.path, *user_code.neighbours(factory.path)]
    parts = [
        json.dumps(to_json_dict(replace(spec, kind="", base_dir="")), sort_keys=True),
        *(hashlib.sha256(file.read_bytes()).hexdigest() for file in files),
        *(_version(name) for name in ("torch", "transformers", *PACKAGES)),
        f"{seed} {FORMAT}",
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:24]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def _export(spec: WorkloadSpec, seed: int, directory: Path) -> None:
    """Export in a process of its own, which then puts the result into its place as a whole."""
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        making = Path(tempfile.mkdtemp(dir=directory.parent, prefix=".making-"))
    except OSError as error:
        raise UsageError(
            f"workload.runtime: no export can be kept in {directory.parent} "
            f"({error.strerror}); set XDG_CACHE_HOME to a directory that can be written to"
        ) from None
    try:
        request = Request(workload=spec, seed=seed, directory=str(making))
        _run_exporter(request)
        with contextlib.suppress(OSError):  # another process was faster: its export is the same
            making.rename(directory)
    finally:
        shutil.rmtree(making, ignore_errors=True)
    _prune(directory)


def _run_exporter(request: Request) -> None:
    spec = request.workload
    root, text = str(Path(__file__).resolve().parents[2]), json.dumps(to_json_dict(request))
    code = (
        "import sys; sys.path.append(sys.argv[1]); import autotune.core.lifetime as l; "
        "l.die_with_parent(int(sys.argv[2])); from autotune.workloads import export; "
    )
    process = subprocess.Popen(
        [sys.executable, "-c", f"{code}sys.exit(export.main())", root, str(os.getpid())],
        env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,  # a terminal's Ctrl-C is the tool's to handle
    )
    try:
        _, printed = process.communicate(text.encode(), timeout=EXPORT_LIMIT_S)
    except subprocess.TimeoutExpired:
        raise UsageError(
            f"workload.runtime: exporting {spec.model} took longer than {EXPORT_LIMIT_S:.0f} s"
        ) from None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    if process.returncode:
        lines = keepable(printed.decode("utf-8", "replace")).strip().splitlines()
        reason = lines[-1] if lines else f"exit status {process.returncode}"
        what = "built" if request.inputs_only else f"exported to ONNX for {spec.kind}"
        raise UsageError(
            f"workload.runtime: {spec.model} cannot be {what}: {reason[:REASON_LIMIT]}"
        )


def _prune(newest: Path) -> None:
    """Drop the exports that were not used for the longest, until the rest fits the limit."""
    sizes: dict[Path, int] = {}
    for directory in newest.parent.glob("[!.]*"):
        with contextlib.suppress(OSError):
            sizes[directory] = sum(file.stat().st_size for file in directory.iterdir())
    total = sum(sizes.values())
    for directory in sorted(sizes, key=_used_at):
        if total <= CACHE_LIMIT_BYTES:
            return
        if directory != newest:
            shutil.rmtree(directory, ignore_errors=True)
            total -= sizes[directory]


def _used_at(directory: Path) -> float:
    try:
        return directory.stat().st_mtime
    except OSError:
        return 0.0
