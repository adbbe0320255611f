"""The tool killed, starved and misled at random moments: what is lost of its studies?

    python benchmarks/faults.py --storages journal,sqlite,postgresql --faults 300

A study over a small space whose figures are known is run, alone or by two workers, and struck:
SIGKILL to the tool, a worker or a process of a trial, the database server killed or started again,
a disk that is full, a file that may not grow, a directory that may not be written, a clock that
jumps. Whenever the tool has ended it is started again, and in the end once more without any fault.
After every fault is looked whether a trial that was reported complete is gone or differs, and
whether a process is left; at the end whether the study is finished and its recommendation is the
best of what was measured.

Every study has a small file system of its own, which may be full, if this user may mount one.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import random
import re
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from postgresql import Server

from autotune.apps.store import load_result, load_stored
from autotune.core.errors import AutotuneError
from autotune.core.records import Config, TrialRecord
from autotune.results.words import outcome_text

BATCHES, INSTANCES = range(1, 11), (1, 2, 3)
SPACE = """
study: {study}
workload:
  command:
    - sh
    - -c
    - >-
      sleep 0.1; b={{batch_size}}; i={{instance_count}};
      echo "{{\\"throughput\\": $((100 * b * i)), \\"p99\\": 5}}"
  metrics: {{throughput_items_per_s: throughput, latency_p99_s: {{key: p99, unit: ms}}}}
device: simulated:1-2
limits: {{latency_p99: 20ms}}
params: {{batch_size: {{low: {low}, high: {high}, step: 1}}, instance_count: [1, 2, 3]}}
budget: {{trials: {trials}}}
trial: {{timeout: 20s}}
sampler: grid
warm_start: false
confirm: {confirm}
storage: {storage}
"""
CLOCK = """
import os, time
_real = time.time
def _shifted():
    try:
        with open(os.environ["FAULTS_CLOCK"]) as file:
            return _real() + float(file.read() or 0)
    except (OSError, ValueError):
        return _real()
