"""What an Ascend system has, seen from its files: driver, firmware, CANN, device nodes, packages.

Nothing is imported and no device is touched, so that it can be said what is missing where torch_npu
cannot even be loaded. Layouts of the version files are those that the vendor's installers write.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from autotune.devices.checks import Check, failed, passed, skipped, warned
from autotune.devices.npu_smi import NotUnderstoodError, parse
from autotune.devices.topology import ROOT

NODES = ("davinci_manager", "devmm_svm", "hisi_hdc")
CARD_NODE = "dev/davinci[0-9]*"
ASCEND = "usr/local/Ascend"
MOUNTS = (
    f"{ASCEND}/driver/lib64",
    f"{ASCEND}/driver/version.info",
    "usr/local/dcmi",
    "etc/ascend_install.info",
)
TOOL = "usr/local/bin/npu-smi"
MAX_FILE_BYTES = 64 * 1024
RELEASED_FOR = {
    "2.1.0.post13": "8.2", "2.1.0.post17": "8.3", "2.5.1": "8.1", "2.5.1.post1": "8.2",
    "2.6.0": "8.2", "2.6.0.post3": "8.3", "2.6.0.post5": "8.5", "2.7.1": "8.3",
    "2.7.1.post2": "8.5", "2.7.1.post4": "9.0", "2.7.1.post8": "9.1", "2.8.0": "8.3",
    "2.8.0.post2": "8.5", "2.8.0.post4": "9.0", "2.9.0": "8.5", "2.9.0.post2": "9.0",
    "2.9.0.post6": "9.1", "2.10.0": "9.0", "2.10.0.post4": "9.1", "2.11.0": "9.1",
    "2.12.0": "9.1",
}  # fmt: skip
"""The CANN of a torch_npu, ascending: https://gitcode.com/Ascend/pytorch, COMPATIBILITY.md."""
HOMES = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")  # what a sourced environment sets
CANN_FOLDERS = ("ascend-toolkit/latest", "nnrt/latest", "cann", "cann-*")
CANN_FILES = (
    "*-linux/ascend_toolkit_install.info",
    "*-linux/ascend_nnrt_install.info",
    "version.cfg",
)


def check_system(root: Path = ROOT, environment: Mapping[str, str] | None = None) -> list[Check]:
    """All that can be said without the device.

    Args:
        root: Of the file system. environment: The process's own if None.
    """
    environment = os.environ if environment is None else environment
    return [
        _nodes(root),
        *_container(root, environment),
        _driver(root),
        _firmware(root),
        _cann(root, environment),
        _sourced(root, environment),
        _packages(),
        _plugin_and_cann(root, environment),
    ]


def check_npu_smi(output: str | None) -> Check:
    """What npu-smi says of the cards' health.

    Args:
        output: Of `npu-smi info`; None: the tool is not there or failed.
    """
    if output is None:
        return failed("npu-smi", "not on PATH or it failed", f"mount /{TOOL} and the driver folder")
    try:
        chips = parse(output)
    except NotUnderstoodError as error:
        return warned("npu-smi", f"not understood: {error}", "telemetry will be missing")
    ill = [f"NPU {c.npu} chip {c.chip}: {c.health}" for c in chips if c.health not in ("OK", "")]
    if ill:
        return warned("npu-smi", "; ".join(ill), "see npu-smi info -t health; figures may suffer")
    names = ", ".join(dict.fromkeys(chip.name for chip in chips if chip.name))
    return passed("npu-smi", f"{len(chips)} chip{'s' * (len(chips) > 1)} ({names or 'unnamed'})")


def run_line(root: Path = ROOT) -> str:
    """The options of `docker run` that give a container what it needs of this machine."""
    cards = sorted(path.name for path in root.glob(CARD_NODE)) or ["davinci0"]
    devices = " ".join(f"--device /dev/{name}" for name in (*cards, *NODES))
    mounts = " ".join(
        f"-v /{path}:/{path}" for path in (f"{ASCEND}/driver", TOOL, "usr/local/dcmi", MOUNTS[-1])
    )
    return f"docker run {devices} {mounts}"


# --- one check each ----------------------------------------------------------------------------


def _nodes(root: Path) -> Check:
    cards = list(root.glob(CARD_NODE))
    missing = [f"/dev/{name}" for name in NODES if not (root / "dev" / name).exists()]
    if not cards:
        missing.insert(0, "/dev/davinci0 (one per card)")
    if missing:
        advice = "install the driver; in a container give it each with --device"
        return failed("device nodes", f"missing: {', '.join(missing)}", advice)
    closed = [f"/dev/{c.name}" for c in cards if not os.access(c, os.R_OK | os.W_OK)]
    if closed:
        who = "add the user to the group HwHiAiUser, or run as root"
        return failed("device nodes", f"no access to {', '.join(sorted(closed))}", who)
    return passed("device nodes", f"{len(cards)} card{'s' * (len(cards) > 1)}, {', '.join(NODES)}")


