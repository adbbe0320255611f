"""From a space file to a `SearchSpace`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path as FilePath
from typing import TypeVar

from pydantic import ValidationError

from autotune.core.errors import UsageError
from autotune.core.objective import METRICS, Limit, Objective
from autotune.core.records import Config, Load, WorkloadSpec
from autotune.core.text import without_secrets
from autotune.space import command, pipelines, runtimes, sections, strict_yaml
from autotune.space import overrides as overriding
from autotune.space.parameters import (
    NO_READERS,
    Readers,
    Refused,
    read_parameters,
    with_defaults,
)
from autotune.space.rules import Rule
from autotune.space.schema import SpaceFile, problems
from autotune.space.search_space import (
    Budget,
    Parameter,
    SearchSpace,
    Source,
    settled,
)
from autotune.space.shipped import find_shipped, load_objective, shipped_dir
from autotune.space.strict_yaml import Node, Path

MAX_PROBLEMS = 5  # shown at once

T = TypeVar("T")


def load_space(path_or_name: str | FilePath, overrides: Sequence[str] = ()) -> SearchSpace:
    """Read a space file, fill in its defaults and check all that needs no device.

    Args:
        path_or_name: A path, or the name of a file in ./search_spaces or shipped with the package.
        overrides: "key.path=value", laid over the file; null takes a key out.
    Raises:
        UsageError: One line per fault: file, line, key path, value, what is allowed.
    """
    file = find_shipped("search_spaces", path_or_name)
    try:
        data = _read(file)
    except OSError as error:
        raise UsageError(f"{file}: cannot be read ({error.strerror})") from None
    return _loaded(data, file.resolve(), str(file), overrides)


def load_text(text: str, path: str, overrides: Sequence[str] = ()) -> SearchSpace:
    """A space from a text that was kept, with relative paths as seen from where its file was.

    Args:
        path: The file's path or shipped name; it need not be there any more.
    Raises:
        UsageError: As of `load_space`.
    """
    try:
        file = find_shipped("search_spaces", path)
    except UsageError:
        file = FilePath(path)
    return _loaded(text.encode(), file.resolve(), f"{path} as it was kept", overrides)


def _loaded(data: bytes, file: FilePath, shown: str, overrides: Sequence[str]) -> SearchSpace:
    root = strict_yaml.parse(data, shown)
    if not isinstance(root.value, dict):
        found = strict_yaml.kind_of(root)
        raise UsageError(
            f"{root.place}: expected a mapping of keys such as workload, found {found}"
        )
    root = overriding.apply(root, overrides)
    text = strict_yaml.dump(root) + "\n" if overrides else data.decode("utf-8-sig")
    # It is kept with the study and shown in its report: a password of the storage is not.
    return _Resolver(root, file).space(Source(path=str(file), text=without_secrets(text)))


def _read(file: FilePath) -> bytes:
    with file.open("rb") as stream:
        return stream.read(strict_yaml.MAX_BYTES + 1)


class _Resolver:
    """Turns the tree of one file into values; every refusal gets its place."""

    def __init__(self, root: Node, file: FilePath) -> None:
        self._root = root
        self._path = file
        # A shipped file stands where the user has nothing: its paths are of the working directory.
        is_shipped = file.parent == shipped_dir("search_spaces").resolve()
        self._base_dir = FilePath.cwd() if is_shipped else file.parent
        self._file = self._checked()

    def space(self, source: Source) -> SearchSpace:
        spec = self._placed(("workload",), self._workload)
        is_replay = spec.kind == "replay"
        params = self._placed(("params",), lambda: self._params(spec))
        objective = self._objective()
        params, notes = _without_queue_delay(params, objective.load)
        params, ties, left_out = runtimes.fitted(params, spec)
        spec = replace(spec, kind=runtimes.runtimes_of(params, spec)[0])
        notes = (*notes, *left_out)
        if command.words_of(spec):
            self._placed(("workload",), lambda: sections.check_placeholders(spec, params))
        every = params if is_replay else with_defaults(params)
        file = self._file
        space = SearchSpace(
            study=self._placed(("study",), lambda: sections.study_name(file.study, self._path)),
            workload=spec,
            device=file.device,
            objective=objective,
            params=every,
            rules=(
                *self._rules(every, is_replay=is_replay, cuts=_cuts_batches(spec, params)),
                *ties,
            ),
            wanted_baseline=self._baseline(every, is_open=is_replay),
            budget=Budget(
                trials=file.budget.trials, time_s=file.budget.time, gain=file.budget.gain
            ),
            trial=self._placed(("trial",), lambda: sections.trial(file.trial)),
            sampler=file.sampler,
            warm_start=file.warm_start,
            confirm=self._placed(("confirm",), lambda: sections.confirm(file.confirm)),
            storage=file.storage,
            notes=notes,
            source=source,
        )
        return space if is_replay else self._placed(("rules",), lambda: settled(space))

    def _checked(self) -> SpaceFile:
        try:
            return SpaceFile.model_validate(self._root)
        except ValidationError as error:
            found = problems(error)
        lines = [self._message(path, message) for path, message in found[:MAX_PROBLEMS]]
        if len(found) > MAX_PROBLEMS:
            lines.append(f"and {len(found) - MAX_PROBLEMS} more")
        raise UsageError("\n".join(lines))

    def _workload(self) -> WorkloadSpec:
        section = self._file.workload
        key = "replay" if section.replay is not None else "model"
        return sections.workload(section, self._base_dir, self._dir_of(("workload", key)))

    def _params(self, spec: WorkloadSpec) -> tuple[Parameter, ...]:
        if self._file.params is None:
            return ()
        if spec.kind == "replay":
            return read_parameters(self._file.params, None)
        words = command.words_of(spec)
        if not words:
            params = read_parameters(self._file.params, further=self._further())
            pipelines.check(params, spec)
            return params
        facts = command.facts_of(spec)
        return read_parameters(
            self._file.params, [n for n in command.placeholders(words) if n not in facts]
        )

    def _objective(self) -> Objective:
        file = self._file
        own: tuple[Limit, ...] = ()
        if file.limits is not None:
            node = file.limits
            own = self._placed(("limits",), lambda: sections.limits(node))
        has_latency = any(METRICS[limit.metric].field.startswith("latency_") for limit in own)
        default = "online_latency" if has_latency else "offline_throughput"
        name, where = file.objective or default, self._dir_of(("objective",))
        objective = self._placed(("objective",), lambda: load_objective(name, where))
        if file.goals is not None:
            wanted, is_default = file.goals, file.objective is None
            objective = self._placed(
                ("goals",),
                lambda: sections.with_goals(objective, wanted, is_default=is_default),
            )
        if file.load is not None:
            section, load_dir = file.load, self._dir_of(("load", "trace"))
            arrivals = self._placed(("load",), lambda: sections.load(section, load_dir))
            objective = replace(objective, load=arrivals)
        key = "limits" if file.limits is not None else "objective"
        bounds = self._placed((key,), lambda: sections.with_limits(objective, own))
        has_tail = any(METRICS[limit.metric].quantile is not None for limit in bounds)
        if objective.load.seeks_rate and not has_tail:
            raise UsageError(
                self._message(
                    ("load",), "rate: max needs a limit on a latency quantile, such as latency_p99"
                )
            )
        return replace(objective, limits=bounds)

    def _rules(
        self, params: tuple[Parameter, ...], *, is_replay: bool, cuts: bool
    ) -> tuple[Rule, ...]:
        texts = self._file.rules
        rules = self._placed(("rules",), lambda: sections.rules(texts, params, is_open=is_replay))
        return _with_divisibility(rules, params) if cuts else rules

    def _baseline(self, params: tuple[Parameter, ...], *, is_open: bool) -> Config:
        node = self._file.baseline
        further = self._further()
        return self._placed(
            ("baseline",), lambda: sections.baseline(node, params, further, is_open=is_open)
        )

    def _further(self) -> Readers:
        """Readers of the parameters that only a model has."""
        if self._file.workload.model is None:
            return NO_READERS
        return {**runtimes.READERS, **pipelines.READERS}

    def _dir_of(self, path: Path) -> FilePath:
        """What a relative path in the value at `path` is relative to."""
        is_override = self._root.at(path).place.startswith(overriding.OVERRIDE)
        return FilePath.cwd() if is_override else self._base_dir

    def _placed(self, path: Path, make: Callable[[], T]) -> T:
        try:
            return make()
        except Refused as error:
            raise UsageError(self._message((*path, *error.path), str(error))) from None
        except (ValueError, UsageError) as error:
            raise UsageError(self._message(path, str(error))) from None

    def _message(self, path: Path, message: str) -> str:
        place, key = self._root.place_of(path), key_path(path)
        if place == f"{overriding.OVERRIDE}{key}" or not key:
            return f"{place}: {message}"
        return f"{place}: {key}: {message}"


def key_path(path: Path) -> str:
    """As a user writes it: params.batch_size[2]."""
    steps = (f"[{s}]" if isinstance(s, int) else f".{strict_yaml.shown(s)}" for s in path)
    return "".join(steps).lstrip(".")


def _cuts_batches(spec: WorkloadSpec, named: tuple[Parameter, ...]) -> bool:
    """True if micro-batches have to divide the batch: not of recorded rows, nor of a program
    whose batch the file does not know."""
    knows = any(p.name in ("batch_size", "global_batch_size") for p in named)
    return spec.kind != "replay" and (knows or not command.words_of(spec))


def _with_divisibility(rules: tuple[Rule, ...], params: tuple[Parameter, ...]) -> tuple[Rule, ...]:
    names = [p.name for p in params]
    whole = "global_batch_size" if "global_batch_size" in names else "batch_size"
    rule = Rule(text=f"{whole} % micro_batch_count == 0")
    return rules if rule in rules else (*rules, rule)


def _without_queue_delay(
    params: tuple[Parameter, ...], load: Load
) -> tuple[tuple[Parameter, ...], tuple[str, ...]]:
    """Calls back to back have no queue, a delay would only multiply equal configurations."""
    left = tuple(p for p in params if p.name != "max_queue_delay")
    if load.is_queued or len(left) == len(params):
        return params, ()
    return left, ("max_queue_delay left out: a closed load without clients has no queue",)