time.time = _shifted
"""
REPORTED = re.compile(r"trial +(\d+) \([^)]*\) +(.*)")
GONE_S = 5.0  # within which all processes have to be gone
END_S = 60.0  # within which the tool has to end where it cannot go on
MAX_SHOWN = 10
DISK_BYTES = 16 * 2**20
STARTS = 8  # without a fault, until a study is finished
PR_CAPBSET_DROP, CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH = 24, 1, 2


def truth(config: Config) -> float:
    """The throughput of a configuration; the next best is a tenth behind the best."""
    return 100.0 * config.batch_size * config.instance_count


@dataclass
class Tally:
    """What was struck, and what came of it; everything but `faults` should stay empty."""

    faults: Counter[str] = field(default_factory=Counter)
    studies: int = 0
    trials: int = 0
    lost: list[str] = field(default_factory=list)
    orphans: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)
    untold: list[str] = field(default_factory=list)

    @property
    def is_clean(self) -> bool:
        """True if all promises held."""
        return not (self.lost or self.orphans or self.wrong or self.unfinished or self.untold)


class Tool:
    """The tool, running; its lines are read all the time."""

    def __init__(self, words: Sequence[str], place: Path) -> None:
        root = str(Path(__file__).resolve().parents[1])
        paths = os.pathsep.join([str(place / "clock"), root])
        environment = {
            **os.environ,
            "PYTHONPATH": paths,
            "FAULTS_CLOCK": str(place / "offset"),
            "AUTOTUNE_LOCK_DIR": str(place / "locks"),
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "autotune", *words],
            cwd=place,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=_without_privileges,
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.lines.extend(iter(self.process.stdout.readline, ""))

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def reported(self) -> dict[int, str]:
        """The trials that it has said to be over, with what it said, the outcome first."""
        found = (REPORTED.match(line) for line in list(self.lines))
        return {int(match[1]): match[2] for match in found if match}

    def below(self) -> list[psutil.Process]:
        """All processes under it."""
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(self.process.pid).children(recursive=True)
        return []

    def workers(self) -> list[psutil.Process]:
        """The processes of its crew."""
        return [p for p in self.below() if "autotune.apps.member" in _command(p)]

    def wait(self, limit_s: float) -> bool:
        """Wait for its end; whether it came."""
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(limit_s)
            self._reader.join(GONE_S)
            return True
        return False


def _without_privileges() -> None:
    """Let the permissions of files hold for root too."""
    for capability in (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH):
        ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)


def _command(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


class Struck:
    """One study under fire."""

    def __init__(
        self, number: int, url: str, server: Server | None, rng: random.Random, tally: Tally
    ) -> None:
        self._dir = tempfile.TemporaryDirectory(prefix="faults")
        self.place = Path(self._dir.name)
        self.has_own_disk = server is None and _mount(self.place)
        self.url = url.format(place=self.place)
        self.name = f"k{number}"
        self.server, self._rng, self._tally = server, rng, tally
        self._seen: dict[int, TrialRecord] = {}
        (self.place / "clock").mkdir()
        (self.place / "locks").mkdir()
        (self.place / "clock" / "sitecustomize.py").write_text(CLOCK)
        (self.place / "offset").write_text("0")
        confirm = rng.choice(["false", "{top: 2}"])
        text = SPACE.format(
            study=self.name,
            low=BATCHES[0],
            high=BATCHES[-1],
            trials=len(BATCHES) * len(INSTANCES),
            confirm=confirm,
            storage=self.url,
        )
        (self.place / "k.yaml").write_text(text)

    def close(self) -> None:
        """Remove its files."""
        if self.has_own_disk:
            subprocess.run(["umount", "--lazy", self.place], check=True)
        self._dir.cleanup()

    def start(self, workers: int) -> Tool:
        """Start the tool, alone or with so many workers."""
        crew = ("--workers", str(workers)) if workers > 1 else ()
        return Tool(["run", "--space", "k.yaml", *crew], self.place)

    def storage_file(self) -> Path | None:
        """Where the study is kept, if that is a file."""
        if self.url == "journal":
            return self.place / "studies" / self.name / "study.journal"
        return None if self.server else self.place / "k.db"

    def records(self) -> dict[int, TrialRecord]:
        """The finished trials by number."""
        with suppress(AutotuneError):
            stored = load_stored(self.name, self.place / "studies", self.url)
            return {record.number: record for record in stored.records()}
        return {}

    def processes(self) -> list[psutil.Process]:
        """All that runs of the tool and of what it has started, whoever's child it is now."""
        mark = str(self.place / "offset")
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get("FAULTS_CLOCK") == mark and _is_alive(process):
                    found.append(process)
        return found

    def check(self, tool: Tool) -> None:
        """After the tool's end: is something left, or gone?"""
        if left := _left_after(self.processes, GONE_S):
            self._tally.orphans += [f"{self.name}: {_command(p)}" for p in left]
            for process in left:
                with suppress(psutil.Error):
                    process.kill()
        now = self.records()
        for number, said in tool.reported().items():
            kept = now.get(number)
            if kept is None or not said.startswith(outcome_text(kept.verdict.outcome)):
                is_now = "gone" if kept is None else kept.verdict.outcome
                self._tally.lost.append(f"{self.name}: trial {number}: {said}; is {is_now}")
        for number, record in self._seen.items():
            if now.get(number) != record:
                self._tally.lost.append(f"{self.name}: trial {number} is not what it was")
        self._seen = now
        text = "".join(tool.lines)
        if "Traceback" in text or tool.process.returncode not in (0, 1, 4, -9):
            self._tally.untold.append(f"{self.name}: {tool.process.returncode}: {text[-1000:]}")

    def finish(self) -> None:
        """Run it to its end without a fault, and judge what it recommends."""
        for _ in range(STARTS):
            tool = self.start(1)
            ended = tool.wait(END_S * 3)
            tool.process.kill()
            self.check(tool)
            if ended and tool.process.returncode == 0:
                break
        else:
            self._tally.unfinished.append(f"{self.name}: {''.join(tool.lines)[-1000:]}")
            return
        result = load_result(self.name, self.place / "studies", self.url)
        ok = [r for r in result.records if r.verdict.outcome.is_measured]
        tried = Counter(r.config for r in result.records if not r.verdict.outcome.is_retried)
        self._tally.studies += 1
        self._tally.trials += len(ok)
        if not result.ending.complete or len(tried) < len(BATCHES) * len(INSTANCES):
            self._tally.unfinished.append(f"{self.name}: {len(tried)} configurations tried")
        if max(tried.values()) > 1:
            self._tally.wrong.append(f"{self.name}: {tried.most_common(1)} was tried again unasked")
        # What was killed in its proof has crashed there, and is rightly not recommended.
        again = result.recommendation.confirmations
        struck = {r.config for r in again if not r.verdict.outcome.is_measured}
        best = max(truth(r.config) for r in ok if r.config not in struck)
        if result.config is None or truth(result.config) < best:
            proof = [(truth(r.config), str(r.verdict.outcome)) for r in again]
            noisy = {
                truth(r.config): round(r.measurement.canary_ratio or 1.0, 2)
                for r in ok
                if r.measurement and r.measurement.trust != "quiet"
            }
            self._tally.wrong.append(
                f"{self.name}: {result.config} is recommended, {best} was seen; "
                f"{result.recommendation.status} {result.recommendation.reasons} {proof}; "
                f"speed of the noisy ones: {noisy}"
            )
        for record in ok:
            measured = record.measurement
            shown = measured.throughput_items_per_s if measured else None
            if shown != truth(record.config):
                self._tally.wrong.append(f"{self.name}: trial {record.number} shows {shown}")


