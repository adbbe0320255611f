"""A lease is dead when its process is, and only then."""

from __future__ import annotations

import subprocess
import sys
import time

from autotune.search.process import is_alive, is_lease_dead, new_lease, process_start


def test_own_lease_is_alive_even_past_its_end() -> None:
    assert not is_lease_dead(new_lease("w", lasts_s=-1000.0))


def test_the_lease_of_a_killed_process_is_dead() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    lease = {**new_lease("w", 600.0), "pid": child.pid, "pid_start": process_start(child.pid)}
    assert not is_lease_dead(lease)
    child.kill()
    time.sleep(0.1)
    assert is_lease_dead(lease), "a zombie is dead"
    child.wait()
    assert is_lease_dead(lease)


def test_a_pid_that_was_used_again_is_another_process() -> None:
    lease = new_lease("w", 600.0)
    assert is_lease_dead({**lease, "pid_start": "1"})


def test_another_host_goes_by_the_time_alone() -> None:
    lease = {**new_lease("w", 100.0), "host": "elsewhere", "pid": 2**22 + 1}
    now_s = time.time()
    assert not is_lease_dead(lease, now_s + 150.0)  # clocks may differ by a minute
    assert is_lease_dead(lease, now_s + 170.0)


def test_a_host_that_was_started_again_runs_nothing_of_before() -> None:
    assert is_lease_dead({**new_lease("w", 600.0), "boot_id": "another"})


def test_no_lease_at_all_is_dead() -> None:
    assert is_lease_dead({})


def test_a_process_that_never_was_is_not_alive() -> None:
    assert process_start(2**22 + 1) == ""
    assert not is_alive(2**22 + 1, "")
