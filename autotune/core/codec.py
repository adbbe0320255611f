"""Records to plain JSON data and back, for every frozen dataclass of `records`."""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Callable, Mapping
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
    kind: Any = cls
    try:
        record: T = _reader(kind)(data)
    except _Misfit as misfit:
        misfit.within(cls.__name__)
        raise UsageError(f"stored {cls.__name__} cannot be read: {misfit}") from misfit
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


# --- reading -----------------------------------------------------------------------------------

Reader = Callable[[Any], Any]
"""Plain data to a value; raises `_Misfit` if they do not fit, what constructors raise too."""


class _Misfit(Exception):
    """Data that do not fit an annotation.

    Args:
        text: What is wrong, to be read after where it is.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._outwards: list[str] = []

    def within(self, name: object) -> None:
        """Say where it is, from the inside out."""
        self._outwards.append(str(name))

    def __str__(self) -> str:
        return f"{'.'.join(reversed(self._outwards))} {self.text}"


@lru_cache(maxsize=256)
def _reader(kind: Any) -> Reader:
    """What reads the annotation `kind`; made once, since a large study has millions of values."""
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return _record_reader(kind)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _union_reader(args)
    if origin is Literal:
        return _literal_reader(args)
    if origin is tuple:
        return _tuple_reader(args)
    if isinstance(kind, type) and issubclass(kind, tuple):
        return _named_tuple_reader(kind)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping_reader(_reader(args[1]))
    return _scalar_reader(kind)


def _record_reader(cls: Any) -> Reader:
    fields: dict[str, Reader] = {}

    def read(data: Any) -> Any:
        if type(data) is cls:
            return data
        if not isinstance(data, Mapping):
            raise _Misfit("is not a mapping")
        _check_version(cls, data)
        if not fields:  # only now: a record may hold others of its kind
            fields.update({name: _reader(kind) for name, kind in get_type_hints(cls).items()})
        if not data.keys() <= fields.keys():
            unknown = set(data) - set(fields)
            raise _Misfit(f"has unknown keys {', '.join(sorted(unknown))}")
        values, name = {}, ""
        try:
            for name, item in data.items():
                values[name] = fields[name](item)
        except _Misfit as misfit:
            misfit.within(name)
            raise
        return cls(**values)

    return read


def _check_version(cls: type, data: Mapping[str, Any]) -> None:
    version = data.get("schema_version", SCHEMA_VERSION)
    if not isinstance(version, int) or version > SCHEMA_VERSION:
        raise UsageError(
            f"stored {cls.__name__} has schema version {version}, this autotune reads up to "
            f"{SCHEMA_VERSION}: upgrade with pip install -U autotune-npu"
        )


def _mapping_reader(read_item: Reader) -> Reader:
    def read(data: Any) -> Any:
        if not isinstance(data, Mapping):
            raise _Misfit("is not a mapping")
        values, key = {}, None
        try:
            for key, item in data.items():
                values[key] = read_item(item)
        except _Misfit as misfit:
            misfit.within(key)
            raise
        return values

    return read


def _union_reader(args: tuple[Any, ...]) -> Reader:
    """A value of any member's type as it is; other data are read as the first member."""
    as_they_are = frozenset(args)
    read_first = _reader(next(arg for arg in args if arg is not type(None)))

    def read(data: Any) -> Any:
        return data if type(data) in as_they_are else read_first(data)

    return read


def _literal_reader(args: tuple[Any, ...]) -> Reader:
    def read(data: Any) -> Any:
        if data not in args:
            raise _Misfit(f"is {data!r}, not one of {', '.join(map(repr, args))}")
        return data

    return read


def _tuple_reader(args: tuple[Any, ...]) -> Reader:
    if len(args) == 2 and args[1] is Ellipsis:
        read_item = _reader(args[0])
        return lambda data: tuple(map(read_item, _listed(data)))
    readers = tuple(map(_reader, args))

    def read(data: Any) -> Any:
        if len(_listed(data)) != len(readers):
            raise _Misfit(f"has {len(data)} items instead of {len(readers)}")
        return tuple(reader(item) for reader, item in zip(readers, data, strict=True))

    return read


def _named_tuple_reader(kind: type) -> Reader:
    read = _tuple_reader(tuple(get_type_hints(kind).values()))
    return lambda data: data if type(data) is kind else kind(*read(data))


def _listed(data: Any) -> Any:
    if not isinstance(data, (list, tuple)):
        raise _Misfit("is not a list")
    return data


def _scalar_reader(kind: Any) -> Reader:
    if kind in (Any, object):
        return lambda data: data
    if kind is float:
        return _read_float

    def read(data: Any) -> Any:
        if type(data) is not kind:
            raise _Misfit(f"is {data!r}, expected {getattr(kind, '__name__', kind)}")
        return data

    return read


def _read_float(data: Any) -> float:
    if type(data) is float:
        return data
    if data is None:
        return math.nan
    if isinstance(data, (int, float)) and not isinstance(data, bool):
        return float(data)
    raise _Misfit(f"is {data!r}, expected float")
