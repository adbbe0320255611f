"""Foreign text made safe to keep and to show: what models print and raise may hold anything."""

from __future__ import annotations

import re

_ESCAPE_SEQUENCE = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])"
)
# A password may hold an @ itself; the word that stands for one in advice is none.
_USERINFO = re.compile(r"(?<=://)([^\s:/?#@'\"]*):(?!password@)[^\s'\"]*@")
_SECRET_PARAMETER = re.compile(
    r"([?&](?:\w*(?:password|passwd|pwd|secret|token|api_?key)\w*)=)"
    r"[^\s&#'\"]*[^\s&#'\":;,.]",
    re.IGNORECASE,
)
# What turns the order of the characters behind it counts too: it would turn a whole page.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def clean(text: str) -> str:
    """Text without escape sequences, control characters (newline and tab apart) and surrogates."""
    text = text.encode("utf-8", errors="backslashreplace").decode("utf-8")
    text = _ESCAPE_SEQUENCE.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))
    return _CONTROL.sub("", text)


def without_secrets(text: str) -> str:
    """Text in which no URL has its password, nor a parameter that is one."""
    return _SECRET_PARAMETER.sub(r"\1***", _USERINFO.sub(r"\1:***@", text))


def describe(error: BaseException) -> str:
    """An exception's type and text, whatever its `__str__` does."""
    try:
        words = str(error)
    except Exception as failure:
        words = f"(its text cannot be had: {type(failure).__name__})"
    return clean(f"{type(error).__name__}: {words}" if words else type(error).__name__)
