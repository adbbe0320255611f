"""A study seen by the model: what to measure next, what is known, and what is left open."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence

import numpy as np

from autotune.core.insight import Alike, Belief, Insight, Untried
from autotune.core.records import Config, Ints, Scalar, TrialRecord
from autotune.measure.account import next_values
from autotune.search.pareto import posterior_of
from autotune.search.posterior import Posterior
from autotune.search.proposer import PROBES, Candidates, Proposal, as_rows, propose
from autotune.search.question import Question, config_of, encode, observe
from autotune.space.search_space import SearchSpace

WITHIN = 0.02  # less than the best by so much is as good: two short trials cannot tell them apart
CHANCE = 0.1  # of beating the best, from which on an untried configuration may be better
MAX_LISTED = 8  # values of a parameter up to which those never tried are listed
MAX_COUNTED = 50_000  # configurations that are counted


class StudyModel:
    """The model of a space's study; keeps nothing of the study but parsed trials.

    Args:
        seed: Of the probes, and of the part of a huge space that is looked at.
    """

    def __init__(self, space: SearchSpace, seed: int) -> None:
        self._space = space
        self._seed = seed
        self._encoding = encode(space)
        self._question = Question.of(space.objective, self._encoding)
        self._candidates: Candidates | None = None
        self._last: tuple[list[TrialRecord], Posterior] | None = None

    @property
    def candidates(self) -> Candidates:
        """What may be proposed; listed when first asked for."""
        if self._candidates is None:
            self._candidates = Candidates(self._encoding, self._space, self._seed)
        return self._candidates

    def next(
        self,
        records: Iterable[TrialRecord],
        *,
        pending: Collection[Config] = (),
        barred: Collection[Config] = (),
        number: int,
    ) -> Proposal | None:
        """What to measure next; it may be a configuration that was measured before.

        Args:
            records: Finished trials.
            pending: Configurations being measured. barred: those not to be proposed again.
            number: How many trials there have been, to number the probes.
        Returns:
            None if there is nothing left to propose.
        """
        records = list(records)
        posterior = self._posterior(records)
        return propose(
            posterior,
            self.candidates,
            pending=self._rows(pending),
            barred=[*self._rows(barred), *map(tuple, posterior.broken.tolist())],
            number=number,
            seed=self._seed,
            lead=self._lead(records) if number < PROBES else None,
        )

    def _lead(self, records: Sequence[TrialRecord]) -> dict[int, int]:
        """What the verdict on the baseline wants to see first."""
        space, wanted = self._space, {}
        measured = next((r.measurement for r in records if r.config == space.baseline), None)
        if measured is not None and not space.objective.load.is_queued:
            wanted = next_values(measured, space.baseline)
        return {
            column: dimension.choices.index(wanted[dimension.name])
            for column, dimension in enumerate(self._encoding.dimensions)
            if wanted.get(dimension.name) in dimension.choices
        }

    def config(self, row: Sequence[int]) -> Config:
        """The configuration at a row of choice indices."""
        return self._space.baseline.changed(**config_of(self._encoding, row))

    def expected_gain(self, records: Iterable[TrialRecord]) -> float | None:
        """By how much one more trial is expected to raise the recommendation, relative.

        None while there is no recommendation.
        """
        posterior = self._posterior(records)
        return None if posterior.incumbent is None else self._gain(posterior)

    def recommended(self, records: Iterable[TrialRecord]) -> Config | None:
        """The tested configuration to recommend, None if none holds its limits surely enough."""
        incumbent = self._posterior(records).incumbent
        return None if incumbent is None else self.config(incumbent.row)

    def insight(self, records: Iterable[TrialRecord], config: Config | None = None) -> Insight:
        """What the trials say, in short.

        Args:
            config: What is recommended instead of the model's own pick; the flat region is its.
        """
        records = list(records)
        posterior = self._posterior(records)
        if posterior.surrogate is None:
            untried = self._untried(records, maybe_better=0)
            return Insight(confidence=posterior.confidence, untried=untried)
        beliefs = self._beliefs(posterior)
        own = self.recommended(records)
        best = next((b for b in beliefs if b.config == own), None)
        centre = next((b for b in beliefs if b.config == config), best)
        alike, maybe_better = None, 0
        if centre is not None:
            alike, maybe_better = self._region(posterior, centre, records)
        return Insight(
            beliefs=beliefs,
            best=best,
            confidence=posterior.confidence,
            expected_gain=None if best is None else self._gain(posterior),
            alike=alike,
            untried=self._untried(records, maybe_better),
        )

    # --- parts ---------------------------------------------------------------------------------

    def _posterior(self, records: Iterable[TrialRecord]) -> Posterior:
        """Of the records; that of the last asked for is kept."""
        records = list(records)
        if self._last is None or not _same(self._last[0], records):
            seen = (observe(record, self._question, self._encoding) for record in records)
            found = [o for o in seen if o is not None]
            self._last = records, posterior_of(self._encoding, self._question, found)
        return self._last[1]

    def _rows(self, configs: Iterable[Config]) -> list[tuple[int, ...]]:
        rows = (self._encoding.row(config.as_dict()) for config in configs)
        return [row for row in rows if row is not None]

    def _gain(self, posterior: Posterior) -> float:
        proposal = propose(
            posterior,
            self.candidates,
            barred=map(tuple, posterior.broken.tolist()),
            number=PROBES,
            seed=self._seed,
        )
        return 0.0 if proposal is None else math.expm1(proposal.gain or 0.0)

    def _beliefs(self, posterior: Posterior) -> tuple[Belief, ...]:
        assert posterior.surrogate is not None
        data = posterior.surrogate.data
        cross = posterior.surrogate.cross(data.features)
        utility = self._question.utility
        score, spread = cross.mean(utility), np.sqrt(cross.variance(utility))
        holds = posterior.holds(cross)
        order = np.argsort(-score, kind="stable")
        return tuple(
            Belief(
                config=self.config(posterior.tested[i].tolist()),
                score=float(score[i]),
                score_sd=float(spread[i]),
                limit_probability=float(holds[i]),
                trials=int(data.counts[i].max()),
            )
            for i in order
        )

    def _region(
        self, posterior: Posterior, best: Belief, records: list[TrialRecord]
    ) -> tuple[Alike, int]:
        """What is as good as the best, and how many untried ones may be better."""
        from scipy.special import ndtr

        assert posterior.surrogate is not None
        grid, row = self.candidates, self._rows([best.config])[0]
        rows, features = grid.near(posterior.tested)
        cross = posterior.surrogate.cross(features)
        score, spread = cross.mean(self._question.utility), cross.variance(self._question.utility)
        usable = posterior.holds(cross) * posterior.runs(rows, features)
        tried = np.isin(grid.code(rows), grid.code(as_rows(self._tried(records), rows.shape[1])))
        step = -math.log1p(-WITHIN)
        is_alike = (score >= best.score - step) & (usable >= posterior.confidence)
        is_alike |= (rows == row).all(1)
        better = ndtr((score - best.score - step) / np.sqrt(spread)) * usable
        values = self._alone(rows[is_alike], row)
        alike = Alike(
            within=WITHIN,
            count=int(is_alike.sum()),
            tested=int((is_alike & tried).sum()),
            values=values,
            indifferent=tuple(
                p.name for p in self._space.searched if len(values[p.name]) == len(p.choices)
            ),
        )
        return alike, int((~tried & (better >= CHANCE)).sum())

    def _alone(self, alike: Ints, row: tuple[int, ...]) -> dict[str, tuple[Scalar, ...]]:
        """Of every searched parameter the values in `alike` with the others as in `row`."""
        differing = alike != np.array(row)
        values: dict[str, tuple[Scalar, ...]] = {}
        for column, dimension in enumerate(self._encoding.dimensions):
            if len(dimension.choices) > 1:
                alone = differing.sum(1) == differing[:, column]
                places = sorted(set(alike[alone, column].tolist()))
                values[dimension.name] = tuple(dimension.choices[i] for i in places)
        return values

    def _tried(self, records: Iterable[TrialRecord]) -> list[tuple[int, ...]]:
        return self._rows(r.config for r in records if not r.verdict.outcome.is_retried)

    def _untried(self, records: list[TrialRecord], maybe_better: int) -> Untried:
        tried = set(self._tried(records))
        total = self._space.allowed_count(MAX_COUNTED)
        columns = np.array(sorted(tried), dtype=np.int64).reshape(-1, len(self._space.params))
        values = {
            dimension.name: untried
            for column, dimension in enumerate(self._encoding.dimensions)
            if 1 < len(dimension.choices) <= MAX_LISTED
            and (untried := _missing(dimension.choices, columns[:, column]))
        }
        is_known = total < MAX_COUNTED
        return Untried(
            count=max(total - len(tried), 0) if is_known else None,
            total=total if is_known else None,
            values=values,
            maybe_better=maybe_better,
        )


def _same(left: Sequence[TrialRecord], right: Sequence[TrialRecord]) -> bool:
    return len(left) == len(right) and all(a is b for a, b in zip(left, right, strict=True))


def _missing(choices: Sequence[Scalar], tried: Ints) -> tuple[Scalar, ...]:
    seen = set(tried.tolist())
    return tuple(choice for place, choice in enumerate(choices) if place not in seen)
