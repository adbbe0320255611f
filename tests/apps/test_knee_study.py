"""`objective: knee` from the space file to the proven recommendation, on replayed curves."""

from __future__ import annotations

import runpy
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from autotune.apps.run import RunInterrupted, run
from autotune.apps.show import show
from autotune.apps.view import Standing, View
from autotune.core.errors import UsageError
from autotune.core.records import TrialRecord
from autotune.results.study_result import StudyResult
from autotune.results.summary import figures, reasons
from autotune.results.tables import to_json
from autotune.space.loader import load_space

TESTS = Path(__file__).parents[1]
PUBLISHED = runpy.run_path(str(TESTS / "measure" / "test_knee.py"))["CURVES"]
BENCH = runpy.run_path(str(TESTS.parent / "benchmarks" / "knee.py"))
SATURATING = {1: 43, 2: 84, 4: 164, 8: 333, 16: 640, 32: 1195, 64: 1595, 128: 1699, 256: 1746}
CLIFF = {1: 90, 2: 170, 4: 330, 8: 640, 16: 1150, 32: 1800, 64: 1810, 128: 600}
HEAD = "batch_size,instance_count,throughput_items_per_s,latency_p99_s,status,cost_s\n"

Study = Callable[..., StudyResult]


@pytest.fixture
def knee_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Study:
    """Runs a study of a curve: batch size to throughput, 0 for one that runs out of memory."""
    monkeypatch.chdir(tmp_path)

    def study(
        curve: Mapping[int, float],
        *lines: str,
        failure: str = "oom",
        instances: Mapping[int, float] = {1: 1.0},
        view: View | None = None,
    ) -> StudyResult:
        rows = [
            f"{b},{i},{x * f},{1.2 * b / x},ok,0.1" if x else f"{b},{i},,,{failure},0.1"
            for b, x in curve.items()
            for i, f in instances.items()
        ]
        Path("curve.csv").write_text(HEAD + "\n".join(rows) + "\n", encoding="utf-8")
        text = "\n".join(
            ["workload: {replay: curve.csv, noise: 0.01}", "objective: knee", *lines, ""]
        )
        Path("k.yaml").write_text(text, encoding="utf-8")
        return run(load_space("k.yaml"), view=view)

    return study


def test_published_curves_through_the_whole_study(tmp_path: Path) -> None:
    share, measured = [], []
    for seed, (sizes, speed) in enumerate(PUBLISHED.values()):
        curve = BENCH["Published"](source="", sizes=sizes, speed=np.array(speed))
        if curve.has_isolated:
            continue  # a single odd point is found only by chance
        (tmp_path / str(seed)).mkdir()
        found = BENCH["study"](curve, 0.03, seed, tmp_path / str(seed))
        share.append(found[0])
        measured.append(found[1])
    assert np.maximum(0.95 - np.array(share), 0).mean() <= 0.01
    assert min(share) >= 0.9
    assert np.median(measured) <= 0.6  # most of these were chosen for being hard


def test_the_knee_is_proven_beside_the_peak(knee_study: Study) -> None:
    result = knee_study(SATURATING)
    data = to_json(result)
    assert result.status == "confirmed"
    assert data["config"]["batch_size"] == data["knee"]["batch_size"] == 128
    assert data["knee"]["peak_batch_size"] == 256 and data["knee"]["kind"] == "inside"
    low, high = data["knee"]["delivered_ci95"]
    assert low <= 1699 / 1746 * 1.02 and high >= 1699 / 1746 * 0.98
    proven = {r.config.batch_size for r in result.recommendation.confirmations}
    assert proven == {1, 128, 256}
    assert result.ending.complete and result.trial_count < len(SATURATING)
    assert figures(result)[0].figure == "batch 128"
    assert "shaded" in Path(str(result.report)).read_text(encoding="utf-8")


def test_a_limit_moves_the_knee(knee_study: Study) -> None:
    result = knee_study(SATURATING, "limits: {latency_p99: 40ms}")
    assert result.status == "confirmed"
    assert result.config is not None and result.config.batch_size == 32  # 32.1 ms, next 48.2 ms


def test_a_cliff_is_named_and_avoided(knee_study: Study) -> None:
    result = knee_study(CLIFF)
    assert result.config is not None and result.config.batch_size in (32, 64)
    assert to_json(result)["knee"]["cliffs"] == [128]
    assert any("falls for good at batch 128" in reason for reason in reasons(result))


def test_a_curve_that_still_rises_says_so(knee_study: Study) -> None:
    result = knee_study({b: 100.0 * b for b in (1, 2, 4, 8, 16, 32, 64, 128)})
    assert to_json(result)["knee"]["kind"] == "outside_range"
    assert result.config is not None and result.config.batch_size == 128


