"""The best few measured again in fresh processes, side by side with the baseline.

Every round opens the baseline and the finalists afresh and gives them alternating windows; a
round is one pair of each finalist with the baseline. Rounds go on until every limit is shown to
hold or to be broken, within bounded looks and the budget of time.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from autotune.core.errors import TrialError
from autotune.core.objective import METRICS, Objective
from autotune.core.outcomes import Outcome
from autotune.core.records import (
    Comparison,
    Config,
    Measurement,
    Phase,
    Result,
    Samples,
    TrialRecord,
    Verdict,
)
from autotune.core.units import format_duration
from autotune.devices.base import DeviceInfo
from autotune.measure.judge import judge, variance_floor
from autotune.measure.ratio import geometric_mean, ratio_interval
from autotune.measure.summary import summarise
from autotune.measure.tail import MAX_LOOKS, judge_tail
from autotune.search.pooling import pooled
from autotune.search.rounds import (
    MIN_WINDOW_S,
    Entrant,
    Outcomes,
    fits_in_memory,
    ran_out_of_memory,
    run_round,
)
from autotune.space.search_space import Confirm, SearchSpace
from autotune.trial.session import Launcher
from autotune.workloads import WORKLOADS

MIN_ROUNDS = 6
LOOK_ALPHA_SHARE = 0.44  # three looks at 2.2 % each keep 5 % in all
CALLS_FOR_ALPHA = 1.5  # times the calls that a flawless tail needs, so that one slow call may be
MAX_STRETCH = 4.0  # of the measuring time, where a limit needs more calls
OPEN_S = 1.5  # opening and warming up one configuration, until trials have shown it
NEEDED_MARGIN = 1.25  # on an estimate that comes from few slow calls
FILL_SHARE = 0.9  # of the time left is planned for; openings vary
MAX_RESERVE_SHARE = 0.5  # of a budget of time


@dataclass(frozen=True, slots=True, kw_only=True)
class Needed:
    """What would settle the limits of a configuration.

    Attributes:
        more_s: Seconds of measuring beyond those it has had.
        duration_s: `confirm.duration` of a new confirmation, with a margin for chance.
        time_s: What that one takes in all, a second look included.
    """

    more_s: float
    duration_s: float
    time_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmation:
    """What fresh measurements say.

    Attributes:
        records: One per configuration measured again (phase "confirm"), the baseline included.
        comparisons: Every other one against the baseline; their n-th pairs are of one round.
        notes: Sentences for a person.
        needed: By undecided configuration, the confirmation that would settle its limits:
            those that no reachable one would are not in it.
    """

    records: tuple[TrialRecord, ...] = ()
    comparisons: tuple[Comparison, ...] = ()
    notes: tuple[str, ...] = ()
    needed: Mapping[Config, Needed] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What measuring the finalists again is done with.

    Attributes:
        time_s: Seconds left on the launcher's clock; None: no limit.
        on_progress: Told of every round.
        on_result: Given every configuration's raw result, under its record's number.
    """

    space: SearchSpace
    info: DeviceInfo
    launcher: Launcher
    time_s: float | None = None
    on_progress: Callable[[str], None] = lambda text: None
    on_result: Callable[[Phase, int, Result], None] = lambda phase, number, result: None


def reserve_s(space: SearchSpace, records: Sequence[TrialRecord] = ()) -> float:
    """Seconds to keep of the budget of time for the confirmation, at most half of it."""
    wanted_s = proof_s(space, _open_s(records))
    budget_s = space.budget.time_s
    return wanted_s if budget_s is None else min(wanted_s, MAX_RESERVE_SHARE * budget_s)


def proof_s(space: SearchSpace, open_s: float) -> float:
    """Seconds that the least number of rounds takes, if opening a configuration takes `open_s`."""
    if space.confirm is None:
        return 0.0
    finalists = space.confirm.top + 2  # the baseline and the best batch-only one
    return finalists * (space.confirm.duration_s + MIN_ROUNDS * open_s)


