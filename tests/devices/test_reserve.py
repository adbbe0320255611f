"""A device is one process's at a time, and nobody's once that process is gone."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import autotune
from autotune.core.errors import UnavailableError
from autotune.devices import reserve
from autotune.devices.reserve import Reservation

HOLD = """
import sys, time
from autotune.devices.reserve import Reservation
Reservation().add(sys.argv[1:], wait_s=0)
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(reserve.LOCK_DIR_VARIABLE, str(tmp_path))
    return tmp_path


def holder(*names: str) -> subprocess.Popen[str]:
    root = str(Path(autotune.__file__).parents[1])
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, *names],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": root},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_another_process_has_to_wait_and_is_told_for_whom(place: Path) -> None:
    other = holder("npu:1")
    with Reservation() as mine:
        mine.add(["npu:0"], wait_s=0)
        with pytest.raises(UnavailableError, match=rf"npu:1 is in use by process {other.pid} of "):
            mine.add(["npu:2", "npu:1"], wait_s=0)
        assert mine.names == ("npu:0",), "all or none"
        other.kill()  # the lock is not tidied up by anybody
        mine.add(["npu:2", "npu:1"], wait_s=5)
        assert mine.names == ("npu:0", "npu:2", "npu:1")
    other.wait()
    assert list(place.iterdir()) == [], "nothing is left behind"


def test_who_waits_says_so(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Reservation() as one, Reservation() as two:
        one.add(["cuda:0"], wait_s=0)
        began_s = time.monotonic()
        with pytest.raises(UnavailableError, match="cuda:0 is in use"):
            two.add(["cuda:0"], wait_s=1.5)
        assert time.monotonic() - began_s >= 1.5
        assert "waiting up to" in caplog.text
        one.close()
        two.add(["cuda:0"], wait_s=0)


def test_all_users_may_lock_it_and_nobody_follows_a_link(place: Path) -> None:
    before = os.umask(0o077)
    try:
        with Reservation() as mine:
            mine.add(["npu:0"], wait_s=0)
            assert (place / "autotune-npu-0.lock").stat().st_mode & 0o777 == 0o666
    finally:
        os.umask(before)
    victim = place / "victim"
    victim.write_text("mine")
    (place / "autotune-npu-3.lock").symlink_to(victim)
    with Reservation() as mine, pytest.raises(UnavailableError, match=r"npu-3\.lock"):
        mine.add(["npu:3"], wait_s=0)
    assert victim.read_text() == "mine"


def test_a_device_is_known_by_the_drivers_number(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Reservation() as one, Reservation() as two:
        one.add(["npu:5"], wait_s=0)
        monkeypatch.setenv("ASCEND_RT_VISIBLE_DEVICES", "4,5")
        with pytest.raises(UnavailableError, match="npu:1 is in use"):
            two.add(["npu:1"], wait_s=0)
        two.add(["npu:0"], wait_s=0)


def test_the_place_is_one_where_every_user_may_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(reserve.LOCK_DIR_VARIABLE, raising=False)
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    monkeypatch.setattr(reserve, "PLACES", (tmp_path / "none", tmp_path, shared))
    assert reserve.lock_dir() == shared
    monkeypatch.setenv(reserve.LOCK_DIR_VARIABLE, str(tmp_path / "none"))
    with Reservation() as mine, pytest.raises(UnavailableError, match="AUTOTUNE_LOCK_DIR"):
        mine.add(["npu:0"], wait_s=0)
