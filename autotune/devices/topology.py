"""Which cores and how much memory this process may really use.

A container sees the whole machine under /proc and /sys; what it may use is cut down by the
affinity mask, by a CPU quota and by a memory limit. Every reader takes the root of the file
system, so that tests bring their own trees.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from autotune.core.errors import UsageError

ROOT = Path("/")
NO_LIMIT_BYTES = 1 << 60  # cgroup v1 writes "no limit" as a number near 2**63


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """What the host gives this process.

    Attributes:
        cores: Usable core ids grouped by NUMA node, ascending within a node.
        memory_total_bytes: Physical memory, or the cgroup's limit if that is lower.
        notes: What cuts the machine down, for a person.
    """

    cores: tuple[tuple[int, ...], ...]
    memory_total_bytes: int | None = None
    notes: tuple[str, ...] = ()

    @property
    def core_count(self) -> int:
        """Usable cores of all nodes."""
        return sum(len(node) for node in self.cores)


def read_topology(root: Path = ROOT, affinity: Iterable[int] | None = None) -> Topology:
    """Find the usable cores and memory.

    Args:
        root: Root of the file system that is read.
        affinity: Core ids of the affinity mask; None asks the kernel about this process.
    """
    allowed = sorted(os.sched_getaffinity(0) if affinity is None else affinity)
    quota = cpu_quota(root)
    notes = []
    if quota is not None and quota < len(allowed):
        usable = max(1, int(quota))
        notes.append(
            f"a CPU quota of {quota:g} leaves {usable} of the {len(allowed)} cores of the mask"
        )
        allowed = allowed[:usable]
    return Topology(
        cores=_by_node(allowed, root),
        memory_total_bytes=memory_total_bytes(root),
        notes=tuple(notes),
    )


def assign_cores(
    nodes: tuple[tuple[int, ...], ...], instance_count: int, cores_per_instance: int | str
) -> tuple[tuple[int, ...], ...]:
    """Give each instance its own run of consecutive cores, within one NUMA node where it fits.

    Args:
        nodes: Core ids this trial may use, grouped by NUMA node.
        cores_per_instance: A count, or "all": every instance gets the whole set, so that
            several instances then share, and oversubscribe, the same cores.
    Returns:
        `instance_count` tuples of core ids, disjoint unless they are "all".
    Raises:
        UsageError: The instances need more cores than there are, or it is no core count.
    """
    everything = tuple(core for node in nodes for core in node)
    if cores_per_instance == "all":
        return (everything,) * instance_count
    if not isinstance(cores_per_instance, int) or cores_per_instance < 1:
        raise UsageError(
            f'cores_per_instance={cores_per_instance!r}: a CPU takes a core count or "all"'
        )
    needed = instance_count * cores_per_instance
    if needed > len(everything):
        raise UsageError(
            f"instance_count={instance_count} x cores_per_instance={cores_per_instance} "
            f"needs {needed} cores, but the trial has {len(everything)}"
        )
    free = [list(node) for node in nodes]
    return tuple(_take(free, cores_per_instance) for _ in range(instance_count))


def _take(free: list[list[int]], count: int) -> tuple[int, ...]:
    """Remove `count` cores from `free`, of one node if any node has that many left."""
    home = next((node for node in free if len(node) >= count), None)
    if home is not None:
        taken = tuple(home[:count])
        del home[:count]
        return taken
    spread: list[int] = []
    for node in free:
        part = node[: count - len(spread)]
        del node[: len(part)]
        spread += part
    return tuple(spread)


def _by_node(cores: list[int], root: Path) -> tuple[tuple[int, ...], ...]:
    """Group core ids by NUMA node; one group where the kernel names no nodes."""
    folder = root / "sys/devices/system/node"
    numbers = sorted(int(p.name[4:]) for p in folder.glob("node[0-9]*"))
    wanted, groups = set(cores), []
    for number in numbers:
        text = _read(folder / f"node{number}" / "cpulist")
        group = sorted(wanted & set(parse_cpu_list(text or "")))
        wanted -= set(group)
        if group:
            groups.append(tuple(group))
    if wanted:
        groups.append(tuple(sorted(wanted)))
    return tuple(groups)


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """Read the kernel's list format, such as "0-3,8"."""
    cores: list[int] = []
    for part in text.replace("\n", "").split(","):
        first, dash, last = part.strip().partition("-")
        if first:
            cores.extend(range(int(first), int(last if dash else first) + 1))
    return tuple(cores)


# --- cgroups -----------------------------------------------------------------------------------


def cpu_quota(root: Path = ROOT) -> float | None:
    """CPUs that the cgroup and its parents allow; None: no quota."""
    quotas = []
    for folder in _cgroup_folders(root, "cpu"):
        quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
        if quota is None:  # cgroup v2: "max 100000" or "150000 100000"
            quota, _, period = (_read(folder / "cpu.max") or "max").partition(" ")
        if quota not in ("max", "-1") and period:
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def memory_total_bytes(root: Path = ROOT) -> int | None:
    """Physical memory, cut down to the lowest memory limit of the cgroup and its parents."""
    sizes = []
    for line in (_read(root / "proc/meminfo") or "").splitlines():
        if line.startswith("MemTotal:"):
            sizes.append(int(line.split()[1]) * 1024)
    for folder in _cgroup_folders(root, "memory"):
        text = _read(folder / "memory.limit_in_bytes") or _read(folder / "memory.max") or "max"
        if text != "max" and int(text) < NO_LIMIT_BYTES:
            sizes.append(int(text))
    return min(sizes, default=None)


def _cgroup_folders(root: Path, controller: str) -> Iterator[Path]:
    """Folders of this process's cgroup and its parents, of whichever hierarchy has a say."""
    paths = {}
    for line in (_read(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, inner = line.split(":", 2)
        for name in controllers.split(","):  # the one hierarchy of v2 has no names: ""
            paths[name] = inner
    for line in (_read(root / "proc/self/mountinfo") or "").splitlines():
        left, _, right = line.partition(" - ")
        mount_root, mount_point = left.split()[3:5]
        kind, _, options = [*right.split(), "", "", ""][:3]
        is_v1 = kind == "cgroup" and controller in options.split(",")
        path = paths.get(controller if is_v1 else "")
        if path is not None and (is_v1 or kind == "cgroup2"):
            yield from _upwards(root / mount_point.lstrip("/"), mount_root, path)


def _upwards(mount: Path, mount_root: str, path: str) -> Iterator[Path]:
    """The cgroup's folder under its mount, then each parent up to the mount itself."""
    inside = mount_root.rstrip("/")
    # In a container the path may name the host's tree, of which only the mount is seen.
    seen = path[len(inside) :] if path == inside or path.startswith(inside + "/") else ""
    folder = mount / seen.strip("/")
    while folder != mount:
        yield folder
        folder = folder.parent
    yield mount


def _read(path: Path) -> str | None:
    """A small file's text without its line end, None if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return None
