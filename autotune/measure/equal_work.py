"""Whether a configuration does the same work as the baseline: its outputs agree on the same items.

Speed is worth nothing if a larger batch drops items, answers from memory, or quietly runs in
another precision. Outputs are compared item by item (`core.records.Answers`), relative to the
size of the output they belong to.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from autotune.core.errors import WrongOutput
from autotune.core.records import Answers, Floats

TOLERANCES = {
    # Sums of some 10^4 terms in another order, tens of layers deep: seen up to 1e-5; a step of
    # float32 is 6e-8. What bfloat16 does in its place is well above.
    "float64": 1e-6,
    "float32": 1e-3,
    # Steps of 5e-4 and 4e-3 of a value, gathered over tens of layers.
    "float16": 2e-2,
    "bfloat16": 1e-1,
    # Steps of 1/127 of the largest value, which may depend on the batch it is taken over.
    "int8": 2e-1,
}
"""How far outputs of one item may differ, relative to the size of the output; a wrong item
differs by about its size."""

LOOSEST = max(TOLERANCES.values())
DISCRETE_SHARE = 0.25  # of the items whose class, say, may flip between two that are nearly even
TINY = 1e-12
HUGE = 1e30  # in place of an infinity, which a mask may put into an output on purpose


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """What the baseline's model answers; plain, so that a study can keep it.

    Attributes:
        figures: By probe item what stands for its output, () of an item that was not seen.
        widths, is_discrete, precision: As of `Answers`.
        is_coarse: True if its items differ by less than the precision tells: only what is wrong
            by about an output's size would then be seen, and not an item in another's place.
        untold: Why nothing can be compared with it, empty if it can.
    """

    figures: tuple[tuple[float, ...], ...] = ()
    widths: tuple[int, ...] = ()
    is_discrete: tuple[bool, ...] = ()
    precision: str = "float32"
    is_coarse: bool = False
    untold: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Outputs compared and not found to differ.

    Attributes:
        difference: The largest of an item, relative to the size of its output; None if nothing
            was compared.
        tolerance: What the precision allows.
        is_coarse: As of `Reference`.
        untold: Why nothing was compared, empty if it was.
    """

    difference: float | None = None
    tolerance: float = LOOSEST
    is_coarse: bool = False
    untold: str = ""

    @property
    def caveats(self) -> tuple[str, ...]:
        """What the user should know of the comparison."""
        if self.untold:
            return (f"outputs were not compared: {self.untold}",)
        if self.is_coarse:
            return (
                "outputs of different items differ by less than the precision tells: only gross "
                "faults would be seen",
            )
        return ()


def tolerance_of(*precisions: str) -> float:
    """What the least precise of them allows; an unknown one counts as the least precise."""
    return max(TOLERANCES.get(precision, LOOSEST) for precision in precisions)


def reference_of(answers: Answers) -> Reference:
    """The baseline's answers as what others are held against.

    Raises:
        WrongOutput: They are not numbers.
    """
    check_numbers(answers)
    values = _finite(answers.figures)
    items = range(int(answers.item.max(initial=-1)) + 1)
    rows = [values[answers.item == item] for item in items]
    figures = tuple(tuple(row[0].tolist()) if len(row) else () for row in rows)
    reference = Reference(
        figures=figures,
        widths=answers.widths,
        is_discrete=answers.is_discrete,
        precision=answers.precision,
    )
    if untold := _why_untold(answers, reference):
        return Reference(untold=untold)
    return replace(reference, is_coarse=not _tells_items_apart(answers, reference))


def check_numbers(answers: Answers) -> None:
    """Raise WrongOutput if an output has a NaN; an infinity may be meant (a mask)."""
    wrong = int(np.isnan(answers.figures).any(axis=1).sum())
    if wrong:
        raise WrongOutput(
            f"the output of {wrong} of {answers.item.size} items is not a number (NaN); random "
            "inputs may lie outside of what the model takes: give inputs low and high"
        )


