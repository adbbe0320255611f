"""Whether plans are right: fleets with declared scaling, planned from studies of them.

    OMP_NUM_THREADS=1 python benchmarks/plan.py [--seeds 100] [--first-seed 0]
        [--kinds offline online records extrapolated] [--out plan.jsonl]

Every case is a simulated study (declared costs, noise and contention, on a virtual clock), which is
planned by, with `--confirm`, and held against what was declared:

`offline` no limit on latency; contention and coherency drawn, a rate that needs 1 to 8 devices, all
          of one machine: right is the least number whose declared throughput has the headroom
`extrapolated` the same where 9 to 32 devices are needed, more than are ever measured together
`online` a limit on the P99 of arriving requests, devices that share nothing, 1 to 6 of them needed:
          right is the least number of which each holds its share, headroom on top, in a simulation
          of a million requests with the declared costs
`records` the same studies and rates without `--confirm`: what the lower bounds alone cost

Of the load tables the last two also print the mean latency at half load and the share of requests
over the limit at full load, by declared costs, against the single configuration.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from autotune.apps.plan import plan
from autotune.apps.plan_confirm import confirm_plan
from autotune.apps.plan_options import plan_options
from autotune.apps.run import run
from autotune.core.records import Config
from autotune.measure.capacity import Queued, devices_for
from autotune.measure.queueing import ServiceTimes
from autotune.measure.rate_target import RateGoal, limit_rate
from autotune.results.fleet import FleetPlan
from autotune.space.loader import load_space
from autotune.workloads.simulated import COST_MODELS, DEFAULT_NOISE, STALL_FACTOR, STALL_SHARE

MODEL = COST_MODELS["recommender_a3"]
HEADROOM = 0.3
LIMIT_S = 0.006
RESIDUALS = 200_000
TRUTH_N = 1_000_000  # requests simulated for the true rate
KINDS = ("offline", "online", "records", "extrapolated")

OFFLINE = """
workload:
  simulated: recommender_a3
  seed: {seed}
  scaling: {{contention: {contention:.6f}, coherency: {coherency:.6f}}}
params:
  batch_size: [128, 256]
  instance_count: [1, 2]
  batched_h2d: [true]
budget: {{trials: 4}}
trial: {{duration: 300ms, seed: {seed}}}
confirm: {{top: 1, duration: 1s}}
warm_start: false
"""
ONLINE = """
workload: {{simulated: recommender_a3, seed: {seed}}}
limits: {{latency_p99: {limit_ms}ms}}
load: {{poisson: {{rate: max}}}}
params:
  batch_size: [8, 32]
  instance_count: [1, 2]
  batched_h2d: [false, true]
  max_queue_delay: [0ms, 1ms]