def confirm(
    candidates: Sequence[TrialRecord], baseline: TrialRecord | None, setup: Setup
) -> Confirmation:
    """Measure candidates against the baseline.

    Args:
        candidates: Best first; the first `top` and a batch-only one are usual.
        baseline: Its trial; None, or one that could not run: there is nothing to compare with.
    """
    options, time_s = setup.space.confirm, setup.time_s
    if options is None or not candidates:
        return Confirmation()
    entrants = _entrants(candidates, baseline)
    plan = _Schedule.fitting(entrants, setup.space, options, time_s)
    if plan is None:
        return Confirmation(
            notes=(f"confirmation skipped: {format_duration(time_s or 0.0)} left is too little",)
        )
    run = _Run(
        plan=plan,
        setup=setup,
        options=options,
        baseline=None if baseline is None else baseline.config,
    )
    run.go(until_s=None if time_s is None else setup.launcher.now_s() + time_s)
    confirmation = run.confirmation()
    for record in confirmation.records:
        if record.config in run.results:
            setup.on_result("confirm", record.number, run.pool(record.config))
    return confirmation


@dataclass(frozen=True, slots=True, kw_only=True)
class _Schedule:
    """Who takes part, and for how long each is measured in a round."""

    entrants: tuple[Entrant, ...]
    duration_s: float
    open_s: float
    notes: tuple[str, ...] = ()

    @property
    def round_s(self) -> float:
        return len(self.entrants) * (self.duration_s + self.open_s)

    @classmethod
    def fitting(
        cls,
        entrants: Sequence[Entrant],
        space: SearchSpace,
        options: Confirm,
        time_s: float | None,
    ) -> _Schedule | None:
        """The longest rounds that fit `MIN_ROUNDS` times; the least promising are dropped first."""
        open_s = _open_s([e.record for e in entrants])
        wanted_s = max(_wanted_s(e, space.objective, options) for e in entrants) / MIN_ROUNDS
        least_s = max(2 * MIN_WINDOW_S, min(options.duration_s / MIN_ROUNDS / 4, wanted_s))
        kept = list(entrants)
        while len(kept) > 1 or (kept and len(entrants) == 1):
            room_s = math.inf
            if time_s is not None:
                room_s = FILL_SHARE * time_s / MIN_ROUNDS / len(kept) - open_s
            if room_s >= least_s:
                dropped = len(entrants) - len(kept)
                were = "finalist was" if dropped == 1 else "finalists were"
                notes = (f"{dropped} {were} not measured again for lack of time",)
                return cls(
                    entrants=tuple(kept),
                    duration_s=min(wanted_s, room_s),
                    open_s=open_s,
                    notes=notes if dropped else (),
                )
            kept.pop()
        return None


