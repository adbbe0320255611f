"""What can be measured, by kind; each kind is one function, imported on use."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal

from autotune.core.errors import UsageError
from autotune.core.records import WorkloadSpec
from autotune.workloads import user_data
from autotune.workloads.base import Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadKind:
    """Where a kind of workload lives and how it is run.

    Attributes:
        target: "module:function". The module also has `check(spec)` and `preload(spec)`, perhaps
            `limits(spec)` and `prepare(spec, seed)`, and importing it loads no framework.
        runs: "child": a `(Context) -> Program` in child processes; "virtual": the same in this
            process on a virtual clock; "report": a `(GroupSpec, Plan) -> Reported` in this
            process, its duration on a virtual clock; "program": the same in one child process,
            where it starts an outside program; "server": a class whose instance is a server that
            runs, in one child process, which sends it the load's requests; "ranks": several child
            processes that run one model together.
    """

    target: str
    runs: Literal["child", "virtual", "report", "program", "server", "ranks"]

    @property
    def is_real(self) -> bool:
        """True if it takes real time, in processes."""
        return self.runs in ("child", "program", "server", "ranks")

    @property
    def is_outside(self) -> bool:
        """True if it starts something of the user's that sees to its instances itself."""
        return self.runs in ("program", "server")


WORKLOADS: dict[str, WorkloadKind] = {
    "torch": WorkloadKind(target="autotune.workloads.torch_module:program", runs="child"),
    "command": WorkloadKind(target="autotune.workloads.command:report", runs="program"),
    "server": WorkloadKind(target="autotune.workloads.server:ServerProcess", runs="server"),
    "onnxruntime": WorkloadKind(target="autotune.workloads.onnx_runtime:program", runs="child"),
    "openvino": WorkloadKind(target="autotune.workloads.openvino:program", runs="child"),
    "mindspore": WorkloadKind(target="autotune.workloads.mindspore_cell:program", runs="child"),
    "torchair": WorkloadKind(target="autotune.workloads.graph:compiled", runs="child"),
    "graph": WorkloadKind(target="autotune.workloads.graph:captured", runs="child"),
    "pipeline": WorkloadKind(target="autotune.workloads.pipeline.kind:rank", runs="ranks"),
    "replay": WorkloadKind(target="autotune.workloads.replay:report", runs="report"),
    "simulated": WorkloadKind(target="autotune.workloads.simulated:program", runs="virtual"),
}


def load_workload(kind: str) -> Callable[..., Any]:
    """The function of a kind of workload.

    Raises:
        UsageError: There is no such kind.
    """
    function: Callable[..., Any] = getattr(_module(kind), WORKLOADS[kind].target.partition(":")[2])
    return function


def check_workload(spec: WorkloadSpec) -> None:
    """Find mistakes in a workload before any trial, without importing a framework.

    Raises:
        UsageError: A file, factory, built-in, grid or option is wrong.
    """
    _module(spec.kind).check(spec)
    if spec.data is not None:
        user_data.check(spec.data, spec.base_dir)


def preload_modules(spec: WorkloadSpec) -> tuple[str, ...]:
    """Modules to import in the zygote before it forks; importing them computes nothing."""
    modules: tuple[str, ...] = _module(spec.kind).preload(spec)
    return modules


def workload_limits(spec: WorkloadSpec) -> Limits:
    """What the model itself demands of a configuration: a fixed batch, for one.

    Raises:
        UsageError: The model's file is wrong.
    """
    module = _module(spec.kind)
    limits: Limits = module.limits(spec) if hasattr(module, "limits") else Limits()
    return limits


def needs_preparing(spec: WorkloadSpec) -> bool:
    """True if `prepare_workload` has something to do, or finds it done."""
    return hasattr(_module(spec.kind), "prepare")


def prepare_workload(spec: WorkloadSpec, seed: int) -> WorkloadSpec:
    """Make what the runtime needs of the model, outside of any trial; kept for the next time.

    Args:
        seed: Seed of the weights.
    Raises:
        UsageError: It cannot be made of this model.
    """
    module = _module(spec.kind)
    prepared: WorkloadSpec = module.prepare(spec, seed) if hasattr(module, "prepare") else spec
    return prepared


def _module(kind: str) -> ModuleType:
    if kind not in WORKLOADS:
        raise UsageError(f"unknown kind of workload {kind!r}; known: {', '.join(WORKLOADS)}")
    return importlib.import_module(WORKLOADS[kind].target.partition(":")[0])
