"""Pipelines against theory, against the model without a pipeline, and against the whole grid.

    python benchmarks/pipeline.py bubbles                  # sleeping stages; needs no real cores
    python benchmarks/pipeline.py probes                   # the search's two, against all counts
    python benchmarks/pipeline.py answers                  # loss and gradients, 7 schedules
    python benchmarks/pipeline.py losses --tries 20        # ranks killed and stopped at random
    python benchmarks/pipeline.py series FILE.csv          # published series, replayed
    python benchmarks/pipeline.py real --rounds 3          # a study against its exhaustive grid

`real` needs a quiet machine with a core for each of two ranks. The file of `series` has a row per
trial with the columns source_repo, source_path, section, device, nodes, gpus, model_size, tp, pp,
dp, num_micro_batches, global_batch, sec_per_iter, status and notes.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
import random
import signal
import socket
import statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

import autotune
from autotune.apps.resolve import Resolved, resolve
from autotune.core.errors import TrialCrashed, TrialError, TrialTimeout
from autotune.core.outcomes import Outcome
from autotune.core.pipeline import SCHEDULES
from autotune.core.records import Config, Measurement, Plan, TrialRecord, Verdict, Window
from autotune.measure.pipeline_theory import bubble_ratio
from autotune.measure.summary import summarise
from autotune.search.study_model import StudyModel
from autotune.trial.group import group_spec
from autotune.trial.session import Launcher, RanksSession, open_session

STEPS = Plan(windows=(Window(iterations=5),), deadline_s=120)
NEAR = 1.05  # of the best
NOISE = 0.03
SHARE = 0.3  # of the grid that a study may measure


def space_of(*overrides: str) -> Resolved:
    """The small shipped space on the CPU, with something changed."""
    return resolve(autotune.load_space("pipeline.yaml", ["device=cpu", *overrides]))


def sleeping(seconds_per_item: float, *overrides: str) -> Resolved:
    """64 items a step; eight layers that sleep so long per item, forward and twice backward."""
    options = f"{{layers: 8, seconds_per_item: {seconds_per_item}}}"
    return space_of(
        "workload.model=sleeping",
        f"workload.options={options}",
        "params.global_batch_size=64",
        "params.stage_split=even",
        f"params.schedule=[{', '.join(SCHEDULES)}]",
        *overrides,
    )


def measured(config: Config, resolved: Resolved, launcher: Launcher, plan: Plan) -> Measurement:
    """One configuration, in fresh processes."""
    spec = group_spec(config, resolved.space, resolved.info)
    with open_session(spec, launcher, timeout_s=120) as session:
        return summarise(session.measure(plan))


# --- theory ------------------------------------------------------------------------------------


def bubbles(arguments: argparse.Namespace) -> int:
    """Measured bubbles against their formulas."""
    resolved = sleeping(arguments.seconds_per_item)
    worst = 0.0
    with Launcher() as launcher:
        for stages in (2, 4):
            for schedule, kind in SCHEDULES.items():
                for count in (1, 2, 4, 8):
                    chunks = 1 if kind.single else 2
                    formula = bubble_ratio(schedule, stages, count, chunks)
                    if formula is None or (schedule == "1F1B" and count < stages):
                        continue
                    config = _config(stages, count, schedule=schedule)
                    found = measured(config, resolved, launcher, STEPS).pipeline
                    assert found is not None
                    off = found.bubble_ratio - formula
                    worst = max(worst, abs(off))
                    print(
                        f"S={stages} M={count} {schedule}: measured {found.bubble_ratio:.3f}, "
                        f"formula {formula:.3f}, off {off:+.3f}",
                        flush=True,
                    )
    print(f"largest difference {worst:.3f} (bar 0.05): {'held' if worst <= 0.05 else 'MISSED'}")
    return 0 if worst <= 0.05 else 1


def probes(arguments: argparse.Namespace) -> int:
    """The search's own two probes and what it tries then, against all counts; 2 and 4 stages."""
    with Launcher() as launcher:
        near = [_two_probes(s, arguments.seconds_per_item, launcher) for s in (2, 4)]
    return 0 if all(near) else 1


