"""What is printed, and the view that shows progress."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from autotune.core.text import clean

if TYPE_CHECKING:
    from autotune.apps.view import View
    from autotune.results.study_result import StudyResult

json_said: list[bool] = []
"""That an object was begun on the standard output."""


def print_result(result: StudyResult, as_json: bool) -> None:
    from autotune.apps.terminal import result_lines
    from autotune.results.tables import to_json

    print_found(as_json, lambda: to_json(result), lambda: result_lines(result))


def print_found(
    as_json: bool, to_json: Callable[[], dict[str, Any]], lines: Callable[[], Iterable[str]]
) -> None:
    """What a command found, for a program or for a person."""
    if as_json:
        print_json(to_json())
    else:
        print_lines(lines())


def print_lines(lines: Iterable[str]) -> None:
    for line in lines:
        print(clean(line))


def print_json(data: dict[str, Any]) -> None:
    """The one object of this process: what a signal cuts off is not begun anew."""
    json_said.append(True)
    print(json.dumps(data, allow_nan=False, ensure_ascii=False, indent=1))


def print_interrupted() -> None:
    from autotune.__main__ import INTERRUPTED

    print_json(json.loads(INTERRUPTED))


@contextmanager
def view_for(as_json: bool) -> Iterator[View]:
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