def _mount(place: Path) -> bool:
    """Put a small file system there; false where this user may not."""
    words = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=755", "faults", place]
    with suppress(FileNotFoundError):
        return subprocess.run(words, stderr=subprocess.DEVNULL).returncode == 0
    return False


def _left_after(
    running: Callable[[], list[psutil.Process]], limit_s: float
) -> list[psutil.Process]:
    until_s = time.monotonic() + limit_s
    while left := running():
        if time.monotonic() > until_s:
            return left
        time.sleep(0.1)
    return []


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


# --- faults ------------------------------------------------------------------------------------

Fault = Callable[[Struck, Tool, random.Random], bool]
"""Strikes; false if there was nothing to strike."""


def kill_tool(study: Struck, tool: Tool, rng: random.Random) -> bool:
    """SIGKILL to the tool itself."""
    tool.process.kill()
    return True


def kill_worker(study: Struck, tool: Tool, rng: random.Random) -> bool:
    """SIGKILL to a worker of a crew."""
    return _kill_one(tool.workers(), rng)


def kill_child(study: Struck, tool: Tool, rng: random.Random) -> bool:
    """SIGKILL to any process of a trial, or to the one that it was forked from."""
    return _kill_one([p for p in tool.below() if "apps.member" not in _command(p)], rng)


def kill_server(study: Struck, tool: Tool, rng: random.Random) -> bool:
    """SIGKILL to the database server, which is started again a moment later."""
    assert study.server is not None
    study.server.kill()
    time.sleep(rng.uniform(0.0, 1.0))
    study.server.start_again()
    return True


def restart_server(study: Struck, tool: Tool, rng: random.Random) -> bool:
    """The database server is started again."""
    assert study.server is not None
    study.server.stop()
    study.server.start_again()
    return True


def fill_disk(study: Struck, tool: Tool, rng: random.Random) -> bool:
    """There is no room left but for a few pages, until the tool has ended or for a minute."""
    if not study.has_own_disk:
        return False
    filler = study.place / "filler"
    left_bytes = rng.randrange(4) * os.statvfs(study.place).f_frsize
    with filler.open("wb", buffering=0) as file:
        with suppress(OSError):
            while file.write(bytes(2**16)):
                pass
        file.truncate(max(file.tell() - left_bytes, 0))
    tool.wait(rng.choice([2.0, END_S]))
    filler.unlink()
    return True


def limit_files(study: Struck, tool: Tool, rng: random.Random) -> bool:
    """No file may grow further than the storage has just grown."""
    path = study.storage_file()
    if path is None or not path.is_file():
        return False
    limit = path.stat().st_size + rng.randrange(2000)
    for pid in (tool.process.pid, *(p.pid for p in tool.below())):
        with suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (limit, limit))
    tool.wait(END_S)
    return True


def forbid_writing(study: Struck, tool: Tool, rng: random.Random) -> bool:
    """The storage's directory may not be written for some seconds."""
    path = study.storage_file()
    if path is None or not path.parent.is_dir():
        return False
    path.parent.chmod(0o555)
    try:
        tool.wait(rng.uniform(0.5, 4.0))
    finally:
        path.parent.chmod(0o755)
    return True


def shift_clock(study: Struck, tool: Tool, rng: random.Random) -> bool:
    """The clock is set back, or forward."""
    offset_s = rng.choice([-86_400.0, -3600.0, -61.0, 0.0, 7200.0])
    (study.place / "offset").write_text(str(offset_s))
    return True


