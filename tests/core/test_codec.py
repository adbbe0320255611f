from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from autotune.core.codec import from_json_dict, to_json_dict
from autotune.core.errors import UsageError
from autotune.core.outcomes import Outcome
from autotune.core.records import (
    Comparison,
    Config,
    Measurement,
    Recommendation,
    TrialRecord,
    Verdict,
)


def a_record(**changes: object) -> TrialRecord:
    record = TrialRecord(
        number=3,
        config=Config(batch_size=8, cores_per_instance="8|8", extra=(("env.X", "1"), ("q", 0.5))),
        phase="search",
        verdict=Verdict(
            outcome=Outcome.OVER_LIMIT,
            objectives={"throughput_items_per_s": 10.0},
            excess={"latency_p99_s": 0.001},
            reasons=("P99 is 21 ms",),
        ),
        measurements=(
            Measurement(
                throughput_items_per_s=10.0,
                throughput_ci95_items_per_s=(9.0, 11.0),
                environment={"torch": "2.13"},
            ),
        ),
        profile={"top": ["gemm", 0.5]},
    )
    return replace(record, **changes)  # type: ignore[arg-type]


def through_json(value: object, cls: type) -> object:
    return from_json_dict(cls, json.loads(json.dumps(to_json_dict(value), allow_nan=False)))


def test_a_record_survives_the_round_trip() -> None:
    assert through_json(a_record(), TrialRecord) == a_record()


def test_a_recommendation_survives_the_round_trip() -> None:
    comparison = Comparison(
        config=Config(batch_size=8),
        reference=Config(),
        ratio=2.0,
        ratio_ci=(1.9, 2.1),
        alpha=0.01,
        pair_ratios=(1.9, 2.1),
    )
    value = Recommendation(
        status="confirmed", record=a_record(), against_baseline=comparison, reasons=("why",)
    )
    assert through_json(value, Recommendation) == value


def test_numbers_keep_their_type() -> None:
    config = Config(cores_per_instance=2, extra=(("a", True), ("b", 1), ("c", 1.0), ("d", "1")))
    back = through_json(config, Config)
    assert isinstance(back, Config)
    assert [type(v) for _, v in back.extra] == [bool, int, float, str]
    assert back.cores_per_instance == 2


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, np.float64("nan")])
def test_numbers_that_are_not_finite_become_null(value: float) -> None:
    data = to_json_dict(Verdict(outcome=Outcome.OK, excess={"latency_p99_s": value}))
    assert data["excess"] == {"latency_p99_s": None}
    assert math.isnan(from_json_dict(Verdict, data).excess["latency_p99_s"])


def test_numpy_values_become_plain() -> None:
    measurement = Measurement(
        throughput_items_per_s=np.float64(2.5),
        call_count=np.int64(4),
        telemetry={"a": np.float32(0.5)},
    )
    text = json.dumps(to_json_dict(measurement), allow_nan=False)
    assert from_json_dict(Measurement, json.loads(text)).call_count == 4


def test_a_newer_schema_asks_for_an_upgrade() -> None:
    data = {**to_json_dict(a_record()), "schema_version": 99, "new_field": 1}
    with pytest.raises(UsageError, match=r"schema version 99.*upgrade"):
        from_json_dict(TrialRecord, data)


def test_a_missing_field_takes_its_default() -> None:
    data = to_json_dict(a_record())
    del data["worker"], data["log_tail"]
    assert from_json_dict(TrialRecord, data) == a_record()


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("phase", "lunch", "phase is 'lunch'"),
        ("number", "3", "number is '3', expected int"),
        ("verdict", {"outcome": "fine"}, "'fine' is not a valid Outcome"),
        ("verdict", {}, "outcome"),
        ("measurements", 5, r"TrialRecord\.measurements is not a list"),
        ("measurements", [5], r"TrialRecord\.measurements is not a mapping"),
        (
            "measurements",
            [{"throughput_ci95_items_per_s": [1.0]}],
            r"measurements\.throughput_ci95_items_per_s has 1 items instead of 2",
        ),
        (
            "measurements",
            [{"environment": {"torch": 2}}],
            r"TrialRecord\.measurements\.environment\.torch is 2, expected str",
        ),
        ("verdict", {"outcome": "ok", "excess": {"x": "y"}}, r"verdict\.excess\.x is 'y'"),
        ("config", {"batch_size": True}, r"config\.batch_size is True, expected int"),
        ("config", {"size": 1}, r"TrialRecord\.config has unknown keys size"),
        ("colour", 1, "unknown keys colour"),
    ],
)
def test_damaged_data_are_refused_with_the_place(path: str, value: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        from_json_dict(TrialRecord, {**to_json_dict(a_record()), path: value})


def test_what_has_no_json_form_is_refused() -> None:
    with pytest.raises(TypeError, match="object has no JSON form"):
        to_json_dict(a_record(profile={"x": object()}))