@dataclass(slots=True, kw_only=True)
class _Run:
    """The rounds of a confirmation and what they have brought so far."""

    plan: _Schedule
    setup: Setup
    options: Confirm
    baseline: Config | None
    results: dict[Config, dict[int, Result]] = field(default_factory=dict)
    failures: dict[Config, TrialError] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    together: bool = True
    began_s: float = field(default_factory=time.time)

    def go(self, until_s: float | None) -> None:
        """Run rounds: the least number, then doubled while something is worth settling."""
        self.notes.extend(self.plan.notes)
        # An outside program's run cannot alternate with another's: each run is a turn.
        in_turns = WORKLOADS[self.setup.space.workload.kind].runs == "program"
        self.together = not in_turns and fits_in_memory(self.plan.entrants, self.setup.info)
        if not self.together and not in_turns:
            self._take_turns()
        done, entrants = 0, list(self.plan.entrants)
        for look in range(MAX_LOOKS):
            target = MIN_ROUNDS * 2**look
            while done < target and entrants:
                if (
                    until_s is not None
                    and self.setup.launcher.now_s() + self._round_s(entrants) > until_s
                ):
                    if done < MIN_ROUNDS:
                        self.notes.append(f"only {done} of {MIN_ROUNDS} rounds fitted the budget")
                    return
                self.setup.on_progress(
                    f"confirming: round {done + 1} of {target}, {len(entrants)} configurations"
                )
                self._round(entrants, done)
                done += 1
                entrants = [e for e in entrants if e.config not in self.failures]
            entrants = self._unsettled(entrants)
            if not entrants:
                return

    def _round_s(self, entrants: Sequence[Entrant]) -> float:
        return len(entrants) * (self.plan.duration_s + self.plan.open_s)

    def _round(self, entrants: Sequence[Entrant], number: int) -> None:
        outcomes = self._outcomes(entrants, number)
        if self.together and ran_out_of_memory(outcomes):
            self._take_turns()
            outcomes = self._outcomes(entrants, number)
        for config, outcome in outcomes.items():
            if isinstance(outcome, TrialError):
                self.failures[config] = outcome
            else:
                self.results.setdefault(config, {})[number] = outcome

    def _outcomes(self, entrants: Sequence[Entrant], number: int) -> Outcomes:
        return run_round(
            entrants,
            self.setup.space,
            self.setup.info,
            self.setup.launcher,
            number=number,
            duration_s=self.plan.duration_s,
            together=self.together,
        )

    def _take_turns(self) -> None:
        self.together = False
        self.notes.append(
            "the finalists do not fit in memory together: measured in turns, which is less precise"
        )

    def _unsettled(self, entrants: Sequence[Entrant]) -> list[Entrant]:
        """The baseline and those whose limits are open and whose figures promise most."""
        base = [e for e in entrants if e.config == self.baseline]
        others = [e for e in entrants if e.config != self.baseline]
        records = {e.config: self._record(0, e.config) for e in others}
        rates = {c: self._rate(c) for c in records}
        shown = [rates[c] for c, r in records.items() if r.verdict.outcome is Outcome.OK]
        bar = max(shown, default=0.0)
        unsettled = [
            e
            for e in others
            if records[e.config].verdict.outcome is Outcome.UNDECIDED and rates[e.config] > bar
        ]
        return [*base, *unsettled] if unsettled else []

    def _rate(self, config: Config) -> float:
        rates = [_throughput(result) for result in self.results.get(config, {}).values()]
        return geometric_mean(rates) if rates and min(rates) > 0 else 0.0

    # --- what came of it -----------------------------------------------------------------------

    def confirmation(self) -> Confirmation:
        """Records and comparisons of all rounds."""
        configs = [e.config for e in self.plan.entrants]
        known = [c for c in configs if c in self.results or c in self.failures]
        records = tuple(self._record(number, c) for number, c in enumerate(known))
        return Confirmation(
            records=records,
            comparisons=tuple(
                comparison
                for config in known
                if self.baseline is not None and config != self.baseline
                if (comparison := self._comparison(config, self.baseline)) is not None
            ),
            notes=tuple(self.notes),
            needed=self._needed(records),
        )

    def _record(self, number: int, config: Config) -> TrialRecord:
        record = TrialRecord(
            number=number,
            config=config,
            phase="confirm",
            verdict=Verdict(outcome=Outcome.LOST),
            started_at_s=self.began_s,
        )
        if config in self.failures:
            error = self.failures[config]
            verdict = Verdict(outcome=error.outcome, reasons=(str(error),))
            return replace(record, verdict=verdict, log_tail=error.log_tail)
        result = pooled(list(self.results[config].values()))
        try:
            measurement = summarise(result)
        except TrialError as error:
            verdict = Verdict(outcome=error.outcome, reasons=(str(error),))
            return replace(record, verdict=verdict, log_tail=error.log_tail)
        alpha = LOOK_ALPHA_SHARE * self.options.alpha
        verdict = judge(result, measurement, self.setup.space.objective, alpha=alpha)
        return replace(
            record,
            verdict=verdict,
            measurements=(measurement,),
            duration_s=measurement.duration_s or 0.0,
        )

    def _comparison(self, config: Config, baseline: Config) -> Comparison | None:
        ours, theirs = self.results.get(config, {}), self.results.get(baseline, {})
        ratios = tuple(
            _throughput(ours[n]) / _throughput(theirs[n])
            for n in sorted(ours.keys() & theirs.keys())
        )
        if not ratios or min(ratios) <= 0:
            return None
        return Comparison(
            config=config,
            reference=baseline,
            ratio=geometric_mean(ratios),
            ratio_ci=ratio_interval(ratios, 1 - self.options.alpha),
            alpha=self.options.alpha,
            pair_ratios=ratios,
            interleaved=self.together,
        )

    def _needed(self, records: Sequence[TrialRecord]) -> dict[Config, Needed]:
        alpha = LOOK_ALPHA_SHARE * self.options.alpha
        needed: dict[Config, Needed] = {}
        for r in records:
            if r.verdict.outcome is not Outcome.UNDECIDED or r.measurement is None:
                continue
            more_s = _more_s(self.pool(r.config), r.measurement, self.setup.space.objective, alpha)
            if more_s is None:
                continue
            duration_s = NEEDED_MARGIN * ((r.measurement.duration_s or 0.0) + more_s)
            round_s = duration_s / MIN_ROUNDS + self.plan.open_s
            looks_s = 2 * MIN_ROUNDS * len(self.plan.entrants) * round_s
            needed[r.config] = Needed(
                more_s=more_s, duration_s=duration_s, time_s=looks_s / FILL_SHARE
            )
        return needed

    def pool(self, config: Config) -> Result:
        """All rounds of a configuration together."""
        return pooled(list(self.results[config].values()))


