"""From the checked sections of a file to the project's values."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.core.objective import METRICS, Goal, Limit, Objective
from autotune.core.records import (
    FILE_RUNTIMES,
    Config,
    DataSpec,
    InputSpec,
    Load,
    Scalar,
    WorkloadSpec,
)
from autotune.space import command, reading, scalars, server
from autotune.space.parameters import Readers, Refused, mapping, read_value
from autotune.space.rules import CORE_PARTS, DEFAULTS, DEVICE_FACTS, Rule
from autotune.space.schema import (
    ConfirmSection,
    DataSection,
    InputSection,
    LoadSection,
    MetricSection,
    TrialSection,
    WorkloadSection,
)
from autotune.space.search_space import Confirm, Parameter, TrialOptions
from autotune.space.strict_yaml import Node, kind_of, shown

MAX_NAME_CHARS = 100
MAX_NAME_BYTES = 200  # the name becomes a directory
MAX_RULES = 100
MAX_AXES = 8
MAX_GOALS = 4
MAX_WEIGHT = 10.0
MAX_CLIENTS = 100_000

_KINDS = ("model", "command", "server", "replay", "simulated")
_BELONGS = {
    "runtime": ("model",), "precision": ("model",), "inputs": ("model",), "options": ("model",),
    "call": ("model",), "lengths": ("model",), "data": ("model",),
    "shell": ("command",), "metrics": ("command",), "parser": ("command",),
    "noise": ("replay", "simulated", "command"), "seed": ("replay", "simulated"),
    "scaling": ("simulated",),
}  # fmt: skip
_MODEL_FILE = re.compile(r"\.(onnx|om|xml|pt|pth|mindir|npz)$")


def study_name(written: str | None, file: Path) -> str:
    """The study's name, which becomes a directory; by default the file's stem.

    Raises:
        ValueError: It could lead out of the studies directory or does not fit a file system.
    """
    if written is None:
        stem = "".join(
            c if _is_name_char(c) else "-" for c in unicodedata.normalize("NFC", file.stem)
        )
        return stem.lstrip(".-")[:MAX_NAME_CHARS] or "study"
    name = unicodedata.normalize("NFC", written)
    bad = next((c for c in name if not _is_name_char(c)), None)
    if bad is not None:
        raise ValueError(
            f"'{shown(name)}' contains {bad!r}; a study's name has letters, digits, '.', '-', '_'"
        )
    if name[0] in ".-":
        raise ValueError(f"'{shown(name)}' begins with '{name[0]}'; begin with a letter or digit")
    if len(name) > MAX_NAME_CHARS or len(name.encode()) > MAX_NAME_BYTES:
        raise ValueError(f"'{shown(name)}' is longer than {MAX_NAME_CHARS} characters")
    return name


def _is_name_char(char: str) -> bool:
    return char in ".-_" or unicodedata.category(char)[0] in "LNM"


def workload(section: WorkloadSection, base_dir: Path, path_dir: Path) -> WorkloadSpec:
    """The workload.

    Args:
        base_dir: The space file's directory.
        path_dir: What a relative path is relative to: `base_dir`, or the working directory if
            the path was given on the command line.
    """
    given = [kind for kind in _KINDS if getattr(section, kind) is not None]
    if len(given) != 1:
        found = " and ".join(given) or "none"
        raise Refused(f"exactly one of {', '.join(_KINDS)} says what is measured, found {found}")
    kind = given[0]
    for key, owners in _BELONGS.items():
        if getattr(section, key) is not None and kind not in owners:
            raise Refused(f"{key} belongs to {' or '.join(owners)}, not to {kind}", key)
    if kind == "model":
        return _model(section, base_dir, path_dir)
    if kind == "command":
        return _command(section, base_dir)
    if section.server is not None:
        return server.server(section.server, base_dir)
    options: dict[str, Any] = {key: getattr(section, key) for key in ("noise", "seed")}
    options = {key: max(value, 0) for key, value in options.items() if value is not None}
    if section.scaling is not None:
        options["scaling"] = section.scaling.model_dump()
    name = str(section.replay or section.simulated)
    model = reading.existing(name, path_dir, "replay") if kind == "replay" else name
    return WorkloadSpec(kind=kind, model=model, options=options, base_dir=str(base_dir))


def _model(section: WorkloadSection, base_dir: Path, path_dir: Path) -> WorkloadSpec:
    model, inputs = str(section.model), tuple(_inputs(section.inputs or []))
    file, colon, factory = model.rpartition(":")
    if not colon:
        file = model
    is_python = file.endswith(".py")
    if is_python and not factory.isidentifier():
        raise Refused(f"'{shown(model)}' names no factory; write {file}:function", "model")
    if is_python:
        model = f"{reading.existing(file, path_dir, 'model')}:{factory}"
    elif _MODEL_FILE.search(model):
        model = reading.existing(model, path_dir, "model")
    elif "/" in model:
        raise Refused(f"'{shown(model)}' is not path.py:factory nor a model file", "model")
    default, *_ = FILE_RUNTIMES.get(Path(model).suffix, ("torch",))
    return WorkloadSpec(
        kind=section.runtime or default,
        model=model,
        precision=section.precision or "float32",
        inputs=inputs,
        options=reading.free_values(section.options, "options")
        if section.options is not None
        else {},
        base_dir=str(base_dir),
        call=section.call or "auto",
        lengths=reading.lengths(section.lengths, "lengths")
        if section.lengths is not None
        else None,
        data=_data(section.data, path_dir) if section.data is not None else None,
    )


def _inputs(sections: list[InputSection]) -> list[InputSpec]:
    inputs: list[InputSpec] = []
    for index, section in enumerate(sections):
        if section.name in [spec.name for spec in inputs]:
            raise Refused(
                f"the input '{shown(section.name)}' is given twice", "inputs", index, "name"
            )
        if len(section.shape) > MAX_AXES:
            raise Refused(
                f"{len(section.shape)} axes; at most {MAX_AXES}", "inputs", index, "shape"
            )
        shape = tuple(_axis(node, index, axis) for axis, node in enumerate(section.shape))
        for name in ("batch", "length"):
            if shape.count(name) > 1:
                raise Refused(f"'{name}' stands for one axis only", "inputs", index, "shape")
        low, high = section.low, section.high
        if low is not None and high is not None and low >= high:
            raise Refused(f"low {low:g} is not below high {high:g}", "inputs", index, "low")
        inputs.append(
            InputSpec(name=section.name, shape=shape, dtype=section.dtype, low=low, high=high)
        )
    return inputs


def _data(node: Node, path_dir: Path) -> DataSpec:
    """A file alone, or {file, timing, evaluate}."""
    if isinstance(node.value, str):
        return DataSpec(file=reading.existing(reading.text_at(node, "data"), path_dir, "data"))
    section = reading.section_at(DataSection, node, "data")
    evaluate = ""
    if section.evaluate is not None:
        file, colon, function = section.evaluate.rpartition(":")
        if not colon or not function.isidentifier():
            text = shown(section.evaluate)
            raise Refused(f"'{text}' is not path.py:function", "data", "evaluate")
        evaluate = f"{reading.existing(file, path_dir, 'data')}:{function}"
    file = reading.existing(section.file, path_dir, "data")
    return DataSpec(file=file, timing=section.timing, evaluate=evaluate)


def _axis(node: Node, index: int, axis: int) -> int | str:
    if node.value in ("batch", "length"):
        return str(node.value)
    try:
        return scalars.whole()(node)
    except ValueError as error:
        raise Refused(f"{error}, or 'batch', 'length'", "inputs", index, "shape", axis) from None


def _command(section: WorkloadSection, base_dir: Path) -> WorkloadSpec:
    is_shell = bool(section.shell)
    words = reading.words(section.command or Node(None, ""), is_shell=is_shell)
    if section.parser not in (None, "json") and section.metrics is not None:
        raise Refused(f"parser {section.parser} knows its metrics; leave them out", "metrics")
    options: dict[str, object] = {"command": words, "shell": is_shell}
    if section.metrics is not None:
        options["metrics"] = _metrics(section.metrics)
    if section.parser is not None:
        options["parser"] = section.parser
    if section.noise is not None:
        options["noise"] = max(section.noise, 0.0)
    return WorkloadSpec(kind="command", options=options, base_dir=str(base_dir))


def check_placeholders(spec: WorkloadSpec, params: tuple[Parameter, ...]) -> None:
    """Every placeholder names a parameter or a fact of the trial."""
    known = list(dict.fromkeys([*(p.name for p in params), *DEFAULTS, *command.facts_of(spec)]))
    for name in command.placeholders(command.words_of(spec)):
        if name not in known:
            hint = scalars.nearest(name, known)
            raise Refused(
                f"unknown placeholder {{{shown(name)}}}; {hint} ({{{{{name}}}}} is literal)",
                "command" if spec.kind == "command" else "server",
            )


def _metrics(node: Node) -> dict[str, dict[str, str | None]]:
    """Measurement field to where a command prints it: a JSON key or a pattern, and the unit."""
    fields = {metric.field: metric for metric in METRICS.values()} | METRICS
    result: dict[str, dict[str, str | None]] = {}
    for name, item in reading.mapping_at(node, "metrics").items():
        if name not in fields:
            hint = scalars.nearest(name, fields)
            raise Refused(f"unknown metric '{shown(name)}'; {hint}", "metrics", name)
        if isinstance(item.value, dict):
            section = reading.section_at(MetricSection, item, "metrics", name)
        else:
            key = reading.text_at(item, "metrics", name)
            section = MetricSection.model_construct(key=key, regex=None, unit=None)
        known = scalars.UNITS_OF[fields[name].unit]
        if section.unit is not None and section.unit not in known:
            hint = f"known: {', '.join(known)}"
            raise Refused(f"'{section.unit}' is no unit of {name}; {hint}", "metrics", name, "unit")
        if (section.key is None) == (section.regex is None):
            raise Refused("give either key or regex", "metrics", name)
        if section.regex is not None:
            _check_pattern(section.regex, "metrics", name, "regex")
        way = {"key": section.key} if section.regex is None else {"regex": section.regex}
        result[fields[name].field] = {**way, "unit": section.unit}
    return result


def _check_pattern(pattern: str, *path: str | int) -> None:
    try:
        groups = re.compile(pattern).groups
    except (re.error, OverflowError, RecursionError) as error:
        raise Refused(f"'{shown(pattern)}' is no regular expression: {error}", *path) from None
    if groups < 1:
        raise Refused(f"'{shown(pattern)}' has no group; put ( ) around the number", *path)


def load(section: LoadSection, path_dir: Path) -> Load:
    """How requests arrive."""
    given = [key for key in LoadSection.model_fields if getattr(section, key) is not None]
    if len(given) != 1:
        found = " and ".join(given) or "none"
        raise Refused(f"exactly one of {', '.join(LoadSection.model_fields)}, found {found}")
    kind = given[0]
    if kind == "trace":
        return Load(kind="trace", trace=reading.existing(str(section.trace), path_dir, "trace"))
    entries = reading.mapping_at(getattr(section, kind), kind)
    if kind == "closed":
        return _closed(entries)
    for key in entries:
        if key != "rate":
            raise Refused(f"unknown key '{shown(key)}'; did you mean 'rate'?", kind, key)
    if "rate" not in entries:
        raise Refused("rate is missing; write {rate: max} or {rate: 500/s}", kind)
    open_kind: object = kind
    assert open_kind == "poisson" or open_kind == "constant"
    if entries["rate"].value == "max":
        return Load(kind=open_kind)
    try:
        return Load(kind=open_kind, rate_per_s=scalars.quantity("rate")(entries["rate"]))
    except ValueError as error:
        raise Refused(f"{error}, or max", kind, "rate") from None


def _closed(entries: Mapping[str, Node]) -> Load:
    for key in entries:
        if key != "clients":
            raise Refused(
                f"unknown key '{shown(key)}'; write {{}} or {{clients: 16}}",
                "closed",
                key,
            )
    if "clients" not in entries:
        return Load()
    try:
        return Load(clients=scalars.whole(1, MAX_CLIENTS)(entries["clients"]))
    except ValueError as error:
        raise Refused(str(error), "closed", "clients") from None


def limits(node: Node) -> tuple[Limit, ...]:
    """Limits in SI, in the order of the file; ">= 500/s" and "<= 20ms" say which way they go."""
    result: list[Limit] = []
    for name, item in mapping(node).items():
        if name not in METRICS:
            raise Refused(f"unknown limit '{shown(name)}'; {scalars.nearest(name, METRICS)}", name)
        try:
            result.append(Limit(metric=name, bound=_bound(name, item)))
        except ValueError as error:
            raise Refused(str(error), name) from None
    return tuple(result)


def _bound(name: str, node: Node) -> float:
    metric = METRICS[name]
    if not isinstance(node.value, str):
        raise ValueError(f"expected a {metric.unit} with its unit, found {kind_of(node)}")
    match = re.fullmatch(r"\s*([<>]=?|=)?\s*(.*)", node.value, re.DOTALL)
    assert match is not None
    right = ("<", "<=") if metric.better == "lower" else (">", ">=")
    if match.group(1) is not None and match.group(1) not in right:
        side = "a maximum" if metric.better == "lower" else "a minimum"
        raise ValueError(f"'{shown(node.value)}': {name} is {side}; write {right[1]}")
    return scalars.quantity(metric.unit)(Node(match.group(2), node.place, node.is_plain))


def goals(node: Node) -> tuple[Goal, ...]:
    """What is optimised: a list asks for trade-offs, names with weights for their weighted sum."""
    named: list[tuple[str, tuple[str | int], Node | None]]
    if isinstance(node.value, dict):
        named = [(name, (name,), item) for name, item in mapping(node).items()]
    elif isinstance(node.value, list):
        named = [(reading.text_at(item, i), (i,), None) for i, item in enumerate(node.value)]
    else:
        raise Refused(f"expected a list of metrics, or metrics with weights; found {kind_of(node)}")
    if not 1 <= len(named) <= MAX_GOALS:
        raise Refused(f"{len(named)} goals; from 1 to {MAX_GOALS}")
    found: dict[str, Goal] = {}
    for name, path, weight in named:
        if name not in METRICS:
            hint = scalars.nearest(name, METRICS)
            raise Refused(f"unknown metric '{shown(name)}'; {hint}", *path)
        if name in found:
            raise Refused(f"'{name}' is given twice", *path)
        try:
            own = 1.0 if weight is None else scalars.real(0.0, MAX_WEIGHT)(weight)
        except ValueError as error:
            raise Refused(str(error), *path) from None
        found[name] = Goal(metric=name, weight=own)
    return tuple(found.values())


def with_goals(objective: Objective, node: Node, *, is_default: bool) -> Objective:
    """The objective with the file's own goals; a default objective takes their name.

    Raises:
        Refused: Goals are wrong, or the objective is to find a knee.
    """
    own = goals(node)
    if objective.knee_share is not None:
        raise Refused(f"objective {objective.name} finds a knee and has no other goals")
    front = isinstance(node.value, list) and len(own) > 1
    name = objective.name
    if is_default and [goal.metric for goal in own] != ["throughput"]:
        name = "pareto" if front else "weighted" if len(own) > 1 else own[0].metric
    return replace(objective, name=name, goals=own, front=front)


def with_limits(objective: Objective, own: tuple[Limit, ...]) -> tuple[Limit, ...]:
    """The objective's limits, replaced and completed by the file's."""
    by_metric = {limit.metric: limit for limit in (*objective.limits, *own)}
    if objective.required_limits and not any(m in by_metric for m in objective.required_limits):
        wanted = ", ".join(objective.required_limits)
        raise ValueError(f"objective {objective.name} needs a limit on one of {wanted}")
    return tuple(by_metric.values())


def trial(section: TrialSection) -> TrialOptions:
    """A trial's window and deadline."""
    if section.duration is not None and section.iterations is not None:
        raise Refused("duration and iterations exclude each other", "iterations")
    duration_s = None if section.iterations else (section.duration or TrialOptions().duration_s)
    if duration_s is not None and section.timeout <= duration_s:
        raise Refused(
            f"{section.timeout:g} s is not above the duration {duration_s:g} s", "timeout"
        )
    return TrialOptions(
        duration_s=duration_s,
        iterations=section.iterations,
        timeout_s=section.timeout,
        seed=section.seed,
        check_outputs=section.check_outputs,
    )


