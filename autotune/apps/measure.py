"""`autotune measure`: one configuration, measured well, in several fresh sessions."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from autotune.apps.resolve import only_config, resolve, study_facts
from autotune.apps.view import View
from autotune.core.codec import to_json_dict
from autotune.core.errors import UsageError
from autotune.core.records import Config, Measurement, Result, TrialRecord
from autotune.core.units import format_duration
from autotune.measure.judge import judge
from autotune.measure.pooling import pooled
from autotune.measure.ratio import geometric_mean, ratio_interval
from autotune.measure.summary import summarise
from autotune.results.study_result import StudyFacts
from autotune.results.words import config_text, trust_text
from autotune.search.conditions import fingerprint_of
from autotune.space.search_space import Confirm, SearchSpace
from autotune.trial.group import group_spec, trial_plan
from autotune.trial.session import Launcher, open_session

SESSIONS = 6
"""Fresh sessions: processes differ more from each other than the windows of one."""

SETTINGS = ("workload", "device", "limits", "load")
"""Those of a study that matter to a single measurement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureResult:
    """One configuration measured.

    Attributes:
        record: All sessions together; its throughput interval is over the sessions.
        sessions: What each session measured.
        conditions: What makes its figures comparable, each in words.
    """

    facts: StudyFacts
    record: TrialRecord
    sessions: tuple[Measurement, ...]
    conditions: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As `measure --json` prints it."""
        measurement = self.record.measurement
        assert measurement is not None, "a failed session raises"
        return to_json_dict(
            {
                "schema": 1,
                "workload": self.facts.workload,
                "device": self.facts.device,
                "config": self.record.config.as_dict(),
                "measurement": measurement,
                "verdict": self.record.verdict,
                "sessions": [
                    {
                        "throughput_items_per_s": session.throughput_items_per_s,
                        "latency_p99_s": session.latency_p99_s,
                    }
                    for session in self.sessions
                ],
                "origin": self.facts.origin,
                "conditions": self.conditions,
                "trust": trust_text(self.record),
                "elapsed_s": self.record.duration_s,
            }
        )


def measure(
    space: SearchSpace, *, view: View | None = None, sessions: int = SESSIONS
) -> MeasureResult:
    """Measure the configuration that a space fixes; open parameters have the baseline's value.

    Together the sessions measure at least as long as a confirmation would.

    Raises:
        TrialError: The configuration cannot run.
        UsageError, UnavailableError: Something about it is wrong or missing.
    """
    view = view or View()
    resolved = resolve(space)
    space = resolved.space
    config = only_config(space)
    if space.objective.load.seeks_rate:
        kind = space.objective.load.kind
        raise UsageError(f"a single measurement needs a rate: --set load.{kind}.rate=500/s")
    facts = study_facts(resolved)
    options = space.confirm or Confirm()
    plan = trial_plan(space)
    each = f"{space.trial.iterations} calls"
    if space.trial.duration_s is not None:
        each_s = max(space.trial.duration_s, options.duration_s / sessions)
        windows = tuple(replace(window, duration_s=each_s) for window in plan.windows)
        plan = replace(plan, windows=windows, deadline_s=plan.deadline_s + each_s)
        each = format_duration(each_s)
    shown = {name: facts.settings[name] for name in SETTINGS}
    shown |= {"sessions": f"{sessions}, {each} each", "configuration": config_text(config)}
    view.resolved(replace(facts, study="", settings=shown))
    for note in space.notes:
        view.note(note)
    results: list[Result] = []
    with Launcher() as launcher:
        for number in range(sessions):
            view.confirming(f"session {number + 1} of {sessions}")
            with open_session(group_spec(config, space, resolved.info), launcher) as session:
                results.append(session.measure(replace(plan, arrival_seed=number)))
        elapsed_s = launcher.now_s()
    record = _record(config, space, results, options.alpha, elapsed_s)
    return MeasureResult(
        facts=facts,
        record=record,
        sessions=tuple(summarise(result) for result in results),
        conditions=fingerprint_of(space, resolved.info),
    )


def _record(
    config: Config, space: SearchSpace, results: Sequence[Result], alpha: float, elapsed_s: float
) -> TrialRecord:
    together = pooled(results)
    measurement = summarise(together)
    rates = [summarise(result).throughput_items_per_s for result in results]
    known = [rate for rate in rates if rate]
    if len(known) == len(results):
        measurement = replace(
            measurement,
            throughput_items_per_s=geometric_mean(known),
            throughput_ci95_items_per_s=_over_sessions(known),
        )
    return TrialRecord(
        number=0,
        config=config,
        phase="measure",
        verdict=judge(together, measurement, space.objective, alpha=alpha),
        measurements=(measurement,),
        started_at_s=time.time() - elapsed_s,
        duration_s=elapsed_s,
        cost_s=elapsed_s,
    )


def _over_sessions(rates: Sequence[float]) -> tuple[float, float] | None:
    return ratio_interval(rates, 0.95) if len(rates) > 1 else None
