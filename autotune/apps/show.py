"""`autotune show`: what a study found, again, and which of it fits other needs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from autotune.apps.samples import load_samples, samples_path
from autotune.apps.store import load_result, study_dir
from autotune.core.errors import UsageError
from autotune.core.objective import Limit, Objective
from autotune.core.records import TrialRecord, Verdict
from autotune.measure.judge import judge
from autotune.results.prefer import Preferred, prefer
from autotune.results.study_result import StudyResult
from autotune.space.parameters import Refused
from autotune.space.sections import limits
from autotune.space.strict_yaml import Node

_PREFERENCE = re.compile(r"\s*([A-Za-z_][\w.]*)\s*(<=|>=|<|>|=)\s*(.*)", re.DOTALL)


def show(study: str, *, studies_dir: Path = Path("studies"), storage: str = "") -> StudyResult:
    """Read a study's result.

    Raises:
        UsageError: There is no such study. StorageError: It cannot be read.
    """
    return load_result(study, studies_dir, storage)


def choose(result: StudyResult, wishes: Sequence[str], *, studies_dir: Path) -> Preferred:
    """The tested configuration that fits "latency_p99=10ms", "throughput>=500/s" and the like.

    Raises:
        UsageError: A wish is not of that form, names no metric, or lacks its unit.
    """
    directory = study_dir(studies_dir, result.facts.study)

    def judged(record: TrialRecord, objective: Objective) -> Verdict | None:
        path = samples_path(directory, record.phase, record.number)
        if record.measurement is None or not path.is_file():
            return None
        return judge(load_samples(path), record.measurement, objective)

    return prefer(result, read_preferences(wishes), judged)


def read_preferences(wishes: Sequence[str], option: str = "--prefer") -> tuple[Limit, ...]:
    """The wishes as limits, one per metric; of several on one metric the last counts.

    Raises:
        UsageError: As `choose`.
    """
    wanted: dict[str, Limit] = {}
    for wish in wishes:
        match = _PREFERENCE.fullmatch(wish)
        if match is None:
            raise UsageError(f"{option} {wish!r}: write metric=value, such as latency_p99=10ms")
        metric, sign, value = match.groups()
        bound = value if sign == "=" else f"{sign} {value}"
        place = f"{option} {metric}"
        try:
            found = limits(Node({metric: Node(bound, place)}, place))
        except Refused as error:
            raise UsageError(f"{place}: {error}") from None
        wanted[metric] = found[0]
    return tuple(wanted.values())