def test_a_flat_curve_keeps_the_baseline(knee_study: Study) -> None:
    result = knee_study(dict.fromkeys((1, 2, 4, 8, 16, 32), 100.0))
    assert to_json(result)["knee"]["kind"] == "flat"
    assert result.status == "confirmed" and result.config == result.facts.baseline


def test_the_first_size_best(knee_study: Study) -> None:
    result = knee_study({1: 43.8, 4: 25.4, 8: 31.7, 16: 31.9, 32: 32.0, 64: 32.3})
    assert result.status == "confirmed" and result.config == result.facts.baseline
    assert to_json(result)["knee"]["cliffs"][0] in (4, 8)


@pytest.mark.parametrize("curve", [{8: 100.0}, {1: 100.0, 8: 500.0}])
def test_too_few_sizes_for_a_knee(knee_study: Study, curve: dict[int, float]) -> None:
    result = knee_study(curve)
    assert result.config is not None and result.config.batch_size == 8
    assert to_json(result)["knee"]["kind"] == "none"
    assert figures(result)[0].figure == "unknown"
    assert figures(result)[0].detail == "fewer than three batch sizes are known"


def test_large_sizes_that_do_not_fit_are_left_alone(knee_study: Study) -> None:
    curve = {**{b: 100.0 * min(b, 16) for b in (1, 2, 4, 8, 16, 32)}, 64: 0, 128: 0, 256: 0}
    result = knee_study(curve)
    knee = to_json(result)["knee"]
    assert knee["interval"][0] <= 16 <= knee["interval"][1] == 32
    assert result.config is not None and result.config.batch_size in (16, 32)
    assert result.counts["oom"] <= 3


@pytest.mark.parametrize(("failure", "stopped"), [("oom", ""), ("crashed", "failed alike")])
def test_nothing_runs(knee_study: Study, failure: str, stopped: str) -> None:
    result = knee_study(dict.fromkeys((1, 2, 4, 8, 16), 0), failure=failure)
    assert result.status == "failed" and result.config is None
    assert stopped in result.ending.stopped
    assert result.trial_count <= 5
    assert to_json(result)["knee"]["kind"] == "none"


def test_no_size_holds_the_limit(knee_study: Study) -> None:
    result = knee_study(SATURATING, "limits: {latency_p99: 1ms}")
    assert result.status == "infeasible"
    assert to_json(result)["closest"]["config"]["batch_size"] == 1
    knee = figures(result)[0]
    assert (knee.name, knee.figure) == ("Knee", "unknown")
    assert knee.detail == "no measured batch size is sure to hold the limits"


def test_everything_close_to_the_limit_ends_within_bounds(knee_study: Study) -> None:
    curve = {b: 100.0 * b for b in (1, 2, 4, 8)}  # every P99 is 12 ms, the limit too
    result = knee_study(curve, "limits: {latency_p99: 12ms}")
    assert result.status in ("undecided", "infeasible")
    assert result.trial_count <= 4 * len(curve)


def test_each_combination_of_the_others_has_a_curve(knee_study: Study) -> None:
    result = knee_study(SATURATING, instances={1: 1.0, 2: 1.6})
    assert result.config is not None and result.config.instance_count == 2
    assert result.config.batch_size == 128
    counts = [r.config.instance_count for r in result.records]
    assert counts == sorted(counts)  # the baseline's curve is settled before the next
    assert any("2 curves were measured" in reason for reason in reasons(result))


def test_too_many_curves_are_refused(knee_study: Study) -> None:
    many = dict.fromkeys(range(1, 10), 1.0)
    with pytest.raises(UsageError, match="instance_count: more than 8 here"):
        knee_study(SATURATING, instances=many)
    lines = ("sampler: random", "budget: {trials: 12}", "confirm: false")
    assert knee_study(SATURATING, *lines, instances=many).config is not None


def test_a_given_rate_has_no_knee(knee_study: Study, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(
        "workload: {simulated: recommender_a3}\nobjective: knee\n"
        "load: {poisson: {rate: 100/s}}\nparams: {batch_size: [1, 8, 64]}\n"
    )
    with pytest.raises(UsageError, match="rate: max"):
        run(load_space("s.yaml"))


class Interrupter(View):
    def __init__(self, after: int) -> None:
        self._left = after

    def trial_finished(self, record: TrialRecord, standing: Standing) -> None:
        self._left -= 1
        if not self._left:
            raise KeyboardInterrupt


def test_an_interrupted_curve_goes_on(knee_study: Study) -> None:
    whole = knee_study(SATURATING, "study: whole")
    with pytest.raises(RunInterrupted):
        knee_study(SATURATING, "study: parts", view=Interrupter(2))
    parts = knee_study(SATURATING, "study: parts")
    assert [r.config for r in parts.records] == [r.config for r in whole.records]
    assert parts.config == whole.config
    assert to_json(show("parts"))["knee"] == to_json(parts)["knee"]
