"""What a gate found, run after run: the page that shows whether speed is creeping away."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib import resources
from typing import Any

from jinja2 import Environment
from markupsafe import Markup

from autotune.core.records import SCHEMA_VERSION
from autotune.results.charts import Axis, Chart, Look, Point, Series, draw
from autotune.results.compare_words import gate_text, percent
from autotune.results.regression import CompareResult, Status
from autotune.results.words import factor_interval_text, factor_text

WIDE, NARROW = (1110, 300), (340, 260)  # CSS pixels
MAX_PAIRINGS = 12
MAX_ROWS = 50  # of a pairing's table, the newest first

_TICKS = (0.25, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.2, 1.4, 1.7, 2.0, 3.0, 5.0, 10.0)
_LOOKS: dict[Status, Look] = {"passed": "ok", "failed": "broken", "undecided": "unsure"}
_ROW_CLASS: dict[Status, str] = {"passed": "ok", "failed": "failed", "undecided": "undecided"}


@dataclass(frozen=True, slots=True, kw_only=True)
class GateEntry:
    """One run of a gate, as it is kept.

    Attributes:
        ratio: Speed of a over that of b, None if it could not be told; `ci95` its interval.
        why: What the gate said.
        model, device: Of a, in words.
    """

    at_s: float
    a: str
    b: str
    status: Status
    why: str = ""
    metric: str = ""
    ratio: float | None = None
    ci95: tuple[float, float] | None = None
    smallest_change: float | None = None
    tolerance: float = 0.05
    pairs: int = 0
    model: str = ""
    device: str = ""
    schema_version: int = SCHEMA_VERSION

    @property
    def pairing(self) -> tuple[str, str, str, str]:
        """Runs of the same pairing belong into one chart."""
        return (self.a, self.b, self.model, self.device)


def entry_of(result: CompareResult) -> GateEntry:
    """A gate's result as an entry."""
    test = result.test
    return GateEntry(
        at_s=result.at_s,
        a=result.a.name,
        b=result.b.name,
        status=result.status,
        why=gate_text(result),
        metric=result.metric,
        ratio=test.ratio if test else None,
        ci95=test.interval95 if test else None,
        smallest_change=test.smallest_change if test else None,
        tolerance=result.tolerance,
        pairs=len(result.pair_ratios),
        model=result.a.workload,
        device=result.a.device,
    )


def render_history(entries: Sequence[GateEntry], *, version: str) -> str:
    """The page, one chart and table per pairing, that of the newest run first."""
    pairings: dict[tuple[str, ...], list[GateEntry]] = {}
    for entry in sorted(entries, key=lambda entry: entry.at_s, reverse=True):
        pairings.setdefault(entry.pairing, []).append(entry)
    shown = list(pairings.values())[:MAX_PAIRINGS]
    environment = Environment(autoescape=True)
    files = resources.files("autotune.results")
    template = environment.from_string((files / "history.html.j2").read_text(encoding="utf-8"))
    return template.render(
        style=Markup((files / "report.css").read_text(encoding="utf-8")),
        count=len(entries),
        pairings=[_section(runs) for runs in shown],
        left_out=len(pairings) - len(shown),
        version=version,
    )


def _section(runs: Sequence[GateEntry]) -> dict[str, Any]:
    """A pairing's runs, newest first, as the template shows them."""
    last = runs[0]
    chart = _chart(list(reversed(runs)))
    return {
        "title": f"{last.a} against {last.b}",
        "subject": " · ".join(filter(None, (last.model, last.device))),
        "last": f"{_date(last.at_s)} UTC: {last.why}",
        "wide": draw(chart, *WIDE) if chart else None,
        "narrow": draw(chart, *NARROW, titles=False) if chart else None,
        "rows": [_row(entry) for entry in runs[:MAX_ROWS]],
        "left_out": max(len(runs) - MAX_ROWS, 0),
    }


def _row(entry: GateEntry) -> dict[str, str]:
    return {
        "kind": _ROW_CLASS[entry.status],
        "date": _date(entry.at_s),
        "status": entry.status,
        "ratio": factor_text(entry.ratio) if entry.ratio else "",
        "interval": factor_interval_text(entry.ci95) if entry.ci95 else "",
        "smallest": percent(entry.smallest_change) if entry.smallest_change else "",
        "pairs": str(entry.pairs),
        "why": entry.why,
    }


def _chart(runs: Sequence[GateEntry]) -> Chart | None:
    """Ratios in the order of the runs, oldest first; None if no run has one."""
    points = tuple(
        Point(
            x=float(number),
            y=run.ratio,
            look=_LOOKS[run.status],
            title=f"{_date(run.at_s)}: {factor_text(run.ratio)}, {run.why}",
            joined=True,
            bar=run.ci95,
        )
        for number, run in enumerate(runs, 1)
        if run.ratio
    )
    if not points:
        return None
    tolerance = runs[-1].tolerance
    return Chart(
        title="Speed of A over B, run after run",
        x=Axis(label="run, oldest first", log=False, tick_text=lambda value: f"{value:g}",
               ticks=tuple(float(number) for number in range(1, len(runs) + 1))),
        y=Axis(
            label="A over B",
            log=True,
            tick_text=lambda value: f"{value:g}×",
            limit=1 - tolerance,
            limit_label=f"{percent(tolerance)} slower",
            limit_is="least",
            ticks=_TICKS,
        ),
        series=(Series(name="ratio", points=points),),
    )  # fmt: skip


def _date(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, timezone.utc).strftime("%Y-%m-%d %H:%M")
