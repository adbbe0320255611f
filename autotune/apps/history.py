"""The gates' history on disk: one line of JSON per run, and the page made of them.

studies/.gates/history.jsonl, history.html
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from autotune.apps.store import write_whole
from autotune.core.codec import from_json_dict, to_json_dict
from autotune.core.errors import StorageError, UsageError
from autotune.results.history import GateEntry, entry_of, render_history
from autotune.results.regression import CompareResult
from autotune.version import __version__

FOLDER, LINES, PAGE = ".gates", "history.jsonl", "history.html"
MAX_ENTRIES = 1000
"""Runs that are kept, the newest; a quarter more may gather before the oldest go."""

MAX_BYTES = 16 * 2**20
MAX_TIME_S = 2.0**35  # about the year 3058
MAX_RATIO = 1e9


def remember(result: CompareResult, studies_dir: Path) -> Path:
    """Add a gate's result to the history and write its page anew.

    Returns:
        The page.
    Raises:
        StorageError: It cannot be written.
    """
    folder = studies_dir / FOLDER
    line = json.dumps(to_json_dict(entry_of(result)), allow_nan=False, ensure_ascii=False)
    _append(folder / LINES, f"{line}\n".encode())
    entries = read_history(studies_dir)
    if len(entries) > MAX_ENTRIES + MAX_ENTRIES // 4:
        entries = entries[-MAX_ENTRIES:]
        kept = (json.dumps(to_json_dict(entry), ensure_ascii=False) for entry in entries)
        write_whole(folder / LINES, "".join(f"{text}\n" for text in kept).encode())
    write_whole(folder / PAGE, render_history(entries, version=__version__).encode())
    return folder / PAGE


def read_history(studies_dir: Path) -> list[GateEntry]:
    """All runs that are kept, in the order in which they were written.

    A line that cannot be read is passed over: a run that was killed may have left half of one.

    Raises:
        StorageError: The file cannot be read.
    """
    path = studies_dir / FOLDER / LINES
    try:
        with path.open("rb") as file:
            lines = file.read(MAX_BYTES).splitlines()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror}") from error
    entries = []
    for line in lines:
        try:
            entry = from_json_dict(GateEntry, json.loads(line))
        except (ValueError, TypeError, AttributeError, RecursionError, UsageError):
            continue
        if _can_be(entry):
            entries.append(entry)
    return entries


def _can_be(entry: GateEntry) -> bool:
    """Whether its time is one, and its figures can be drawn."""
    figures = [x for x in (entry.ratio, *(entry.ci95 or ())) if x is not None]
    return (
        0 <= entry.at_s < MAX_TIME_S
        and all(0 < x < MAX_RATIO for x in figures)
        and 0 < entry.tolerance < 1
    )


def _append(path: Path, data: bytes) -> None:
    """Add to a file in one go, so that two gates at a time do not mix their lines."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            if path.stat().st_size and not path.read_bytes().endswith(b"\n"):
                data = b"\n" + data
            os.write(handle, data)
        finally:
            os.close(handle)
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror}") from error
