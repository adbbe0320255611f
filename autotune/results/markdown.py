"""A report as Markdown, for a ticket, a wiki or a pull request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from autotune.results.charts import Chart
from autotune.results.document import (
    Block,
    Bullets,
    Choices,
    Command,
    Document,
    Foreign,
    Pairs,
    Paragraph,
    Picture,
    Pictures,
    Say,
    Table,
    Tiles,
)
from autotune.results.lanes import Lanes

MAX_ROWS = 100
"""Rows of a table that are written out."""

MAX_POINTS = 60  # of a chart, as rows

_SPECIAL = "\\`*_{}[]<>#|~&"


def escaped(text: str) -> str:
    """Text on one line that Markdown and HTML leave as it is."""
    for char in _SPECIAL:
        text = text.replace(char, f"\\{char}")
    return " ".join(text.split())


def to_markdown(document: Document, say: Say) -> str:
    """The document as Markdown; charts become the tables of what their lines join."""
    parts = [
        f"# {escaped(document.study)}",
        escaped(document.subject),
        *([f"**{escaped(document.notice[0])}** {escaped(document.notice[1])}"]
          if document.notice else []),
        f"**{escaped(document.status_word)}** · {escaped(document.status_meaning)}",
        f"## {escaped(document.decision)}",
        *_blocks(document.blocks, say),
    ]  # fmt: skip
    for section in document.sections:
        blocks = list(_blocks(section.blocks, say))
        if blocks:
            parts += [f"## {escaped(section.title)}", *blocks]
    return "\n\n".join([*parts, "---", escaped(document.footer)]) + "\n"


def _blocks(blocks: Sequence[Block], say: Say) -> Iterator[str]:
    for block in blocks:
        yield from (part for part in _block(block, say) if part)


def _block(block: Block, say: Say) -> Iterator[str]:
    if isinstance(block, Paragraph):
        yield f"*{escaped(block.text)}*" if block.is_empty else escaped(block.text)
    elif isinstance(block, Bullets):
        yield "\n".join(f"- {escaped(item)}" for item in block.items)
    elif isinstance(block, Choices):
        yield _table(("", ""), [(c.name, c.value) for c in block.choices])
    elif isinstance(block, Tiles):
        yield _table(("", "", ""), [(t.name, t.figure, t.detail) for t in block.tiles])
    elif isinstance(block, Pairs):
        yield f"### {escaped(block.title)}" if block.title else ""
        yield _table(("", ""), block.pairs)
    elif isinstance(block, Command):
        yield escaped(block.purpose)
        yield _fenced(" ".join(block.words))
    elif isinstance(block, Foreign):
        yield escaped(block.title)
        yield _fenced(block.text)
    elif isinstance(block, Table):
        yield escaped(block.caption)
        yield _table([column.label for column in block.columns], [r.cells for r in block.rows])
        if len(block.rows) > MAX_ROWS:
            yield escaped(say(f"The first {MAX_ROWS} of {len(block.rows)} rows."))
    elif isinstance(block, Pictures):
        for picture in block.pictures:
            yield from _picture(picture, say)


def _picture(picture: Picture, say: Say) -> Iterator[str]:
    rows = _lanes(picture.drawing) if isinstance(picture.drawing, Lanes) else []
    head: tuple[str, ...] = (picture.title, "")
    if isinstance(picture.drawing, Chart):
        chart = picture.drawing
        head = (chart.x.label, chart.y.label, say("95 % interval"), "")
        rows = _points(chart)[:MAX_POINTS]
    if rows:
        yield f"### {escaped(picture.title)}"
        yield _table(head, rows)


def _lanes(lanes: Lanes) -> list[tuple[str, ...]]:
    def parts(texts: Iterator[str]) -> str:
        return "; ".join(filter(None, texts))

    return [
        (lane.name, parts(iter([*(s.title or s.text for s in lane.spans), lane.note])))
        for lane in lanes.lanes
    ]


def _points(chart: Chart) -> list[tuple[str, ...]]:
    """What the lines of a chart join."""
    found: list[tuple[str, ...]] = []
    for series in chart.series:
        for point in sorted((p for p in series.points if p.joined), key=lambda p: p.x):
            ends = [chart.y.tick_text(end) for end in point.bar or ()]
            texts = chart.x.tick_text(point.x), chart.y.tick_text(point.y)
            found.append((*texts, " – ".join(ends), series.name))
    return found


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    lines = [head, *rows[:MAX_ROWS]]
    texts = [f"| {' | '.join(map(escaped, line))} |" for line in lines]
    texts.insert(1, f"|{'---|' * len(head)}")
    return "\n".join(texts)


def _fenced(text: str) -> str:
    """Text as it stands, whatever fences it has itself."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}\n{text}\n{fence}"
