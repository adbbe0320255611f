"""The sampler in optuna, the posterior's rule, failures, pending trials, degenerate spaces."""

from __future__ import annotations

import json
import math
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState
from search_fakes import make_space, parameters, record_of

from autotune.core.codec import to_json_dict
from autotune.core.insight import Insight
from autotune.core.objective import Goal, Limit, Objective
from autotune.core.records import Config, TrialRecord
from autotune.search.encoding import Dimension, Encoding
from autotune.search.mechanistic import MechanisticSampler
from autotune.search.posterior import Posterior
from autotune.search.proposer import PROBES, Candidates, propose
from autotune.search.question import Observation, Question, encode, observe
from autotune.search.study_model import StudyModel
from autotune.search.telling import optuna_params, told
from autotune.space.rules import Rule
from autotune.space.search_space import SearchSpace

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import games as played
import landscapes
import search as benchmark
import strategies

LIMIT_S = 0.004
BATCHES = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)


def serving_space(**changes: Any) -> SearchSpace:
    """864 configurations, one third of them forbidden."""
    space = make_space(
        objective=Objective(name="o", limits=(Limit(metric="latency_p99", bound=LIMIT_S),)),
        params=parameters(
            batch_size=BATCHES,
            instance_count=(1, 2, 3, 4),
            cores_per_instance=("all", 2, 1),
            batched_h2d=(False, True),
            micro_batch_count=(1, 2),
        ),
        rules=(
            Rule(text="cores_per_instance == 'all' or instance_count * cores_per_instance <= 4"),
        ),
    )
    return replace(space, **changes)


def serve(config: Config, rng: np.random.Generator | None = None) -> dict[str, float]:
    """A server unlike the model: the instances take turns on the host, cores saturate."""
    cores = 4 if config.cores_per_instance == "all" else int(config.cores_per_instance)
    crowd = max(1.0, config.instance_count * cores / 4) ** 0.8
    host_s = config.instance_count * (1.5e-4 if config.batched_h2d else 3e-4)
    device_s = (3e-4 + 8e-6 * config.batch_size * cores**-0.7) * crowd
    cycle_s = max(host_s, host_s / 4 + device_s) + 1e-4 * (config.micro_batch_count - 1)
    rate, tail_s = config.batch_size * config.instance_count / cycle_s, 1.15 * cycle_s
    if rng is not None:
        rate, tail_s = rate * math.exp(rng.normal(0, 0.03)), tail_s * math.exp(rng.normal(0, 0.036))
    return {"throughput_items_per_s": rate, "latency_p99_s": tail_s}


def is_out(config: Config) -> bool:
    return config.batch_size * config.instance_count > 2000


def measured(number: int, config: Config, rng: np.random.Generator | None) -> TrialRecord:
    if is_out(config):
        return record_of(number, config, "oom")
    figures = serve(config, rng)
    return record_of(
        number, config, "ok" if figures["latency_p99_s"] <= LIMIT_S else "over_limit", **figures
    )


def insight(records: list[TrialRecord], space: SearchSpace) -> Insight:
    return StudyModel(space, 0).insight(records)


def study_of(sampler: MechanisticSampler, storage: Any = None) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna.create_study(
        direction="maximize", sampler=sampler, storage=storage, study_name="s", load_if_exists=True
    )


def drive(study: optuna.Study, space: SearchSpace, count: int, seed: int = 0) -> list[TrialRecord]:
    """Ask, measure and tell as the project's worker does."""
    rng = np.random.default_rng([seed, 5])
    distributions = optuna_params(space, space.baseline, ())[1]
    records = []
    for number in range(count):
        trial = study.ask(fixed_distributions=distributions)
        config = space.baseline.changed(**trial.params)
        record = measured(number, config, rng)
        trial.set_user_attr("record", json.dumps(to_json_dict(record)))
        message = told(record, space.objective)
        for name, excess in message.constraints.items():
            trial.set_constraint(name, excess)
        study.tell(trial, list(message.values or ()), TrialState.COMPLETE)
        records.append(record)
    return records


def optimum(space: SearchSpace) -> float:
    usable = (c for c in space.configs() if not is_out(c))
    figures = [serve(c) for c in usable]
    return max(f["throughput_items_per_s"] for f in figures if f["latency_p99_s"] <= LIMIT_S)


# --- whole searches ----------------------------------------------------------------------------


