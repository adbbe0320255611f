"""A recommendation as a program that stands alone: serves, measures itself, answers files.

The program is put together from the files in `autotune/programs`, whose imports of each other
fall away, and from the settings of the configuration.
"""

from __future__ import annotations

import ast
import pprint
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune.apps.export import Subject, child_workload, evidence_lines, onnx_model
from autotune.apps.store import write_whole
from autotune.core.codec import to_json_dict
from autotune.core.errors import UsageError
from autotune.core.records import FILE_RUNTIMES, InputSpec, WorkloadSpec
from autotune.core.text import clean
from autotune.workloads import check_workload
from autotune.workloads.exported import declared_inputs
from autotune.workloads.lengths import lengths_of
from autotune.workloads.onnx_runtime import EXECUTION_MODES, OPTIMIZATIONS
from autotune.workloads.openvino import PRECISIONS
from autotune.workloads.torch_module import MODELS

PROGRAMS = Path(__file__).resolve().parents[1] / "programs"
COMMON = ("memory", "instance", "server", "command")
_PLACE = "SETTINGS: Settings = {}\n"
_USE = """
Measure it, answer a file of items, serve:
    python {name} --bench 10
    python {name} --infer items.npz answers.npz
    python {name} --serve 8000
"""


def onnxruntime(subject: Subject) -> tuple[Path, ...]:
    """A session per instance."""
    _on_cpu(subject, "onnxruntime")
    config = subject.config
    model, written = onnx_model(subject, f"{subject.space.study}.onnx")
    runtime = {
        "spinning": bool(config.get("onnxruntime.spinning", config.instance_count == 1)),
        "execution_mode": EXECUTION_MODES[
            str(config.get("onnxruntime.execution_mode", "sequential"))
        ],
        "inter_op_threads": config.get("onnxruntime.inter_op_threads", 1),
        "graph_optimization": OPTIMIZATIONS[
            str(config.get("onnxruntime.graph_optimization", "all"))
        ],
        "arena": bool(config.get("onnxruntime.arena", True)),
    }
    settings = {
        **_settings(subject, model.inputs),
        "model": str(model.path.resolve()),
        "pads": not model.takes_part_batches,
        "runtime": runtime,
    }
    return (_write(subject, ("on_onnxruntime",), settings), *written)


def openvino(subject: Subject) -> tuple[Path, ...]:
    """A compiled model per instance."""
    _on_cpu(subject, "openvino")
    config = subject.config
    model, written = onnx_model(subject, f"{subject.space.study}.onnx")
    is_dynamic = bool(config.get("openvino.dynamic_shape", False))
    runtime: dict[str, Any] = {"INFERENCE_PRECISION_HINT": PRECISIONS[subject.workload.precision]}
    hint = str(config.get("openvino.hint", "none"))
    if hint == "none":
        runtime["NUM_STREAMS"] = config.get("openvino.streams", 1)
    else:
        runtime["PERFORMANCE_HINT"] = hint.upper()
    settings = {
        **_settings(subject, model.inputs),
        "model": str(model.path.resolve()),
        "pads": not (is_dynamic and model.takes_part_batches),
        "runtime": runtime,
    }
    return (_write(subject, ("on_openvino",), settings), *written)


def torch(subject: Subject) -> tuple[Path, ...]:
    """A module per instance on the CPU."""
    _on_cpu(subject, "torch")
    return (_write(subject, ("torch_model", "on_torch"), _torch_settings(subject)),)


def torch_npu(subject: Subject) -> tuple[Path, ...]:
    """A module per instance on its part of an NPU."""
    device = subject.device
    if device.partition(":")[0] != "npu":
        raise UsageError(f"{subject.space.study} ran on {device}: export it --to torch")
    method = "separate"
    if subject.config.batched_h2d:
        notes = [t for n, t in subject.measured_in.items() if n.startswith("note ")]
        used_foreach = any(note.startswith("host-to-device copies: foreach") for note in notes)
        method = "foreach" if used_foreach else "packed"
    settings = {
        **_torch_settings(subject),
        "device": device if ":" in device else f"{device}:0",
        "cores_per_instance": subject.config.cores_per_instance,
        "copy_method": method,
    }
    return (_write(subject, ("torch_model", "on_torch_npu"), settings),)


