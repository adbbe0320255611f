"""The report in other languages: a catalogue of sentences with places for what varies.

The report's sentences are made in English, and many are kept with a study in English: reasons,
verdicts, signs of noise. So it is finished sentences that are translated, by catalogues in the
format of gettext (`zh.po`), which translators' tools can open:

    msgid "{count:n} of {total:n} configurations were not tried."
    msgstr "{total} 个配置中有 {count} 个未试验。"

`{count:n}` stands for a number, `{name:w}` for a word or a list of words, `{names:l}` for a list
whose "and" and "or" are translated, `{reason:t}` for a text that is translated in its turn, and
`{text}` for any text, which stays as it is.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from importlib import resources
from typing import NamedTuple

from autotune.core.errors import UsageError
from autotune.results.document import Say, Verbatim

LANGUAGES = {"en": "en", "zh": "zh-Hans"}
"""Languages of the report, each with its tag in HTML."""

MAX_REMEMBERED = 20_000
MAX_DEPTH = 6
"""How deep sentences may stand inside of sentences."""

_PLACE = re.compile(r"\{(\w+)(?::([nwlt]))?\}")
_KINDS = {
    "n": r"[-+]?[\d.,]*\d[\d.,]*(?:e[-+]?\d+)?",
    "w": r"[^\s;]+(?:, [^\s;]+)*",
    "l": ".+?",
    "t": ".+?",
}
_ANY = r"(?:(?!; ).)+?"
"""A text that stays as it is ends where the next sentence begins."""

_WORD = re.compile(r"[A-Za-z]{2}")
_BREAKS = (
    re.compile(r"(?<=[.])\s+(?=[A-Z])"), re.compile(r"(?<=;)\s+"), re.compile(r"(?<=,) ")
)  # fmt: skip
_CONJUNCTION = re.compile(r" (and|or) ")
_STOPS = str.maketrans({";": "；", ",": "，", ".": "。"})


class Phrase(NamedTuple):
    """A sentence with its translation.

    Attributes:
        pattern: Matches the whole sentence. `literal`: a part that every match has.
        nested: Places whose text is translated too. `lists`: those that are lists.
    """

    pattern: re.Pattern[str]
    literal: str
    text: str
    nested: frozenset[str]
    lists: frozenset[str]


def language(code: str) -> Say:
    """What says the report's texts in a language; English ones are left as they are.

    Raises:
        UsageError: There is no such language.
    """
    if code not in LANGUAGES:
        raise UsageError(f"language {code!r} is unknown; there are {', '.join(LANGUAGES)}")
    return str if code == "en" else _catalogue(code)


@cache
def _catalogue(code: str) -> Catalogue:
    text = (resources.files("autotune.results") / f"{code}.po").read_text(encoding="utf-8")
    return Catalogue(dict(read_po(text)))


class Catalogue:
    """Translates finished English sentences; what it does not know stays as it is."""

    def __init__(self, phrases: dict[str, str]) -> None:
        self._exact = {m: text for m, text in phrases.items() if not _PLACE.search(m)}
        patterns = [_phrase(m, text) for m, text in phrases.items() if m not in self._exact]
        # What begins with words of its own says what the rest is; else what has most of them.
        self._phrases = [phrase for _, phrase in sorted(patterns, key=lambda p: p[0])]
        self._known: dict[str, str] = {}

    def __call__(self, text: str) -> str:
        if isinstance(text, Verbatim) or not _WORD.search(text):
            return text
        if text not in self._known:
            if len(self._known) >= MAX_REMEMBERED:
                self._known.clear()
            self._known[text] = self._said(text, MAX_DEPTH)
        return self._known[text]

    def knows(self, text: str) -> bool:
        """True if the text as a whole stands in the catalogue."""
        return self._whole(text, MAX_DEPTH) is not None

    def _said(self, text: str, depth: int) -> str:
        whole = self._whole(text, depth)
        return self._in_parts(text, depth) if whole is None else whole

    def _whole(self, text: str, depth: int) -> str | None:
        if text in self._exact:
            return self._exact[text]
        for phrase in self._phrases:
            if phrase.literal in text and (match := phrase.pattern.fullmatch(text)):
                return _filled(self, phrase, match, depth)
        return None

    def _in_parts(self, text: str, depth: int) -> str:
        """Sentence by sentence, then part by part, where at least one of them is known."""
        for breaks in _BREAKS if depth > 0 else ():
            parts = breaks.split(text)
            said = [self._part(part, depth - 1) for part in parts] if len(parts) > 1 else parts
            if said != parts:
                pairs = zip(parts, said, strict=True)
                return "".join(f"{part} " if new == part else new for part, new in pairs).rstrip()
        return text

    def _part(self, part: str, depth: int) -> str:
        """A part with the stop behind it, which the catalogue need not have."""
        stop = part[-1:]
        whole = self._whole(part, depth) if stop not in ";," else None
        if whole is not None or stop not in ";,.":
            return self._in_parts(part, depth) if whole is None else whole
        bare = part[:-1]
        said = self._said(bare, depth)
        return part if said == bare else said + stop.translate(_STOPS)


def _filled(catalogue: Catalogue, phrase: Phrase, match: re.Match[str], depth: int) -> str:
    def place(found: re.Match[str]) -> str:
        name, value = found.group(1), match.group(found.group(1))
        if name in phrase.lists:
            return _CONJUNCTION.sub(lambda one: f" {catalogue(one.group(1))} ", value)
        return catalogue._said(value, depth - 1) if name in phrase.nested and depth else value

    return _PLACE.sub(place, phrase.text)


def _phrase(message: str, text: str) -> tuple[tuple[bool, int], Phrase]:
    """The phrase, and its rank among those that match the same text."""
    last, parts, literals = 0, [], []
    kinds: dict[str, set[str]] = {"t": set(), "l": set()}
    for place in _PLACE.finditer(message):
        literals.append(message[last : place.start()])
        name, kind = place.groups()
        parts += [re.escape(literals[-1]), f"(?P<{name}>{_KINDS.get(kind, _ANY)})"]
        kinds.get(kind, set()).add(name)
        last = place.end()
    literals.append(message[last:])
    pattern = re.compile("".join([*parts, re.escape(literals[-1])]), re.DOTALL)
    longest = max(literals, key=len)
    nested, lists = frozenset(kinds["t"]), frozenset(kinds["l"])
    rank = (not literals[0], -sum(map(len, literals)))
    return rank, Phrase(pattern, longest, text, nested, lists)


def read_po(text: str) -> Iterator[tuple[str, str]]:
    """Messages with their translations from a catalogue in gettext's format.

    Raises:
        ValueError: A line is none of such a catalogue.
    """
    entry: dict[str, str] = {}
    key = ""
    for line in [*text.splitlines(), ""]:
        line = line.strip()
        if line.startswith(("msgid ", "msgstr ")):
            word, line = line.split(" ", 1)
            if word == "msgid":
                yield from _finished(entry)
                entry = {}
            key, entry[word] = word, ""
        if line.startswith('"'):
            entry[key] += ast.literal_eval(line)
        elif line and not line.startswith("#"):
            raise ValueError(f"not a line of a catalogue: {line!r}")
    yield from _finished(entry)


def _finished(entry: dict[str, str]) -> Iterator[tuple[str, str]]:
    if entry.get("msgid"):  # the empty one is the catalogue's head
        yield entry["msgid"], entry["msgstr"]
