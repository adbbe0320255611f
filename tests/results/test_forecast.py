"""Forecasts are held against what the declared cost model itself says of both configurations."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from autotune.core.codec import from_json_dict, to_json_dict
from autotune.core.diagnosis import Breakdown, Diagnosis, Forecast, Roofline
from autotune.core.outcomes import Outcome
from autotune.core.records import Config, Measurement, Scalar, TrialRecord, Verdict
from autotune.results.bottleneck import diagnose
from autotune.results.checking import check_text, checked_by_trials
from autotune.results.forecast import Setting, forecast
from autotune.workloads.simulated import COST_MODELS

MODEL = COST_MODELS["recommender_a3"]
FIRST = Config(batch_size=128)
SETTING = Setting(core_count=24, overlaps=True)
CHOICES = {"batch_size": (32, 128, 384, 1024), "cores_per_instance": ("8|8", "16|16", "all")}


@pytest.mark.parametrize(
    ("config", "knob", "after"),
    [
        (FIRST, "batched_h2d", True),
        (FIRST, "batch_size", 256),
        (FIRST, "batch_size", 512),
        (FIRST, "instance_count", 2),
        (FIRST.changed(batched_h2d=True), "batch_size", 256),
        (FIRST.changed(instance_count=2), "batched_h2d", True),
        (FIRST.changed(instance_count=2, batch_size=1024), "instance_count", 4),
        (Config(batch_size=8192, batched_h2d=True, cores_per_instance="8|8"),
         "cores_per_instance", "16|16"),
    ],
)  # fmt: skip
def test_a_forecast_is_within_a_quarter_of_the_truth(
    config: Config, knob: str, after: Scalar
) -> None:
    made = forecast(knob, MODEL.breakdown(config), config, SETTING, after=after)
    assert made is not None and made.formula and made.source
    truth = MODEL.throughput_items_per_s(config.changed(**{knob: after}))
    truth /= MODEL.throughput_items_per_s(config)
    assert made.gain == pytest.approx(truth, rel=0.25)


def test_the_declared_breakdown_adds_up() -> None:
    for config in (FIRST, FIRST.changed(instance_count=4, batched_h2d=True, batch_size=4096)):
        found = MODEL.breakdown(config)
        cycle_s = config.total_instances * config.batch_size / MODEL.throughput_items_per_s(config)
        assert found.span_s == pytest.approx(cycle_s)
        assert found.h2d_alone_s + found.busy_s + found.idle_s == pytest.approx(cycle_s)


def test_the_vendors_first_row_asks_for_batched_copies() -> None:
    found = diagnose(MODEL.breakdown(FIRST), source="declared", config=FIRST, setting=SETTING)
    assert (found.part, found.knob) == ("h2d", "batched_h2d")
    assert found.forecast is not None and found.forecast is found.forecasts[0]
    assert found.forecast.gain == pytest.approx(131191 / 74555, rel=0.1)


def test_following_the_verdicts_leads_beyond_the_vendors_best() -> None:
    """From the first row, each time the parameter that is named: what took engineers their days."""
    ladder = tuple(32 * 2**step for step in range(9))
    setting = replace(SETTING, choices={"batch_size": ladder, "instance_count": tuple(range(1, 9))})
    config, knobs = FIRST, []
    for _ in range(12):
        found = diagnose(MODEL.breakdown(config), source="declared", config=config, setting=setting)
        if found.forecast is None:
            break
        knobs.append(found.knob)
        config = config.changed(**{found.knob: found.forecast.after})
    assert knobs[0] == "batched_h2d"
    assert {"batch_size", "instance_count"} <= set(knobs)
    assert MODEL.throughput_items_per_s(config) > 493_065


def test_the_next_value_is_a_choice_of_the_space() -> None:
    setting = replace(SETTING, choices=CHOICES)
    busy = Breakdown(span_s=1.0, call_count=1, busy_s=1.0, per_call_s=0.0)
    made = forecast("batch_size", busy, FIRST, setting)
    assert made is not None and made.after == 384 and made.gain == pytest.approx(1.0)
    split = FIRST.changed(cores_per_instance="8|8", batch_size=1024)
    made = forecast("cores_per_instance", busy, split, setting)
    assert made is not None and made.after == "16|16" and made.gain == pytest.approx(2.0)
    assert forecast("batch_size", busy, split, setting) is None


def test_instances_with_cores_of_their_own_stop_at_the_last_core() -> None:
    waiting = Breakdown(span_s=1.0, busy_s=0.1, idle_s=0.9, host_s=0.9, shared_s=0.0)
    host = Setting(core_count=2, is_host=True)
    one = Config(cores_per_instance=1)
    made = forecast("instance_count", waiting, one, host)
    assert made is not None and made.gain == pytest.approx(2.0)
    assert forecast("instance_count", waiting, one.changed(instance_count=2), host) is None
    shared = replace(waiting, shared_s=0.8)
    made = forecast("instance_count", shared, Config(), host)
    assert made is not None and made.gain == pytest.approx(1.25)


@pytest.mark.parametrize(
    ("part", "breakdown"),
    [
        ("compute", Breakdown(span_s=1.0, busy_s=0.9, memory_share=0.2)),
        ("memory", Breakdown(span_s=1.0, busy_s=0.9, memory_share=0.9)),
        ("host", Breakdown(span_s=1.0, busy_s=0.2, idle_s=0.8, host_s=0.7)),
        ("queue", Breakdown(span_s=1.0, busy_s=0.9, queue_s=3.0)),
        ("d2h", Breakdown(span_s=1.0, busy_s=0.2, d2h_s=0.7, d2h_alone_s=0.7, d2h_count=3)),
    ],
)
def test_each_part_is_named(part: str, breakdown: Breakdown) -> None:
    assert diagnose(breakdown, source="files").part == part


def record(number: int, config: Config, rate: float, trust: str = "quiet") -> TrialRecord:
    return TrialRecord(
        number=number,
        config=config,
        phase="search",
        verdict=Verdict(outcome=Outcome.OK),
        measurements=(Measurement(throughput_items_per_s=rate, trust=trust),),
    )


def test_forecasts_are_held_against_trials() -> None:
    found = diagnose(MODEL.breakdown(FIRST), source="declared", config=FIRST, setting=SETTING)
    records = [
        record(0, FIRST, 100.0),
        record(3, FIRST.changed(batched_h2d=True), 176.0),
        record(4, FIRST.changed(batch_size=64), 50.0),  # the other way
        record(5, FIRST.changed(batch_size=512), 290.0),
        record(7, FIRST.changed(batch_size=256), 20.0, "noisy: a neighbour"),
        record(6, FIRST.changed(batch_size=256, instance_count=2), 900.0),
    ]
    checked = checked_by_trials(found, records, SETTING)
    by_knob = {f.knob: f for f in checked.forecasts}
    copies, batch = by_knob["batched_h2d"], by_knob["batch_size"]
    assert copies.measured == pytest.approx(1.76) and copies.trials == (0, 3) and copies.holds
    assert (batch.after, batch.measured, batch.trials) == (512, pytest.approx(2.9), (0, 5))
    assert by_knob["instance_count"].measured is None
    assert check_text(copies).startswith("Checked: batched_h2d false → true brought 1.76×")
    assert checked.forecast == copies


def test_a_diagnosis_is_kept_as_plain_data() -> None:
    made = Forecast(knob="batch_size", before=1, after=2, gain=1.9, measured=1.0, trials=(0, 4))
    assert made.holds is False and made.error == pytest.approx(-0.47, abs=0.01)
    roofline = Roofline(
        flops=1e9, moved_bytes=1e9, peak_flops_per_s=1e11, peak_bytes_per_s=1e10, memory_share=0.9
    )
    assert (roofline.bound, roofline.ridge, roofline.least_s) == ("memory", 10.0, 0.1)
    found = diagnose(
        MODEL.breakdown(FIRST), source="declared", config=FIRST, extra=[made], roofline=roofline
    )
    assert from_json_dict(Diagnosis, to_json_dict(found)) == found
    assert math.isclose(sum(found.shares.values()), 1.0)
