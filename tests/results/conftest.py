"""Studies made up for the tests of results: a serving model with a knee, seeded."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.core.objective import Goal, Limit, Objective
from autotune.core.outcomes import Outcome
from autotune.core.records import Comparison, Config, Measurement, TrialRecord, Verdict
from autotune.results.ranking import candidates, rank
from autotune.results.recommend import decide
from autotune.results.study_result import Ending, StudyFacts, StudyResult

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
"""For `report_kinds`, and `browser` above."""

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
BASELINE = Config(cores_per_instance=1)
OBJECTIVE = Objective(
    name="online_latency",
    goals=(Goal(metric="throughput"),),
    limits=(Limit(metric="latency_p99", bound=0.020),),
)


def a_trial(
    config: Config,
    *,
    number: int = 0,
    throughput: float = 1000.0,
    p99_s: float = 0.010,
    outcome: Outcome | None = None,
    reasons: tuple[str, ...] = (),
    phase: str = "search",
) -> TrialRecord:
    """A measured trial; its outcome follows from the limit of 20 ms unless given."""
    if outcome is None:
        outcome = Outcome.OK if p99_s <= 0.020 else Outcome.OVER_LIMIT
    record = TrialRecord(
        number=number,
        config=config,
        phase=phase,  # type: ignore[arg-type]
        verdict=Verdict(outcome=outcome, reasons=reasons),
        started_at_s=1.7e9 + number,
        duration_s=2.0,
        cost_s=2.3,
    )
    if not outcome.is_measured:
        return record
    measurement = Measurement(
        throughput_items_per_s=throughput,
        throughput_ci95_items_per_s=(0.98 * throughput, 1.02 * throughput),
        latency_p50_s=0.8 * p99_s,
        latency_p99_s=p99_s,
        memory_peak_bytes=300 * 2**20,
        environment={"torch": "2.13.0", "cores": "0 | 1"},
    )
    verdict = replace(
        record.verdict,
        objectives={"throughput_items_per_s": throughput},
        excess={"latency_p99_s": p99_s - 0.020},
    )
    return replace(record, verdict=verdict, measurements=(measurement,))


def a_comparison(config: Config, ratio: float, *, spread: float = 0.02) -> Comparison:
    """Six pairs around `ratio`, `spread` apart at most."""
    ratios = tuple(ratio * (1 + spread * k / 2.5) for k in (-2.5, -1.5, -0.5, 0.5, 1.5, 2.5))
    return Comparison(
        config=config,
        reference=BASELINE,
        ratio=ratio,
        ratio_ci=(ratio * (1 - 1.6 * spread), ratio * (1 + 1.6 * spread)),
        alpha=0.01,
        pair_ratios=ratios,
    )


def a_study(
    *,
    limit_s: float = 0.020,
    confirmed: bool = True,
    study: str = "online",
    seed: int = 0,
    trials: int = 32,
) -> StudyResult:
    """A searched, and if wanted proven, study of a model with 1.2 ms + 0.08 ms per item."""
    rng = random.Random(seed)
    objective = replace(OBJECTIVE, limits=(Limit(metric="latency_p99", bound=limit_s),))
    params: dict[str, tuple[object, ...]] = {
        "batch_size": BATCHES,
        "instance_count": (1, 2),
        "cores_per_instance": (1, 2),
        "batched_h2d": (False, True),
        "micro_batch_count": (1,),
    }
    grid = [
        Config(batch_size=b, instance_count=i, cores_per_instance=c, batched_h2d=h)
        for b in BATCHES
        for i in (1, 2)
        for c in (1, 2)
        for h in (False, True)
        if i * c <= 2
    ]
    tried = [BASELINE, *rng.sample([c for c in grid if c != BASELINE], trials - 1)]
    records = tuple(_serve(config, number, limit_s, rng) for number, config in enumerate(tried))
    ranking = rank(records, objective, BASELINE)
    recommendation = decide(ranking, objective)
    if confirmed and ranking.best is not None:
        finalists = [r.config for r in candidates(ranking, objective, 3)]
        fresh = [_serve(c, n, limit_s, rng) for n, c in enumerate([BASELINE, *finalists])]
        fresh = [replace(r, phase="confirm", cost_s=21.0) for r in fresh]
        base = fresh[0].verdict.objectives["throughput_items_per_s"]
        against = [
            a_comparison(r.config, r.verdict.objectives["throughput_items_per_s"] / base)
            for r in fresh[1:]
        ]
        recommendation = decide(ranking, objective, fresh=fresh, comparisons=against)
    facts = StudyFacts(
        study=study,
        objective=objective,
        baseline=BASELINE,
        workload="dlrm (torch, float32)",
        device="cpu: 2 cores",
        params=params,  # type: ignore[arg-type]
        trials=trials,
        space_path="online.yaml",
        space_text="study: online\nlimits: {latency_p99: 20ms}\n",
        settings={"sampler": "gp", "trial": "2 s", "confirm": "top 3, 20 s each, alpha 0.01"},
        environment={"autotune": "0.1.0", "python": "3.11.2", "optuna": "5.0.0"},
        command=("autotune run", "--space online.yaml"),
    )
    ending = Ending(complete=True, elapsed_s=141.2)
    return StudyResult(facts=facts, records=records, recommendation=recommendation, ending=ending)


def _serve(config: Config, number: int, limit_s: float, rng: random.Random) -> TrialRecord:
    if config.batch_size == 256 and config.instance_count == 2:
        reason = "needed 1.2 GiB, the trial may use 1 GiB"
        return a_trial(config, number=number, outcome=Outcome.OOM, reasons=(reason,))
    cores = config.instance_count * int(config.cores_per_instance)
    step = 0.0012 - 0.0002 * config.batched_h2d + 8e-5 * config.batch_size / cores**0.7
    throughput = config.batch_size * config.instance_count / step * rng.gauss(1, 0.03)
    p99 = step * 1.4 * rng.gauss(1, 0.04)
    outcome = Outcome.OK if p99 < 0.9 * limit_s else Outcome.UNDECIDED
    outcome = outcome if p99 <= limit_s else Outcome.OVER_LIMIT
    record = a_trial(
        config, number=number, throughput=throughput, p99_s=p99, outcome=outcome,
        phase="baseline" if number == 0 else "search",
        reasons=() if outcome is Outcome.OK else (f"P99 is {p99 * 1e3:.1f} ms",),
    )  # fmt: skip
    excess = {"latency_p99_s": p99 - limit_s}
    return replace(record, verdict=replace(record.verdict, excess=excess))


@pytest.fixture
def make_study() -> Callable[..., StudyResult]:
    return a_study


@pytest.fixture
def make_trial() -> Callable[..., TrialRecord]:
    return a_trial


@pytest.fixture
def make_comparison() -> Callable[..., Comparison]:
    return a_comparison