def test_thirty_trials_find_a_configuration_near_the_optimum_that_holds_its_limit() -> None:
    space = serving_space()
    losses = []
    for seed in range(4):
        records = drive(study_of(MechanisticSampler(space=space, seed=seed)), space, 30, seed)
        assert all(space.allows(r.config) for r in records)
        best = insight(records, space).best
        assert best is not None
        truth = serve(best.config)
        assert truth["latency_p99_s"] <= LIMIT_S
        losses.append(1 - truth["throughput_items_per_s"] / optimum(space))
    assert np.mean(losses) < 0.04
    assert max(losses) < 0.12


def test_it_beats_tpe_and_breaks_no_limit_on_structures_not_its_own() -> None:
    games: dict[str, list[strategies.Game]] = {"mechanistic": [], "tpe": []}
    for name, found in games.items():
        for kind in ("cliff", "host_serial", "interference"):
            game = strategies.Game(landscapes.simulate(kind, 21), 21, 30)
            strategies.STRATEGIES[name](game)
            found.append(game)
    ours, tpe = (
        benchmark.summary([played.figures_of(game, name) for game in games[name]], 30)
        for name in ("mechanistic", "tpe")
    )
    assert ours["violations"] == 0
    assert ours["trials"][30] < 6
    assert ours["trials"][30] < 0.25 * tpe["trials"][30]


def test_a_resumed_study_goes_on_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    space = serving_space()
    storage = f"sqlite:///{tmp_path}/s.db"
    whole = drive(study_of(MechanisticSampler(space=space, seed=3)), space, 10)
    first = drive(study_of(MechanisticSampler(space=space, seed=3), storage), space, 10)
    assert [r.config for r in first] == [r.config for r in whole]
    more = drive(study_of(MechanisticSampler(space=space, seed=3), storage), space, 1)
    longer = drive(study_of(MechanisticSampler(space=space, seed=3)), space, 10)
    assert [r.config for r in longer] == [r.config for r in whole]
    assert space.allows(more[0].config)


def test_different_seeds_search_differently() -> None:
    space = serving_space()
    runs = [drive(study_of(MechanisticSampler(space=space, seed=s)), space, 4) for s in (0, 1)]
    assert [r.config for r in runs[0]] != [r.config for r in runs[1]]


def test_optimize_without_space_or_records_uses_values_and_constraints() -> None:
    def objective(trial: optuna.Trial) -> float:
        batch = trial.suggest_int("batch_size", 1, 1024, log=True)
        count = trial.suggest_int("instance_count", 1, 4)
        packed = trial.suggest_categorical("batched_h2d", [False, True])
        figures = serve(Config(batch_size=batch, instance_count=count, batched_h2d=packed))
        trial.set_constraint("latency", figures["latency_p99_s"] - LIMIT_S)
        return figures["throughput_items_per_s"]

    study = study_of(MechanisticSampler(seed=0))
    study.optimize(objective, n_trials=25)
    best = max(t.value or 0.0 for t in study.trials if t.constraints["latency"] <= 0)
    configs = (
        Config(batch_size=b, instance_count=i, batched_h2d=h)
        for b in BATCHES
        for i in (1, 2, 3, 4)
        for h in (False, True)
    )
    reachable = (serve(c) for c in configs)
    truth = max(f["throughput_items_per_s"] for f in reachable if f["latency_p99_s"] <= LIMIT_S)
    assert best > 0.95 * truth


def test_several_values_spread_over_the_front() -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(
        directions=["maximize", "minimize"], sampler=MechanisticSampler(seed=0)
    )

    def objective(trial: optuna.Trial) -> tuple[float, float]:
        batch = trial.suggest_int("batch_size", 1, 1024, log=True)
        cycle_s = 1e-3 + 1e-5 * batch + 1e-3 * trial.suggest_float("waste", 0.0, 1.0)
        return batch / cycle_s, cycle_s

    study.optimize(objective, n_trials=24)
    front = sorted(t.params["batch_size"] for t in study.best_trials)
    assert len(front) >= 5
    assert front[-1] > 16 * front[0]


# --- single proposals --------------------------------------------------------------------------


