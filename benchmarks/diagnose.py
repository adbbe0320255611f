"""Whether a planted bottleneck is named, and whether the named knob brings what is forecast.

    python benchmarks/diagnose.py --cases 100             # simulated, on a virtual clock
    python benchmarks/diagnose.py --real --cases 60       # recorded on this machine's CPU

Every case is drawn from its seed: a part of a call in which most of the time is planted, and how
much that is. It is named if it comes first; the knob's forecast is then held against runs of both
configurations, with noise. Real cases want a quiet machine, and take some ten seconds each.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from autotune.apps.looking import Looker
from autotune.apps.resolve import prepare, resolve
from autotune.apps.view import View
from autotune.core.diagnosis import Diagnosis, Part
from autotune.space.loader import load_text
from autotune.space.search_space import SearchSpace
from autotune.trial.session import Launcher
from autotune.workloads.simulated import COST_MODELS, CostModel

PARTS: tuple[Part, ...] = ("h2d", "gaps", "compute", "memory", "host", "queue")
PLANTED = Path(__file__).with_name("planted.py")
CALL_S = 1e-3  # of a simulated call, but for what is planted
SHARE = (0.45, 0.85)  # that is planted, of a simulated call


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A case and what was found."""

    part: Part
    seed: int
    found: Diagnosis

    @property
    def is_named(self) -> bool:
        """True if the planted part came first."""
        return self.found.part == self.part

    def line(self) -> str:
        """For a person."""
        made = self.found.forecast
        text = "no knob"
        if made is not None:
            measured = "not tried" if made.measured is None else f"{made.measured:.2f}"
            text = f"{made.knob} {made.before} -> {made.after}: {made.gain:.2f}, was {measured}"
        mark = "" if self.is_named else f"  NOT NAMED: {self.found.part}"
        return f"{self.part:8} seed {self.seed:3d}  {self.found.share:4.0%}  {text}{mark}"


# --- cases -------------------------------------------------------------------------------------


def simulated_case(part: Part, seed: int) -> SearchSpace:
    """A cost model of its own, whose calls spend the planted share of their time in one part."""
    rng = np.random.default_rng([seed, PARTS.index(part)])
    batch = int(rng.choice([8, 16, 32, 64, 128]))
    rest_s = dict(zip(PARTS, CALL_S * rng.dirichlet(np.full(len(PARTS), 2.0)), strict=True))
    share = rng.uniform(*SHARE)
    if part != "queue":
        rest_s[part] = share / (1 - share) * (CALL_S - rest_s[part])
    fixed = rng.uniform(0.6, 1.0)  # of what is planted, the part that a call has however large
    COST_MODELS["planted"] = CostModel(
        description=f"a call with most of its time in {part}",
        copy_separate_s=rest_s["h2d"] * fixed,
        copy_packed_s=rest_s["h2d"] * fixed * rng.uniform(0.03, 0.12),
        copy_item_s=rest_s["h2d"] * (1 - fixed) / batch,
        launch_s=rest_s["gaps"] * fixed,
        idle_item_s=rest_s["gaps"] * (1 - fixed) / batch,
        work_item_s=rest_s["compute"] / batch,
        traffic_s=rest_s["memory"] * fixed,
        traffic_item_s=rest_s["memory"] * (1 - fixed) / batch,
        contention_s=rest_s["compute"] * rng.uniform(0.0, 0.2),
        host_separate_s=rest_s["host"],
        host_packed_s=rest_s["host"],
        load_s=1.0,
        base_bytes=2**20,
        item_bytes=2**10,
        input_count=int(rng.integers(12, 60)),
    )
    load = "{closed: {}}"
    if part == "queue":
        load = f"{{closed: {{clients: {int(rng.integers(6, 20)) * batch}}}}}"
        if rng.random() < 0.5:
            rate = batch / sum(rest_s.values()) * rng.uniform(0.93, 0.98)
            load, batch = f"{{poisson: {{rate: {rate / batch:.3f}/s}}}}", 1
    cores = "12|24" if part == "compute" else "all"
    return load_text(
        f"""
study: planted
workload: {{simulated: planted, noise: 0.02, seed: {seed}}}
load: {load}
params:
  batch_size: {batch}
  cores_per_instance: "{cores}"
trial: {{duration: 2s, seed: {seed}}}
""",
        "planted.yaml",
    )


def real_case(part: Part, seed: int) -> SearchSpace:
    """A model whose forward does little else than what is planted."""
    rng = np.random.default_rng([seed, PARTS.index(part), 1])
    size = rng.uniform(0.7, 2.0)
    batch = int(rng.choice([128, 256, 512] if part == "compute" else [2, 4, 8, 16]))
    load = "{closed: {}}"
    if part == "queue":
        load = f"{{closed: {{clients: {int(rng.integers(4, 8)) * batch}}}}}"
    cores = "all" if part in ("memory", "gaps", "h2d") else 1
    return load_text(
        f"""
study: planted
workload: {{model: "{PLANTED}:factory", options: {{part: {part}, size: {size:.3f}}}}}
device: cpu
load: {load}
params:
  batch_size: {batch}
  cores_per_instance: {cores}
trial: {{duration: 1s, seed: {seed}}}
""",
        "planted.yaml",
    )


def play(part: Part, seed: int, *, real: bool, window_s: float) -> Outcome:
    """Diagnose a case and try the forecast."""
    resolved = resolve((real_case if real else simulated_case)(part, seed))
    prepare(resolved, View())
    with tempfile.TemporaryDirectory() as folder, Launcher() as launcher:
        looker = Looker(resolved=resolved, launcher=launcher, view=View(), window_s=window_s)
        found = looker.checked(looker.diagnose(resolved.space.baseline, Path(folder)))
    return Outcome(part=part, seed=seed, found=found)


# --- the program -------------------------------------------------------------------------------


def summary(outcomes: Sequence[Outcome]) -> list[str]:
    """The two shares, and those of each part."""
    lines = []
    for part in (*PARTS, "all"):
        own = [o for o in outcomes if part in (o.part, "all")]
        if not own:
            continue
        named = sum(o.is_named for o in own)
        tried = [f for o in own if (f := o.found.forecast) is not None and f.measured is not None]
        held = sum(bool(f.holds) for f in tried)
        lines.append(f"{part:8} named {named} of {len(own)}, forecast holds {held} of {len(tried)}")
    return lines


def main(words: Sequence[str] | None = None) -> int:
    """Play all cases, print a line each and the shares; 0 if both bars are met."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--real", action="store_true", help="recorded on this machine's CPU")
    parser.add_argument("--window", type=float, default=0.6, help="seconds of a window")
    parser.add_argument("--parts", default=",".join(PARTS))
    arguments = parser.parse_args(words)
    parts = [part for part in PARTS if part in arguments.parts.split(",")]
    outcomes = []
    for case in range(arguments.cases):
        seed = arguments.first_seed + case // len(parts)
        part = parts[case % len(parts)]
        outcomes.append(play(part, seed, real=arguments.real, window_s=arguments.window))
        print(outcomes[-1].line(), flush=True)
    print("\n".join(summary(outcomes)))
    tried = [f for o in outcomes if (f := o.found.forecast) and f.measured is not None]
    named = sum(o.is_named for o in outcomes) >= 0.95 * len(outcomes)
    return 0 if named and sum(bool(f.holds) for f in tried) >= 0.8 * len(tried) else 1


if __name__ == "__main__":
    sys.exit(main())
