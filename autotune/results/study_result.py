"""A whole study as a value: what `run` returns and what tables and report are made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

from autotune.core.diagnosis import Diagnosis
from autotune.core.insight import Insight
from autotune.core.objective import Objective
from autotune.core.outcomes import Outcome
from autotune.core.records import SCHEMA_VERSION, Config, Recommendation, Scalar, TrialRecord
from autotune.results.batch_knee import StudyKnee, study_knee
from autotune.results.front import FrontPoint, front_points
from autotune.results.goals import improvements
from autotune.results.ranking import Ranking, excess_ratio, rank
from autotune.results.thinning import thinned

MAX_DRAWN = 1000
"""Trials that a report shows one by one."""

STOPPED_BY_TIME = "stopped by time"

Origin = Literal["measured", "replayed", "simulated"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyFacts:
    """What a study is about; kept in its storage, so that it can be shown without its space file.

    Attributes:
        origin: Whether figures were measured here, replayed from a record or computed by a
            declared cost model.
        params: Every parameter's choices; a fixed one has a single choice.
        trials: Trials asked for, over all runs. `time_s`: seconds of one run, None: no limit.
        space_path: The space file; `space_text`: its text, overrides applied.
        settings: The resolved values as a person reads them.
        environment: Versions and machine of the tool's own process.
        command: How to run the study again, in words quoted for a shell.
    """

    study: str
    objective: Objective
    baseline: Config = Config()
    workload: str = ""
    device: str = ""
    origin: Origin = "measured"
    params: Mapping[str, tuple[Scalar, ...]] = field(default_factory=dict)
    trials: int = 0
    time_s: float | None = None
    space_path: str = ""
    space_text: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    schema_version: int = SCHEMA_VERSION


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How the last run of a study ended.

    Attributes:
        complete: All trials asked for, or all there are, have been run.
        crashed: It was given up because trials failed alike, one after the other.
        handed_over: Other workers of the study go on with it, and prove what is best.
        stopped: Why it ended before all trials were run, in words; else empty.
        elapsed_s: Seconds of all runs together, virtual ones included.
    """

    complete: bool = False
    crashed: bool = False
    handed_over: bool = False
    stopped: str = ""
    elapsed_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmStart:
    """An earlier study whose advice was tried first.

    Attributes:
        study: Its name. `ended_at_s`: when it ended, Unix time.
        differing: Conditions that differ between it and this study.
        agrees: Whether its figures held up here; None if nothing was measured in both.
    """

    study: str
    ended_at_s: float
    differing: tuple[str, ...] = ()
    agrees: bool | None = None


