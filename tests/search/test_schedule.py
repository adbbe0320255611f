"""How a confirmation spends its time."""

from __future__ import annotations

import pytest
from search_fakes import make_space, record_of

from autotune.core.records import Config
from autotune.search.rounds import Entrant, alternating_windows
from autotune.search.schedule import LEAST_ROUNDS, MIN_ROUNDS, OPEN_S, Schedule, least_s
from autotune.space.search_space import Confirm

OPTIONS = Confirm(top=2, duration_s=6.0)
SPACE = make_space(confirm=OPTIONS)


def entrants(*call_s: float) -> list[Entrant]:
    return [
        Entrant(record=record_of(n, Config(batch_size=n + 1), latency_p99_s=call))
        for n, call in enumerate(call_s)
    ]


def rounds_in(plan: Schedule, time_s: float) -> int:
    return int(time_s / plan.round_s(plan.entrants))


@pytest.mark.parametrize("call_s", [0.001, 0.05, 0.4, 2.0])
@pytest.mark.parametrize("time_s", [8.0, 20.0, 68.0, 200.0, 1000.0])
def test_what_is_planned_fits_and_what_could_fit_is_planned(call_s: float, time_s: float) -> None:
    four = entrants(call_s / 8, call_s, call_s / 2, call_s)
    plan = Schedule.fitting(four, SPACE, OPTIONS, time_s)
    if plan is None:
        assert least_s(four) > time_s
        return
    assert rounds_in(plan, time_s) >= LEAST_ROUNDS
    if len(plan.entrants) > 2:  # rivals are dropped before rounds are
        assert rounds_in(plan, time_s) >= MIN_ROUNDS or time_s < least_s(four) * 2


def test_slow_calls_make_windows_of_fewer_calls_before_a_finalist_is_dropped() -> None:
    slow = entrants(0.05, 0.4, 0.25, 0.4)
    long, short = (Schedule.fitting(slow, SPACE, OPTIONS, time_s) for time_s in (400.0, 120.0))
    assert long is not None and short is not None
    assert (len(long.entrants), len(short.entrants)) == (4, 4)
    assert long.calls > short.calls
    windows, _ = alternating_windows(slow, short.duration_s, 0.0, short.calls)
    assert all(w.duration_s == pytest.approx(short.calls * 0.4) for own in windows for w in own)


def test_where_runs_take_turns_a_slow_call_makes_no_longer_window() -> None:
    slow = entrants(30.0, 30.0)
    plan = Schedule.fitting(slow, SPACE, OPTIONS, 60.0, together=False)
    assert plan is not None and rounds_in(plan, 60.0) >= MIN_ROUNDS
    assert plan.round_s(slow) == pytest.approx(2 * (plan.duration_s + OPEN_S))
    assert Schedule.fitting(slow, SPACE, OPTIONS, 60.0) is None
