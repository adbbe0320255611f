"""Windows of several sessions that take turns."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from search_fakes import INFO, FakeLauncher, make_space, record_of, served, use_fakes

from autotune.core.errors import OutOfMemory, TrialError, TrialKilled, TrialLost
from autotune.core.records import Config
from autotune.search import rounds
from autotune.search.rounds import MIN_WINDOW_S, Entrant, alternating_windows, run_round


def entrants(*steps_s: float) -> list[Entrant]:
    return [
        Entrant(record=record_of(n, Config(batch_size=n + 1), latency_p99_s=step))
        for n, step in enumerate(steps_s)
    ]


@pytest.mark.parametrize("steps_s", [(0.001, 0.002), (0.01, 0.2, 0.05), (0.001,) * 5])
def test_windows_alternate_without_touching(steps_s: tuple[float, ...]) -> None:
    windows, end_s = alternating_windows(entrants(*steps_s), 4.0, 100.0)
    slots = sorted(
        (w.start_s or 0.0, w.duration_s or 0.0, index)
        for index, own in enumerate(windows)
        for w in own
    )
    for (start_s, duration_s, index), (following_s, _, _) in itertools.pairwise(slots):
        assert following_s >= start_s + duration_s + steps_s[index]
    order = [index for _, _, index in slots]
    count = len(steps_s)
    assert order[: 2 * count] == [*range(count), *reversed(range(count))]
    for own in windows:
        assert sum(w.duration_s or 0.0 for w in own) >= 4.0 - 1e-9
        assert len(own) % 2 == 0
        assert all((w.duration_s or 0) >= max(MIN_WINDOW_S, 8 * max(steps_s)) for w in own)
    assert slots[0][0] == 100.0
    assert end_s > slots[-1][0] + slots[-1][1]


def test_slow_calls_have_one_window_and_the_rounds_alternate() -> None:
    windows, end_s = alternating_windows(entrants(0.1, 0.4), 3.0, 0.0, calls=4)
    assert [len(own) for own in windows] == [1, 1]
    assert all(w.duration_s == 3.0 for own in windows for w in own)
    assert end_s == pytest.approx(6.0 + 1.5 * 0.5)


def test_a_steady_drift_weighs_on_all_alike() -> None:
    windows, _ = alternating_windows(entrants(0.001, 0.001, 0.001), 3.0, 0.0)
    centres = [sum((w.start_s or 0.0) for w in own) / len(own) for own in windows]
    assert max(centres) - min(centres) < 1e-9


def test_the_opening_order_alternates(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = use_fakes(served, monkeypatch)
    both = entrants(0.001, 0.002)
    for number in range(2):
        run_round(
            both, make_space(), INFO, FakeLauncher(), number=number, duration_s=1.0, together=True
        )
    assert [c.batch_size for c in opened] == [1, 2, 2, 1]


def test_a_failure_of_one_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    use_fakes(lambda c: OutOfMemory("no") if c.batch_size == 2 else served(c), monkeypatch)
    for together in (True, False):
        found = run_round(
            entrants(0.001, 0.002, 0.003),
            make_space(),
            INFO,
            FakeLauncher(),
            number=0,
            duration_s=1.0,
            together=together,
        )
        assert len(found) == 3
        failed = [c.batch_size for c, r in found.items() if isinstance(r, TrialError)]
        assert failed == [2]


@pytest.mark.parametrize("kind", [TrialLost, TrialKilled])
def test_a_round_whose_processes_were_killed_is_measured_again(
    kind: type[TrialError], monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = iter([kind("killed by SIGKILL")])
    opened = use_fakes(lambda config: next(lost, None) or served(config), monkeypatch)
    outcomes = run_round(
        entrants(0.001, 0.002),
        make_space(),
        INFO,
        FakeLauncher(),
        number=0,
        duration_s=1.0,
        together=False,
    )
    assert not any(isinstance(outcome, TrialError) for outcome in outcomes.values())
    assert [c.batch_size for c in opened] == [1, 2, 1, 2]


def test_what_does_not_fit_in_memory_is_seen_beforehand() -> None:
    both = entrants(0.001, 0.002)
    small = replace(INFO, kind="npu", memory_total_bytes=2_000_000)
    assert rounds.fits_in_memory(both, INFO)
    assert not rounds.fits_in_memory(both, small)
    assert rounds.fits_in_memory(both, replace(small, memory_total_bytes=3_000_000))
