"""Does a recommended arrival rate hold, and how near is it to the best there is?

    python benchmarks/arrival_rate.py [--seeds 100] [--first-seed 0] [--cases 0,3]

Every study looks for the highest Poisson rate whose P99 holds, over 26 configurations (13 batch
sizes x 1 or 2 instances) of a server with declared call times, 5 % jitter and stragglers, on a
virtual clock. A study is judged by the share over the limit in a fresh 5-minute replay at the
rate it recommends, and by that rate over the true best.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from autotune.core.clock import VirtualClock
from autotune.core.records import Config, InstanceFacts, Load, Plan, Samples, StageTimes
from autotune.measure.arrivals import arrival_times
from autotune.measure.client_queue import local_state
from autotune.measure.engine import (
    Server,
    items_of_calls,
    merge,
    run_open_windows,
    run_windows,
    to_open_samples,
    to_samples,
)
from autotune.measure.load import Serve
from autotune.measure.queueing import ServiceTimes, simulate
from autotune.measure.rate import STEP_UP, Evidence, Finding, conclude, evaluate, next_plan
from autotune.measure.rate_target import RateGoal

BATCH_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96)
INSTANCE_COUNTS = (1, 2)
JITTER = 0.05
STRAGGLER_SHARE, STRAGGLER_FACTOR = 0.002, 3.0
TOP = 3
REPLAY_S = 300.0
BEST_S = 1200.0  # simulated to know the true best
STEEP, MIDDLING = 5.0, 10.0  # d ln share / d ln rate: from where on, up to where
MIDDLING_S = 60.0  # of measuring, at most, in between
SHOW_EVERY = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A server and a limit.

    Attributes:
        slowdown: How much longer calls take under an open load than back to back.
    """

    name: str
    fixed_s: float
    item_s: float
    limit_s: float
    slowdown: float = 1.0


CASES = (
    Case(name="200/s, 20 ms", fixed_s=2e-3, item_s=3e-3, limit_s=20e-3),
    Case(name="200/s, 10 ms", fixed_s=2e-3, item_s=3e-3, limit_s=10e-3),
    Case(name="2k/s, 20 ms", fixed_s=1.5e-3, item_s=0.7e-3, limit_s=20e-3),
    Case(name="2k/s, 8 ms", fixed_s=1.5e-3, item_s=0.7e-3, limit_s=8e-3),
    Case(name="20k/s, 20 ms", fixed_s=2e-3, item_s=0.06e-3, limit_s=20e-3),
    Case(name="20k/s, 8 ms", fixed_s=2e-3, item_s=0.06e-3, limit_s=8e-3),
    Case(name="2k/s, 20 ms, 5 % slower", fixed_s=1.5e-3, item_s=0.7e-3, limit_s=20e-3,
         slowdown=1.05),
)  # fmt: skip


