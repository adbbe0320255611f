"""The best few proven where the arrival rate is sought, beside the baseline.

Every round opens each configuration afresh and gives it one window, at a rate of its own, with
arrivals that no trial has seen; the order alternates, so that a drift of the machine weighs on all
alike. The windows serve twice: they go on with the search for the rate that holds, and their call
times give the gain over the baseline with an interval over the rounds. A configuration that
promises no more than what has been shown already is not measured further.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from autotune.core.errors import TrialError
from autotune.core.outcomes import Outcome
from autotune.core.records import Comparison, Config, Samples, TrialRecord, Verdict
from autotune.core.units import format_rate
from autotune.measure.rate import MAX_RATES, STEP_UP
from autotune.measure.rate_ratio import Calls, pair_ratios, round_rates
from autotune.measure.ratio import geometric_mean, ratio_interval
from autotune.search.confirm import Confirmation, Needed, Setup
from autotune.search.rounds import MAX_LOST, STRUCK
from autotune.search.schedule import MIN_ROUNDS
from autotune.trial.group import group_spec
from autotune.trial.rate_search import RateResult, RateSearch, calls_of, rate_goal
from autotune.trial.session import open_session
from autotune.workloads import WORKLOADS

FRESH_SEED = 1_000_003  # arrivals of trials begin at the trial's own seed
MAX_ROUNDS = MIN_ROUNDS + 3 * MAX_RATES  # three looks at each rate


def confirm_rates(
    candidates: Sequence[TrialRecord], baseline: TrialRecord | None, setup: Setup
) -> Confirmation:
    """Prove the candidates beside the baseline; arguments as of `confirm.confirm`."""
    if setup.space.confirm is None or not candidates:
        return Confirmation()
    run = _Run(candidates, baseline, setup)
    run.go()
    confirmation = run.confirmation()
    for record in confirmation.records:
        if (samples := run.samples(record.config)) is not None:
            setup.on_result("confirm", record.number, samples)
    return confirmation


@dataclass(slots=True, kw_only=True)
class _Entrant:
    """A configuration, its search, and what it did in each round.

    Attributes:
        is_compared: Measured in every one of the least number of rounds, for its gain.
        rounds: Its calls under an open load, by round.
    """

    config: Config
    search: RateSearch
    is_compared: bool
    rounds: dict[int, Calls] = field(default_factory=dict)
    error: TrialError | None = None
    struck: int = 0

    @property
    def result(self) -> RateResult | None:
        """What its search has come to; None if it failed, or has measured nothing."""
        return self.search.result() if self.search.has_calls and self.error is None else None

    @property
    def shown_per_s(self) -> float:
        """The highest rate that was shown to hold; 0 if none was."""
        return max((e.rate_per_s for e in self.search.history if e.status == "pass"), default=0.0)


class _Run:
    """The rounds and what they have brought so far."""

    def __init__(
        self, candidates: Sequence[TrialRecord], baseline: TrialRecord | None, setup: Setup
    ) -> None:
        self._setup, self._space, self._launcher = setup, setup.space, setup.launcher
        self._until_s = (
            float("inf") if setup.time_s is None else self._launcher.now_s() + setup.time_s
        )
        self._base = None if baseline is None else baseline.config
        runs = baseline is not None and baseline.verdict.outcome.is_measured
        first = [baseline] if baseline is not None and runs else []
        others = [c for c in candidates if c.config != self._base]
        self._entrants = [self._entrant(record) for record in (*others[:1], *first, *others[1:])]
        self._longest_s = 0.0
        self._began_s = time.time()
        self._notes: list[str] = []

    def _entrant(self, record: TrialRecord) -> _Entrant:
        options, base = self._space.confirm, self._base
        assert options is not None
        config = record.config
        goal = rate_goal(
            config,
            self._space.objective,
            window_s=options.duration_s,
            seed=FRESH_SEED + self._space.trial.seed,
            in_server=WORKLOADS[self._space.workload.kind].runs == "server",
        )
        goal = replace(goal, alpha=options.alpha)
        batch_only = base is not None and config == base.changed(batch_size=config.batch_size)
        return _Entrant(
            config=config,
            search=RateSearch.begun_with(record.rate, goal, self._space.objective),
            is_compared=batch_only,
        )

    # --- the rounds ----------------------------------------------------------------------------

    def go(self) -> None:
        """Run rounds until all that is worth settling is settled, or time is over."""
        for number in range(MAX_ROUNDS):
            live = self._live(number)
            if not live:
                return
            self._setup.on_progress(
                f"confirming: round {number + 1}, {len(live)} configuration{'s' * (len(live) > 1)}"
            )
            for entrant in live if number % 2 == 0 else reversed(live):
                if self._left_s() <= self._longest_s:
                    self._notes.append(self._out_of_time())
                    return
                self._measure(entrant, number)

    def _out_of_time(self) -> str:
        missing = sum(not e.search.has_calls for e in self._entrants)
        if missing:
            return f"{missing} of {len(self._entrants)} finalists were not measured again " + (
                "for lack of time"
            )
        return "the proof was cut short by the budget of time"

    def _live(self, number: int) -> list[_Entrant]:
        """Those to be measured in a round."""
        working = [e for e in self._entrants if e.error is None]
        leading = max((e.shown_per_s for e in working if e.config != self._base), default=0.0)
        live = []
        for entrant in working:
            is_base = entrant.config == self._base
            others = [e.shown_per_s for e in working if e is not entrant]
            worth = STEP_UP * max(others, default=0.0)
            promises = entrant.shown_per_s > 0.0 or entrant.search.promise_per_s >= worth
            # The baseline's own rate matters as long as nothing is shown that it cannot reach.
            matters = entrant.search.promise_per_s > leading if is_base else promises
            if (matters and entrant.search.plan is not None) or (
                number < MIN_ROUNDS and self._is_paired(entrant, leading)
            ):
                live.append(entrant)
        return live

    def _is_paired(self, entrant: _Entrant, leading: float) -> bool:
        """True if its gain, or the gain over it, is to have an interval."""
        if self._base is None or all(e.config != self._base for e in self._entrants):
            return False
        if entrant.search.promise_per_s <= 0.0:
            return False  # it has no rate to be measured at
        is_base = entrant.config == self._base
        return is_base or entrant.is_compared or entrant.shown_per_s >= leading

    def _measure(self, entrant: _Entrant, number: int) -> None:
        began_s = self._launcher.now_s()
        search = entrant.search
        try:
            spec = group_spec(entrant.config, self._space, self._setup.info)
            timeout_s = self._space.trial.timeout_s
            with open_session(spec, self._launcher, timeout_s=timeout_s) as session:
                self._setup.check(entrant.config, session.answers)
                plan = search.plan
                if plan is not None and not plan.load.is_open:
                    search.measure(session, plan)  # back to back; the first window follows it
                    plan = search.plan
                samples: Samples | None
                if plan is not None:
                    samples = search.measure(session, plan)
                else:
                    samples = search.check(session)
        except STRUCK as error:
            entrant.struck += 1  # a round less: whoever killed it has nothing to do with it
            entrant.error = error if entrant.struck == MAX_LOST else None
            return
        except TrialError as error:
            entrant.error = error
            return
        if samples is not None and samples.item_count.size:
            entrant.rounds[number] = calls_of(samples, search.goal)
        self._longest_s = max(self._longest_s, self._launcher.now_s() - began_s)

    def _left_s(self) -> float:
        return self._until_s - self._launcher.now_s()

    # --- what came of them ---------------------------------------------------------------------

    def samples(self, config: Config) -> Samples | None:
        """Those that stand for a configuration's figures."""
        entrant = next(e for e in self._entrants if e.config == config)
        result = entrant.result
        return None if result is None else result.samples

    def confirmation(self) -> Confirmation:
        """Records and comparisons of all rounds."""
        known = [e for e in self._entrants if e.error is not None or e.search.has_calls]
        results = {e.config: r for e in known if (r := e.result) is not None}
        base = next((e for e in known if e.config == self._base and e.config in results), None)
        comparisons = [
            comparison
            for entrant in known
            if base is not None and entrant is not base and entrant.config in results
            if (comparison := self._comparison(entrant, base, results)) is not None
        ]
        return Confirmation(
            records=tuple(self._record(n, e, results.get(e.config)) for n, e in enumerate(known)),
            comparisons=tuple(comparisons),
            notes=(*self._notes, *self._without_interval(base, comparisons, results)),
            needed={c: needed for c, r in results.items() if (needed := self._needed(r))},
        )

    def _record(self, number: int, entrant: _Entrant, result: RateResult | None) -> TrialRecord:
        record = TrialRecord(
            number=number,
            config=entrant.config,
            phase="confirm",
            verdict=Verdict(outcome=Outcome.LOST),
            started_at_s=self._began_s,
        )
        if result is None:
            error = entrant.error
            assert error is not None
            verdict = Verdict(outcome=error.outcome, reasons=(str(error),))
            return replace(record, verdict=verdict, log_tail=error.log_tail)
        return replace(
            record,
            verdict=result.verdict,
            measurements=(result.measurement,),
            duration_s=result.measurement.duration_s or 0.0,
            rate=result.facts,
        )

    def _comparison(
        self, ours: _Entrant, base: _Entrant, results: dict[Config, RateResult]
    ) -> Comparison | None:
        """The gain over the baseline; None if one of them holds the limit at no rate."""
        shared = sorted(ours.rounds.keys() & base.rounds.keys())
        found = [results[e.config].finding for e in (ours, base)]
        if not shared or min(finding.rate_per_s for finding in found) <= 0.0:
            return None
        ratios = pair_ratios(
            *(
                round_rates(
                    e.search.goal, e.search.history[0].service, [e.rounds[n] for n in shared]
                )
                for e in (ours, base)
            )
        )
        if not ratios:
            return None
        assert self._space.confirm is not None
        alpha = self._space.confirm.alpha
        return Comparison(
            config=ours.config,
            reference=base.config,
            ratio=geometric_mean(ratios),
            ratio_ci=ratio_interval(ratios, 1 - alpha) if len(ratios) > 1 else None,
            alpha=alpha,
            pair_ratios=ratios,
            least_ratio=ours.shown_per_s / _most(results[base.config]),
        )

    def _without_interval(
        self,
        base: _Entrant | None,
        comparisons: Sequence[Comparison],
        results: dict[Config, RateResult],
    ) -> tuple[str, ...]:
        shown = {c for c, result in results.items() if result.finding.status == "pass"}
        if base is None or all(c.ratio_ci for c in comparisons if c.config in shown):
            return ()
        most = format_rate(_most(results[base.config]))
        return (f"a gain without an interval is over {most}, the most that the baseline may hold",)

    def _needed(self, result: RateResult) -> Needed | None:
        """A proof that would settle what this one left open."""
        more_s = result.finding.needed_s
        if result.finding.status != "undecided" or not more_s:
            return None
        assert self._space.confirm is not None
        duration_s = max(more_s, self._space.confirm.duration_s)
        rounds_s = MIN_ROUNDS * len(self._entrants) * self._longest_s
        return Needed(more_s=more_s, duration_s=duration_s, time_s=rounds_s + 2 * duration_s)


def _most(result: RateResult) -> float:
    """The highest rate that a configuration may hold: where any simulation met the limit."""
    limit_rates = (e.target.limit_rate_per_s for e in result.history)
    return max(result.finding.rate_per_s, *limit_rates)
