"""Foreign text made safe to keep and to show: what models print and raise may hold anything."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

MASK = "***"
"""Stands where a secret was."""

_ESCAPE_SEQUENCE = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])"
)
# All of these are bounded: what is looked through may be anything, and long.
# A password may hold an @ itself; the word that stands for one in advice is none.
_USERINFO = re.compile(r"(?<=://)([^\s:/?#@'\"]*):(?!password@)[^\s'\"]*@")
_WORD = re.compile(r"[^\s'\"]+")
_SECRET_PARAMETER = re.compile(
    r"([?&](?:\w{0,64}(?:password|passwd|pwd|secret|token|api_?key)\w{0,64})=)"
    r"[^\s&#'\"]*[^\s&#'\":;,.]",
    re.IGNORECASE,
)
_NAME = (
    r"(?:[\w-]{0,64}(?:api[-_]?key|passw(?:or)?d|secret(?:[-_]key)?|(?:access|private)[-_]key)"
    r"|(?:api|auth|access|hf|bearer|session|refresh)[-_]token"
)
_QUOTED = r"(?<=\")[^\"\n]+|(?<=')[^'\n]+"
_VALUE = rf"(?!(?:bearer|basic)\s)(?![-{{$*])(?:{_QUOTED}|[^\s\"',\[\]}})]+)"
# As words of a command, also in lists of YAML and of Python: --api-key X, '--token', 'X'.
_SECRET_OPTION = re.compile(
    rf"((?<![\w-])--{_NAME}|token)[\"']?(?:=|\s*,\s*|\s+(?:-\s+)?)[\"']?){_VALUE}", re.IGNORECASE
)
# As a key with its value: api_key: X, "authorization": "Bearer X".
_SECRET_KEY = re.compile(
    rf"((?<![\w-]){_NAME}|authorization)[\"']?\s*[:=]\s*\[?[\"']?(?:(?:bearer|basic)\s+)?){_VALUE}",
    re.IGNORECASE,
)
# Of a variable of the environment.
_SECRET_NAME = re.compile(
    r"(?:TOKEN|SECRET|PASSW(?:OR)?D|_PWD|_PASS|(?:API|ACCESS|PRIVATE|SECRET|AUTH|MASTER)_?KEY)$",
    re.IGNORECASE,
)
MIN_SECRET_CHARS = 8  # what is shorter may be a word of any text
# What turns the order of the characters behind it counts too: it would turn a whole page.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def clean(text: str) -> str:
    """Text without escape sequences, control characters (newline and tab apart) and surrogates."""
    text = text.encode("utf-8", errors="backslashreplace").decode("utf-8")
    text = _ESCAPE_SEQUENCE.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))
    return _CONTROL.sub("", text)


def without_secrets(text: str) -> str:
    """Text without passwords: of URLs, of a command's options, of keys, of the environment."""
    text = _SECRET_PARAMETER.sub(rf"\1{MASK}", _WORD.sub(_without_userinfo, text))
    text = _SECRET_KEY.sub(rf"\1{MASK}", _SECRET_OPTION.sub(rf"\1{MASK}", text))
    for secret in sorted(_secrets_of_environment(), key=len, reverse=True):
        text = text.replace(secret, MASK)
    return text


def _without_userinfo(word: re.Match[str]) -> str:
    # Behind the last @ there is none; to look for one from every colon would take for ever.
    head, at, tail = word[0].rpartition("@")
    return _USERINFO.sub(rf"\1:{MASK}@", head + at) + tail


def is_secret(name: str, value: str) -> bool:
    """Whether a variable of the environment holds a secret, by its name and length."""
    is_long = len(value) >= MIN_SECRET_CHARS and not value.isdigit()
    return is_long and _SECRET_NAME.search(name) is not None


def _secrets_of_environment() -> Iterator[str]:
    return (value for name, value in os.environ.items() if is_secret(name, value))


def keepable(text: str) -> str:
    """Foreign text as it may be kept and shown: what a child printed, what an error says."""
    return without_secrets(clean(text))


def describe(error: BaseException) -> str:
    """An exception's type and text, whatever its `__str__` does."""
    try:
        words = str(error)
    except Exception as failure:
        words = f"(its text cannot be had: {type(failure).__name__})"
    return keepable(f"{type(error).__name__}: {words}" if words else type(error).__name__)
