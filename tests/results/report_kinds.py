"""Studies of every kind that a report has to show, made up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from autotune.apps.learning_rate import GENERATED, advice
from autotune.core.diagnosis import Breakdown, Diagnosis, Forecast, Kernel, Roofline
from autotune.core.insight import Alike, Insight, Untried
from autotune.core.objective import Goal, Objective
from autotune.core.outcomes import Outcome
from autotune.core.pipeline import RankTrace, Span, StepTrace
from autotune.core.records import (
    Config,
    Load,
    Measurement,
    Recommendation,
    TrialRecord,
    Verdict,
)
from autotune.measure.noise_scale import NoiseScale
from autotune.measure.pipeline_timeline import figures_of, replay
from autotune.results.ranking import rank
from autotune.results.recommend import decide
from autotune.results.study_result import Ending, StudyResult, WarmStart

Make = Callable[..., StudyResult]
Trial = Callable[..., TrialRecord]

INSIGHT = Insight(
    expected_gain=0.01,
    alike=Alike(
        within=0.02, count=9, tested=3, indifferent=("batched_h2d", "instance_count"),
        values={"batch_size": (16, 32, 64), "micro_batch_count": tuple(range(1, 10))},
    ),
    untried=Untried(count=7, total=40, values={"instance_count": (2,)}, maybe_better=2),
)  # fmt: skip
LONG = "a_name_that_is_longer_than_any_that_a_careful_person_would_give_to_it_" * 2


def pipeline(whole: StudyResult) -> StudyResult:
    """Two trials of two stages, 2 micro-batches and 4; the second one is recommended."""
    records = tuple(_stages(count, number) for number, count in enumerate((2, 4)))
    base, best = records
    facts = replace(
        whole.facts,
        baseline=base.config,
        params={"micro_batch_count": (2, 4), "schedule": ("GPipe",)},
    )
    chosen = Recommendation(status="unconfirmed", record=best, baseline=base)
    return replace(whole, facts=facts, records=records, recommendation=chosen)


def another_batch(whole: StudyResult) -> StudyResult:
    """The same, with all that may be said where the batch is not the baseline's."""
    found = pipeline(whole)
    scales = (
        NoiseScale(items=3121.5, low=840.2, high=9e3, steps=40),
        NoiseScale(items=31.5, low=8.4, high=None, steps=40),
        NoiseScale(items=None, low=None, high=None, steps=40),
    )
    reasons = (
        *advice(32, 8), *advice(8, 32), *(f"{scale.text()}; {GENERATED}" for scale in scales),
        "the gradient noise scale could not be measured: 0x1f",
    )  # fmt: skip
    return replace(found, recommendation=replace(found.recommendation, reasons=reasons))


def _stages(count: int, number: int) -> TrialRecord:
    config = Config.from_dict(
        {"global_batch_size": 8, "micro_batch_count": count, "schedule": "GPipe"}
    )
    orders = [[(kind, rank, i) for kind in "FB" for i in range(count)] for rank in (0, 1)]
    lengths_s = {("F", 0): 0.1, ("B", 0): 0.2, ("F", 1): 0.2, ("B", 1): 0.4}
    lines = replay(orders, {key: 1.5 * s / count for key, s in lengths_s.items()})
    late = [[s._replace(start_s=s.start_s + 0.05, end_s=s.end_s + 0.05) for s in x] for x in lines]
    end_s = max(span.end_s for line in late for span in line)
    traces = [
        RankTrace(
            rank=rank, replica=0, place=rank, stages=(rank,), layers=(2,), schedule="GPipe",
            chunks=1, micro_batches=count, rounds=1, memory_peak_bytes=2**20,
            steps=(StepTrace(end_s + 0.1, (*line, Span("R", -1, -1, end_s, end_s + 0.1))),),
        )
        for rank, line in enumerate(late)
    ]  # fmt: skip
    measurement = Measurement(
        throughput_items_per_s=8 / end_s, latency_p99_s=end_s, memory_peak_bytes=2**20,
        pipeline=figures_of(traces),
    )  # fmt: skip
    return TrialRecord(
        number=number,
        config=config,
        phase="search" if number else "baseline",
        verdict=Verdict(outcome=Outcome.OK),
        measurements=(measurement,),
    )


