"""From a space file's content to what can be run on this machine."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from autotune.apps.layouts import layout_rules, refusal
from autotune.apps.replicas import with_replicas
from autotune.apps.store import without_password
from autotune.apps.view import View
from autotune.core.errors import TrialError, UsageError
from autotune.core.objective import METRICS, Objective
from autotune.core.pipeline import NOT_OF_PIPELINES
from autotune.core.records import Config, Load, Plan, Window
from autotune.core.units import format_duration
from autotune.devices import find_device, find_devices
from autotune.devices.base import DeviceInfo
from autotune.measure.arrivals import check_load
from autotune.measure.enough import Enough, enough
from autotune.measure.judge import SEARCH_ALPHA
from autotune.measure.rate import proof_range_s
from autotune.measure.summary import summarise
from autotune.results.study_result import Origin, StudyFacts
from autotune.results.words import config_text, limit_text, quoted, value_text
from autotune.search.knee_search import check_knee
from autotune.search.sampler import chosen
from autotune.space.rules import Rule
from autotune.space.runtimes import RUNTIME, runtimes_of, workloads_of
from autotune.space.search_space import SearchSpace
from autotune.space.shipped import shipped_dir
from autotune.trial.group import group_spec
from autotune.trial.rate_search import tail_limits
from autotune.trial.session import Launcher, open_session
from autotune.version import __version__
from autotune.workloads import (
    WORKLOADS,
    check_workload,
    command,
    needs_preparing,
    prepare_workload,
    workload_limits,
)
from autotune.workloads.grid import Grid, read_grid

ORIGINS: dict[str, Origin] = {"replay": "replayed", "simulated": "simulated"}
"""Kinds of workloads whose figures are not measured here."""

LOOK = Plan(windows=(Window(duration_s=0.1),))
"""A few calls, for a first idea of how long one takes."""

_TOOLS = ("optuna", "numpy", "scipy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """A space with everything filled in that only this machine knows.

    Attributes:
        origin: Whether its figures are measured, replayed or simulated.
    """

    space: SearchSpace
    info: DeviceInfo
    origin: Origin


def resolve(space: SearchSpace) -> Resolved:
    """Find the device, check the workload, fill in what depends on them.

    Raises:
        UsageError: Device, workload or rules do not fit. UnavailableError: Something is missing.
    """
    kind = space.workload.kind
    space = _on_model(space)
    if space.objective.load.is_queued and WORKLOADS[kind].runs in ("report", "program"):
        raise UsageError(
            f"load.{space.objective.load.kind}: {kind} hands over figures, and nothing arrives; "
            "write load: {closed: {}}"
        )
    if space.objective.load.is_queued and WORKLOADS[kind].runs == "ranks":
        raise UsageError(
            f"load.{space.objective.load.kind}: a pipeline runs step after step, and nothing "
            "arrives; write load: {closed: {}}"
        )
    if space.objective.knee_share is not None and WORKLOADS[kind].runs == "ranks":
        raise UsageError(
            "objective knee is of batch_size, which a pipeline does not have; write objective: "
            "pipeline_training with several global_batch_size, and see its report's curves"
        )
    if WORKLOADS[kind].runs == "server" and not space.objective.load.is_queued:
        raise UsageError(
            "load: a server has to be told how requests come: {closed: {clients: 16}}, "
            "{poisson: {rate: max}} with a limit on a latency, or {poisson: {rate: 50/s}}"
        )
    check_load(space.objective.load, space.trial.duration_s)
    _check_series(space)
    on_virtual_clock = WORKLOADS[kind].runs == "virtual" or kind in ORIGINS
    name = "simulated" if on_virtual_clock and space.device == "auto" else space.device
    info = find_device(name)
    if kind == "replay":
        grid = read_grid(space.workload.model)
        _check_columns(grid, space.objective)
        space = space.on_grid(grid.rows)
    if WORKLOADS[kind].is_outside:
        _check_placeholders(space)
    if kind == "command":
        space = _with_existing_files(space)
    rules = info.rules if WORKLOADS[kind].runs == "child" else ()
    if WORKLOADS[kind].runs == "ranks":
        if ":" in name:  # without numbers the others may be somebody else's
            space = with_replicas(space, len(find_devices(name)))
        rules = layout_rules(space, info)
    counts_devices = WORKLOADS[kind].runs in ("child", "virtual")
    space = space.on_device(
        info.facts,
        info.core_ladder,
        rules,
        splits=info.splits,
        why_whole=info.why_whole,
        device_count=1 + len(info.peers) if counts_devices else None,
    )
    space = replace(space, device=info.name)
    space = replace(space, notes=(*space.notes, *_limits_notes(space.objective)))
    if space.objective.knee_share is not None:
        check_knee(space)
    return Resolved(space=space, info=info, origin=ORIGINS.get(kind, "measured"))


def _check_series(space: SearchSpace) -> None:
    """Refuse limits and goals on what only streamed answers have."""
    if WORKLOADS[space.workload.kind].is_outside:
        return
    limited = [limit.metric for limit in space.objective.limits]
    for name in (*limited, *(goal.metric for goal in space.objective.goals)):
        if METRICS[name].series != "latency":
            raise UsageError(f"{name} is of streamed answers: it needs workload.server")


def _limits_notes(objective: Objective) -> Iterator[str]:
    """A word where a rate is sought under a limit on a latency that does not choose it."""
    if not objective.load.seeks_rate:
        return
    tails = tail_limits(objective)
    others = [
        limit.metric
        for limit in objective.limits
        if METRICS[limit.metric].field.startswith("latency_") and limit not in tails
    ]
    if others:
        kept = " and ".join(limit.metric for limit in tails)
        yield (
            f"the rate is the highest that keeps {kept}; a configuration that breaks "
            f"{' and '.join(others)} there is refused, though a lower rate might keep all"
        )


def _on_model(space: SearchSpace) -> SearchSpace:
    """The space with what the model itself demands, checked in every runtime it may have.

    Raises:
        UsageError: The workload is wrong, or the model takes none of the configurations.
    """
    rules, notes = list(space.rules), list(space.notes)
    for spec in workloads_of(space.params, space.rules, space.workload):
        check_workload(spec)
        limits = workload_limits(spec)
        rules += [rule for rule in map(_rule, limits.rules) if rule not in rules]
        notes += [note for note in limits.notes if note not in notes]
        fitted = replace(space, rules=tuple(rules), notes=tuple(notes))
        if limits.rules and not fitted.allowed_count(1):
            raise UsageError(f"params.batch_size: {'; '.join(limits.notes)}")
    return replace(space, rules=tuple(rules), notes=tuple(notes))


def _rule(text: str) -> Rule:
    return Rule(text=text)


def _check_placeholders(space: SearchSpace) -> None:
    for parameter in space.searched:
        is_passed = parameter.name in command.placeholders_of(space.workload)
        if not is_passed and not parameter.name.startswith("env."):
            raise UsageError(
                f"params.{parameter.name} is searched, but the command has no "
                f"{{{parameter.name}}}, so that nothing would change"
            )


def _with_existing_files(space: SearchSpace) -> SearchSpace:
    """Where a command's model file is named by one parameter, the files there are decide.

    Raises:
        UsageError: There is none of them.
    """
    notes: list[str] = []
    params = {parameter.name: parameter for parameter in space.params}
    for name, templates in command.file_templates(space.workload).items():
        if name not in params:
            continue
        for template in templates:
            choices = params[name].choices
            left = tuple(
                c for c in choices if command.file_exists(space.workload, template, {name: c})
            )
            if not left:
                tried = ", ".join(value_text(name, c) for c in choices[:5])
                raise UsageError(
                    f"workload.command: there is no file {template} for any {name} ({tried}, …)"
                )
            if len(left) < len(choices):
                shown = ", ".join(value_text(name, c) for c in left)
                notes.append(f"{name} is {shown}: for these there is a file {template}")
            params[name] = replace(params[name], choices=left)
    return replace(space, params=tuple(params.values()), notes=(*space.notes, *notes))


def prepare(resolved: Resolved, view: View) -> None:
    """Make what the runtimes need of the model; it takes once, and counts for no budget.

    Raises:
        UsageError: It cannot be made of this model.
    """
    space = resolved.space
    for spec in workloads_of(space.params, space.rules, space.workload):
        if needs_preparing(spec):
            view.preparing(f"preparing {spec.model} for {spec.kind}")
            prepare_workload(spec, space.trial.seed)


def preflight(resolved: Resolved, launcher: Launcher, view: View) -> float | None:
    """Build the baseline once, so that a wrong factory is found before a study exists.

    A configuration that cannot run is no mistake of the user's; its trial will say so. Nor is
    one that takes longer than a trial, or than the whole budget of time, may take.

    Returns:
        How long one of its calls takes, in seconds; None if that is not found out.
    Raises:
        UsageError: The model cannot be built at all. UnavailableError: A package is missing.
    """
    space = resolved.space
    if WORKLOADS[space.workload.kind].runs not in ("child", "virtual", "ranks"):
        return None
    if not WORKLOADS[space.workload.kind].is_real:
        launcher = Launcher()  # so that the study's virtual clock stays where it is
        return _look(space.baseline, resolved, launcher)
    view.preparing(f"building {space.workload.model} once")
    call_s = _look(space.baseline, resolved, launcher)
    for runtime in runtimes_of(space.params, space.workload):
        if space.baseline.get(RUNTIME, runtime) != runtime:
            view.preparing(f"building {space.workload.model} once for {runtime}")
            config = space.nearest_allowed(space.baseline.changed(**{RUNTIME: runtime}))
            _look(config, resolved, launcher)
    return call_s


def _look(config: Config, resolved: Resolved, launcher: Launcher) -> float | None:
    """Build a configuration and let it make a few calls: how long one takes, None if it fails."""
    space = resolved.space
    spec = group_spec(config, space, resolved.info)
    limit_s = space.trial.timeout_s
    if space.budget.time_s is not None:
        limit_s = min(limit_s, max(space.budget.time_s - launcher.now_s(), 0.0))
    try:
        with open_session(spec, launcher, timeout_s=limit_s) as session:
            result = session.measure(replace(LOOK, deadline_s=limit_s))
            return summarise(result).latency_p50_s
    except TrialError:
        return None


def limit_needs(space: SearchSpace, call_s: float | None) -> Enough | None:
    """How much measuring the limits need per configuration, at the proof's level if there is one.

    Args:
        call_s: How long a call of the baseline takes, None if that is not known.
    """
    if WORKLOADS[space.workload.kind].runs not in ("child", "virtual", "ranks"):
        return None  # finished figures: nobody counts their calls
    alpha = space.confirm.alpha if space.confirm else SEARCH_ALPHA
    return enough(space.objective, alpha=alpha, call_s=call_s)


def study_facts(resolved: Resolved, command: tuple[str, ...] = ()) -> StudyFacts:
    """What is kept of a study beside its trials."""
    space, info = resolved.space, resolved.info
    return StudyFacts(
        study=space.study,
        objective=space.objective,
        baseline=space.baseline,
        workload=_workload_text(space),
        device=f"{info.name}: {info.description}" if resolved.origin == "measured" else "",
        origin=resolved.origin,
        params={parameter.name: parameter.choices for parameter in space.params},
        trials=space.budget.trials,
        time_s=space.budget.time_s,
        space_path=shown_path(space.source.path),
        space_text=space.source.text,
        settings=_settings(space, info),
        environment=_environment(info),
        command=command,
    )


def shown_path(path: str) -> str:
    """How to name a space file: a shipped one by its name, one in the working directory shortly."""
    file = Path(path)
    if file.parent == shipped_dir("search_spaces").resolve():
        return file.name
    try:
        return str(file.relative_to(Path.cwd())) if path else ""
    except ValueError:
        return path


def only_config(space: SearchSpace) -> Config:
    """The configuration of a space without a search: single choices, else the baseline's values.

    Raises:
        UsageError: A rule forbids it.
    """
    fixed = {p.name: p.choices[0] for p in space.params if len(p.choices) == 1}
    config = space.baseline.changed(**fixed)
    if why := refusal(config, space):
        raise UsageError(f"{config_text(config)} {why}")
    return config


def again(space: SearchSpace) -> tuple[str, ...]:
    """The command that runs a study again."""
    return ("autotune run", f"--space {quoted(shown_path(space.source.path))}")


def _check_columns(grid: Grid, objective: Objective) -> None:
    recorded = {name for row in grid.rows.values() for name in row.figures}
    if {"power_w", "throughput_items_per_s"} <= recorded:
        recorded.add(METRICS["energy"].field)  # their quotient
    wanted = {goal.metric: "objective" for goal in objective.goals}
    wanted |= {limit.metric: f"limits.{limit.metric}" for limit in objective.limits}
    for metric, where in wanted.items():
        column = METRICS[metric].field
        if recorded and column not in recorded:
            raise UsageError(f"{grid.path}: no figures for {where}; add column {column}")


def _workload_text(space: SearchSpace) -> str:
    workload = space.workload
    if WORKLOADS[workload.kind].is_outside:
        return f"{command.program_name(workload)} ({workload.kind})"
    model = workload.model
    if workload.kind in ORIGINS:
        return f"{Path(model).name} ({workload.kind})"
    name = Path(model).name if ".py:" in model or "/" in model else model
    kinds = " or ".join(runtimes_of(space.params, workload))
    return f"{name} ({kinds}, {workload.precision})"


def _settings(space: SearchSpace, info: DeviceInfo) -> dict[str, str]:
    trial, confirm, load = space.trial, space.confirm, space.objective.load
    window = format_duration(trial.duration_s) if trial.duration_s else f"{trial.iterations} calls"
    time_s, gain = space.budget.time_s, space.budget.gain
    return {
        "workload": _workload_text(space),
        "device": space.device,
        "objective": f"{space.objective.name} ({_goals_text(space.objective)})",
        "limits": ", ".join(map(limit_text, space.objective.limits)) or "none",
        "load": _load_text(load),
        **{
            p.name: ", ".join(value_text(p.name, c) for c in p.choices)
            for p in space.params
            if not (space.baseline.is_pipeline and p.name in NOT_OF_PIPELINES)
        },
        "rules": _rules_text(space, info),
        "baseline": config_text(space.baseline),
        "budget": f"{space.budget.trials} trials"
        + (f", {format_duration(time_s)}" if time_s is not None else ", no limit of time")
        + (f", until a trial is expected to gain less than {100 * gain:g} %" if gain else ""),
        "trial": f"{window}, at most {format_duration(trial.timeout_s)}, seed {trial.seed}",
        "sampler": _sampler_text(space),
        "confirm": (
            f"the best {confirm.top}, {format_duration(confirm.duration_s)} each, "
            f"alpha {confirm.alpha:g}{_rate_proof_text(space)}"
            if confirm
            else "skipped"
        ),
        "storage": without_password(space.storage),
    }


def _sampler_text(space: SearchSpace) -> str:
    if space.sampler != "auto":
        return space.sampler
    name, why = chosen(space)
    return f"auto: {name}, {why}" if why else f"auto: {name}"


def _goals_text(objective: Objective) -> str:
    metrics = [goal.metric for goal in objective.goals]
    if objective.front:
        return f"the front of {' and '.join(metrics)}"
    if objective.is_weighted:
        return f"goals: {', '.join(f'{g.metric} x {g.weight:g}' for g in objective.goals)}"
    return f"goal: {metrics[0]}"


def _rate_proof_text(space: SearchSpace) -> str:
    """How much measuring a sought rate needs, where one is sought."""
    if space.confirm is None or not space.objective.load.seeks_rate:
        return ""
    least_s, most_s = proof_range_s(space.confirm.duration_s)
    return (
        f"; a rate takes {format_duration(least_s)} to {format_duration(most_s)} to show, "
        "the longer the less the limit depends on it"
    )


def _load_text(load: Load) -> str:
    if load.clients is not None:
        return f"closed, {load.clients} client{'s' * (load.clients > 1)}"
    if load.seeks_rate:
        return f"{load.kind}, the highest rate that keeps the limit"
    if load.trace:
        return f"arrivals of {Path(load.trace).name}"
    return load.kind + (f" at {load.rate_per_s:g}/s" if load.rate_per_s else "")


def _rules_text(space: SearchSpace, info: DeviceInfo) -> str:
    """The file's rules, and those of the device's own that the file does not have already."""
    own = [rule.text for rule in space.rules if rule.text not in info.rules]
    further = [
        rule.text
        for rule in space.rules
        if rule.text in info.rules and not set(rule.text.split(" or ")) & set(own)
    ]
    texts = ["; ".join(own), f"of the device: {'; '.join(further)}" if further else ""]
    return "; ".join(filter(None, texts)) or "none"


def _environment(info: DeviceInfo) -> dict[str, str]:
    versions = {"autotune": __version__, "python": platform.python_version()}
    for tool in _TOOLS:
        try:
            versions[tool] = version(tool)
        except PackageNotFoundError:
            continue
    return {**versions, "system": platform.platform(terse=True), **info.versions}
