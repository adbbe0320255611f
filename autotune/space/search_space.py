"""A study's space file, resolved: what is searched, for what, and within which budget."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from autotune.core.errors import UsageError
from autotune.core.objective import Objective
from autotune.core.records import DIMENSIONS, Config, Scalar, WorkloadSpec
from autotune.space import grid
from autotune.space.rules import DEFAULTS, Rule

SPLIT_FORMS = ("count", "cube|vector")
"""How a core split can be written, beside "all"."""

MAX_SHOWN = 8  # choices of a parameter in a message

LOG_PARAMETERS = ("batch_size", "global_batch_size")
"""Parameters of which ratios count however they are written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """One dimension of the search.

    Attributes:
        choices: Its values, distinct; numbers ascending, anything else as written.
        log: Ratios count, not differences (batch sizes).
        auto: The choices are to come from the device.
    """

    name: str
    choices: tuple[Scalar, ...]
    log: bool = False
    auto: bool = False

    @property
    def is_numeric(self) -> bool:
        """True if every choice is a number, so that order and distance mean something."""
        return all(_is_number(c) for c in self.choices)

    def nearest(self, value: Scalar) -> Scalar:
        """The choice nearest to `value`; the lower of two, the first where nothing is near."""
        if value in self.choices and not _same_but_type(value, self.choices):
            return value
        numbers = [float(c) for c in self.choices if _is_number(c)]
        if not _is_number(value) or not numbers:
            return self.choices[0]
        target = float(value)
        log = self.log and target > 0 and min(numbers) > 0

        def distance(choice: Scalar) -> float:
            if not _is_number(choice):
                return math.inf
            return abs(math.log(float(choice) / target)) if log else abs(float(choice) - target)

        return min(self.choices, key=distance)


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Trials in total over all runs of the study; seconds of one run, confirmation included.

    Attributes:
        gain: No further trial is run once one more is expected to raise the recommendation by
            less than this share.
    """

    trials: int = 40
    time_s: float | None = None
    gain: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialOptions:
    """One trial's window (a duration, or a number of calls) and its hard limit.

    Attributes:
        check_outputs: Refuse a configuration whose outputs are not the baseline's.
    """

    duration_s: float | None = 2.0
    iterations: int | None = None
    timeout_s: float = 60.0
    seed: int = 0
    check_outputs: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirm:
    """How the best are proven; `duration_s` is the least time measured per configuration."""

    top: int = 3
    duration_s: float = 20.0
    alpha: float = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where the space came from: the file, and its text with overrides applied."""

    path: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpace:
    """Everything a space file says, defaults filled in.

    Attributes:
        params: Every parameter, fixed ones with a single choice included; for a replay only
            those that the file names, until `on_grid` adds the recorded ones.
        baseline: What the gain is measured against; always a configuration of the space once
            device or grid are known.
        wanted_baseline: The baseline as the file has it, before it was fitted into the space.
        warm_start: Whether an earlier study of the same model and device may advise the search.
        confirm: None: skip it.
        facts: Names the rules may use that come from the device (core_count, ...).
        rows: A replay's recorded configurations, to which the space is confined.
        notes: What was changed on the way here, as sentences for the user.
    """

    study: str
    workload: WorkloadSpec
    device: str
    objective: Objective
    params: tuple[Parameter, ...]
    rules: tuple[Rule, ...] = ()
    baseline: Config = Config()
    wanted_baseline: Config = Config()
    budget: Budget = Budget()
    trial: TrialOptions = TrialOptions()
    sampler: str = "auto"
    warm_start: bool = True
    confirm: Confirm | None = Confirm()
    storage: str = "journal"
    facts: Mapping[str, int] = field(default_factory=dict)
    rows: frozenset[Config] | None = None
    notes: tuple[str, ...] = ()
    source: Source = Source()

    @property
    def searched(self) -> tuple[Parameter, ...]:
        """The parameters that have more than one choice."""
        return tuple(p for p in self.params if len(p.choices) > 1)

    @property
    def combination_count(self) -> int:
        """Combinations before the rules."""
        return math.prod(len(p.choices) for p in self.params)

    def parameter(self, name: str) -> Parameter | None:
        """The parameter of that name, None if the space has none."""
        return next((p for p in self.params if p.name == name), None)

    def contains(self, config: Config) -> bool:
        """True if every value is one of the choices and no rule forbids the configuration."""
        values = config.as_dict()
        return all(values.get(p.name) in p.choices for p in self.params) and self.allows(config)

    def allows(self, config: Config) -> bool:
        """True if no rule forbids the configuration and, in a replay, it was recorded."""
        is_recorded = self.rows is None or config in self.rows
        return is_recorded and self.broken_rule(config) is None

    def broken_rule(self, config: Config) -> Rule | None:
        """The first rule that the configuration breaks."""
        values = config.as_dict()
        return next((r for r in self.rules if not r.holds(values, self.facts)), None)

    def configs(self) -> Iterator[Config]:
        """All allowed configurations, the last parameter varying fastest."""
        if self.rows is not None:
            yield from self._recorded()
            return
        for values in grid.walk(self.params, self.rules, self.facts):
            yield Config.from_dict(values)

    def allowed_count(self, limit: int) -> int:
        """The number of allowed configurations, `limit` if there are at least so many."""
        if self.rows is not None:
            return min(limit, sum(1 for _ in self._recorded()))
        return grid.count(self.params, self.rules, self.facts, limit)

    def nearest_allowed(self, config: Config) -> Config:
        """The allowed configuration nearest to `config`, itself if it is allowed.

        Raises:
            UsageError: Nothing is allowed.
        """
        inside = _clipped(config, self.params)
        if self.rows is None:
            return Config.from_dict(grid.nearest(self.params, self.rules, self.facts, inside))
        steps = [grid.Scale(p) for p in self.params]
        recorded = [
            (sum(s.distance(inside, c.as_dict()) for s in steps), c) for c in self.configs()
        ]
        if not recorded:
            raise UsageError("no recorded configuration is left in the space")
        return min(recorded, key=lambda pair: pair[0])[1]

    def on_device(
        self,
        facts: Mapping[str, int],
        core_ladder: tuple[int | str, ...],
        rules: tuple[str, ...] = (),
        *,
        splits: tuple[str, ...] = SPLIT_FORMS,
        why_whole: str = "",
        device_count: int | None = None,
    ) -> SearchSpace:
        """The space with what only the device knows filled in; of a replay, the facts alone.

        Args:
            facts: core_count, cube_count, ... for the rules.
            core_ladder: The choices behind `cores_per_instance: auto`.
            rules: What the device itself demands of a configuration.
            splits: The forms of `cores_per_instance`, beside "all", that it understands.
            why_whole: Why it understands none.
            device_count: Devices of its kind that a trial can take; None: any number.
        Raises:
            UsageError: A rule needs a fact that this device does not have, or no choice is left.
        """
        known = {**self.facts, **facts}
        for rule in self.rules:
            if missing := rule.missing_facts(known):
                raise UsageError(
                    f"rule '{rule.text}' needs {', '.join(missing)}, "
                    f"which the device {self.device} does not have"
                )
        if self.workload.kind == "replay":  # recorded elsewhere: this device limits nothing
            space = replace(self, facts=known)
            return space if self.rows is None else settled(space)
        params = tuple(
            replace(p, choices=tuple(core_ladder), auto=False) if p.auto else p for p in self.params
        )
        params, missing_notes = _devices_here(params, device_count)
        fitted, notes = _usable_splits(params, known, splits, why_whole)
        asked = self.parameter("cores_per_instance")
        if asked is not None and asked.auto and not splits:
            notes = (f"cores_per_instance is not searched: {why_whole}",)
        space = replace(
            self,
            params=fitted,
            rules=(*self.rules, *(Rule(text=text) for text in rules)),
            facts=known,
            notes=(*self.notes, *missing_notes, *notes),
        )
        return settled(space)

    def on_grid(self, rows: Iterable[Config]) -> SearchSpace:
        """A replay's space: the recorded configurations, narrowed by what the file names.

        Raises:
            UsageError: The file names a parameter or only values that were not recorded.
        """
        recorded = frozenset(rows)
        if not recorded:
            raise UsageError("the grid has no rows")
        params, notes = _recorded_parameters(self.params, recorded)
        for name, _ in self.wanted_baseline.extra:
            if name not in {p.name for p in params}:
                raise UsageError(f"baseline.{name}: the grid has no such column")
        space = replace(self, params=params, rows=recorded, notes=(*self.notes, *notes))
        return settled(space)

    def _recorded(self) -> Iterator[Config]:
        assert self.rows is not None
        inside = [config for config in self.rows if self.contains(config)]
        places = {p.name: {c: i for i, c in enumerate(p.choices)} for p in self.params}
        return iter(sorted(inside, key=lambda c: [places[n][c.as_dict()[n]] for n in places]))