def compare(answers: Answers, reference: Reference) -> Agreement:
    """Hold a configuration's answers against the baseline's.

    Raises:
        WrongOutput: They differ by more than the precision allows; says by how much, and where.
    """
    check_numbers(answers)
    if reference.untold:
        return Agreement(untold=reference.untold)
    _check_shapes(answers, reference)
    tolerance = tolerance_of(answers.precision, reference.precision)
    known = [item for item, figures in enumerate(reference.figures) if figures]
    seen = np.isin(answers.item, known)
    difference = 0.0
    for ours, theirs, is_discrete in _tensors(answers, reference):
        off = _difference(ours[seen], theirs[answers.item[seen]], theirs[known])
        wrong = off > tolerance
        if wrong.mean() > (DISCRETE_SHARE if is_discrete else 0.0):
            raise WrongOutput(
                f"outputs differ from the baseline's: {int(wrong.sum())} of {off.size} items by up "
                f"to {off.max():.2g} of the output's size; {answers.precision} allows "
                f"{tolerance:g}"
            )
        difference = max(difference, 0.0 if is_discrete else float(off.max(initial=0.0)))
    return Agreement(difference=difference, tolerance=tolerance, is_coarse=reference.is_coarse)


def _why_untold(answers: Answers, reference: Reference) -> str:
    """Why a reference tells nothing, empty if it does."""
    if not answers.widths:
        return "the model returns no tensors"
    if not any(answers.widths):
        return "the model's output has no axis that counts the items"
    tolerance = tolerance_of(answers.precision)
    known = [item for item, figures in enumerate(reference.figures) if figures]
    for ours, theirs, is_discrete in _tensors(answers, reference):
        scattered = _difference(ours, theirs[answers.item], theirs[known]) > tolerance
        if scattered.mean() > (DISCRETE_SHARE if is_discrete else 0.0):
            return "the same item gets another output from call to call (dropout, sampling?)"
    if len(known) > 1 and len({reference.figures[item] for item in known}) == 1:
        return "different items get the same output, so that nothing can be told from it"
    return ""


def _tells_items_apart(answers: Answers, reference: Reference) -> bool:
    """True if any tensor of two items differs by more than the precision allows."""
    tolerance = tolerance_of(answers.precision)
    known = [item for item, figures in enumerate(reference.figures) if figures]
    for _, theirs, _ in _tensors(answers, reference):
        first = np.broadcast_to(theirs[known[0]], theirs[known].shape)
        if (_difference(theirs[known], first, theirs[known]) > tolerance).any():
            return True
    return len(known) < 2


def _check_shapes(answers: Answers, reference: Reference) -> None:
    if len(answers.widths) != len(reference.widths):
        raise WrongOutput(
            f"the model gives {len(answers.widths)} output tensors, in the baseline "
            f"{len(reference.widths)}"
        )
    shapes = ", ".join(" x ".join(map(str, shape)) for shape in answers.shapes)
    if any(reference.widths) and not any(answers.widths):
        raise WrongOutput(
            f"no axis of the output has the {answers.run_items} items that went in: {shapes}"
        )
    both = zip(answers.widths, reference.widths, strict=True)
    if any(ours and theirs and ours != theirs for ours, theirs in both):
        raise WrongOutput(f"the output of an item has another shape than in the baseline: {shapes}")


def _tensors(answers: Answers, reference: Reference) -> Iterator[tuple[Floats, Floats, bool]]:
    """Per tensor that both have by item: figures at each place, and by item in the reference."""
    values = _finite(answers.figures)
    width = sum(reference.widths)
    table = np.array([row or (0.0,) * width for row in reference.figures]).reshape(-1, width)
    start = base = 0
    for ours, theirs, is_discrete in zip(
        answers.widths, reference.widths, reference.is_discrete, strict=True
    ):
        if ours and theirs:
            yield values[:, start : start + ours], table[:, base : base + theirs], is_discrete
        start, base = start + ours, base + theirs


def _difference(ours: Floats, theirs: Floats, known: Floats) -> Floats:
    """Per place the largest difference of a figure, relative to the size of the tensor.

    The size is the mean absolute value of its elements over the items, plus the figure's own.
    """
    size = float(known[:, 1].mean())
    off = np.abs(ours - theirs) / (size + np.abs(theirs) + TINY)
    return np.asarray(off.max(axis=1, initial=0.0))


def _finite(figures: npt.NDArray[np.float64]) -> Floats:
    return np.nan_to_num(figures, nan=0.0, posinf=HUGE, neginf=-HUGE).clip(-HUGE, HUGE)


def combined(agreements: Sequence[Agreement]) -> Agreement:
    """Of several instances: the largest difference."""
    compared = [a for a in agreements if a.difference is not None]
    return max(compared, key=lambda a: a.difference or 0.0) if compared else agreements[0]
