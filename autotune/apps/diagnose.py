"""`autotune diagnose`: where the time goes, which knob is next, and whether that was right."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from autotune.apps.looking import Looker
from autotune.apps.operands import read_operand
from autotune.apps.resolve import Resolved, only_config, prepare, resolve
from autotune.apps.store import load_result, write_diagnoses, write_report
from autotune.apps.view import View
from autotune.core.codec import to_json_dict
from autotune.core.diagnosis import Diagnosis
from autotune.core.errors import UsageError
from autotune.core.records import Config
from autotune.core.units import format_duration
from autotune.measure.breakdown import break_down
from autotune.measure.profile_files import read_profile
from autotune.results.bottleneck import diagnose
from autotune.results.checking import check_text, checked_by_trials
from autotune.results.study_result import StudyResult
from autotune.results.words import config_text
from autotune.space.search_space import SearchSpace
from autotune.trial.session import Launcher

SHOWN_KERNELS = 5
PROFILES = "profiles"
"""In a study's directory: the recordings, a folder each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosed:
    """What was found: of one configuration or profile, or of several of a study.

    Attributes:
        study: Its name, empty without one.
        directory: The study's, which the files of its recordings are relative to.
        notes: What could not be read.
    """

    found: tuple[Diagnosis, ...]
    study: str = ""
    directory: Path | None = None
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As `diagnose --json` prints it; the last configuration's figures are at the top."""
        last = diagnosis_json(self.found[-1])
        several = {"diagnoses": [diagnosis_json(d) for d in self.found]} if self.study else {}
        return {"schema": 1, "study": self.study or None, **last, **several}

    def lines(self) -> Iterator[str]:
        """For a terminal."""
        for number, one in enumerate(self.found):
            if number:
                yield ""
            yield from _lines(one)
            if one.files:
                yield ""
            for file in one.files:
                yield f"recorded in {self.directory / file}" if self.directory else f"read {file}"
        yield from (f"note: {note}" for note in self.notes)


def diagnosis_json(one: Diagnosis) -> dict[str, Any]:
    """A diagnosis as plain data, shares and rates worked out."""
    breakdown = to_json_dict(one.breakdown)
    breakdown["utilisation"] = one.breakdown.utilisation
    breakdown["h2d_share"] = one.breakdown.share(one.breakdown.h2d_s)
    breakdown["h2d_copies_per_call"] = one.breakdown.h2d_copies_per_call
    roofline = None
    if one.roofline is not None:
        roofline = to_json_dict(one.roofline) | {
            "intensity": one.roofline.intensity,
            "ridge": one.roofline.ridge,
            "bound": one.roofline.bound,
        }
    return {
        "config": one.config.as_dict() if one.config is not None else None,
        "source": one.source,
        "bottleneck": {
            "part": one.part,
            "share": one.share,
            "shares": dict(one.shares),
            "knob": one.knob,
            "predicted_gain": one.forecast.gain if one.forecast else None,
            "measured_gain": one.forecast.measured if one.forecast else None,
            "sentences": list(one.sentences),
        },
        "forecasts": [
            to_json_dict(f) | {"error": f.error, "holds": f.holds} for f in one.forecasts
        ],
        "roofline": roofline,
        "efficiency": one.efficiency,
        "breakdown": breakdown,
        "files": list(one.files),
    }


def _lines(one: Diagnosis) -> Iterator[str]:
    if one.config is not None:
        what = {"declared": "as declared, not measured", "trial": "from its trial"}
        yield f"{config_text(one.config)} ({what.get(one.source, 'recorded')})"
    yield from one.sentences
    if one.efficiency is not None:
        yield f"Instances reach {one.efficiency:.0%} of what as many alone would."
    yield from (check_text(f) for f in one.forecasts if f.measured is not None)
    if one.breakdown.kernels:
        yield ""
        yield "Most time in:"
    for kernel in one.breakdown.kernels[:SHOWN_KERNELS]:
        count = f"{kernel.count:,} ×" if kernel.count else ""
        took = format_duration(kernel.total_s)
        yield f"  {kernel.share:6.1%}  {took:>9}  {count:>9}  {kernel.name}"


