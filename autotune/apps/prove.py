"""Proving the best of a search: fresh measurements beside the baseline, then the decision."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from autotune.core.outcomes import Outcome
from autotune.core.records import (
    Comparison,
    Config,
    Phase,
    Recommendation,
    Result,
    Sustained,
    TrialRecord,
)
from autotune.core.units import format_duration
from autotune.devices.base import DeviceInfo
from autotune.results.ranking import Ranking, candidates, score
from autotune.results.recommend import decide
from autotune.results.sustained import sustained, sustained_text
from autotune.search.confirm import Needed, Setup, confirm
from autotune.search.rate_confirm import confirm_rates
from autotune.search.rounds import Check, unchecked
from autotune.search.watch import Watch
from autotune.space.search_space import SearchSpace
from autotune.trial.session import Launcher

MAX_PROOFS = 3
"""How often the next best are proven, when finalists before them were refused or fell out."""


def prove(
    ranking: Ranking,
    space: SearchSpace,
    info: DeviceInfo,
    launcher: Launcher,
    *,
    on_progress: Callable[[str], None],
    on_result: Callable[[Phase, int, Result], None],
    left_s: Callable[[], float | None],
    watch: Watch | None = None,
    check: Check = unchecked,
) -> Recommendation:
    """Measure the finalists again and decide; the next best if all of them are refused.

    Args:
        on_progress: Told of every round. on_result: Given the raw results by record number.
        left_s: Seconds left of the budget of time, None: no limit.
        watch: On the machine; None: nothing is known of it.
        check: Of the outputs of every session.
    """
    objective = space.objective
    fresh: dict[Config, TrialRecord] = {}
    comparisons: list[Comparison] = []
    notes: list[str] = []
    advice: dict[Config, str] = {}
    decided = decide(ranking, objective)
    for _ in range(MAX_PROOFS):
        finalists = _finalists(ranking.without(fresh), space)
        if not finalists:
            break
        first = len(fresh)
        setup = Setup(
            space=space,
            info=info,
            launcher=launcher,
            time_s=left_s(),
            watch=watch,
            check=check,
            on_progress=on_progress,
            on_result=lambda phase, number, result, first=first: on_result(  # type: ignore[misc]
                phase, first + number, result
            ),
        )
        measure_again = confirm_rates if objective.load.seeks_rate else confirm
        proof = measure_again(finalists, ranking.baseline, setup)
        fresh.update({r.config: replace(r, number=first + r.number) for r in proof.records})
        comparisons += proof.comparisons
        notes += proof.notes
        advice.update({config: _advice(needed, space) for config, needed in proof.needed.items()})
        decided = decide(
            ranking,
            objective,
            fresh=tuple(fresh.values()),
            comparisons=comparisons,
            notes=notes,
            advice=advice,
        )
        decided = _with_order(decided, sustained(proof.turns), space)
        is_settled = _beats_baseline(decided, ranking) and not _is_outdone(
            decided, proof.records, ranking.without(fresh), space
        )
        if not proof.records or is_settled:
            break
    return decided


def _with_order(
    decided: Recommendation, found: Sustained | None, space: SearchSpace
) -> Recommendation:
    """The decision with what is known of the order under lasting load."""
    if found is None:
        return decided
    names = [parameter.name for parameter in space.searched]
    texts = sustained_text(found, names)
    return replace(decided, sustained=found, reasons=(*decided.reasons, *texts))


def _finalists(ranking: Ranking, space: SearchSpace) -> tuple[TrialRecord, ...]:
    if space.confirm is None:
        return ()
    return candidates(ranking, space.objective, space.confirm.top)


def _beats_baseline(decided: Recommendation, ranking: Ranking) -> bool:
    if decided.record is None:
        return False
    return ranking.baseline is None or decided.record.config != ranking.baseline.config


def _is_outdone(
    decided: Recommendation, fresh: Sequence[TrialRecord], left: Ranking, space: SearchSpace
) -> bool:
    """True if a finalist fell out without a figure, and what is next has a better one than the
    winner: it takes the empty seat.
    """
    objective = space.objective
    if decided.record is None or left.knee is not None or objective.front:
        return False
    has_empty_seat = any(
        not r.verdict.outcome.is_measured for r in fresh if r.config != space.baseline
    )
    holding = [r for r in left.ranked if r.verdict.outcome is Outcome.OK]
    best = max((score(r, objective) for r in holding), default=-math.inf)
    return has_empty_seat and best > score(decided.record, objective)


def _advice(needed: Needed, space: SearchSpace) -> str:
    """How long it takes to settle a limit, and the options that allow it."""
    options = f"--set confirm.duration={_option(needed.duration_s)}"
    if space.budget.time_s is not None and space.budget.time_s < needed.time_s:
        options += f" --time {_option(needed.time_s)}"
    more = format_duration(needed.more_s)
    return f"about {more} more of measuring would settle it; run it again with {options}"


def _option(seconds: float) -> str:
    """Seconds as an option, rounded up: to 5 s, above ten minutes to whole minutes."""
    if seconds > 600:
        return f"{math.ceil(seconds / 60)}min"
    return f"{5 * math.ceil(seconds / 5)}s"
