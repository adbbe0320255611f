"""What a competing load does to a study's recommendation.

    python benchmarks/noise.py [--runs 10] [--burners 2] [--start .5] [--limit 4ms] [--time 60]

Short studies of a small recommender on this machine's CPU. In a "loaded" one, processes that
compute without end start when half of its budget of time is gone and stay until it ends. The limit
is one that a time slice given to them breaks. What each
study recommends is then measured again with nothing beside it, in turns with what a quiet study
recommends. Wanted: a loaded study's recommendation gives at least 90 % of the throughput of the
quiet one's, or the study says that it could not decide; of quiet studies 80 % decide.

Leave the machine alone meanwhile: the quiet studies and the second measuring have to be quiet.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import autotune
from autotune.apps.resolve import Resolved, resolve
from autotune.core.errors import TrialError
from autotune.core.records import Config, TrialRecord
from autotune.measure.noise import QUIET
from autotune.measure.ratio import geometric_mean
from autotune.measure.summary import summarise
from autotune.results.study_result import StudyResult
from autotune.results.words import config_text, trust_text
from autotune.search.rounds import Contestant, Entrant, run_side_by_side
from autotune.space.loader import load_space
from autotune.trial.session import Launcher

SPACE = """\
study: {study}
workload: {{model: dlrm, options: {{size: small}}}}
device: cpu
objective: online_latency
limits: {{latency_p99: {limit}}}
params:
  batch_size: {{low: 1, high: 1024, log: true}}
  instance_count: [1, 2]
  cores_per_instance: [1]
  batched_h2d: [false, true]
baseline: {{batch_size: 1, cores_per_instance: 1}}
budget: {{trials: 8, time: {time_s}s}}
trial: {{duration: 1s, timeout: 30s, seed: {seed}}}
confirm: {{top: 2, duration: 4s}}
"""
VARIED = ("batch_size", "instance_count", "batched_h2d")
BURN = "import os; p = os.getppid()\nwhile os.getppid() == p: pass"  # none outlives this program
PAIRS = 4  # of fresh processes, in which recommendations are measured again
AGAIN_S = 1.0  # per recommendation in each of them
LEAST_SHARE = 0.9  # of the quiet recommendation's throughput
DECIDED = "confirmed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of one study.

    Attributes:
        share: Throughput of its recommendation, measured again in quiet, over that of the quiet
            reference; None if it recommended nothing.
    """

    kind: str
    seed: int
    status: str
    record: TrialRecord | None
    noisy_trials: int
    elapsed_s: float
    share: float | None = None

    @property
    def config(self) -> Config | None:
        return self.record.config if self.record else None

    @property
    def has_decided(self) -> bool:
        return self.status == DECIDED and self.record is not None

    @property
    def holds(self) -> bool:
        """True if it decided for something good enough, or said that it could not decide."""
        return not self.has_decided or (self.share is not None and self.share >= LEAST_SHARE)

    def text(self) -> str:
        """As a line."""
        share = "" if self.share is None else f"  {self.share:.2f} of the quiet one's"
        config = config_text(self.config, VARIED) if self.config else "nothing"
        trust = trust_text(self.record) if self.record else ""
        return (
            f"{self.kind:<6} seed {self.seed:<3} {self.status:<11} {config}{share}  "
            f"{self.noisy_trials} noisy trials, {self.elapsed_s:.0f} s  ({trust})"
        )


@contextmanager
def burners(count: int, after_s: float) -> Iterator[None]:
    """Processes that compute without end, from `after_s` seconds on until the end of the block."""
    started: list[subprocess.Popen[bytes]] = []

    def start() -> None:
        started.extend(subprocess.Popen([sys.executable, "-c", BURN]) for _ in range(count))

    timer = threading.Timer(after_s, start)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        for process in started:
            process.kill()
            process.wait()