def check_not_empty(space: SearchSpace) -> None:
    """Refuse a space in which nothing can be tried.

    Rules whose device facts are not known yet count as holding.

    Raises:
        UsageError: No combination is left after the rules.
    """
    if space.allowed_count(1):
        return
    rules = "; ".join(rule.text for rule in space.rules)
    count = len(space.rows) if space.rows is not None else space.combination_count
    facts = ", ".join(f"{name}={value}" for name, value in sorted(space.facts.items()))
    where = f" with {facts}" if facts else ""
    named = {name for rule in space.rules for name in rule.names}
    params = [p for p in space.params if p.name in named and space.rows is None]
    values = "; ".join(
        f"{p.name} is {', '.join(map(str, p.choices[:MAX_SHOWN]))}"
        f"{', …' * (len(p.choices) > MAX_SHOWN)}"
        for p in params
    )
    raise UsageError(
        f"none of {count} combinations keeps the rules{where}: {rules or 'none'}"
        f"{' · ' * bool(values)}{values}"
    )


def settled(space: SearchSpace) -> SearchSpace:
    """The space, checked not to be empty, with its baseline fitted in.

    Raises:
        UsageError: No combination is left after the rules.
    """
    check_not_empty(space)
    return settle_baseline(space)


_FITTED = "the baseline was fitted into the space"


