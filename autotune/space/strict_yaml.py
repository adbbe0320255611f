"""YAML read strictly: every scalar stays as written until the schema says what it must be.

YAML 1.1 turns `on` into true, `010` into 8 and `1:30` into 90 before anyone can object. Here a
file becomes a tree of `Node`s whose scalars are text; `scalars.py` reads them as what is wanted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Union

import yaml

from autotune.core.errors import UsageError

MAX_BYTES = 256 * 1024
MAX_DEPTH = 24
MAX_NODES = 12_000  # after aliases are expanded
MAX_SHOWN_CHARS = 60

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]")

Value = Union[str, "dict[str, Node]", "list[Node]"]
Path = tuple[Union[str, int], ...]


@dataclass(frozen=True, slots=True)
class Node:
    """A value of the file and where it stands.

    Attributes:
        value: Text, keys to nodes, or nodes; None: nothing was written.
        place: "online.yaml:12", or "--set params.batch_size".
        is_plain: A scalar without quotes, so that it may be a number or a boolean.
        node_count: Nodes in this tree with aliases expanded.
        key_places: Where each key of a mapping stands.
    """

    value: Value | None
    place: str
    is_plain: bool = False
    node_count: int = 1
    key_places: dict[str, str] | None = None

    def at(self, path: Path) -> Node:
        """The deepest node on `path` that exists."""
        node = self
        for step in path:
            if not isinstance(node.value, (dict, list)):
                return node
            try:
                node = node.value[step]  # type: ignore[index]
            except (KeyError, IndexError, TypeError):
                return node
        return node

    def place_of(self, path: Path) -> str:
        """Where the key or item at the end of `path` stands."""
        if path and isinstance(path[-1], str):
            parent = self.at(path[:-1])
            if parent.key_places and path[-1] in parent.key_places:
                return parent.key_places[path[-1]]
        return self.at(path).place


def parse(data: bytes | str, name: str, *, is_override: bool = False) -> Node:
    """Read one YAML document.

    Args:
        name: File name for messages; for an override, the whole place.
    Raises:
        UsageError: One line: place, what is wrong.
    """
    text = _decode(data, name) if isinstance(data, bytes) else data
    bad = _CONTROL.search(text)
    if bad:
        place = name if is_override else f"{name}:{_line_of(text, bad.start())}"
        raise UsageError(f"{place}: character U+{ord(bad.group()):04X} is not allowed in YAML")
    builder = _Builder(name, is_override)
    try:
        return builder.document(yaml.parse(text, Loader=yaml.SafeLoader))
    except yaml.YAMLError as error:
        raise UsageError(_explain(error, text, builder)) from None


def shown(value: object) -> str:
    """A value as messages quote it, bounded in length."""
    text = str(value)
    text = text if len(text) <= MAX_SHOWN_CHARS else text[: MAX_SHOWN_CHARS - 1] + "…"
    return text.encode("unicode_escape").decode() if not text.isprintable() else text


def kind_of(node: Node) -> str:
    """What a node is, in a user's words: "a list", "text '16'", "nothing"."""
    if node.value is None:
        return "nothing"
    if isinstance(node.value, dict):
        return "a mapping"
    if isinstance(node.value, list):
        return "a list"
    return f"{shown(node.value)}" if node.is_plain else f"the text '{shown(node.value)}'"


def dump(node: Node, indent: int = 0) -> str:
    """YAML that `parse` reads back as the same tree; comments are lost."""
    pad, value = "  " * indent, node.value
    if isinstance(value, dict):
        lines = [f"{pad}{_key_text(k)}:{_after(v, indent)}" for k, v in value.items()]
        return "\n".join(lines) if lines else f"{pad}{{}}"
    if isinstance(value, list):
        return "\n".join(f"{pad}-{_after(v, indent)}" for v in value) if value else f"{pad}[]"
    return pad + ("null" if value is None else _scalar(value, node.is_plain))


