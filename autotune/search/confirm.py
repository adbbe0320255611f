"""The best few measured again in fresh processes, side by side with the baseline.

Every round opens the baseline and the finalists afresh and gives them alternating windows; a
round is one pair of each finalist with the baseline. Rounds go on until every limit is shown to
hold or to be broken, within bounded looks and the budget of time.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from autotune.core.errors import TrialError
from autotune.core.outcomes import Outcome
from autotune.core.records import (
    Comparison,
    Config,
    Phase,
    Result,
    Samples,
    TrialRecord,
    TurnRate,
    Verdict,
)
from autotune.core.units import format_duration
from autotune.devices.base import DeviceInfo
from autotune.measure.judge import in_doubt, judge
from autotune.measure.noise import outside_level, trust_of, with_trust
from autotune.measure.pooling import pooled
from autotune.measure.ratio import geometric_mean, ratio_interval
from autotune.measure.summary import summarise
from autotune.measure.tail import MAX_LOOKS, look_alpha
from autotune.search.rounds import (
    Check,
    Entrant,
    Outcomes,
    fits_in_memory,
    ran_out_of_memory,
    run_round,
    runs_alone,
    unchecked,
)
from autotune.search.schedule import FILL_SHARE, MIN_ROUNDS, Schedule, least_s
from autotune.search.turns import turn_rates
from autotune.search.watch import Watch
from autotune.space.search_space import Confirm, SearchSpace
from autotune.trial.session import Launcher

NEEDED_MARGIN = 1.25  # on an estimate that comes from few slow calls
MIN_QUIET_ROUNDS = 4  # that stand for a look though others of it were noisy
MAX_EXTRA_ROUNDS = 3  # per look, in place of noisy ones


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
        turns: By configuration the rates of its windows.
    """

    records: tuple[TrialRecord, ...] = ()
    comparisons: tuple[Comparison, ...] = ()
    notes: tuple[str, ...] = ()
    needed: Mapping[Config, Needed] = field(default_factory=dict)
    turns: Mapping[Config, tuple[TurnRate, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What measuring the finalists again is done with.

    Attributes:
        time_s: Seconds left on the launcher's clock; None: no limit.
        watch: On the machine; None: nothing is known of it.
        check: Of the outputs of every session.
        on_progress: Told of every round.
        on_result: Given every configuration's raw result, under its record's number.
    """

    space: SearchSpace
    info: DeviceInfo
    launcher: Launcher
    time_s: float | None = None
    watch: Watch | None = None
    check: Check = unchecked
    on_progress: Callable[[str], None] = lambda text: None
    on_result: Callable[[Phase, int, Result], None] = lambda phase, number, result: None


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
    together = not runs_alone(setup.space) and fits_in_memory(entrants, setup.info)
    plan = Schedule.fitting(entrants, setup.space, options, time_s, together=together)
    if plan is None:
        shortest_s = least_s(entrants, together=together)
        left, least = (format_duration(s) for s in (time_s or 0.0, shortest_s))
        note = f"confirmation skipped: {left} left is too little; it takes {least} at least"
        return Confirmation(notes=(note,))
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


@dataclass(slots=True, kw_only=True)
class _Run:
    """The rounds of a confirmation and what they have brought so far."""

    plan: Schedule
    setup: Setup
    options: Confirm
    baseline: Config | None
    results: dict[Config, dict[int, Result]] = field(default_factory=dict)
    failures: dict[Config, TrialError] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    levels: dict[int, float] = field(default_factory=dict)
    canary_ratios: dict[int, float | None] = field(default_factory=dict)
    dropped: set[int] = field(default_factory=set)
    began_s: float = field(default_factory=time.time)

    def go(self, until_s: float | None) -> None:
        """Run rounds: the least number, then doubled while something is worth settling."""
        self.notes.extend(self.plan.notes)
        if not self.plan.together and not runs_alone(self.setup.space):
            self._take_turns()
        entrants = list(self.plan.entrants)
        for look in range(MAX_LOOKS):
            own: list[int] = []
            while entrants and (len(own) < self._wanted(look) or self._spoiled(own, look)):
                done = len(self.levels)
                if until_s is not None and self._now_s() + self.plan.round_s(entrants) > until_s:
                    if done < MIN_ROUNDS:
                        self.notes.append(f"only {done} of {MIN_ROUNDS} rounds fitted the budget")
                    self._drop_noisiest(own, look)
                    return
                total = max(MIN_ROUNDS * 2**look, done + 1)
                self.setup.on_progress(
                    f"confirming: round {done + 1} of {total}, {len(entrants)} configurations"
                )
                self._round(entrants, done)
                own.append(done)
                entrants = [e for e in entrants if e.config not in self.failures]
            self._drop_noisiest(own, look)
            entrants = self._unsettled(entrants)
            if not entrants:
                return

    def _now_s(self) -> float:
        return self.setup.launcher.now_s()

    def _wanted(self, look: int) -> int:
        """Rounds of a look: each doubles what there is."""
        return MIN_ROUNDS << max(look - 1, 0)

    def _spoiled(self, own: Sequence[int], look: int) -> bool:
        """True if a noisy round of a look is worth another: not if the last one came out no better.

        Rounds are chosen by what was waited and by the canary, never by their figures.
        """
        extra = len(own) - self._wanted(look)
        noisy = sum(self.levels[number] > 0 for number in own)
        if extra >= MAX_EXTRA_ROUNDS or noisy <= extra:
            return False
        return extra == 0 or self.levels[own[-1]] == 0

    def _drop_noisiest(self, own: Sequence[int], look: int) -> None:
        """Keep the rounds that a look was to have, the quiet ones alone if they are enough."""
        quiet = [number for number in own if self.levels[number] == 0]
        by_noise = sorted(own, key=lambda number: (self.levels[number], number))
        kept = quiet if len(quiet) >= MIN_QUIET_ROUNDS else by_noise
        dropped = set(own) - set(kept[: self._wanted(look)])
        self.dropped |= dropped
        if dropped:
            rounds = "disturbed round does" if len(dropped) == 1 else "disturbed rounds do"
            self.notes.append(f"{len(dropped)} {rounds} not count")

    def _round(self, entrants: Sequence[Entrant], number: int) -> None:
        outcomes = self._outcomes(entrants, number)
        if self.plan.together and ran_out_of_memory(outcomes):
            self._take_turns()
            outcomes = self._outcomes(entrants, number)
        ratio = None if self.setup.watch is None else self.setup.watch.ratio()
        samples = [o for o in outcomes.values() if isinstance(o, Samples) and o.start_s.size]
        self.levels[number] = max((outside_level(s, ratio) for s in samples), default=0.0)
        self.canary_ratios[number] = ratio
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
            together=self.plan.together,
            check=self.setup.check,
            calls=self.plan.calls,
        )

    def _take_turns(self) -> None:
        self.plan = replace(self.plan, together=False)
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
        rates = [_throughput(result) for result in self._kept(config).values()]
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
                if config not in self.failures
                if (comparison := self._comparison(config, self.baseline)) is not None
            ),
            notes=tuple(self.notes),
            needed=self._needed(records),
            turns={c: turn_rates(self._kept(c)) for c in self.results},
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
        result = self.pool(config)
        try:
            measurement = summarise(result)
        except TrialError as error:
            verdict = Verdict(outcome=error.outcome, reasons=(str(error),))
            return replace(record, verdict=verdict, log_tail=error.log_tail)
        objective = self.setup.space.objective
        verdict = judge(result, measurement, objective, alpha=look_alpha(self.options.alpha))
        if isinstance(result, Samples):
            ratio = self._canary_ratio(config)
            trust = trust_of(result, canary_ratio=ratio)
            measurement = with_trust(measurement, trust, ratio)
            verdict = in_doubt(verdict, measurement, objective)
        return replace(
            record,
            verdict=verdict,
            measurements=(measurement,),
            duration_s=measurement.duration_s or 0.0,
        )

    def _comparison(self, config: Config, baseline: Config) -> Comparison | None:
        ours, theirs = self._kept(config), self._kept(baseline)
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
            interleaved=self.plan.together,
        )

    def _needed(self, records: Sequence[TrialRecord]) -> dict[Config, Needed]:
        needed: dict[Config, Needed] = {}
        for r in records:
            more_s = r.verdict.needed_s
            if more_s is None or r.measurement is None:
                continue
            duration_s = NEEDED_MARGIN * ((r.measurement.duration_s or 0.0) + more_s)
            round_s = duration_s / MIN_ROUNDS + self.plan.open_s
            looks_s = 2 * MIN_ROUNDS * len(self.plan.entrants) * round_s
            needed[r.config] = Needed(
                more_s=more_s, duration_s=duration_s, time_s=looks_s / FILL_SHARE
            )
        return needed

    def _kept(self, config: Config) -> dict[int, Result]:
        """A configuration's results by round, without those that were dropped for noise."""
        results = self.results.get(config, {})
        kept = {n: result for n, result in results.items() if n not in self.dropped}
        return kept or results

    def _canary_ratio(self, config: Config) -> float | None:
        known = [r for n in self._kept(config) if (r := self.canary_ratios[n]) is not None]
        return statistics.median(known) if known else None

    def pool(self, config: Config) -> Result:
        """All rounds of a configuration that count, together."""
        return pooled(list(self._kept(config).values()))


def _entrants(candidates: Sequence[TrialRecord], baseline: TrialRecord | None) -> list[Entrant]:
    runs = baseline is not None and baseline.verdict.outcome.is_measured
    first = [baseline] if baseline is not None and runs else []
    others = [c for c in candidates if baseline is None or c.config != baseline.config]
    return [Entrant(record=record) for record in (*first, *others)]


def _throughput(result: Result) -> float:
    try:
        return summarise(result).throughput_items_per_s or 0.0
    except TrialError:
        return 0.0
