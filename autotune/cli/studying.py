"""Commands on one study: run, worker, show, measure, report."""

from __future__ import annotations

import json
import shlex
import sys
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from autotune.cli.application import (
    AsJson,
    Name,
    Overrides,
    Space,
    Storage,
    StudiesDir,
    command,
)
from autotune.cli.output import print_found, print_json, print_lines, print_result, view_for
from autotune.cli.process import EXIT_INTERRUPTED, EXIT_NOTHING, EXIT_OK
from autotune.core.collector import uncollected
from autotune.core.text import clean, without_secrets

if TYPE_CHECKING:
    from autotune.apps.dry_run import DryRun
    from autotune.results.study_result import StudyResult
    from autotune.space.search_space import SearchSpace


@command(closed_pipe=EXIT_INTERRUPTED)
def run(
    space: Space,
    overrides: Overrides = None,
    trials: Annotated[Optional[int], typer.Option(help="budget.trials, over all runs.")] = None,  # noqa: UP045
    time: Annotated[str, typer.Option(help="budget.time, such as 5min.")] = "",
    device: Annotated[str, typer.Option(help="device, such as cpu or npu:0.")] = "",
    sampler: Annotated[str, typer.Option(help="auto, mechanistic, gp, tpe, random, grid.")] = "",
    seed: Annotated[Optional[int], typer.Option(help="trial.seed.")] = None,  # noqa: UP045
    study: Annotated[str, typer.Option(help="Name of the study.")] = "",
    storage: Annotated[str, typer.Option(help="journal, or a database URL.")] = "",
    studies_dir: StudiesDir = Path("studies"),
    on_change: Annotated[
        str, typer.Option(help="refuse or continue a study made under other conditions.")
    ] = "refuse",
    warm_start: Annotated[
        bool, typer.Option(help="Let an earlier study of the same model and device advise.")
    ] = True,
    workers: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(min=1, help="Processes that search, each on a device or cores of its own."),
    ] = None,
    dask: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Run them where this Dask scheduler says.")
    ] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done.")] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Exit 1 if undecided.")] = False,
    as_json: AsJson = False,
) -> int:
    """Find the configuration: search, prove, recommend. Run it again to go on."""
    short = {
        "budget.trials": trials,
        "budget.time": time,
        "device": device,
        "sampler": sampler,
        "trial.seed": seed,
        "study": study,
        "storage": storage,
        "warm_start": None if warm_start else False,
    }
    from autotune.core.errors import UsageError
    from autotune.space.loader import load_space

    if dask and workers is None:
        raise UsageError("--dask says where workers run: give their number with --workers")
    resolved = load_space(space, [*(overrides or ()), *as_overrides(short)])
    if dry_run:
        return _dry_run(resolved, as_json, workers, dask or None)
    return _run_study(
        resolved,
        as_json,
        strict,
        studies_dir=studies_dir,
        on_change=on_change,
        workers=workers,
        dask=dask or None,
    )


@command(closed_pipe=EXIT_INTERRUPTED)
def worker(
    target: Annotated[
        str, typer.Argument(metavar="SPACE|STUDY", help="The study's space file, or its name.")
    ],
    storage: Annotated[
        str, typer.Option(help="Where the study is kept: a database URL, or journal.")
    ] = "",
    overrides: Overrides = None,
    study: Annotated[str, typer.Option(help="Name of the study, if not the file's.")] = "",
    device: Annotated[str, typer.Option(help="device, such as cpu or npu:0-3.")] = "",
    trust_storage: Annotated[
        bool,
        typer.Option("--trust-storage", help="Run what the storage says a STUDY runs."),
    ] = False,
    studies_dir: StudiesDir = Path("studies"),
    on_change: Annotated[
        str, typer.Option(help="refuse or continue a study made under other conditions.")
    ] = "refuse",
    strict: Annotated[bool, typer.Option("--strict", help="Exit 1 if undecided.")] = False,
    as_json: AsJson = False,
) -> int:
    """One more worker on a shared study; the last one proves the best."""
    from autotune.apps.worker import space_of

    short = {"device": device, "study": study, "storage": storage}
    space = space_of(
        target,
        [*(overrides or ()), *as_overrides(short)],
        studies_dir=studies_dir,
        storage=storage,
        trusts_storage=trust_storage,
    )
    return _run_study(space, as_json, strict, studies_dir=studies_dir, on_change=on_change)


