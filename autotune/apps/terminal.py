"""What a person sees in a terminal, as text: progress and results; `cli` puts it out."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING

from autotune.apps.view import Standing, View
from autotune.core.objective import METRICS
from autotune.core.records import Config, Measurement, TrialRecord
from autotune.core.text import clean
from autotune.core.units import format_duration
from autotune.measure.noise import QUIET
from autotune.results.front_view import front_lines
from autotune.results.study_result import StudyFacts, StudyResult
from autotune.results.summary import ORIGIN_NOTICE, figures, headline, reasons, standing
from autotune.results.tables import top_rows
from autotune.results.words import (
    config_text,
    figure_text,
    metric_text,
    outcome_text,
    rate_interval_text,
    reason_text,
    trust_text,
)

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

    from autotune.apps.measure import MeasureResult

LAST_SHOWN = 3  # the picture must fit a low and narrow terminal: what scrolls away stays
REFRESH_PER_S = 4.0
BAR_WIDTHS = (8, 40)  # columns, at least and at most


class PlainView(View):
    """About one line per trial, no control characters.

    Args:
        say: Puts out one line.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say: Callable[[str], None] = lambda text: say(clean(text))
        self._names: tuple[str, ...] = ()

    def resolved(self, facts: StudyFacts) -> None:
        self._names = searched(facts)
        width = max(map(len, facts.settings), default=0)
        self._say((f"study {facts.study}" if facts.study else "measuring") + _origin(facts))
        for name, text in facts.settings.items():
            self._say(f"  {name:<{width}}  {text}")

    def note(self, text: str) -> None:
        self._say(f"note: {text}")

    def preparing(self, text: str) -> None:
        self._say(text)

    def trial_finished(self, record: TrialRecord, standing: Standing) -> None:
        line = trial_line(record, self._names)
        self._say(f"{trial_name(record.number, standing.done, standing.total)}  {line}")

    def confirming(self, text: str) -> None:
        self._say(text)


