"""Why this configuration, what the search leaves open, and how to do it again."""

from __future__ import annotations

from collections.abc import Iterator

from autotune.results.document import Block, Bullets, Command, Paragraph, Section, paragraphs
from autotune.results.evidence import measure_words
from autotune.results.left_open import left_open
from autotune.results.study_result import StudyResult
from autotune.results.why import what_it_won_by, why


def why_this(result: StudyResult) -> Section | None:
    """What the study's records say for the recommended configuration."""
    blocks = tuple(_reasons(result))
    return Section(title="Why this configuration", blocks=blocks) if blocks else None


def _reasons(result: StudyResult) -> Iterator[Block]:
    yield from paragraphs((what_it_won_by(result),))
    said = why(result)
    if said.proven:
        yield Paragraph(text="What the changed settings did in the proof:")
        yield Bullets(items=said.proven)
    if said.effects:
        further = "further" if said.proven else "changed"
        yield Paragraph(
            text=f"What each {further} setting did, from pairs of single short trials that differ "
            "in nothing else: hints, not proof."
        )
        yield Bullets(items=said.effects)
    if said.refused:
        yield Paragraph(text="Faster in the proof, but not recommended:")
        yield Bullets(items=said.refused)


def what_is_open(result: StudyResult) -> Section | None:
    """What is just as good, and what was not tried."""
    sentences = left_open(result)
    if not sentences:
        return None
    return Section(title="What the search leaves open", blocks=(Bullets(items=tuple(sentences)),))


def do_it_again(result: StudyResult) -> Section | None:
    """Commands that repeat the measurement, and the study."""
    facts, commands = result.facts, []
    record = result.recommendation.record
    if record is not None and facts.space_path:
        purpose = "Try the recommended configuration once more:"
        commands.append(Command(purpose=purpose, words=measure_words(result, record)))
    if facts.command:
        purpose = "Run the study again, or go on with it:"
        commands.append(Command(purpose=purpose, words=facts.command))
    return Section(title="Do it again", blocks=tuple(commands)) if commands else None
