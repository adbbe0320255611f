"""A plan measured: the scaling, the rate that one device has to hold, the load table's rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev

from autotune.apps.plan import Basics, counted, planned, read_basics, write_table
from autotune.apps.plan_options import PlanOptions
from autotune.apps.resolve import Resolved, prepare, resolve
from autotune.apps.store import load_stored
from autotune.apps.view import View
from autotune.core.errors import TrialError, UsageError
from autotune.core.objective import METRICS, Goal, Objective
from autotune.core.outcomes import Outcome
from autotune.core.records import Config, Load, Measurement, Samples, TurnRate
from autotune.core.units import format_rate
from autotune.measure.judge import judge
from autotune.measure.load_table import Row, steps
from autotune.measure.noise import QUIET
from autotune.measure.paired import LOOKS, Rule, judge_pairs
from autotune.measure.pooling import pooled
from autotune.measure.rate import Evidence, evaluate, known, window_plan
from autotune.measure.rate_target import RateGoal
from autotune.measure.scaling import CONFIDENCE, ScalePoint, fit_scaling
from autotune.measure.summary import summarise
from autotune.measure.tail import Status
from autotune.results.fleet import FleetPlan, LevelCheck, RateCheck
from autotune.results.fleet_words import devices_text
from autotune.results.words import config_text
from autotune.search.conditions import differences, fingerprint_of
from autotune.search.confirm import Setup
from autotune.search.confirm import confirm as measure_rounds
from autotune.search.pairs import Pairs, measure_pairs
from autotune.search.rounds import Contestant, Entrant
from autotune.space.loader import load_text
from autotune.space.search_space import Confirm, SearchSpace
from autotune.trial.group import group_spec
from autotune.trial.session import Launcher, open_session
from autotune.workloads import WORKLOADS

MAX_SHARING = 8  # devices that are measured together
MAX_BATCHES = 4  # of rounds, each twice as long, until the number of devices is settled
MAX_FURTHER = 3  # devices beyond the plan's, that are tried where its own does not hold the rate
WINDOW_SHARES = (0.25, 0.25, 0.5, 1.0, 2.0)  # of `confirm.duration`, one look after the other
FRESH_SEED = 2_000_003  # of arrivals; trials and proofs have others
ALPHA = 0.01
ROUNDING = 1.0 + 1e-9  # so that a rate times its number of devices is not just below the sum


def confirm_plan(study: str, options: PlanOptions, view: View | None = None) -> FleetPlan:
    """Plan from a study's records, then measure what the plan rests on.

    Raises:
        UsageError: As `plan`, or nothing says how to run the model.
        UnavailableError: It cannot be run here. KeyboardInterrupt: On Ctrl-C; nothing is kept.
    """
    view = view or View()
    basics = read_basics(study, options)
    counted(basics)  # what is impossible by the records is said before anything is measured
    resolved = _resolved(basics)
    basics = replace(basics, notes=(*basics.notes, *_changes(study, options, resolved)))
    with Launcher() as launcher:
        run = _Run(resolved, basics, launcher, options, view)
        found = run.go()
    if options.out is not None:
        write_table(found, options.out)
    return found


def _resolved(basics: Basics) -> Resolved:
    facts = basics.result.facts
    if not facts.space_text:
        raise UsageError(
            f"--confirm: study {facts.study} keeps no space file that says how to run the model"
        )
    space = load_text(facts.space_text, facts.space_path, [])
    if WORKLOADS[space.workload.kind].runs in ("report", "program"):
        raise UsageError(
            f"--confirm: {space.workload.kind} hands over finished figures, of which no more can "
            "be had than the study has"
        )
    return resolve(space)


def _changes(study: str, options: PlanOptions, resolved: Resolved) -> tuple[str, ...]:
    """What is not as it was when the study was made.

    Raises:
        UsageError: It is another device.
    """
    old = load_stored(study, options.studies_dir, options.storage).fingerprint
    new = fingerprint_of(resolved.space, resolved.info)
    if old.get("device", "") not in ("", new["device"]):
        raise UsageError(
            f"--confirm: study {study} is of {old['device']}, and here is {new['device']}; "
            "measure where the study was made"
        )
    changed = differences(old, new) if old else []
    return (f"since the study was made: {'; '.join(changed)}",) if changed else ()


@dataclass(slots=True)
class _Run:
    """What is measured, and what came of it so far."""

    resolved: Resolved
    basics: Basics
    launcher: Launcher
    options: PlanOptions
    view: View

    def go(self) -> FleetPlan:
        prepare(self.resolved, self.view)
        self._measure_scaling()
        if not self.basics.queues:
            return replace(planned(self.basics), basis=self.basics.basis)
        checks = self._rate_checks()
        found = planned(self.basics)
        return self._checked_levels(replace(found, rate_checks=tuple(checks)))

    # --- scaling -------------------------------------------------------------------------------

    def _measure_scaling(self) -> None:
        """Several devices side by side, again and longer while their number is open."""
        most = min(1 + len(self.resolved.info.peers), MAX_SHARING)
        if self.basics.wanted.per_machine is not None:
            most = min(most, self.basics.wanted.per_machine)
        is_plain = not self.basics.queues
        if most == 1 and not is_plain:
            return
        points: list[ScalePoint] = []
        for batch in range(MAX_BATCHES):
            points += self._rounds(_counts(most), 2**batch)
            if not points:
                return
            self._take(points)
            found = counted(self.basics)
            if found.likely_devices == found.devices or not is_plain or not self._has_time():
                return

    def _rounds(self, counts: Sequence[int], stretch: int) -> list[ScalePoint]:
        full = self.basics.full
        space = self._space(Load(), ())
        options = space.confirm or Confirm()
        longer = replace(options, duration_s=stretch * options.duration_s)
        records = [replace(full.record, config=_on(full.config, n)) for n in counts]
        found = measure_rounds(
            records[1:] or records,
            records[0],
            Setup(
                space=replace(space, confirm=longer),
                info=self.resolved.info,
                launcher=self.launcher,
                time_s=self._left_s(),
                on_progress=lambda text: self.view.confirming(f"scaling, {text}"),
            ),
        )
        by_config = {_on(full.config, n): n for n in counts}
        return [
            point
            for config, turns in found.turns.items()
            if (point := _point(by_config[config], turns)) is not None
        ]

    def _take(self, points: Sequence[ScalePoint]) -> None:
        """Let what was measured afresh take the place of what the study has."""
        scaling = fit_scaling(points)
        fleet = self.basics.fleet
        if not self.basics.queues:
            fleet = replace(
                fleet,
                single_per_s=scaling.least_rate(1),
                likely_per_s=scaling.rate(1),
                is_own=True,
            )
            self.basics = replace(self.basics, basis="rounds")
        shares = scaling if scaling.measured_up_to > 1 else None
        self.basics = replace(self.basics, fleet=replace(fleet, scaling=shares, _ratios={}))

    # --- the rate ------------------------------------------------------------------------------

    def _rate_checks(self) -> list[RateCheck]:
        """From the number that is likely to do, one more each time, until one is shown to."""
        first, fleet = counted(self.basics), self.basics.fleet
        checks: list[RateCheck] = []
        for count in range(first.likely_devices, first.devices + MAX_FURTHER + 1):
            times = fleet.multiple(count)
            if (checks and not self._has_time()) or times <= 0:
                break
            rate = self.basics.wanted.capacity_per_s / times
            self.view.confirming(f"{devices_text(count)}: {format_rate(rate)} on one of them")
            checks.append(self._rate_check(count, rate))
            if checks[-1].outcome == str(Outcome.OK):
                self._take_rate(rate * ROUNDING, keeps_shown=count <= first.devices)
                break
        return checks

    def _take_rate(self, rate: float, *, keeps_shown: bool) -> None:
        """Let a rate that was shown to hold take the place of what the plan rested on.

        Args:
            keeps_shown: A higher one that the study has shown stays; else it has been disproved.
        """
        fleet = self.basics.fleet
        if keeps_shown and self.basics.basis == "shown" and rate <= fleet.single_per_s:
            return
        fleet = replace(fleet, single_per_s=rate, shown={})
        self.basics = replace(self.basics, fleet=fleet, basis="measured")

    def _rate_check(self, count: int, rate: float) -> RateCheck:
        check = RateCheck(device_count=count, rate_per_s=rate, p99_s=None, outcome="undecided")
        full = self.basics.full.config
        queue = self.basics.queues[full]
        seed = FRESH_SEED + 1000 * count
        goals = [replace(g, seed=seed, alpha=ALPHA, proves=False) for g in queue.goals]
        histories = [[known(goal, queue.service)] for goal in goals]
        parts: list[Samples] = []
        space = self._space(Load(kind=goals[0].kind, rate_per_s=rate), queue.goals)
        duration_s = (space.confirm or Confirm()).duration_s
        for number, share in enumerate(WINDOW_SHARES):
            try:
                samples = self._window(space, goals[0], rate, share * duration_s, number)
            except TrialError as error:
                return replace(check, outcome=str(error.outcome), reason=str(error))
            parts.append(samples)
            plan = window_plan(goals[0], rate, share * duration_s, number)
            for goal, history in zip(goals, histories, strict=True):
                history.append(evaluate(goal, history, plan, samples))
            status = _together(histories)
            if status != "undecided":
                break
        measurement = summarise(pooled(parts))
        if status == "pass" and not self._mean_holds(measurement):
            status = "fail"
        outcome = {"pass": Outcome.OK, "fail": Outcome.OVER_LIMIT}.get(status, Outcome.UNDECIDED)
        trust = "" if measurement.trust == QUIET else measurement.trust
        return replace(check, p99_s=measurement.latency_p99_s, outcome=str(outcome), reason=trust)

    def _window(
        self, space: SearchSpace, goal: RateGoal, rate: float, duration_s: float, number: int
    ) -> Samples:
        spec = group_spec(self.basics.full.config, space, self.resolved.info)
        plan = window_plan(goal, rate, duration_s, number)
        with open_session(spec, self.launcher, timeout_s=space.trial.timeout_s) as session:
            samples = session.measure(plan)
        assert isinstance(samples, Samples)
        return samples

    def _mean_holds(self, measurement: Measurement) -> bool:
        bound = self.basics.queues[self.basics.full.config].mean_limit_s
        return bound is None or (measurement.latency_mean_s or 0.0) <= bound

    # --- the table -----------------------------------------------------------------------------

    def _checked_levels(self, found: FleetPlan) -> FleetPlan:
        """Every configuration of the table but the full rate's, at its highest level, beside it."""
        full = found.configs.index(found.config)
        highest = {row.index: row for row in found.rows if row.index != full}
        checks = [self._level_check(found, row) for row in highest.values()]
        dropped = {check.config for check in checks if not check.kept}
        rows = tuple(
            replace(row, index=full, served=row.full)
            if found.configs[row.index] in dropped
            else row
            for row in found.rows
        )
        return replace(found, rows=rows, steps=steps(rows), level_checks=tuple(checks))

    def _level_check(self, found: FleetPlan, row: Row) -> LevelCheck:
        config = found.configs[row.index]
        self.view.confirming(f"up to {row.share:.0%}: {config_text(config)}")
        queue = self.basics.queues[config]
        space = self._space(Load(kind=queue.goals[0].kind, rate_per_s=row.rate_per_s), queue.goals)
        sides = tuple(self._contestant(one, space) for one in (config, found.config))
        rule = Rule(alpha=ALPHA, looks=len(LOOKS))
        duration_s = (space.confirm or Confirm()).duration_s / LOOKS[0]
        pairs = measure_pairs(
            (sides[0], sides[1]),
            self.launcher,
            rule,
            metric="latency_mean",
            duration_s=duration_s,
            time_s=self._left_s(),
            on_progress=self.view.confirming,
        )
        return _level_check(row, config, pairs, rule, space.objective)

    def _contestant(self, config: Config, space: SearchSpace) -> Contestant:
        record = next(one.record for one in self.basics.known if one.config == config)
        return Contestant(entrant=Entrant(record=record), space=space, info=self.resolved.info)

    def _space(self, load: Load, goals: Sequence[RateGoal]) -> SearchSpace:
        """The study's space under a load; with the plan's limits where there are goals."""
        space = self.resolved.space
        limits = self.basics.wanted.limits if goals else ()
        quantiles = tuple(x for x in limits if METRICS[x.metric].quantile is not None)
        objective = Objective(
            name="plan", load=load, goals=(Goal(metric="throughput"),), limits=quantiles
        )
        return replace(space, objective=objective)

    def _left_s(self) -> float | None:
        if self.options.time_s is None:
            return None
        return max(self.options.time_s - self.launcher.now_s(), 0.0)

    def _has_time(self) -> bool:
        left_s = self._left_s()
        return left_s is None or left_s > 0