def _is_container(root: Path, environment: Mapping[str, str]) -> bool:
    """By what docker, podman and Kubernetes leave; on others by a root that is an overlay."""
    if any((root / name).exists() for name in (".dockerenv", "run/.containerenv")):
        return True
    mounts = _text(root / "proc/self/mounts").splitlines()
    return "KUBERNETES_SERVICE_HOST" in environment or any(
        line.split()[1:3] == ["/", "overlay"] for line in mounts
    )


def _container(root: Path, environment: Mapping[str, str]) -> Iterator[Check]:
    if not _is_container(root, environment):
        return
    missing = [f"/{path}" for path in (*MOUNTS, TOOL) if not (root / path).exists()]
    if missing:
        advice = f"mount them from the host: {run_line(root)}"
        yield failed("container mounts", f"missing: {', '.join(missing)}", advice)
    else:
        yield passed("container mounts", "driver, dcmi, npu-smi and install information are there")


def _driver(root: Path) -> Check:
    found = _versions(root / ASCEND / "driver/version.info")
    if not found:
        return failed(
            "driver", f"no /{ASCEND}/driver/version.info", "install the driver, or mount it"
        )
    return passed("driver", _package_version(found))


def _firmware(root: Path) -> Check:
    driver = _versions(root / ASCEND / "driver/version.info")
    firmware = _versions(root / ASCEND / "firmware/version.info")
    if not firmware:
        return skipped("firmware", f"no /{ASCEND}/firmware/version.info (usual in a container)")
    ours, theirs = _package_version(firmware), _package_version(driver) if driver else ""
    number = firmware.get("version", "")
    wanted = driver.get("compatible_version_fw", "")
    fits = _is_within(number, wanted) if wanted and number else theirs in ("", ours)
    fits = fits or _is_within(theirs, firmware.get("compatible_version_drv", ""))
    if fits:
        return passed("firmware", f"{ours} ({number})" if number else ours)
    asks = f" and asks for {wanted}" if wanted else ""
    return warned(
        "firmware",
        f"{ours} ({number or 'no number'}), but the driver is of {theirs}{asks}",
        "install driver and firmware of one HDK release; a mixed pair may fail at random",
    )


def _cann(root: Path, environment: Mapping[str, str]) -> Check:
    found = _cann_version(root, environment)
    if found is None:
        advice = "install the CANN toolkit or nnrt package"
        return failed("CANN", f"not found below /{ASCEND}", advice)
    return _with_driver(root, *found)


def _cann_version(
    root: Path, environment: Mapping[str, str]
) -> tuple[str, Mapping[str, str]] | None:
    """Its name and what its file says: the one of the environment, else the system's."""
    homes = [root / home.lstrip("/") for name in HOMES if (home := environment.get(name))]
    systems = [each for name in CANN_FOLDERS for each in sorted((root / ASCEND).glob(name))]
    files = (file for home in (*homes, *systems) for name in CANN_FILES for file in home.glob(name))
    for file in files:
        found = _versions(file)
        name = found.get("version") or found.get("toolkit_running_version", "")
        if name:
            return name.strip("[]").rpartition(":")[2] or name, found
    return None


def _with_driver(root: Path, name: str, cann: Mapping[str, str]) -> Check:
    """CANN fits the driver if one of them lists the other's generation, where both tell theirs."""
    driver = _versions(root / ASCEND / "driver/version.info")
    ours, theirs = (_generation(each.get("innerversion", "")) for each in (cann, driver))
    if not (ours and theirs):
        return passed("CANN", name)
    lists = (cann.get("compatible_version", ""), driver.get("compatible_version", ""))
    if ours == theirs or _is_within(theirs, lists[0]) or _is_within(ours, lists[1]):
        return passed("CANN", f"{name} ({ours}), which goes with the driver's {theirs}")
    return warned(
        "CANN",
        f"{name} is of {ours} and the driver of {theirs}; neither lists the other as compatible",
        "install a driver for this CANN, or a CANN for this driver",
    )


def _sourced(root: Path, environment: Mapping[str, str]) -> Check:
    home = next(filter(None, map(environment.get, HOMES)), "")
    script = next(iter(sorted(root.glob(f"{ASCEND}/*/set_env.sh"))), None)
    path = f"/{script.relative_to(root)}" if script else f"/{ASCEND}/ascend-toolkit/set_env.sh"
    if not home:
        return failed("environment", "ASCEND_HOME_PATH is not set", f"source {path}")
    if not (root / home.lstrip("/")).is_dir():
        return failed("environment", f"ASCEND_HOME_PATH={home} does not exist", f"source {path}")
    libraries = environment.get("LD_LIBRARY_PATH", "")
    if "Ascend" not in libraries and home not in libraries:
        return warned("environment", "LD_LIBRARY_PATH has no Ascend folder", f"source {path}")
    return passed("environment", f"ASCEND_HOME_PATH={home}")