def _kill_one(processes: Sequence[psutil.Process], rng: random.Random) -> bool:
    with suppress(psutil.NoSuchProcess):
        if processes:
            rng.choice(processes).kill()
            return True
    return False


FAULTS: dict[str, tuple[Fault, float]] = {
    "tool killed": (kill_tool, 3.0),
    "worker killed": (kill_worker, 2.0),
    "child killed": (kill_child, 3.0),
    "clock set": (shift_clock, 1.0),
    "disk full": (fill_disk, 1.0),
    "file limit": (limit_files, 1.0),
    "read-only": (forbid_writing, 1.0),
    "server killed": (kill_server, 1.0),
    "server restarted": (restart_server, 1.0),
}
"""Every fault with how often it is chosen."""

OF_SERVERS, OF_FILES = (
    ("server killed", "server restarted"),
    ("disk full", "file limit", "read-only"),
)


def strike(
    study: Struck, rng: random.Random, tally: Tally, most: int, order: Sequence[str] = ()
) -> None:
    """Run a study under so many faults, or until it is finished.

    Args:
        order: The faults one after the other; else they are drawn.
    """
    struck = 0
    names = [n for n in FAULTS if n not in (OF_FILES if study.server else OF_SERVERS)]
    while struck < most:
        workers = 2 if "worker killed" in order[struck:] else rng.choice([1, 2])
        tool = study.start(workers)
        # Half of the first strikes lie in the start, half after the first trial of this run.
        _until_trial(tool) if rng.random() < 0.5 else time.sleep(rng.uniform(0.0, 1.5))
        while tool.is_running and struck < most:
            drawn = rng.choices(names, [FAULTS[n][1] for n in names])[0]
            name = order[struck] if order else drawn
            if FAULTS[name][0](study, tool, rng):
                struck += 1
                tally.faults[name] += 1
            tool.wait(rng.uniform(0.05, 2.0))
        if tool.is_running:
            tool.process.kill()
        tool.wait(END_S)
        study.check(tool)
        if tool.process.returncode == 0:
            return


def _until_trial(tool: Tool) -> None:
    until_s = time.monotonic() + END_S
    while tool.is_running and not tool.reported() and time.monotonic() < until_s:
        time.sleep(0.02)


def play(
    storage: str,
    faults: int,
    *,
    seed: int,
    per_study: int,
    tally: Tally,
    order: Sequence[str] = (),
) -> None:
    """Strike studies on a storage until there were so many faults, drawn or in an order."""
    rng = random.Random(f"{storage} {seed}")
    urls = {"journal": "journal", "sqlite": "sqlite:///{place}/k.db"}
    with ExitStack() as stack:
        server = stack.enter_context(Server(durable=True)) if storage == "postgresql" else None
        url = server.url if server else urls[storage]
        done = 0
        while done < faults:
            before = sum(tally.faults.values())
            study = Struck(before, url, server, rng, tally)
            try:
                strike(study, rng, tally, min(per_study, faults - done), order)
                study.finish()
            finally:
                study.close()
            done += sum(tally.faults.values()) - before
            print(f"{storage}: {done} of {faults} faults", file=sys.stderr, flush=True)


def main(words: Sequence[str] | None = None) -> int:
    """Strike, and print what came of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--storages", default="journal,sqlite,postgresql")
    parser.add_argument("--faults", type=int, default=300, help="over all storages")
    parser.add_argument("--per-study", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args(words)
    storages = chosen.storages.split(",")
    tally, began_s = Tally(), time.monotonic()
    for storage in storages:
        share = -(-chosen.faults // len(storages))
        play(storage, share, seed=chosen.seed, per_study=chosen.per_study, tally=tally)
    each = ", ".join(f"{name} {count}" for name, count in sorted(tally.faults.items()))
    print(
        f"{sum(tally.faults.values())} faults on {chosen.storages} in "
        f"{time.monotonic() - began_s:.0f} s ({each}); {tally.studies} studies, {tally.trials} "
        f"trials measured: {len(tally.lost)} lost, {len(tally.orphans)} orphans, "
        f"{len(tally.wrong)} wrong recommendations, {len(tally.unfinished)} unfinished, "
        f"{len(tally.untold)} undocumented ends"
    )
    failures = (*tally.wrong, *tally.lost, *tally.orphans, *tally.unfinished, *tally.untold)
    for text in failures[:MAX_SHOWN]:
        print(f"  {text}")
    return 0 if tally.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
