from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from autotune import devices
from autotune.core.errors import UnavailableError, UsageError
from autotune.devices import accelerators


@pytest.fixture(autouse=True)
def fresh_probes() -> None:
    accelerators.import_failure.cache_clear()


@pytest.mark.parametrize("name", ["gpu", "", 0, ["cpu"], "cpu:1", "cpu:", "npu:x", "cpu gpu", None])
def test_a_name_no_device_can_have_is_refused_with_what_is_here(name: object) -> None:
    with pytest.raises(UsageError) as caught:
        devices.find_device(name)  # type: ignore[arg-type]
    assert repr(name) in str(caught.value)
    assert "devices seen here: cpu, simulated" in str(caught.value)


@pytest.mark.parametrize("name", ["cuda:9", "npu:0", "mlu", "npu"])
def test_a_known_accelerator_that_is_not_there_is_unavailable(name: str) -> None:
    with pytest.raises(UnavailableError) as caught:
        devices.find_device(name)
    assert caught.value.exit_code == 3
    assert f"device {name} is not available" in str(caught.value)
    assert "devices seen here: cpu" in str(caught.value)


@pytest.mark.parametrize("name", ["cpu", "CPU", " cpu "])
def test_the_cpu_is_found_however_it_is_written(name: str) -> None:
    assert devices.find_device(name).name == "cpu"


def test_auto_takes_the_cpu_and_can_say_why_nothing_else() -> None:
    assert devices.find_device("auto").kind == "cpu"
    reasons = {found.kind: found.why_not for found in devices.discover_all()}
    assert all(reasons[kind] for kind in ("cuda", "npu", "mlu"))
    assert reasons["cpu"] == reasons["simulated"] == ""


def test_simulated_is_only_taken_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert devices.find_device("simulated").name == "simulated"
    monkeypatch.setattr(devices, "AUTO_ORDER", ("npu", "mlu"))
    with pytest.raises(UnavailableError, match=r"npu: .*mlu: "):
        devices.find_device("auto")


def test_unknown_kinds_are_refused() -> None:
    with pytest.raises(UsageError, match="tpu"):
        devices.device_kind("tpu")


def broken_package(folder: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    (folder / "torch_npu").mkdir()
    (folder / "torch_npu/__init__.py").write_text(code)
    monkeypatch.syspath_prepend(str(folder))


def test_a_broken_vendor_package_tells_its_own_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken_package(
        tmp_path, monkeypatch, 'raise OSError("libhccl.so: cannot open shared object file")'
    )
    with pytest.raises(UnavailableError, match=r"libhccl\.so: cannot open shared object file"):
        devices.find_device("npu")
    assert "torch_npu" not in sys.modules


def test_a_broken_vendor_package_is_no_matter_to_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = tmp_path / "imported"
    broken_package(tmp_path, monkeypatch, f"open({str(marker)!r}, 'w'); raise OSError('no driver')")
    assert "npu" not in devices.find_device("cpu").description
    assert not marker.exists()


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"),
        ("import time; time.sleep(60)", "did not end within 1 s"),
        ("import os; os._exit(7)", "exit status 7"),
    ],
)
def test_an_import_that_kills_or_hangs_is_survived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, reason: str
) -> None:
    broken_package(tmp_path, monkeypatch, code)
    failure = accelerators.import_failure("torch_npu", limit_s=1.0 if "sleep" in code else 30.0)
    assert failure is not None and reason in failure


def test_the_probe_keeps_torch_from_loading_plug_ins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "import os; raise OSError(os.environ['TORCH_DEVICE_BACKEND_AUTOLOAD'])"
    broken_package(tmp_path, monkeypatch, code)
    assert accelerators.import_failure("torch_npu") == "OSError: 0"


def test_a_missing_package_starts_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    assert "not installed" in accelerators.MluKind().discover().why_not


def test_with_package_and_device_node_the_adapter_is_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken_package(tmp_path, monkeypatch, "")
    kind = accelerators.NpuKind()
    assert "no device node /dev/davinci" in kind.discover(tmp_path).why_not
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/davinci0").touch()
    assert "no adapter" in kind.discover(tmp_path).why_not
    with pytest.raises(UnavailableError):
        kind.open("npu:0")


def test_looking_for_devices_imports_no_framework(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom autotune import devices\n"
        "devices.find_device('auto'); devices.discover_all()\n"
        "assert not {'torch', 'transformers', 'optuna'} & set(sys.modules)"
    )
    root = str(Path(devices.__file__).parents[2])
    done = subprocess.run([sys.executable, "-c", code], cwd=root, timeout=60, check=False)
    assert done.returncode == 0