def settle_baseline(space: SearchSpace) -> SearchSpace:
    """Fit the wanted baseline into the space: nearest choices, then the nearest allowed."""
    wanted = _with_whole_split(space)
    values = wanted.as_dict()
    clipped = Config.from_dict(_clipped(wanted, space.params))
    baseline = clipped if space.allows(clipped) else space.nearest_allowed(clipped)
    settled = baseline.as_dict()
    changed = [
        f"{p.name}={values[p.name]} became {settled[p.name]}"
        for p in space.params
        if p.name in values and settled[p.name] != values[p.name]
    ]
    notes = tuple(note for note in space.notes if not note.startswith(_FITTED))
    if changed:
        notes = (*notes, f"{_FITTED}: {', '.join(changed)}")
    return replace(space, baseline=baseline, notes=notes)


def sorted_choices(values: Iterable[Scalar]) -> tuple[Scalar, ...]:
    """Numbers ascending, then anything else as it came; each once."""
    distinct = tuple(dict.fromkeys(values))
    numbers = sorted((v for v in distinct if _is_number(v)), key=float)
    return (*numbers, *(v for v in distinct if not _is_number(v)))


def _clipped(config: Config, params: tuple[Parameter, ...]) -> dict[str, Scalar]:
    """Per parameter the choice nearest to the configuration's value, or to the default."""
    values = {**DEFAULTS, **config.as_dict()}
    return {p.name: p.nearest(values.get(p.name, p.choices[0])) for p in params}


def _is_number(value: Scalar) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _same_but_type(value: Scalar, choices: tuple[Scalar, ...]) -> bool:
    return isinstance(value, bool) != isinstance(choices[0], bool)


def _with_whole_split(space: SearchSpace) -> Config:
    """The wanted baseline, "all" cores as their number where the space has numbers only."""
    wanted, split = space.wanted_baseline, space.parameter("cores_per_instance")
    if split is None or wanted.cores_per_instance != "all" or "all" in split.choices:
        return wanted
    numbers = [c for c in split.choices if _is_number(c)]
    if not numbers:
        return wanted
    return replace(wanted, cores_per_instance=space.facts.get("core_count", int(numbers[-1])))


