"""Fresh measurements: gains with intervals, limits, budgets, memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from search_fakes import (
    INFO,
    FakeLauncher,
    make_space,
    record_of,
    samples,
    served,
    use_fakes,
)

from autotune.core.errors import OutOfMemory, TrialCrashed, WrongOutput
from autotune.core.outcomes import Outcome
from autotune.core.records import Config, InstanceFacts, Measurement, Samples, TrialRecord
from autotune.search import confirm as confirm_module
from autotune.search import rounds
from autotune.search.confirm import Confirmation, Setup, confirm
from autotune.search.schedule import LEAST_ROUNDS, MIN_ROUNDS, reserve_s
from autotune.space.search_space import Budget, Confirm, SearchSpace

BASE, GOOD, OTHER = Config(), Config(batch_size=8), Config(batch_size=8, instance_count=2)


def prove(
    configs: Sequence[Config] = (OTHER, GOOD),
    *,
    base: TrialRecord | None = None,
    space: SearchSpace | None = None,
    **options: Any,
) -> Confirmation:
    return confirm(
        [record_of(n, c) for n, c in enumerate(configs, 1)],
        base or record_of(0, BASE),
        Setup(space=space or make_space(), info=INFO, launcher=FakeLauncher(), **options),
    )


def by_config(found: Confirmation) -> dict[Config, TrialRecord]:
    return {r.config: r for r in found.records}


def test_everyone_is_measured_in_fresh_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = use_fakes(served, monkeypatch, spread=0.05)
    said: list[str] = []
    found = prove(on_progress=said.append)
    assert len(opened) == 3 * MIN_ROUNDS
    assert [r.config for r in found.records] == [BASE, OTHER, GOOD]
    assert {r.phase for r in found.records} == {"confirm"}
    assert {r.verdict.outcome for r in found.records} == {Outcome.OK}
    assert [(c.config, c.reference) for c in found.comparisons] == [(OTHER, BASE), (GOOD, BASE)]
    for comparison in found.comparisons:
        truth = (
            served(comparison.config)["throughput_items_per_s"]
            / served(BASE)["throughput_items_per_s"]
        )
        assert len(comparison.pair_ratios) == MIN_ROUNDS
        assert len(set(comparison.pair_ratios)) == MIN_ROUNDS  # fresh noise in every round
        assert comparison.ratio_ci[0] < truth < comparison.ratio_ci[1]
        assert comparison.ratio_ci[0] > 1
        assert comparison.interleaved
    assert found.needed == {}
    assert said[0] == "confirming: round 1 of 6, 3 configurations"


def test_it_is_the_same_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    use_fakes(served, monkeypatch, spread=0.05)
    first, second = prove(), prove()
    assert first.comparisons == second.comparisons


def test_a_recorded_figure_is_judged_with_the_noise_of_its_mean(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # 10 ms against 14.5 ms: shown with 6 noisy figures of 20 %, not with one.
    use_fakes(served, monkeypatch, noise=0.2)
    found = by_config(prove([GOOD]))
    assert found[GOOD].verdict.outcome is Outcome.OK
    # 12 of batch: 14 ms; more rounds are tried, then it stays open.
    opened = use_fakes(served, monkeypatch, noise=0.2)
    close = Config(batch_size=12)
    assert by_config(prove([close]))[close].verdict.outcome is Outcome.UNDECIDED
    assert opened.count(close) == 4 * MIN_ROUNDS


def test_a_limit_shown_to_be_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    def behave(config: Config) -> Any:
        return {**served(config), **({"latency_p99_s": 0.02} if config == OTHER else {})}

    use_fakes(behave, monkeypatch)
    found = by_config(prove())
    assert found[OTHER].verdict.outcome is Outcome.OVER_LIMIT
    assert found[GOOD].verdict.outcome is Outcome.OK


def test_wrong_outputs_in_a_fresh_session_refuse_a_configuration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use_fakes(served, monkeypatch)
    checked: list[Config] = []

    def check(config: Config, answers: object) -> None:
        checked.append(config)
        if config == OTHER and checked.count(OTHER) == 2:
            raise WrongOutput("outputs differ from the baseline's")

    found = prove(check=check)
    assert by_config(found)[OTHER].verdict.outcome is Outcome.WRONG_OUTPUT
    assert by_config(found)[GOOD].verdict.outcome is Outcome.OK
    assert [c.config for c in found.comparisons] == [GOOD]
    assert checked.count(GOOD) == checked.count(BASE) == MIN_ROUNDS


def test_a_failure_in_the_confirmation_is_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    error = TrialCrashed("killed by SIGSEGV", log_tail="last words")
    use_fakes(lambda c: error if c == OTHER else served(c), monkeypatch)
    found = prove()
    assert by_config(found)[OTHER].verdict.outcome is Outcome.CRASHED
    assert by_config(found)[OTHER].log_tail == "last words"
    assert [c.config for c in found.comparisons] == [GOOD]


def test_a_baseline_that_cannot_run_leaves_no_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = use_fakes(served, monkeypatch)
    found = prove(base=record_of(0, BASE, "oom"))
    assert BASE not in opened
    assert [r.config for r in found.records] == [OTHER, GOOD]
    assert found.comparisons == ()


def test_the_baseline_as_the_only_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    use_fakes(served, monkeypatch)
    found = prove([BASE])
    assert [r.config for r in found.records] == [BASE]
    assert found.comparisons == ()


def test_what_runs_out_of_memory_together_takes_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def behave(config: Config) -> Any:
        calls.append(config)
        return OutOfMemory("full") if len(calls) == 2 else served(config)

    use_fakes(behave, monkeypatch)
    found = prove([GOOD])
    assert {r.verdict.outcome for r in found.records} == {Outcome.OK}
    assert not found.comparisons[0].interleaved
    assert any("take" in n or "turns" in n for n in found.notes)


class TestBudget:
    def test_little_time_makes_shorter_windows(self, monkeypatch: pytest.MonkeyPatch) -> None:
        durations = self.durations(monkeypatch)
        prove(time_s=MIN_ROUNDS * 3 * (1.5 + 0.7) / 0.9)
        assert durations == [pytest.approx(0.7, rel=0.05)] * MIN_ROUNDS

    def test_less_time_drops_the_last_finalists(self, monkeypatch: pytest.MonkeyPatch) -> None:
        opened = use_fakes(served, monkeypatch)
        found = prove(time_s=MIN_ROUNDS * 2 * (1.5 + 0.6) / 0.9)
        assert set(opened) == {BASE, OTHER}
        assert "1 finalist was not measured again for lack of time" in found.notes

    def test_no_time_skips_it_and_says_so(self, monkeypatch: pytest.MonkeyPatch) -> None:
        opened = use_fakes(served, monkeypatch)
        found = prove(time_s=5.0)
        assert opened == []
        assert found.records == ()
        assert "confirmation skipped" in found.notes[0]

    def test_it_stops_when_time_is_up(self, monkeypatch: pytest.MonkeyPatch) -> None:
        use_fakes(served, monkeypatch, cost_s=8.0)  # slower than its trials promised
        found = prove(time_s=45.0)
        assert len(found.comparisons[0].pair_ratios) < MIN_ROUNDS
        assert any("rounds fitted the budget" in note for note in found.notes)

    def test_skipped_by_the_space_file(self, monkeypatch: pytest.MonkeyPatch) -> None:
        opened = use_fakes(served, monkeypatch)
        assert prove(space=make_space(confirm=None)) == Confirmation()
        assert opened == []

    def test_the_reserve_is_at_most_half(self) -> None:
        space = make_space(confirm=Confirm(top=3, duration_s=20.0))
        assert reserve_s(space) == pytest.approx(5 * (20 + 6 * 1.5))
        assert reserve_s(replace(space, budget=Budget(time_s=60.0))) == 30.0
        assert reserve_s(replace(space, confirm=None)) == 0.0
        costly = replace(
            record_of(0, BASE), cost_s=5.0, measurements=(Measurement(duration_s=2.0),)
        )
        assert reserve_s(space, [costly]) == pytest.approx(5 * (20 + 6 * 3.0))

    def test_nothing_is_reserved_where_no_confirmation_fits_the_half(self) -> None:
        costly = replace(
            record_of(0, BASE), cost_s=5.0, measurements=(Measurement(duration_s=2.0),)
        )
        space = make_space(confirm=Confirm(top=3, duration_s=20.0))
        shortest_s = 2 * LEAST_ROUNDS * (0.5 + 3.0) / 0.9
        for time_s, kept_s in ((2.02 * shortest_s, 1.01 * shortest_s), (1.98 * shortest_s, 0.0)):
            budget = Budget(time_s=time_s)
            assert reserve_s(replace(space, budget=budget), [costly]) == pytest.approx(kept_s)

    def durations(self, monkeypatch: pytest.MonkeyPatch) -> list[float]:
        seen: list[float] = []
        inner = rounds.run_round

        def spy(*args: Any, duration_s: float, **options: Any) -> Any:
            seen.append(duration_s)
            return inner(*args, duration_s=duration_s, **options)

        use_fakes(served, monkeypatch)
        monkeypatch.setattr(confirm_module, "run_round", spy)
        return seen


class TestTail:
    """Calls, not figures: the P99 of the confirmation is judged on all rounds together."""

    def run(self, monkeypatch: pytest.MonkeyPatch, slow_every: int, step_s: float = 0.005) -> Any:
        def behave(config: Config) -> Samples:
            slow = slow_every if config == GOOD else 0
            return samples(
                step_s=step_s,
                starts_s=(0.0,),
                duration_s=1.0,
                items=8,
                slow_every=slow,
                slow_s=0.02,
            )

        opened = use_fakes(behave, monkeypatch)
        found = prove([GOOD])
        return by_config(found)[GOOD], found, opened.count(GOOD)

    def test_a_quiet_tail_is_shown_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        record, _, round_count = self.run(monkeypatch, slow_every=0)
        assert record.verdict.outcome is Outcome.OK
        assert round_count == MIN_ROUNDS
        assert record.measurement is not None
        assert record.measurement.call_count == pytest.approx(6 * 200, abs=12)

    def test_a_heavy_tail_is_shown_to_break_the_limit(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        record, _, round_count = self.run(monkeypatch, slow_every=20)
        assert record.verdict.outcome is Outcome.OVER_LIMIT
        assert round_count == MIN_ROUNDS

    def test_a_close_one_gets_more_rounds_and_then_says_how_much_is_missing(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        record, found, round_count = self.run(monkeypatch, slow_every=130, step_s=0.012)
        assert round_count == 4 * MIN_ROUNDS
        assert record.verdict.outcome is Outcome.UNDECIDED
        needed = found.needed[GOOD]
        assert 10 < needed.more_s < 1000
        assert needed.duration_s > needed.more_s + (record.measurement.duration_s or 0.0)
        assert needed.time_s > 2 * 2 * needed.duration_s

    def test_the_confirmation_it_asks_for_settles_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        window_s = start_s = 0.0
        inner = rounds.run_round

        def remember(*args: Any, duration_s: float, **options: Any) -> Any:
            nonlocal window_s, start_s
            window_s, start_s = duration_s, start_s + duration_s + 1.0
            return inner(*args, duration_s=duration_s, **options)

        def behave(config: Config) -> Samples:
            slow = 130 if config == GOOD else 0
            return samples(0.012, (start_s,), window_s, slow_every=slow, slow_s=0.02)

        use_fakes(behave, monkeypatch)
        monkeypatch.setattr(confirm_module, "run_round", remember)
        found = prove([GOOD])
        assert by_config(found)[GOOD].verdict.outcome is Outcome.UNDECIDED
        needed = found.needed[GOOD]
        space = make_space(confirm=Confirm(top=3, duration_s=needed.duration_s))
        found = prove([GOOD], space=space, time_s=needed.time_s)
        assert by_config(found)[GOOD].verdict.outcome is Outcome.OK


def _waiting(wait_share: float) -> Samples:
    found = samples(step_s=0.005, starts_s=(0.0,), duration_s=1.0)
    facts = (InstanceFacts(instance=0, cores=(0,)),)
    return replace(found, run_queue_wait_s=(wait_share,), facts=facts)


def test_noisy_rounds_are_made_up_for_and_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Config] = []

    def served_beside_others(config: Config) -> Samples:
        opened.append(config)
        number = (len(opened) - 1) // 2  # two configurations per round
        return _waiting(0.4 if number in (1, 2) else 0.0)

    use_fakes(served_beside_others, monkeypatch)
    said: list[str] = []
    found = prove([GOOD], on_progress=said.append)
    assert len(opened) == 2 * (MIN_ROUNDS + 2)
    assert said[-1] == f"confirming: round {MIN_ROUNDS + 2} of {MIN_ROUNDS + 2}, 2 configurations"
    for record in found.records:
        assert record.measurement is not None and record.measurement.trust == "quiet"
        assert record.measurement.duration_s == pytest.approx(MIN_ROUNDS * 1.0, rel=0.01)
    assert len(found.comparisons[0].pair_ratios) == MIN_ROUNDS


def test_without_time_for_more_the_quiet_rounds_stand_alone_if_they_are_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for noisy, pairs in ((1, MIN_ROUNDS - 1), (2, MIN_ROUNDS - 2), (3, MIN_ROUNDS)):
        opened: list[Config] = []

        def beside_others(
            config: Config, noisy: int = noisy, opened: list[Config] = opened
        ) -> Samples:
            opened.append(config)
            return _waiting(0.4 if (len(opened) - 1) // 2 < noisy else 0.0)

        use_fakes(beside_others, monkeypatch, cost_s=2.0)
        found = prove([GOOD], time_s=27.5)  # six rounds fit, and no seventh
        assert len(opened) == 2 * MIN_ROUNDS
        assert len(found.comparisons[0].pair_ratios) == pairs
        trusted = by_config(found)[GOOD].measurement
        assert trusted is not None and (trusted.trust == "quiet") == (noisy < 3)


def test_rounds_that_stay_noisy_cost_one_more_and_are_labelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened = use_fakes(lambda _: _waiting(0.4), monkeypatch)
    found = prove([GOOD])
    assert len(opened) == 2 * (MIN_ROUNDS + 1)
    for record in found.records:
        assert record.measurement is not None
        assert record.measurement.trust == "noisy: another process took 40% of its cores"


def test_a_tail_that_a_neighbour_broke_is_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = samples(step_s=0.005, duration_s=1.0, slow_every=20, slow_s=0.03)
    facts = (InstanceFacts(instance=0, cores=(0,)),)
    for wait_s, outcome in ((0.0, Outcome.OVER_LIMIT), (0.3, Outcome.UNDECIDED)):
        disturbed = replace(slow, run_queue_wait_s=(wait_s,), facts=facts)
        use_fakes(lambda _, found=disturbed: found, monkeypatch)  # type: ignore[misc]
        assert by_config(prove([GOOD]))[GOOD].verdict.outcome is outcome
