"""The command line: arguments in, exit code out; the only place that prints.

Exit codes: 0 done; 1 nothing feasible, nothing complete, given up, a regression under --gate, or
undecided under --strict;
2 bad file, key or flag; 3 device or package unavailable; 4 storage; 130 interrupted.

A closed standard stream counts as the null device; JSON or CSV that had nowhere to go is refused
as a bad flag, before anything is measured.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import shlex
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional, TypeVar

import typer

from autotune.core.text import clean
from autotune.version import __version__

if TYPE_CHECKING:
    from autotune.apps.dry_run import DryRun
    from autotune.apps.view import View
    from autotune.results.regression import CompareResult
    from autotune.results.study_result import StudyResult

EXIT_OK, EXIT_NOTHING, EXIT_INTERRUPTED = 0, 1, 130

C = TypeVar("C", bound=Callable[..., int])

app = typer.Typer(
    name="autotune",
    help="Finds how to run an AI model on an accelerator, and proves it.",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Space = Annotated[str, typer.Option(help="Space file: a path, or the name of a shipped one.")]
Overrides = Annotated[
    Optional[list[str]],  # noqa: UP045 - typer reads it at run time, on 3.10 too
    typer.Option("--set", metavar="KEY.PATH=VALUE", help="Override a key of the space file."),
]
StudiesDir = Annotated[Path, typer.Option(help="Where studies are written.")]
Storage = Annotated[str, typer.Option(help="Database URL, if the study does not know it.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
Name = Annotated[str, typer.Argument(metavar="STUDY", help="The study's name.")]


def main() -> None:
    """The command line, from `sys.argv` to the process's exit code."""
    _open_streams()
    _speak_utf8()
    # Accelerator backends must not load by themselves: this process never touches a device.
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    try:
        app(prog_name="autotune")
    except SystemExit as end:
        if end.code == EXIT_INTERRUPTED:
            # If the signal struck within an exec(), as dataclasses use it, the interpreter would
            # end itself by that signal, whatever was made of the exception.
            _flush_stdout()
            os._exit(EXIT_INTERRUPTED)
        raise


# --- commands ----------------------------------------------------------------------------------


def command(*, closed_pipe: int) -> Callable[[C], C]:
    """Make a function that returns an exit code a command; errors become one line and a code.

    Args:
        closed_pipe: The exit code if whoever reads the output has seen enough of it.
    """

    def decorate(function: C) -> C:
        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> None:
            def body() -> int:
                _check_stdout(kwargs)
                return function(*args, **kwargs)

            as_json = bool(kwargs.get("as_json"))
            raise typer.Exit(_guarded(body, closed_pipe, as_json=as_json))

        app.command()(wrapped)
        return function

    return decorate


