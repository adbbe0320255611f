"""What tuning brings: against the defaults, against the best batch size alone, against a peer.

    python benchmarks/gain.py studies [--models dlrm minilm ...] [--runtimes torch onnxruntime
        openvino any] [--time 180] [--out gain.jsonl]
    python benchmarks/gain.py peer [--models mlp minilm resnet50 yolov5s] [--pairs 8]
        [--window 10] [--time 180] [--out peer.jsonl]
    python benchmarks/gain.py limits [--models resnet50 bert_base yolov5s] [--runtimes openvino]
        [--slack 2] [--window 20] [--time 170] [--out limits.jsonl]

`studies` runs one study without a latency limit per model and runtime ("any": the runtime is
searched) and prints its proven gain over batch 1 with one instance on all cores, and over the best
configuration that differs in batch size alone.

`peer` tunes each model on OpenVINO, then runs the winner and OpenVINO's own
`benchmark_app -hint throughput` on the same file at f32, turn about (A B B A), every run a fresh
process; the ratio's interval is over the pairs.

`limits` tunes slow models, of which a short study sees few calls, under a P99 limit of `--slack`
times the baseline's median, then measures what was recommended once more in a fresh process and
judges it anew. `confirmed` and then found broken is a wrong answer; `undecided` must say how many
seconds would settle it.

All need the machine for themselves.

Results come one line per model, as they are there; with --out as JSON lines too.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from autotune.apps.run import run
from autotune.core.records import Config, Plan, Samples, Window
from autotune.core.units import format_duration
from autotune.devices import find_device
from autotune.measure.judge import judge
from autotune.measure.ratio import geometric_mean, ratio_interval
from autotune.measure.summary import summarise
from autotune.results.study_result import StudyResult
from autotune.results.words import config_text
from autotune.space.loader import load_space
from autotune.space.search_space import SearchSpace
from autotune.trial.group import group_spec
from autotune.trial.session import Launcher, open_session
from autotune.workloads import exported, prepare_workload

RUNTIMES = ("torch", "onnxruntime", "openvino")
ANY = "any"
LADDERS = {
    "mlp": "{low: 1, high: 2048, log: true}",
    "dlrm": "{low: 1, high: 2048, log: true}",
    "minilm": "{low: 1, high: 64, log: true}",
    "resnet50": "[1, 2, 4, 8, 16]",
    "bert_base": "[1, 2, 4, 8]",
    "yolov5s": "[1, 2, 4, 8]",
}
SLOW = ("resnet50", "bert_base", "yolov5s")
PEER_MODELS = ("mlp", "minilm", "resnet50", "yolov5s")
PEER_LIMIT_S = 120.0  # beyond its window: reading, compiling and filling
BASELINE_S = 5.0
CHECK_ALPHA = 0.01
DEFAULTS = {"studies": (180.0, 0.0), "peer": (180.0, 10.0), "limits": (170.0, 20.0)}
"""Seconds of each study and of each window of its own, by what is run."""


def space_of(
    model: str, runtimes: tuple[str, ...], time_s: float, p99_s: float | None = None
) -> SearchSpace:
    """A study's space: throughput on all of the cores, without a limit or with one on the P99."""
    cores = find_device("cpu").core_count
    trial_s, round_s = (4, 12) if model in SLOW else (1, 6)
    top = 2 if p99_s is None else 1
    streams = "\n  openvino.streams: [1, 2]" if "openvino" in runtimes else ""
    text = f"""
study: gain-{model}-{"-".join(runtimes)}
workload: {{model: {model}}}
device: cpu
params:
  runtime: [{", ".join(runtimes)}]
  batch_size: {LADDERS[model]}
  instance_count: [1, {cores}]
  cores_per_instance: [1, {cores}]
  micro_batch_count: [1, 2]
  batched_h2d: [false, true]{streams}
baseline: {{batch_size: 1, instance_count: 1, cores_per_instance: {cores}, runtime: {runtimes[0]}}}
budget: {{trials: 200, time: {time_s:g}s}}
trial: {{duration: {trial_s}s, timeout: 60s}}
confirm: {{top: {top}, duration: {round_s}s, alpha: 0.05}}
"""
    if p99_s is not None:
        text += f"limits: {{latency_p99: {1e3 * p99_s:.1f}ms}}\n"
    with tempfile.TemporaryDirectory() as place:
        file = Path(place, "gain.yaml")
        file.write_text(text, encoding="utf-8")
        return load_space(file)


