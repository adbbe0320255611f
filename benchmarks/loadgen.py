"""The open loop against MLCommons LoadGen (Server scenario): the same model, step and rate.

    pip install mlcommons-loadgen     # for this table alone; nothing else needs it
    python benchmarks/loadgen.py [--pairs 6] [--duration 10] [--load 0.5] [--wait 0.004]

Both generate Poisson arrivals of their own and count latency from the scheduled arrival; one
instance serves one request at a time, since LoadGen has no dynamic batching. Runs alternate
A B B A, each in a fresh process. The model waits as for an accelerator (`--wait 0`: a multilayer
perceptron that computes). The table has the median quantiles of both, and the geometric mean
over pairs of their ratio with its 95 % interval.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import queue
import re
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from autotune.apps.resolve import Resolved, resolve
from autotune.core.clock import MonotonicClock
from autotune.core.records import Load, Plan, Samples, Window
from autotune.devices import open_device
from autotune.measure.ratio import geometric_mean, ratio_interval
from autotune.measure.tail import quantile
from autotune.space.loader import load_space
from autotune.trial.child import Instance
from autotune.trial.group import group_spec
from autotune.trial.session import Launcher, open_session

MODEL = '''\
import time

import torch


class Waiting(torch.nn.Module):
    """A small network that waits as for an accelerator."""

    def __init__(self, wait_s):
        super().__init__()
        self.layer, self.wait_s = torch.nn.Linear(256, 64), wait_s

    def forward(self, x):
        time.sleep(self.wait_s)
        return self.layer(x)


def build(wait_s):
    return Waiting(wait_s)
'''
SPACE = """\
workload:
  model: waiting.py:build
  options: {{wait_s: {wait_s}}}
  inputs: [{{name: x, shape: [batch, 256], dtype: float32}}]
params: {{batch_size: 1, cores_per_instance: 1}}
"""
MLP = "workload: {model: mlp}\nparams: {batch_size: 1, cores_per_instance: 1}\n"
LATENCIES = {"mean": "Mean latency (ns)", "P50": "50.00", "P90": "90.00", "P99": "99.00"}
QUANTILES = {"P50": 0.5, "P90": 0.9, "P99": 0.99}
WARMUP_CALLS = 500
RESULT = "latencies "  # before the child's line


def ours(
    resolved: Resolved, launcher: Launcher, load: Load, duration_s: float, seed: int
) -> Samples:
    """One run of our own."""
    plan = Plan(
        windows=(Window(duration_s=duration_s),),
        load=load,
        arrival_seed=seed,
        deadline_s=60.0 + duration_s,
    )
    space = resolved.space
    with open_session(group_spec(space.baseline, space, resolved.info), launcher) as session:
        result = session.measure(plan)
    assert isinstance(result, Samples)
    return result


def our_latencies(samples: Samples) -> dict[str, float]:
    latency_s = samples.request_latency_s()
    return {
        "mean": float(latency_s.mean()),
        **{name: quantile(latency_s, q) for name, q in QUANTILES.items()},
    }


def their_latencies(
    resolved: Resolved, space_file: Path, rate_per_s: float, duration_s: float, seed: int
) -> dict[str, float]:
    """One run of LoadGen in a process of its own, in the environment that ours have."""
    space = resolved.space
    spec = group_spec(space.baseline, space, resolved.info)
    words = [sys.executable, __file__, "--child", str(space_file)]
    words += [str(rate_per_s), str(duration_s), str(seed)]
    child = subprocess.run(
        words, env={**os.environ, **spec.environment}, capture_output=True, text=True, check=False
    )
    lines = [line for line in child.stdout.splitlines() if line.startswith(RESULT)]
    if child.returncode or not lines:
        raise SystemExit(f"LoadGen failed:\n{child.stdout[-500:]}{child.stderr[-2000:]}")
    found: dict[str, float] = json.loads(lines[-1].removeprefix(RESULT))
    return found


def serve_loadgen(space_file: str, rate_per_s: float, duration_s: float, seed: int) -> None:
    """The child: our step behind LoadGen's Server scenario."""
    import mlperf_loadgen as lg

    resolved = resolve(load_space(space_file))
    spec = group_spec(resolved.space.baseline, resolved.space, resolved.info)
    device = open_device("cpu", spec.devices[0])
    instance = Instance(spec, device, 0, alone=True, clock=MonotonicClock())
    step = instance._step.step
    for call in range(WARMUP_CALLS):
        step(call)
    gc.collect()
    gc.freeze()
    gc.disable()
    waiting: queue.SimpleQueue[int | None] = queue.SimpleQueue()

    def work() -> None:
        device.bind(spec.cores[0])
        call = WARMUP_CALLS
        while (query := waiting.get()) is not None:
            step(call)
            call += 1
            lg.QuerySamplesComplete([lg.QuerySampleResponse(query, 0, 0)])

    def issue(samples: list[lg.QuerySample]) -> None:
        for sample in samples:
            waiting.put(sample.id)

    worker = threading.Thread(target=work)
    worker.start()
    with tempfile.TemporaryDirectory() as folder:
        run_loadgen(lg, issue, folder, rate_per_s, duration_s, seed)
        waiting.put(None)
        worker.join()
        summary = Path(folder, "mlperf_log_summary.txt").read_text()
    print(RESULT + json.dumps(read_summary(summary)))