def _after(node: Node, indent: int) -> str:
    if isinstance(node.value, (dict, list)) and node.value:
        return "\n" + dump(node, indent + 1)
    return " " + dump(node)


def _scalar(text: str, is_plain: bool) -> str:
    if is_plain and _reads_back(text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in escaped) + '"'


def _key_text(key: str) -> str:
    is_text = key.lower() not in BOOLEAN_WORDS and yaml11_kind(key) is None
    return _scalar(key, is_text)


def _reads_back(text: str) -> bool:
    """True if `text` without quotes is the same text again."""
    try:
        node = parse(text, "")
    except UsageError:
        return False
    return node.value == text and node.is_plain


class _Builder:
    """Turns YAML events into nodes; refuses what could change or multiply values unseen."""

    def __init__(self, name: str, is_override: bool) -> None:
        self._name = name
        self._is_override = is_override
        self._anchors: dict[str, Node | None] = {}
        self._count = 0
        self._events: Iterator[Any] = iter(())

    def place(self, mark: Any) -> str:
        return self._name if self._is_override or mark is None else f"{self._name}:{mark.line + 1}"

    def document(self, events: Iterator[Any]) -> Node:
        self._events = events
        root: Node | None = None
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                if root is not None:
                    self._refuse(event, "a second document begins; one file is one study")
                root = self._node(next(events), 0)
        if root is None:
            raise UsageError(f"{self._name}: the file is empty; it needs at least `workload`")
        return root

    def _refuse(self, event: Any, message: str) -> None:
        raise UsageError(f"{self.place(event.start_mark)}: {message}")

    def _node(self, event: Any, depth: int) -> Node:
        if depth > MAX_DEPTH:
            self._refuse(event, f"values are nested more than {MAX_DEPTH} deep")
        if isinstance(event, yaml.AliasEvent):
            return self._counted(event, self._aliased(event))
        tag = getattr(event, "tag", None)
        if tag is not None and tag != "!":
            self._refuse(event, f"YAML tags such as {shown(tag)} are not allowed; data only")
        if event.anchor:
            self._anchors[event.anchor] = None  # being built: an alias to it would be endless
        if isinstance(event, yaml.ScalarEvent):
            node = self._scalar(event)
        elif isinstance(event, yaml.SequenceStartEvent):
            node = self._list(event, depth)
        else:
            node = self._mapping(event, depth)
        if event.anchor:
            self._anchors[event.anchor] = node
        return node

    def _aliased(self, event: Any) -> Node:
        if event.anchor not in self._anchors:
            self._refuse(event, f"*{shown(event.anchor)} has no anchor before it")
        node = self._anchors[event.anchor]
        if node is None:
            self._refuse(event, f"the anchor &{shown(event.anchor)} contains itself")
        assert node is not None
        return node

    def _counted(self, event: Any, node: Node) -> Node:
        self._count += node.node_count
        if self._count > MAX_NODES:
            self._refuse(event, f"more than {MAX_NODES} values once aliases are expanded")
        return node

    def _scalar(self, event: Any) -> Node:
        is_plain = event.style in (None, "") and event.tag is None
        is_nothing = is_plain and event.value in ("", "~", "null", "Null", "NULL")
        value = None if is_nothing else event.value
        return self._counted(event, Node(value, self.place(event.start_mark), is_plain))

    def _list(self, event: Any, depth: int) -> Node:
        items: list[Node] = []
        while not isinstance(item := next(self._events), yaml.SequenceEndEvent):
            items.append(self._node(item, depth + 1))
        size = 1 + sum(item.node_count for item in items)
        self._counted(event, Node(None, ""))
        return Node(items, self.place(event.start_mark), node_count=size)

    def _mapping(self, event: Any, depth: int) -> Node:
        values: dict[str, Node] = {}
        places: dict[str, str] = {}
        merged: list[tuple[Any, Node]] = []
        while not isinstance(key := next(self._events), yaml.MappingEndEvent):
            text = self._key(key, depth)
            value = self._node(next(self._events), depth + 1)
            if text == "<<" and key.style in (None, ""):
                merged.append((key, value))
                continue
            if text in values:
                first = (
                    "" if self._is_override else f", first in line {places[text].rsplit(':')[-1]}"
                )
                self._refuse(key, f"the key '{shown(text)}' is given twice{first}")
            values[text], places[text] = value, self.place(key.start_mark)
        for key, base in merged:
            self._merge(key, base, values, places)
        size = 1 + sum(node.node_count for node in values.values())
        self._counted(event, Node(None, ""))
        return Node(values, self.place(event.start_mark), False, size, places)

    def _key(self, event: Any, depth: int) -> str:
        node = self._node(event, depth + 1)
        if not isinstance(node.value, str):
            self._refuse(event, f"a key must be text, found {kind_of(node)}")
        text = str(node.value)
        if node.is_plain and (text.lower() in BOOLEAN_WORDS or yaml11_kind(text) is not None):
            hint = f'quote it if it is meant: "{shown(text)}"; a list needs brackets: [1, 2]'
            self._refuse(event, f"the key {shown(text)} is not text to YAML; {hint}")
        return text

    def _merge(
        self, event: Any, base: Node, values: dict[str, Node], places: dict[str, str]
    ) -> None:
        """`<<: *base`: keys of `base` that are not given here."""
        for source in base.value if isinstance(base.value, list) else [base]:
            if not isinstance(source.value, dict) or source.key_places is None:
                self._refuse(event, f"<< merges mappings, found {kind_of(source)}")
            assert isinstance(source.value, dict)
            for key, node in source.value.items():
                if key not in values:
                    values[key], places[key] = node, (source.key_places or {})[key]


