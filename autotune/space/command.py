"""A command's words and their placeholders.

`{batch_size}` stands for a parameter. `{{name}}` is a literal `{name}`; all other braces, such
as those of JSON, are literal as they are.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

_PLACEHOLDER = re.compile(r"\{\{[A-Za-z_][\w.]*\}\}|\{([A-Za-z_][\w.]*)\}", re.ASCII)


def placeholders(words: Iterable[str]) -> tuple[str, ...]:
    """The names used in a command, each once, in order."""
    found = (match.group(1) for word in words for match in _PLACEHOLDER.finditer(word))
    return tuple(dict.fromkeys(name for name in found if name))


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
