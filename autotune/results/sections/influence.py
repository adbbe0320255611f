"""Which of the searched parameters matter."""

from __future__ import annotations

from autotune.results import words
from autotune.results.document import (
    BROAD,
    Block,
    Paragraph,
    Picture,
    Pictures,
    Section,
    Verbatim,
)
from autotune.results.importance import Importance, Influence, importance
from autotune.results.lanes import Lane, Lanes, Span
from autotune.results.study_result import StudyResult

LEAST_SHARE = 0.005
"""Share of the variation below which a parameter's effect is not told from noise."""


def what_mattered(result: StudyResult) -> Section | None:
    """How much each searched parameter matters; None where one value was tried of each."""
    if not result.searched or not result.has_figures:
        return None
    found = importance(result.records, result.facts.objective, result.searched)
    title = "Which parameters matter"
    if found is None:
        few = Paragraph(
            text="Too few trials hold their limits to tell the parameters apart.", is_empty=True
        )
        return Section(title=title, blocks=(few,))
    blocks: tuple[Block, ...] = (
        Paragraph(text=_importance_caption(result, found)),
        Pictures(pictures=(Picture(title="Share of the variation", drawing=_influences(found),
                                   size=BROAD),)),
    )  # fmt: skip
    return Section(title=title, blocks=blocks)


def _importance_caption(result: StudyResult, found: Importance) -> str:
    worth = "throughput" if len(result.facts.objective.goals) == 1 else "the weighted goals"
    return (
        f"Over the {found.trials} trials whose figures hold the limits: how much of the variation "
        f"of {worth} goes back to each parameter by itself, and by what factor it changes it from "
        f"the worst tried value to the best. Together they explain {found.explained:.0%}; the rest "
        "is interplay and noise."
    )


def _influence_text(one: Influence) -> str:
    if one.share < LEAST_SHARE:
        return "no effect to be told"
    best = words.value_text(one.name, one.best)
    return f"{one.share:.0%}, {words.factor_text(one.factor)}, best at {best}"


def _influences(found: Importance) -> Lanes:
    lanes = tuple(
        Lane(
            name=Verbatim(one.name),
            spans=(Span(start=0.0, end=max(one.share, 1e-3), colour="s0"),),
            note=_influence_text(one),
        )
        for one in found.influences
    )
    return Lanes(
        title="Share of the variation",
        label="share of the variation",
        tick_text=lambda share: f"{share:.0%}",
        lanes=lanes,
        high=1.0,
    )
