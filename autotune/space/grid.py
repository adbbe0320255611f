"""Walking the combinations of a space: lazily, leaving a branch as soon as a rule is broken."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from autotune.core.errors import UsageError
from autotune.core.records import Scalar
from autotune.space.rules import CORE_PARTS, Rule

if TYPE_CHECKING:
    from autotune.space.search_space import Parameter

MAX_STEPS = 1_000_000  # values tried before a question about the whole grid is given up

Values = dict[str, Scalar]
Facts = Mapping[str, int]


class _Steps:
    """Counts values tried, so that no walk is endless."""

    def __init__(self, limit: int | None) -> None:
        self._left = limit

    def take(self) -> None:
        if self._left is None:
            return
        self._left -= 1
        if self._left < 0:
            raise UsageError(
                f"the rules allow too little: {MAX_STEPS} combinations were tried; "
                "narrow the parameters"
            )


class Scale:
    """Distances along one parameter: steps for what is ordered, 1 for any other change."""

    def __init__(self, parameter: Parameter) -> None:
        self.name = parameter.name
        self._index = {choice: i for i, choice in enumerate(parameter.choices)}
        self._is_ordered = parameter.is_numeric

    def distance(self, one: Mapping[str, Scalar], other: Mapping[str, Scalar]) -> float:
        if one[self.name] == other[self.name]:
            return 0.0
        if not self._is_ordered:
            return 1.0
        steps = abs(self._index[one[self.name]] - self._index[other[self.name]])
        return steps / max(1, len(self._index) - 1)


def walk(params: Sequence[Parameter], rules: Sequence[Rule], facts: Facts) -> Iterator[Values]:
    """The allowed combinations, the last parameter varying fastest."""
    yield from _walk(params, rules, facts, _Steps(None))


def count(params: Sequence[Parameter], rules: Sequence[Rule], facts: Facts, limit: int) -> int:
    """Allowed combinations, at most `limit`.

    Parameters that no rule ties together are counted apart and multiplied.

    Raises:
        UsageError: Nothing allowed was found within `MAX_STEPS`.
    """
    steps, total = _Steps(MAX_STEPS), 1
    for part, tied in _independent(params, rules):
        found = 0
        try:
            for _ in _walk(part, tied, facts, steps):
                found += 1
                if found >= limit:
                    break
        except UsageError:
            if not found:
                raise
        total *= found
        if total == 0:
            return 0
    return min(total, limit)


def nearest(
    params: Sequence[Parameter], rules: Sequence[Rule], facts: Facts, values: Values
) -> Values:
    """The allowed combination nearest to `values`; only parameters of broken rules move.

    Raises:
        UsageError: Nothing is allowed, or it was not found within `MAX_STEPS`.
    """
    result, steps = dict(values), _Steps(MAX_STEPS)
    for part, tied in _independent(params, rules):
        if all(rule.holds(values, facts) for rule in tied):
            continue
        scales = [Scale(p) for p in part]
        best: tuple[float, Values] | None = None
        for found in _walk(part, tied, facts, steps):
            distance = sum(scale.distance(values, found) for scale in scales)
            if best is None or distance < best[0]:
                best = (distance, found)
        if best is None:
            raise UsageError(f"no combination keeps the rule '{tied[0].text}'")
        result.update(best[1])
    return result


def _walk(
    params: Sequence[Parameter], rules: Sequence[Rule], facts: Facts, steps: _Steps
) -> Iterator[Values]:
    names = [p.name for p in params]
    due: list[list[Rule]] = [[] for _ in range(len(params) + 1)]
    for rule in rules:
        due[max((names.index(n) + 1 for n in _tied(rule) if n in names), default=0)].append(rule)
    values: Values = {}

    def descend(depth: int) -> Iterator[Values]:
        if not all(rule.holds(values, facts) for rule in due[depth]):
            return
        if depth == len(params):
            yield dict(values)
            return
        for choice in params[depth].choices:
            steps.take()
            values[names[depth]] = choice
            yield from descend(depth + 1)
        values.pop(names[depth], None)

    yield from descend(0)


def _independent(
    params: Sequence[Parameter], rules: Sequence[Rule]
) -> list[tuple[list[Parameter], list[Rule]]]:
    """The parameters in groups that no rule ties together, each with its rules."""
    group_of = {p.name: i for i, p in enumerate(params)}
    for rule in rules:
        tied = {group_of[n] for n in _tied(rule) if n in group_of}
        for name, group in group_of.items():
            if group in tied:
                group_of[name] = min(tied)
    groups: dict[int, tuple[list[Parameter], list[Rule]]] = {}
    for parameter in params:
        groups.setdefault(group_of[parameter.name], ([], []))[0].append(parameter)
    constant: list[Rule] = []
    for rule in rules:
        home = next((group_of[n] for n in _tied(rule) if n in group_of), None)
        (constant if home is None else groups[home][1]).append(rule)
    return [([], constant), *groups.values()] if constant else list(groups.values())


def _tied(rule: Rule) -> frozenset[str]:
    """The parameters a rule reads, the core split behind cube_per_instance included."""
    if rule.names.intersection(CORE_PARTS):
        return rule.names | {"cores_per_instance"}
    return rule.names
