"""Large studies and many of them: what it costs to look at one.

    python benchmarks/load.py --trials 10000 --studies 1000

The large study is a small simulated one whose trials are repeated under other configurations. What
`show` takes, in CPU seconds of the whole command, is held against what Optuna itself takes to load
the same journal; then one more trial is asked for. Of many studies in a database one is shown.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autotune.apps.resolve import resolve
from autotune.apps.run import run
from autotune.search.conditions import fingerprint_of
from autotune.search.study import Asked, Study
from autotune.space.loader import load_space
from autotune.space.search_space import SearchSpace

SPACE = """
study: {study}
workload: {{simulated: recommender_a3}}
limits: {{latency_p99: 20ms}}
params:
  batch_size: {{low: 1, high: 4096, step: 1}}
  instance_count: [1, 2, 3, 4]
budget: {{trials: {trials}}}
trial: {{duration: 500ms}}
sampler: random
confirm: false
storage: {storage}
"""
OPTUNA = """
import sys, optuna
from optuna.storages.journal import JournalFileBackend, JournalStorage
storage = JournalStorage(JournalFileBackend(sys.argv[1]))
study = optuna.load_study(study_name=sys.argv[2], storage=storage)
print(len(study.get_trials(deepcopy=False)))
"""
SEED_TRIALS = 40


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a command took: CPU seconds, of all its runs the median, and its largest memory."""

    cpu_s: float
    peak_bytes: int


def cost_of(words: Sequence[str], place: Path, repeats: int) -> Cost:
    """Run a command so often.

    Raises:
        RuntimeError: It failed.
    """
    times_s, peak = [], 0
    for _ in range(repeats):
        process = subprocess.Popen(words, cwd=place, stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise RuntimeError(f"{words}: exit status {process.returncode}")
        times_s.append(usage.ru_utime + usage.ru_stime)
        peak = max(peak, usage.ru_maxrss * 1024)
    return Cost(cpu_s=statistics.median(times_s), peak_bytes=peak)


def small_study(place: Path, name: str, storage: str, trials: int) -> SearchSpace:
    """Run a study."""
    file = place / f"{name}.yaml"
    file.write_text(SPACE.format(study=name, trials=trials, storage=storage))
    space = load_space(file)
    run(space, studies_dir=place / "studies")
    return space


def multiply(journal: Path, count: int, batches: int) -> None:
    """Repeat a journal's trials, each time in another configuration, until there are so many."""
    entries = [json.loads(line) for line in journal.read_text().splitlines()]
    trials: dict[int, list[dict[str, Any]]] = {}
    for entry in entries:
        if entry["op_code"] == 4:  # a trial is made: its number is how many were made before
            trials[len(trials)] = [entry]
        elif "trial_id" in entry:
            trials[entry["trial_id"]].append(entry)
    with journal.open("a") as file:
        for number in range(len(trials), count):
            config = {
                "batch_size": 1 + number % batches,
                "instance_count": 1 + number // batches % 4,
            }
            for entry in trials[number % len(trials)]:
                file.write(json.dumps(_changed(entry, number, config)) + "\n")


def _changed(entry: dict[str, Any], number: int, config: dict[str, int]) -> dict[str, Any]:
    """An operation as it would be of another trial."""
    if entry["op_code"] == 4:
        attributes = {**entry["user_attrs"], "config": {**entry["user_attrs"]["config"], **config}}
        params = dict(entry["params"])
        params["batch_size"] = config["batch_size"]
        return {**entry, "params": params, "user_attrs": attributes}
    changed = {**entry, "trial_id": number}
    record = entry.get("user_attr", {}).get("record")
    if record is not None:
        own = {**record, "number": number, "config": {**record["config"], **config}}
        changed["user_attr"] = {"record": own}
    return changed


def seconds(action: Callable[[], object]) -> float:
    """CPU seconds of this process."""
    began_s = time.process_time()
    action()
    return time.process_time() - began_s


def large_study(place: Path, trials: int, repeats: int) -> bool:
    """Make it, look at it, go on with it; whether `show` stays within its bars."""
    space = small_study(place, "large", "journal", SEED_TRIALS)
    directory = place / "studies" / "large"
    journal = directory / "study.journal"
    multiply(journal, trials, 4096)
    own = cost_of([sys.executable, "-c", OPTUNA, str(journal), "large"], place, repeats)
    shown = cost_of([sys.executable, "-m", "autotune", "show", "large"], place, repeats)
    ratio = shown.cpu_s / own.cpu_s
    print(
        f"{trials} trials, {journal.stat().st_size / 2**20:.0f} MiB: Optuna's load "
        f"{own.cpu_s:.2f} s CPU, {own.peak_bytes / 1e6:.0f} MB; show {shown.cpu_s:.2f} s, "
        f"{ratio:.2f} times, {shown.peak_bytes / 1e6:.0f} MB",
        flush=True,
    )
    more = resolve(replace(space, budget=replace(space.budget, trials=trials + 10)))
    study = Study.open(more.space, directory, fingerprint=fingerprint_of(more.space, more.info))

    def ask() -> None:
        asked = study.ask()
        assert isinstance(asked, Asked)
        study.abandon()

    first_s, next_s = seconds(ask), statistics.median(seconds(ask) for _ in range(3))
    print(f"  another trial asked for in {next_s:.2f} s CPU, the first in {first_s:.2f} s")
    return ratio <= 1.5 and shown.peak_bytes <= 500e6


def many_studies(place: Path, count: int, repeats: int) -> None:
    """Fill a database with studies, show one of them."""
    from optuna.storages import RDBStorage
    from optuna.study import StudyDirection

    url = f"sqlite:///{place}/many.db"
    small_study(place, "one", url, 10)
    words = [sys.executable, "-m", "autotune", "show", "one", "--storage", url]
    alone = cost_of(words, place, repeats)
    storage = RDBStorage(url)
    for number in range(count - 1):
        storage.create_new_study([StudyDirection.MAXIMIZE], f"study {number}")
        (place / "studies" / f"study {number}").mkdir()
    among = cost_of(words, place, repeats)
    print(f"{count} studies: one is shown in {among.cpu_s:.2f} s CPU, alone in {alone.cpu_s:.2f} s")


def main(words: Sequence[str] | None = None) -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--studies", type=int, default=1_000)
    parser.add_argument("--repeats", type=int, default=3)
    chosen = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as name:
        holds = large_study(Path(name), chosen.trials, chosen.repeats)
        many_studies(Path(name), chosen.studies, chosen.repeats)
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
