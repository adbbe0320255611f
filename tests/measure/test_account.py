"""Accounts of a call's time from stage times, recordings and work whose truth is written down."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.core.diagnosis import Ceilings, Inspection, OpWork
from autotune.core.records import Config, Measurement
from autotune.measure.account import (
    Place,
    Recording,
    Stages,
    next_values,
    recorded_breakdown,
    roofline_of,
    shares_of,
    stage_breakdown,
)
from autotune.measure.profile import Profile
from autotune.measure.profile_files import read_profile
from autotune.measure.trace_files import COPY_MARK, STEP_MARK

HOST, DEVICE = Place(is_host=True, core_count=4), Place(is_host=False, core_count=24)
CALLS = 4
CEILINGS = Ceilings(
    flops_per_s=1e11,
    copy_bytes=(1e5, 1e8),
    copy_rates=(4e10, 1e10),
    launch_s=1e-6,
    host_bytes_per_s=1e10,
)


def trace(tmp_path: Path, events: list[dict[str, Any]]) -> Profile:
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": events}))
    return read_profile(tmp_path)


def event(name: str, start_us: float, duration_us: float, cat: str) -> dict[str, Any]:
    return {"ph": "X", "name": name, "ts": start_us, "dur": duration_us, "cat": cat, "pid": 1,
            "tid": 1 if cat == "cpu_op" or "annotation" in cat else 7}  # fmt: skip


def host_calls(*, wait_us: float) -> list[dict[str, Any]]:
    """Calls: two copies in 20 us, then a run of two operators of 100 us, 10 us apart, and a wait.

    Within each operator there is another, which is not to be counted twice.
    """
    events = []
    for call in range(CALLS):
        now = call * 1000.0
        events.append(event(COPY_MARK, now, 20, "user_annotation"))
        events += [event("aten::copy_", now + at, 5, "cpu_op") for at in (2, 12)]
        events.append(event(f"{STEP_MARK}{call}", now + 30, 230 + wait_us, "user_annotation"))
        for start in (40, 150):
            events.append(event("aten::linear", now + start, 100, "cpu_op"))
            events.append(event("aten::addmm", now + start + 10, 80, "cpu_op"))
    return events


def test_a_recording_of_the_host_is_brought_to_the_time_without_a_profiler(tmp_path: Path) -> None:
    # The profiler took 20 of the 30 us between operators: unwatched the run takes 210 us.
    plain = Stages(cycle_s=250e-6, h2d_s=15e-6, compute_s=210e-6, d2h_s=0.0, copies=2)
    recording = Recording(
        config=Config(batch_size=8),
        plain=plain,
        profile=trace(tmp_path, host_calls(wait_us=0)),
        calls=CALLS,
        inspection=Inspection(
            ceilings=CEILINGS,
            # 10 ns of arithmetic would be 1 kflop; both operators are far above launching.
            work=(OpWork("mm", 1e7, 1e3), OpWork("mm", 1e7, 1e3)),
            doubled=(OpWork("mm", 2e7, 1e3), OpWork("mm", 2e7, 1e3)),
            input_bytes=1000,
            busy_cores=1.0,
        ),
    )
    found = recorded_breakdown(recording, HOST)
    each = {name: getattr(found, name) / CALLS for name in ("busy_s", "idle_s", "host_s", "h2d_s")}
    assert each["h2d_s"] == pytest.approx(15e-6)
    launches_s = 200e-6 * 2e-6 / (2e-6 + 200e-6)
    assert each["busy_s"] == pytest.approx(200e-6 - launches_s, rel=0.01)
    assert each["host_s"] == pytest.approx(25e-6)  # of the cycle, outside of the call
    assert each["idle_s"] == pytest.approx(25e-6 + 10e-6 + launches_s, rel=0.01)
    assert found.memory_share == 0.0
    assert found.copy_overhead_s == pytest.approx((15e-6 - 1e-7) / 2, rel=0.01)
    # A larger batch shares out copies and launches, no arithmetic.
    assert found.per_call_s is not None
    assert found.per_call_s / CALLS == pytest.approx(15e-6 + 10e-6 + launches_s, rel=0.02)
    assert found.shared_s == pytest.approx(found.span_s / 4)
    assert found.kernels[0].name == "aten::linear" and found.kernels[0].count == 2 * CALLS


def test_a_long_pause_of_the_host_is_its_own_work(tmp_path: Path) -> None:
    plain = Stages(cycle_s=2.3e-3, h2d_s=20e-6, compute_s=2.23e-3, d2h_s=0.0, copies=2)
    profile = trace(tmp_path, host_calls(wait_us=600))
    recording = Recording(config=Config(), plain=plain, profile=profile, calls=CALLS)
    found = recorded_breakdown(recording, HOST)
    assert found.host_s / CALLS == pytest.approx(600e-6 + 50e-6, rel=0.05)
    assert found.shared_s is None  # not known how many cores it keeps busy


def test_a_device_is_idle_less_without_its_profiler(tmp_path: Path) -> None:
    """Each 100 us: a copy of 20, an operator of 30, idle 50, in 40 of which the host launches."""
    events = []
    for call in range(CALLS):
        now = call * 100.0
        events.append(event(f"{STEP_MARK}{call}", now, 100, "user_annotation"))
        events.append(event("Memcpy HtoD", now, 20, "gpu_memcpy"))
        events.append(event("gemm", now + 20, 30, "kernel"))
        events.append(event("cudaLaunchKernel", now + 50, 40, "cuda_runtime"))
    plain = Stages(cycle_s=80e-6, h2d_s=20e-6, compute_s=60e-6, d2h_s=0.0, copies=1)
    recording = Recording(
        config=Config(), plain=plain, profile=trace(tmp_path, events), calls=CALLS, call_s=100e-6
    )
    found = recorded_breakdown(recording, DEVICE)
    assert found.span_s / CALLS == pytest.approx(80e-6)
    assert found.idle_s / CALLS == pytest.approx(30e-6)
    assert found.host_s / CALLS == pytest.approx(10e-6)
    assert found.shared_s == pytest.approx(found.busy_s) == pytest.approx(CALLS * 30e-6)


def test_the_roofline_goes_operator_by_operator() -> None:
    work = (OpWork("mm", 1e9, 1e5), OpWork("add", 0.0, 1e8))  # 10 ms of each ceiling
    twice = (OpWork("mm", 2e9, 1e5), OpWork("add", 0.0, 1e8))
    found = roofline_of(Inspection(ceilings=CEILINGS, work=work, doubled=twice))
    assert found is not None
    assert found.memory_share == pytest.approx(0.5)
    assert found.growth == pytest.approx(1.5)
    assert found.least_s == pytest.approx(1.001e8 / 1e10)
    assert roofline_of(Inspection(work=work)) is None


def test_stages_that_overlap_cost_what_is_exposed() -> None:
    found = stage_breakdown(Stages(cycle_s=1.0, h2d_s=0.5, compute_s=0.8, d2h_s=0.1, copies=4))
    assert found.h2d_alone_s == pytest.approx(0.2)
    assert sum(shares_of(found).values()) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("h2d_s", "copies", "config", "wanted"),
    [
        (0.6, 28, Config(), {"batched_h2d": True}),
        (0.6, 2, Config(), {"micro_batch_count": 2}),
        (0.6, 28, Config(batched_h2d=True), {"micro_batch_count": 2}),
        (0.2, 28, Config(), {}),
        (None, None, Config(), {}),
    ],
)
def test_what_a_trial_wants_to_be_tried_first(
    h2d_s: float | None, copies: int | None, config: Config, wanted: dict[str, Any]
) -> None:
    measurement = Measurement(
        throughput_items_per_s=1.0,
        h2d_mean_s=h2d_s,
        compute_mean_s=None if h2d_s is None else 1.0 - h2d_s,
        copies_per_call=copies,
    )
    assert next_values(measurement, config) == wanted