def _two_probes(stages: int, seconds_per_item: float, launcher: Launcher) -> bool:
    """Whether what the search tries third, after its own two probes, is near the best count."""
    resolved = sleeping(
        seconds_per_item,
        "params.schedule=GPipe",
        f"params.stage_count={stages}",
        "params.micro_batch_count=[1, 2, 4, 8, 16, 32, 64]",
    )
    space = resolved.space
    records = {
        config: TrialRecord(
            number=number,
            config=config,
            phase="search",
            verdict=Verdict(outcome=Outcome.OK),
            measurements=(measured(config, resolved, launcher, STEPS),),
        )
        for number, config in enumerate(space.configs())
    }
    model, seen = StudyModel(space, space.trial.seed), [records[space.baseline]]
    for number in (1, 2):
        proposal = model.next(seen, number=number)
        assert proposal is not None
        seen.append(records[model.config(proposal.row)])
    *first, picked = (record.config.micro_batch_count for record in seen)
    steps = {
        config.micro_batch_count: record.measurement.latency_mean_s or 0.0
        for config, record in records.items()
        if record.measurement
    }
    over = steps[picked] / min(steps.values())
    best = model.recommended(seen)
    shown = ", ".join(f"{count}: {seconds:.3f}" for count, seconds in steps.items())
    print(
        f"S={stages} steps {shown} s; probes {' and '.join(map(str, first))}, then {picked}: "
        f"{over:.3f} times the best (bar {NEAR}): {'held' if over <= NEAR else 'MISSED'}; "
        f"recommended of the three: {best.micro_batch_count if best else None}",
        flush=True,
    )
    return over <= NEAR


def _config(stages: int, count: int, schedule: str = "GPipe", items: int = 64) -> Config:
    return Config.from_dict(
        {
            "global_batch_size": items,
            "stage_count": stages,
            "micro_batch_count": count,
            "schedule": schedule,
            "stage_split": "even",
        }
    )


# --- answers -----------------------------------------------------------------------------------


def answers(arguments: argparse.Namespace) -> int:
    """Loss and gradients of every schedule, 2 and 4 ranks, against the model without them."""
    resolved = space_of()
    worst = 0.0
    with Launcher() as launcher:
        for stages in (2, 4):
            for schedule in SCHEDULES:
                config = _config(stages, 8, schedule, items=16)
                found = measured(config, resolved, launcher, STEPS).pipeline
                assert found is not None and found.loss_difference is not None
                assert found.gradient_difference is not None
                worst = max(worst, found.loss_difference, found.gradient_difference)
                print(
                    f"S={stages} {schedule}: loss {found.loss_difference:.1e}, "
                    f"gradients {found.gradient_difference:.1e}",
                    flush=True,
                )
    print(f"largest relative difference {worst:.1e} (bar 1e-5)")
    return 0 if worst <= 1e-5 else 1


# --- lost ranks --------------------------------------------------------------------------------


def losses(arguments: argparse.Namespace) -> int:
    """Kill or stop a rank at any moment; see the trial end, nothing left, the next one run."""
    resolved, rng = space_of("params.stage_count=[2, 4]"), random.Random(arguments.seed)
    good = 0
    with Launcher() as launcher:
        for number in range(arguments.tries):
            how = rng.choice((signal.SIGKILL, signal.SIGSTOP))
            stages, delay_s = rng.choice((2, 4)), rng.uniform(0.0, 3.0)
            text, is_good = _lose(resolved, launcher, stages, rng.randrange(stages), how, delay_s)
            good += is_good
            print(f"try {number}: S={stages} {how.name} after {delay_s:.2f} s: {text}", flush=True)
    print(f"{good} of {arguments.tries} as they should")
    return 0 if good == arguments.tries else 1


