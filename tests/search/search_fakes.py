"""A small space, a trial layer without processes, and a program that runs a study with them."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import autotune
from autotune.core.clock import VirtualClock
from autotune.core.errors import TrialError
from autotune.core.objective import Limit, Objective
from autotune.core.outcomes import Outcome
from autotune.core.records import (
    Config,
    Measurement,
    Plan,
    Reported,
    Result,
    Samples,
    TrialRecord,
    Verdict,
    WorkloadSpec,
)
from autotune.devices.base import DeviceInfo
from autotune.search import attempt, rounds, worker
from autotune.search.study import StopReason, Study
from autotune.space.search_space import Budget, Confirm, Parameter, SearchSpace, Source
from autotune.trial.session import Launcher

INFO = DeviceInfo(name="cpu", kind="cpu", description="a test", core_count=4)
LIMIT_S = 0.0145  # a batch of 12 holds it
FINGERPRINT = {"device": "cpu: a test", "workload": "test"}
Behaviour = Callable[[Config], "Mapping[str, float] | Samples | TrialError"]


def parameters(**choices: Any) -> tuple[Parameter, ...]:
    return tuple(
        Parameter(name=name, choices=tuple(values), log=name == "batch_size")
        for name, values in choices.items()
    )


def make_space(trials: int = 40, **changes: Any) -> SearchSpace:
    space = SearchSpace(
        study="s",
        workload=WorkloadSpec(kind="replay", model="none"),
        device="cpu",
        objective=Objective(
            name="online_latency", limits=(Limit(metric="latency_p99", bound=LIMIT_S),)
        ),
        params=parameters(
            batch_size=(1, 2, 4, 8, 16, 32), instance_count=(1, 2), batched_h2d=(False, True)
        ),
        budget=Budget(trials=trials),
        sampler="random",
        confirm=Confirm(top=3, duration_s=6.0),
        source=Source(text="study: s"),
    )
    return replace(space, **changes)


def served(config: Config) -> dict[str, float]:
    """Throughput rises with the batch and levels off, latency rises too."""
    seconds = 0.002 + 0.001 * config.batch_size
    rate = config.batch_size * config.instance_count**0.5 / seconds
    rate *= 1.1 if config.batched_h2d else 1.0
    return {
        "throughput_items_per_s": rate,
        "latency_p99_s": seconds,
        "memory_peak_bytes": 1_000_000,
    }


def record_of(number: int, config: Config, outcome: str = "ok", **figures: float) -> TrialRecord:
    told = Outcome(outcome)
    if not told.is_measured:
        verdict = Verdict(outcome=told, reasons=("a reason",))
        return TrialRecord(number=number, config=config, phase="search", verdict=verdict)
    values = {**served(config), **figures}
    return TrialRecord(
        number=number,
        config=config,
        phase="search",
        verdict=Verdict(
            outcome=told,
            objectives={"throughput_items_per_s": values["throughput_items_per_s"]},
            excess={"latency_p99_s": values["latency_p99_s"] - LIMIT_S},
        ),
        measurements=(Measurement(**values),),  # type: ignore[arg-type]
    )


def samples(
    step_s: float = 0.01,
    starts_s: tuple[float, ...] = (0.0,),
    duration_s: float = 1.0,
    items: int = 1,
    slow_every: int = 0,
    slow_s: float = 0.0,
) -> Samples:
    """Calls back to back in each window; every so many-th one is slow."""
    rows: list[tuple[int, float, float]] = []
    for window, start_s in enumerate(starts_s):
        now_s = start_s
        while now_s < start_s + duration_s:
            is_slow = slow_every > 0 and len(rows) % slow_every == slow_every // 2
            end_s = now_s + (slow_s if is_slow else step_s)
            rows.append((window, now_s, end_s))
            now_s = end_s
    table = np.array(rows)
    start, end = table[:, 1], table[:, 2]
    zeros = np.zeros(len(rows), dtype=np.int64)
    return Samples(
        window=table[:, 0].astype(np.int64),
        instance=zeros,
        due_s=start,
        start_s=start,
        end_s=end,
        item_count=zeros + items,
        cpu_s=end - start,
        switch_count=zeros,
        fault_count=zeros,
        run_queue_wait_s=(0.0,) * len(starts_s),
    )


class FakeLauncher(Launcher):
    """A clock that only trials move."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = VirtualClock()

    def now_s(self) -> float:
        return self.clock.now_s()