def diagnose_profile(path: Path, *, call_count: int | None = None) -> Diagnosed:
    """Read a profiler's files and say where the time goes.

    Args:
        path: A directory, searched with all below it, or one file.
        call_count: Calls in it, where the profiler did not mark them.
    Raises:
        UsageError: There is no profile that is known.
    """
    profile = read_profile(path)
    breakdown = break_down(profile, call_count=call_count)
    if not breakdown.span_s:
        raise UsageError(f"{path}: it tells of no operation; record it with its activities")
    found = replace(diagnose(breakdown, source="files"), files=profile.files)
    notes = profile.unread
    if breakdown.gap_count is None and not profile.totals_s:
        notes = (
            "only sums by type of operator are in it: when the device was idle is not known, and "
            "shares are of the time in which it ran something",
            *notes,
        )
    elif profile.is_host:
        notes = ("no device is in it: the host's operators are read as what computes", *notes)
    return Diagnosed(found=(found,), notes=notes)


def diagnose_space(
    space: SearchSpace, *, view: View | None = None, check: bool = True
) -> Diagnosed:
    """Record the configuration that a space fixes; open parameters have the baseline's value.

    Args:
        check: Try what the verdict forecasts.
    Raises:
        TrialError: The configuration cannot run.
        UsageError, UnavailableError: Something about it is wrong or missing.
    """
    view = view or View()
    resolved = resolve(space)
    prepare(resolved, view)
    config = only_config(resolved.space)
    with TemporaryDirectory() as folder, Launcher() as launcher:
        looker = Looker(resolved=resolved, launcher=launcher, view=view)
        found = looker.diagnose(config, Path(folder))
        if check:
            found = looker.checked(found)
    return Diagnosed(found=(replace(found, files=(), made_at_s=time.time()),))


def diagnose_study(
    name: str,
    *,
    studies_dir: Path,
    storage: str = "",
    view: View | None = None,
    check: bool = True,
) -> Diagnosed:
    """Record a study's baseline and what it recommends, or a configuration that `name` selects.

    What was forecast is held against the study's trials, else tried. Of a whole study the verdicts
    are kept beside it, and its report is written anew with them.

    Args:
        name: A study; or, as of `compare`, a trial of one: online#12, online#batch_size=64.
        check: Try what no trial shows.
    Raises:
        UsageError: There is no such study, or its space is not kept.
        TrialError: A configuration cannot run.
    """
    view = view or View()
    operand = read_operand(name, studies_dir, storage)
    if operand.study is None or operand.directory is None:
        raise UsageError(f"{name}: not a study; --space takes a space file, --profile a profile")
    if operand.space is None:
        raise UsageError(f"{name}: {operand.no_space or 'the study keeps no space file'}")
    resolved = resolve(operand.space)
    prepare(resolved, view)
    study, configs = operand.study, [operand.config]
    is_whole = "#" not in name or (studies_dir / name).is_dir()
    if is_whole:
        configs = list(dict.fromkeys((study.facts.baseline, operand.config)))
    found = _looked_at(configs, resolved, study, operand.directory, view, check=check)
    if is_whole:
        write_diagnoses(found, operand.directory)
        write_report(load_result(study.facts.study, studies_dir, storage), operand.directory)
    return Diagnosed(found=tuple(found), study=study.facts.study, directory=operand.directory)


def _looked_at(
    configs: Iterable[Config],
    resolved: Resolved,
    study: StudyResult,
    directory: Path,
    view: View,
    *,
    check: bool,
) -> list[Diagnosis]:
    found = []
    with Launcher() as launcher:
        looker = Looker(resolved=resolved, launcher=launcher, view=view)
        for number, config in enumerate(configs):
            folder = directory / PROFILES / f"{number}-{int(time.time())}"
            one = checked_by_trials(looker.diagnose(config, folder), study.records, looker.setting)
            if check and one.forecast is not None and one.forecast.measured is None:
                one = looker.checked(one)
            files = tuple(str(Path(file).relative_to(directory)) for file in one.files)
            found.append(replace(one, files=files, made_at_s=time.time()))
    return found