def kinds(make_study: Make, make_trial: Trial) -> dict[str, StudyResult]:
    """By name."""
    whole = make_study()
    facts = whole.facts
    start = WarmStart(study="older", ended_at_s=0.0, agrees=True)
    found = {
        "confirmed": whole,
        "insight": replace(whole, insight=INSIGHT, warm_start=start),
        "unconfirmed": make_study(confirmed=False),
        "infeasible": make_study(limit_s=0.0005),
        "undecided": replace(
            whole,
            recommendation=replace(
                whole.recommendation,
                status="undecided",
                reasons=("a gain over the baseline is not shown: wider than a factor of 1,000",),
            ),
        ),
        "simulated": replace(whole, facts=replace(facts, origin="simulated")),
        "replayed": replace(
            whole, facts=replace(facts, origin="replayed", trials=99), ending=Ending()
        ),
        "empty": replace(whole, records=(), recommendation=Recommendation(status="infeasible")),
        "long names": _with_long_names(whole),
        "many parameters": _with_many_parameters(whole),
        "device": _with_device(whole),
        "rate": _at_sought_rates(whole),
        "pipeline": pipeline(whole),
        "another batch": another_batch(whole),
    }
    found |= {f"knee {share}": _knee(whole, share) for share in (0.9, 0.999)}
    found |= {"front": _goals(whole, front=True), "weighted": _goals(whole, front=False)}
    for outcome in Outcome:
        if not outcome.is_measured:
            failed = make_trial(
                Config(cores_per_instance=1), outcome=outcome, reasons=("ValueError: 0x1f",)
            )
            failed = replace(failed, log_tail="Traceback (most recent call last)\n" + "x" * 300)
            decided = decide(rank((failed,), facts.objective, failed.config), facts.objective)
            found[str(outcome)] = replace(whole, records=(failed,), recommendation=decided)
    return found


def _knee(whole: StudyResult, share: float) -> StudyResult:
    wanted = replace(whole.facts.objective, knee_share=share)
    decided = decide(rank(whole.records, wanted, whole.facts.baseline), wanted)
    return replace(whole, facts=replace(whole.facts, objective=wanted), recommendation=decided)


def _goals(whole: StudyResult, *, front: bool) -> StudyResult:
    goals = (Goal(metric="throughput"), Goal(metric="latency_p99", weight=0.5))
    limits = whole.facts.objective.limits
    wanted = Objective(name="pareto", goals=goals, limits=limits, front=front)
    records = [
        replace(r, verdict=replace(r.verdict, objectives=_figures(r.measurement)))
        if r.measurement
        else r
        for r in whole.records
    ]
    decided = decide(rank(records, wanted, whole.facts.baseline), wanted)
    facts = replace(whole.facts, objective=wanted)
    return replace(whole, facts=facts, records=tuple(records), recommendation=decided)


def _figures(measurement: Measurement) -> dict[str, float]:
    rate, latency_s = measurement.throughput_items_per_s, measurement.latency_p99_s
    return {"throughput_items_per_s": rate or 0.0, "latency_p99_s": latency_s or 0.0}


def _at_sought_rates(whole: StudyResult) -> StudyResult:
    """A rate that is sought: trials are estimates, and nothing has an interval."""
    records = []
    for record in whole.records:
        if record.measurement is not None:
            rate = record.measurement.throughput_items_per_s
            measurement = replace(
                record.measurement, throughput_ci95_items_per_s=None, arrival_rate_per_s=rate,
                estimated=("latency_p99_s",),
            )  # fmt: skip
            reason = "3,210/s promise to hold latency_p99 20.0 ms, not shown"
            verdict = replace(record.verdict, outcome=Outcome.UNDECIDED, reasons=(reason,))
            record = replace(record, measurements=(measurement,), verdict=verdict)
        records.append(record)
    objective = replace(whole.facts.objective, load=Load(kind="poisson"))
    notes = ("2 of 3 finalists were not measured again for lack of time",)
    decided = decide(rank(records, objective, whole.facts.baseline), objective, notes=notes)
    facts = replace(whole.facts, objective=objective)
    return replace(whole, facts=facts, records=tuple(records), recommendation=decided)


