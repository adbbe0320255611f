"""The best few proven where the arrival rate is sought: each searches its rate afresh.

Every entrant gets a fresh session and arrivals that no trial has seen, one after another. One
that promises less than what has been shown already is not measured further. Gains between them
rest on rates, not on pairs, and have no interval.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from autotune.core.errors import TrialError
from autotune.core.outcomes import Outcome
from autotune.core.records import Comparison, Config, TrialRecord, Verdict
from autotune.core.units import format_rate
from autotune.search.confirm import Confirmation, Setup
from autotune.trial.group import group_spec
from autotune.trial.rate_search import RateResult, rate_goal, search_rate
from autotune.trial.session import open_session

FRESH_SEED = 1_000_003  # arrivals of trials begin at the trial's own seed


def confirm_rates(
    candidates: Sequence[TrialRecord], baseline: TrialRecord | None, setup: Setup
) -> Confirmation:
    """Prove the best candidate, the baseline, then the others; arguments as of `confirm.confirm`.

    The best candidate gets half of the time at most, so that the baseline gets its turn.
    """
    if setup.space.confirm is None or not candidates:
        return Confirmation()
    run = _Run(setup)
    base = None if baseline is None else baseline.config
    runs = baseline is not None and baseline.verdict.outcome.is_measured
    configs = [c.config for c in candidates if c.config != base]
    if base is not None and runs:
        configs.insert(1, base)
    for turn, config in enumerate(configs):
        setup.on_progress(f"confirming: configuration {turn + 1} of {len(configs)}")
        share = 0.5 if base in configs[turn + 1 :] else 1.0
        worth = 0.0 if config == base else run.best_rate
        number = len(run.records)
        result = run.prove(config, worth=worth, share=share)
        if result is not None:
            setup.on_result("confirm", number, result.samples)
    comparisons = [
        comparison
        for config, reference in itertools.permutations(run.results, 2)
        if config != base
        if (comparison := run.comparison(config, reference)) is not None
    ]
    compared = {c.reference for c in comparisons}
    if base in compared and run.results[base].finding.status != "pass":
        most = format_rate(run.most(base))
        run.notes.append(f"the baseline's rate was not shown: gains are over {most}, its most")
    return Confirmation(
        records=tuple(run.records),
        comparisons=tuple(comparisons),
        notes=tuple(run.notes),
    )


class _Run:
    """What has been proven so far."""

    def __init__(self, setup: Setup) -> None:
        self._space, self._info, self._launcher = setup.space, setup.info, setup.launcher
        time_s = setup.time_s
        self._until_s = None if time_s is None else self._launcher.now_s() + time_s
        self.results: dict[Config, RateResult] = {}
        self.records: list[TrialRecord] = []
        self.notes: list[str] = []

    @property
    def best_rate(self) -> float:
        """The highest rate that was shown to hold; 0 if none was."""
        shown = [r.finding.rate_per_s for r in self.results.values() if r.finding.status == "pass"]
        return max(shown, default=0.0)

    def prove(self, config: Config, *, worth: float, share: float) -> RateResult | None:
        """Search the rate of a configuration in a fresh session; None if it failed.

        Args:
            worth: A promise below this rate is not measured further.
            share: Of the time that is left.
        """
        keep_s = (1.0 - share) * self._left_s() if share < 1.0 else 0.0
        if self._left_s() <= 0.0:
            self.notes.append("a finalist was not measured again for lack of time")
            return None
        assert self._space.confirm is not None
        goal = replace(
            rate_goal(
                config,
                self._space.objective,
                window_s=self._space.confirm.duration_s,
                seed=FRESH_SEED + self._space.trial.seed,
            ),
            alpha=self._space.confirm.alpha,
            worth_per_s=worth,
        )
        record = TrialRecord(
            number=len(self.records),
            config=config,
            phase="confirm",
            verdict=Verdict(outcome=Outcome.LOST),
            started_at_s=time.time(),
        )
        try:
            spec = group_spec(config, self._space, self._info)
            timeout_s = self._space.trial.timeout_s
            with open_session(spec, self._launcher, timeout_s=timeout_s) as session:
                result = search_rate(
                    session, goal, self._space.objective, left_s=lambda: self._left_s() - keep_s
                )
        except TrialError as error:
            verdict = Verdict(outcome=error.outcome, reasons=(str(error),))
            self.records.append(replace(record, verdict=verdict, log_tail=error.log_tail))
            return None
        self.results[config] = result
        self.records.append(
            replace(
                record,
                verdict=result.verdict,
                measurements=(result.measurement,),
                duration_s=result.measurement.duration_s or 0.0,
            )
        )
        return result

    def comparison(self, config: Config, reference: Config) -> Comparison | None:
        """One rate over another, over the most that this may be if it was not shown.

        None if one of them is zero.
        """
        ours, theirs = self.results[config].finding, self.results[reference].finding
        if min(ours.rate_per_s, theirs.rate_per_s) <= 0.0:
            return None
        assert self._space.confirm is not None
        least = ours.rate_per_s / self.most(reference)
        return Comparison(
            config=config,
            reference=reference,
            ratio=ours.rate_per_s / theirs.rate_per_s if theirs.status == "pass" else least,
            ratio_ci=None,
            alpha=self._space.confirm.alpha,
            pair_ratios=(),
            least_ratio=least if ours.status == "pass" else 0.0,
            interleaved=False,
        )

    def most(self, config: Config) -> float:
        """The highest rate that a configuration may hold: where any simulation met the limit."""
        result = self.results[config]
        limit_rates = (e.target.limit_rate_per_s for e in result.history)
        return max(result.finding.rate_per_s, *limit_rates)

    def _left_s(self) -> float:
        return np.inf if self._until_s is None else self._until_s - self._launcher.now_s()
