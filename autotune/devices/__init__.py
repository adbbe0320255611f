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

_NAME = re.compile(r"([a-z]+)(?::(\d+)(?:-(\d+))?)?")


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
    """The device that a space file names.

    Args:
        name: "auto", a kind, or a kind with an index such as "npu:0", or with several such as
            "npu:0-3", of which the first is meant and the others are its peers; capitals are
            accepted.
    Raises:
        UsageError: No device can have this name.
        UnavailableError: The kind is known, but this machine has no such usable device.
    """
    if name == "auto":
        return _first_usable()
    match = _NAME.fullmatch(name.strip().lower()) if isinstance(name, str) else None
    if match is None or match[1] not in DEVICES:
        raise UsageError(f"unknown device {name!r}; {_seen_here()}")
    kind, index = match[1], match[2]
    found = device_kind(kind).discover()
    if not found.devices:
        raise UnavailableError(f"device {name} is not available: {found.why_not}; {_seen_here()}")
    by_name = {info.name: info for info in found.devices}
    if match[3] is not None:
        return _range(kind, int(index), int(match[3]), by_name)
    wanted = kind if index is None else f"{kind}:{index}"
    info = by_name.get(wanted) or (by_name.get(f"{kind}:0") if index is None else None)
    if info is None:
        raise UsageError(f"there is no device {name!r}; {_seen_here()}")
    return _with_peers(info, found)


def _range(kind: str, first: int, last: int, by_name: dict[str, DeviceInfo]) -> DeviceInfo:
    """The first of some devices, with the others and no more as its peers."""
    names = [f"{kind}:{index}" for index in range(first, last + 1)]
    missing = [name for name in names if name not in by_name]
    if missing or not names:
        what = f"there is no device {missing[0]!r}" if names else f"{first} is above {last}"
        raise UsageError(f"device {kind}:{first}-{last}: {what}; {_seen_here()}")
    own, *others = (by_name[name] for name in names)
    return replace(own, peers=tuple(others))


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

    Raises:
        UsageError: There is none.
    """
    backend = device_kind(kind).collectives
    if not backend:
        raise UsageError(f"device {kind}: there is no backend for several of them together")
    return backend


def _first_usable() -> DeviceInfo:
    reasons = []
    for kind in AUTO_ORDER:
        found = device_kind(kind).discover()
        if found.devices:
            return _with_peers(found.devices[0], found)
        reasons.append(f"{kind}: {found.why_not}")
    raise UnavailableError(f"no device is usable: {'; '.join(reasons)}")


def _with_peers(info: DeviceInfo, found: Discovery) -> DeviceInfo:
    """The device with the others of its kind, those behind it first."""
    if info.peers:
        return info  # they are its own, or those that were asked for
    place = found.devices.index(info)
    return replace(info, peers=(*found.devices[place + 1 :], *found.devices[:place]))


def _seen_here() -> str:
    """The devices of this machine, for a message."""
    names = [info.name for found in discover_all() for info in found.devices]
    return f"devices seen here: {', '.join(names)}"