def test_pending_configurations_are_neither_repeated_nor_crowded() -> None:
    space = serving_space()
    study = study_of(MechanisticSampler(space=space, seed=1))
    records = drive(study, space, 14)
    known = {r.config for r in records}
    asked = []
    for _ in range(4):
        trial = study.ask(fixed_distributions=optuna_params(space, space.baseline, ())[1])
        asked.append(Config.from_dict(trial.params))
    assert len(set(asked)) == 4
    assert len(set(asked) - known) >= 3


def test_what_cannot_run_is_not_proposed_again_nor_anything_larger() -> None:
    space = serving_space()
    code = encode(space)
    question = Question.of(space.objective, code)
    broken = Config(batch_size=256, instance_count=2, cores_per_instance=2, batched_h2d=True)
    others = [Config(batch_size=b, cores_per_instance=1) for b in (1, 8, 32, 64)]
    records = [record_of(0, broken, "oom")]
    records += [record_of(i, c, "ok", **serve(c)) for i, c in enumerate(others, start=1)]
    seen = [observe(r, question, code) for r in records]
    posterior = Posterior(code, question, [o for o in seen if o is not None])
    larger = broken.changed(batch_size=384, instance_count=4, cores_per_instance=1)
    smaller = broken.changed(batch_size=16, instance_count=1)
    sliced = larger.changed(micro_batch_count=2, batch_size=64, instance_count=1)
    rows = np.array([code.row(c.as_dict()) for c in (broken, larger, smaller, sliced)])
    runs = posterior.runs(rows, code.features(rows))
    assert runs[0] == runs[1] == 0
    assert runs[2] > 0.7
    assert runs[3] > 0


def test_accidents_are_not_repeated_but_lost_trials_are_free() -> None:
    space = serving_space(params=parameters(batch_size=(1, 2, 4)))
    study = study_of(MechanisticSampler(space=space, seed=0))
    distribution: dict[str, BaseDistribution] = {"batch_size": IntDistribution(1, 4)}
    for batch, outcome in ((1, "crashed"), (4, "crashed"), (2, "lost")):
        record = record_of(0, Config(batch_size=batch), outcome)
        study.add_trial(
            optuna.trial.create_trial(
                state=TrialState.FAIL,
                params={"batch_size": batch},
                distributions=distribution,
                user_attrs={"record": to_json_dict(record)},
            )
        )
    assert study.ask(fixed_distributions=distribution).params == {"batch_size": 2}


# --- the rule of recommendation ----------------------------------------------------------------


def records_with_tails(tails: dict[int, list[float]]) -> list[TrialRecord]:
    """Trials of batches with P99 given relative to the limit."""
    return [
        record_of(
            i,
            Config(batch_size=batch),
            "ok",
            throughput_items_per_s=1000.0 * batch / (batch + 40),
            latency_p99_s=LIMIT_S * tail,
        )
        for i, (batch, tail) in enumerate((b, t) for b, ts in tails.items() for t in ts)
    ]


def batch_space() -> SearchSpace:
    return serving_space(params=parameters(batch_size=BATCHES), rules=())


def test_the_best_clearly_within_its_limit_is_recommended() -> None:
    tails = {4: [0.2], 16: [0.3], 64: [0.6], 128: [1.0], 256: [1.8]}
    found = insight(records_with_tails(tails), batch_space())
    assert found.best is not None
    assert found.best.config.batch_size == 64
    assert [s.config.batch_size for s in found.beliefs][:2] == [256, 128]


def test_one_measurement_close_to_the_limit_is_not_enough_but_many_are() -> None:
    few = {4: [0.2], 16: [0.3], 64: [0.6], 128: [0.94], 256: [1.8]}
    many = {**few, 128: [0.94, 0.93, 0.95, 0.94, 0.92, 0.95]}
    once, often = (insight(records_with_tails(t), batch_space()).best for t in (few, many))
    assert once is not None
    assert often is not None
    assert (once.config.batch_size, often.config.batch_size) == (64, 128)
    assert often.trials == 6


def test_nothing_is_recommended_where_nothing_holds() -> None:
    found = insight(records_with_tails({1: [2.0], 16: [2.2], 64: [3.0]}), batch_space())
    assert found.best is None
    assert all(s.limit_probability < 0.05 for s in found.beliefs)
    assert insight([], batch_space()).beliefs == ()


