"""How much an earlier study speeds a search up if it is right, and slows it down if it misleads.

    python benchmarks/warm_start.py --seeds 6

Counted are the trials until the recommendation is within 5 %, and 10 %, of the best that truly
holds the limit, on simulated landscapes with 3 % noise; `--trials` + 1 where that never happens.
Every earlier study claims the same model, device and versions as the new one, also where that is a
lie.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import optuna
from landscapes import KINDS, Landscape, simulate

from autotune.core.objective import Limit, Objective
from autotune.core.outcomes import Outcome
from autotune.core.records import Config, Measurement, TrialRecord, Verdict, WorkloadSpec
from autotune.search.advised import with_advice
from autotune.search.grid import Attempt
from autotune.search.sampler import Sampler, make_sampler
from autotune.search.study_model import StudyModel
from autotune.search.warm_start import Advice, PastStudy, PastTrial, past_of
from autotune.space.search_space import Budget, Parameter, SearchSpace, settled

CLOSE = (0.05, 0.10)
EARLY = 20  # trials over which the mean loss is taken
PAST_TRIALS = 30


@dataclass(frozen=True, kw_only=True)
class Played:
    """A search: its records, and the loss by its recommendation after each of them.

    A loss is relative; 1 if nothing would be recommended, or something that breaks the limit.
    """

    records: tuple[TrialRecord, ...]
    losses: tuple[float, ...]
    trials: int

    def close_at(self, share: float) -> int:
        """After how many trials the loss was first that small."""
        return next((i for i, x in enumerate(self.losses, 1) if x <= share), self.trials + 1)

    @property
    def early_loss(self) -> float:
        """Mean loss over the first trials; what was close when it stopped stayed so."""
        padded = (*self.losses, *(self.losses[-1],) * EARLY)
        return float(np.mean(padded[:EARLY]))


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
        budget=Budget(trials=40),
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
    inner = make_sampler(space, "auto", seed)
    assert isinstance(inner, Sampler)
    model = inner.model  # the same as the sampler's: it fits every history once
    sampler = inner if advice is None else with_advice(inner, advice, space.baseline)
    rng = np.random.default_rng([seed, 11])
    records: list[TrialRecord] = []
    losses: list[float] = []
    while len(records) < trials and (to_the_end or not losses or losses[-1] > min(CLOSE)):
        config = sampler.propose([Attempt(r.config, r) for r in records])
        if config is None:
            break
        records.append(measured(land, config, len(records), rng))
        best = model.recommended(records)
        losses.append(1.0 if best is None else regret(land, best))
    return Played(records=tuple(records), losses=tuple(losses), trials=trials)


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


def other_kind(land: Landscape, seed: int) -> Landscape:
    """A landscape of another kind."""
    kinds = [k for k in KINDS if KINDS[k][1] and not land.name.startswith(k)]
    return replace(simulate(kinds[seed % len(kinds)], seed + 2000), limit_s=land.limit_s)


def upside_down(past: PastStudy) -> PastStudy:
    """An earlier study whose best was the worst; latencies are as they are."""

    def turned(trial: PastTrial) -> PastTrial:
        rate = trial.figures.get("throughput_items_per_s")
        figures = {**trial.figures, "throughput_items_per_s": middle**2 / rate} if rate else {}
        return replace(trial, figures=figures)

    held = [t for t in past.trials if t.outcome is Outcome.OK]
    rates = [t.figures["throughput_items_per_s"] for t in held]
    middle = math.exp(float(np.mean(np.log(rates))))
    worst = min(held, key=lambda t: t.figures["throughput_items_per_s"])
    return replace(past, trials=tuple(map(turned, past.trials)), best=worst.config)


PASTS: dict[str, Callable[[Landscape, int], Landscape]] = {
    "the same": lambda land, _seed: land,
    "other version": other_version,
    "other limit": other_limit,
    "other kind": other_kind,
}


def pasts(land: Landscape, seed: int) -> Iterator[tuple[str, PastStudy | None]]:
    """All earlier studies of a landscape, by name."""
    yield "none", None
    for name, other in PASTS.items():
        claims = other_limit(land, seed) if name == "other limit" else land
        past = study_of(other(land, seed), seed + 500, claims)
        yield name, past
        if name == "the same":
            yield "upside down", upside_down(past)


def main(words: Sequence[str] | None = None) -> int:
    """Play all and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--trials", type=int, default=50)
    parser.add_argument("--kinds", default=",".join(k for k in KINDS if KINDS[k][1]))
    arguments = parser.parse_args(words)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    found: dict[str, list[Played]] = {}
    last = arguments.first_seed + arguments.seeds
    for seed in range(arguments.first_seed, last):
        for kind in arguments.kinds.split(","):
            land = simulate(kind, seed)
            for name, past in pasts(land, seed):
                found.setdefault(name, []).append(play(land, seed, arguments.trials, past))
            counts = (f"{name}: {played[-1].close_at(CLOSE[0])}" for name, played in found.items())
            print(f"{kind:14} {seed:3d} ", *counts, flush=True)
        print_table(found)
    return 0


def print_table(found: Mapping[str, Sequence[Played]]) -> None:
    """Means over all games so far, and their quotients by those without an earlier study."""
    print(f"\n{'earlier study':16} games  to 5 %          to 10 %         loss over {EARLY}")
    base = found["none"]
    for name, played in found.items():
        cells = [f"{name:16} {len(played):5d}"]
        for share in CLOSE:
            mean = np.mean([p.close_at(share) for p in played])
            cells.append(f"{mean:5.1f} ({mean / np.mean([p.close_at(share) for p in base]):.2f})")
        cells.append(f"{np.mean([p.early_loss for p in played]):.1%}")
        print("    ".join(cells), flush=True)
    print()


if __name__ == "__main__":
    sys.exit(main())