def _usable_splits(
    params: tuple[Parameter, ...], facts: Mapping[str, int], forms: tuple[str, ...], why_whole: str
) -> tuple[tuple[Parameter, ...], tuple[str, ...]]:
    """Leave out core splits that not even one instance can have, and "all" beside its number.

    Where the device cannot be split the dimension goes: every instance has the whole.
    """
    split = next((p for p in params if p.name == "cores_per_instance"), None)
    core_count = facts.get("core_count")
    if split is None or core_count is None:
        return params, ()
    left_out = {c: _misfit(c, facts, forms) for c in split.choices}
    if core_count in split.choices and "all" in split.choices and not left_out[core_count]:
        left_out["all"] = f"the same as {core_count}"
    left = tuple(c for c in split.choices if not left_out[c])
    notes = [f"cores_per_instance {c} left out: {why}" for c, why in left_out.items() if why]
    if not forms and notes:
        left, notes = ("all",), [f"cores_per_instance is not searched: {why_whole}"]
    if not left:
        why = "; ".join(f"{c} is {why}" for c, why in left_out.items())
        raise UsageError(f"params.cores_per_instance: {why}")
    return tuple(replace(p, choices=left) if p is split else p for p in params), tuple(notes)


def _devices_here(
    params: tuple[Parameter, ...], count: int | None
) -> tuple[tuple[Parameter, ...], tuple[str, ...]]:
    """Leave out numbers of devices that this machine does not have."""
    wanted = next((p for p in params if p.name == "device_count"), None)
    if wanted is None or count is None:
        return params, ()
    left = tuple(c for c in wanted.choices if _is_number(c) and float(c) <= count)
    if not left:
        raise UsageError(f"params.device_count: {wanted.choices[0]} is above the {count} here")
    notes = [
        f"device_count {c} left out: above the {count} here" for c in wanted.choices[len(left) :]
    ]
    return tuple(replace(p, choices=left) if p is wanted else p for p in params), tuple(notes)


def _misfit(choice: Scalar, facts: Mapping[str, int], forms: tuple[str, ...]) -> str:
    """Why a core split cannot be had on a device, empty if it can."""
    if choice == "all":
        return ""
    if _is_number(choice):
        if "count" not in forms:
            return "not how this device is split" + _hint(forms)
        too_many = float(choice) > facts["core_count"]
        return f"above the {facts['core_count']} cores here" if too_many else ""
    if "cube|vector" not in forms:
        return "not how this device is split" + _hint(forms)
    cube, vector = (int(part) for part in str(choice).split("|"))
    here = facts.get("cube_count", cube), facts.get("vector_count", vector)
    fits = cube <= here[0] and vector <= here[1]
    return "" if fits else f"above the {here[0]}|{here[1]} cores here"


def _hint(forms: tuple[str, ...]) -> str:
    examples = {"count": "a count", "cube|vector": '"cube|vector"'}
    return f" (write {' or '.join(examples[form] for form in forms)})" if forms else ""


def _recorded_parameters(
    named: tuple[Parameter, ...], rows: frozenset[Config]
) -> tuple[tuple[Parameter, ...], tuple[str, ...]]:
    columns: dict[str, list[Scalar]] = {}
    for config in rows:
        for name, value in config.as_dict().items():
            columns.setdefault(name, []).append(value)
    by_name = {p.name: p for p in named if not p.auto}
    if unknown := [n for n in by_name if n not in columns]:
        raise UsageError(f"params.{unknown[0]}: the grid has no such column; {', '.join(columns)}")
    params: list[Parameter] = []
    notes: list[str] = []
    for name in (*DIMENSIONS, *sorted(set(columns) - set(DIMENSIONS))):
        recorded = sorted_choices(sorted(columns[name], key=str))
        wanted = by_name[name].choices if name in by_name else recorded
        choices = tuple(c for c in wanted if c in recorded)
        if not choices:
            raise UsageError(f"params.{name}: none of {wanted} was recorded; {recorded[:8]}")
        if left_out := [str(c) for c in wanted if c not in choices]:
            notes.append(f"{name} {', '.join(left_out)} left out: not recorded in the grid")
        params.append(Parameter(name=name, choices=choices, log=name in LOG_PARAMETERS))
    return tuple(params), tuple(notes)