@app.callback(invoke_without_command=True)
def options(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Finds how to run an AI model on an accelerator, and proves it."""
    if version:
        print(f"autotune {__version__}")
        raise typer.Exit


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
    from autotune.apps.run import RunInterrupted
    from autotune.apps.run import run as run_study
    from autotune.core.errors import UsageError
    from autotune.space.loader import load_space

    if on_change not in ("refuse", "continue"):
        raise UsageError(f"--on-change {on_change}: write refuse or continue")
    resolved = load_space(space, [*(overrides or ()), *_as_overrides(short)])
    if dry_run:
        return _dry_run(resolved, as_json)
    try:
        with _view(as_json) as view:
            result = run_study(
                resolved,
                studies_dir=studies_dir,
                view=view,
                on_change=on_change,  # type: ignore[arg-type]
                command=_own_command(),
            )
    except RunInterrupted as interruption:
        _print_result(interruption.result, as_json)
        how = " ".join(interruption.result.facts.command)
        print(f"interrupted; what is done is kept. Go on with: {how}", file=sys.stderr)
        return EXIT_INTERRUPTED
    _print_result(result, as_json)
    return _exit_code(result, strict)


@command(closed_pipe=EXIT_OK)
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
        return _exit_code(result, strict)
    if not wishes or not result.trial_count:
        _print_result(result, as_json)
        if top and not as_json:
            _print_lines(top_lines(result, top))
        return _exit_code(result, strict)
    preferred = choose(result, wishes, studies_dir=studies_dir)
    if as_json:
        _print_json({**to_json(result), "preferred": preferred_json(preferred)})
    else:
        _print_result(result, as_json)
        _print_lines(top_lines(result, top) if top else ())
        _print_lines(preferred_lines(preferred))
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
    resolved = load_space(space, [*chosen, *_as_overrides({"device": device})])
    with _view(as_json) as view:
        result = measure_config(resolved, view=view, sessions=sessions)
    if as_json:
        _print_json(result.to_json())
    else:
        _print_lines(measurement_lines(result))
    outcome = str(result.record.verdict.outcome)
    return EXIT_NOTHING if outcome == "over_limit" or (strict and outcome != "ok") else EXIT_OK


@command(closed_pipe=EXIT_INTERRUPTED)
def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="What is asked about, see below.")],
    b: Annotated[
        str, typer.Argument(metavar="[B]", help="What it is held against; the study's baseline.")
    ] = "",
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Measure both again, side by side.")
    ] = False,
    gate: Annotated[bool, typer.Option("--gate", help="Exit 1 if A is a regression.")] = False,
    tolerance: Annotated[
        str, typer.Option(help="The slowdown that must not be missed; none must not alarm.")
    ] = "5%",
    time: Annotated[str, typer.Option(help="Most time to measure, such as 5min.")] = "",
    rate: Annotated[str, typer.Option(help="Arrivals both have to serve, such as 500/s.")] = "",
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Compare different models or devices all the same.")
    ] = False,
    save_baseline: Annotated[
        str, typer.Option(metavar="NAME", help="Keep A as baseline:NAME, and compare nothing.")
    ] = "",
    junit: Annotated[Optional[Path], typer.Option(help="Write JUnit XML.")] = None,  # noqa: UP045
    markdown: Annotated[Optional[Path], typer.Option(help="Write markdown.")] = None,  # noqa: UP045
    studies_dir: StudiesDir = Path("studies"),
    storage: Storage = "",
    strict: Annotated[bool, typer.Option("--strict", help="Exit 1 if undecided.")] = False,
    as_json: AsJson = False,
) -> int:
    """Compare two configurations: a test on their ratio, recorded or measured side by side.

    A and B are a study (its winner), STUDY#12 (a trial), STUDY#baseline,
    STUDY#batch_size=64, space.yaml#batch_size=64, result.json or baseline:NAME.
    """
    from autotune.apps.comparable import compare_options
    from autotune.apps.compare import CompareInterrupted, keep_baseline
    from autotune.apps.compare import compare as compare_sides
    from autotune.apps.history import remember
    from autotune.core.errors import UsageError

    options = compare_options(
        fresh=fresh,
        gate=gate,
        tolerance=tolerance,
        time=time,
        rate=rate,
        anyway=anyway,
        studies_dir=studies_dir,
        storage=storage,
    )
    if save_baseline:
        if b or fresh or gate:
            raise UsageError("--save-baseline keeps A and compares nothing: give A alone")
        print(f"kept as baseline:{save_baseline} in {keep_baseline(a, save_baseline, options)}")
        return EXIT_OK
    try:
        with _view(as_json) as view:
            result = compare_sides(a, b, options, view=view)
    except CompareInterrupted as interruption:
        if interruption.result is not None:
            _print_comparison(interruption.result, as_json)
        elif as_json:
            _print_interrupted()
        print("interrupted; nothing was kept", file=sys.stderr)
        return EXIT_INTERRUPTED
    _print_comparison(result, as_json)
    _write_comparison(result, junit, markdown)
    if gate:
        page = remember(result, studies_dir)
        print(f"history: {page}", file=sys.stderr if as_json else sys.stdout)
    undecided = result.status == "undecided" if gate else result.found == "open"
    failed = result.status == "failed" if gate else result.found == "failed"
    return EXIT_NOTHING if failed or (strict and undecided) else EXIT_OK


@command(closed_pipe=EXIT_OK)
def report(study: Name, studies_dir: StudiesDir = Path("studies"), storage: Storage = "") -> int:
    """Write studies/STUDY/report.html, a single file that needs no network."""
    from autotune.apps.report import report as write

    result = write(study, studies_dir=studies_dir, storage=storage)
    if result.trial_count:
        print(result.report)
    return _exit_code(result)


@command(closed_pipe=EXIT_OK)
def export(
    to: Annotated[
        str,
        typer.Option(help="triton, onnxruntime, openvino, torch, torch_npu, onnx, env or json."),
    ],
    study: Annotated[str, typer.Argument(metavar="[STUDY]", help="The study's name.")] = "",
    space: Annotated[str, typer.Option(help="A space file instead of a study.")] = "",
    out: Annotated[Optional[Path], typer.Option(help="The directory to write into.")] = None,  # noqa: UP045
    unproven: Annotated[
        bool, typer.Option("--unproven", help="Export what is not proven; the files say so.")
    ] = False,
    studies_dir: StudiesDir = Path("studies"),
    storage: Storage = "",
) -> int:
    """Write what a study found, or its model, for other programs; prints the files."""
    from autotune.apps.export import export_space, export_study
    from autotune.core.errors import UsageError

    if bool(study) == bool(space):
        raise UsageError("give the name of a study, or --space FILE")
    if space:
        written = export_space(space, to, out=out)
    else:
        written = export_study(
            study, to, out=out, studies_dir=studies_dir, storage=storage, unproven=unproven
        )
    _print_lines(str(path) for path in written)
    return EXIT_OK


@command(closed_pipe=EXIT_OK)
def buckets(
    lengths: Annotated[Path, typer.Argument(help="CSV: length and perhaps count.")],
    max_buckets: Annotated[int, typer.Option(help="At most so many.")] = 8,
    multiple_of: Annotated[int, typer.Option(help="Sizes are multiples of this.")] = 1,
    cost: Annotated[
        str, typer.Option(help="linear, quadratic, or a CSV of seconds per item by length.")
    ] = "linear",
    item_time: Annotated[str, typer.Option(help="Of an item of the greatest length.")] = "",
    compile_time: Annotated[str, typer.Option(help="Of one bucket.")] = "",
    items: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(help="Items served per compilation; the file's own number if left out."),
    ] = None,
    memory: Annotated[str, typer.Option(help="Of a bucket, such as 200MiB.")] = "",
    memory_per_size: Annotated[str, typer.Option(help="What each unit of size adds.")] = "",
    memory_limit: Annotated[str, typer.Option(help="For all buckets together.")] = "",
    as_json: AsJson = False,
) -> int:
    """Which sequence lengths or image sizes to compile for: the cheapest set of buckets."""
    from autotune.apps.buckets import Ask
    from autotune.apps.buckets import buckets as choose

    found = choose(
        lengths,
        max_buckets,
        Ask(
            multiple_of=multiple_of,
            cost=cost,
            item_time=item_time,
            compile_time=compile_time,
            item_count=items,
            memory=memory,
            memory_per_size=memory_per_size,
            memory_limit=memory_limit,
        ),
    )
    if as_json:
        _print_json(found.to_json())
    else:
        _print_lines(found.lines())
    return EXIT_OK


@command(closed_pipe=EXIT_OK)
def plan(
    study: Name,
    rate: Annotated[str, typer.Option(help="Requests of all devices together: 50000 or 50000/s.")],
    limits: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--limit", help="Instead of the study's: latency_p99=5ms …"),
    ] = None,
    headroom: Annotated[str, typer.Option(help="Share of the capacity that stays free.")] = "30%",
    price_per_hour: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option(help="Of one device, in any currency."),
    ] = None,
    power: Annotated[str, typer.Option(help="Of one device, 300W; else as measured.")] = "",
    per_machine: Annotated[
        int, typer.Option(min=0, help="Devices that share a machine; 0: all of them.")
    ] = 0,
    confirm: Annotated[
        bool, typer.Option("--confirm", help="Measure what the plan rests on.")
    ] = False,
    time: Annotated[str, typer.Option(help="Most time to measure, such as 10min.")] = "",
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="Write the load table as JSON, for a server."),
    ] = None,
    studies_dir: StudiesDir = Path("studies"),
    storage: Storage = "",
    as_json: AsJson = False,
) -> int:
    """How many devices a rate needs, and which configuration serves which load."""
    from autotune.apps.plan import plan as make_plan
    from autotune.apps.plan_confirm import confirm_plan
    from autotune.apps.plan_options import plan_options
    from autotune.results.fleet_words import plan_lines

    options = plan_options(
        rate=rate,
        limits=limits or (),
        headroom=headroom,
        price_per_hour=price_per_hour,
        power=power,
        per_machine=per_machine,
        confirm=confirm,
        time=time,
        out=out,
        studies_dir=studies_dir,
        storage=storage,
    )
    if confirm:
        with _view(as_json) as view:
            found = confirm_plan(study, options, view)
    else:
        found = make_plan(study, options)
    if as_json:
        _print_json(found.to_json())
    else:
        _print_lines(plan_lines(found))
    return EXIT_NOTHING if found.is_open else EXIT_OK


@command(closed_pipe=EXIT_OK)
def diagnose(
    profile: Annotated[
        Path,
        typer.Option(help="A profiler's directory or file: torch_npu, msprof, torch.profiler."),
    ],
    calls: Annotated[
        int, typer.Option(min=0, help="Calls in it, where the profiler did not mark them.")
    ] = 0,
    as_json: AsJson = False,
) -> int:
    """Where the time of a profile goes, and which knob is next."""
    from autotune.apps.diagnose import diagnose_profile

    found = diagnose_profile(profile, call_count=calls or None)
    if as_json:
        _print_json(found.to_json())
    else:
        _print_lines(found.lines())
    return EXIT_OK


@command(closed_pipe=EXIT_OK)
def dashboard(
    study: Annotated[
        str, typer.Argument(metavar="[STUDY]", help="The study's name; the latest if left out.")
    ] = "",
    host: Annotated[
        str, typer.Option(help="Address to listen on; another than this machine's needs a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 8080,
    allow_changes: Annotated[
        bool, typer.Option("--allow-changes", help="Let it delete, rename and make studies.")
    ] = False,
    studies_dir: StudiesDir = Path("studies"),
    storage: Storage = "",
) -> int:
    """Review a study in optuna-dashboard, on this machine only unless asked."""
    from autotune.apps.dashboard import dashboard as prepare

    ready = prepare(
        study,
        studies_dir=studies_dir,
        storage=storage,
        host=host,
        port=port,
        may_change=allow_changes,
    )
    print(f"open {ready.url} (Ctrl-C ends it)", flush=True)
    ready.serve()
    return EXIT_OK


@command(closed_pipe=EXIT_OK)
def serve(
    host: Annotated[
        str, typer.Option(help="Address to listen on; another than this machine's needs a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 9464,
    token_file: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="Holds the token; else a new one is made where it is needed."),
    ] = None,
    studies_dir: StudiesDir = Path("studies"),
) -> int:
    """Serve running studies and verified figures as Prometheus metrics, here only unless asked."""
    from autotune.apps.serve import serve as prepare

    ready = prepare(studies_dir=studies_dir, host=host, port=port, token_file=token_file)
    print(f"metrics at {ready.url} (Ctrl-C ends it)", flush=True)
    ready.serve()
    return EXIT_OK


@command(closed_pipe=EXIT_OK)
def doctor(
    device: Annotated[
        str, typer.Option(help="Try this device as well, such as npu:0; all: every one.")
    ] = "",
    as_json: AsJson = False,
) -> int:
    """Devices of this machine, what is wrong with them, and versions."""
    from autotune.apps.doctor import doctor as look

    found = look(device) if device else look()
    if as_json:
        _print_json(found.to_json())
        return EXIT_OK
    for discovery in found.devices:
        for info in discovery.devices:
            print(f"{info.name:<12} {info.description}")
        if not discovery.devices:
            print(f"{discovery.kind:<12} not usable: {discovery.why_not}")
    for check in found.checks:
        where = f"{check.device} " if check.device else ""
        print(f"{check.status:<12} {where}{check.name}: {check.detail}")
        if check.advice:
            print(f"{'':<12}   {check.advice}")
    for name, text in {**found.versions, "system": found.system}.items():
        print(f"{name:<12} {text or 'not installed'}")
    return EXIT_OK


# --- what is printed ---------------------------------------------------------------------------

_json_said: list[bool] = []  # that an object was begun on the standard output


def _print_result(result: StudyResult, as_json: bool) -> None:
    from autotune.apps.terminal import result_lines
    from autotune.results.tables import to_json

    if as_json:
        _print_json(to_json(result))
        return
    _print_lines(result_lines(result))


def _print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        print(clean(line))


def _print_comparison(result: CompareResult, as_json: bool) -> None:
    from autotune.results.compare_words import compare_lines

    if as_json:
        _print_json(result.to_json())
        return
    _print_lines(compare_lines(result))


def _write_comparison(result: CompareResult, junit: Path | None, markdown: Path | None) -> None:
    from autotune.apps.store import write_whole
    from autotune.results.compare_words import markdown as to_markdown
    from autotune.results.junit import junit as to_junit

    if junit is not None:
        write_whole(junit, to_junit(result))
    if markdown is not None:
        write_whole(markdown, to_markdown(result).encode())


def _dry_run(space: Any, as_json: bool) -> int:
    from autotune.apps.dry_run import dry_run as look
    from autotune.apps.terminal import PlainView
    from autotune.core.units import format_duration

    planned: DryRun = look(space)
    if as_json:
        _print_json(planned.to_json())
        return EXIT_OK
    view = PlainView(print)
    view.resolved(planned.facts)
    for note in planned.notes:
        view.note(note)
    print(f"  {planned.allowed} of {planned.combinations} combinations keep the rules")
    about = format_duration(planned.seconds)
    clock = " of virtual time, which passes in moments" if planned.is_virtual else ""
    most = "at most " if planned.facts.objective.knee_share is not None else ""
    print(
        f"  {most}{planned.trials} trials would be run; about {about}{clock} with the confirmation"
    )
    return EXIT_OK


def _print_json(data: dict[str, Any]) -> None:
    """The one object of this process: what a signal cuts off is not begun anew."""
    _json_said.append(True)
    print(json.dumps(data, allow_nan=False, ensure_ascii=False, indent=1))


def _print_interrupted() -> None:
    from autotune.__main__ import INTERRUPTED

    _print_json(json.loads(INTERRUPTED))


def _nothing_complete(study: str) -> int:
    print(f"no trial of study {study} is complete; run it first", file=sys.stderr)
    return EXIT_NOTHING


def _exit_code(result: StudyResult, strict: bool = False) -> int:
    if not result.trial_count and not result.ending.handed_over:
        return _nothing_complete(result.facts.study)
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


# --- arguments ---------------------------------------------------------------------------------


def _as_overrides(short: dict[str, Any]) -> list[str]:
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
        quoted = shlex.quote(word)
        if word.startswith("-") or not words:
            words.append(quoted)
        else:
            words[-1] += f" {quoted}"
    return ("autotune run", *words)


# --- the process -------------------------------------------------------------------------------


@contextmanager
def _view(as_json: bool) -> Iterator[View]:
    """The view that fits where the output goes; with JSON on stdout, that is stderr."""
    from autotune.apps.terminal import LiveView, PlainView

    stream = sys.stderr if as_json else sys.stdout
    if not stream.isatty():
        yield PlainView(lambda text: print(text, file=stream, flush=True))
        return
    from rich.console import Console

    console = Console(file=stream)
    if console.is_dumb_terminal:
        yield PlainView(lambda text: print(text, file=stream, flush=True))
        return
    with LiveView(console) as live:
        yield live


def _guarded(body: Callable[[], int], closed_pipe: int, *, as_json: bool) -> int:
    """Run a command; turn every expected end into its exit code, with one line for a person."""
    from autotune.core.errors import AutotuneError, StorageError

    debug = os.environ.get("AUTOTUNE_DEBUG") == "1"
    logging.getLogger("autotune").addHandler(_Warnings(logging.WARNING))
    if debug:
        logging.basicConfig(level=logging.DEBUG, stream=sys.stderr)
    try:
        try:
            _on_signals(_interrupt)
            code = body()
            sys.stdout.flush()
        finally:
            _on_signals(signal.SIG_IGN)  # how this ends is settled; a late signal changes nothing
    except AutotuneError as error:
        if debug:
            traceback.print_exc()
        print(clean(f"autotune: {error}"), file=sys.stderr)
        if log_tail := getattr(error, "log_tail", ""):
            print(clean(log_tail.rstrip()), file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("autotune: interrupted", file=sys.stderr)
        if as_json and not _json_said:
            _print_interrupted()
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        _flush_stdout()
        return closed_pipe
    except OSError as error:  # such as a full disk behind the output
        if debug:
            traceback.print_exc()
        where = f"{error.filename}: " if error.filename else ""
        print(f"autotune: {where}{error.strerror or error}", file=sys.stderr)
        _flush_stdout()
        return StorageError.exit_code
    return code


class _Warnings(logging.Handler):
    """Prints the libraries' warnings; `sys.stderr` is looked up anew, a live view replaces it."""

    def emit(self, record: logging.LogRecord) -> None:
        print(clean(f"autotune: {record.getMessage()}"), file=sys.stderr, flush=True)


def _interrupt(_number: int, _frame: object) -> None:
    """End in good order at the first signal; a second one kills at once."""
    _on_signals(signal.SIG_DFL)
    raise KeyboardInterrupt


def _on_signals(action: Callable[[int, Any], None] | signal.Handlers) -> None:
    signal.signal(signal.SIGTERM, action)
    signal.signal(signal.SIGINT, action)


def _open_streams() -> None:
    """Put the null device where a standard stream is closed, before a file takes its number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = Path(os.devnull).open(mode, encoding="utf-8")  # noqa: SIM115 - for good
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)


def _check_stdout(options: dict[str, Any]) -> None:
    """Refuse output that was asked for but would be lost.

    Raises:
        UsageError: Standard output is closed.
    """
    from autotune.core.errors import UsageError

    flag = next((f for f in ("json", "csv") if options.get(f"as_{f}")), None)
    if flag and sys.stdout.name == os.devnull:
        raise UsageError(f"--{flag} writes to the standard output, which is closed")


def _flush_stdout() -> None:
    """Flush what can be; the interpreter must not try it again where that fails."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _speak_utf8() -> None:
    """Study names may be in any script, whatever the locale; start over if it forbids that."""
    if sys.getfilesystemencoding().lower() != "utf-8" and not sys.flags.utf8_mode:
        environment = {**os.environ, "PYTHONUTF8": "1"}
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
