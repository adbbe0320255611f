"""Records to plain JSON data and back, for every frozen dataclass of `records`."""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Hashable, Mapping
from enum import Enum
from functools import lru_cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from autotune.core.errors import UsageError
from autotune.core.records import SCHEMA_VERSION

T = TypeVar("T")


def to_json_dict(value: Any) -> dict[str, Any]:
    """A record as plain data that any JSON parser reads: no NaN, no Infinity, no numpy types.

    Numbers that are not finite become None, since JSON has no word for them.

    Raises:
        TypeError: Something inside has no JSON form.
    """
    plain = _to_plain(value)
    if not isinstance(plain, dict):
        raise TypeError(f"{type(value).__name__} is not a record")
    return plain


def from_json_dict(cls: type[T], data: Mapping[str, Any]) -> T:
    """The inverse of `to_json_dict`.

    None in the place of a plain number reads as NaN, which is what it stood for.

    Raises:
        UsageError: The data are of a newer version of this project, or do not fit `cls`.
    """
    try:
        record: T = _from_plain(cls, data, cls.__name__)
    except (
        TypeError, ValueError, KeyError, AttributeError, OverflowError, RecursionError,
    ) as error:  # fmt: skip
        raise UsageError(f"stored {cls.__name__} cannot be read: {error}") from error
    return record


def _to_plain(value: Any) -> Any:
    # Enum first: an Outcome is a str too.
    if isinstance(value, Enum):
        return value.value
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, (np.generic, np.ndarray)):
        return _to_plain(value.tolist())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _to_plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_to_plain(item) for item in value]
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _from_plain(kind: Any, data: Any, where: str) -> Any:
    """`data` as a value of the annotation `kind`; `where` names it in messages."""
    if type(data) is kind:
        return data
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _record_from_plain(kind, data, where)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(data)
    origin, args = _parts(kind)
    if origin in (Union, types.UnionType):
        return _union_from_plain(args, data, where)
    if origin is Literal:
        if data not in args:
            raise ValueError(f"{where} is {data!r}, not one of {', '.join(map(repr, args))}")
        return data
    if origin is tuple:
        return _tuple_from_plain(args, data, where)
    if isinstance(kind, type) and issubclass(kind, tuple):  # a named one
        return kind(*_tuple_from_plain(tuple(_hints(kind).values()), data, where))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        if not isinstance(data, Mapping):
            raise TypeError(f"{where} is not a mapping")
        return {key: _from_plain(args[1], item, f"{where}.{key}") for key, item in data.items()}
    return _scalar_from_plain(kind, data, where)


def _record_from_plain(cls: Any, data: Any, where: str) -> Any:
    if not isinstance(data, Mapping):
        raise TypeError(f"{where} is not a mapping")
    version = data.get("schema_version", SCHEMA_VERSION)
    if not isinstance(version, int) or version > SCHEMA_VERSION:
        raise UsageError(
            f"stored {cls.__name__} has schema version {version}, this autotune reads up to "
            f"{SCHEMA_VERSION}: upgrade with pip install -U autotune-npu"
        )
    hints = _hints(cls)
    if unknown := set(data) - set(hints):
        raise ValueError(f"{where} has unknown keys {', '.join(sorted(unknown))}")
    values = {n: _from_plain(hints[n], item, f"{where}.{n}") for n, item in data.items()}
    return cls(**values)


def _union_from_plain(args: tuple[Any, ...], data: Any, where: str) -> Any:
    if data is None:
        return None if type(None) in args else _from_plain(args[0], data, where)
    members = [arg for arg in args if arg is not type(None)]
    if type(data) in members:
        return data
    return _from_plain(members[0], data, where)


def _tuple_from_plain(args: tuple[Any, ...], data: Any, where: str) -> Any:
    if not isinstance(data, (list, tuple)):
        raise TypeError(f"{where} is not a list")
    if len(args) == 2 and args[1] is Ellipsis:
        return tuple(_from_plain(args[0], item, where) for item in data)
    if len(args) != len(data):
        raise ValueError(f"{where} has {len(data)} items instead of {len(args)}")
    return tuple(_from_plain(arg, item, where) for arg, item in zip(args, data, strict=True))


def _scalar_from_plain(kind: Any, data: Any, where: str) -> Any:
    if kind in (Any, object):
        return data
    if kind is float:
        if data is None:
            return math.nan
        if isinstance(data, (int, float)) and not isinstance(data, bool):
            return float(data)
    if isinstance(kind, type) and type(data) is kind:
        return data
    raise TypeError(f"{where} is {data!r}, expected {getattr(kind, '__name__', kind)}")


@lru_cache(maxsize=256)
def _parts(kind: Hashable) -> tuple[Any, tuple[Any, ...]]:
    return get_origin(kind), get_args(kind)


@lru_cache(maxsize=64)
def _hints(cls: Hashable) -> dict[str, Any]:
    # Resolving the annotations costs more than reading a record with them.
    return get_type_hints(cls)