def _torch_settings(subject: Subject) -> dict[str, Any]:
    spec, config = child_workload(subject), subject.config
    if runtimes := FILE_RUNTIMES.get(Path(spec.model).suffix):
        raise UsageError(f"torch cannot run {spec.model}: export it --to {runtimes[0]}")
    check_workload(spec)
    declared = declared_inputs(spec, subject.space.trial.seed)
    runtime = {
        "memory_format": config.get("torch.memory_format", "contiguous"),
        "compile": bool(config.get("torch.compile", False)),
    }
    return {
        **_settings(subject, declared.inputs),
        "model": f"{MODELS[spec.model]}:build" if spec.model in MODELS else _factory(spec),
        "options": dict(spec.options),
        "precision": spec.precision,
        "call": declared.call,
        "config": config.as_dict(),
        "pads": runtime["compile"],
        "runtime": runtime,
    }


def _factory(spec: WorkloadSpec) -> str:
    path, _, name = spec.model.rpartition(":")
    return f"{Path(spec.base_dir, path).expanduser().resolve()}:{name}"


def _settings(subject: Subject, inputs: Sequence[InputSpec]) -> dict[str, Any]:
    """What every program needs to know.

    Raises:
        UsageError: Items differ in length, which the programs cannot serve.
    """
    if lengths_of(inputs) is not None:
        raise UsageError(
            "items differ in length, and exported programs have one shape; choose it for a study "
            "of its own (workload.inputs with a number in the place of length)"
        )
    config = subject.config
    return {
        "study": subject.space.study,
        "batch_size": config.batch_size,
        "instance_count": config.instance_count,
        "instance_mode": config.get("instance_mode", "process"),
        "micro_batch_count": config.micro_batch_count,
        "batched_h2d": config.batched_h2d,
        "max_queue_delay_s": float(config.get("max_queue_delay", 0.0)),
        "cores": [list(own) for own in subject.cores],
        "environment": subject.environment,
        "seed": subject.space.trial.seed,
        "inputs": [
            {name: to_json_dict(item)[name] for name in ("name", "shape", "dtype", "low", "high")}
            for item in inputs
        ],
    }


def _on_cpu(subject: Subject, to: str) -> None:
    device = subject.device.partition(":")[0]
    if device not in ("auto", "cpu") or "|" in str(subject.config.cores_per_instance):
        raise UsageError(f"--to {to} writes a program for the CPU; the study ran on {device}")


def _write(subject: Subject, parts: Sequence[str], settings: Mapping[str, Any]) -> Path:
    to = parts[-1].removeprefix("on_")
    path = subject.directory / f"{subject.space.study}_{to}.py"
    head = "\n".join([*map(clean, evidence_lines(subject)), _USE.format(name=path.name).rstrip()])
    write_whole(path, program((*COMMON, *parts), settings, head).encode())
    return path


def program(parts: Sequence[str], settings: Mapping[str, Any], head: str) -> str:
    """One file of several of `autotune/programs`, the last of them the one that is run.

    Args:
        head: What it says of itself.
    """
    imports: list[str] = []
    bodies: list[str] = []
    for part in parts:
        found, body = _divided((PROGRAMS / f"{part}.py").read_text(encoding="utf-8"))
        imports += found
        bodies.append(body)
    plain = sorted({i for i in imports if i.startswith("import ")} - {"import numpy as np"})
    named = _merged(i for i in imports if i.startswith("from "))
    shown = pprint.pformat(dict(settings), width=96, sort_dicts=False)
    bodies[-1] = bodies[-1].replace(_PLACE, "")
    quotes = '"""'
    text = "\n".join(
        [
            f"{quotes}{head.replace(chr(92), chr(92) * 2).replace(quotes, '')}\n{quotes}",
            "",
            "from __future__ import annotations",
            "",
            *plain,
            *named,
            "",
            "import numpy as np",
            "",
            f"SETTINGS: dict[str, Any] = {shown}",
            "",
            "",
        ]
    )
    return text + "\n\n".join(body.strip("\n") + "\n" for body in bodies)


def _divided(source: str) -> tuple[list[str], str]:
    """A file's imports of other packages, one line each, and what comes after them."""
    imports, last = [], 0
    for node in ast.parse(source).body:
        is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            inside = isinstance(node, ast.ImportFrom) and (node.module or "").startswith(
                ("autotune.", "__future__")
            )
            if not inside:
                imports.append(ast.unparse(node))
        elif not is_docstring:
            break
        last = node.end_lineno or last
    return imports, "\n".join(source.splitlines()[last:])


def _merged(imports: Any) -> list[str]:
    """Lines "from x import a, b", one per module."""
    names: dict[str, set[str]] = {}
    for line in imports:
        module, _, listed = line.removeprefix("from ").partition(" import ")
        names.setdefault(module, set()).update(listed.split(", "))
    return [f"from {module} import {', '.join(sorted(names[module]))}" for module in sorted(names)]
