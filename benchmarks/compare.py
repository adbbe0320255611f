"""How often the gate of `autotune compare` alarms falsely, and how often it finds a slowdown.

    OMP_NUM_THREADS=1 python benchmarks/compare.py [--repeats 1000] [--seed 0] [--slowdown 0.05]
    python benchmarks/compare.py --real 10 [--wait 0.004]       # on a real model

Simulated: whole comparisons on machines of declared drift and noise. The windows' times, the loop
over pairs, the test and its looks are the tool's own; only the rates in the windows are drawn.
Real: a torch model in real processes, with an option of its factory that makes it slower by a
declared share. It computes for some tenths of a millisecond and waits, as for an accelerator.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from autotune.core.outcomes import Outcome
from autotune.core.records import Config, Measurement, Reported, Result, TrialRecord, Verdict
from autotune.devices.base import DeviceInfo
from autotune.measure.paired import GATE_ALPHA, LOOKS, RatioTest, Rule, judge_pairs
from autotune.search import pairs as pairs_module
from autotune.search.pairs import Pairs, measure_pairs
from autotune.search.rounds import Contestant, Entrant, alternating_windows
from autotune.space.loader import load_text

DURATION_S = 20 / LOOKS[0]
OPEN_S = 3.0  # between two pairs
STEP_S = 0.002


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """How rates vary; all shares are of the rate.

    Attributes:
        process: Standard deviation of what a process draws once and keeps.
        slow_share, slow_by: Processes that are slow for their whole life, and by how much.
        wander, wander_s: Standard deviation and time constant of the machine's own speed.
        drift_per_min: Steady loss of speed.
        window: Standard deviation of a window on its own.
        spike_share, spike: Windows that something disturbs; their rate is divided by a number
            from 1.1 to `spike`.
        gross_share: Pairs of which one side is disturbed throughout, by 20 to 450 %.
    """

    process: float = 0.01
    slow_share: float = 0.0
    slow_by: float = 0.04
    wander: float = 0.03
    wander_s: float = 20.0
    drift_per_min: float = 0.02
    window: float = 0.02
    spike_share: float = 0.03
    spike: float = 2.5
    gross_share: float = 0.0


MACHINES = {
    "quiet": Machine(process=0.003, wander=0.01, spike_share=0.0, window=0.01),
    "shared": Machine(),
    "drifting": Machine(wander=0.08, drift_per_min=0.1),
    "bimodal": Machine(process=0.003, slow_share=0.3, window=0.01),
    "rough": Machine(process=0.02, slow_share=0.1, wander=0.06, spike_share=0.05),
    "spiky": Machine(spike_share=0.08),
    "stalling": Machine(gross_share=0.06),
}


class Simulation:
    """Stands in for the rounds of fresh processes."""

    def __init__(self, machine: Machine, slowdown: float, rng: np.random.Generator) -> None:
        self._machine, self._rng = machine, rng
        self._offsets = (math.log1p(-slowdown), 0.0)
        self._now_s = 0.0
        self._wander = 0.0

    def run_side_by_side(
        self, contestants: Sequence[Contestant], launcher: object, **options: Any
    ) -> list[Result]:
        order = [0, 1] if options["number"] % 2 == 0 else [1, 0]
        entrants = [contestants[index].entrant for index in order]
        windows, ends_s = alternating_windows(entrants, options["duration_s"], self._now_s)
        slots = sorted(
            (w.start_s or 0.0, side) for side, own in zip(order, windows, strict=True) for w in own
        )
        kept = [self._offsets[side] + self._process() for side in (0, 1)]
        rates: tuple[list[float], list[float]] = ([], [])
        for start_s, side in slots:
            rates[side].append(math.exp(self._machine_log(start_s) + kept[side] + self._window()))
        self._now_s = ends_s + OPEN_S
        if self._rng.random() < self._machine.gross_share:
            side = int(self._rng.integers(2))
            factor = math.exp(self._rng.uniform(0.2, 1.5))
            rates[side][:] = [rate / factor for rate in rates[side]]
        return [
            Reported(metrics={"throughput_items_per_s": float(np.mean(rates[side]))})
            for side in (0, 1)
        ]

    def _process(self) -> float:
        m, rng = self._machine, self._rng
        slow = -m.slow_by if rng.random() < m.slow_share else 0.0
        return float(m.process * rng.standard_normal()) + slow

    def _window(self) -> float:
        m, rng = self._machine, self._rng
        spike = -math.log(rng.uniform(1.1, m.spike)) if rng.random() < m.spike_share else 0.0
        return float(m.window * rng.standard_normal()) + spike

    def _machine_log(self, at_s: float) -> float:
        m, passed_s = self._machine, max(at_s - self._now_s, 0.0)
        keep = math.exp(-passed_s / m.wander_s)
        fresh = m.wander * math.sqrt(1 - keep * keep) * self._rng.standard_normal()
        self._wander = keep * self._wander + float(fresh)
        self._now_s = at_s
        return self._wander - m.drift_per_min / 60 * at_s


class NoClock:
    """A launcher's clock that stands still: the number of pairs is the bound."""

    def now_s(self) -> float:
        return 0.0


def simulate(machine: Machine, slowdown: float, seed: int) -> tuple[Pairs, RatioTest]:
    """One comparison under the gate."""
    simulation = Simulation(machine, slowdown, np.random.default_rng([seed, 7]))
    rule = gate_rule()
    with mock.patch.object(pairs_module, "run_side_by_side", simulation.run_side_by_side):
        pairs = measure_pairs(
            contestants(), NoClock(), rule, metric="throughput", duration_s=DURATION_S
        )  # type: ignore[arg-type]
    test = judge_pairs(pairs.log_ratios, rule)
    assert test is not None, "there are pairs"
    return pairs, test