def _packages() -> Check:
    """torch and torch_npu fit if torch_npu's own requirement says so."""
    try:
        ours, plugin = version("torch"), version("torch_npu")
    except PackageNotFoundError as error:
        advice = "pip install torch_npu in the version that matches torch and CANN"
        return failed("torch and torch_npu", f"{error.name} is not installed", advice)
    return fits(ours, plugin, requires("torch_npu") or [])


def _plugin_and_cann(root: Path, environment: Mapping[str, str]) -> Check:
    found = _cann_version(root, environment)
    try:
        plugin = version("torch_npu")
    except PackageNotFoundError:
        return skipped("torch_npu and CANN", "torch_npu is not installed")
    if found is None:
        return skipped("torch_npu and CANN", "CANN was not found")
    return pairs(plugin, found[0])


def pairs(plugin_version: str, cann_version: str) -> Check:
    """Whether CANN is at least the one that torch_npu was released for."""
    known = [_plugin_key(name) for name in RELEASED_FOR]
    ours, least = _plugin_key(plugin_version), ""
    for key, name in zip(known, RELEASED_FOR, strict=True):
        # A release that is not listed needs what the one before it does.
        if key <= ours and (key[0] == ours[0] or key[0] == max(k[0] for k in known)):
            least = RELEASED_FOR[name]
    here, text = _numbers(cann_version)[:2], f"torch_npu {plugin_version}, CANN {cann_version}"
    if not least or not here:
        return skipped("torch_npu and CANN", f"{text}: not a pair that is known")
    if here >= _numbers(least):
        return passed("torch_npu and CANN", text)
    return warned(
        "torch_npu and CANN",
        f"{text}: it is released for CANN {least} or later",
        f"install CANN {least}, or a torch_npu of this CANN's time; calls may be missing",
    )


def _plugin_key(name: str) -> tuple[tuple[int, ...], int]:
    """2.9.0.post6 as ((2, 9, 0), 6)."""
    base, _, post = name.partition(".post")
    return _numbers(base)[:3], next(iter(_numbers(post)), 0)


def fits(torch_version: str, plugin_version: str, requirements: list[str]) -> Check:
    """Whether torch is the one that torch_npu was built for.

    Args:
        requirements: torch_npu's own, as its package has them.
    """
    plain = torch_version.partition("+")[0]
    wanted = next(
        (
            m
            for r in requirements
            if (m := re.match(r"torch\s*==\s*([\d.]+?)(?:\.\*)?(?:\s|;|$)", r))
        ),
        None,
    )
    needed = wanted.group(1) if wanted else ".".join(plugin_version.split(".")[:3])
    if plain == needed or plain.startswith(f"{needed}."):
        return passed("torch and torch_npu", f"torch {plain}, torch_npu {plugin_version}")
    return failed(
        "torch and torch_npu",
        f"torch_npu {plugin_version} is built for torch {needed}, found {plain}",
        f"pip install torch=={needed}, or the torch_npu for torch {plain}",
    )


# --- version files -----------------------------------------------------------------------------


def _versions(file: Path) -> dict[str, str]:
    """The key=value lines of a version file, keys in small letters; empty if there is none."""
    pairs = (line.partition("=") for line in _text(file).splitlines())
    return {key.strip().casefold(): value.strip() for key, sep, value in pairs if sep}


def _text(file: Path) -> str:
    """The beginning of a file, empty if it cannot be read."""
    with contextlib.suppress(OSError), file.open("rb") as stream:
        return stream.read(MAX_FILE_BYTES).decode("utf-8", errors="replace")
    return ""


def _generation(text: str) -> str:
    """V100R001C23 of V100R001C23SPC002B210; empty if it is not of this form."""
    match = re.match(r"V\d+R\d+C\d+", text)
    return match[0] if match else ""


def _is_within(version_: str, ranges: str) -> bool:
    """Whether a version is in a list such as "[6.4.0,6.4.99],[7.0.0]": ranges and single ones."""
    wanted = _numbers(version_)
    for inside in re.findall(r"\[([^\[\]]+)\]", ranges):
        first, _, last = (part.strip() for part in inside.partition(","))
        low, high = _numbers(first), _numbers(last or first)
        if low <= wanted[: len(low)] and wanted[: len(high)] <= high:
            return True
    return False


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in re.findall(r"\d{1,9}", text))


def _package_version(found: Mapping[str, str]) -> str:
    return found.get("package_version") or found.get("version") or "of unknown version"
