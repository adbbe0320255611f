"""How much an earlier study speeds a search up if it is right, and slows it down if it misleads.

    python benchmarks/warm_start.py --seeds 6

Counted are the trials until the recommendation is within 5 % of the best that truly holds the
limit, on simulated landscapes with 3 % noise. Every earlier study claims the same model, device and
versions as the new one, also where that is a lie.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import optuna
from landscapes import KINDS, Landscape, simulate

from autotune.core.objective import Limit, Objective
from autotune.core.outcomes import Outcome
from autotune.core.records import Config, Measurement, TrialRecord, Verdict, WorkloadSpec
from autotune.search.advised import with_advice
from autotune.search.sampler import Attempt, make_sampler
from autotune.search.study_model import StudyModel
from autotune.search.warm_start import Advice, PastStudy, past_of
from autotune.space.search_space import Budget, Parameter, SearchSpace, settled

CLOSE = 0.05
TRIALS = 40
PAST_TRIALS = 30


@dataclass(frozen=True, kw_only=True)
class Played:
    """A search's records, and after how many trials its recommendation was close to the best."""

    records: tuple[TrialRecord, ...]
    close_at: int


def space_of(land: Landscape, seed: int) -> SearchSpace:
    """The landscape as a space with its limit."""
    limits = () if land.limit_s is None else (Limit(metric="latency_p99", bound=land.limit_s),)
    params = tuple(
        Parameter(name=name, choices=values, log=name == "batch_size")
        for name, values in land.params.items()
    )
    space = SearchSpace(
        study="bench",
        workload=WorkloadSpec(kind="replay", model="bench"),
        device="simulated",
        objective=Objective(name="bench", limits=limits),
        params=params,
        budget=Budget(trials=TRIALS),
    )
    return settled(replace(space, trial=replace(space.trial, seed=seed)))


def measured(land: Landscape, config: Config, number: int, rng: np.random.Generator) -> TrialRecord:
    """A noisy trial of a configuration."""
    values = config.as_dict()
    row = [choices.index(values[name]) for name, choices in land.params.items()]
    index = int(np.ravel_multi_index(row, [len(c) for c in land.params.values()]))
    throughput, tail, memory = land.measure(index, rng)
    record = TrialRecord(
        number=number, config=config, phase="search", verdict=Verdict(outcome=Outcome.OK)
    )
    if land.status[index] != "ok":
        return replace(record, verdict=Verdict(outcome=Outcome(str(land.status[index]))))
    excess = {} if land.limit_s is None else {"latency_p99_s": tail - land.limit_s}
    broken = any(value > 0 for value in excess.values())
    return replace(
        record,
        verdict=Verdict(
            outcome=Outcome.OVER_LIMIT if broken else Outcome.OK,
            objectives={"throughput_items_per_s": throughput},
            excess=excess,
        ),
        measurements=(
            Measurement(
                throughput_items_per_s=throughput, latency_p99_s=tail, memory_peak_bytes=int(memory)
            ),
        ),
    )


def play(
    land: Landscape,
    seed: int,
    trials: int,
    past: PastStudy | None = None,
    *,
    to_the_end: bool = False,
) -> Played:
    """Search with the product's sampler; by default until the recommendation is close."""
    space = space_of(land, seed)
    advice = None if past is None else Advice(past, space, _limits_differing(past, space))
    sampler = make_sampler(space, "auto", seed)
    if advice is not None:
        sampler = with_advice(sampler, advice, space.baseline)
    model = StudyModel(space, seed)
    rng = np.random.default_rng([seed, 11])
    records: list[TrialRecord] = []
    close_at = 0
    while len(records) < trials:
        config = sampler.propose([Attempt(r.config, r) for r in records])
        if config is None:
            break
        records.append(measured(land, config, len(records), rng))
        best = model.recommended(records)
        if not close_at and best is not None and regret(land, best) <= CLOSE:
            close_at = len(records)
            if not to_the_end:
                break
    return Played(records=tuple(records), close_at=close_at or trials + 1)


def regret(land: Landscape, config: Config) -> float:
    """Share of the optimum that a recommendation loses."""
    values = config.as_dict()
    row = [choices.index(values[name]) for name, choices in land.params.items()]
    return land.regret(int(np.ravel_multi_index(row, [len(c) for c in land.params.values()])))


