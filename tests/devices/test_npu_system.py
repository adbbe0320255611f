"""Checks of an Ascend system on file trees of the shapes that its installers leave."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from autotune.devices.checks import Check
from autotune.devices.npu_system import check_npu_smi, check_system, fits, pairs, run_line

ENVIRONMENT = {
    "ASCEND_HOME_PATH": "/usr/local/Ascend/ascend-toolkit/latest",
    "LD_LIBRARY_PATH": "/usr/local/Ascend/ascend-toolkit/latest/lib64",
}
TABLE = """\
| NPU   Name      | Health | Power(W) Temp(C)   Hugepages-Usage(page)      |
| Chip  Phy-ID    | Bus-Id | AICore(%) Memory-Usage(MB) HBM-Usage(MB)      |
| 0     910B2     | {health} | 100.5    40        0 / 0                      |
| 0     0         | 0:0    | 10       0 / 0     100 / 65536                |
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine on which all is well."""
    ascend = tmp_path / "usr/local/Ascend"
    files = {
        "dev/davinci0": "",
        "dev/davinci1": "",
        "dev/davinci_manager": "",
        "dev/devmm_svm": "",
        "dev/hisi_hdc": "",
        "usr/local/Ascend/driver/version.info": "Version=25.2.0\npackage_version=25.2.0\n",
        "usr/local/Ascend/driver/lib64/libascend_hal.so": "",
        "usr/local/Ascend/firmware/version.info": "Version=7.7.0.6.236\npackage_version=25.2.0\n",
        "usr/local/Ascend/ascend-toolkit/set_env.sh": "",
        "usr/local/Ascend/ascend-toolkit/latest/aarch64-linux/ascend_toolkit_install.info": (
            "package_name=Ascend-cann-toolkit\nversion=8.3.RC1\n"
        ),
        "usr/local/bin/npu-smi": "",
        "usr/local/dcmi/libdcmi.so": "",
        "etc/ascend_install.info": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert ascend.is_dir()
    return tmp_path


def found(root: Path, name: str, environment: dict[str, str] = ENVIRONMENT) -> Check:
    (check,) = (c for c in check_system(root, environment) if c.name == name)
    return check


def test_a_machine_on_which_all_is_well(root: Path) -> None:
    checks = {c.name: c for c in check_system(root, ENVIRONMENT)}
    for name in ("device nodes", "driver", "firmware", "CANN", "environment"):
        assert checks[name].status == "ok", checks[name]
    assert checks["driver"].detail == "25.2.0" and checks["CANN"].detail == "8.3.RC1"
    assert "container mounts" not in checks
    assert checks["torch and torch_npu"].status == "failed"  # no torch_npu beside these tests


@pytest.mark.parametrize("node", ["davinci_manager", "devmm_svm", "hisi_hdc"])
def test_a_missing_device_node_is_named(root: Path, node: str) -> None:
    (root / "dev" / node).unlink()
    check = found(root, "device nodes")
    assert check.status == "failed" and f"/dev/{node}" in check.detail
    assert "--device" in check.advice
    assert f"--device /dev/{node}" in run_line(root) and "--device /dev/davinci1" in run_line(root)


def test_no_card_at_all(root: Path) -> None:
    for card in root.glob("dev/davinci[0-9]"):
        card.unlink()
    assert "one per card" in found(root, "device nodes").detail


def test_in_a_container_missing_mounts_are_named(root: Path) -> None:
    (root / ".dockerenv").touch()
    assert found(root, "container mounts").status == "ok"
    (root / "usr/local/bin/npu-smi").unlink()
    check = found(root, "container mounts")
    assert check.status == "failed" and check.detail == "missing: /usr/local/bin/npu-smi"
    assert "-v /usr/local/bin/npu-smi:/usr/local/bin/npu-smi" in run_line(root)


@pytest.mark.parametrize("sign", ["run/.containerenv", "proc/self/mounts", "a pod"])
def test_containers_are_known_by_what_runs_them(root: Path, sign: str) -> None:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/mounts").write_text(
        "/dev/sda1 / ext4 rw 0 0\noverlay /data overlay ro 0 0\n"
    )
    assert "container mounts" not in {c.name for c in check_system(root, ENVIRONMENT)}
    if sign != "a pod":
        (root / sign).parent.mkdir(exist_ok=True)
        (root / sign).write_text("proc /proc proc rw 0 0\noverlay / overlay rw 0 0\n")
    pod = {**ENVIRONMENT, "KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    assert found(root, "container mounts", pod if sign == "a pod" else ENVIRONMENT).status == "ok"


def test_the_cann_of_the_environment_comes_first(root: Path) -> None:
    home = "/home/user/Ascend/cann-9.0.0"
    own = {"ASCEND_HOME_PATH": home, "LD_LIBRARY_PATH": f"{home}/lib64"}
    file = root / home.lstrip("/") / "x86_64-linux/ascend_toolkit_install.info"
    file.parent.mkdir(parents=True)
    file.write_text("package_name=Ascend-cann-toolkit\nversion=9.0.0\n")
    assert found(root, "CANN", own).detail == "9.0.0"
    assert found(root, "environment", own).status == "ok"
    assert found(root, "CANN").detail == "8.3.RC1"
    shutil.rmtree(root / "usr/local/Ascend/ascend-toolkit")
    file.rename(root / "usr/local/Ascend/ascend_toolkit_install.info")
    assert found(root, "CANN", {"ASCEND_HOME_PATH": "/"}).status == "failed"


def test_driver_and_firmware_of_two_releases(root: Path) -> None:
    (root / "usr/local/Ascend/firmware/version.info").write_text("package_version=24.1.rc2\n")
    check = found(root, "firmware")
    assert check.status == "warning" and check.detail.startswith(
        "24.1.rc2 (no number), but the driver"
    )
    (root / "usr/local/Ascend/firmware/version.info").write_text(
        "package_version=24.1.rc2\ncompatible_version_drv=[24.1.0],[25.0.0,25.2.99]\n"
    )
    assert found(root, "firmware").status == "ok", "the firmware takes this driver"
    (root / "usr/local/Ascend/firmware/version.info").unlink()
    assert found(root, "firmware").status == "skipped"


@pytest.mark.parametrize(
    ("firmware", "wanted", "status"),
    [
        ("7.7.0.1.231", "[6.4.0,6.4.99],[7.0.0,7.7.99]", "ok"),
        ("6.4.12.1.241", "[6.4.0,6.4.99],[7.0.0,7.7.99]", "ok"),
        ("7.8.0.1.231", "[6.4.0,6.4.99],[7.0.0,7.7.99]", "warning"),
        ("6.5.0", "[6.4.0,6.4.99],[7.0.0,7.7.99]", "warning"),
    ],
)
def test_the_driver_says_which_firmware_it_takes(
    root: Path, firmware: str, wanted: str, status: str
) -> None:
    ascend = root / "usr/local/Ascend"
    driver = f"package_version=25.0.rc1.1\ncompatible_version_fw={wanted}\n"
    (ascend / "driver/version.info").write_text(driver)
    text = f"Version={firmware}\npackage_version=24.1.0\n"
    (ascend / "firmware/version.info").write_text(text)
    check = found(root, "firmware")
    assert check.status == status and firmware in check.detail
    assert (wanted in check.detail) is (status == "warning")


@pytest.mark.parametrize(
    ("cann", "takes", "driver", "lists", "status"),
    [
        ("V100R001C23SPC002B210", "[V100R001C15],[V100R001C21]", "V100R001C21SPC002B220",
         "[V100R001C17],[V100R001C21]", "ok"),  # an older driver that CANN still takes
        ("V100R001C19SPC001B155", "[V100R001C13,V100R001C19]", "V100R001C23SPC002B212",
         "[V100R001C19],[V100R001C20]", "ok"),  # a newer driver that takes this CANN
        ("V100R001C23SPC002B210", "[V100R001C15,V100R001C21]", "V100R001C13SPC001B220",
         "[V100R001C11],[V100R001C13]", "warning"),
        ("V100R001C25SPC001B212", "[V100R001C15],[V100R001C23]", "", "", "ok"),  # does not tell
    ],
)  # fmt: skip
def test_cann_and_driver_list_each_other(
    root: Path, cann: str, takes: str, driver: str, lists: str, status: str
) -> None:
    ascend = root / "usr/local/Ascend"
    told = f"Innerversion={driver}\ncompatible_version={lists}\n" if driver else ""
    (ascend / "driver/version.info").write_text(f"package_version=25.2.0\n{told}")
    (ascend / "ascend-toolkit/latest/aarch64-linux/ascend_toolkit_install.info").write_text(
        f"version=8.3.RC2\ninnerversion={cann}\ncompatible_version={takes}\n"
    )
    check = found(root, "CANN")
    assert check.status == status and check.detail.startswith("8.3.RC2")


def test_an_environment_that_was_not_sourced(root: Path) -> None:
    check = found(root, "environment", {})
    assert check.advice == "source /usr/local/Ascend/ascend-toolkit/set_env.sh"
    gone = {**ENVIRONMENT, "ASCEND_HOME_PATH": "/usr/local/Ascend/nosuch"}
    assert "does not exist" in found(root, "environment", gone).detail
    bare = {**ENVIRONMENT, "LD_LIBRARY_PATH": ""}
    assert found(root, "environment", bare).status == "warning"


def test_an_empty_machine_is_told_all_that_is_missing(tmp_path: Path) -> None:
    checks = check_system(tmp_path, {})
    assert {c.status for c in checks} <= {"failed", "skipped"}
    assert all(c.advice for c in checks if c.status == "failed")


@pytest.mark.parametrize(
    ("torch", "plugin", "requirements", "status"),
    [
        ("2.13.0+cpu", "2.13.0", ["torch==2.13.0.*"], "ok"),
        ("2.13.0", "2.13.0", ["numpy", "torch==2.13.0"], "ok"),
        ("2.14.0", "2.13.0", ["torch==2.13.0.*"], "failed"),
        ("2.1.0", "2.1.0.post8", [], "ok"),
        ("2.1.1", "2.1.0.post8", [], "failed"),
    ],
)
def test_torch_and_its_plugin(
    torch: str, plugin: str, requirements: list[str], status: str
) -> None:
    assert fits(torch, plugin, requirements).status == status


@pytest.mark.parametrize(
    ("plugin", "cann", "status"),
    [
        ("2.8.0", "8.3.RC1", "ok"),
        ("2.10.0", "8.5.0", "warning"),
        ("2.10.0.post4", "9.0.0", "warning"),
        ("2.10.0.post5", "9.1.0", "ok"),  # not listed: as the release before it
        ("2.7.1.post3", "8.5.0.alpha002", "ok"),
        ("2.7.1", "9.1.0", "ok"),  # a newer CANN serves an older plug-in
        ("2.13.0", "8.3.rc1", "warning"),  # newer than the table: at least its last
        ("2.13.0", "9.2.0-beta.2", "ok"),
        ("2.1.0.post8", "8.0.RC2", "skipped"),
        ("2.4.0", "8.0.RC2", "skipped"),
        ("2.8.0", "unknown", "skipped"),
    ],
)
def test_torch_npu_and_its_cann(plugin: str, cann: str, status: str) -> None:
    found = pairs(plugin, cann)
    assert found.status == status and plugin in found.detail and cann in found.detail


def test_health_of_the_cards() -> None:
    assert check_npu_smi(TABLE.format(health="OK")).detail == "1 chip (910B2)"
    ill = check_npu_smi(TABLE.format(health="Alarm"))
    assert ill.status == "warning" and "NPU 0 chip 0: Alarm" in ill.detail
    assert check_npu_smi("no such command").status == "warning"
    assert check_npu_smi(None).status == "failed"
