"""Rules of a space file: whitelisted arithmetic, parsed and walked, never evaluated by Python.

A rule is a condition over parameters and device facts: numbers, + - * / // %, comparisons (also
chained), and/or/not, parentheses, `in (…)`, and text for ==, != and in. `all` as a core split
counts as the whole of core_count. A rule that divides by zero is broken; one that needs a fact
not known yet (the device has not been asked) holds.
"""

from __future__ import annotations

import ast
import functools
import operator
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Union

from autotune.core.errors import UsageError
from autotune.core.pipeline import PARAMETERS
from autotune.core.records import Scalar

MAX_RULE_CHARS = 500
MAX_RULE_DEPTH = 30

DEVICE_FACTS = ("core_count", "cube_count", "vector_count")
CORE_PARTS = ("cube_per_instance", "vector_per_instance")

DEFAULTS: dict[str, Scalar] = {
    "batch_size": 1,
    "instance_count": 1,
    "cores_per_instance": "all",
    "batched_h2d": False,
    "micro_batch_count": 1,
    "max_queue_delay": 0.0,
    "instance_mode": "process",
    "device_count": 1,
}
"""What a parameter is when the space does not have it."""

Term = Union[Scalar, "tuple[Scalar, ...]"]
Env = tuple[Mapping[str, Scalar], Mapping[str, int]]
Evaluate = Callable[[Env], Any]


class _UnknownFactError(Exception):
    """The rule needs a device fact that is not known yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A condition that every configuration must meet.

    Raises:
        UsageError: When made from text that is not a rule.
    """

    text: str

    def __post_init__(self) -> None:
        _compiled(self.text)

    @property
    def names(self) -> frozenset[str]:
        """The parameters and facts the rule speaks of."""
        return _compiled(self.text)[1]

    def missing_facts(self, facts: Mapping[str, int]) -> tuple[str, ...]:
        """Device facts the rule needs that `facts` does not have."""
        return tuple(sorted(n for n in self.names if n in DEVICE_FACTS and n not in facts))

    def holds(self, values: Mapping[str, Scalar], facts: Mapping[str, int]) -> bool:
        """Evaluate the rule for one configuration on one device.

        Raises:
            UsageError: Text was compared with, or reckoned as, a number.
        """
        try:
            return bool(_compiled(self.text)[0]((values, facts)))
        except _UnknownFactError:
            return True
        except ZeroDivisionError:
            return False


class _RefusedError(ValueError):
    """Not a rule; the message says why."""


@functools.lru_cache(maxsize=1024)
def _compiled(text: str) -> tuple[Evaluate, frozenset[str]]:
    try:
        if len(text) > MAX_RULE_CHARS:
            raise _RefusedError(f"longer than {MAX_RULE_CHARS} characters")
        tree = _parse(text)
        names: set[str] = set()
        return _condition(tree.body, names, 0, text), frozenset(names)
    except _RefusedError as error:
        shown = text if len(text) <= 80 else text[:79] + "…"
        raise UsageError(f"rule '{shown}': {error}") from None


def _parse(text: str) -> ast.Expression:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.parse(text.strip(), mode="eval")
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise _RefusedError(f"cannot be read ({getattr(error, 'msg', 'too deep')})") from None


_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_ORDER: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_EQUALITY: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.In: lambda left, right: left in right,
    ast.NotIn: lambda left, right: left not in right,
}


def _condition(node: ast.expr, names: set[str], depth: int, text: str) -> Evaluate:
    """A part that must be true or false."""
    if depth > MAX_RULE_DEPTH:
        raise _RefusedError(f"nested more than {MAX_RULE_DEPTH} deep")
    if isinstance(node, ast.BoolOp):
        parts = [_condition(part, names, depth + 1, text) for part in node.values]
        if isinstance(node.op, ast.And):
            return lambda env: _all_hold(parts, env)
        return lambda env: _any_holds(parts, env)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        part = _condition(node.operand, names, depth + 1, text)
        return lambda env: not part(env)
    if isinstance(node, ast.Compare):
        return _comparison(node, names, depth + 1, text)
    if isinstance(node, (ast.Name, ast.Attribute)) or _is_truth(node):
        value = _value(node, names, depth + 1, text, raw=True)
        return lambda env: _truth(value(env), text)
    raise _RefusedError(f"'{_source(node)}' is not a condition; compare it with something")


def _all_hold(parts: list[Evaluate], env: Env) -> bool:
    return all(part(env) for part in parts)


def _any_holds(parts: list[Evaluate], env: Env) -> bool:
    return any(part(env) for part in parts)


