"""The devices a trial can run on, by kind; each kind is one file, imported on use."""

from __future__ import annotations

import importlib
import re
from dataclasses import replace

from autotune.core.errors import UnavailableError, UsageError
from autotune.devices.base import Device, DeviceInfo, DeviceKind, Discovery, Seat

DEVICES: dict[str, str] = {
    "cpu": "autotune.devices.cpu:CpuKind",
    "simulated": "autotune.devices.simulated:SimulatedKind",
    "cuda": "autotune.devices.cuda:CudaKind",
    "npu": "autotune.devices.npu:NpuKind",
    "mlu": "autotune.devices.mlu:MluKind",
}

AUTO_ORDER = ("npu", "cuda", "mlu", "cpu")
"""What `auto` tries, the first that is usable wins. A simulated device is never among them."""

_NAME = re.compile(r"([a-z]+)(?::(\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*))?")
MAX_INDEX = 4095


def device_kind(kind: str) -> DeviceKind:
    """The parent's side of a kind of device.

    Raises:
        UsageError: There is no such kind.
    """
    if kind not in DEVICES:
        raise UsageError(f"unknown device {kind!r}; known: auto, {', '.join(DEVICES)}")
    module, _, name = DEVICES[kind].partition(":")
    instance: DeviceKind = getattr(importlib.import_module(module), name)()
    return instance


def find_device(name: str) -> DeviceInfo:
    """The device that a space file names; of several the first, the others being its peers.

    Args:
        name: "auto", a kind, or a kind with an index such as "npu:0", or with several such as
            "npu:0-3", of which the first is meant and the others are its peers; capitals are
            accepted.
    Raises:
        UsageError: No device can have this name.
        UnavailableError: The kind is known, but this machine has no such usable device.
    """
    return find_devices(name)[0]


def find_devices(name: str) -> tuple[DeviceInfo, ...]:
    """All devices that a name stands for.

    Args:
        name: As for `find_device`; without an index all of the kind, "npu:0-3,6" these five.
    Raises:
        UsageError, UnavailableError: As of `find_device`.
    """
    if name == "auto":
        return _first_usable()
    match = _NAME.fullmatch(name.strip().lower()) if isinstance(name, str) else None
    if match is None or match[1] not in DEVICES:
        raise UsageError(f"unknown device {name!r}; {_seen_here()}")
    kind, indices = match[1], match[2]
    found = device_kind(kind).discover()
    if not found.devices:
        raise UnavailableError(f"device {name} is not available: {found.why_not}; {_seen_here()}")
    if indices is None:
        return _with_peers(found.devices, found)
    by_name = {i.name: i for i in (*found.devices, *(p for d in found.devices for p in d.peers))}
    wanted = [f"{kind}:{index}" for index in _indices(indices)]
    if missing := [each for each in wanted if each not in by_name]:
        raise UsageError(f"there is no device {missing[0]!r}; {_seen_here()}")
    chosen = tuple(by_name[each] for each in wanted)
    return _with_peers(chosen, found if len(chosen) == 1 else Discovery(kind=kind, devices=chosen))


def _indices(text: str) -> tuple[int, ...]:
    """The numbers in "0-3,6", each once.

    Raises:
        UsageError: A number is too large.
    """
    numbers: dict[int, None] = {}
    for part in text.split(","):
        first, _, last = part.partition("-")
        low, high = int(first[:6]), int((last or first)[:6])
        if low > high or high > MAX_INDEX:
            why = f"{low} is above {high}" if low > high else f"indices go up to {MAX_INDEX}"
            raise UsageError(f"device {part}: {why}")
        numbers |= dict.fromkeys(range(low, high + 1))
    return tuple(numbers)


def discover_all() -> tuple[Discovery, ...]:
    """Every kind with its devices, or the reason why there is none."""
    return tuple(device_kind(kind).discover() for kind in DEVICES)


def open_device(kind: str, name: str, seat: Seat | None = None) -> Device:
    """The child's side of a device; call it after the fork, once per instance in its thread.

    Args:
        seat: What part of the device the instance is to have; None: all of it.
    """
    return device_kind(kind).open(name, seat)


def framework_device(name: str) -> str:
    """What the framework calls the device `name`, such as "cpu" or "npu:0"."""
    return device_kind(name.partition(":")[0]).framework_device(name)


def collective_backend(kind: str) -> str:
    """torch's backend for several devices of a kind that work together.

    Beside an accelerator's own one for what lies on the host: pickled objects, small agreements.

    Raises:
        UsageError: There is none.
    """
    backend = device_kind(kind).collectives
    if not backend:
        raise UsageError(f"device {kind}: there is no backend for several of them together")
    host = device_kind("cpu").collectives
    return backend if kind == "cpu" else f"cpu:{host},{kind}:{backend}"


def _first_usable() -> tuple[DeviceInfo, ...]:
    reasons = []
    for kind in AUTO_ORDER:
        found = device_kind(kind).discover()
        if found.devices:
            return _with_peers(found.devices, found)
        reasons.append(f"{kind}: {found.why_not}")
    raise UnavailableError(f"no device is usable: {'; '.join(reasons)}")


def _with_peers(chosen: tuple[DeviceInfo, ...], found: Discovery) -> tuple[DeviceInfo, ...]:
    """Each device with the others of its kind, those behind it first."""
    return tuple(
        info if info.peers else replace(info, peers=_others(info, found)) for info in chosen
    )


def _others(info: DeviceInfo, found: Discovery) -> tuple[DeviceInfo, ...]:
    names = [one.name for one in found.devices]
    if info.name not in names:
        return ()
    place = names.index(info.name)
    return (*found.devices[place + 1 :], *found.devices[:place])


def _seen_here() -> str:
    """The devices of this machine, for a message."""
    names = [info.name for found in discover_all() for info in found.devices]
    return f"devices seen here: {', '.join(names)}"
