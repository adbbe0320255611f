"""How much each searched parameter matters, over the trials that hold their limits.

The logarithm of the objective's worth is fitted by a sum of one term per parameter: so a parameter
counts by the factor it changes the figure by, whatever the others are. A term's share of the
variance is its covariance with the figures over their variance (J. W. Pratt, "Dividing the
indivisible", 1987); the shares add up to what the fit explains, the rest is interplay and noise.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autotune.core.objective import Objective
from autotune.core.records import Floats, Scalar, TrialRecord
from autotune.results.ranking import excess_ratio, score

SPARE_TRIALS = 4  # beyond the fit's terms, below which it says nothing
MAX_LEVELS = 12  # of a parameter that is not a number; the rarer ones count as one
RIDGE = 0.02  # per trial: shares out what parameters that always moved together did


@dataclass(frozen=True, slots=True, kw_only=True)
class Influence:
    """What a parameter did.

    Attributes:
        share: Of the variance of the logarithm, 0 to 1.
        factor: Best over worst tried value, all else equal.
        best: The tried value with the best fitted worth.
    """

    name: str
    share: float
    factor: float
    best: Scalar


@dataclass(frozen=True, slots=True, kw_only=True)
class Importance:
    """The influences, largest share first.

    Attributes:
        explained: Share of the variance that all of them explain together.
        trials: Trials it rests on.
    """

    influences: tuple[Influence, ...]
    explained: float
    trials: int


def importance(
    records: Sequence[TrialRecord], objective: Objective, names: Sequence[str]
) -> Importance | None:
    """The influence of the parameters `names`; None if too few trials tell."""
    kept = [
        record
        for record in records
        if record.verdict.outcome.is_measured
        and excess_ratio(record, objective) <= 0
        and math.isfinite(score(record, objective))
    ]
    columns = {name: [record.config.get(name, "") for record in kept] for name in names}
    terms = {name: _term(values) for name, values in columns.items() if len(set(values)) > 1}
    width = sum(term.shape[1] for term in terms.values())
    if not terms or len(kept) < width + SPARE_TRIALS:
        return None
    worth = np.array([score(record, objective) for record in kept])
    centred = worth - worth.mean()
    variance = float(centred @ centred)
    if variance <= 0.0:
        return None
    fitted = _fitted(terms, centred)
    shares = {name: max(float(part @ centred) / variance, 0.0) for name, part in fitted.items()}
    found = [
        Influence(
            name=name,
            share=shares[name],
            factor=math.exp(float(part.max() - part.min())),
            best=columns[name][int(part.argmax())],
        )
        for name, part in fitted.items()
    ]
    whole = sum(fitted.values(), np.zeros_like(centred))
    explained = 1.0 - float(((centred - whole) ** 2).sum()) / variance
    return Importance(
        influences=tuple(sorted(found, key=lambda i: -i.share)),
        explained=min(max(explained, 0.0), 1.0),
        trials=len(kept),
    )


def _term(values: Sequence[Scalar]) -> Floats:
    """The columns of a parameter, mean 0 and variance 1 each, shape (trials, columns)."""
    numbers = [v for v in values if isinstance(v, (int, float)) and not isinstance(v, bool)]
    counts = Counter(values)
    levels = sorted(counts, key=lambda v: (-counts[v], str(v)))
    if len(numbers) == len(values) and len(levels) > 2 and min(numbers) >= 0:
        # A curve that rises and saturates is nearly a parabola in the logarithm.
        at = np.log2(np.array(numbers, dtype=np.float64) + (min(numbers) == 0))
        at = (at - at.mean()) / (at.std() or 1.0)
        columns = np.stack([at, at**2], axis=1)
    else:
        kept = levels[: MAX_LEVELS - 1] if len(levels) > MAX_LEVELS else levels[:-1]
        columns = np.array([[float(v == level) for level in kept] for v in values])
    columns = columns - columns.mean(axis=0)
    return np.asarray(columns / (columns.std(axis=0) + 1e-12), dtype=np.float64)


def _fitted(terms: dict[str, Floats], worth: Floats) -> dict[str, Floats]:
    """Each term's part in the least-squares fit."""
    design = np.concatenate(list(terms.values()), axis=1)
    gram = design.T @ design + RIDGE * len(worth) * np.eye(design.shape[1])
    weights = np.linalg.solve(gram, design.T @ worth)
    parts, at = {}, 0
    for name, term in terms.items():
        parts[name] = term @ weights[at : at + term.shape[1]]
        at += term.shape[1]
    return parts
