"""Studies of several goals, from the space file to the front, the proof and the choice."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import optuna
import pytest

from autotune.apps.run import run
from autotune.apps.show import choose, read_preferences, show
from autotune.apps.terminal import result_lines
from autotune.core.errors import UsageError
from autotune.core.objective import METRICS
from autotune.results.study_result import StudyResult
from autotune.results.summary import figures
from autotune.results.tables import to_json
from autotune.space.loader import load_space

HEAD = "batch_size,instance_count,throughput_items_per_s,latency_p99_s,power_w,status,cost_s\n"
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
Study = Callable[..., StudyResult]


@pytest.fixture
def goal_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Study:
    """Runs a study of a grid: 1 ms + 50 µs per item, a second instance always worse."""
    monkeypatch.chdir(tmp_path)

    def study(*lines: str, noise: float = 0.01) -> StudyResult:
        rows = []
        for batch in SIZES:
            for count in (1, 2):
                step_s = (1e-3 + 5e-5 * batch) * (1.0, 1.3)[count - 1]
                power = 50.0 + 0.5 * batch
                rows.append(f"{batch},{count},{batch / step_s},{1.2 * step_s},{power},ok,0.1")
        Path("grid.csv").write_text(HEAD + "\n".join(rows) + "\n", encoding="utf-8")
        text = [f"workload: {{replay: grid.csv, noise: {noise}}}", *lines, ""]
        Path("p.yaml").write_text("\n".join(text), encoding="utf-8")
        return run(load_space("p.yaml"))

    return study


def test_the_front_is_found_proven_in_part_and_shown(goal_study: Study) -> None:
    result = goal_study("goals: [throughput, latency_p99]")
    assert result.status == "confirmed"
    data = to_json(result)
    json.dumps(data, allow_nan=False)
    front = [p for p in data["front"] if p["beaten_by"] is None]
    assert [p["config"]["batch_size"] for p in front] == sorted(SIZES, reverse=True)
    assert {p["config"]["instance_count"] for p in front} == {1}
    proven = [p["config"]["batch_size"] for p in front if p["proven"]]
    assert {1, 128} <= set(proven) and data["config"]["batch_size"] in proven
    figures = [tuple(p["goals"].values()) for p in front]
    assert figures == sorted(figures, reverse=True)
    text = "\n".join(result_lines(result))
    assert "The front: 8 configurations are beaten by no other" in text
    report = Path(str(result.report)).read_text(encoding="utf-8")
    assert '<polyline class="front"' in report and "Choose by what you need" in report
    again = show("p")
    assert to_json(again)["front"] == data["front"]


def test_optuna_holds_both_directions(goal_study: Study) -> None:
    result = goal_study("goals: [throughput, latency_p99]", "limits: {latency_p99: 5ms}")
    journal = Path("studies/p/study.journal")
    storage = optuna.storages.JournalStorage(
        optuna.storages.journal.JournalFileBackend(str(journal))
    )
    study = optuna.load_study(study_name="p", storage=storage)
    assert [d.name for d in study.directions] == ["MAXIMIZE", "MINIMIZE"]
    best = {t.params["batch_size"] for t in study.best_trials}
    assert best and max(best) <= 64  # 128 takes 8.9 ms
    assert all(p.record.config.batch_size <= 64 for p in result.front)


def test_weighted_goals_are_one_value(goal_study: Study) -> None:
    balanced = goal_study("study: even", "goals: {throughput: 1, latency_p99: 1}", "sampler: grid")
    fast = goal_study("study: fast", "goals: {throughput: 1, latency_p99: 0.2}", "sampler: grid")
    slow = goal_study("study: slow", "goals: {throughput: 0.3, latency_p99: 1}", "sampler: grid")
    batches = [r.config.batch_size for r in (slow, balanced, fast) if r.config]
    assert batches == sorted(batches) and batches[0] < batches[2]
    # b / (t0 + t1 b)^2 has its best at t0 / t1 = 20.
    assert batches[1] in (16, 32)
    data = to_json(balanced)
    assert balanced.status == "confirmed" and "front" not in data
    ratios = data["improvements"]
    expected = ratios["throughput_items_per_s"] / ratios["latency_p99_s"]
    assert data["weighted_gain"] == pytest.approx(expected)
    storage = optuna.storages.JournalStorage(
        optuna.storages.journal.JournalFileBackend("studies/even/study.journal")
    )
    study = optuna.load_study(study_name="even", storage=storage)
    assert [d.name for d in study.directions] == ["MAXIMIZE"]
    assert study.best_trial.params["batch_size"] in (8, 16, 32)


def test_energy_comes_from_power(goal_study: Study) -> None:
    result = goal_study("goals: [throughput, energy]", "sampler: grid")
    assert result.status == "confirmed"
    for record in result.records:
        m = record.measurement
        assert m is not None and m.power_w is not None and m.throughput_items_per_s
        assert m.energy_per_item_j == pytest.approx(m.power_w / m.throughput_items_per_s)


def test_a_goal_that_nothing_tells_is_refused_before_a_trial(goal_study: Study) -> None:
    with pytest.raises(UsageError, match="memory_peak_bytes"):
        goal_study("goals: [throughput, memory_peak]")


def test_the_shipped_objective_is_the_same(goal_study: Study) -> None:
    result = goal_study("objective: pareto")
    assert result.facts.objective.front and result.front


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("goals: [throughput, latency]", "unknown metric 'latency'"),
        ("goals: [throughput, throughput]", "given twice"),
        ("goals: []", "0 goals"),
        ("goals: throughput", "expected a list"),
        ("goals: {throughput: 0}", "not between 0 and 10"),
        ("goals: {throughput: 1ms}", "goals.throughput"),
        ("objective: knee\ngoals: [throughput, power]", "finds a knee"),
    ],
)
def test_goals_that_are_refused(goal_study: Study, lines: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        goal_study(lines)
    assert "p.yaml:" in str(caught.value)


def test_all_limits_broken_leaves_no_front(goal_study: Study) -> None:
    result = goal_study("goals: [throughput, latency_p99]", "limits: {latency_p99: 100us}")
    assert result.status == "infeasible" and result.front == ()
    assert to_json(result)["front"] == []


# --- choosing afterwards ---------------------------------------------------------------------


def test_a_preference_picks_the_best_that_holds_it(goal_study: Study) -> None:
    result = goal_study("goals: [throughput, latency_p99]", noise=0.0)

    def chosen(*wishes: str) -> int | None:
        found = choose(result, wishes, studies_dir=Path("studies")).record
        return None if found is None else found.config.batch_size

    assert chosen("latency_p99=2ms") == 8  # 1.68 ms; 16 takes 2.16 ms
    assert chosen("latency_p99<=10ms") == 128
    assert chosen("throughput>=10000/s") == 32  # the quickest of those: 12,308/s
    assert chosen("throughput>=10000/s", "latency_p99=2ms") is None
    assert chosen("latency_p99=1us") is None


def test_a_preference_loosens_the_studys_own_limit(goal_study: Study) -> None:
    result = goal_study("limits: {latency_p99: 2ms}", noise=0.0)
    assert result.config is not None and result.config.batch_size == 8
    loose = choose(result, ["latency_p99=4ms"], studies_dir=Path("studies"))
    assert loose.record is not None and loose.record.config.batch_size == 32
    assert "by the figures of" in loose.basis


def test_raw_calls_are_judged_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("s.yaml").write_text(
        "workload: {simulated: recommender_a3}\nconfirm: false\n"
        "params: {batch_size: [32, 256, 2048]}\n"
    )
    result = run(load_space("s.yaml"))
    p99_s = sorted(r.measurement.latency_p99_s for r in result.records if r.measurement)  # type: ignore[type-var]
    assert p99_s[0] is not None
    found = choose(result, [f"latency_p99={p99_s[0] * 1.5e3}ms"], studies_dir=Path("studies"))
    assert found.verdict is not None and "shown to hold by the calls" in found.basis


def test_without_latencies_the_fastest_is_preferred(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [f"{batch},{1000 * batch},ok,0.1" for batch in SIZES]
    head = "batch_size,throughput_items_per_s,status,cost_s"
    Path("grid.csv").write_text("\n".join((head, *rows)))
    Path("s.yaml").write_text(
        f"workload: {{replay: grid.csv}}\nconfirm: false\nparams: {{batch_size: {list(SIZES)}}}\n"
    )
    found = choose(run(load_space("s.yaml")), ["throughput>=5000/s"], studies_dir=Path("studies"))
    assert [goal.metric for goal in found.goals] == ["throughput"]
    assert found.record is not None and found.record.config.batch_size == 128


def test_a_figure_that_no_trial_tells(goal_study: Study) -> None:
    result = goal_study()
    found = choose(result, ["memory_peak=1GiB"], studies_dir=Path("studies"))
    assert found.record is None and found.basis == "no trial tells peak memory"


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        ("latency_p99=10", "has no unit"),
        ("latency_p9=10ms", "did you mean"),
        ("latency_p99>=10ms", "is a maximum"),
        ("latency_p99", "write metric=value"),
        ("latency_p99=", "latency_p99"),
        ("", "write metric=value"),
    ],
)
def test_preferences_that_are_refused(wish: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        read_preferences([wish])
    assert str(caught.value).startswith("--prefer")


def test_every_metric_can_be_preferred() -> None:
    units = {"duration": "1ms", "rate": "1/s", "size": "1GiB", "power": "1W", "energy": "1mJ"}
    wishes = [f"{name}={units[metric.unit]}" for name, metric in METRICS.items()]
    assert len(read_preferences(wishes)) == len(METRICS)


def test_the_worst_of_several_trials_counts(goal_study: Study) -> None:
    result = goal_study("goals: [throughput, latency_p99]", "confirm: false", noise=0.0)
    lucky = next(r for r in result.records if r.config.batch_size == 16)
    figures = replace(lucky.measurements[0], latency_p99_s=1e-3)
    both = replace(result, records=(*result.records, replace(lucky, measurements=(figures,))))
    found = choose(both, ["latency_p99=2ms"], studies_dir=Path("studies"))
    assert found.record is not None and found.record.config.batch_size == 8


@pytest.mark.parametrize(
    ("goals", "name"),
    [
        ("[throughput]", "offline_throughput"),
        ("[latency_p99]", "latency_p99"),
        ("[latency_p99, power]", "pareto"),
        ("{latency_p99: 1, power: 2}", "weighted"),
    ],
)
def test_a_default_objective_is_named_by_its_goals(
    goals: str, name: str, goal_study: Study
) -> None:
    result = goal_study(f"goals: {goals}", "confirm: false", "budget: {trials: 3}")
    assert result.facts.objective.name == name
    assert result.config is not None
    assert ("Weighted gain" in {f.name for f in figures(result)}) == (name == "weighted")
