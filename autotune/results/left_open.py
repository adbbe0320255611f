"""What a search left open, in a few sentences: what is as good, and what was not tried."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from autotune.core.insight import Alike, Untried
from autotune.core.records import Scalar
from autotune.results import words
from autotune.results.study_result import StudyResult

MAX_SHOWN = 6  # values of a parameter that are written out


def left_open(result: StudyResult) -> list[str]:
    """Sentences for report and terminal; none if the search had no model."""
    insight = result.insight
    if insight is None:
        return []
    objective = result.facts.objective
    if objective.front or objective.knee_share is not None:
        # What is as good as the best says nothing of trade-offs, or of a smaller batch.
        return list(_untried(replace(insight.untried, maybe_better=0), 0.0))
    within = insight.alike.within if insight.alike else 0.0
    sentences = [*_alike(insight.alike, result)] if insight.alike else []
    sentences += _untried(insight.untried, within)
    if insight.expected_gain is not None:
        gain = f"{100 * insight.expected_gain:.2g} %"
        sentences.append(f"One more trial is expected to gain {gain} by the search's model.")
    return sentences


def _alike(alike: Alike, result: StudyResult) -> Iterator[str]:
    share = f"{100 * alike.within:g} %"
    if alike.count <= 1:
        yield f"Nothing else is expected to come within {share} of this configuration."
        return
    yield (
        f"{alike.count:,} configurations are expected to be as good within {share}, this one "
        f"included; {alike.tested:,} of them were tried."
    )
    names = [name for name in alike.indifferent if name in result.searched]
    if names:
        verb = "do" if len(names) > 1 else "does"
        yield f"{_listed(names)} {verb} not matter: any value is as good, all else as it is."
    for name, values in alike.values.items():
        if name not in alike.indifferent and len(values) > 1:
            yield f"{name} {_values(name, values)} are as good, all else as it is."


def _untried(untried: Untried, within: float) -> Iterator[str]:
    if untried.count is not None and untried.total is not None:
        text = f"{untried.count:,} of {untried.total:,} configurations were not tried"
    else:
        text = "Most configurations were not tried"
    never = [f"{name} {_values(name, v)}" for name, v in untried.values.items()]
    if untried.count != 0:
        yield f"{text}, among them all with {_listed(never)}." if never else f"{text}."
    if untried.maybe_better:
        yield (
            f"{untried.maybe_better:,} of them have at least one chance in ten to be better by "
            f"more than {100 * within:g} %."
        )


def _values(name: str, values: Sequence[Scalar]) -> str:
    shown = [words.value_text(name, value) for value in values]
    if len(shown) > MAX_SHOWN:
        return f"{shown[0]} … {shown[-1]} ({len(shown)} values)"
    return _listed(shown)


def _listed(parts: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))
