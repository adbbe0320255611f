"""`autotune compare`: two configurations held against each other, recorded or measured afresh."""

from __future__ import annotations

from pathlib import Path

from autotune.apps.baselines import Baseline, find_baseline, save_baseline
from autotune.apps.comparable import CompareOptions, conditions_now
from autotune.apps.compare_fresh import CompareInterrupted as CompareInterrupted
from autotune.apps.compare_fresh import compare_fresh
from autotune.apps.compare_recorded import compare_recorded
from autotune.apps.operands import BASELINE, Operand, of_baseline, read_operand, reference_of
from autotune.apps.view import View
from autotune.core.errors import UsageError
from autotune.results.regression import CompareResult


def compare(
    a: str, b: str = "", options: CompareOptions | None = None, *, view: View | None = None
) -> CompareResult:
    """Compare what two words name, see `autotune.apps.operands`.

    Args:
        b: Empty: the baseline of the study that `a` is of.
    Raises:
        UsageError: There is no such thing, or the two cannot be compared.
        UnavailableError: What is to be measured cannot run here.
        CompareInterrupted: On Ctrl-C while measuring.
    """
    options = options or CompareOptions()
    reference = b or reference_of(a, options.studies_dir)
    ours = read_side(a, options)
    theirs = read_side(reference, options, beside=ours)
    view = view or View()
    if options.fresh:
        return compare_fresh(ours, theirs, options, view)
    return compare_recorded(ours, theirs, options)


def read_side(text: str, options: CompareOptions, beside: Operand | None = None) -> Operand:
    """One side; a baseline is the one that fits what it stands beside.

    Raises:
        UsageError: There is no such thing.
    """
    if not text.startswith(BASELINE):
        return read_operand(text, options.studies_dir, options.storage)
    name = text.removeprefix(BASELINE)
    conditions = {} if beside is None else conditions_now(beside)
    return of_baseline(text, *find_baseline(name, conditions, options.studies_dir))


def keep_baseline(text: str, name: str, options: CompareOptions) -> Path:
    """Keep what a word names as a baseline.

    Returns:
        Where it is.
    Raises:
        UsageError: There is no such thing, or nothing says how to run it.
    """
    operand = read_side(text, options)
    if operand.space is None:
        why = operand.no_space or "keep a study or a space file"
        raise UsageError(f"{text} does not say how to run the model: {why}")
    conditions = dict(conditions_now(operand))
    baseline = Baseline(
        name=name,
        source=text,
        config=operand.config,
        record=operand.record,
        space_path=operand.space.source.path,
        space_text=operand.space.source.text,
        fingerprint=conditions,
        workload=operand.workload,
        device=operand.device,
        origin=operand.origin,
    )
    return save_baseline(baseline, operand.space.workload.model, options.studies_dir)