def _run_study(space: SearchSpace, as_json: bool, strict: bool, **how: Any) -> int:
    """Run a study with a view that fits, print what came of it."""
    from autotune.apps.run import RunInterrupted
    from autotune.apps.run import run as run_study
    from autotune.core.errors import UsageError

    if how["on_change"] not in ("refuse", "continue"):
        raise UsageError(f"--on-change {how['on_change']}: write refuse or continue")
    try:
        with view_for(as_json) as view:
            result = run_study(space, view=view, command=_own_command(), **how)
    except RunInterrupted as interruption:
        print_result(interruption.result, as_json)
        again = " ".join(interruption.result.facts.command)
        print(f"interrupted; what is done is kept. Go on with: {again}", file=sys.stderr)
        return EXIT_INTERRUPTED
    print_result(result, as_json)
    return exit_code_of(result, strict)


@command(closed_pipe=EXIT_OK)
@uncollected()  # it reads, prints and ends
def show(
    study: Name,
    studies_dir: StudiesDir = Path("studies"),
    storage: Storage = "",
    as_json: AsJson = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Every trial as CSV on stdout.")] = False,
    top: Annotated[int, typer.Option(min=0, help="List the best N configurations.")] = 0,
    wishes: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--prefer", help="Choose again: latency_p99=10ms, throughput>=500/s …"),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit 1 if undecided.")] = False,
) -> int:
    """What a study found, again."""
    from autotune.apps.show import choose, read_preferences
    from autotune.apps.show import show as load
    from autotune.apps.terminal import top_lines
    from autotune.results.prefer import preferred_json, preferred_lines
    from autotune.results.tables import to_csv, to_json

    read_preferences(wishes or ())
    result = load(study, studies_dir=studies_dir, storage=storage)
    if as_csv:
        print(to_csv(result), end="")
        return exit_code_of(result, strict)
    if not wishes or not result.trial_count:
        print_result(result, as_json)
        if top and not as_json:
            print_lines(top_lines(result, top))
        return exit_code_of(result, strict)
    preferred = choose(result, wishes, studies_dir=studies_dir)
    if as_json:
        print_json({**to_json(result), "preferred": preferred_json(preferred)})
    else:
        print_result(result, as_json)
        print_lines(top_lines(result, top) if top else ())
        print_lines(preferred_lines(preferred))
    return EXIT_OK if preferred.record is not None else EXIT_NOTHING


@command(closed_pipe=EXIT_INTERRUPTED)
def measure(
    space: Space,
    overrides: Overrides = None,
    device: Annotated[str, typer.Option(help="device, such as cpu or npu:0.")] = "",
    sessions: Annotated[int, typer.Option(min=2, help="Fresh sessions.")] = 6,
    strict: Annotated[bool, typer.Option("--strict", help="Exit 1 if undecided.")] = False,
    as_json: AsJson = False,
) -> int:
    """Measure one configuration well: --set batch_size=32 and the like choose it."""
    from autotune.apps.measure import measure as measure_config
    from autotune.apps.terminal import measurement_lines
    from autotune.space.loader import load_space

    chosen = [part for text in overrides or () for part in _parameter(text)]
    resolved = load_space(space, [*chosen, *as_overrides({"device": device})])
    with view_for(as_json) as view:
        result = measure_config(resolved, view=view, sessions=sessions)
    print_found(as_json, result.to_json, lambda: measurement_lines(result))
    outcome = str(result.record.verdict.outcome)
    return EXIT_NOTHING if outcome == "over_limit" or (strict and outcome != "ok") else EXIT_OK


class ReportFormat(str, Enum):
    """What a report is written as."""

    HTML = "html"
    MARKDOWN = "md"


class ReportLanguage(str, Enum):
    """What a report is written in."""

    ENGLISH = "en"
    CHINESE = "zh"


