from __future__ import annotations

from pathlib import Path

import pytest

from autotune.core.errors import UsageError
from autotune.devices.topology import (
    assign_cores,
    cpu_quota,
    memory_total_bytes,
    parse_cpu_list,
    read_topology,
)

V2_MOUNT = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n"
V1_MOUNTS = (
    "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"
    "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
)


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_cores_are_those_of_the_mask_grouped_by_node(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "sys/devices/system/node/node0/cpulist": "0-3\n",
            "sys/devices/system/node/node1/cpulist": "4-5,8-9\n",
            "sys/devices/system/node/node2/cpulist": "\n",
        },
    )
    found = read_topology(root, affinity=[9, 8, 1, 2])
    assert found.cores == ((1, 2), (8, 9))
    assert found.core_count == 4
    assert found.notes == ()


def test_without_node_files_there_is_one_group(tmp_path: Path) -> None:
    assert read_topology(tmp_path, affinity=[3, 1]).cores == ((1, 3),)


def test_nodes_are_ordered_by_number_not_by_name(tmp_path: Path) -> None:
    files = {f"sys/devices/system/node/node{n}/cpulist": f"{n}\n" for n in range(11)}
    assert read_topology(tree(tmp_path, files), affinity=[10, 2]).cores == ((2,), (10,))


@pytest.mark.parametrize(
    ("limit", "cores"),
    [("250000 100000", (0, 1)), ("50000 100000", (0,)), ("max 100000", (0, 1, 2, 3))],
)
def test_a_quota_of_cgroup_v2_is_rounded_down_but_leaves_a_core(
    tmp_path: Path, limit: str, cores: tuple[int, ...]
) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/pod/box\n",
            "proc/self/mountinfo": V2_MOUNT,
            "sys/fs/cgroup/pod/box/cpu.max": limit + "\n",
        },
    )
    found = read_topology(root, affinity=range(4))
    assert found.cores == (cores,)
    assert bool(found.notes) == (len(cores) < 4)


def test_the_note_names_quota_and_cores(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/\n",
            "proc/self/mountinfo": V2_MOUNT,
            "sys/fs/cgroup/cpu.max": "150000 100000",
        },
    )
    (note,) = read_topology(root, affinity=range(4)).notes
    assert "1.5" in note and "1 of the 4" in note


def test_a_parents_quota_counts_too(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/pod/box\n",
            "proc/self/mountinfo": V2_MOUNT,
            "sys/fs/cgroup/pod/cpu.max": "200000 100000",
            "sys/fs/cgroup/pod/box/cpu.max": "300000 100000",
        },
    )
    assert cpu_quota(root) == 2.0


def test_quota_and_memory_of_cgroup_v1(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "5:memory:/box\n2:cpu,cpuacct:/box\n0::/\n",
            "proc/self/mountinfo": V1_MOUNTS,
            "proc/meminfo": "MemTotal:       16000000 kB\nMemFree: 5 kB\n",
            "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us": "300000\n",
            "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/box/memory.limit_in_bytes": "1073741824\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        },
    )
    assert cpu_quota(root) == 3.0
    assert memory_total_bytes(root) == 2**30


def test_no_quota_of_cgroup_v1_is_minus_one(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "2:cpu,cpuacct:/\n",
            "proc/self/mountinfo": V1_MOUNTS,
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        },
    )
    assert cpu_quota(root) is None


def test_in_a_container_the_cgroup_path_may_be_the_hosts(tmp_path: Path) -> None:
    """The mount shows only the container's own part, whatever path the process is told."""
    mount = V2_MOUNT.replace(" / ", " /docker/abc ", 1)
    root = tree(
        tmp_path,
        {
            "proc/self/cgroup": "0::/docker/abc/inner\n",
            "proc/self/mountinfo": mount,
            "sys/fs/cgroup/inner/cpu.max": "100000 100000",
            "sys/fs/cgroup/inner/memory.max": "4096",
        },
    )
    assert cpu_quota(root) == 1.0
    assert memory_total_bytes(root) == 4096
    (root / "proc/self/cgroup").write_text("0::/elsewhere/on/the/host\n")
    (root / "sys/fs/cgroup/cpu.max").write_text("200000 100000")
    assert cpu_quota(root) == 2.0


def test_this_machine_can_be_read() -> None:
    found = read_topology()
    assert found.core_count >= 1
    assert found.memory_total_bytes is not None and found.memory_total_bytes > 2**26


@pytest.mark.parametrize(
    ("text", "cores"), [("0-2,5\n", (0, 1, 2, 5)), ("7", (7,)), ("", ()), ("\n", ())]
)
def test_the_kernels_lists_are_read(text: str, cores: tuple[int, ...]) -> None:
    assert parse_cpu_list(text) == cores


def test_instances_get_consecutive_disjoint_cores() -> None:
    assert assign_cores(((0, 1, 2, 3),), 2, 2) == ((0, 1), (2, 3))
    assert assign_cores(((1, 3, 5),), 2, 1) == ((1,), (3,))


def test_an_instance_stays_within_a_node_where_it_can() -> None:
    nodes = ((0, 1, 2), (3, 4, 5))
    assert assign_cores(nodes, 2, 2) == ((0, 1), (3, 4))
    assert assign_cores(nodes, 3, 2) == ((0, 1), (3, 4), (2, 5))
    assert assign_cores(nodes, 1, 4) == ((0, 1, 2, 3),)


def test_all_is_the_whole_set_for_each_instance() -> None:
    assert assign_cores(((0, 1), (2,)), 2, "all") == ((0, 1, 2), (0, 1, 2))


def test_too_many_cores_are_refused_with_the_figures() -> None:
    with pytest.raises(UsageError) as caught:
        assign_cores(((0, 1, 2, 3),), 2, 3)
    assert str(caught.value) == (
        "instance_count=2 x cores_per_instance=3 needs 6 cores, but the trial has 4"
    )


@pytest.mark.parametrize("cores", ["16|16", 0, -1, 1.5])
def test_what_is_no_core_count_is_refused(cores: object) -> None:
    with pytest.raises(UsageError, match="cores_per_instance"):
        assign_cores(((0, 1),), 1, cores)  # type: ignore[arg-type]
