"""A report before it has a form: sections made of blocks, which HTML and Markdown both can show.

A section is a function from a study to a `Section`, see `sections.SECTIONS`. Its texts are English;
`said` gives it in another language. What is not the report's own word (names, values, errors of the
user's) is `Verbatim`, and stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Union

from autotune.results.charts import Chart
from autotune.results.lanes import Lanes
from autotune.results.summary import Figure

Say = Callable[[str], str]
"""A text of the report in the reader's language."""

FIRST_ROWS = 4
"""Rows of a table that a narrow page shows at once; the style sheet counts the same."""

WIDE, NARROW, BROAD = (540, 330), (340, 290), (1110, 400)
"""Chart sizes in CSS pixels: drawn for the width they are shown at, so that text keeps its size."""


class Verbatim(str):
    """Text that is not the report's own, and the same in all languages."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Paragraph:
    """A paragraph; `is_empty`: it stands where there is nothing to show."""

    name: ClassVar[str] = "paragraph"
    text: str
    is_empty: bool = False

    def said(self, say: Say) -> Paragraph:
        return replace(self, text=say(self.text))


@dataclass(frozen=True, slots=True, kw_only=True)
class Bullets:
    """Sentences, one after the other."""

    name: ClassVar[str] = "bullets"
    items: tuple[str, ...]

    def said(self, say: Say) -> Bullets:
        return replace(self, items=tuple(map(say, self.items)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A parameter's value; `is_searched`: it was chosen among several."""

    name: str
    value: str
    is_searched: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """A configuration."""

    name: ClassVar[str] = "choices"
    choices: tuple[Choice, ...]

    def said(self, _say: Say) -> Choices:
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiles:
    """The few figures that matter."""

    name: ClassVar[str] = "tiles"
    tiles: tuple[Figure, ...]

    def said(self, say: Say) -> Tiles:
        tiles = (
            Figure(name=say(t.name), figure=say(t.figure), detail=say(t.detail)) for t in self.tiles
        )
        return replace(self, tiles=tuple(tiles))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """Names with texts, perhaps under a title of their own; `is_line`: on one line if they fit."""

    name: ClassVar[str] = "pairs"
    pairs: tuple[tuple[str, str], ...]
    title: str = ""
    is_line: bool = False

    def said(self, say: Say) -> Pairs:
        pairs = tuple((say(name), say(text)) for name, text in self.pairs)
        return replace(self, pairs=pairs, title=say(self.title))


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command for a shell, in words between which a line may break."""

    name: ClassVar[str] = "command"
    purpose: str
    words: tuple[str, ...]

    def said(self, say: Say) -> Command:
        return replace(self, purpose=say(self.purpose))


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreign:
    """Text of a program or a file, line by line; `is_folded`: shown when it is asked for."""

    name: ClassVar[str] = "foreign"
    title: str
    text: str
    is_folded: bool = True

    def said(self, say: Say) -> Foreign:
        return replace(self, title=say(self.title))


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column: `kind` is its CSS class, `label` its name where a row stands alone."""

    name: str
    kind: str = "number"
    unit: str = ""

    @property
    def label(self) -> str:
        return f"{self.name}, {self.unit}" if self.unit else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row: `kind` is its CSS class, `id` its anchor."""

    cells: tuple[str, ...]
    kind: str = ""
    id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table with the sentence above it.

    Attributes:
        unfold: Asks a narrow page for the rows beyond the first few; empty: all are shown.
    """

    name: ClassVar[str] = "table"
    caption: str
    columns: tuple[Column, ...] = ()
    rows: tuple[Row, ...] = ()
    unfold: str = ""

    @property
    def is_cut(self) -> bool:
        """True if a narrow page shows its first rows alone."""
        return bool(self.unfold) and len(self.rows) > FIRST_ROWS

    def said(self, say: Say) -> Table:
        columns = (replace(c, name=say(c.name), unit=say(c.unit)) for c in self.columns)
        rows = (replace(row, cells=tuple(map(say, row.cells))) for row in self.rows)
        return replace(
            self,
            caption=say(self.caption),
            columns=tuple(columns),
            rows=tuple(rows),
            unfold=say(self.unfold),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A chart with its title, drawn for a wide page and for a narrow one."""

    title: str
    drawing: Chart | Lanes
    size: tuple[int, int] = WIDE

    def said(self, say: Say) -> Picture:
        return replace(self, title=say(self.title), drawing=self.drawing.said(say))


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """An entry of a legend: what a look means.

    Attributes:
        look: "line", "area" or the CSS class of a mark; `colour`: a variable of the style sheet.
    """

    look: str
    text: str
    colour: str = "ink-2"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pictures:
    """Charts side by side under their legends."""

    name: ClassVar[str] = "pictures"
    pictures: tuple[Picture, ...]
    legends: tuple[tuple[Key, ...], ...] = ()

    def said(self, say: Say) -> Pictures:
        legends = (tuple(replace(k, text=say(k.text)) for k in keys) for keys in self.legends)
        pictures = tuple(picture.said(say) for picture in self.pictures)
        return replace(self, pictures=pictures, legends=tuple(legends))


Block = Union[Paragraph, Bullets, Choices, Tiles, Pairs, Command, Foreign, Table, Pictures]


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of the report under its title."""

    title: str
    blocks: tuple[Block, ...]

    def said(self, say: Say) -> Section:
        blocks: tuple[Block, ...] = tuple(block.said(say) for block in self.blocks)
        return replace(self, title=say(self.title), blocks=blocks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A report.

    Attributes:
        study: Its name. `subject`: what it is about.
        notice: Of figures that were not measured: a word, and what it means; empty: they were.
        status: As of `StudyResult.status`; `status_word`, `status_meaning`: in words.
        decision: The headline; `blocks`: what is below it.
        sections: All that follows.
    """

    study: str
    subject: str
    notice: tuple[str, str] | None
    status: str
    status_word: str
    status_meaning: str
    decision: str
    blocks: tuple[Block, ...]
    sections: tuple[Section, ...]
    footer: str

    def said(self, say: Say) -> Document:
        blocks: tuple[Block, ...] = tuple(block.said(say) for block in self.blocks)
        return replace(
            self,
            subject=say(self.subject),
            notice=(say(self.notice[0]), say(self.notice[1])) if self.notice else None,
            status_word=say(self.status_word),
            status_meaning=say(self.status_meaning),
            decision=say(self.decision),
            blocks=blocks,
            sections=tuple(section.said(say) for section in self.sections),
            footer=say(self.footer),
        )


def paragraphs(texts: Sequence[str]) -> tuple[Paragraph, ...]:
    """A paragraph for each text that is not empty."""
    return tuple(Paragraph(text=text) for text in texts if text)