@command(closed_pipe=EXIT_OK)
def report(
    study: Name,
    form: Annotated[
        ReportFormat, typer.Option("--format", help="A page, or Markdown.")
    ] = ReportFormat.HTML,
    lang: Annotated[ReportLanguage, typer.Option(help="Its language.")] = ReportLanguage.ENGLISH,
    studies_dir: StudiesDir = Path("studies"),
    storage: Storage = "",
) -> int:
    """Write studies/STUDY/report.html, a single file that needs no network; or report.zh.md …"""
    from autotune.apps.report import report as write

    result = write(
        study, studies_dir=studies_dir, storage=storage, lang=lang.value, form=form.value
    )
    if result.trial_count:
        print(result.report)
    return exit_code_of(result)


def _dry_run(space: Any, as_json: bool, workers: int | None, dask: Any) -> int:
    from autotune.apps.dry_run import dry_run as look
    from autotune.apps.terminal import PlainView
    from autotune.core.units import format_duration

    planned: DryRun = look(space, workers=workers, dask=dask)
    if as_json:
        print_json(planned.to_json())
        return EXIT_OK
    view = PlainView(print)
    view.resolved(planned.facts)
    for note in planned.notes:
        view.note(note)
    print(f"  {planned.allowed} of {planned.combinations} combinations keep the rules")
    about = format_duration(planned.seconds)
    clock = " of virtual time, which passes in moments" if planned.is_virtual else ""
    most = "at most " if planned.facts.objective.knee_share is not None else ""
    if planned.is_cut_short:
        print(f"  up to {planned.trials} trials would be run, as many as fit into {about}{clock}")
        full = format_duration(planned.full_s)
        print(f"  all of them and a confirmation at full length would take about {full}")
        return EXIT_OK
    print(
        f"  {most}{planned.trials} trials would be run; about {about}{clock} with the confirmation"
    )
    return EXIT_OK


def exit_code_of(result: StudyResult, strict: bool = False) -> int:
    if not result.trial_count and not result.ending.handed_over:
        return _nothing_complete(result)
    if result.ending.crashed:
        print("the study was given up: its trials failed alike", file=sys.stderr)
        failure = result.last_failure
        if failure is not None and failure.log_tail:
            print(f"the last lines of trial {failure.number}:", file=sys.stderr)
            print(clean(failure.log_tail.rstrip()), file=sys.stderr)
        return EXIT_NOTHING
    if result.ending.handed_over:
        return EXIT_OK
    if result.config is None or (strict and result.status == "undecided"):
        return EXIT_NOTHING
    return EXIT_OK


def _nothing_complete(result: StudyResult) -> int:
    from autotune.results.study_result import STOPPED_BY_TIME

    what = "run it first"
    if result.ending.elapsed_s:
        why = result.ending.stopped or "it ended early"
        what = f"{why}. Run it again to go on"
        if result.ending.stopped == STOPPED_BY_TIME:
            what += (
                ", with a longer --time: up to half of it is kept for the confirmation, "
                "which --set confirm=false leaves out"
            )
    print(f"no trial of study {result.facts.study} is complete; {what}", file=sys.stderr)
    return EXIT_NOTHING


def as_overrides(short: dict[str, Any]) -> list[str]:
    """Short forms as overrides; text is quoted, since a study named 2024 is no number."""
    given = {key: value for key, value in short.items() if value not in ("", None)}
    return [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in given.items()]


def _parameter(override: str) -> list[str]:
    """Let `batch_size=32` fix that parameter; anything with a dot is a key of the space file."""
    key = override.partition("=")[0]
    if "." in key and not key.startswith("env."):
        return [override]
    return [f"params.{override}", f"baseline.{override}"]


def _own_command() -> tuple[str, ...]:
    """This command, quoted for a shell, an option and its value in one word."""
    words: list[str] = []
    for word in (w for w in sys.argv[2:] if w not in ("--json", "--strict")):
        quoted = shlex.quote(without_secrets(word))
        if word.startswith("-") or not words:
            words.append(quoted)
        else:
            words[-1] += f" {quoted}"
    return (f"autotune {sys.argv[1]}", *words)
