"""What `compare` is given, as words: a study, a trial of it, a file, a baseline, a configuration.

online                          the study's winner
online#baseline  online#12      its baseline, its trial 12
online#batch_size=64            its winner with other values
ranker.yaml#batch_size=64       a configuration of a space file
ranker.yaml#workload.options.depth=4     with a key of the file overridden
result.json                     what run, show or measure printed with --json
baseline:nightly                a baseline that was kept
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from autotune.apps.baselines import Baseline, model_overrides
from autotune.apps.resolve import ORIGINS, shown_path
from autotune.apps.store import load_result, load_stored
from autotune.core.codec import from_json_dict
from autotune.core.errors import AutotuneError, UsageError
from autotune.core.outcomes import Outcome
from autotune.core.records import Config, Measurement, TrialRecord, Verdict
from autotune.core.text import clean
from autotune.results.study_result import Origin, StudyResult
from autotune.results.words import config_text
from autotune.space.loader import load_space, load_text
from autotune.space.parameters import WHOLE
from autotune.space.search_space import SearchSpace

MAX_JSON_BYTES = 16 * 2**20
BASELINE = "baseline:"
WINNER = "winner"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operand:
    """One side before anything is compared.

    Attributes:
        name: As it was written.
        space: What it is run in; None: only figures are known, or `no_space` says why not.
        record: What was measured of it, the proof if there is one; None: nothing.
        study: The study it is of, with `directory`, where its samples are.
        fingerprint: The conditions of `record`.
        workload, device, origin: As the study says it; empty: unknown.
    """

    name: str
    config: Config
    space: SearchSpace | None = None
    no_space: str = ""
    record: TrialRecord | None = None
    study: StudyResult | None = None
    directory: Path | None = None
    fingerprint: Mapping[str, str] = field(default_factory=dict)
    workload: str = ""
    device: str = ""
    origin: Origin = "measured"
    notes: tuple[str, ...] = ()


def read_operand(text: str, studies_dir: Path, storage: str = "") -> Operand:
    """Find out what a word of the command line names.

    Raises:
        UsageError: There is no such thing. AutotuneError: A study without a winner.
        StorageError: A study cannot be read.
    """
    source, select = _split(text, studies_dir)
    if source.endswith((".yaml", ".yml")):
        return _of_space(text, source, select)
    if source.endswith(".json"):
        return _of_file(text, Path(source), select)
    result = load_result(source, studies_dir, storage)
    stored = load_stored(source, studies_dir, storage)
    return _of_study(text, result, select, stored.fingerprint, stored.directory)


def of_baseline(text: str, kept: Baseline, directory: Path) -> Operand:
    """A baseline that was kept, its model's files as they were then if they have changed."""
    overrides, notes = model_overrides(kept, directory)
    space, no_space = _space(kept.space_text, kept.space_path, overrides)
    return Operand(
        name=text,
        config=kept.config,
        space=space,
        no_space=no_space,
        record=kept.record,
        fingerprint=kept.fingerprint,
        workload=kept.workload,
        device=kept.device,
        origin=kept.origin,
        notes=notes,
    )


def reference_of(text: str, studies_dir: Path) -> str:
    """What a lone operand is compared with: its study's baseline.

    Raises:
        UsageError: It is of no study.
    """
    source, select = _split(text, studies_dir)
    if source.endswith((".yaml", ".yml", ".json")) or source.startswith(BASELINE):
        raise UsageError(f"{text}: say what to compare it with; only a study has a baseline")
    if select == "baseline":
        raise UsageError(f"{text}: say what to compare it with")
    return f"{source}#baseline"


def _split(text: str, studies_dir: Path) -> tuple[str, str]:
    """Source and selection; a study may have a "#" in its name."""
    if not text.strip():
        raise UsageError("an empty word names nothing to compare")
    if text.startswith(BASELINE):
        return text, ""
    places = [len(text), *(i for i in reversed(range(len(text))) if text[i] == "#")]
    for place in places:
        if "/" not in text[:place] and text[:place] and (studies_dir / text[:place]).is_dir():
            return text[:place], text[place + 1 :]
    source, _, select = text.partition("#")
    return source, select