def tuned(space: SearchSpace) -> tuple[StudyResult, float]:
    """The study's result, and the seconds it took."""
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        result = run(space, studies_dir=Path(place))
    return result, time.monotonic() - began_s


def studies(models: list[str], runtimes: list[str], time_s: float) -> Iterator[dict[str, Any]]:
    for model in models:
        for runtime in runtimes:
            result, elapsed_s = tuned(space_of(model, searched(runtime), time_s))
            yield outcome(model, runtime, result, elapsed_s)


def searched(runtime: str) -> tuple[str, ...]:
    return RUNTIMES if runtime == ANY else (runtime,)


def outcome(model: str, runtime: str, result: StudyResult, elapsed_s: float) -> dict[str, Any]:
    """What a study found, as a line of the results."""
    found = result.recommendation
    both = {"over_default": found.against_baseline, "over_batch_only": found.against_batch_only}
    return {
        "model": model,
        "runtime": runtime,
        "status": found.status,
        **{
            name: None
            if comparison is None
            else {"ratio": comparison.ratio, "interval": comparison.ratio_ci}
            for name, comparison in both.items()
        },
        "config": None if result.config is None else config_text(result.config),
        "trials": result.trial_count,
        "elapsed_s": elapsed_s,
        "why": "; ".join(found.reasons),
    }


# --- slow models under a limit on the tail -----------------------------------------------------


def limits(
    models: list[str], runtimes: list[str], slack: float, window_s: float, time_s: float
) -> Iterator[dict[str, Any]]:
    for model in models:
        for runtime in runtimes:
            free = space_of(model, searched(runtime), time_s)
            typical_s = summarise(measured(free, free.baseline, BASELINE_S)).latency_p50_s
            assert typical_s is not None, "a session that ends well has latencies"
            space = space_of(model, searched(runtime), time_s, slack * typical_s)
            result, elapsed_s = tuned(space)
            record = result.recommendation.record
            yield {
                **outcome(model, runtime, result, elapsed_s),
                "p99_limit_s": slack * typical_s,
                "needed_s": None if record is None else record.verdict.needed_s,
                "again": None if record is None else judged(space, record.config, window_s),
            }


def judged(space: SearchSpace, config: Config, window_s: float) -> str:
    """How a configuration's limit fares in a fresh session: ok, over_limit or undecided."""
    samples = measured(space, config, window_s)
    verdict = judge(samples, summarise(samples), space.objective, alpha=CHECK_ALPHA)
    return str(verdict.outcome.value)


# --- side by side with benchmark_app -----------------------------------------------------------


def peer(models: list[str], pairs: int, window_s: float, time_s: float) -> Iterator[dict[str, Any]]:
    for model in models:
        space = space_of(model, ("openvino",), time_s)
        result, elapsed_s = tuned(space)
        if result.config is None:
            raise SystemExit(f"{model}: nothing could be measured within {time_s:g} s")
        spec = prepare_workload(space.workload, space.trial.seed)
        ratios, rates, ready_s = [], [], []
        for pair in range(pairs):
            order = (True, False) if pair % 2 == 0 else (False, True)
            found: dict[bool, float] = {}
            for is_ours in order:
                if is_ours:
                    found[True] = ours(space, result.config, window_s)
                else:
                    found[False], beyond_s = theirs(exported.model_of(spec), window_s)
                    ready_s.append(beyond_s)
            rates.append((found[True], found[False]))
            ratios.append(found[True] / found[False])
            print(f"  {model}: pair {pair + 1} of {pairs}: {ratios[-1]:.3f}", file=sys.stderr)
        yield {
            "model": model,
            "ratio": geometric_mean(ratios),
            "interval": ratio_interval(ratios, 0.95),
            "ours_items_per_s": geometric_mean([one for one, _ in rates]),
            "theirs_items_per_s": geometric_mean([other for _, other in rates]),
            "config": config_text(result.config),
            "tuning_s": elapsed_s,
            "theirs_ready_s": statistics.median(ready_s),
        }


