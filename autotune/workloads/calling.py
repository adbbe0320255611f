"""How a model gets its inputs: one by one, by name, or all in a dictionary or tuple."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from autotune.core.errors import UsageError

Parameter = inspect.Parameter
_POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
_NAMED = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


def caller(model: Callable[..., Any], names: Sequence[str], how: str) -> Callable[..., Any]:
    """A function of the tensors in the order of `names` that calls the model as it wants.

    Args:
        how: One of `core.records.CALLS`.
    Raises:
        UsageError: The model takes other inputs, or it cannot be told how it wants them.
    """
    keys = tuple(names)
    how = way(model, keys, how)
    if how == "keywords":
        return lambda *tensors: model(**dict(zip(keys, tensors, strict=True)))
    if how == "dict":
        return lambda *tensors: model(dict(zip(keys, tensors, strict=True)))
    if how == "tuple":
        return lambda *tensors: model(tensors)
    return model


def way(model: Callable[..., Any], names: Sequence[str], how: str) -> str:
    """How the model wants its inputs: "auto" resolved; arguments and errors as of `caller`."""
    return _way(model, tuple(names)) if how == "auto" else how


def required_parameters(function: Callable[..., Any]) -> list[str]:
    """Names of the parameters without which it cannot be called."""
    parameters = inspect.signature(function).parameters.values()
    kinds = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in kinds]


def _way(model: Callable[..., Any], names: tuple[str, ...]) -> str:
    function = getattr(model, "forward", model)
    try:
        parameters = tuple(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # some builtins tell nothing
        return "positional"
    named = [p.name for p in parameters if p.kind in _NAMED]
    positional = [p.name for p in parameters if p.kind in _POSITIONAL]
    if all(name in named for name in names):
        in_order = tuple(positional[: len(names)]) == names
        _check_given(required_parameters(function), names, names)
        return "positional" if in_order else "keywords"
    if any(p.kind is Parameter.VAR_POSITIONAL for p in parameters):
        return "positional"
    if len(positional) == 1 and (len(names) > 1 or _container(function, parameters[0])):
        return _container(function, parameters[0]) or _untold(positional[0], names)
    if len(positional) < len(names):
        raise UsageError(
            f"workload.inputs: {len(names)} inputs are given ({', '.join(names)}), but the model "
            f"takes {len(positional)} ({', '.join(positional) or 'none'})"
        )
    _check_given(required_parameters(function), positional[: len(names)], names)
    return "positional"


def _check_given(required: Sequence[str], given: Sequence[str], names: Sequence[str]) -> None:
    missing = [name for name in required if name not in given]
    if missing:
        raise UsageError(
            f"workload.inputs: the model also takes {', '.join(missing)}; given are "
            f"{', '.join(names)}"
        )


def _container(function: Callable[..., Any], parameter: Parameter) -> str:
    """What its type says that a single parameter is: "dict", "tuple", or "" if nothing."""
    hint: Any = parameter.annotation
    if isinstance(hint, str):
        try:
            hint = typing.get_type_hints(function).get(parameter.name, Parameter.empty)
        except Exception:  # names that only a type checker sees
            return ""
    if hint is Parameter.empty:
        return ""
    kind = typing.get_origin(hint) or hint
    if not isinstance(kind, type):
        return ""
    if issubclass(kind, Mapping):
        return "dict"
    return "tuple" if issubclass(kind, (tuple, list)) or kind is Sequence else ""


def _untold(parameter: str, names: Sequence[str]) -> str:
    raise UsageError(
        f"workload.call: the model takes one argument, {parameter}, and {len(names)} inputs are "
        f"given ({', '.join(names)}); write call: dict or call: tuple"
    )
