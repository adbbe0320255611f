"""What comes first: the decision, its figures, and how far they can be trusted."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from autotune.core.outcomes import Outcome
from autotune.core.records import TrialRecord
from autotune.results import words
from autotune.results.document import (
    Block,
    Bullets,
    Choice,
    Choices,
    Foreign,
    Pairs,
    Section,
    Tiles,
    Verbatim,
)
from autotune.results.study_result import StudyResult
from autotune.results.summary import figures, reasons, standing

MAX_ERRORS = 10


def subject(result: StudyResult) -> str:
    """What was tuned, where, and for what."""
    facts = result.facts
    limits = ", ".join(words.limit_text(limit) for limit in facts.objective.limits)
    parts = [
        f"{facts.workload} on {facts.device}" if facts.device else facts.workload,
        facts.objective.name.replace("_", " "),
        limits or "no limits",
    ]
    return " · ".join(parts)


def decision_blocks(result: StudyResult) -> tuple[Block, ...]:
    """What stands below the headline."""
    return tuple(_blocks(result))


def _blocks(result: StudyResult) -> Iterator[Block]:
    if result.shown is not None:
        items = words.config_items(result.shown.config).items()
        yield Choices(
            choices=tuple(
                Choice(name=name, value=value, is_searched=name in result.searched)
                for name, value in items
            )
        )
    if tiles := figures(result):
        yield Tiles(tiles=tuple(tiles))
    if error := _leading_error(result):
        yield error
    if said := reasons(result):
        yield Bullets(items=tuple(said))
    yield Pairs(pairs=tuple(standing(result)), is_line=True)


def failures(result: StudyResult) -> Section | None:
    """The last lines of trials that failed: one log per kind of error."""
    logs = []
    for alike in _alike([r for r in result.records if r.log_tail.strip()])[:MAX_ERRORS]:
        first, more = alike[0], f", and {len(alike) - 1} alike" if len(alike) > 1 else ""
        title = f"trial {first.number}{more}: {_error_text(first)}"
        logs.append(Foreign(title=title, text=first.log_tail.strip()))
    return Section(title="Last words of the failed trials", blocks=tuple(logs)) if logs else None


def _leading_error(result: StudyResult) -> Foreign | None:
    """If nothing was measured: how many trials ended with the commonest error, and its text."""
    failed = [r for r in result.records if not r.verdict.outcome.is_retried]
    if not failed or any(r.verdict.outcome.is_measured for r in failed):
        return None
    alike = _alike(failed)[0]
    count = f"{len(alike)} of {len(failed)} trials" if len(failed) > 1 else "The only trial"
    return Foreign(
        title=f"{count} ended with this error:", text=_error_text(alike[0]), is_folded=False
    )


def _alike(records: Sequence[TrialRecord]) -> list[list[TrialRecord]]:
    """Records by their errors, the commonest first; numbers in the texts make no difference."""
    groups: dict[tuple[Outcome, str], list[TrialRecord]] = {}
    for record in records:
        text = re.sub(r"\d+", "0", words.reason_text(record))
        groups.setdefault((record.verdict.outcome, text), []).append(record)
    return sorted(groups.values(), key=len, reverse=True)


def _error_text(record: TrialRecord) -> str:
    return Verbatim(words.reason_text(record)) or words.outcome_text(record.verdict.outcome)
