"""From what stands under `params` to `Parameter`s."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal

from autotune.core.records import DIMENSIONS, Scalar
from autotune.core.text import is_secret
from autotune.space import scalars
from autotune.space.rules import DEFAULTS
from autotune.space.search_space import LOG_PARAMETERS, Parameter, sorted_choices
from autotune.space.strict_yaml import Node, kind_of, shown

MAX_CHOICES = 10_000
MAX_PARAMETERS = 64

WHOLE = (
    "batch_size", "global_batch_size", "instance_count", "micro_batch_count", "device_count",
)  # fmt: skip
_SPLIT = re.compile(r"[1-9][0-9]{0,4}\|[1-9][0-9]{0,4}")
_NOT_NUMBERS = (
    "batched_h2d", "batched_h2d_method", "instance_mode", "schedule", "stage_split",
)  # fmt: skip
_RANGE_KEYS = ("low", "high", "log", "step")


Readers = Mapping[str, Callable[[Node], Scalar]]
NO_READERS: Readers = {}


class Refused(ValueError):
    """A value is refused; `path` says where, below the node that was read."""

    def __init__(self, message: str, *path: str | int) -> None:
        super().__init__(message)
        self.path = path


def read_parameters(
    node: Node, free_names: Sequence[str] | None = (), further: Readers = NO_READERS
) -> tuple[Parameter, ...]:
    """All parameters of a file's `params`, in the order of the file.

    Args:
        free_names: Further names that may stand there (a command's placeholders); None: any.
        further: Further names whose values have a known kind.
    """
    entries = mapping(node)
    if len(entries) > MAX_PARAMETERS:
        raise Refused(f"{len(entries)} parameters; at most {MAX_PARAMETERS}")
    known = (*READERS, *further, *(free_names or ()))
    params: list[Parameter] = []
    for name, value in entries.items():
        if name not in known and free_names is not None and not _is_environment(name):
            hint = scalars.nearest(name, (*known, "env.NAME"))
            raise Refused(f"unknown parameter '{shown(name)}'; {hint}", name)
        _refuse_secret(name, value)
        try:
            params.append(read_parameter(name, value, further))
        except Refused as error:
            raise Refused(str(error), name, *error.path) from None
        except ValueError as error:
            raise Refused(str(error), name) from None
    return tuple(params)


def _refuse_secret(name: str, node: Node) -> None:
    items = node.value if isinstance(node.value, list) else [node]
    if name.startswith("env.") and any(is_secret(name, str(item.value or "")) for item in items):
        raise Refused(
            "a parameter is kept in every record, so it is no place for a secret; set the "
            "variable where autotune is started: trials inherit it",
            name,
        )


def with_defaults(params: tuple[Parameter, ...]) -> tuple[Parameter, ...]:
    """The five dimensions first, those not named fixed at their default, then the others."""
    by_name = {p.name: p for p in params}
    five = (
        by_name.get(name)
        or Parameter(name=name, choices=(DEFAULTS[name],), log=name in LOG_PARAMETERS)
        for name in DIMENSIONS
    )
    return (*five, *(p for p in params if p.name not in DIMENSIONS))


def read_parameter(name: str, node: Node, further: Readers = NO_READERS) -> Parameter:
    """One parameter: a single value, a list, or {low, high, log | step}."""
    if name.startswith("env.") and not _is_environment(name):
        raise Refused(f"'{shown(name[4:])}' is not the name of an environment variable")
    log = name in LOG_PARAMETERS
    if isinstance(node.value, dict):
        is_log = "log" in node.value and scalars.boolean(node.value["log"])
        return Parameter(name=name, choices=_range(name, node, is_log, further), log=log or is_log)
    if node.value == "auto" and name == "cores_per_instance":
        return Parameter(name=name, choices=("all",), auto=True)
    if not isinstance(node.value, list):
        return Parameter(name=name, choices=(read_value(name, node, further),), log=log)
    return Parameter(name=name, choices=_list(name, node.value, further), log=log)


def read_value(name: str, node: Node, further: Readers = NO_READERS) -> Scalar:
    """One value of a parameter, in SI."""
    if isinstance(node.value, (dict, list)) or node.value is None:
        raise ValueError(f"expected {_wanted(name)}, found {kind_of(node)}")
    return _reader(name, further)(node)


def mapping(node: Node) -> dict[str, Node]:
    """The entries of a mapping."""
    if not isinstance(node.value, dict):
        raise Refused(f"expected a mapping of keys to values, found {kind_of(node)}")
    return node.value


def _list(name: str, items: list[Node], further: Readers) -> tuple[Scalar, ...]:
    if not items:
        raise Refused("an empty list; give at least one value")
    _check_count(len(items))
    if name not in READERS and name not in further and not _is_environment(name):
        _check_one_kind(items)
    values: list[Scalar] = []
    for index, item in enumerate(items):
        try:
            value = read_value(name, item, further)
        except ValueError as error:
            raise Refused(str(error), index) from None
        if value in values:
            raise Refused(f"{shown(item.value)} is given twice", index)
        values.append(value)
    return sorted_choices(values)


def _check_one_kind(items: list[Node]) -> None:
    """Of a parameter of unknown kind, all values must be of one."""
    words = [scalars.is_boolean_word(item) for item in items]
    if any(words) and not all(words):
        word = shown(items[words.index(True)].value)
        raise Refused(f'{word} could be a boolean among other values; quote text: "{word}"')
    kinds = {_kind(scalars.free_value(item)) for item in items if isinstance(item.value, str)}
    if len(kinds) > 1:
        raise Refused(f"mixes {' and '.join(sorted(kinds))}; quote what is text")


def _kind(value: Scalar) -> str:
    if isinstance(value, bool):
        return "booleans"
    return "text" if isinstance(value, str) else "numbers"


def _range(name: str, node: Node, is_log: bool, further: Readers) -> tuple[Scalar, ...]:
    entries = mapping(node)
    for key in entries:
        if key not in _RANGE_KEYS:
            hint = " (write the list itself)" if key in ("choices", "values") else ""
            raise Refused(
                f"unknown key '{shown(key)}'; {scalars.nearest(key, _RANGE_KEYS)}{hint}", key
            )
    if name in (
        "batched_h2d",
        "batched_h2d_method",
        "instance_mode",
        "schedule",
        "stage_split",
    ) or _is_environment(name):
        raise Refused(f"expected {_wanted(name)} or a list, found a range")
    missing = [key for key in ("low", "high") if key not in entries]
    if missing:
        raise Refused(f"{missing[0]} is missing; a range is {{low: 1, high: 64, log: true}}")
    low, high = (_bound(name, entries, key, further) for key in ("low", "high"))
    if low > high:
        raise Refused(
            f"low {shown(entries['low'].value)} is above high {shown(entries['high'].value)}"
        )
    if is_log:
        return _ladder(name, low, high, entries)
    return _steps(name, low, high, entries)


def _ladder(name: str, low: float, high: float, entries: dict[str, Node]) -> tuple[Scalar, ...]:
    if "step" in entries:
        raise Refused("step and log: true exclude each other", "step")
    if low != int(low) or high != int(high) or name == "max_queue_delay" or low < 1:
        raise Refused("log: true is for whole numbers from 1; use step or a list", "log")
    return ladder(int(low), int(high))


def ladder(low: int, high: int) -> tuple[int, ...]:
    """1, 2, 3, 4, 6, 8, 12, 16, 24, ... within [low, high], both bounds included."""
    powers = [2**k for k in range(high.bit_length() + 1)]
    rungs = {*powers, *(3 * p for p in powers), low, high}
    return tuple(sorted(rung for rung in rungs if low <= rung <= high))


def _steps(name: str, low: float, high: float, entries: dict[str, Node]) -> tuple[Scalar, ...]:
    is_whole = name in WHOLE or name == "cores_per_instance"
    if "step" in entries:
        step = _bound(name, entries, "step", NO_READERS)
    elif low == int(low) and high == int(high) and name != "max_queue_delay":
        step = 1
    else:
        raise Refused("step is missing; only whole numbers have a step of 1 by themselves")
    if step <= 0:
        raise Refused(f"{shown(entries['step'].value)} is not above 0", "step")
    count = int((high - low) / step * (1 + 1e-12)) + 1
    _check_count(count)
    if is_whole:
        return tuple(range(int(low), int(high) + 1, int(step)))
    exact = [Decimal(repr(low)) + i * Decimal(repr(step)) for i in range(count)]
    values = [float(f"{value:.12g}") for value in exact]
    is_integral = isinstance(low, int) and isinstance(step, int)
    return tuple(int(v) if is_integral else v for v in values if v <= high)


def _bound(name: str, entries: dict[str, Node], key: str, further: Readers) -> int | float:
    try:
        if key == "step" and name in WHOLE:
            return scalars.whole()(entries[key])
        value = read_value(name, entries[key], further)
    except ValueError as error:
        raise Refused(str(error), key) from None
    if isinstance(value, (bool, str)):
        raise Refused(f"expected a number, found '{shown(value)}'", key)
    return value


def _check_count(count: int) -> None:
    if count > MAX_CHOICES:
        raise Refused(f"{count} choices; at most {MAX_CHOICES}. Use log: true or a larger step")


def _is_environment(name: str) -> bool:
    return re.fullmatch(r"env\.[A-Za-z_][A-Za-z0-9_]*", name) is not None


def _cores(node: Node) -> Scalar:
    """A count, "cube|vector", or all."""
    written = node.value if isinstance(node.value, str) else ""
    if written == "all" or _SPLIT.fullmatch(written):
        return written
    if written == "auto":
        raise ValueError("auto stands alone: cores_per_instance: auto")
    if "|" in written:
        raise ValueError(f'expected "cube|vector", counts from 1 such as 8|16, found {written!r}')
    if not re.fullmatch(r"[+-]?[0-9.].*", written) or not node.is_plain:
        raise ValueError(f"expected {_wanted('cores_per_instance')}, found {kind_of(node)}")
    return scalars.whole()(node)


READERS: dict[str, Callable[[Node], Scalar]] = {
    "batch_size": scalars.whole(),
    "instance_count": scalars.whole(),
    "cores_per_instance": _cores,
    "batched_h2d": scalars.boolean,
    "micro_batch_count": scalars.whole(),
    "device_count": scalars.whole(),
    "max_queue_delay": scalars.quantity("duration", above_zero=False),
    "instance_mode": scalars.one_of(("process", "thread")),
    "batched_h2d_method": scalars.one_of(("auto", "foreach", "packed")),
}
"""Parameters whose values have a known kind."""


def _reader(name: str, further: Readers) -> Callable[[Node], Scalar]:
    return (
        READERS.get(name)
        or further.get(name)
        or (scalars.text if _is_environment(name) else scalars.free_value)
    )


def _wanted(name: str) -> str:
    if name in WHOLE:
        return "a whole number"
    wanted = {
        "cores_per_instance": 'a core count, "cube|vector" or all',
        "batched_h2d": "true or false",
        "max_queue_delay": "a duration such as 2ms",
    }
    return wanted.get(name, "a value")
