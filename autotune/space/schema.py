"""The keys of a space file, each with its kind and default. Unknown keys fail.

The models take `Node`s; what depends on more than one key is resolved in `sections.py`.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from autotune.core.records import CALLS
from autotune.core.units import UNITS_BY_KIND
from autotune.space import scalars
from autotune.space.strict_yaml import Node, Path, kind_of, shown

Text = Annotated[str, BeforeValidator(scalars.text)]
Flag = Annotated[bool, BeforeValidator(scalars.boolean)]
Number = Annotated[float, BeforeValidator(lambda node: float(scalars.number(node)))]
Seed = Annotated[int, BeforeValidator(scalars.whole(0, scalars.MAX_SEED))]
Count = Annotated[int, BeforeValidator(scalars.whole())]
Duration = Annotated[float, BeforeValidator(scalars.quantity("duration"))]
Share = Annotated[float, BeforeValidator(scalars.quantity("ratio"))]
Alpha = Annotated[float, BeforeValidator(scalars.real(0.0, 0.5))]
Noise = Annotated[float, BeforeValidator(scalars.real(0.0, 1.0, with_low=True))]
AnyNode = Annotated[Any, BeforeValidator(lambda node: node)]

RUNTIMES = ("torch", "onnxruntime", "openvino", "mindspore", "torchair", "graph", "pipeline")
PRECISIONS = ("float32", "float16", "bfloat16", "int8")
DTYPES = (
    "float32", "float64", "float16", "int64", "int32", "int16", "int8",
    "uint64", "uint32", "uint16", "uint8", "bool",
)  # fmt: skip
OUTPUT_PARSERS = ("json", "ais_bench", "mindspore_lite", "trtexec", "perf_analyzer")
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
SAMPLERS = ("auto", "mechanistic", "gp", "tpe", "random", "grid")
UNITS = tuple(dict.fromkeys(unit for units in UNITS_BY_KIND.values() for unit in units))


def _items(node: Any) -> Any:
    if isinstance(node, Node) and isinstance(node.value, list):
        return node.value
    found = kind_of(node) if isinstance(node, Node) else node
    raise ValueError(f"expected a list, found {found}")


class Section(BaseModel):
    """A mapping of the file: strict, frozen, closed to unknown keys."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _open(cls, node: Any) -> Any:
        if not isinstance(node, Node):
            return node
        if not isinstance(node.value, dict):
            raise ValueError(f"expected a mapping of keys, found {kind_of(node)}")
        for key in node.value:
            if key not in cls.model_fields:
                hint = scalars.nearest(key, cls.model_fields)
                message = f"unknown key '{shown(key)}'; {hint}"
                raise PydanticCustomError(
                    "unknown_key", "{message}", {"message": message, "key": key}
                )
        return node.value


class InputSection(Section):
    name: Text
    shape: Annotated[list[AnyNode], BeforeValidator(_items)]
    dtype: Annotated[str, BeforeValidator(scalars.one_of(DTYPES))] = "float32"
    low: Number | None = None
    high: Number | None = None


class ScalingSection(Section):
    """How a simulated model's calls slow down with further devices (see `workloads.simulated`)."""

    contention: Noise = 0.0
    coherency: Noise = 0.0


class StreamSection(Section):
    """Streamed answers of an OpenAI-compatible server, and what is asked of it."""

    model: Text
    prompt_tokens: AnyNode | None = None
    prompts: Text | None = None
    output_tokens: AnyNode
    options: AnyNode | None = None


class RequestSection(Section):
    """What is sent: one of body, file and openai, or nothing."""

    path: Text | None = None
    method: Annotated[str, BeforeValidator(scalars.one_of(METHODS))] | None = None
    headers: AnyNode | None = None
    body: Text | None = None
    file: Text | None = None
    openai: StreamSection | None = None
    timeout: Duration = 30.0