def run_loadgen(
    lg: object,
    issue: Callable[..., None],
    folder: str,
    rate_per_s: float,
    duration_s: float,
    seed: int,
) -> None:
    from typing import Any, cast

    loadgen = cast(Any, lg)
    settings = loadgen.TestSettings()
    settings.scenario = loadgen.TestScenario.Server
    settings.mode = loadgen.TestMode.PerformanceOnly
    settings.server_target_qps = rate_per_s
    settings.server_target_latency_ns = 10**9
    settings.server_target_latency_percentile = 0.99
    settings.min_duration_ms = int(1000 * duration_s)
    settings.min_query_count = 1
    settings.qsl_rng_seed = settings.sample_index_rng_seed = settings.schedule_rng_seed = seed + 1
    output = loadgen.LogOutputSettings()
    output.outdir = folder
    output.copy_summary_to_stdout = False
    logs = loadgen.LogSettings()
    logs.log_output = output
    logs.enable_trace = False
    system = loadgen.ConstructSUT(issue, lambda: None)
    library = loadgen.ConstructQSL(1024, 1024, lambda samples: None, lambda samples: None)
    loadgen.StartTestWithLogSettings(system, library, settings, logs)
    loadgen.DestroyQSL(library)
    loadgen.DestroySUT(system)


def read_summary(text: str) -> dict[str, float]:
    """Latencies in seconds from LoadGen's summary."""
    found = {}
    for name, label in LATENCIES.items():
        pattern = rf"{re.escape(label)}(?: percentile latency \(ns\))?\s*:\s*(\d+)"
        match = re.search(pattern, text)
        if match is None:
            raise SystemExit(f"no {name} in LoadGen's summary:\n{text}")
        found[name] = int(match.group(1)) * 1e-9
    return found


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        rate_per_s, duration_s = float(sys.argv[3]), float(sys.argv[4])
        serve_loadgen(sys.argv[2], rate_per_s, duration_s, int(sys.argv[5]))
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--duration", type=float, default=10.0, help="seconds of a run")
    parser.add_argument("--load", type=float, default=0.5, help="share of the closed loop's rate")
    parser.add_argument(
        "--wait", type=float, default=0.004, help="seconds the model waits per call; 0: the MLP"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, Launcher() as launcher:
        Path(folder, "waiting.py").write_text(MODEL)
        space_file = Path(folder, "space.yaml")
        space_file.write_text(SPACE.format(wait_s=arguments.wait) if arguments.wait else MLP)
        resolved = resolve(load_space(space_file))
        closed = ours(resolved, launcher, Load(), 3.0, 0)
        rate = arguments.load / float((closed.end_s - closed.start_s).mean())
        load = replace(Load(), kind="poisson", rate_per_s=rate)
        print(f"{rate:.0f}/s, {arguments.load:.0%} of what a closed loop does", flush=True)
        a: list[dict[str, float]] = []
        b: list[dict[str, float]] = []
        for pair in range(arguments.pairs):
            runs = [
                lambda pair=pair: a.append(
                    our_latencies(ours(resolved, launcher, load, arguments.duration, pair))
                ),
                lambda pair=pair: b.append(
                    their_latencies(resolved, space_file, rate, arguments.duration, pair)
                ),
            ]
            for run in runs if pair % 2 == 0 else reversed(runs):
                run()
            texts = (f"{n} {a[-1][n] * 1e6:.0f}/{b[-1][n] * 1e6:.0f} µs" for n in LATENCIES)
            print(f"pair {pair + 1}: ours/LoadGen {', '.join(texts)}", flush=True)
    for name in LATENCIES:
        ratios = [x[name] / y[name] for x, y in zip(a, b, strict=True)]
        low, high = ratio_interval(ratios, 0.95)
        mine, others = (statistics.median(run[name] for run in runs) for runs in (a, b))
        print(
            f"{name:<5} ours {mine * 1e6:7.0f} µs, LoadGen {others * 1e6:7.0f} µs, "
            f"ratio {geometric_mean(ratios):.3f} ({low:.3f} to {high:.3f})"
        )


if __name__ == "__main__":
    main()