def _entrants(candidates: Sequence[TrialRecord], baseline: TrialRecord | None) -> list[Entrant]:
    runs = baseline is not None and baseline.verdict.outcome.is_measured
    first = [baseline] if baseline is not None and runs else []
    others = [c for c in candidates if baseline is None or c.config != baseline.config]
    return [Entrant(record=record) for record in (*first, *others)]


def _wanted_s(entrant: Entrant, objective: Objective, options: Confirm) -> float:
    """How long to measure so that a tail without slow calls is shown to hold."""
    quantiles = [q for limit in objective.limits if (q := METRICS[limit.metric].quantile)]
    measurement = entrant.record.measurement
    if not quantiles or measurement is None or not measurement.call_count:
        return options.duration_s
    calls_per_s = measurement.call_count / max(measurement.duration_s or 0.0, 1e-9)
    alpha = LOOK_ALPHA_SHARE * options.alpha
    calls = max(math.log(alpha) / math.log(q) for q in quantiles)  # q^n <= alpha
    wanted_s = CALLS_FOR_ALPHA * calls / calls_per_s
    return min(max(options.duration_s, wanted_s), MAX_STRETCH * options.duration_s)


def _more_s(
    result: Result, measurement: Measurement, objective: Objective, alpha: float
) -> float | None:
    """Seconds of further measuring that would settle the open quantile limits."""
    if not isinstance(result, Samples) or not measurement.call_count:
        return None
    latency_s, floor = result.request_latency_s(), variance_floor(result)
    needs = [
        judge_tail(
            latency_s > limit.bound, quantile=quantile, alpha=alpha, variance_floor=floor
        ).needed_n
        for limit in objective.limits
        if (quantile := METRICS[limit.metric].quantile) is not None
    ]
    calls = [need for need in needs if need]
    rate = latency_s.size / max(measurement.duration_s or 0.0, 1e-9)
    return max(calls) / rate if calls and None not in needs else None


def _throughput(result: Result) -> float:
    try:
        return summarise(result).throughput_items_per_s or 0.0
    except TrialError:
        return 0.0


def _open_s(records: Sequence[TrialRecord]) -> float:
    """What a trial costs beyond its window."""
    costs = [
        max(r.cost_s - m.duration_s, 0.0)
        for r in records
        if (m := r.measurement) is not None and m.duration_s is not None
    ]
    return statistics.median(costs) if costs else OPEN_S
