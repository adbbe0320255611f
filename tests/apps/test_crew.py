"""Several workers on one study: each with a device of its own, none of them needed to the end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

import autotune
from autotune.apps import crew as crew_module
from autotune.apps.crew import interference, make_crew
from autotune.apps.run import run
from autotune.apps.store import load_result, load_stored
from autotune.apps.view import View
from autotune.apps.worker import space_of
from autotune.core.errors import UnavailableError, UsageError
from autotune.core.outcomes import Outcome
from autotune.core.records import Config, Measurement, TrialRecord, Verdict
from autotune.devices.base import DeviceInfo
from autotune.devices.reserve import Reservation
from autotune.space.loader import load_space
from autotune.space.search_space import SearchSpace

SPACE = """
study: c
workload:
  command: [sh, -c, "MEET; sleep {SECONDS}; echo '{\\"throughput\\": {batch_size}00}'"]
  metrics: {throughput_items_per_s: throughput}
device: simulated:1-3
params: {batch_size: {low: 1, high: 12, step: 1}}
budget: {trials: TRIALS}
trial: {timeout: 100s}
sampler: random
confirm: false
"""

# Every trial leaves its mark, and ends only once so many have begun.
MEET = ": > met/$$; while [ $(ls met | wc -l) -lt COUNT ]; do sleep 0.02; done"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "met").mkdir()
    return tmp_path


def write_space(seconds: float, trials: int, *, meeting: int = 1) -> SearchSpace:
    """Of trials that sleep, the first `meeting` of which wait for each other."""
    text = SPACE.replace("{SECONDS}", str(seconds)).replace("TRIALS", str(trials))
    text = text.replace("MEET", MEET.replace("COUNT", str(meeting)))
    Path("c.yaml").write_text(text)
    return load_space("c.yaml")


class Notes(View):
    def __init__(self) -> None:
        self.texts: list[str] = []
        self.numbers: list[int] = []

    def note(self, text: str) -> None:
        self.texts.append(text)

    def trial_finished(self, record: TrialRecord, standing: object) -> None:
        self.numbers.append(record.number)


def test_each_worker_has_a_device_of_its_own_and_no_configuration_is_tried_twice(
    place: Path,
) -> None:
    view = Notes()
    result = run(write_space(0.1, 9, meeting=2), view=view, workers=2)
    assert result.ending.complete and result.status == "unconfirmed"
    assert sorted(view.numbers) == list(range(9))
    assert max(Counter(r.config for r in result.records).values()) == 1
    assert {r.verdict.outcome for r in result.records} == {Outcome.OK}
    workers = {r.worker for r in result.records}
    assert {name.split()[1] for name in workers} == {"simulated:1", "simulated:2"}
    assert len(workers) == 2, "one process per device"
    assert not list(Path(os.environ["AUTOTUNE_LOCK_DIR"]).iterdir())


def start(*words: str) -> subprocess.Popen[str]:
    root = str(Path(autotune.__file__).parents[1])
    return subprocess.Popen(
        [sys.executable, "-m", "autotune", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": root},
    )


def workers_of(tool: subprocess.Popen[str]) -> list[psutil.Process]:
    """The workers, once both measure: what they started is there."""
    until_s = time.monotonic() + 60
    while time.monotonic() < until_s:
        found = psutil.Process(tool.pid).children()
        if len(found) == 2 and all("sh" in names_below(worker) for worker in found):
            return found
        time.sleep(0.05)
    raise AssertionError(tool.communicate(timeout=5))


def names_below(process: psutil.Process) -> list[str]:
    try:
        return [child.name() for child in process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def test_a_killed_worker_comes_back_and_a_stopped_run_leaves_its_trials_interrupted(
    place: Path,
) -> None:
    write_space(90.0, 6)
    tool = start("run", "--space", "c.yaml", "--workers", "2")
    first = workers_of(tool)
    first[0].kill()
    first[0].wait()
    second = workers_of(tool)
    assert first[0].pid not in [worker.pid for worker in second]
    everything = psutil.Process(tool.pid).children(recursive=True)
    tool.send_signal(signal.SIGTERM)
    output, errors = tool.communicate(timeout=60)
    assert tool.returncode == 130, errors
    assert not [p for p in everything if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
    outcomes = Counter(r.verdict.outcome for r in load_result("c", Path("studies")).records)
    assert outcomes[Outcome.LOST] == 1 and outcomes[Outcome.INTERRUPTED] == 2, outcomes
    write_space(0.0, 6)
    ended = start("worker", "c.yaml", "--on-change", "continue", "--json")
    output, errors = ended.communicate(timeout=60)
    assert ended.returncode == 0, errors
    assert json.loads(output)["complete"] is True
    records = load_result("c", Path("studies")).records
    done = [r.config for r in records if r.verdict.outcome is Outcome.OK]
    assert len(done) == len(set(done)) == 6
    assert {r.config for r in records} == set(done), "what was lost or interrupted came again"


def wait_until(holds: Callable[[], object]) -> None:
    until_s = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < until_s
        time.sleep(0.05)


def test_dask_runs_the_workers_wherever_it_has_room_and_ends_them_with_the_tool(
    place: Path,
) -> None:
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None
    ) as cluster:
        address = cluster.scheduler_address
        write_space(90.0, 6)
        tool = start("run", "--space", "c.yaml", "--workers", "2", "--dask", address)
        wait_until(lambda: len(list(Path("met").iterdir())) == 2)
        tool.kill()
        tool.communicate()
        wait_until(lambda: not load_stored("c", Path("studies")).running())
        space = write_space(0.1, 6, meeting=4)  # two have left their marks already
        result = run(space, workers=2, dask=address, on_change="continue")
    outcomes = Counter(r.verdict.outcome for r in result.records)
    assert outcomes == {Outcome.INTERRUPTED: 2, Outcome.OK: 6} and result.ending.complete
    done = [r for r in result.records if r.verdict.outcome is Outcome.OK]
    assert len({r.config for r in done}) == 6
    assert {r.worker.split()[1] for r in done} == {"simulated:1", "simulated:2"}


class TestPlaces:
    def cpu(self, monkeypatch: pytest.MonkeyPatch, cores: tuple[tuple[int, ...], ...]) -> None:
        count = sum(map(len, cores))
        info = DeviceInfo(name="cpu", kind="cpu", description="", core_count=count, cores=cores)
        monkeypatch.setattr(crew_module, "find_devices", lambda name: (info,))

    def space(self) -> SearchSpace:
        return load_space("online.yaml", ["device=cpu"])

    def test_workers_on_a_cpu_share_no_core(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cpu(monkeypatch, ((0, 1, 2, 3), (8, 9, 10)))
        crew = make_crew(self.space(), 3)
        assert [place.cores for place in crew.places] == [(0, 1), (2, 3), (8, 9)]
        with pytest.raises(UsageError, match=r"--workers 8: each has cores of its own.* 7"):
            make_crew(self.space(), 8)
        with Reservation() as other:
            other.add(["core:9"], wait_s=0)
            with pytest.raises(UnavailableError, match="core:9 is in use"):
                make_crew(self.space(), 3)

    def test_devices_in_use_are_passed_over(self, place: Path) -> None:
        space = write_space(0.0, 1)
        with Reservation() as other:
            other.add(["simulated:2"], wait_s=0)
            assert [p.devices for p in make_crew(space, 2).places] == [
                ("simulated:1",),
                ("simulated:3",),
            ]
            with pytest.raises(UnavailableError, match="2 of 3 devices are free; simulated:2 is"):
                make_crew(space, 3)
        with pytest.raises(UsageError, match="one per device, and there are 3"):
            make_crew(space, 4)


def test_workers_that_slow_each_other_down_are_told_of() -> None:
    def trial(number: int, ratio: float | None) -> TrialRecord:
        measured = Measurement(throughput_items_per_s=1.0, canary_ratio=ratio)
        verdict = Verdict(outcome=Outcome.OK)
        return TrialRecord(
            number=number,
            config=Config(),
            phase="search",
            verdict=verdict,
            measurements=(measured,),
        )

    slow, quiet = [trial(i, 0.7) for i in range(6)], [trial(i, 0.97) for i in range(6)]
    assert "the 4 workers disturb each other" in interference(slow, 4)
    assert "70 %" in interference(slow, 4)
    assert interference(quiet, 4) == interference(slow[:3], 4) == interference(slow, 1) == ""


def test_what_a_storage_says_is_run_only_if_it_is_trusted(place: Path) -> None:
    run(write_space(0.0, 1))
    assert space_of("c.yaml", [], studies_dir=Path("studies")).study == "c"
    with pytest.raises(UsageError, match="--trust-storage"):
        space_of("c", [], studies_dir=Path("studies"))
    trusted = space_of("c", [], studies_dir=Path("studies"), trusts_storage=True)
    assert trusted.workload == load_space("c.yaml").workload
    with pytest.raises(UsageError, match="no study"):
        space_of("d", [], studies_dir=Path("studies"))
