"""Holds a pipeline's loss and gradients against those of the same model without a pipeline."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from autotune.core.errors import WrongOutput
from autotune.core.pipeline import Pass

TOLERANCES: Mapping[str, float] = {"float32": 1e-5, "bfloat16": 2e-2, "float16": 5e-3}
"""How far a loss and the norm of all gradients may be off, relative; sums are taken in another
order in a pipeline."""

LAYER_SLACK = 10.0
"""A single layer's gradients may be off by so many times that: theirs may be small."""


class Difference(NamedTuple):
    """How far a pipeline's first step was off, relative; None where it was not compared."""

    loss: float | None = None
    gradient: float | None = None


def compare_passes(ranks: Sequence[Pass], reference: Pass, precision: str) -> Difference:
    """Compare what the ranks found with the reference.

    Args:
        ranks: Of one replica at least; each has the whole loss and its own layers' gradients. Of
            a layer that several replicas hold the norm that is furthest off counts.
    Raises:
        WrongOutput: They differ by more than the precision allows, or are no numbers.
    """
    loss = ranks[0].loss
    if loss is None or not math.isfinite(loss):
        raise WrongOutput("the loss of the first step is not a number (NaN or infinite)")
    if reference.untold or reference.loss is None:
        return Difference()
    norms = _furthest(ranks, reference.gradient_norms)
    tolerance = TOLERANCES[precision]
    off = _relative(loss, reference.loss)
    if off > tolerance:
        raise WrongOutput(
            f"the loss is {loss:.9g} in the pipeline and {reference.loss:.9g} without: "
            f"{off:.2g} relative, {precision} allows {tolerance:g} (a model that draws random "
            "numbers in its passes has no such loss: options: {compare: false})"
        )
    if set(norms) != set(reference.gradient_norms):
        odd = sorted(set(norms) ^ set(reference.gradient_norms), key=int)
        raise WrongOutput(
            f"layers {', '.join(odd)} have gradients either in the pipeline or without it alone"
        )
    return Difference(off, _gradient_difference(norms, reference.gradient_norms, tolerance))


def _furthest(ranks: Sequence[Pass], wanted: Mapping[str, float]) -> dict[str, float]:
    found: dict[str, float] = {}
    for rank in ranks:
        for layer, norm in rank.gradient_norms.items():
            right = wanted.get(layer, 0.0)
            if layer not in found or not abs(norm - right) <= abs(found[layer] - right):
                found[layer] = norm
    return found


def _gradient_difference(
    norms: Mapping[str, float], wanted: Mapping[str, float], tolerance: float
) -> float:
    """Of the norm over all layers; the worst layer is named if any is off."""
    whole, whole_wanted = _whole(norms), _whole(wanted)
    off = _relative(whole, whole_wanted)
    by_layer = {layer: _relative(norms[layer], wanted[layer]) for layer in wanted}
    worst = max(by_layer, key=by_layer.__getitem__, default="")
    is_off = off > tolerance or (worst and by_layer[worst] > LAYER_SLACK * tolerance)
    if not math.isfinite(whole_wanted):
        raise WrongOutput(
            "the gradients of the model itself are not numbers (NaN or infinite), layer "
            f"{next(n for n, norm in wanted.items() if not math.isfinite(norm))} the first"
        )
    if is_off or not math.isfinite(whole):
        raise WrongOutput(
            f"the gradients' norm is {whole:.9g} in the pipeline and {whole_wanted:.9g} without; "
            f"the furthest is layer {worst}: {norms[worst]:.6g} against {wanted[worst]:.6g}"
        )
    return off


def _whole(norms: Mapping[str, float]) -> float:
    return math.sqrt(math.fsum(norm**2 for norm in norms.values()))


def _relative(value: float, wanted: float) -> float:
    if not math.isfinite(value):
        return math.inf
    return abs(value - wanted) / max(abs(wanted), 1e-30) if value != wanted else 0.0