budget: {{trials: 16}}
trial: {{duration: 500ms, seed: {seed}}}
confirm: {{top: 1, duration: {confirm_s}s}}
warm_start: false
"""


def true_service(config: Config) -> ServiceTimes:
    """Call times as declared."""
    rng = np.random.default_rng(12345)
    sizes = np.arange(1, config.batch_size + 1)
    parts = [config.changed(batch_size=int(size)) for size in sizes]
    medians_s = np.array([MODEL.latency_s(part) + MODEL.host_s(config) for part in parts])
    residuals = np.exp(rng.normal(0.0, DEFAULT_NOISE, RESIDUALS))
    stalled = rng.random(RESIDUALS) < STALL_SHARE
    residuals[stalled] *= rng.uniform(*STALL_FACTOR, int(stalled.sum()))
    return ServiceTimes(sizes=sizes.astype(float), medians_s=medians_s, residuals=residuals)


def true_queue(config: Config) -> Queued:
    """A configuration under arrivals as declared."""
    goal = RateGoal(
        limit_s=LIMIT_S,
        max_batch=config.batch_size,
        max_delay_s=float(config.get("max_queue_delay", 0.0)),
        servers=config.instance_count,
    )
    return Queued(service=true_service(config), goals=(goal,))


def offline_case(seed: int, folder: Path, *, counts: tuple[int, int]) -> dict[str, Any]:
    """Throughput of devices that slow each other down."""
    rng = np.random.default_rng((7, seed))
    contention, coherency = float(rng.uniform(0.0, 0.06)), float(rng.uniform(0.0, 0.0015))
    found = run(
        load_space(
            written(folder, OFFLINE.format(seed=seed, contention=contention, coherency=coherency))
        ),
        studies_dir=folder / "studies",
    )
    assert found.config is not None
    service = true_service(found.config)
    items = found.config.batch_size * found.config.instance_count
    alone = items / float(service.medians_s[-1] * service.residuals.mean())

    def capacity(n: int) -> float:
        return alone * n / (1 + contention * (n - 1) + coherency * n * (n - 1))

    low, high = (max(map(capacity, range(1, n + 1))) for n in counts)
    rate = (1 - HEADROOM) * float(rng.uniform(0.3 * low if counts[0] == 1 else low, high))
    return judged(folder, rate, capacity, confirm=True) | {"seed": seed, "sigma": contention}


def online_case(seed: int, folder: Path, *, confirm: bool) -> dict[str, Any]:
    """Requests that arrive, and a limit on their P99."""
    rng = np.random.default_rng((8, seed))
    text = ONLINE.format(seed=seed, limit_ms=1e3 * LIMIT_S, confirm_s=10 if confirm else 2)
    found = run(load_space(written(folder, text)), studies_dir=folder / "studies")
    assert found.config is not None
    queue = true_queue(found.config)
    alone = limit_rate(queue.goals[0], queue.service, count=TRUTH_N)
    rate = (1 - HEADROOM) * alone * float(rng.uniform(0.3, 6.0))
    return judged(folder, rate, lambda n: n * alone, confirm=confirm) | {"seed": seed}


def judged(folder: Path, rate: float, capacity: Any, *, confirm: bool) -> dict[str, Any]:
    """A plan against what was declared."""
    options = plan_options(rate=f"{rate}/s", headroom=f"{HEADROOM:.0%}", confirm=confirm)
    options = replace(options, studies_dir=folder / "studies")
    found = confirm_plan("case", options) if confirm else plan("case", options)
    true = devices_for(rate / (1 - HEADROOM), capacity)
    return {"true": true, "planned": found.devices, "basis": found.basis, **table_figures(found)}


def table_figures(found: FleetPlan) -> dict[str, Any]:
    """The table's and the single configuration's figures at half and full load, as declared."""
    if not found.rows:
        return {}
    half = next(row for row in found.rows if row.share == 0.5)
    chosen, full = true_queue(found.configs[half.index]), true_queue(found.config)
    ours, single = chosen.at(half.rate_per_s), full.at(half.rate_per_s)
    held = full.at(found.full_per_s)
    return {
        "half_mean_ratio": single.mean_s / ours.mean_s,
        "half_over_allowed": ours.margin,
        "full_over_allowed": held.margin,
        "switches": len(found.steps) - 1,
    }


def written(folder: Path, text: str) -> Path:
    """A space file in the case's own folder."""
    path = folder / "case.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def case(kind: str, seed: int) -> dict[str, Any]:
    """One seeded case."""
    with tempfile.TemporaryDirectory(prefix="autotune-plan-") as name:
        folder = Path(name)
        if kind == "offline":
            return offline_case(seed, folder, counts=(1, 8))
        if kind == "extrapolated":
            return offline_case(seed, folder, counts=(9, 32))
        return online_case(seed, folder, confirm=kind == "online")


def summary(kind: str, cases: list[dict[str, Any]]) -> str:
    """The figures of the README."""
    right = sum(c["planned"] == c["true"] for c in cases)
    few = sum(c["true"] is None or c["planned"] < c["true"] for c in cases)
    text = f"{kind}: {len(cases)} cases, right {right}, too few {few}, too many "
    text += str(len(cases) - right - few)
    if "half_mean_ratio" in cases[0]:
        ratios = np.array([c["half_mean_ratio"] for c in cases])
        worst = max(c["full_over_allowed"] for c in cases)
        half = max(c["half_over_allowed"] for c in cases)
        text += (
            f"; mean latency at half load: better in {(ratios > 1.001).sum()}, worse in "
            f"{(ratios < 0.999).sum()}, median {np.median(ratios):.3f} x, least "
            f"{ratios.min():.3f} x; worst share over the limit, of the allowed: "
            f"{half:.2f} at half load, {worst:.2f} at full load"
        )
    return text


def main() -> None:
    """Run the cases and print what came of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    for kind in options.kinds:
        cases, began_s = [], time.monotonic()
        for seed in range(options.first_seed, options.first_seed + options.seeds):
            cases.append(case(kind, seed))
            if options.out is not None:
                with options.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"kind": kind, **cases[-1]}) + "\n")
        print(f"{summary(kind, cases)} ({time.monotonic() - began_s:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