def gate_rule(tolerance: float = 0.05) -> Rule:
    """The rule of `compare --fresh --gate`."""
    return Rule(alpha=GATE_ALPHA, tolerance=tolerance, gate=True, looks=len(LOOKS))


def contestants() -> tuple[Contestant, Contestant]:
    """Two sides with calls of 2 ms; of the space it matters that they may run side by side."""
    record = TrialRecord(
        number=0,
        config=Config(),
        phase="search",
        verdict=Verdict(outcome=Outcome.OK),
        measurements=(Measurement(latency_p99_s=STEP_S),),
    )
    info = DeviceInfo(name="simulated", kind="simulated", description="", core_count=1)
    space = load_text(
        "workload: {simulated: recommender_a3}\nparams: {batch_size: [1]}\n", "s.yaml"
    )
    side = Contestant(entrant=Entrant(record=record), space=space, info=info)
    return side, replace(side)


def verdict(test: RatioTest) -> str:
    if test.is_regression:
        return "alarm"
    return "passed" if test.excluded else "undecided"


def table(repeats: int, seed: int, slowdown: float) -> None:
    print(f"{repeats} comparisons each; slowdown {slowdown:.1%}, tolerance 5 %, median pairs")
    print(
        f"{'machine':<10} {'no change: alarms':>18} {'pairs':>6} "
        f"{'found':>8} {'missed':>7} {'pairs':>6}"
    )
    for name, machine in MACHINES.items():
        row = []
        for change in (0.0, slowdown):
            found: Counter[str] = Counter()
            counts = []
            for number in range(repeats):
                pairs, test = simulate(machine, change, seed + number)
                found[verdict(test)] += 1
                counts.append(len(pairs.log_ratios))
            row.append((found, float(np.median(counts))))
        (none, few), (slow, many) = row
        print(
            f"{name:<10} {none['alarm']:>18} {few:>6.0f} {slow['alarm'] / repeats:>8.1%} "
            f"{slow['passed'] / repeats:>7.1%} {many:>6.0f}",
            flush=True,
        )


MODEL = '''\
import time

import torch


class Ranker(torch.nn.Module):
    """A small network that waits as for an accelerator, and can be told to take longer."""

    def __init__(self, wait_s, slower_by):
        super().__init__()
        self.layers = torch.nn.Sequential(
            *(torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU()) for _ in range(2))
        )
        self.wait_s, self.slower_by = wait_s, slower_by

    def forward(self, x):
        began_s = time.perf_counter()
        x = self.layers(x)
        time.sleep(self.wait_s)
        until_s = time.perf_counter() + self.slower_by * (time.perf_counter() - began_s)
        if self.wait_s:
            time.sleep(max(until_s - time.perf_counter(), 0.0))
        while time.perf_counter() < until_s:
            pass
        return x


def build(wait_s=0.0, slower_by=0.0):
    return Ranker(wait_s, slower_by)
'''
SPACE = """\
workload:
  model: ranker.py:build
  options: {{wait_s: {wait_s}, slower_by: 0.0}}
  inputs: [{{name: x, shape: [batch, 512], dtype: float32}}]
params: {{batch_size: 64, cores_per_instance: 1}}
confirm: {{duration: 8s}}
"""


def real(repeats: int, slowdown: float, wait_s: float) -> None:
    """Gates on a real model, without and with a slowdown, in turns."""
    counts: dict[bool, Counter[str]] = {False: Counter(), True: Counter()}
    share = slowdown / (1 - slowdown)  # of the time, for that loss of throughput
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "ranker.py").write_text(MODEL)
        Path(folder, "ranker.yaml").write_text(SPACE.format(wait_s=wait_s))
        for number in range(repeats):
            for slow in (False, True):
                a = f"ranker.yaml#workload.options.slower_by={share if slow else 0.0}"
                words = ["compare", a, "ranker.yaml", "--fresh", "--gate", "--json"]
                run = subprocess.run(
                    [sys.executable, "-m", "autotune", *words],
                    cwd=folder,
                    capture_output=True,
                    text=True,
                    check=False,
                )
                if run.returncode not in (0, 1):
                    raise SystemExit(run.stderr)
                data = json.loads(run.stdout)
                counts[slow][data["gate"]["status"]] += 1
                low, high = data["speed_ratio_ci95"]
                print(
                    f"{number} {'slower' if slow else 'same':<6} {data['gate']['status']:<9} "
                    f"ratio {data['speed_ratio']:.4f} ({low:.4f} to {high:.4f}), "
                    f"{data['pairs']} pairs, {data['elapsed_s']:.0f} s",
                    flush=True,
                )
    print(f"same: {dict(counts[False])}; slower by {slowdown:.1%}: {dict(counts[True])}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--repeats", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--slowdown", type=float, default=0.05)
    parser.add_argument("--real", type=int, default=0, help="comparisons on a real model")
    parser.add_argument(
        "--wait", type=float, default=0.004, help="seconds the model waits per call; 0: computes"
    )
    arguments = parser.parse_args()
    if arguments.real:
        real(arguments.real, arguments.slowdown, arguments.wait)
    else:
        table(arguments.repeats, arguments.seed, arguments.slowdown)


if __name__ == "__main__":
    main()