def test_a_minimum_of_throughput_and_a_weighted_goal_are_understood() -> None:
    space = batch_space()
    objective = Objective(
        name="o",
        goals=(Goal(metric="latency_p99"),),
        limits=(Limit(metric="throughput", bound=500.0),),
    )
    tails = {4: [0.2], 16: [0.3], 64: [0.6], 128: [0.94], 256: [1.8]}
    best = insight(records_with_tails(tails), replace(space, objective=objective)).best
    assert best is not None
    assert best.config.batch_size == 64  # the fastest of those above 500 items/s
    both = replace(
        objective, goals=(Goal(metric="latency_p99"), Goal(metric="throughput", weight=3))
    )
    best = insight(
        records_with_tails(tails), replace(space, objective=replace(both, limits=()))
    ).best
    assert best is not None
    scores = {4: 3 * math.log(1000 * 4 / 44) - math.log(0.2)}
    scores |= {b: 3 * math.log(1000 * b / (b + 40)) - math.log(tails[b][0]) for b in (16, 64, 128)}
    assert best.config.batch_size == max(scores, key=lambda b: scores[b])


def test_the_flat_region_and_what_was_not_tried() -> None:
    space = serving_space(
        params=parameters(
            batch_size=BATCHES, instance_count=(1, 2), batched_h2d=(False, True), x=("a", "b", "c")
        ),
        rules=(),
        objective=Objective(name="o"),
    )
    rng = np.random.default_rng(1)
    records = []
    for number, index in enumerate(rng.choice(len(BATCHES) * 8, 45, replace=False)):
        batch, h2d, x = BATCHES[index % 18], bool(index // 18 % 2), "ab"[index // 36 % 2]
        config = Config(batch_size=batch, batched_h2d=h2d, extra=(("x", x),))
        rate = 1000.0 * batch / (batch + 40) * math.exp(rng.normal(0, 0.005))
        records.append(record_of(number, config, "ok", throughput_items_per_s=rate))
    found = insight(records, space)
    assert found.best is not None and found.best.limit_probability == 1.0
    assert found.alike is not None and found.alike.count > 4
    assert "batched_h2d" in found.alike.indifferent
    assert "batch_size" not in found.alike.indifferent
    assert 1024 in found.alike.values["batch_size"]
    assert found.untried.total == 18 * 2 * 2 * 3
    assert found.untried.values == {"instance_count": (2,), "x": ("c",)}
    assert found.untried.count == found.untried.total - len({r.config for r in records})
    assert found.untried.maybe_better > 0  # two instances may well serve more
    assert found.expected_gain is not None and found.expected_gain > 0.01


# --- degenerate spaces -------------------------------------------------------------------------


def play(
    params: dict[str, tuple[Any, ...]], figures: Any, count: int, limit_s: float | None = None
) -> list[tuple[int, ...]]:
    """Rows proposed one after the other on a space without optuna."""
    code = Encoding([Dimension.of(n, c) for n, c in params.items()])
    limits = () if limit_s is None else (Limit(metric="latency_p99", bound=limit_s),)
    question = Question.of(Objective(name="o", limits=limits), code)
    candidates = Candidates(code, None, 0)
    seen: list[Observation] = []
    for number in range(count):
        proposal = propose(
            Posterior(code, question, seen),
            candidates,
            barred={o.row for o in seen if not o.runs},
            number=number,
            seed=0,
        )
        if proposal is None:
            break
        row = proposal.row
        values = figures(*(choices[i] for choices, i in zip(params.values(), row, strict=True)))
        seen.append(Observation(row=row, values=values or {}, runs=values is not None))
    return [o.row for o in seen]


def test_a_single_free_parameter() -> None:
    def curve(batch: int) -> dict[str, float]:
        return {"throughput": math.log(batch / (1e-3 + 1e-5 * batch * (1 + (batch / 300) ** 2)))}

    tried = play({"batch_size": BATCHES}, curve, 10)
    best = max(range(len(BATCHES)), key=lambda i: curve(BATCHES[i])["throughput"])
    assert (best,) in tried


def test_everything_equal_and_a_parameter_that_does_nothing() -> None:
    params = {"batch_size": BATCHES, "env.A": ("0", "1"), "x": (1.0, 2.0, 3.0)}
    assert len(play(params, lambda b, *_: {"throughput": 5.0}, 15)) == 15


def test_nothing_feasible_and_nothing_that_runs() -> None:
    figures = {"throughput": 5.0, "latency_p99": 1.0}
    assert len(play({"batch_size": BATCHES}, lambda b: figures, 12, limit_s=0.1)) == 12
    assert len(set(play({"batch_size": BATCHES}, lambda b: None, 30))) == len(BATCHES)


def test_a_million_combinations_are_searched_in_parts() -> None:
    params: dict[str, tuple[Any, ...]] = {"batch_size": tuple(range(1, 101))}
    params |= {name: tuple(range(1, 11)) for name in ("a", "b", "c", "d")}

    def figures(batch: int, a: int, b: int, c: int, d: int) -> dict[str, float]:
        cycle_s = 1e-3 * (1 + 0.1 * (a - 7) ** 2) + 1e-4 * batch * (1 + 0.1 * (b - 3) ** 2)
        return {"throughput": math.log(batch / cycle_s)}

    tried = play(params, figures, 25)
    worth = [
        figures(*(c[i] for c, i in zip(params.values(), r, strict=True)))["throughput"]
        for r in tried
    ]
    ideal = figures(100, 7, 3, 1, 1)["throughput"]
    assert max(worth) > ideal - 0.1


def test_float_distributions_and_no_batch() -> None:
    study = study_of(MechanisticSampler(seed=0))
    space: dict[str, BaseDistribution] = {
        "x": FloatDistribution(-3.0, 3.0),
        "n": IntDistribution(0, 10),
    }
    for _ in range(25):
        trial = study.ask(fixed_distributions=space)
        study.tell(trial, -((trial.params["x"] - 1) ** 2) - (trial.params["n"] - 4) ** 2)
    assert study.best_value > -0.3


def test_a_probe_is_of_something_new() -> None:
    """Whatever was tried before, on advice or by others, and whichever number a probe has."""
    space = serving_space(params=parameters(batch_size=(1, 2, 4, 8, 16)), rules=())
    configs = list(space.configs())
    tried: dict[Config, TrialRecord] = {}
    for config in configs:
        tried[config] = record_of(
            len(tried), config, "ok", throughput_items_per_s=1.0, latency_p99_s=LIMIT_S / 2
        )
        for number in range(PROBES):
            proposal = StudyModel(space, 0).next(tried.values(), number=number)
            assert proposal is not None
            again = StudyModel(space, 0).config(proposal.row) in tried
            assert again == (len(tried) == len(configs))


# --- cost --------------------------------------------------------------------------------------


def test_a_long_history_does_not_make_an_ask_slow() -> None:
    land = landscapes.simulate("overlap", 0)
    code = Encoding([Dimension.of(n, v) for n, v in land.params.items()])
    limits = (Limit(metric="latency_p99", bound=land.limit_s or 1.0),)
    question = Question.of(Objective(name="o", limits=limits), code)
    candidates = Candidates(code, None, 0)
    rng = np.random.default_rng(0)
    seen = []
    for index in rng.choice(len(land.rows), 1000, replace=False):
        rate, tail_s, _ = land.measure(int(index), rng)
        values = {"throughput": math.log(rate), "latency_p99": math.log(tail_s)}
        seen.append(Observation(row=tuple(land.rows[index].tolist()), values=values))

    def ask_s(count: int) -> float:
        began_s = time.process_time()
        posterior = Posterior(code, question, seen[:count])
        assert propose(posterior, candidates, number=count, seed=0)
        return time.process_time() - began_s

    short, long = (min(ask_s(count) for _ in range(3)) for count in (100, 1000))
    assert long < 5 * short  # cubic in the history it would be 1,000 times


def test_the_baselines_copies_are_probed_first() -> None:
    """Where its stage times say that many copies hold it back, the first probe batches them."""
    choices = parameters(batch_size=(1, 8, 64), batched_h2d=(False, True))
    space = replace(serving_space(params=choices, rules=()), baseline=Config())
    figures = {"throughput_items_per_s": 1.0, "latency_p99_s": LIMIT_S / 2}
    stages = {"h2d_mean_s": 0.6, "compute_mean_s": 0.4, "copies_per_call": 28}
    firsts = []
    for seed in range(6):
        for known in ({**figures, **stages}, figures):
            proposal = StudyModel(space, seed).next(
                [record_of(0, Config(), "ok", **known)], number=1
            )
            assert proposal is not None
            firsts.append(StudyModel(space, seed).config(proposal.row).batched_h2d)
    assert all(firsts[::2]) and not all(firsts[1::2])