class ServerSection(Section):
    """A server that is started for every trial and sent requests."""

    command: AnyNode
    url: Text = "http://127.0.0.1:{port}"
    ready: Text | None = None
    request: RequestSection = RequestSection()
    start_timeout: Duration = 60.0
    stop_timeout: Duration = 10.0


class WorkloadSection(Section):
    """Exactly one of model, command, server, replay, simulated."""

    model: Text | None = None
    runtime: Annotated[str, BeforeValidator(scalars.one_of(RUNTIMES))] | None = None
    precision: Annotated[str, BeforeValidator(scalars.one_of(PRECISIONS))] | None = None
    inputs: Annotated[list[InputSection], BeforeValidator(_items)] | None = None
    call: Annotated[str, BeforeValidator(scalars.one_of(CALLS))] | None = None
    lengths: AnyNode | None = None
    data: AnyNode | None = None
    options: AnyNode | None = None
    command: AnyNode | None = None
    server: ServerSection | None = None
    shell: Flag | None = None
    metrics: AnyNode | None = None
    parser: Annotated[str, BeforeValidator(scalars.one_of(OUTPUT_PARSERS))] | None = None
    replay: Text | None = None
    simulated: Text | None = None
    noise: Noise | None = None
    seed: Seed | None = None
    scaling: ScalingSection | None = None


class LengthsSection(Section):
    """How long items are: values to draw from, or a range."""

    values: Annotated[list[AnyNode], BeforeValidator(_items)] | None = None
    low: Count | None = None
    high: Count | None = None
    multiple_of: Count = 1


class DataSection(Section):
    """A user's own items: where they are, and what they are for."""

    file: Text
    timing: Flag = True
    evaluate: Text | None = None


class MetricSection(Section):
    """Where a command prints a metric, and in which unit; without one, SI.

    Exactly one of `key`, of the last JSON line, and `regex`, whose first group is the number.
    """

    key: Text | None = None
    regex: Text | None = None
    unit: Annotated[str, BeforeValidator(scalars.one_of(UNITS))] | None = None


class LoadSection(Section):
    """Exactly one of the ways in which requests arrive."""

    closed: AnyNode | None = None
    poisson: AnyNode | None = None
    constant: AnyNode | None = None
    trace: Text | None = None


class BudgetSection(Section):
    trials: Count = 40
    time: Duration | None = None
    gain: Share | None = None


class TrialSection(Section):
    duration: Duration | None = None
    iterations: Count | None = None
    timeout: Duration = 60.0
    seed: Seed = 0
    check_outputs: Flag = True


class ConfirmSection(Section):
    top: Count = 3
    duration: Duration = 20.0
    alpha: Alpha = 0.01


class SpaceFile(Section):
    study: Text | None = None
    workload: WorkloadSection
    device: Text = "auto"
    objective: Text | None = None
    goals: AnyNode | None = None
    limits: AnyNode | None = None
    load: LoadSection | None = None
    params: AnyNode | None = None
    rules: Annotated[list[Text], BeforeValidator(_items)] = Field(default_factory=list)
    baseline: AnyNode | None = None
    budget: BudgetSection = BudgetSection()
    trial: TrialSection = TrialSection()
    sampler: Annotated[str, BeforeValidator(scalars.one_of(SAMPLERS))] = "auto"
    warm_start: Annotated[bool, BeforeValidator(scalars.switch)] = True
    confirm: AnyNode | None = None
    storage: Annotated[str, BeforeValidator(scalars.storage)] = "journal"


def problems(error: ValidationError) -> list[tuple[Path, str]]:
    """Key path and sentence of every fault that pydantic found."""
    found: list[tuple[Path, str]] = []
    for item in error.errors(include_input=False, include_url=False):
        path: Path = tuple(item["loc"])
        context = item.get("ctx", {})
        if item["type"] == "unknown_key":
            path, message = (*path, str(context["key"])), str(context["message"])
        elif item["type"] == "missing":
            message = "is missing"
        else:
            message = str(context.get("error", item["msg"]))
        found.append((path, message))
    return found