def _with_long_names(whole: StudyResult) -> StudyResult:
    facts = replace(
        whole.facts,
        study=LONG,
        workload=f"/home/{LONG}.py:{LONG} (torch, float32)",
        device=f"cpu: {LONG}",
        settings={**whole.facts.settings, "rules": LONG},
        command=("autotune run", f"--space {LONG}"),
    )
    return replace(_changed(whole, (("env.VERY_LONG_VARIABLE_NAME", LONG),)), facts=facts)


def _with_many_parameters(whole: StudyResult) -> StudyResult:
    extra = tuple(sorted((f"onnxruntime.option_{n}", n) for n in range(12)))
    params = {**whole.facts.params, **{name: (0, n) for name, n in extra}}
    return replace(_changed(whole, extra), facts=replace(whole.facts, params=params))


def _changed(whole: StudyResult, extra: tuple[tuple[str, object], ...]) -> StudyResult:
    """The study with further parameters in every configuration but the baseline's."""

    def of(record: TrialRecord) -> TrialRecord:
        config = replace(record.config, extra=extra)  # type: ignore[arg-type]
        return replace(record, config=config)

    records = tuple(r if r.config == whole.facts.baseline else of(r) for r in whole.records)
    objective = whole.facts.objective
    decided = decide(rank(records, objective, whole.facts.baseline), objective)
    return replace(whole, records=records, recommendation=decided)


def _with_device(whole: StudyResult) -> StudyResult:
    """All that a device can tell, two workers, and a verdict on where the time goes."""

    def told(record: TrialRecord) -> TrialRecord:
        if record.measurement is None:
            return record
        step_s = 0.8 * (record.measurement.latency_p50_s or 0.0)
        measurement = replace(
            record.measurement, h2d_mean_s=0.4 * step_s, compute_mean_s=0.5 * step_s,
            d2h_mean_s=0.1 * step_s, copies_per_call=28, device_busy_ratio=0.43, power_w=210.4,
            energy_per_item_j=0.0123, trust="noisy: another process took 12% of its cores",
            telemetry={"utilisation_mean_ratio": 0.43, "power_mean_w": 210.4},
        )  # fmt: skip
        return replace(record, measurements=(measurement,), worker=f"host-{record.number % 2}")

    proof = whole.recommendation
    assert proof.record is not None
    changed = replace(
        proof,
        record=told(proof.record),
        confirmations=tuple(map(told, proof.confirmations)),
        baseline=told(proof.baseline) if proof.baseline else None,
    )
    records = tuple(map(told, whole.records))
    return replace(
        whole, records=records, recommendation=changed,
        diagnoses=(_diagnosis(whole.facts.baseline), _diagnosis(proof.record.config)),
    )  # fmt: skip


def _diagnosis(config: Config) -> Diagnosis:
    return Diagnosis(
        config=config,
        source="profile",
        part="h2d",
        share=0.536,
        shares={"h2d": 0.536, "gaps": 0.2, "compute": 0.264},
        breakdown=Breakdown(
            span_s=1.0, call_count=100, busy_s=0.264, h2d_s=0.536, h2d_alone_s=0.536,
            h2d_count=2800, idle_s=0.2, gap_count=5000, gap_s=0.7,
            kernels=(Kernel(name="MatMul", count=400, total_s=0.2, share=0.75),),
        ),
        knob="batched_h2d",
        forecasts=(
            Forecast(
                knob="batched_h2d", before=False, after=True, gain=1.98, formula="1 / (1 - 0.5)",
                source="Amdahl", measured=2.1, measured_ci=(2.0, 2.2), trials=(3, 7),
            ),
            Forecast(knob="instance_count", before=1, after=2, gain=1.3),
        ),
        roofline=Roofline(
            flops=1e9, moved_bytes=1e8, peak_flops_per_s=5e10, peak_bytes_per_s=1e10
        ),
        efficiency=0.91,
        sentences=("Copies to the device hold it back: 53.6% of the time.",),
    )  # fmt: skip
