"""Workers on one study: how the rate of trials rises with their number, and that each has a device.

    python benchmarks/workers.py --workers 1,2,4,8 --storages journal,postgresql

    python benchmarks/workers.py --workers 1,2 --dask

A trial is a command that sleeps, on declared devices: so what is seen is the tool's own cost, of
which all workers share this machine's cores. With `--dask` they are the tasks of a scheduler with
so many Dask workers, each a process of this machine. The rate is that of the time in which all of
them run, from the last one's first trial to the first one's last; starting the processes is told
beside it.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import resource
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from postgresql import Server

from autotune.apps.run import run
from autotune.core.outcomes import Outcome
from autotune.core.records import TrialRecord
from autotune.space.loader import load_space

SPACE = """
study: {study}
workload:
  command: [sh, -c, "sleep {seconds}; echo '{{\\"throughput\\": {{batch_size}}}}'"]
  metrics: {{throughput_items_per_s: throughput}}
device: simulated:1-{workers}
params: {{batch_size: {{low: 1, high: 4096, step: 1}}, instance_count: [1, 2, 3, 4]}}
budget: {{trials: {trials}}}
trial: {{timeout: 60s}}
sampler: random
confirm: false
storage: {storage}
"""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What a study of so many workers came to.

    Attributes:
        rate_per_s: Trials completed per second while all workers run.
        start_s: Until all workers measure. cpu_s: Of all processes, per trial.
        twice: Configurations tried more than once. overlaps: Trials on one device at one time.
    """

    workers: int
    rate_per_s: float
    start_s: float
    cpu_s: float
    twice: int
    overlaps: int
    devices: int
    processes: int


@contextlib.contextmanager
def dask_cluster(workers: int) -> Iterator[str]:
    """The address of a scheduler with so many workers, each a process."""
    from distributed import LocalCluster

    with LocalCluster(
        n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=None
    ) as cluster:
        yield cluster.scheduler_address


def play(workers: int, storage: str, seconds: float, each: int, *, by_dask: bool = False) -> Seen:
    """Run a study with so many trials for each worker."""
    trials = workers * each
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        file = place / "space.yaml"
        text = SPACE.format(
            study=f"w{workers}-{os.getpid()}",
            seconds=seconds,
            workers=workers,
            trials=trials,
            storage=storage,
        )
        # The baseline's placeholder instance_count would make it no parameter of the command.
        file.write_text(text.replace("sleep", ": {instance_count}; sleep"))
        cpu_s = _cpu_s()
        with dask_cluster(workers) if by_dask else contextlib.nullcontext() as address:
            began_s = time.time()
            result = run(
                load_space(file), studies_dir=place / "studies", workers=workers, dask=address
            )
        cpu_s = _cpu_s() - cpu_s
    records = result.records
    assert all(r.verdict.outcome is Outcome.OK for r in records), "a trial failed"
    assert len(records) == trials
    return seen(records, began_s, cpu_s)


def seen(records: Sequence[TrialRecord], began_s: float, cpu_s: float) -> Seen:
    """Figures of a finished study."""
    by_worker: dict[str, list[TrialRecord]] = {}
    for record in sorted(records, key=lambda r: r.started_at_s):
        by_worker.setdefault(record.worker, []).append(record)
    ready_s = max(rows[0].started_at_s for rows in by_worker.values())
    until_s = min(rows[-1].started_at_s for rows in by_worker.values())
    # From one start of a trial to the next, all that a trial costs is between them.
    done = sum(ready_s < r.started_at_s <= until_s for r in records)
    overlaps = sum(
        a.started_at_s + a.duration_s > b.started_at_s
        for rows in _by_device(records).values()
        for a, b in itertools.pairwise(rows)
    )
    return Seen(
        workers=len(by_worker),
        rate_per_s=done / (until_s - ready_s),
        start_s=ready_s - began_s,
        cpu_s=cpu_s / len(records),
        twice=sum(n - 1 for n in Counter(r.config for r in records).values()),
        overlaps=overlaps,
        devices=len(_by_device(records)),
        processes=len({r.worker.split()[0] for r in records}),
    )


def _by_device(records: Sequence[TrialRecord]) -> dict[str, list[TrialRecord]]:
    found: dict[str, list[TrialRecord]] = {}
    for record in sorted(records, key=lambda r: r.started_at_s):
        found.setdefault(record.worker.split()[1], []).append(record)
    return found


def _cpu_s() -> float:
    """CPU seconds of this process and of all that it has waited for."""
    both = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(u.ru_utime + u.ru_stime for u in map(resource.getrusage, both))


def main(words: Sequence[str] | None = None) -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workers", default="1,2,4,8")
    parser.add_argument("--storages", default="journal,postgresql", help="or a database URL")
    parser.add_argument("--seconds", type=float, default=2.0, help="that a trial sleeps")
    parser.add_argument("--each", type=int, default=15, help="trials of each worker")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--dask", action="store_true", help="let Dask run the workers")
    chosen = parser.parse_args(words)
    counts = [int(word) for word in chosen.workers.split(",")]
    misses = 0
    for kind in chosen.storages.split(","):
        with ExitStack() as stack:
            url = kind
            if kind == "postgresql":
                url = stack.enter_context(Server(durable=True)).url
            alone = 0.0
            for count in counts:
                rows = [
                    play(count, url, chosen.seconds, chosen.each, by_dask=chosen.dask)
                    for _ in range(chosen.repeats)
                ]
                rate = statistics.median(row.rate_per_s for row in rows)
                alone = alone or rate / count
                share = rate / count / alone
                row = rows[-1]
                is_exclusive = all(r.devices == r.processes == count for r in rows)
                clean = is_exclusive and not sum(r.twice + r.overlaps for r in rows)
                misses += share < 0.9 or not clean
                print(
                    f"{kind} {count} workers: {rate:.3f} trials/s, {share:.3f} x {count} x one's, "
                    f"all running after {row.start_s:.1f} s; {row.cpu_s:.2f} s CPU per trial; "
                    f"{row.devices} devices, {row.processes} processes, {row.overlaps} overlaps, "
                    f"{row.twice} tried twice",
                    flush=True,
                )
    return 1 if misses else 0


if __name__ == "__main__":
    sys.exit(main())