def factors(rng: np.random.Generator, count: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Call times over their declared time."""
    slow = np.where(rng.random(count) < STRAGGLER_SHARE, STRAGGLER_FACTOR, 1.0)
    return np.asarray(slow * np.exp(JITTER * rng.standard_normal(count)))


class Bench:
    """The server of a case in one configuration, as a session would run it."""

    def __init__(self, case: Case, config: Config, seed: int) -> None:
        self._case, self._config = case, config
        self._clocks = [VirtualClock() for _ in range(config.instance_count)]
        self._rngs = [np.random.default_rng((seed, i)) for i in range(config.instance_count)]

    def measure(self, plan: Plan) -> Samples:
        serves = [
            self._serve(clock, rng, self._case.slowdown if plan.load.is_open else 1.0)
            for clock, rng in zip(self._clocks, self._rngs, strict=True)
        ]
        base_s = max(clock.now_s() for clock in self._clocks)
        if plan.load.is_open:
            states = [local_state(plan.load) for _ in plan.windows]
            servers = [
                Server(serve=serve, clock=clock)
                for serve, clock in zip(serves, self._clocks, strict=True)
            ]
            windows = run_open_windows(
                servers, self._config, plan, base_s=base_s, state=states.__getitem__
            )
            return merge(
                [
                    to_open_samples(own, plan.load, InstanceFacts(instance=i))
                    for i, own in enumerate(windows)
                ]
            )
        return merge([self._closed(i, serve, plan, base_s) for i, serve in enumerate(serves)])

    def _closed(self, index: int, serve: Serve, plan: Plan, base_s: float) -> Samples:
        batch = self._config.batch_size
        windows, waits_s = run_windows(
            lambda call: serve(call, batch), self._clocks[index], plan, base_s=base_s, serve=serve
        )
        return to_samples(
            windows,
            waits_s,
            items_per_call=items_of_calls(windows, plan, batch),
            facts=InstanceFacts(instance=index),
        )

    def _serve(self, clock: VirtualClock, rng: np.random.Generator, slowdown: float) -> Serve:
        case, block = self._case, []  # type: ignore[var-annotated]

        def serve(call: int, items: int) -> StageTimes:
            if not block:
                block.extend(factors(rng, 1024).tolist())
            time_s = slowdown * block.pop() * (case.fixed_s + case.item_s * items)
            clock.advance(time_s)
            return StageTimes(0.0, time_s, 0.0)

        return serve


@dataclass(slots=True, kw_only=True)
class Study:
    """One study of a case; what it measured adds up in `measured_s`."""

    case: Case
    seed: int
    window_s: float
    measured_s: float = field(default=0.0)

    def run(self) -> tuple[Config, Finding]:
        """Screen all configurations, then prove the most promising in fresh sessions."""
        configs = [
            Config(batch_size=b, instance_count=i) for b in BATCH_SIZES for i in INSTANCE_COUNTS
        ]
        promises = []
        for number, config in enumerate(configs):
            goal = replace(self._goal(config), proves=False, worth_per_s=np.inf)
            history = self._search(config, goal, (self.seed, 0, number))
            promises.append((history[-1].target.limit_rate_per_s, number))
        best: tuple[Config, Finding] | None = None
        for order, (_, number) in enumerate(sorted(promises, reverse=True)[:TOP]):
            config = configs[number]
            worth = STEP_UP * best[1].rate_per_s if best and best[1].status == "pass" else 0.0
            goal = replace(
                self._goal(config),
                seed=1000 * (self.seed + 1),
                worth_per_s=worth,
            )
            finding = conclude(goal, self._search(config, goal, (self.seed, 1, order)))
            if best is None or _rank(finding) > _rank(best[1]):
                best = config, finding
        assert best is not None
        return best

    def _goal(self, config: Config) -> RateGoal:
        return RateGoal(
            limit_s=self.case.limit_s,
            max_batch=config.batch_size,
            servers=config.instance_count,
            window_s=self.window_s,
        )

    def _search(self, config: Config, goal: RateGoal, seed: tuple[int, int, int]) -> list[Evidence]:
        bench = Bench(self.case, config, hash(seed) % 2**32)
        history: list[Evidence] = []
        while (plan := next_plan(goal, history)) is not None:
            history.append(evaluate(goal, history, plan, bench.measure(plan)))
            self.measured_s += history[-1].duration_s
        return history


def _rank(finding: Finding) -> tuple[bool, float]:
    return finding.status == "pass", finding.rate_per_s


def true_share(case: Case, config: Config, rate: float, duration_s: float, seed: int) -> float:
    """Share of requests over the limit under the declared call times."""
    sizes = np.arange(1, config.batch_size + 1, dtype=np.float64)
    service = ServiceTimes(
        sizes=sizes,
        medians_s=case.slowdown * (case.fixed_s + case.item_s * sizes),
        residuals=factors(np.random.default_rng(seed), 1_000_000),
    )
    arrivals_s = arrival_times(
        Load(kind="poisson", rate_per_s=rate), seed=seed, duration_s=duration_s
    )
    latency_s = simulate(
        arrivals_s, service, np.random.default_rng((seed, 1)),
        max_batch=config.batch_size, servers=config.instance_count,
    )  # fmt: skip
    return float((latency_s > case.limit_s).mean())


def best_rate(case: Case) -> tuple[float, float]:
    """The highest rate of any configuration whose share over the limit is 1 %, and its steepness.

    The steepness is d ln share / d ln rate there.
    """
    best, steepness = 0.0, 0.0
    for batch in BATCH_SIZES:
        config = Config(batch_size=batch, instance_count=max(INSTANCE_COUNTS))
        duration_s = BEST_S if case.item_s > 1e-4 else BEST_S / 10.0

        def share(rate: float, config: Config = config, duration_s: float = duration_s) -> float:
            return true_share(case, config, rate, duration_s, seed=99)

        high = 1.05 * config.instance_count * batch / (case.fixed_s + case.item_s * batch)
        if share(best or 0.05 * high) > 0.01:
            continue
        low = best or 0.05 * high
        while high > 1.005 * low:
            middle = (low + high) / 2.0
            low, high = (middle, high) if share(middle) <= 0.01 else (low, middle)
        best = low
        around = [max(share(part * low), 1e-6) for part in (0.97, 1.03)]
        steepness = float(np.log(around[1] / around[0]) / np.log(1.03 / 0.97))
    return best, steepness


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """What one study came to.

    Attributes:
        share: Of requests over the limit in the replay; 0 where no rate was recommended.
    """

    rate_per_s: float
    status: str
    measured_s: float
    share: float


def run_study(case: Case, seed: int, window_s: float) -> Row:
    """One study and its replay."""
    study = Study(case=case, seed=seed, window_s=window_s)
    config, finding = study.run()
    rate, share = finding.rate_per_s, 0.0
    if rate > 0.0:
        share = true_share(case, config, rate, REPLAY_S, seed=10_000 + seed)
    return Row(rate_per_s=rate, status=finding.status, measured_s=study.measured_s, share=share)


def table_row(case: Case, rows: Sequence[Row], best: float, steepness: float) -> tuple[bool, str]:
    """Whether the studies meet their bars, and a line of text."""
    held = sum(row.rate_per_s > 0.0 and row.share <= 0.01 for row in rows)
    ratios = [row.rate_per_s / best for row in rows]
    ratio, least = statistics.median(ratios), min(ratios)
    undecided = sum(row.status != "pass" for row in rows)
    measured_s = statistics.median(row.measured_s for row in rows)
    wanted = 0.93 if steepness >= STEEP else 0.85
    good = held >= 0.95 * len(rows) and ratio >= wanted
    if STEEP <= steepness <= MIDDLING:
        good = good and measured_s <= MIDDLING_S
    return good, (
        f"{case.name:24} best {best:8.0f}/s  k {steepness:4.1f}  holds {held}/{len(rows)}  "
        f"median {ratio:.3f}  least {least:.3f}  undecided {undecided}  "
        f"measured {measured_s:.0f} s{'' if good else '  *'}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--window", type=float, default=20.0, help="seconds at one rate, at most")
    parser.add_argument("--cases", default="", help="indices, such as 0,3; default: all")
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    picked = [int(i) for i in options.cases.split(",")] if options.cases else range(len(CASES))
    cases = [CASES[i] for i in picked]
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    rows: dict[str, list[Row]] = {case.name: [] for case in cases}
    good = False
    with concurrent.futures.ProcessPoolExecutor(options.processes) as pool:
        truths = {case.name: pool.submit(best_rate, case) for case in cases}
        studies = {
            (seed, case.name): pool.submit(run_study, case, seed, options.window)
            for seed in seeds
            for case in cases
        }
        for done, seed in enumerate(seeds, 1):
            for case in cases:
                rows[case.name].append(studies[seed, case.name].result())
            if done % SHOW_EVERY == 0 or done == len(seeds):
                table = [table_row(c, rows[c.name], *truths[c.name].result()) for c in cases]
                good = all(is_good for is_good, _ in table)
                print("\n".join(text for _, text in table), flush=True)
    print("all bars met" if good else "a bar is broken")
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