def _of_study(
    text: str,
    result: StudyResult,
    select: str,
    fingerprint: Mapping[str, str],
    directory: Path,
) -> Operand:
    facts = result.facts
    assignments: list[str] = []
    if select == "baseline":
        config = facts.baseline
    elif select.isdecimal():
        config = _trial(result, int(select)).config
    else:
        config = _winner(result)
        assignments = [] if select in ("", WINNER) else _assignments(text, select)
    keys = [a for a in assignments if not _is_parameter(a)]
    values = [a for a in assignments if _is_parameter(a)]
    space, no_space = _space(facts.space_text, facts.space_path, keys)
    if assignments and space is None:
        why = no_space or "the study keeps no space file, so that nothing can be changed"
        raise UsageError(f"{text}: {why}")
    if values:
        fixed = load_text(facts.space_text, facts.space_path, [*keys, *_as_params(values)])
        config = config.changed(**_fixed(fixed, values))
    record = None if keys else _record(result, config)
    return Operand(
        name=text,
        config=config,
        space=space,
        no_space=no_space,
        record=record,
        study=result,
        directory=directory,
        fingerprint=fingerprint,
        workload=facts.workload,
        device=facts.device,
        origin=facts.origin,
    )


def _space(text: str, path: str, overrides: Sequence[str]) -> tuple[SearchSpace | None, str]:
    """A space from its kept text, or why it cannot be had: figures are worth comparing without."""
    if not text:
        return None, ""
    try:
        return load_text(text, path, overrides), ""
    except UsageError as error:
        return None, str(error)


def _of_space(text: str, source: str, select: str) -> Operand:
    assignments = _assignments(text, select) if select else []
    keys = [a for a in assignments if not _is_parameter(a)]
    values = [a for a in assignments if _is_parameter(a)]
    space = load_space(source, keys)
    fixed = load_space(source, [*keys, *_as_params(values)]) if values else space
    singles = {p.name: p.choices[0] for p in fixed.params if len(p.choices) == 1 and not p.auto}
    return Operand(
        name=text,
        config=space.baseline.changed(**singles),
        space=replace(space, source=replace(space.source, path=shown_path(space.source.path))),
        workload=space.workload.model,
        origin=ORIGINS.get(space.workload.kind, "measured"),
    )


def _of_file(text: str, path: Path, select: str) -> Operand:
    """What `run`, `show` or `measure` printed: figures without a space."""
    if select:
        raise UsageError(f"{text}: a JSON file holds one configuration; nothing can be chosen")
    data = _read_json(path)
    config, measurement = data.get("config"), data.get("measurement")
    if not isinstance(config, dict) or not isinstance(measurement, dict):
        raise UsageError(
            f"{path}: no config and measurement in it; write the file with "
            "autotune show STUDY --json or autotune measure --json"
        )
    record = TrialRecord(
        number=0,
        config=_config(path, config),
        phase="measure",
        verdict=Verdict(outcome=_outcome(data.get("verdict"))),
        measurements=(from_json_dict(Measurement, measurement),),
    )
    origin, conditions = data.get("origin"), _texts(data.get("conditions"))
    unsaid = f"{path} does not name model and device: taken to be the same"
    return Operand(
        name=text,
        config=record.config,
        record=record,
        fingerprint=conditions,
        workload=_text(data.get("workload")),
        device=_text(data.get("device")),
        origin=origin if origin in ("replayed", "simulated") else "measured",
        notes=() if conditions else (unsaid,),
    )