class LiveView(View):
    """A picture of a few lines that is redrawn in place; everything lasting is printed above it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._plain = PlainView(self._print)
        self._live: Live | None = None
        self._facts: StudyFacts | None = None
        self._last: deque[TrialRecord] = deque(maxlen=LAST_SHOWN)
        self._standing = Standing(done=0, total=0)
        self._now = ""
        self._since_s = self._stood_s = time.monotonic()
        self._drawn: list[int] = []

    def __enter__(self) -> LiveView:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def resolved(self, facts: StudyFacts) -> None:
        from rich.live import Live

        self._facts = facts
        self._plain.resolved(facts)
        self._live = Live(
            console=self._console,
            get_renderable=self._picture,
            refresh_per_second=REFRESH_PER_S,
            transient=True,
        )
        self._live.start()

    def note(self, text: str) -> None:
        self._plain.note(text)

    def preparing(self, text: str) -> None:
        self._doing(text)

    def trial_started(self, number: int, config: Config, standing: Standing) -> None:
        self._stand(standing)
        names = searched(self._facts) if self._facts else None
        name = trial_name(number, standing.done + 1, standing.total)
        self._doing(f"{name}: {config_text(config, names)}")

    def trial_finished(self, record: TrialRecord, standing: Standing) -> None:
        self._stand(standing)
        self._last.append(record)

    def confirming(self, text: str) -> None:
        self._doing(text)

    def _stand(self, standing: Standing) -> None:
        self._standing, self._stood_s = standing, time.monotonic()

    def _doing(self, text: str) -> None:
        self._now, self._since_s = clean(text), time.monotonic()

    def _print(self, text: str) -> None:
        if self._live is not None:
            self._live.refresh()  # so that it is wiped as a whole if the width has changed
        self._console.print(text, markup=False, highlight=False)

    def _picture(self) -> RenderableType:
        from rich.console import Group
        from rich.segment import Segment, Segments

        lines = self._console.render_lines(Group(*self._parts()), pad=False)
        for line in lines:
            while line and line[-1].text.isspace():
                line.pop()
        # A terminal that was made narrower has broken the lines of the last picture.
        width = self._console.width
        broken = sum(max(length - 1, 0) // width for length in self._drawn)
        self._drawn = [Segment.get_line_length(line) for line in lines]
        ended = (segment for line in lines for segment in (*line, Segment.line()))
        return Group(_Wipe(broken), Segments(ended))

    def _parts(self) -> Iterator[RenderableType]:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        standing, names = self._standing, searched(self._facts) if self._facts else ()
        table = Table.grid(padding=(0, 2, 0, 0))
        yield Text("")
        if standing.total:
            head = f"{standing.done} of {standing.total} trials"
            if standing.left_s is not None:
                left_s = max(standing.left_s - (time.monotonic() - self._stood_s), 0.0)
                head += f", {format_duration(round(left_s))} left at most"
            room = self._console.width - len(head) - 2
            if room >= BAR_WIDTHS[0]:
                width = min(room, BAR_WIDTHS[1])
                yield ProgressBar(total=standing.total, completed=standing.done, width=width)
                head = f"  {head}"  # on the bar's line: a bar does not end its own
            yield Text(head)
            best = "none holds the limits yet"
            if standing.best is not None:
                best = trial_line(standing.best, names)
            table.add_row(Text("best", "bold green"), Text(best))
        elapsed_s = time.monotonic() - self._since_s
        table.add_row(Text("now", "bold"), Text(f"({elapsed_s:.0f} s) {self._now}"))
        for record in reversed(self._last):
            style = "dim" if str(record.verdict.outcome) == "ok" else "yellow"
            table.add_row(Text(f"#{record.number}", style), Text(trial_line(record, names), style))
        yield table


class _Wipe:
    """Erases rows above the place where it is drawn, the first time."""

    def __init__(self, row_count: int) -> None:
        self._row_count = row_count

    def __rich_console__(self, *_: object) -> Iterator[RenderableType]:
        from rich.control import Control
        from rich.segment import ControlType

        codes = ((ControlType.CURSOR_UP, 1), (ControlType.ERASE_IN_LINE, 2))
        yield Control(*codes * self._row_count)
        self._row_count = 0


def searched(facts: StudyFacts) -> tuple[str, ...]:
    """The parameters worth showing of a trial: those that differ between trials."""
    names = tuple(name for name, choices in facts.params.items() if len(choices) > 1)
    return names or ("batch_size",)


def trial_name(number: int, place: int, total: int) -> str:
    """A trial by its number in the study, and how many of those wanted that makes."""
    width = len(str(total))
    return f"trial {number:>{width}} ({place:>{width}} of {total})"


def trial_line(record: TrialRecord, names: tuple[str, ...] = ()) -> str:
    """A trial on one line: outcome and figures, in columns, then the configuration and why."""
    throughput = latency = ""
    if record.measurement is not None:
        throughput = figure_text("throughput", record.measurement)
        metric = _limited_latency(record)
        if getattr(record.measurement, METRICS[metric].field) is not None:
            name = metric.removeprefix("latency_").replace("p", "P")
            latency = f"{name} {figure_text(metric, record.measurement)}"
    line = f"{outcome_text(record.verdict.outcome):<14} {throughput:>11}  {latency:<13}"
    reason = reason_text(record).partition("\n")[0]
    why = f"  ({reason})" if reason and record.measurement is None else ""
    if record.measurement is not None and record.measurement.trust != QUIET:
        why = f"  ({record.measurement.trust.partition(';')[0]})"
    return f"{line}  {config_text(record.config, names or None)}{why}"


def _limited_latency(record: TrialRecord) -> str:
    """The latency that is limited, the P99 where none is."""
    latencies = (name for name in METRICS if name.startswith("latency_"))
    limited = (name for name in latencies if METRICS[name].field in record.verdict.excess)
    return next(limited, "latency_p99")


def _origin(facts: StudyFacts) -> str:
    return "" if facts.origin == "measured" else f" ({facts.origin}: nothing is measured here)"


# --- results -----------------------------------------------------------------------------------


def result_lines(result: StudyResult) -> Iterator[str]:
    """A study's result: the decision with its evidence, or how far it came."""
    if result.trial_count:
        yield ""
        yield f"{result.facts.study}: {result.status}. {headline(result)}"
        if result.facts.origin in ORIGIN_NOTICE:
            yield " ".join(ORIGIN_NOTICE[result.facts.origin])
        if result.shown is not None:
            yield f"  {config_text(result.shown.config)}"
        for figure in figures(result):
            yield f"  {figure.name:<27} {figure.figure:<12} {figure.detail}".rstrip()
    for name, text in standing(result):
        yield f"  {name:<27} {text}"
    yield from front_lines(result)
    if result.report is not None:
        yield f"  {'Report':<27} {result.report}"
    if result.trial_count:
        yield from (f"  - {reason}" for reason in reasons(result))


def top_lines(result: StudyResult, count: int) -> Iterator[str]:
    """The best configurations, one per line."""
    yield f"\nthe best {count}, by single trials except where measured again:"
    for place, record in enumerate(top_rows(result, count), 1):
        again = "  (measured again)" if record.phase == "confirm" else ""
        line = trial_line(record, result.searched)
        yield f"  {place:>3}  trial {record.number:<4}  {line}{again}"


def measurement_lines(result: MeasureResult) -> Iterator[str]:
    """One configuration's figures with their interval and verdict."""
    record, measurement = result.record, result.record.measurement or Measurement()
    yield trial_line(record)
    throughput = metric_text("throughput", measurement.throughput_items_per_s)
    if interval := measurement.throughput_ci95_items_per_s:
        over = f"95 % interval over {len(result.sessions)} fresh sessions"
        throughput += f"  {over}: {rate_interval_text(interval)}"
    pairs = {
        "throughput": throughput,
        "P99 latency": metric_text("latency_p99", measurement.latency_p99_s),
        "peak memory": metric_text("memory_peak", measurement.memory_peak_bytes),
        "verdict": "; ".join((outcome_text(record.verdict.outcome), *record.verdict.reasons)),
        "trust": trust_text(record),
    }
    yield from (f"  {name:<12} {text}" for name, text in pairs.items())
