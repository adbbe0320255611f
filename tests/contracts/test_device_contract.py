"""What every device must do; a new one is covered by its line in the table `DEVICES`."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from autotune.core.errors import UnavailableError
from autotune.core.records import Config, InputSpec
from autotune.devices import DEVICES, device_kind, find_device, framework_device, open_device
from autotune.devices.base import Device, DeviceInfo

COMPUTES = [kind for kind in DEVICES if kind != "simulated"]  # it has no tensors to copy


def usable(kind: str) -> DeviceInfo:
    found = device_kind(kind).discover()
    if not found.devices:
        pytest.skip(f"{kind}: {found.why_not}")
    return found.devices[0]


def opened(kind: str) -> Device:
    info = usable(kind)
    return open_device(kind, info.name)


@pytest.mark.parametrize("kind", DEVICES)
class TestParentSide:
    def test_it_has_devices_or_says_why_not(self, kind: str) -> None:
        found = device_kind(kind).discover()
        assert found.kind == kind
        assert bool(found.devices) != bool(found.why_not)

    def test_what_is_found_can_be_found_by_name(self, kind: str) -> None:
        for info in device_kind(kind).discover().devices:
            assert info.kind == kind
            assert find_device(info.name) == info

    def test_what_is_not_there_is_unavailable(self, kind: str) -> None:
        if device_kind(kind).discover().devices:
            pytest.skip("it is there")
        for attempt in (find_device, framework_device, lambda name: open_device(kind, name)):
            with pytest.raises(UnavailableError, match=kind):
                attempt(kind)

    def test_facts_and_ladder_fit_the_device(self, kind: str) -> None:
        info = usable(kind)
        assert info.facts["core_count"] == info.core_count >= 1
        assert len(set(info.core_ladder)) == len(info.core_ladder) >= 1
        assert info.description
        for cores in info.core_ladder:
            config = Config(cores_per_instance=cores)
            assert len(device_kind(kind).assign_cores(config, info)) == 1

    def test_every_instance_gets_its_cores(self, kind: str) -> None:
        info = usable(kind)
        cores = device_kind(kind).assign_cores(Config(instance_count=3), info)
        assert len(cores) == 3
        assert {core for part in cores for core in part} <= {c for node in info.cores for c in node}

    def test_the_configurations_environment_wins(self, kind: str) -> None:
        info = usable(kind)
        plain = device_kind(kind).environment(Config(), info)
        name = next(iter(plain), "ANY_NAME")
        config = Config(extra=((f"env.{name}", "mine"),))
        changed = device_kind(kind).environment(config, info)
        assert changed[name] == "mine"
        assert all(isinstance(v, str) for v in {**plain, **changed}.values())


@pytest.mark.parametrize("kind", DEVICES)
class TestChildSide:
    def test_memory_errors_are_known(self, kind: str) -> None:
        device = opened(kind)
        assert device.is_out_of_memory(MemoryError())
        assert not device.is_out_of_memory(ValueError("shape mismatch"))

    def test_waiting_and_closing_are_harmless(self, kind: str) -> None:
        device = opened(kind)
        device.synchronize()
        device.reset_memory_peak()
        peak = device.memory_peak_bytes()
        assert peak is None or peak >= 0
        device.close()


@pytest.mark.parametrize("kind", COMPUTES)
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("parts", [1, 2, 4])
def test_inputs_arrive_unchanged(kind: str, packed: bool, parts: int) -> None:
    device = opened(kind)
    inputs = (
        InputSpec(name="x", shape=("batch", 3)),
        InputSpec(name="ids", shape=(2, "batch"), dtype="int64"),
        InputSpec(name="flag", shape=("batch",), dtype="bool"),
        InputSpec(name="scale", shape=()),
    )
    rng = np.random.default_rng(0)
    requests = [
        [
            rng.random((8, 3), dtype=np.float32),
            rng.integers(0, 2**40, (2, 8)),
            rng.random(8) < 0.5,
            np.float32(call),
        ]
        for call in range(3)
    ]
    config = Config(batch_size=8, batched_h2d=packed, micro_batch_count=parts)
    staging = device.stage(inputs, requests, config)
    for call in range(5):
        for part in range(parts):
            arrived = staging.load(call, part)
            device.synchronize()
            for spec, tensor, array in zip(inputs, arrived, requests[call % 3], strict=True):
                wanted = torch.as_tensor(array)
                if spec.batch_axis is not None:
                    wanted = wanted.chunk(parts, spec.batch_axis)[part]
                assert torch.equal(tensor.cpu(), wanted), (call, part, spec.name)
    assert staging.copies_per_call == (parts if packed else parts * len(inputs))
