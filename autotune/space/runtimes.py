"""The runtime as a parameter, and the parameters that only one runtime has.

`openvino.streams` means something to OpenVINO alone. Where the runtime is searched too, a rule
holds such a parameter at its first value for the others, so that configurations that would run
alike are one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from autotune.core.records import Scalar, WorkloadSpec
from autotune.space import scalars
from autotune.space.pipelines import PIPELINE
from autotune.space.rules import Rule
from autotune.space.schema import PRECISIONS, RUNTIMES
from autotune.space.search_space import Parameter
from autotune.space.strict_yaml import Node

RUNTIME, PRECISION, STREAMS = "runtime", "precision", "openvino.streams"

READERS: dict[str, Callable[[Node], Scalar]] = {
    RUNTIME: scalars.one_of(tuple(name for name in RUNTIMES if name != PIPELINE)),
    PRECISION: scalars.one_of(PRECISIONS),
    "torch.memory_format": scalars.one_of(("contiguous", "channels_last")),
    "torch.compile": scalars.boolean,
    "onnxruntime.spinning": scalars.boolean,
    "onnxruntime.execution_mode": scalars.one_of(("sequential", "parallel")),
    "onnxruntime.inter_op_threads": scalars.whole(),
    "onnxruntime.graph_optimization": scalars.one_of(("disabled", "basic", "extended", "all")),
    "onnxruntime.arena": scalars.boolean,
    "mindspore.mode": scalars.one_of(("graph", "pynative")),
    "openvino.streams": scalars.whole(),
    "openvino.hint": scalars.one_of(("none", "latency", "throughput")),
    "openvino.dynamic_shape": scalars.boolean,
}
"""Parameters of a model; for a command they are placeholders like any other."""

FIXED_PRECISION = {"onnxruntime": "float32", "mindspore": "float32"}
"""Runtimes that run a model in the precision it comes in."""


def fitted(
    params: tuple[Parameter, ...], workload: WorkloadSpec
) -> tuple[tuple[Parameter, ...], tuple[Rule, ...], tuple[str, ...]]:
    """Leave out or tie down what does not apply to every runtime.

    Returns:
        The parameters, rules that hold a parameter where it does not apply, and notes on what was
        left out.
    """
    if workload.kind not in RUNTIMES:
        return params, (), ()  # columns or placeholders like any other
    runtimes = runtimes_of(params, workload)
    kept: list[Parameter] = []
    rules: list[Rule] = []
    notes: list[str] = []
    for parameter in params:
        owner = parameter.name.partition(".")[0] if parameter.name in READERS else ""
        if owner in RUNTIMES and owner not in runtimes:
            runs = " and ".join(runtimes)
            notes.append(f"{parameter.name} left out: the model runs on {runs}")
            continue
        if owner in RUNTIMES and len(runtimes) > 1 and len(parameter.choices) > 1:
            parameter = replace(parameter, choices=_default_first(parameter))
            first = _written(parameter.choices[0])
            rules.append(Rule(text=f"{RUNTIME} == '{owner}' or {parameter.name} == {first}"))
        kept.append(parameter)
    rules += _precision_rules(kept, runtimes)
    if any(p.name == STREAMS for p in kept):
        rules.append(Rule(text=f"{STREAMS} <= micro_batch_count"))  # a request for every stream
    return tuple(kept), tuple(rules), tuple(notes)


def runtimes_of(params: tuple[Parameter, ...], workload: WorkloadSpec) -> tuple[str, ...]:
    """The runtimes that configurations may have."""
    if workload.kind not in RUNTIMES:
        return (workload.kind,)
    searched = next((p for p in params if p.name == RUNTIME), None)
    return tuple(map(str, searched.choices)) if searched else (workload.kind,)


def workloads_of(
    params: tuple[Parameter, ...], rules: tuple[Rule, ...], workload: WorkloadSpec
) -> tuple[WorkloadSpec, ...]:
    """The workload in every runtime and precision that a configuration may have."""
    if workload.kind not in RUNTIMES:
        return (workload,)
    runtimes = runtimes_of(params, workload)
    precision = next((p for p in params if p.name == PRECISION), None)
    precisions = tuple(map(str, precision.choices)) if precision else (workload.precision,)
    tied = [rule for rule in rules if rule.names <= {RUNTIME, PRECISION}]
    return tuple(
        replace(workload, kind=runtime, precision=name)
        for runtime in runtimes
        for name in precisions
        if all(rule.holds({RUNTIME: runtime, PRECISION: name}, {}) for rule in tied)
    )


def _default_first(parameter: Parameter) -> tuple[Scalar, ...]:
    """The value that means "as without this parameter" first, where it is one of the choices."""
    neutral = ("none", "contiguous", "sequential", "all")
    first = [c for c in parameter.choices if c in neutral]
    return (*first, *(c for c in parameter.choices if c not in first))


def _precision_rules(params: list[Parameter], runtimes: tuple[str, ...]) -> list[Rule]:
    searched = next((p for p in params if p.name == PRECISION), None)
    if searched is None or len(searched.choices) < 2:
        return []
    return [
        Rule(text=f"{RUNTIME} != '{runtime}' or {PRECISION} == '{only}'")
        if len(runtimes) > 1
        else Rule(text=f"{PRECISION} == '{only}'")
        for runtime, only in FIXED_PRECISION.items()
        if runtime in runtimes
    ]


def _written(value: Scalar) -> str:
    """A value as a rule writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"'{value}'" if isinstance(value, str) else repr(value)
