"""When all finalists are refused, the next best are proven."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.apps.prove import MAX_PROOFS, _advice, prove
from autotune.core.outcomes import Outcome
from autotune.core.records import (
    Comparison,
    Config,
    Recommendation,
    TrialRecord,
    TurnRate,
    Verdict,
)
from autotune.results.ranking import rank
from autotune.search.confirm import Confirmation, Needed
from autotune.space.loader import load_space
from autotune.space.search_space import Budget, SearchSpace


def trial(batch_size: int, outcome: Outcome = Outcome.OK, number: int = 0) -> TrialRecord:
    from autotune.core.records import Measurement

    excess = -0.001 if outcome is Outcome.OK else 0.001
    return TrialRecord(
        number=number,
        config=Config(batch_size=batch_size),
        phase="search",
        verdict=Verdict(
            outcome=outcome,
            objectives={"throughput_items_per_s": 100.0 * batch_size},
            excess={"latency_p99_s": excess},
        ),
        measurements=(Measurement(throughput_items_per_s=100.0 * batch_size, latency_p99_s=0.002),),
    )


@pytest.fixture
def space(space_file: Callable[..., Path]) -> SearchSpace:
    return load_space(space_file(), ["confirm.top=2"])


def refused(size: int) -> TrialRecord:
    return trial(size, Outcome.OVER_LIMIT)


def killed(size: int) -> TrialRecord:
    verdict = Verdict(outcome=Outcome.CRASHED, reasons=("killed by SIGKILL",))
    return replace(trial(size), verdict=verdict, measurements=())


def proven(
    space: SearchSpace,
    again: Callable[[int], TrialRecord],
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[Recommendation, list[list[int]]]:
    """Prove a search of seven batch sizes; `again` is what comes of each when measured again."""
    asked: list[list[int]] = []

    def confirm(
        finalists: Sequence[TrialRecord], baseline: TrialRecord, *_: Any, **__: Any
    ) -> Confirmation:
        sizes = [record.config.batch_size for record in finalists]
        asked.append(sizes)
        fresh = [trial(1)] + [
            replace(again(size), number=place) for place, size in enumerate(sizes, 1) if size != 1
        ]
        return Confirmation(
            records=tuple(fresh),
            comparisons=tuple(
                Comparison(
                    config=record.config,
                    reference=baseline.config,
                    ratio=gain,
                    ratio_ci=(0.95 * gain, 1.05 * gain),
                    alpha=0.01,
                    pair_ratios=(0.95 * gain, 1.05 * gain),
                )
                for record in fresh[1:]
                if record.measurement is not None
                for gain in [record.measurement.throughput_items_per_s or 0.0]
            ),
            turns={record.config: throttling(record.config.batch_size) for record in fresh},
        )

    monkeypatch.setattr("autotune.apps.prove.confirm", confirm)
    records = [trial(size, number=place) for place, size in enumerate((1, 2, 4, 8, 16, 32, 64))]
    decided = prove(
        rank(records, space.objective, Config()),
        space,
        info=None,  # type: ignore[arg-type]
        launcher=None,  # type: ignore[arg-type]
        on_progress=lambda text: None,
        on_result=lambda phase, number, result: None,
        left_s=lambda: None,
    )
    return decided, asked


def throttling(batch_size: int) -> tuple[TurnRate, ...]:
    """Ten minutes in which batches of 64 are fast at first only."""
    return tuple(
        TurnRate(
            round=n // 20,
            turn=n % 20,
            at_s=5.0 * n,
            rate=(batch_size if n < 24 or batch_size < 64 else 20.0) * (1 + 0.01 * (n % 3)),
        )
        for n in range(120)
    )


def test_an_order_that_does_not_last_is_told(
    space: SearchSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    decided, _ = proven(space, trial, monkeypatch)
    assert decided.sustained is not None
    (reversal,) = decided.sustained.reversals
    assert (reversal.first.batch_size, reversal.then.batch_size) == (64, 32)
    assert any("the order changed under lasting load" in reason for reason in decided.reasons)


def test_the_first_finalists_are_enough_if_one_holds(
    space: SearchSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    decided, asked = proven(space, trial, monkeypatch)
    assert decided.status == "confirmed"
    assert asked == [[64, 32]]


def test_refused_finalists_make_room_for_the_next_best(
    space: SearchSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    decided, asked = proven(
        space, lambda size: (trial if size <= 8 else refused)(size), monkeypatch
    )
    assert asked == [[64, 32], [16, 8]]
    assert decided.status == "confirmed"
    assert decided.record is not None and decided.record.config.batch_size == 8
    numbers = [record.number for record in decided.confirmations]
    assert len(set(numbers)) == len(numbers)


def test_the_seat_of_a_finalist_that_was_killed_goes_to_one_that_is_better_than_the_winner(
    space: SearchSpace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def again(size: int) -> TrialRecord:
        if size == 64:
            return killed(size)
        figures = {32: trial(4)}  # it disappoints: 16 had been four times as fast
        return replace(figures.get(size, trial(size)), config=Config(batch_size=size))

    decided, asked = proven(space, again, monkeypatch)
    assert asked == [[64, 32], [16, 8]]
    assert decided.status == "confirmed"
    assert decided.record is not None and decided.record.config.batch_size == 16
    decided, asked = proven(space, lambda n: killed(n) if n == 64 else trial(n), monkeypatch)
    assert asked == [[64, 32]], "the next has been no match for the winner"


def test_advice_is_options_that_leave_enough_time(space: SearchSpace) -> None:
    needed = Needed(more_s=12.0, duration_s=41.0, time_s=700.0)
    assert _advice(needed, space) == (
        "about 12.0 s more of measuring would settle it; "
        "run it again with --set confirm.duration=45s"
    )
    hurried = replace(space, budget=Budget(time_s=300.0))
    assert _advice(needed, hurried).endswith("--set confirm.duration=45s --time 12min")


def test_proving_ends(space: SearchSpace, monkeypatch: pytest.MonkeyPatch) -> None:
    decided, asked = proven(space, refused, monkeypatch)
    assert len(asked) == MAX_PROOFS
    assert decided.record is not None and decided.record.config == Config()
