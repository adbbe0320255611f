"""The planted bottleneck is named first, with the knob that a vendor's engineers found for it."""

from __future__ import annotations

import pytest

from autotune.core.diagnosis import Breakdown
from autotune.core.records import Config
from autotune.results.bottleneck import diagnose
from autotune.results.forecast import Setting


def test_many_copies_ask_for_batching() -> None:
    # The vendor's recommender: 28 copies, 0.740 of 1.383 ms, the device idle meanwhile.
    found = diagnose(
        Breakdown(
            span_s=1.383e-3, call_count=1, busy_s=0.6e-3, h2d_s=0.74e-3, h2d_alone_s=0.74e-3,
            h2d_count=28, idle_s=0.043e-3, gap_count=10, kernel_count=11, median_kernel_s=3e-6,
        ),
        source="files",
    )  # fmt: skip
    assert (found.part, found.knob) == ("h2d", "batched_h2d")
    # It measured 131,191 after 74,555 items/s (1.76x) at this batch size.
    assert found.forecast is not None
    assert found.forecast.gain == pytest.approx(1.76, rel=0.25)
    assert "28 copies to the device, 28 per call: 53.5% of the time." in found.sentences


def test_short_kernels_with_gaps_ask_for_a_larger_batch() -> None:
    found = diagnose(
        Breakdown(
            span_s=17.89, busy_s=1.827, gap_count=539_998, gap_s=16.0, idle_s=15.5,
            h2d_s=0.5, h2d_alone_s=0.5, h2d_count=2, call_count=1, kernel_count=539_999,
            median_kernel_s=3e-6,
        ),
        source="files",
    )  # fmt: skip
    assert (found.part, found.knob) == ("gaps", "batch_size")
    assert "539,998 gaps between operators, 16.0 s in all." in found.sentences
    assert any(sentence.startswith("Utilisation 10.2%") for sentence in found.sentences)


COPYING = Breakdown(
    span_s=1e-3, call_count=1, busy_s=0.3e-3, h2d_s=0.6e-3, h2d_alone_s=0.6e-3, h2d_count=28,
    per_call_s=0.1e-3, idle_s=0.1e-3,
)  # fmt: skip


def test_a_parameter_that_is_not_searched_is_named_and_how_to_add_it() -> None:
    setting = Setting(choices={"batch_size": (1, 2, 4)})
    found = diagnose(COPYING, source="trial", config=Config(), setting=setting)
    assert found.knob == "batched_h2d"
    assert any("does not search batched_h2d: add it to params" in s for s in found.sentences)


def test_a_parameter_at_the_end_of_its_range_comes_after_those_that_are_not() -> None:
    gaps = Breakdown(span_s=1e-3, call_count=1, busy_s=0.1e-3, idle_s=0.9e-3, per_call_s=0.9e-3,
                     shared_s=0.1e-3)  # fmt: skip
    choices = {"batch_size": (1, 2, 4), "instance_count": (1, 2)}
    last = Config(batch_size=4)
    found = diagnose(gaps, source="trial", config=last, setting=Setting(choices=choices))
    assert found.knob == "instance_count"
    ended = diagnose(
        gaps,
        source="trial",
        config=last.changed(instance_count=2),
        setting=Setting(choices=choices),
    )
    assert (ended.knob, ended.forecast and ended.forecast.after) == ("batch_size", 8)
    assert any("batch_size has the last value of its range, 4" in s for s in ended.sentences)


def test_what_is_switched_on_already_is_not_advised() -> None:
    config = Config(batched_h2d=True)
    assert diagnose(COPYING, source="trial", config=config).knob != "batched_h2d"