class FakeSession:
    """Hands over what `behave` says of its configuration, at `cost_s` per measurement."""

    is_virtual = True
    answers = ()

    def __init__(
        self,
        config: Config,
        launcher: FakeLauncher,
        behave: Behaviour,
        *,
        cost_s: float,
        noise: float,
        spread: float,
    ) -> None:
        self._config, self._launcher, self._behave = config, launcher, behave
        self._cost_s, self._noise, self._spread = cost_s, noise, spread
        self._plan: Plan | None = None

    def warm_up(self, plan: Plan) -> None: ...

    def begin(self, plan: Plan) -> None:
        self._plan = plan

    def result(self) -> Result:
        assert self._plan is not None
        self._launcher.clock.advance(self._cost_s)
        found = self._behave(self._config)
        if isinstance(found, TrialError):
            raise found
        if isinstance(found, Samples):
            return found
        rng = np.random.default_rng([self._plan.arrival_seed, self._config.batch_size])
        rate = found["throughput_items_per_s"] * math.exp(rng.normal(0.0, self._spread))
        metrics = {**found, "throughput_items_per_s": rate}
        return Reported(metrics=metrics, relative_noise=self._noise, duration_s=self._cost_s)

    def measure(self, plan: Plan) -> Result:
        self.begin(plan)
        return self.result()


def use_fakes(
    behave: Behaviour,
    patch: Any,
    *,
    cost_s: float = 1.0,
    noise: float = 0.0,
    spread: float = 0.0,
) -> list[Config]:
    """Replace the trial layer; returns the list of configurations that will have been opened.

    Args:
        noise: What a figure says of its own P99. spread: of its throughput, really.
    """
    opened: list[Config] = []

    @contextmanager
    def open_session(config: Config, launcher: FakeLauncher, **_: object) -> Iterator[FakeSession]:
        opened.append(config)
        yield FakeSession(config, launcher, behave, cost_s=cost_s, noise=noise, spread=spread)

    for module in (attempt, rounds):
        patch.setattr(module, "open_session", open_session)
        patch.setattr(module, "group_spec", lambda config, space, info: config)
    return opened


class Patch:
    """The one method of pytest's monkeypatch that a program of its own needs."""

    @staticmethod
    def setattr(target: object, name: str, value: object) -> None:
        setattr(target, name, value)


def start_worker(
    url: str, directory: Path, trials: int, seconds: float, sampler: str = "random"
) -> subprocess.Popen[str]:
    """Run `main` in a process of its own; its output and errors are on stdout."""
    words = [url, str(directory), str(trials), str(seconds), sampler]
    root = Path(autotune.__file__).parents[1]
    return subprocess.Popen(
        [sys.executable, "-u", __file__, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": str(root)},
    )


def main(url: str, directory: str, trials: str, seconds: str, sampler: str = "random") -> None:
    """Run a study whose trials sleep; says "trial N" when one begins."""

    def behave(config: Config) -> Mapping[str, float]:
        time.sleep(float(seconds))
        return served(config)

    use_fakes(behave, Patch)
    space = make_space(trials=int(trials), storage=url, sampler=sampler)
    study = Study.open(space, Path(directory), fingerprint=FINGERPRINT)
    for note in study.notes:
        print(note, flush=True)
    reason = worker.run_trials(
        study,
        space,
        INFO,
        FakeLauncher(),
        on_start=lambda asked: print("trial", asked.number, flush=True),
    )
    print("stopped:", reason, flush=True)
    assert reason is StopReason.TRIALS


if __name__ == "__main__":
    main(*sys.argv[1:])