def _limits_differing(past: PastStudy, space: SearchSpace) -> tuple[str, ...]:
    bounds = repr([limit.bound for limit in space.objective.limits])
    return () if past.conditions["limits"] == bounds else ("limits.latency_p99",)


def study_of(land: Landscape, seed: int, claims: Landscape) -> PastStudy:
    """A whole earlier study of a landscape, kept as one of `claims`."""
    space = space_of(land, seed)
    found = play(land, seed, PAST_TRIALS, to_the_end=True)
    order = sorted(found.records, key=lambda r: -_worth(r))
    best = StudyModel(space, seed).recommended(found.records)
    past = past_of(space, {}, order, ended_at_s=0.0, best=best)
    assert past is not None
    bounds = repr([limit.bound for limit in space_of(claims, seed).objective.limits])
    return replace(past, conditions={"limits": bounds})


def _worth(record: TrialRecord) -> float:
    if record.verdict.outcome is not Outcome.OK or record.measurement is None:
        return 0.0
    return record.measurement.throughput_items_per_s or 0.0


# --- what earlier studies may have been of -----------------------------------------------------


def other_limit(land: Landscape, _seed: int) -> Landscape:
    """The same with a limit twice as high."""
    return replace(land, limit_s=None if land.limit_s is None else 2.0 * land.limit_s)


def other_version(land: Landscape, seed: int) -> Landscape:
    """The same, all a little faster or slower, and every parameter's effect a little different."""
    rng = np.random.default_rng([seed, 5])
    log_pace = np.full(len(land.rows), rng.normal(0.0, 0.2))
    for column, choices in enumerate(land.params.values()):
        log_pace += rng.normal(0.0, 0.08, len(choices))[land.rows[:, column]]
    pace = np.exp(log_pace)
    return replace(land, throughput=land.throughput * pace, latency_p99_s=land.latency_p99_s / pace)


def other_constants(land: Landscape, seed: int) -> Landscape:
    """Another landscape of the same kind."""
    return replace(simulate(land.name.rpartition("-")[0], seed + 1000), limit_s=land.limit_s)


def other_kind(land: Landscape, seed: int) -> Landscape:
    """A landscape of another kind."""
    kinds = [k for k in KINDS if KINDS[k][1] and not land.name.startswith(k)]
    return replace(simulate(kinds[seed % len(kinds)], seed + 2000), limit_s=land.limit_s)


def upside_down(land: Landscape, _seed: int) -> Landscape:
    """What was best is worst; latencies are as they are."""
    middle = math.exp(float(np.mean(np.log(land.throughput))))
    return replace(land, throughput=middle**2 / land.throughput)


PASTS: dict[str, Callable[[Landscape, int], Landscape]] = {
    "the same": lambda land, _seed: land,
    "other version": other_version,
    "other limit": other_limit,
    "other constants": other_constants,
    "other kind": other_kind,
    "upside down": upside_down,
}


def main(words: Sequence[str] | None = None) -> int:
    """Play all and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--kinds", default=",".join(k for k in KINDS if KINDS[k][1]))
    parser.add_argument("--pasts", default=",".join(PASTS))
    arguments = parser.parse_args(words)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    found: dict[str, list[int]] = {"none": [], **{name: [] for name in arguments.pasts.split(",")}}
    for kind in arguments.kinds.split(","):
        for seed in range(arguments.first_seed, arguments.first_seed + arguments.seeds):
            land = simulate(kind, seed)
            line: dict[str, Any] = {"none": play(land, seed, TRIALS).close_at}
            for name in arguments.pasts.split(","):
                claims = other_limit(land, seed) if name == "other limit" else land
                past = study_of(PASTS[name](land, seed), seed + 500, claims)
                line[name] = play(land, seed, TRIALS, past).close_at
            for name, count in line.items():
                found[name].append(count)
            print(f"{kind:14} {seed:3d} ", *(f"{n}: {c}" for n, c in line.items()), flush=True)
    print(f"\n{'earlier study':16} trials to within {CLOSE:.0%}   against none   slowest")
    base = float(np.mean(found["none"]))
    for name, counts in found.items():
        mean = float(np.mean(counts))
        print(f"{name:16} {mean:22.1f} {mean / base:14.2f} {max(counts):9d}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
