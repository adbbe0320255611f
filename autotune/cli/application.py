"""The application that the commands join, and the options that they share."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Optional, TypeVar

import typer

from autotune.cli.process import check_stdout, guarded
from autotune.version import __version__

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


def command(*, closed_pipe: int) -> Callable[[C], C]:
    """Make a function that returns an exit code a command; errors become one line and a code.

    Args:
        closed_pipe: The exit code if whoever reads the output has seen enough of it.
    """

    def decorate(function: C) -> C:
        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> None:
            def body() -> int:
                check_stdout(kwargs)
                return function(*args, **kwargs)

            as_json = bool(kwargs.get("as_json"))
            raise typer.Exit(guarded(body, closed_pipe, as_json=as_json))

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