def one_study(kind: str, seed: int, args: argparse.Namespace, directory: Path) -> Outcome:
    """Run a study, beside a load from some time on if it is to be."""
    name = f"{kind}-{seed}"
    path = directory / f"{name}.yaml"
    text = SPACE.format(study=name, time_s=args.time, seed=seed, limit=args.limit)
    path.write_text(text, encoding="utf-8")
    with burners(args.burners if kind == "loaded" else 0, args.start * args.time):
        result: StudyResult = autotune.run(load_space(path), studies_dir=directory)
    measured = [r.measurement for r in result.records if r.measurement is not None]
    return Outcome(
        kind=kind,
        seed=seed,
        status=result.status,
        record=result.recommendation.record,
        noisy_trials=sum(m.trust != QUIET for m in measured),
        elapsed_s=result.ending.elapsed_s,
    )


def reference_of(outcomes: Sequence[Outcome]) -> TrialRecord | None:
    """What quiet studies recommend most often, of those that decided."""
    decided = [o.record for o in outcomes if o.kind == "quiet" and o.has_decided and o.record]
    if not decided:
        return None
    config, _ = Counter(record.config for record in decided).most_common(1)[0]
    return next(record for record in decided if record.config == config)


def shares(
    records: Sequence[TrialRecord], reference: TrialRecord, resolved: Resolved
) -> dict[Config, float]:
    """Throughput of each configuration over the reference's, in alternating windows, in quiet."""
    found = {reference.config: 1.0}
    with Launcher() as launcher:
        for record in records:
            if record.config in found:
                continue
            pair = [
                Contestant(entrant=Entrant(record=r), space=resolved.space, info=resolved.info)
                for r in (record, reference)
            ]
            ratios = []
            for number in range(PAIRS):
                ours, theirs = run_side_by_side(
                    pair, launcher, number=number, duration_s=AGAIN_S, together=True
                )
                if isinstance(ours, TrialError) or isinstance(theirs, TrialError):
                    continue
                rates = [
                    summarise(result).throughput_items_per_s or 0.0 for result in (ours, theirs)
                ]
                ratios.append(rates[0] / rates[1])
            found[record.config] = geometric_mean(ratios) if ratios else 0.0
    return found


def report(outcomes: Sequence[Outcome]) -> None:
    """Print every study and the two shares that are wanted."""
    for outcome in outcomes:
        print(outcome.text())
    loaded = [o for o in outcomes if o.kind == "loaded"]
    quiet = [o for o in outcomes if o.kind == "quiet"]
    if loaded:
        unsure = sum(not o.has_decided for o in loaded)
        good = sum(o.holds for o in loaded)
        print(f"loaded: {good} of {len(loaded)} good or undecided ({unsure} of them undecided)")
    if quiet:
        print(f"quiet: {sum(o.has_decided for o in quiet)} of {len(quiet)} decided")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=10, help="studies of each kind")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="+", default=["quiet", "loaded"])
    parser.add_argument("--burners", type=int, default=2, help="competing processes")
    parser.add_argument("--limit", default="4ms", help="of the P99 latency")
    parser.add_argument("--start", type=float, default=0.5, help="of the load, share of the budget")
    parser.add_argument("--time", type=float, default=60.0, help="budget of a study, seconds")
    args = parser.parse_args()
    seeds = range(args.first_seed, args.first_seed + args.runs)
    outcomes = []
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        for seed in seeds:
            for kind in args.kinds:
                outcomes.append(one_study(kind, seed, args, directory))
                print(outcomes[-1].text(), flush=True)
        reference = reference_of(outcomes)
        if reference is not None:
            print(f"measuring again, in quiet; the reference is {config_text(reference.config)}")
            resolved = resolve(load_space(directory / f"quiet-{seeds[-1]}.yaml"))
            records = [o.record for o in outcomes if o.record is not None]
            found = shares(records, reference, resolved)
            outcomes = [replace(o, share=found[o.config] if o.config else None) for o in outcomes]
    report(outcomes)


if __name__ == "__main__":
    main()