def _lose(
    resolved: Resolved, launcher: Launcher, stages: int, rank: int, how: signal.Signals, at_s: float
) -> tuple[str, bool]:
    limit_s = 6.0
    spec = group_spec(_config(stages, 8, items=32), resolved.space, resolved.info)
    wanted = TrialCrashed if how is signal.SIGKILL else TrialTimeout
    with open_session(spec, launcher, timeout_s=60) as session:
        assert isinstance(session, RanksSession)
        pids, port = list(session._group._pids), session.port
        session.warm_up(STEPS)
        began_s = time.monotonic()
        session.begin(Plan(windows=(Window(duration_s=300.0),), deadline_s=limit_s))
        time.sleep(at_s)
        os.kill(pids[rank], how)
        try:
            session.result()
            return "it went on", False
        except TrialError as error:
            took_s = time.monotonic() - began_s
            left = [pid for pid in pids if _runs(pid)]
            is_right = isinstance(error, wanted) and took_s <= limit_s + 5 and not left
            text = f"{type(error).__name__} after {took_s:.1f} s ({error}), {len(left)} left"
            is_right = is_right and not _listens(port) and f"rank {rank}" in str(error)
    after = measured(_config(2, 4, items=8), resolved, launcher, STEPS)
    return text, is_right and bool(after.throughput_items_per_s)