BOOLEAN_WORDS = {
    "true": True, "yes": True, "on": True, "false": False, "no": False, "off": False,
}  # fmt: skip

_LEADING_ZERO = re.compile(r"[+-]?0[0-9]+(\.[0-9]*)?")
_RESOLVER = yaml.resolver.Resolver()


def yaml11_kind(text: str) -> str | None:
    """What plain text could be taken for: "number" or "date"; None for neither.

    Number is what YAML 1.1 changes silently (010, 1_000, 1:30, 0x10) and leading zeros (08).
    """
    if _LEADING_ZERO.fullmatch(text):
        return "number"
    tag = _RESOLVER.resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]
    kind = str(tag).rsplit(":", 1)[-1]
    return {"int": "number", "float": "number", "timestamp": "date"}.get(kind)


def _decode(data: bytes, name: str) -> str:
    if len(data) > MAX_BYTES:
        raise UsageError(f"{name}: {len(data)} bytes; a space file has at most {MAX_BYTES}")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        byte = data[error.start]
        raise UsageError(
            f"{name}:{line}: not UTF-8 text (byte 0x{byte:02x}); save the file as UTF-8"
        ) from None


def _line_of(text: str, index: int) -> int:
    return text.count("\n", 0, index) + 1


def _explain(error: yaml.YAMLError, text: str, builder: _Builder) -> str:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    problem = getattr(error, "problem", None) or getattr(error, "context", None) or "not YAML"
    lines = text.splitlines()
    line = lines[mark.line] if mark is not None and mark.line < len(lines) else ""
    if "\t" in line[: len(line) - len(line.lstrip())] or "'\\t'" in problem:
        problem = "a tab cannot indent YAML; use spaces"
    elif "cannot start any token" in problem or "chomping or indentation" in problem:
        problem += "; quote text that begins with a special character"
    return f"{builder.place(mark)}: {shown_long(problem)}"


def shown_long(text: str, limit: int = 200) -> str:
    """A sentence bounded in length, on one line."""
    text = " ".join(text.split())
    return text if len(text) <= limit else text[: limit - 1] + "…"
