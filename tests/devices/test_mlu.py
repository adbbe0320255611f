"""What can be said of MLUs without one: torch_mlu is stood in for by what its sources publish."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch

from autotune.devices.base import Seat
from autotune.devices.mlu import MluDevice, MluKind, survey

GIB = 2**30


class CardError(RuntimeError):
    """torch_mlu's own error where memory has run out."""


@pytest.fixture
def torch_mlu(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    runtime = SimpleNamespace(
        OutOfMemoryError=CardError,
        device_count=lambda: 2,
        set_device=lambda index: None,
        current_stream=lambda: SimpleNamespace(synchronize=lambda: None),
        mem_get_info=lambda: (GIB, 2 * GIB),
        get_device_name=lambda index: "MLU370-X8",
        get_device_properties=lambda index: SimpleNamespace(cluster_count=8),
    )
    monkeypatch.setitem(sys.modules, "torch_mlu", SimpleNamespace(__version__="1.0"))
    monkeypatch.setattr(torch, "mlu", runtime, raising=False)
    return runtime


def test_cards_are_whole_and_say_why(torch_mlu: SimpleNamespace) -> None:
    found = survey()
    infos = [MluKind()._info(n, device, found) for n, device in enumerate(found["devices"])]
    assert [info.name for info in infos] == ["mlu:0", "mlu:1"]
    assert infos[1].description == "MLU370-X8, 8 clusters, 2.00 GiB"
    assert infos[0].splits == () and "no call that limits the cores" in infos[0].why_whole
    assert infos[0].versions["torch_mlu"] == "1.0"


def test_its_own_error_is_out_of_memory(torch_mlu: SimpleNamespace) -> None:
    device = MluDevice(0, Seat())
    assert device.is_out_of_memory(CardError()) and device.is_out_of_memory(MemoryError())
    assert not device.is_out_of_memory(RuntimeError("another"))
    assert device.wait_for_memory(0.0) == ""
    device.close()
