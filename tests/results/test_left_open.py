"""What the search left open, in sentences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from autotune.core.insight import Alike, Insight, Untried
from autotune.results.left_open import left_open
from autotune.results.report import render
from autotune.results.study_result import StudyResult
from autotune.results.summary import standing
from autotune.results.tables import to_json

INSIGHT = Insight(
    expected_gain=0.0124,
    alike=Alike(
        within=0.02,
        count=31,
        tested=4,
        values={"batch_size": (16, 32), "instance_count": (2,), "batched_h2d": (False, True)},
        indifferent=("batched_h2d",),
    ),
    untried=Untried(
        count=8120, total=8160, values={"cores_per_instance": ("6|12",)}, maybe_better=12
    ),
)


def test_each_part_is_a_sentence(make_study: Callable[..., StudyResult]) -> None:
    found = left_open(replace(make_study(), insight=INSIGHT))
    assert found == [
        "31 configurations are expected to be as good within 2 %, this one included; "
        "4 of them were tried.",
        "batched_h2d does not matter: any value is as good, all else as it is.",
        "batch_size 16 and 32 are as good, all else as it is.",
        "8,120 of 8,160 configurations were not tried, among them all with "
        "cores_per_instance 6|12.",
        "12 of them have at least one chance in ten to be better by more than 2 %.",
        "One more trial is expected to gain 1.2 % by the search's model.",
    ]


def test_a_lonely_best_and_a_walked_grid_are_short(make_study: Callable[..., StudyResult]) -> None:
    alike = Alike(within=0.02, count=1, tested=1)
    insight = Insight(alike=alike, untried=Untried(count=0, total=24))
    found = left_open(replace(make_study(), insight=insight))
    assert found == ["Nothing else is expected to come within 2 % of this configuration."]
    assert left_open(make_study()) == []


def test_report_and_json_say_it(make_study: Callable[..., StudyResult]) -> None:
    result = replace(make_study(), insight=INSIGHT)
    sure = replace(result.recommendation, limit_probability=0.9999)
    result = replace(result, recommendation=sure)
    html = render(result, now_s=0.0, version="0")
    assert "What the search leaves open" in html
    assert "31 configurations are expected to be as good" in html
    data = to_json(result)
    assert data["limit_probability"] == 0.9999
    assert data["insight"]["alike"]["indifferent"] == ["batched_h2d"]
    assert data["insight"]["untried"]["maybe_better"] == 12
    assert ("Limits hold", "with a probability of 99.9 %") in standing(result)
    assert to_json(make_study())["insight"] is None
