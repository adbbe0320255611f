"""A profiler that cannot be used, and ceilings that cannot be measured, cost no diagnosis."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from autotune.core.clock import MonotonicClock
from autotune.core.records import Config, InputSpec, StageTimes
from autotune.devices.base import Mark
from autotune.devices.cpu import CpuDevice
from autotune.trial import profile
from autotune.workloads.base import Program

torch = pytest.importorskip("torch")
X = InputSpec(name="x", shape=("batch", 4))


class NoProfiler(CpuDevice):
    def profile(self, folder: Path) -> AbstractContextManager[Mark] | None:
        raise RuntimeError("no driver for it")


class Recording(CpuDevice):
    def profile(self, folder: Path) -> AbstractContextManager[Mark] | None:
        return Broken()


class Broken(AbstractContextManager[Mark]):
    def __exit__(self, *_: object) -> None:
        raise OSError("no space left")

    def __enter__(self) -> Mark:
        return torch.profiler.record_function  # type: ignore[no-any-return]


class Staging:
    copies_per_call, method = 1, "separate"

    def load(self, call: int, micro_batch: int, items: int | None = None) -> Sequence[Any]:
        return (torch.ones(2, 4),)


def program() -> Program:
    return Program(inputs=(X,), run=lambda x: x @ x.T)


@pytest.mark.parametrize("device", [NoProfiler(), Recording()])
def test_what_does_not_work_is_said(tmp_path: Path, device: CpuDevice) -> None:
    found = profile.record(
        program(), Staging(), device, Config(batch_size=2), MonotonicClock(),
        folder=tmp_path, calls=3, duration_s=0.1,
    )  # fmt: skip
    assert found.calls == 0
    assert "cannot be used" in found.note and ("driver" in found.note or "space" in found.note)


def test_work_is_counted_without_ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("no product of this type")

    monkeypatch.setattr(profile, "measure_ceilings", refuse)
    found = profile.inspect(
        program(), Staging(), CpuDevice(), "cpu", lambda call: StageTimes(0.0, 0.0, 0.0),
        micro_batches=2, alone=False,
    )  # fmt: skip
    assert found.ceilings is None and found.busy_cores is None
    assert sum(op.flops for op in found.work) == 2 * (2 * 2 * 2 * 4)
    assert sum(op.flops for op in found.doubled) == 2 * (2 * 4 * 4 * 4)
    assert found.input_bytes == 2 * 2 * 4 * 4
