from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from autotune.core.outcomes import Outcome
from autotune.results.study_result import StudyResult
from autotune.results.tables import to_csv, to_json, top_rows

Make = Callable[..., StudyResult]

KEYS_OF_THE_DESIGN = {
    "schema", "study", "status", "config", "measurement", "verdict", "baseline", "gain",
    "gain_ci95", "knee", "trust", "complete", "trials", "elapsed_s", "report",
}  # fmt: skip


def test_json_has_the_documented_shape_and_numbers_every_parser_reads(make_study: Make) -> None:
    data = json.loads(json.dumps(to_json(make_study()), allow_nan=False))
    assert set(data) >= KEYS_OF_THE_DESIGN
    assert "closest" not in data
    assert data["schema"] == 1
    assert data["status"] == "confirmed"
    assert set(data["measurement"]) == {
        "throughput_items_per_s", "throughput_ci95_items_per_s", "arrival_rate_per_s",
        "latency_p99_s", "memory_peak_bytes",
    }  # fmt: skip
    assert set(data["verdict"]) == {"outcome", "excess", "reasons", "needed_s"}
    assert set(data["baseline"]) == {"config", "throughput_items_per_s"}
    low, high = data["gain_ci95"]
    assert 1 < low < data["gain"] < high
    assert data["trials"]["total"] == 32
    assert sum(data["trials"][k] for k in ("ok", "over_limit", "undecided", "oom")) == 32


def test_json_of_a_figure_that_is_no_number_has_null(make_study: Make) -> None:
    result = make_study(confirmed=False)
    record = result.recommendation.record
    assert record is not None
    bad = replace(record.measurements[0], latency_p99_s=math.nan)
    odd = replace(result.recommendation, record=replace(record, measurements=(bad,)))
    data = json.loads(json.dumps(to_json(replace(result, recommendation=odd)), allow_nan=False))
    assert data["measurement"]["latency_p99_s"] is None


def test_json_of_an_infeasible_study_has_no_configuration_but_the_closest(
    make_study: Make,
) -> None:
    data = to_json(make_study(limit_s=0.0005))
    assert data["status"] == "infeasible"
    assert data["config"] is None and data["measurement"] is None and data["gain"] is None
    assert data["verdict"]["outcome"] == "over_limit"
    assert data["verdict"]["excess"]["latency_p99_s"] > 0
    assert data["closest"]["config"]["batch_size"] == 1


def test_json_of_a_study_without_trials_is_still_one_object(make_study: Make) -> None:
    from autotune.results.ranking import Ranking
    from autotune.results.recommend import decide

    result = make_study()
    empty = replace(result, records=(), recommendation=decide(Ranking(), result.facts.objective))
    data = to_json(empty)
    assert data["verdict"] is None
    assert data["trials"] == {"total": 0, "planned": 32}


def test_csv_has_a_row_per_trial_and_units_in_its_names(make_study: Make) -> None:
    result = make_study()
    rows = list(csv.DictReader(io.StringIO(to_csv(result))))
    assert len(rows) == len(result.records) + len(result.recommendation.confirmations)
    assert {row["phase"] for row in rows} == {"baseline", "search", "confirm"}
    first = rows[0]
    assert float(first["throughput_items_per_s"]) > 0
    assert float(first["latency_p99_s"]) < 0.1
    assert first["batch_size"] == "1"
    oom = next(row for row in rows if row["outcome"] == "oom")
    assert oom["throughput_items_per_s"] == ""
    assert "needed 1.2 GiB" in oom["reasons"]


@pytest.mark.parametrize("count", [0, 1, 5])
def test_top_rows_are_the_ranking(count: int, make_study: Make) -> None:
    result = make_study(confirmed=False)
    assert top_rows(result, count) == result.ranking.ranked[:count]


def test_in_top_rows_a_fresh_measurement_takes_the_trials_place(make_study: Make) -> None:
    result = make_study()
    recommendation = result.recommendation
    refused = next(r for r in recommendation.confirmations[1:] if r.config != result.config)
    broken = replace(refused, verdict=replace(refused.verdict, outcome=Outcome.OVER_LIMIT))
    fresh = tuple(broken if r is refused else r for r in recommendation.confirmations)
    result = replace(result, recommendation=replace(recommendation, confirmations=fresh))
    rows = top_rows(result, 100)
    assert rows[0].config == result.config
    assert rows[0].measurement == recommendation.record.measurement
    assert refused.config not in {row.config for row in rows}
    by_number = {record.number: record.config for record in result.records}
    assert all(by_number[row.number] == row.config for row in rows)