def confirm(node: Node | None) -> Confirm | None:
    """How the best are proven; `false` skips it."""
    if node is None:
        return Confirm()
    if scalars.is_boolean_word(node):
        return Confirm() if scalars.boolean(node) else None
    section = reading.section_at(ConfirmSection, node)
    return Confirm(top=section.top, duration_s=section.duration, alpha=section.alpha)


def baseline(
    node: Node | None, params: tuple[Parameter, ...], further: Readers, *, is_open: bool
) -> Config:
    """The wanted baseline: what the file names, and the defaults.

    Args:
        is_open: Further names are allowed, since a grid may have them.
    """
    values: dict[str, Scalar] = {}
    known = {p.name for p in params} | set(DEFAULTS)
    for name, item in mapping(node).items() if node is not None else ():
        if name not in known and not is_open:
            raise Refused(
                f"unknown parameter '{shown(name)}'; {scalars.nearest(name, known)}", name
            )
        try:
            values[name] = read_value(name, item, further)
        except ValueError as error:
            raise Refused(str(error), name) from None
    return Config.from_dict(values)


def rules(texts: list[str], params: tuple[Parameter, ...], *, is_open: bool) -> tuple[Rule, ...]:
    """The rules; unknown names are refused unless a grid may still bring them."""
    if len(texts) > MAX_RULES:
        raise Refused(f"{len(texts)} rules; at most {MAX_RULES}")
    names = [p.name for p in params]
    known = list(dict.fromkeys([*names, *DEFAULTS, *DEVICE_FACTS, *CORE_PARTS]))
    made: list[Rule] = []
    for index, text in enumerate(texts):
        try:
            rule = Rule(text=text)
        except Exception as error:
            raise Refused(str(error), index) from None
        unknown = next((name for name in sorted(rule.names) if name not in known), None)
        if unknown is not None and not is_open:
            hint = scalars.nearest(unknown, known)
            raise Refused(
                f"unknown name '{shown(unknown)}' in '{shown(text)}'; {hint} Text needs quotes.",
                index,
            )
        made.append(rule)
    return tuple(made)
