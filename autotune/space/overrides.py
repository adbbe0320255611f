"""`--set key.path=value`: values laid over the file before anything is checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autotune.core.errors import UsageError
from autotune.space.strict_yaml import Node, parse, shown

OVERRIDE = "--set "
_RANGE_KEYS = ("low", "high", "step", "log")


def apply(root: Node, overrides: Sequence[str]) -> Node:
    """The tree with every "key.path=value" set; `null` takes a key out.

    Raises:
        UsageError: Not of that form, the value is not YAML, or the path leads into a list.
    """
    for override in overrides:
        key, equals, written = override.partition("=")
        key = key.strip()
        if not equals or not key:
            raise UsageError(f"{OVERRIDE}{shown(override)}: write key.path=value")
        place = f"{OVERRIDE}{shown(key)}"
        if not written.strip():
            raise UsageError(f"{place}: no value after '='; null takes a key out")
        root = _set(root, split_path(key), parse(written, place, is_override=True), place)
    return root


def split_path(key: str) -> list[str]:
    """The keys of a path; parameter names such as `env.NAME` are one key."""
    head, dot, rest = key.partition(".")
    if not dot or head not in ("params", "baseline"):
        return key.split(".")
    name, _, last = rest.rpartition(".")
    if head == "params" and last in _RANGE_KEYS and name not in ("", "env"):
        return [head, name, last]
    return [head, rest]


def _set(node: Node, path: list[str], value: Node, place: str) -> Node:
    key, rest = path[0], path[1:]
    if not key:
        raise UsageError(f"{place}: an empty key in the path")
    is_new = not isinstance(node.value, dict)
    entries = dict(node.value) if isinstance(node.value, dict) else {}
    places = dict(node.key_places or {})
    if rest:
        below = entries.get(key, Node({}, place))
        if isinstance(below.value, list) and rest[0] not in _RANGE_KEYS:
            raise UsageError(f"{place}: cannot reach into a list; give the whole list")
        value = _set(below, rest, value, place)
    if value.value is None:
        entries.pop(key, None)
    else:
        places[key] = places.get(key, place) if rest else place
        entries[key] = value
    where = place if is_new else node.place
    return replace(node, value=entries, place=where, is_plain=False, key_places=places)
