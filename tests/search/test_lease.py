"""A lease is dead when its process is, and only then; from elsewhere, when it is not renewed."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest

from autotune.core.clock import VirtualClock
from autotune.core.errors import StorageError
from autotune.search import lease as lease_module
from autotune.search.lease import GONE_S, Heart, LeaseWatch, is_holder_dead, new_lease, renewed
from autotune.search.process import process_start


def test_own_lease_is_alive() -> None:
    assert is_holder_dead(new_lease("w")) is False


def test_the_lease_of_a_killed_process_is_dead_at_once() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    lease = {**new_lease("w"), "pid": child.pid, "pid_start": process_start(child.pid)}
    assert LeaseWatch().is_dead(lease) is False
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it stays a zombie
    assert LeaseWatch().is_dead(lease) is True, "a zombie is dead"
    child.wait()
    assert LeaseWatch().is_dead(lease) is True


def test_a_pid_that_was_used_again_is_another_process() -> None:
    assert is_holder_dead({**new_lease("w"), "pid_start": "1"}) is True


def test_no_lease_at_all_is_dead() -> None:
    assert LeaseWatch().is_dead({}) is True


@pytest.mark.parametrize(
    "elsewhere", [{"host": "other"}, {"boot_id": "other"}, {"pid_namespace": "other"}]
)
def test_elsewhere_it_is_dead_when_it_has_not_been_renewed(elsewhere: dict[str, str]) -> None:
    clock = VirtualClock()
    watch = LeaseWatch(clock.now_s)
    lease = {**new_lease("w"), **elsewhere}
    assert watch.is_dead(lease) is None
    clock.advance(GONE_S)
    assert watch.is_dead(lease) is None
    clock.advance(1.0)
    assert watch.is_dead(lease) is True


def test_elsewhere_it_lives_while_it_is_renewed_whatever_its_clock_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = VirtualClock()
    watch = LeaseWatch(clock.now_s)
    lease = {**new_lease("w"), "host": "other"}
    assert watch.is_dead(lease) is None
    for wall_s in (1e9, 5.0, 4e9):  # set back and forward by decades
        monkeypatch.setattr(lease_module.time, "time", lambda wall_s=wall_s: wall_s)
        clock.advance(0.9 * GONE_S)
        lease = renewed(lease)
        assert watch.is_dead(lease) is False
    clock.advance(GONE_S + 1)
    assert watch.is_dead(lease) is True


def test_the_heart_renews_what_is_held_and_nothing_else() -> None:
    heart, beats, away = Heart(every_s=0.01), threading.Semaphore(0), []

    def fails() -> None:
        away.append(1)
        raise StorageError("away for a moment")

    heart.hold("fails", fails)
    heart.hold("held", beats.release)
    assert all(beats.acquire(timeout=5) for _ in range(3)), "one that fails stops no other"
    heart.drop("held")
    while beats.acquire(blocking=False):
        pass
    seen = len(away)
    until_s = time.monotonic() + 20
    while len(away) < seen + 5:
        assert time.monotonic() < until_s
        time.sleep(0.01)
    assert not beats.acquire(blocking=False)
    heart.drop("fails")
    heart.hold("again", beats.release)
    assert beats.acquire(timeout=5)
    heart.drop("again")
