"""A command's words and their placeholders.

`{batch_size}` stands for a parameter. `{{name}}` is a literal `{name}`; all other braces, such
as those of JSON, are literal as they are.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping

from autotune.core.records import Scalar, WorkloadSpec

_PLACEHOLDER = re.compile(r"\{\{[A-Za-z_][\w.]*\}\}|\{([A-Za-z_][\w.]*)\}", re.ASCII)


def placeholders(words: Iterable[str]) -> tuple[str, ...]:
    """The names used in a command, each once, in order."""
    found = (match.group(1) for word in words for match in _PLACEHOLDER.finditer(word))
    return tuple(dict.fromkeys(name for name in found if name))


FACTS = ("duration_s", "iterations", "device", "device_index", "seed")
"""Placeholders beside the parameters: what a trial wants of the program."""

SERVER_FACTS = ("port", "device", "device_index", "seed")
"""The same of a server, which does not measure: a free port of this machine that it is to use."""


def words_of(spec: WorkloadSpec) -> tuple[str, ...]:
    """All texts of a workload that may hold placeholders; () for one that starts no program."""
    command = spec.options.get("command")
    words = [str(word) for word in command] if isinstance(command, list) else []
    request = spec.options.get("request")
    if isinstance(request, Mapping):
        texts = (request.get("path"), request.get("body"))
        words += [str(text) for text in texts if text]
    return tuple(words)


def facts_of(spec: WorkloadSpec) -> tuple[str, ...]:
    """The placeholders beside the parameters that such a workload knows."""
    return SERVER_FACTS if spec.kind == "server" else FACTS


def fill(words: Iterable[str], values: Mapping[str, Scalar], *, quote: bool = False) -> list[str]:
    """The words with values in place of their placeholders.

    Args:
        quote: Quote each value for a shell.
    Raises:
        KeyError: A placeholder has no value.
    """

    def value(match: re.Match[str]) -> str:
        if match.group(1) is None:
            return match.group()[1:-1]
        text = _written(values[match.group(1)])
        return shlex.quote(text) if quote else text

    return [_PLACEHOLDER.sub(value, word) for word in words]


def _written(value: Scalar) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def split(text: str) -> list[str]:
    """Words of a command given as text; no shell is involved.

    Raises:
        ValueError: A quote is not closed, or there is no word.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"cannot be split into words ({error}); give a list of words") from None
    if not words:
        raise ValueError("the command has no words")
    return words
