"""The load loop, warm-up and windows on a virtual clock with declared service times."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pytest

from autotune.core.clock import VirtualClock
from autotune.core.records import InstanceFacts, Plan, Samples, StageTimes, Window
from autotune.measure.engine import merge, run_windows, to_samples, warm_up, warmup_cap_s
from autotune.measure.load import Step, closed_loop


def stepper(clock: VirtualClock, times_s: Iterable[float]) -> Step:
    """A step whose calls take the given times, a tenth of each for the copy."""
    upcoming: Iterator[float] = iter(times_s)

    def step(_: int) -> StageTimes:
        time_s = next(upcoming)
        clock.advance(time_s)
        return StageTimes(0.1 * time_s, 0.9 * time_s, 0.0)

    return step


def forever(time_s: float) -> Iterator[float]:
    while True:
        yield time_s


def test_a_call_that_began_in_time_is_finished_and_counted() -> None:
    clock = VirtualClock()
    records = closed_loop(stepper(clock, forever(0.3)), clock, until_s=1.0)
    assert [round(r.start_s, 3) for r in records] == [0.0, 0.3, 0.6, 0.9]
    assert records[-1].end_s == pytest.approx(1.2)
    assert records[0].h2d_s == pytest.approx(0.03)


def test_counted_calls_are_counted_exactly() -> None:
    clock = VirtualClock()
    assert len(closed_loop(stepper(clock, forever(0.001)), clock, iterations=17)) == 17
    assert clock.now_s() == pytest.approx(0.017)


def test_no_call_starts_in_a_window_that_has_passed() -> None:
    clock = VirtualClock(start_s=5.0)
    assert closed_loop(stepper(clock, forever(0.1)), clock, until_s=5.0) == []


@pytest.mark.parametrize(
    ("times_s", "max_s", "count", "steady"),
    [
        (lambda: forever(0.01), 5.0, 30, True),  # 0.3 s rules
        (lambda: forever(0.1), 5.0, 16, True),  # two blocks of 8 rule
        (lambda: forever(1.0), 0.5, 2, False),  # the cap rules, after two calls
        (lambda: (0.1 * 0.9**i for i in range(1000)), 0.9, 22, False),  # still getting faster
    ],
)
def test_warm_up_ends_when_calls_are_steady_or_time_is_up(
    times_s: Callable[[], Iterable[float]], max_s: float, count: int, steady: bool
) -> None:
    clock = VirtualClock()
    done = warm_up(stepper(clock, times_s()), clock, max_s=max_s)
    assert (done.count, done.is_steady) == (count, steady)


def test_warm_up_waits_for_a_slow_start_to_end() -> None:
    clock = VirtualClock()
    times_s = [0.5] * 3 + [0.05] * 100
    done = warm_up(stepper(clock, times_s), clock, max_s=60)
    assert done.is_steady
    assert done.count >= 3 + 8  # the last 8 must lie wholly in the steady part


def test_warm_up_is_a_quarter_of_what_is_measured() -> None:
    plan = Plan(windows=(Window(duration_s=4.0), Window(duration_s=4.0)))
    assert warmup_cap_s(plan) == pytest.approx(2.0)
    assert warmup_cap_s(Plan(windows=(Window(iterations=5),))) > 0


def test_windows_start_when_they_are_told_to() -> None:
    clock = VirtualClock()
    plan = Plan(
        windows=(Window(start_s=3.0, duration_s=0.35), Window(start_s=7.0, duration_s=0.35))
    )
    windows, waits_s = run_windows(stepper(clock, forever(0.1)), clock, plan, base_s=0.0)
    assert [w[0].start_s for w in windows] == [3.0, 7.0]
    assert [len(w) for w in windows] == [4, 4]
    assert len(waits_s) == 2


def test_windows_without_a_start_follow_each_other() -> None:
    clock = VirtualClock()
    plan = Plan(windows=(Window(duration_s=0.5), Window(iterations=3), Window(duration_s=0.2)))
    windows, _ = run_windows(stepper(clock, forever(0.1)), clock, plan, base_s=1.0)
    starts_s = [w[0].start_s for w in windows]
    assert starts_s == pytest.approx([1.0, 1.5, 1.8])


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_counted_calls_are_shared_out_over_the_instances(count: int) -> None:
    plan = Plan(windows=(Window(iterations=20),))
    made = []
    for index in range(count):
        clock = VirtualClock()
        windows, _ = run_windows(
            stepper(clock, forever(0.1)), clock, plan, base_s=0.0, share=(index, count)
        )
        made.append(len(windows[0]))
    assert sum(made) == 20
    assert max(made) - min(made) <= 1


def samples_of(*times_s: Iterable[float], items: int = 4) -> Samples:
    """Samples of one window, one instance per series of call times."""
    parts = []
    for index, series in enumerate(times_s):
        clock = VirtualClock()
        series = list(series)
        records = closed_loop(stepper(clock, series), clock, iterations=len(series))
        facts = InstanceFacts(instance=index, cores=(index,))
        parts.append(to_samples([records], (0.0,), items_per_call=items, facts=facts))
    return merge(parts)


def test_samples_keep_every_call_of_every_instance() -> None:
    samples = samples_of([0.1, 0.2], [0.3, 0.3, 0.3])
    assert samples.start_s.size == 5
    assert list(samples.instance) == [0, 0, 1, 1, 1]
    np.testing.assert_allclose(samples.latency_s, [0.1, 0.2, 0.3, 0.3, 0.3])
    assert len(samples.facts) == 2


def test_a_window_can_be_taken_out() -> None:
    clock = VirtualClock()
    plan = Plan(windows=(Window(iterations=2), Window(iterations=3)))
    windows, waits_s = run_windows(stepper(clock, forever(0.1)), clock, plan, base_s=0.0)
    samples = to_samples(windows, waits_s, items_per_call=1, facts=InstanceFacts(instance=0))
    assert samples.of_window(1).start_s.size == 3
    assert samples.of_window(1).start_s[0] == pytest.approx(0.2)