def _runs(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def _listens(port: int) -> bool:
    with socket.socket() as found:
        return found.connect_ex(("127.0.0.1", port)) == 0


# --- published series --------------------------------------------------------------------------


def series(arguments: argparse.Namespace) -> int:
    """Studies of three trials on published series, with noise; how often they end near the best."""
    good = total = 0
    for name, stages, batch, steps in _published(Path(arguments.file)):
        best, picks = min(steps.values()), Counter[int]()
        for seed in range(arguments.seeds):
            picks[_replayed(steps, stages, batch, seed)] += 1
        near = sum(n for count, n in picks.items() if steps[count] <= NEAR * best)
        good, total = good + near, total + arguments.seeds
        print(f"{name}, {stages} stages: {near} of {arguments.seeds} near; picks {dict(picks)}")
    print(f"{good} of {total} within 5 % of the best with 3 trials: {good / total:.1%} (bar 80 %)")
    return 0 if good >= 0.8 * total else 1


def _published(path: Path) -> Iterator[tuple[str, int, int, dict[int, float]]]:
    """Series of at least four micro-batch counts that differ in nothing else."""
    same = (
        "source_repo", "source_path", "section", "device", "nodes", "gpus", "model_size", "tp",
        "pp", "dp", "global_batch",
    )  # fmt: skip
    found: dict[tuple[str, ...], dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            is_whole = row["num_micro_batches"] and row["sec_per_iter"] and row["pp"]
            if row["status"] or not is_whole or int(row["pp"]) < 2 or "Zero" in row["notes"]:
                continue
            count = round(float(row["num_micro_batches"]))
            found[tuple(row[key] for key in same)][count].append(float(row["sec_per_iter"]))
    for key, steps in found.items():
        if len(steps) >= 4:
            values = dict(zip(same, key, strict=True))
            batch = int(values["global_batch"] or math.lcm(*steps))
            mean = {count: statistics.fmean(seconds) for count, seconds in steps.items()}
            yield f"{values['section']} {values['model_size']}", int(values["pp"]), batch, mean


def _replayed(steps: dict[int, float], stages: int, batch: int, seed: int) -> int:
    rows = "".join(f"{batch},{stages},{c},{batch / s},ok,1\n" for c, s in sorted(steps.items()))
    head = "global_batch_size,stage_count,micro_batch_count,throughput_items_per_s,status,cost_s\n"
    result = _study_on(head + rows, trials=3, seed=seed)
    return result.micro_batch_count


def _study_on(grid: str, *, trials: int, seed: int) -> Config:
    """What a study of so many trials recommends on a recorded grid, with noise."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "grid.csv").write_text(grid, encoding="utf-8")
        (Path(folder) / "replay.yaml").write_text(
            f"workload: {{replay: grid.csv, noise: {NOISE}, seed: {seed}}}\n"
            f"budget: {{trials: {trials}}}\nconfirm: false\nwarm_start: false\n"
            f"trial: {{seed: {seed}}}\n",
            encoding="utf-8",
        )
        result = autotune.run(Path(folder) / "replay.yaml", studies_dir=folder)
    assert result.config is not None
    return result.config


# --- a real grid -------------------------------------------------------------------------------


def real(arguments: argparse.Namespace) -> int:
    """The whole grid in rounds, then a live study of 30 % of it, and replayed ones with noise."""
    resolved = space_of("params.stage_split=[even, balanced, 3-5, 5-3]")
    configs = list(resolved.space.configs())
    plan = Plan(windows=(Window(duration_s=arguments.duration),), deadline_s=120)
    times: dict[Config, list[float]] = defaultdict(list)
    with Launcher() as launcher:
        for number in range(arguments.rounds):
            order = random.Random(number).sample(configs, len(configs))
            for config in order:
                found = measured(config, resolved, launcher, plan)
                times[config].append(found.throughput_items_per_s or 0.0)
            print(f"round {number}: {len(configs)} configurations", flush=True)
    rates = {config: statistics.median(values) for config, values in times.items()}
    best = max(rates.values())
    for config, rate in sorted(rates.items(), key=lambda item: -item[1]):
        print(f"  {rate:8.1f}/s {_named(config)}")
    trials = int(SHARE * len(configs))
    picked = _live(trials)
    print(
        f"live study of {trials} of {len(configs)}: {_named(picked)} at {rates[picked] / best:.3f}"
    )
    near = 0
    for seed in range(arguments.seeds):
        found_config = _study_on(_grid(rates), trials=trials, seed=seed)
        near += rates[_same(found_config, configs)] >= best / NEAR
    print(f"replayed with {NOISE:.0%} noise: {near} of {arguments.seeds} within 5 % of the best")
    return 0 if rates[picked] >= best / NEAR else 1


def _live(trials: int) -> Config:
    with tempfile.TemporaryDirectory() as folder:
        result = autotune.run(
            "pipeline.yaml",
            overrides=[
                "device=cpu", "params.stage_split=[even, balanced, 3-5, 5-3]", "confirm=false",
                f"budget.trials={trials}", "warm_start=false",
            ],
            studies_dir=folder,
        )  # fmt: skip
    assert result.config is not None
    return result.config


_COLUMNS = ("global_batch_size", "stage_count", "micro_batch_count", "schedule", "stage_split")


def _grid(rates: dict[Config, float]) -> str:
    lines = [",".join((*_COLUMNS, "throughput_items_per_s", "status", "cost_s"))]
    for config, rate in rates.items():
        values = config.as_dict()
        lines.append(",".join([*(str(values[c]) for c in _COLUMNS), f"{rate}", "ok", "2"]))
    return "\n".join(lines) + "\n"


def _same(found: Config, configs: Sequence[Config]) -> Config:
    values = found.as_dict()
    return next(c for c in configs if all(str(c.as_dict()[n]) == str(values[n]) for n in _COLUMNS))


def _named(config: Config) -> str:
    return " ".join(f"{name}={config.as_dict()[name]}" for name in _COLUMNS[2:])


def main(words: Sequence[str] | None = None) -> int:
    """Run one of the comparisons; 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parts = parser.add_subparsers(required=True)
    for function in (bubbles, probes, answers, losses, series, real):
        part = parts.add_parser(function.__name__)
        part.set_defaults(function=function)
        part.add_argument("--seeds", type=int, default=20)
        if function in (bubbles, probes):
            part.add_argument("--seconds-per-item", type=float, default=0.002)
        if function is losses:
            part.add_argument("--tries", type=int, default=20)
            part.add_argument("--seed", type=int, default=0)
        if function is series:
            part.add_argument("file")
        if function is real:
            part.add_argument("--rounds", type=int, default=3)
            part.add_argument("--duration", type=float, default=1.5)
    arguments = parser.parse_args(words)
    done: int = arguments.function(arguments)
    return done


if __name__ == "__main__":
    sys.exit(main())