def _comparison(node: ast.Compare, names: set[str], depth: int, text: str) -> Evaluate:
    terms = [node.left, *node.comparators]
    steps = []
    for left, op, right in zip(terms, node.ops, terms[1:]):  # noqa: B905 (one shorter on purpose)
        if type(op) not in _EQUALITY and type(op) not in _ORDER:
            raise _RefusedError("'is' is not allowed; use ==")
        raw = type(op) in _EQUALITY and (_has_text(left) or _has_text(right))
        if isinstance(op, (ast.In, ast.NotIn)) and not isinstance(right, (ast.Tuple, ast.List)):
            raise _RefusedError("'in' needs a list of values such as in (1, 2)")
        sides = (_value(left, names, depth, text, raw), _value(right, names, depth, text, raw))
        steps.append((*sides, _EQUALITY.get(type(op)) or _ordered(_ORDER[type(op)], text)))
    return lambda env: all(compare(left(env), right(env)) for left, right, compare in steps)


def _ordered(compare: Callable[[Any, Any], bool], text: str) -> Callable[[Any, Any], bool]:
    return lambda left, right: compare(_numeric(left, text), _numeric(right, text))


def _value(node: ast.expr, names: set[str], depth: int, text: str, raw: bool) -> Evaluate:
    """A number, text, name or arithmetic. `raw`: core splits as written, for text compares."""
    if depth > MAX_RULE_DEPTH:
        raise _RefusedError(f"nested more than {MAX_RULE_DEPTH} deep")
    if isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float, str)):
        constant = node.value
        return lambda env: constant
    if isinstance(node, (ast.Tuple, ast.List)):
        items = [_value(item, names, depth + 1, text, raw) for item in node.elts]
        return lambda env: tuple(item(env) for item in items)
    if isinstance(node, (ast.Name, ast.Attribute)):
        return _name(_dotted(node), names, raw, text)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        operand = _value(node.operand, names, depth + 1, text, False)
        sign = -1 if isinstance(node.op, ast.USub) else 1
        return lambda env: sign * _numeric(operand(env), text)
    if isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        left = _value(node.left, names, depth + 1, text, False)
        right = _value(node.right, names, depth + 1, text, False)
        reckon = _ARITHMETIC[type(node.op)]
        return lambda env: reckon(_numeric(left(env), text), _numeric(right(env), text))
    raise _RefusedError(
        f"'{_source(node)}' is not allowed; rules have numbers, names, + - * / // %"
    )


def _name(name: str, names: set[str], raw: bool, text: str) -> Evaluate:
    if name in ("true", "false"):
        return lambda env: name == "true"
    names.add(name)
    if name in DEVICE_FACTS:
        return lambda env: _fact(name, env)
    if name in CORE_PARTS:
        return lambda env: _core_part(CORE_PARTS.index(name), env)
    if name == "cores_per_instance" and not raw:
        return lambda env: _cores(env)
    return lambda env: _parameter(name, env, text)


def _parameter(name: str, env: Env, text: str) -> Scalar:
    value = env[0].get(name, DEFAULTS.get(name, PARAMETERS.get(name)))
    if value is None:
        raise UsageError(f"rule '{text}': this configuration has no '{name}'")
    return value


def _fact(name: str, env: Env) -> int:
    if name not in env[1]:
        raise _UnknownFactError(name)
    return env[1][name]


def _cores(env: Env) -> Scalar:
    value = env[0].get("cores_per_instance", "all")
    return _fact("core_count", env) if value == "all" else value


def _core_part(index: int, env: Env) -> int:
    """The cube (0) or vector (1) cores of one instance: of "8|16", of "all", of a plain count."""
    value = env[0].get("cores_per_instance", "all")
    if value == "all":
        return _fact(("cube_count", "vector_count")[index], env)
    return int(str(value).split("|")[index]) if "|" in str(value) else int(value)


def _numeric(value: Any, text: str) -> Any:
    if isinstance(value, (int, float)):
        return value
    raise UsageError(f"rule '{text}': '{value}' is not a number")


def _truth(value: Any, text: str) -> bool:
    if isinstance(value, bool):
        return value
    raise UsageError(f"rule '{text}': '{value}' is not true or false; compare it with something")


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return f"{node.value.id}.{node.attr}"
    raise _RefusedError(f"'{_source(node)}' is not a name")


def _is_truth(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, bool)


def _has_text(node: ast.expr) -> bool:
    if isinstance(node, (ast.Tuple, ast.List)):
        return any(_has_text(item) for item in node.elts)
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _source(node: ast.expr) -> str:
    text = ast.unparse(node)
    return text if len(text) <= 40 else text[:39] + "…"