def ours(space: SearchSpace, config: Config, window_s: float) -> float:
    """Items per second of the winner in a fresh session."""
    rate = summarise(measured(space, config, window_s)).throughput_items_per_s
    assert rate is not None
    return rate


def measured(space: SearchSpace, config: Config, window_s: float) -> Samples:
    """A window of a configuration in a fresh session."""
    plan = Plan(windows=(Window(duration_s=window_s),), deadline_s=window_s + PEER_LIMIT_S)
    with Launcher() as launcher:
        spec = group_spec(config, space, find_device("cpu"))
        with open_session(spec, launcher) as session:
            samples = session.measure(plan)
    assert isinstance(samples, Samples)
    return samples


def theirs(model: exported.Model, window_s: float) -> tuple[float, float]:
    """Items per second that benchmark_app reports for the same file; seconds beyond its window."""
    program = (
        shutil.which("benchmark_app", path=str(Path(sys.executable).parent)) or "benchmark_app"
    )
    shapes = ",".join(f"{item.name}[{','.join(map(str, item.sizes(1)))}]" for item in model.inputs)
    began_s = time.monotonic()
    done = subprocess.run(
        [program, "-m", str(model.path), "-d", "CPU", "-hint", "throughput", "-infer_precision",
         "f32", "-t", f"{max(1, round(window_s))}", "-shape", shapes],
        capture_output=True, text=True, timeout=window_s + PEER_LIMIT_S, check=False,
    )  # fmt: skip
    found = re.search(r"Throughput:\s+([\d.]+) FPS", done.stdout)
    if found is None:
        raise SystemExit(f"benchmark_app failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return float(found[1]), time.monotonic() - began_s - window_s


# --- printing ----------------------------------------------------------------------------------


def line(record: dict[str, Any]) -> str:
    if "ours_items_per_s" in record:
        low, high = record["interval"]
        return (
            f"{record['model']:<10} {record['ratio']:.3f} [{low:.3f}, {high:.3f}]  "
            f"{record['ours_items_per_s']:,.1f} against {record['theirs_items_per_s']:,.1f}/s, "
            f"tuned in {format_duration(record['tuning_s'])} against "
            f"{format_duration(record['theirs_ready_s'])}  {record['config']}"
        )
    gains = []
    for name in ("over_default", "over_batch_only"):
        found = record[name]
        if found is None:
            gains.append(f"{name} none")
        else:
            low, high = found["interval"] or (float("nan"),) * 2
            gains.append(f"{name} {found['ratio']:.2f} [{low:.2f}, {high:.2f}]")
    told = (
        f"{record['model']:<10} {record['runtime']:<12} {record['status']:<12} "
        f"{'  '.join(gains)}  {record['trials']} trials in {format_duration(record['elapsed_s'])}  "
        f"{record['config']}"
    )
    if "p99_limit_s" not in record:
        return told
    limit = f"P99 up to {format_duration(record['p99_limit_s'])}, measured again: {record['again']}"
    return f"{told}\n  {limit}; {record['why'] or 'nothing is left open'}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("what", choices=DEFAULTS)
    parser.add_argument("--models", nargs="+", choices=LADDERS)
    parser.add_argument("--runtimes", nargs="+", choices=(*RUNTIMES, ANY))
    parser.add_argument("--time", type=float, help="seconds of each study")
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument(
        "--window", type=float, help="seconds of each run of a pair, or of the check"
    )
    parser.add_argument("--slack", type=float, default=2.0, help="P99 limit over baseline's median")
    parser.add_argument("--out", type=Path, help="file to which JSON lines are appended")
    args = parser.parse_args()
    time_s, window_s = DEFAULTS[args.what]
    time_s, window_s = args.time or time_s, args.window or window_s
    if args.what == "studies":
        runtimes = args.runtimes or [*RUNTIMES, ANY]
        records = studies(args.models or list(LADDERS), runtimes, time_s)
    elif args.what == "peer":
        records = peer(args.models or list(PEER_MODELS), args.pairs, window_s, time_s)
    else:
        runtimes = args.runtimes or ["openvino"]
        records = limits(args.models or list(SLOW), runtimes, args.slack, window_s, time_s)
    for record in records:
        print(line(record), flush=True)
        if args.out is not None:
            with args.out.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