def _counts(most: int) -> tuple[int, ...]:
    powers = [2**k for k in range(most.bit_length())]
    return tuple(sorted({*(p for p in powers if p <= most), most}))


def _on(config: Config, device_count: int) -> Config:
    return config if device_count == 1 else config.changed(device_count=device_count)


def _point(device_count: int, turns: Sequence[TurnRate]) -> ScalePoint | None:
    """The mean over rounds of fresh processes, its error by how much the rounds differ."""
    rounds: dict[int, list[float]] = {}
    for turn in turns:
        rounds.setdefault(turn.round, []).append(turn.rate)
    from scipy.special import ndtri, stdtrit

    logs = [math.log(fmean(rates)) for rates in rounds.values() if fmean(rates) > 0]
    if len(logs) < 2:
        return None
    # Few rounds: as much wider as Student's bound is than the normal one.
    wider = float(stdtrit(len(logs) - 1, CONFIDENCE) / ndtri(CONFIDENCE))
    error = wider * stdev(logs) / math.sqrt(len(logs))
    return ScalePoint(device_count=device_count, rate=math.exp(fmean(logs)), error=error)


def _together(histories: Sequence[Sequence[Evidence]]) -> Status:
    """One verdict on several limits."""
    statuses = {history[-1].status for history in histories}
    if "fail" in statuses:
        return "fail"
    return "pass" if statuses == {"pass"} else "undecided"


def _level_check(
    row: Row, config: Config, pairs: Pairs, rule: Rule, objective: Objective
) -> LevelCheck:
    check = LevelCheck(
        share=row.share,
        rate_per_s=row.rate_per_s,
        config=config,
        ratio=None,
        ci95=None,
        mean_s=None,
        full_mean_s=None,
        outcome="undecided",
        kept=False,
    )
    if pairs.failures:
        return replace(check, outcome=str(next(iter(pairs.failures.values())).outcome))
    pools = [pairs.pool(side) for side in (0, 1)]
    test = judge_pairs(pairs.log_ratios, rule, allowed=None if pairs.stopped else LOOKS[-1])
    if test is None or pools[0] is None or pools[1] is None:
        return check
    ours, full = summarise(pools[0]), summarise(pools[1])
    outcome = judge(pools[0], ours, objective, alpha=ALPHA).outcome
    return replace(
        check,
        ratio=test.ratio,
        ci95=test.interval95,
        mean_s=ours.latency_mean_s,
        full_mean_s=full.latency_mean_s,
        outcome=str(outcome),
        kept=test.shown == "better" and outcome is not Outcome.OVER_LIMIT,
    )
