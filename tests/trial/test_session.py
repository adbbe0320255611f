"""Sessions with real child processes: what they measure, and how every kind of failure ends."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest

from autotune.core.errors import (
    OutOfMemory,
    TrialCrashed,
    TrialError,
    TrialKilled,
    TrialLost,
    TrialTimeout,
    UsageError,
)
from autotune.core.records import Config, GroupSpec, InputSpec, Plan, Samples, Window, WorkloadSpec
from autotune.devices import device_kind, find_device
from autotune.measure.noise import trust_of
from autotune.trial.session import Launcher, open_session
from autotune.workloads.probes import MAX_PROBES, calls_for_all

MODELS = Path(__file__).with_name("models.py")
SHORT = Plan(windows=(Window(duration_s=0.2),), deadline_s=20)


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    with Launcher() as launcher:
        yield launcher


def spec(factory: str, config: Config | None = None, **environment: str) -> GroupSpec:
    config = config or Config(batch_size=1, cores_per_instance=1)
    info = find_device("cpu")
    kind = device_kind("cpu")
    return GroupSpec(
        config=config,
        workload=WorkloadSpec(
            kind="torch",
            model=f"{MODELS}:{factory}",
            inputs=(InputSpec(name="x", shape=("batch", 16)),),
        ),
        devices=("cpu",),
        cores=kind.assign_cores(config, info),
        environment={**kind.environment(config, info), **environment},
    )


def run(launcher: Launcher, group: GroupSpec, plan: Plan = SHORT) -> Samples:
    with open_session(group, launcher, timeout_s=20) as session:
        result = session.measure(plan)
    assert isinstance(result, Samples)
    return result


def batches(size: int) -> Config:
    return Config(batch_size=size, cores_per_instance=1)


def descendants() -> list[psutil.Process]:
    """Processes below this one, the zygotes apart (they are its direct children)."""
    me = psutil.Process()
    zygotes = me.children()
    return [p for z in zygotes for p in z.children(recursive=True)]


def test_samples_are_whole_and_in_time_order(launcher: Launcher) -> None:
    samples = run(launcher, spec("plain", batches(4)))
    assert samples.start_s.size > 20
    assert np.all(np.diff(samples.start_s) > 0)
    assert np.all(samples.end_s > samples.start_s)
    assert np.all(samples.start_s[1:] >= samples.end_s[:-1])
    assert set(samples.item_count) == {4}
    assert samples.h2d_s is not None and samples.compute_s is not None
    whole = samples.h2d_s + samples.compute_s
    assert np.all(whole <= samples.end_s - samples.start_s)
    (facts,) = samples.facts
    assert facts.thread_count == 1
    assert facts.memory_peak_bytes is not None and facts.memory_peak_bytes > 1e6
    assert facts.load_s > 0 and facts.first_call_s > 0 and facts.warmup_count >= 10


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
@pytest.mark.parametrize("mode", ["process", "thread"])
def test_instances_start_together_on_cores_of_their_own(launcher: Launcher, mode: str) -> None:
    config = Config(
        instance_count=2, cores_per_instance=1, extra=(("instance_mode", mode),), batch_size=2
    )
    samples = run(launcher, spec("plain", config))
    starts_s = [samples.start_s[samples.instance == i].min() for i in (0, 1)]
    assert abs(starts_s[0] - starts_s[1]) < 0.05
    assert {fact.cores for fact in samples.facts} == {
        (core,) for f in samples.facts for core in f.cores
    }
    assert samples.facts[0].cores != samples.facts[1].cores
    assert [fact.thread_count for fact in samples.facts] == [1, 1]


def test_iterations_are_counted_over_the_group(launcher: Launcher) -> None:
    config = Config(instance_count=2, cores_per_instance="all")
    plan = Plan(windows=(Window(iterations=31),), deadline_s=20)
    samples = run(launcher, spec("plain", config), plan)
    assert samples.start_s.size == 31


def test_every_call_runs_the_model_on_whole_batches(launcher: Launcher, tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    plan = Plan(windows=(Window(iterations=20),), deadline_s=20)
    with Launcher() as own:  # its own zygote: the variable is part of the environment
        samples = run(own, spec("counts_calls", batches(3), CALLS_FILE=str(calls)), plan)
    made = calls.read_text().split()
    assert set(made) == {"3"}
    first_calls = len(made) - 20 - samples.facts[0].warmup_count
    assert calls_for_all(3) <= first_calls <= MAX_PROBES


def test_windows_alternate_between_two_sessions(launcher: Launcher) -> None:
    with (
        open_session(spec("sleeps_2_ms"), launcher) as a,
        open_session(spec("plain"), launcher) as b,
    ):
        plans = [Plan(windows=(Window(duration_s=0.1),) * 2, deadline_s=20)] * 2
        a.warm_up(plans[0])
        b.warm_up(plans[1])
        start = time.monotonic() + 0.1
        for session, offsets in ((a, (0.0, 0.45)), (b, (0.15, 0.3))):
            windows = tuple(Window(start_s=start + o, duration_s=0.1) for o in offsets)
            session.begin(Plan(windows=windows, deadline_s=20))
        first, second = a.result(), b.result()
    assert isinstance(first, Samples) and isinstance(second, Samples)
    assert first.of_window(0).end_s.max() < second.of_window(0).start_s.min()
    assert second.of_window(0).end_s.max() < second.of_window(1).start_s.min()
    assert second.of_window(1).end_s.max() < first.of_window(1).start_s.min()


@pytest.mark.parametrize(
    ("factory", "batch", "error", "text"),
    [
        ("runs_out_from_4", 4, OutOfMemory, "CUDA out of memory"),
        ("runs_out_late", 1, OutOfMemory, "CUDA out of memory"),
        ("allocator_fails", 1, OutOfMemory, "DefaultCPUAllocator"),
        ("launch_limit", 1, TrialCrashed, "CUDA error: invalid configuration argument"),
        ("refuses", 1, TrialCrashed, "ConnectionError: 503"),
        ("leaves", 1, TrialCrashed, "SystemExit: 3"),
        ("segfaults", 1, TrialCrashed, "SIGSEGV"),
        ("killed_late", 1, TrialKilled, "SIGKILL"),
        ("writes_bytes", 1, TrialCrashed, "after the bytes"),
        ("no_such_factory", 1, UsageError, "no_such_factory"),
    ],
)
def test_a_failure_is_named_and_the_next_trial_is_clean(
    launcher: Launcher, factory: str, batch: int, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text) as caught:
        run(launcher, spec(factory, batches(batch)))
    if isinstance(caught.value, TrialError):
        assert type(caught.value) is error
        if factory not in {"segfaults", "killed_late"}:
            assert "Traceback" in caught.value.log_tail
    assert descendants() == []
    assert run(launcher, spec("plain")).start_s.size > 0


@pytest.mark.parametrize("failing", [0, 1])
def test_one_failing_instance_ends_the_group(launcher: Launcher, failing: int) -> None:
    config = Config(instance_count=2, cores_per_instance="all")
    with open_session(spec("sleeps_2_ms", config), launcher) as session:
        victims = descendants()
        assert len(victims) == 2
        session.warm_up(SHORT)
        session.begin(Plan(windows=(Window(duration_s=5.0),), deadline_s=20))
        victims[failing].kill()
        with pytest.raises(TrialCrashed, match="SIGKILL"):
            session.result()
    assert descendants() == []


def test_a_kill_of_the_kernels_for_want_of_memory_is_told_apart(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    kills = itertools.count()  # one between the start and the end, on the whole machine
    monkeypatch.setattr("autotune.trial.supervisor._oom_kill_count", lambda: next(kills))
    with pytest.raises(OutOfMemory, match="ran out of memory: killed by SIGKILL"):
        run(launcher, spec("killed_late"))


def test_a_hung_trial_is_killed_though_it_ignores_sigterm(launcher: Launcher) -> None:
    began_s = time.monotonic()
    with pytest.raises(TrialTimeout):
        run(launcher, spec("hangs"), Plan(windows=(Window(duration_s=0.2),), deadline_s=1.0))
    assert time.monotonic() - began_s < 15
    assert descendants() == []
    assert run(launcher, spec("plain")).start_s.size > 0


def test_a_stopped_process_costs_its_deadline_and_no_more(launcher: Launcher) -> None:
    with open_session(spec("sleeps_2_ms"), launcher) as session:
        session.warm_up(SHORT)
        session.begin(Plan(windows=(Window(duration_s=0.5),), deadline_s=1.5))
        descendants()[0].suspend()
        with pytest.raises(TrialTimeout):
            session.result()
    assert descendants() == []


def test_what_a_trial_started_dies_with_it(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    with Launcher() as own, pytest.raises(TrialTimeout):
        run(
            own,
            spec("starts_others_and_hangs", PIDS_FILE=str(pids)),
            Plan(windows=(Window(duration_s=0.2),), deadline_s=1.0),
        )
    (pid,) = map(int, pids.read_text().split())
    assert is_gone(pid)


def is_gone(pid: int) -> bool:
    """True when the process has ended within two seconds (a zombie counts as ended)."""
    for _ in range(100):
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.02)
    return False


def test_a_flood_of_output_is_bounded(launcher: Launcher) -> None:
    samples = run(launcher, spec("prints_a_flood"))
    assert samples.start_s.size > 0


def test_output_is_taken_from_all_groups_at_once(launcher: Launcher) -> None:
    plan = Plan(windows=(Window(duration_s=1.0),), deadline_s=20)
    with (
        open_session(spec("sleeps_2_ms"), launcher) as waited_for,
        open_session(spec("prints_a_page"), launcher) as loud,
    ):
        for session in (waited_for, loud):
            session.warm_up(plan)
        for session in (waited_for, loud):
            session.begin(plan)
        waited_for.result()
        samples = loud.result()
    assert isinstance(samples, Samples)
    assert samples.start_s.size > 100  # more than its pipe holds
    assert float(np.max(samples.latency_s)) < 0.5


def test_escape_sequences_and_surrogates_do_not_get_through(launcher: Launcher) -> None:
    with pytest.raises(TrialCrashed) as caught:
        run(launcher, spec("raises_oddly"))
    text = str(caught.value) + caught.value.log_tail
    assert "odd" in text and "\x1b" not in text
    text.encode("utf-8")


@pytest.mark.parametrize("end", ["kill", "suspend"])
def test_a_dead_or_stuck_zygote_costs_one_trial(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autotune.trial.warm.MAX_FORK_S", 1.0)
    with Launcher() as own:
        assert run(own, spec("plain")).start_s.size > 0
        zygote = max(psutil.Process().children(), key=lambda p: p.create_time())
        getattr(zygote, end)()
        with contextlib.suppress(TrialLost):
            run(own, spec("plain"))
        assert run(own, spec("plain")).start_s.size > 0


def test_a_zygote_killed_while_it_starts_costs_one_trial() -> None:
    with Launcher() as own:
        zygote = own.zygote(spec("plain"))
        max(psutil.Process().children(), key=lambda p: p.create_time()).kill()
        with pytest.raises(TrialLost, match="killed by SIGKILL"):
            zygote.wait_ready()
        assert run(own, spec("plain")).start_s.size > 0


def test_a_zygote_killed_under_a_trial_makes_it_lost() -> None:
    with Launcher() as own:
        with pytest.raises(TrialLost):
            run(own, spec("kills_its_parent"))
        assert run(own, spec("plain")).start_s.size > 0


def test_a_process_number_used_before_is_a_new_process() -> None:
    with Launcher() as own:
        group = spec("hangs")
        zygote = own.zygote(group)
        highest = int(Path("/proc/sys/kernel/pid_max").read_text())
        zygote._exits = dict.fromkeys(range(1, min(highest, 200_000)), 0)
        with pytest.raises(TrialTimeout):
            run(own, group, Plan(windows=(Window(duration_s=0.2),), deadline_s=1.0))
        assert descendants() == []


@pytest.mark.parametrize(
    ("code", "forks"),
    [
        ("", True),
        ("import threading, time; threading.Thread(target=time.sleep, args=(600,), "
         "daemon=True).start()", False),
        ("import os; held = os.open('/dev/full', os.O_WRONLY)", False),
    ],
)  # fmt: skip
def test_children_start_afresh_where_a_devices_package_forbids_a_fork(
    code: str, forks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "vendor_package.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *filter(None, sys.path)]))
    with Launcher() as own:
        with pytest.raises(TrialCrashed, match=r"w\.main" if forks else r"w\.start_afresh"):
            run(own, replace(spec("tells_its_command_line"), preload=("vendor_package",)))
        assert run(own, replace(spec("plain"), preload=("vendor_package",))).start_s.size > 0


def test_memory_of_a_trial_is_its_own(launcher: Launcher) -> None:
    large = run(launcher, spec("peak_follows_batch", batches(64)))
    small = run(launcher, spec("peak_follows_batch", batches(1)))
    peaks = [s.facts[0].memory_peak_bytes for s in (large, small)]
    assert peaks[0] is not None and peaks[1] is not None
    assert peaks[0] - peaks[1] > 300e6


def test_failures_and_leaks_do_not_add_up_in_the_tool(launcher: Launcher) -> None:
    process = psutil.Process()
    sizes = []
    for factory in ["leaks_100_mb", "fails_holding_200_mb"] * 6:
        try:
            run(launcher, spec(factory), Plan(windows=(Window(iterations=2),), deadline_s=20))
        except OutOfMemory:
            assert factory == "fails_holding_200_mb"
        sizes.append(process.memory_info().rss)
    assert max(sizes[2:]) - sizes[1] < 50e6


def test_cores_are_bound_again_after_a_model_took_them_all(launcher: Launcher) -> None:
    (facts,) = run(launcher, spec("grabs_threads")).facts
    assert facts.thread_count == 1


def test_a_model_cannot_spoil_its_own_inputs(launcher: Launcher) -> None:
    plan = Plan(windows=(Window(iterations=60),), deadline_s=20)
    assert run(launcher, spec("multiplies_its_input"), plan).start_s.size == 60


def test_two_speeds_are_called_unstable(launcher: Launcher) -> None:
    plan = Plan(windows=(Window(iterations=100),), deadline_s=20)
    assert "unstable" in trust_of(run(launcher, spec("two_speeds"), plan)).line


def test_environment_reaches_the_libraries_before_they_load() -> None:
    group = spec("plain", Config(cores_per_instance="all"), OMP_WAIT_POLICY="PASSIVE")
    with Launcher() as own:
        (facts,) = run(own, group).facts
    assert facts.versions["OMP_WAIT_POLICY"] == "PASSIVE"
    assert facts.versions["MALLOC_TRIM_THRESHOLD_"]