@dataclass(frozen=True, kw_only=True)
class StudyResult:
    """Everything a study found.

    Attributes:
        records: The baseline's and the search's trials in their order.
        report: Where the report is, None if none was written.
        insight: What the search's model believes; None where there is none.
        warm_start: None if no earlier study was followed.
        diagnoses: Where the time goes: of the baseline, then of what is recommended, as far as
            it was looked at.
        conditions: What makes its figures comparable, each in words.
    """

    facts: StudyFacts
    records: tuple[TrialRecord, ...]
    recommendation: Recommendation
    ending: Ending = Ending()
    report: Path | None = None
    insight: Insight | None = None
    warm_start: WarmStart | None = None
    diagnoses: tuple[Diagnosis, ...] = ()
    conditions: Mapping[str, str] = field(default_factory=dict)

    @property
    def status(self) -> str:
        """confirmed, unconfirmed, undecided, infeasible, or failed: nothing could be measured.

        As long as no trial is complete, it is undecided.
        """
        if not self.trial_count:
            return "undecided"
        if self.recommendation.record is None and not self.has_figures:
            return "failed"
        return self.recommendation.status

    @property
    def has_figures(self) -> bool:
        """True if any trial has a measurement."""
        return any(record.verdict.outcome.is_measured for record in self.records)

    @property
    def last_failure(self) -> TrialRecord | None:
        """The last trial that crashed or gave no result, else the last that could not run."""
        ran = [r for r in self.records if not r.verdict.outcome.is_retried]
        failed = [r for r in ran if not r.verdict.outcome.is_measured]
        accidents = [r for r in failed if r.verdict.outcome.is_accident]
        return next(reversed(accidents or failed), None)

    @property
    def config(self) -> Config | None:
        """The recommended configuration, None if infeasible."""
        return self.recommendation.record.config if self.recommendation.record else None

    @property
    def closest(self) -> TrialRecord | None:
        """If nothing can be recommended: what breaks the limits least, fresh if it was proven."""
        if self.recommendation.record is not None:
            return None
        refused = [
            record
            for record in self.recommendation.confirmations
            if record.verdict.outcome is Outcome.OVER_LIMIT
        ]
        objective = self.facts.objective
        return min(refused, key=lambda r: excess_ratio(r, objective), default=self.ranking.closest)

    @property
    def shown(self) -> TrialRecord | None:
        """The recommended trial, else the closest one."""
        return self.recommendation.record or self.closest

    @property
    def gain(self) -> float | None:
        """Throughput over the baseline's: fresh and side by side, else of the single trials."""
        recommendation = self.recommendation
        if recommendation.against_baseline is not None:
            return recommendation.against_baseline.ratio
        if recommendation.record is None or recommendation.baseline is None:
            return None
        if recommendation.record.config == recommendation.baseline.config:
            return 1.0
        return _quotient(_throughput(recommendation.record), _throughput(recommendation.baseline))

    @property
    def searched(self) -> tuple[str, ...]:
        """Names of the parameters that have more than one choice."""
        return tuple(name for name, choices in self.facts.params.items() if len(choices) > 1)

    @property
    def trial_count(self) -> int:
        """Trials that count: those whose worker died or was stopped are run again."""
        return sum(not record.verdict.outcome.is_retried for record in self.records)

    @property
    def counts(self) -> dict[str, int]:
        """All trials by outcome, in the order of the vocabulary, those that occurred alone."""
        counter = Counter(record.verdict.outcome for record in self.records)
        return {str(outcome): counter[outcome] for outcome in Outcome if counter[outcome]}

    @property
    def proven_ranking(self) -> Ranking:
        """The measured configurations in their order, by their fresh figures where there are any.

        The recommended one leads if it is confirmed.
        """
        fresh = {record.config: record for record in self.recommendation.confirmations}
        records = [
            replace(record, verdict=again.verdict, measurements=again.measurements, phase="confirm")
            if (again := fresh.get(record.config)) and not record.verdict.outcome.is_retried
            else record
            for record in self.records
        ]
        ranking = rank(records, self.facts.objective, self.facts.baseline, self.insight)
        if self.status != "confirmed":
            return ranking
        first = [record for record in ranking.ranked if record.config == self.config]
        rest = [record for record in ranking.ranked if record.config != self.config]
        return replace(ranking, ranked=(*first, *rest))

    @cached_property
    def knee(self) -> StudyKnee | None:
        """The knee of the curve over the batch size; None if the objective asks for none."""
        sizes = self.facts.params.get("batch_size", ())
        grid = tuple(int(size) for size in sizes if isinstance(size, int))
        found = study_knee(self.records, self.facts.objective, grid)
        if found is None or not self.recommendation.confirmations:
            return found
        return found.proven_as(self.config)

    @cached_property
    def front(self) -> tuple[FrontPoint, ...]:
        """Configurations that no other beats in all goals, by the first; () if none is wanted."""
        objective = self.facts.objective
        if not objective.front:
            return ()
        fresh = {record.config: record for record in self.recommendation.confirmations}
        standing = [fresh.get(r.config, r) for r in self.proven_ranking.ranked]
        holding = [r for r in standing if excess_ratio(r, objective) <= 0]
        seemed = {record.config for record in self.ranking.front}
        return front_points(holding, seemed, self.recommendation, objective)

    @property
    def improvements(self) -> dict[str, float]:
        """Of several goals each one's ratio to the baseline's; {} for a single goal."""
        proof, objective = self.recommendation, self.facts.objective
        if len(objective.goals) < 2 or proof.record is None or proof.baseline is None:
            return {}
        return improvements(proof.record, proof.baseline, objective, proof.against_baseline)

    @cached_property
    def drawn(self) -> tuple[TrialRecord, ...]:
        """The trials that charts and tables show: all, or of many what matters and a sample."""
        if len(self.records) <= MAX_DRAWN:
            return self.records
        matters = {self.facts.baseline, self.config}
        matters |= {r.config for r in (*self.recommendation.confirmations, *self.ranking.front)}
        if self.knee is not None and self.knee.config is not None:
            matters |= {
                self.knee.config.changed(batch_size=int(size))
                for size in self.facts.params.get("batch_size", ())
            }
        return thinned(self.records, self.ranking.ranked, matters, MAX_DRAWN)

    @cached_property
    def ranking(self) -> Ranking:
        """The measured configurations in their order."""
        return rank(self.records, self.facts.objective, self.facts.baseline, self.insight)


def _throughput(record: TrialRecord) -> float | None:
    return record.measurement.throughput_items_per_s if record.measurement else None


def _quotient(value: float | None, reference: float | None) -> float | None:
    return value / reference if value is not None and reference else None
