from __future__ import annotations

from collections.abc import Callable

from autotune.results.charts import Chart
from autotune.results.curves import curve, trial_map
from autotune.results.study_result import StudyResult

Make = Callable[..., StudyResult]


def charts_of(result: StudyResult) -> tuple[Chart, Chart, Chart]:
    throughput, latency = curve(result, "throughput"), curve(result, "latency_p99")
    every = trial_map(result)
    assert throughput is not None and latency is not None and every is not None
    return throughput, latency, every


def test_what_was_proven_stands_where_the_proof_puts_it(make_study: Make) -> None:
    """The ring shows the figures of the headline, not those of the short trial."""
    result = make_study()
    assert result.recommendation.record is not None
    fresh = result.recommendation.record.measurement
    trial = next(r for r in result.records if r.config == result.config)
    assert fresh is not None and trial.measurement is not None
    assert fresh.throughput_items_per_s != trial.measurement.throughput_items_per_s
    throughput, latency, every = charts_of(result)
    best = [next(m for m in c.marks if m.kind == "best") for c in (throughput, latency, every)]
    assert best[0].y == fresh.throughput_items_per_s
    assert best[1].y == fresh.latency_p99_s
    assert (best[2].x, best[2].y) == (fresh.latency_p99_s, fresh.throughput_items_per_s)


def test_the_trials_of_what_was_proven_stay_as_faint_points(make_study: Make) -> None:
    result = make_study()
    proven = {r.config for r in result.recommendation.confirmations}
    outdated = {f"#trial-{r.number}" for r in result.records if r.config in proven}
    for chart in charts_of(result):
        points = [p for series in chart.series for p in series.points]
        by_link = {p.href: p for p in points}
        assert len(by_link) == len(points)
        assert outdated <= set(by_link)
        assert all(by_link[link].faint and not by_link[link].joined for link in outdated)
        fresh = {p.href for p in points if p.proven}
        assert len(fresh) == len(proven)
        assert all(link.startswith("#proof-") for link in fresh)


def test_without_a_proof_the_marks_are_the_trials(make_study: Make) -> None:
    result = make_study(confirmed=False)
    trial = next(r for r in result.records if r.config == result.config)
    assert trial.measurement is not None
    throughput, _, _ = charts_of(result)
    assert throughput.marks[0].y == trial.measurement.throughput_items_per_s
    assert not any(p.proven for series in throughput.series for p in series.points)
