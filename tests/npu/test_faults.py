"""What goes wrong on a device becomes the right outcome, and the next trial knows nothing of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from npu_groups import SHORT, group

from autotune.core.errors import OutOfMemory, TrialCrashed, TrialError, TrialTimeout
from autotune.core.records import GroupSpec, Measurement
from autotune.measure.summary import summarise
from autotune.trial.session import Launcher, open_session


@pytest.fixture(scope="module")
def fault_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Says which fault the next trial meets; one environment, so that one zygote serves all."""
    file = tmp_path_factory.mktemp("stub") / "fault"
    file.write_text("none")
    return file


FAULTS: dict[str, tuple[type[TrialError], str]] = {
    "oom:1": (OutOfMemory, "NPU out of memory"),
    "copy_error:60": (TrialCrashed, "507052"),
    "sync_hang:60": (TrialTimeout, "no answer within"),
    "device_lost:60": (TrialCrashed, "the device is lost"),
    "limit_readback": (
        TrialCrashed,
        r"asked for a core split of 8\|8 \(device limit\), but the device reports 24\|48",
    ),
    "batch_unsupported:20": (TrialCrashed, "aclrtMemcpyBatchAsync failed.*207000"),
}


def measured(spec: GroupSpec, launcher: Launcher, *, limit_s: float = 40.0) -> Measurement:
    plan = replace(SHORT, deadline_s=min(limit_s, SHORT.deadline_s))
    with open_session(spec, launcher, timeout_s=40.0) as session:
        return summarise(session.measure(plan))


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_has_its_outcome_and_the_next_trial_is_clean(
    fault: str, launcher: Launcher, fault_file: Path
) -> None:
    spec = group(cores_per_instance="8|8", batched_h2d=True, env_STUB_CANN_FAULT=f"@{fault_file}")
    error, words = FAULTS[fault]
    fault_file.write_text(fault)
    with pytest.raises(error, match=words):
        measured(spec, launcher, limit_s=4.0 if error is TrialTimeout else 40.0)
    fault_file.write_text("none")
    after = measured(spec, launcher)
    assert after.call_count and after.copies_per_call == 1
    assert after.environment["core split"] == "8|8 by device limit, asked for 8|8"
    assert not [v for k, v in after.environment.items() if "less memory was free" in v]


@pytest.mark.parametrize("mode", ["process", "thread"])
def test_instances_may_ask_for_more_cores_than_there_are(
    mode: str, launcher: Launcher, fault_file: Path
) -> None:
    spec = group(
        "dlrm", instance_count=2, cores_per_instance="16|48", instance_mode=mode,
        micro_batch_count=2, batched_h2d=True, env_STUB_CANN_FAULT=f"@{fault_file}",
    )  # fmt: skip
    found = measured(spec, launcher)
    limit = {"process": "device", "thread": "stream"}[mode]
    assert found.environment["core split"] == f"16|48 by {limit} limit, asked for 16|48"
    assert found.copies_per_call == 4, "two types of inputs in two micro-batches"
    assert found.h2d_mean_s and found.compute_mean_s and found.d2h_mean_s
    assert found.memory_peak_bytes and found.memory_peak_bytes >= 2**20