def _config(path: Path, values: Mapping[str, Any]) -> Config:
    """A configuration of a file.

    Raises:
        UsageError: A value cannot be one of its parameter.
    """
    for name, value in values.items():
        is_number = isinstance(value, int) and not isinstance(value, bool)
        is_count = isinstance(value, int) and is_number and value >= 1
        is_wrong = (
            not isinstance(value, (bool, int, float, str))
            or (name in WHOLE and not is_count)
            or (name == "batched_h2d" and not isinstance(value, bool))
            or (name == "cores_per_instance" and not (is_number or isinstance(value, str)))
        )
        if is_wrong:
            raise UsageError(f"{path}: config.{name}: {str(value)[:40]!r} cannot be its value")
    return Config.from_dict(values)


def _texts(value: object) -> dict[str, str]:
    """The conditions in a file, as far as they are texts; {}: it has none, as older ones."""
    items = value.items() if isinstance(value, Mapping) else ()
    return {name: clean(text) for name, text in items if isinstance(text, str)}


def _text(value: object) -> str:
    return clean(value) if isinstance(value, str) else ""


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_JSON_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror})") from None
    if len(raw) > MAX_JSON_BYTES:
        raise UsageError(f"{path}: larger than {MAX_JSON_BYTES} bytes; not a result of autotune")
    try:
        data = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not JSON ({error})") from None
    if not isinstance(data, dict):
        raise UsageError(f"{path}: not a result of autotune")
    return data


def _outcome(verdict: object) -> Outcome:
    text = verdict.get("outcome") if isinstance(verdict, dict) else None
    known = {str(outcome) for outcome in Outcome}
    return Outcome(text) if isinstance(text, str) and text in known else Outcome.UNDECIDED


def _winner(result: StudyResult) -> Config:
    if result.config is not None:
        return result.config
    study, closest = result.facts.study, result.shown
    hint = f"; name a trial, such as {study}#{closest.number}" if closest is not None else ""
    raise AutotuneError(f"study {study} recommends nothing ({result.status}){hint}")


def _trial(result: StudyResult, number: int) -> TrialRecord:
    record = next((r for r in result.records if r.number == number), None)
    if record is None:
        last = max((r.number for r in result.records), default=None)
        known = "it has no trials" if last is None else f"its trials go up to {last}"
        raise UsageError(f"study {result.facts.study} has no trial {number}; {known}")
    return record


def _record(result: StudyResult, config: Config) -> TrialRecord | None:
    """What was measured of a configuration: its proof, else its last trial with figures."""
    fresh = [r for r in result.recommendation.confirmations if r.config == config]
    trials = [r for r in result.records if r.config == config]
    for records in (fresh, trials):
        measured = [r for r in records if r.measurement is not None]
        if measured:
            return measured[-1]
    return next(iter([*fresh, *reversed(trials)]), None)


def _assignments(text: str, select: str) -> list[str]:
    """Split "a=1,b=[1,2]" where a new assignment begins."""
    parts = re.split(r",(?=[A-Za-z_][\w.]*=)", select)
    for part in parts:
        if not re.match(r"[A-Za-z_][\w.]*=.", part):
            raise UsageError(
                f"{text}: {part!r} chooses nothing; after # write baseline, a trial's number, "
                "or batch_size=64,instance_count=2"
            )
    return parts


def _is_parameter(assignment: str) -> bool:
    key = assignment.partition("=")[0]
    return "." not in key or key.startswith("env.")


def _as_params(values: Sequence[str]) -> list[str]:
    return [f"{section}.{value}" for value in values for section in ("params", "baseline")]


def _fixed(space: SearchSpace, values: Sequence[str]) -> dict[str, Any]:
    """The values that assignments gave, as the space reads them."""
    found: dict[str, Any] = {}
    for value in values:
        parameter = space.parameter(value.partition("=")[0])
        if parameter is None or len(parameter.choices) != 1:
            raise UsageError(f"{value}: a single value of a parameter is needed")
        found[parameter.name] = parameter.choices[0]
    return found


def described(operand: Operand) -> str:
    """An operand with its configuration, for messages."""
    return f"{operand.name} ({config_text(operand.config)})"
