from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from autotune import devices
from autotune.core.errors import UnavailableError, UsageError
from autotune.devices.cuda import CudaKind
from autotune.devices.mlu import MluKind
from autotune.devices.npu import NpuKind
from autotune.devices.probe import probe


@pytest.fixture(autouse=True)
def fresh_probes() -> None:
    probe.cache_clear()


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


def test_several_devices_are_named_by_their_numbers() -> None:
    names = [info.name for info in devices.find_devices("simulated:2-4,9")]
    assert names == [f"simulated:{index}" for index in (2, 3, 4, 9)]
    first = devices.find_device("simulated:2-4,9")
    assert [peer.name for peer in first.peers] == [f"simulated:{index}" for index in (3, 4, 9)]
    for wrong in ("simulated:60-70", "simulated:1-99999999999"):
        with pytest.raises(UsageError):
            devices.find_devices(wrong)


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


SURVEY = "autotune.devices.npu:survey"


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "SIGSEGV"),
        ("import time; time.sleep(60)", "did not answer within 3 s"),
        ("import os; os._exit(7)", "exit status 7"),
        ("import os; os._exit(0)", "exit status 0"),
        ("raise ImportError('libhccl.so: gone\\n[ERROR] try this\\n')", "ImportError: libhccl.so"),
    ],
)
def test_a_package_that_kills_hangs_or_lectures_is_survived(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, reason: str
) -> None:
    broken_package(tmp_path, monkeypatch, code)
    (tmp_path / "torch.py").touch()  # the survey imports it first, which takes its time
    found = probe(SURVEY, limit_s=3.0 if "sleep" in code else 30.0)
    assert reason in found.failure


def test_the_probe_keeps_torch_from_loading_plug_ins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "import os; raise OSError(os.environ['TORCH_DEVICE_BACKEND_AUTOLOAD'])"
    broken_package(tmp_path, monkeypatch, code)
    assert probe(SURVEY).failure == "OSError: 0"


def test_an_answer_is_found_among_what_a_package_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "talker.py").write_text("def survey():\n    print('hello')\n    return [1, 'é']\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert probe("talker:survey").answer == [1, "é"]


def test_a_missing_package_starts_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    assert "not installed" in MluKind().discover().why_not
    if "+cpu" in torch_version():
        assert "build for the CPU" in CudaKind().discover().why_not


def torch_version() -> str:
    from importlib.metadata import version

    return version("torch")


NO_DEVICE = """
class npu:
    device_count = staticmethod(lambda: 0)
"""


def test_a_package_without_a_device_says_what_the_driver_has_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken_package(tmp_path, monkeypatch, "__version__ = '2.13.0'")
    (tmp_path / "torch.py").write_text(f"__version__ = '2.13.0'\n{NO_DEVICE}")
    kind = NpuKind(tmp_path)
    assert kind.discover().why_not.startswith("torch_npu sees no device")
    assert "no device node /dev/davinci" in kind.discover().why_not
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/davinci0").touch()
    assert kind.discover().why_not == "torch_npu sees no device"


def test_looking_for_devices_imports_no_framework(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom autotune import devices\n"
        "devices.find_device('auto'); devices.discover_all()\n"
        "assert not {'torch', 'transformers', 'optuna'} & set(sys.modules)"
    )
    root = str(Path(devices.__file__).parents[2])
    done = subprocess.run([sys.executable, "-c", code], cwd=root, timeout=60, check=False)
    assert done.returncode == 0
