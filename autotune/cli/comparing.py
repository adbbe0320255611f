"""The command that compares, and its gate."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from autotune.cli.application import (
    AsJson,
    Storage,
    StudiesDir,
    command,
)
from autotune.cli.output import print_found, print_interrupted, view_for
from autotune.cli.process import EXIT_INTERRUPTED, EXIT_NOTHING, EXIT_OK

if TYPE_CHECKING:
    from autotune.results.regression import CompareResult


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
        with view_for(as_json) as view:
            result = compare_sides(a, b, options, view=view)
    except CompareInterrupted as interruption:
        if interruption.result is not None:
            _print_comparison(interruption.result, as_json)
        elif as_json:
            print_interrupted()
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


def _print_comparison(result: CompareResult, as_json: bool) -> None:
    from autotune.results.compare_words import compare_lines

    print_found(as_json, result.to_json, lambda: compare_lines(result))


def _write_comparison(result: CompareResult, junit: Path | None, markdown: Path | None) -> None:
    from autotune.apps.store import write_whole
    from autotune.results.compare_words import markdown as to_markdown
    from autotune.results.junit import junit as to_junit

    if junit is not None:
        write_whole(junit, to_junit(result))
    if markdown is not None:
        write_whole(markdown, to_markdown(result).encode())
