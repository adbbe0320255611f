"""How much of the front of throughput and P99 latency each way of searching finds.

    OMP_NUM_THREADS=1 python benchmarks/pareto.py --seeds 5

The landscapes are those of `search.py` without their limits. Judged by the true figures of what
was measured: the hypervolume of its front over that of the whole grid's, in logarithms, above a
point a tenth of the true front's range below its worst.
"""

from __future__ import annotations

import argparse
import math
import warnings
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import optuna
from landscapes import KINDS, Floats, Landscape, simulate, space_of
from strategies import Game, _distribution, _nearest, random_search, record_of

from autotune.core.objective import Goal, Objective
from autotune.core.records import TrialRecord
from autotune.measure.front import hypervolume, non_dominated
from autotune.search.grid import Attempt
from autotune.search.sampler import make_sampler

MARKS = (10, 20, 30, 40)
OBJECTIVE = Objective(
    name="pareto", goals=(Goal(metric="throughput"), Goal(metric="latency_p99")), front=True
)


def ours(game: Game) -> None:
    """The project's sampler, as `autotune run` uses it."""
    space = replace(space_of(game.land, game.trials, "mechanistic", game.seed), objective=OBJECTIVE)
    sampler = make_sampler(space, "mechanistic", game.seed)
    rows = dict(zip(game.land.configs, game.index, strict=True))
    records: list[TrialRecord] = []
    while not game.over:
        config = sampler.propose([Attempt(r.config, r) for r in records])
        if config is None:
            break
        records.append(record_of(game, config, game.play(rows[config])))


def stock(make: Callable[[int], optuna.samplers.BaseSampler]) -> Callable[[Game], None]:
    """An Optuna sampler with two directions."""

    def play(game: Game) -> None:
        study = optuna.create_study(directions=["maximize", "minimize"], sampler=make(game.seed))
        params = game.land.params
        spaces = {n: _distribution(v) for n, v in params.items()}
        present = np.array(list(game.index))
        worst = (0.0, 0.0)
        while not game.over:
            trial = study.ask(fixed_distributions=spaces)
            wish = [_nearest(values, trial.params[n]) for n, values in params.items()]
            row = present[np.abs((present - wish) / np.array(game.sizes)).sum(1).argmin()]
            result = game.play(row.tolist())
            if result.throughput is None:
                study.tell(trial, worst)
                continue
            values = math.log(result.throughput), math.log(result.latency_p99_s)
            worst = (min(worst[0], values[0]), max(worst[1], values[1]))
            study.tell(trial, values)

    return play


STRATEGIES: dict[str, Callable[[Game], None]] = {
    "mechanistic": ours,
    "tpe": stock(lambda seed: optuna.samplers.TPESampler(seed=seed)),
    "gp": stock(lambda seed: optuna.samplers.GPSampler(seed=seed, n_startup_trials=6)),
    "random": random_search,
}


def share_found(land: Landscape, indices: list[int]) -> float:
    """Hypervolume of what was measured over that of the whole grid, by true figures."""
    values = np.stack([np.log(land.throughput), -np.log(land.latency_p99_s)], axis=1)
    runs = land.status == "ok"
    front = _front(values[runs])
    low, high = front.min(axis=0), front.max(axis=0)
    reference = low - 0.1 * (high - low)
    found = values[[i for i in indices if runs[i]]].reshape(-1, 2)
    if not len(found):
        return 0.0
    return hypervolume(_front(found), reference) / hypervolume(front, reference)


def _front(values: Floats) -> Floats:
    """The non-dominated rows; found by sorting, since a grid has thousands."""
    order = np.lexsort((-values[:, 1], -values[:, 0]))
    best = np.maximum.accumulate(np.append(-np.inf, values[order, 1])[:-1])
    kept: Floats = values[order][values[order, 1] > best]
    return kept[non_dominated(kept)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="*", default=list(KINDS))
    parser.add_argument("--strategies", nargs="*", default=["mechanistic", "tpe", "random"])
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    print(f"{'kind':14} {'strategy':12}" + "".join(f"  n={mark:<5}" for mark in MARKS))
    total: dict[str, list[list[float]]] = {}
    for kind in options.kinds:
        for name in options.strategies:
            shares = []
            for seed in range(options.first_seed, options.first_seed + options.seeds):
                land = replace(simulate(kind, seed), limit_s=None)
                game = Game(land, seed, max(MARKS))
                STRATEGIES[name](game)
                order = [trial.index for trial in game.history]
                shares.append([share_found(land, order[:mark]) for mark in MARKS])
            total.setdefault(name, []).extend(shares)
            print_row(kind, name, shares)
    for name, shares in total.items():
        print_row("all", name, shares)


def print_row(kind: str, name: str, shares: list[list[float]]) -> None:
    means = np.array(shares).mean(axis=0)
    print(f"{kind:14} {name:12}" + "".join(f"  {m:.3f} " for m in means), flush=True)


if __name__ == "__main__":
    main()
