"""Two configurations measured again, side by side."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial

from autotune.apps.comparable import (
    CompareOptions,
    checked,
    measurement_of,
    metric_of,
    rule_of,
)
from autotune.apps.layouts import refusal
from autotune.apps.operands import Operand
from autotune.apps.resolve import Resolved, resolve, study_facts
from autotune.apps.view import View
from autotune.core.errors import TrialError, UsageError, WrongOutput
from autotune.core.objective import METRICS
from autotune.core.outcomes import Outcome
from autotune.core.records import Answers, Config, TrialRecord, Verdict
from autotune.core.units import format_duration, format_rate
from autotune.measure.equal_work import Reference, combined, reference_of
from autotune.measure.equal_work import compare as agree
from autotune.measure.judge import SEARCH_ALPHA, judge
from autotune.measure.paired import GATE_ALPHA, LOOKS, Rule, judge_pairs
from autotune.measure.summary import summarise
from autotune.results.compare_words import percent
from autotune.results.regression import CompareResult, Side
from autotune.results.words import config_text, metric_label
from autotune.search.conditions import fingerprint_of
from autotune.search.pairs import Pairs, measure_pairs
from autotune.search.rounds import Contestant, Entrant
from autotune.space.search_space import Confirm, SearchSpace
from autotune.trial.group import trial_plan
from autotune.trial.session import Launcher

REHEARSAL_S = 1.0  # of a configuration that was never measured, to learn how long a call takes


class CompareInterrupted(KeyboardInterrupt):
    """Stopped by hand; `result` rests on the pairs that were complete, None if there are none."""

    def __init__(self, result: CompareResult | None) -> None:
        super().__init__("interrupted")
        self.result = result


def compare_fresh(a: Operand, b: Operand, options: CompareOptions, view: View) -> CompareResult:
    """Measure both in pairs of fresh processes until the question is settled.

    Raises:
        UsageError: They cannot be compared. UnavailableError: Something is missing here.
        CompareInterrupted: On Ctrl-C.
    """
    match = _match(a, b, options)
    _announce(match, view)
    pairs = Pairs()
    with Launcher() as launcher:
        try:
            sides = _ready(match, launcher, view, pairs)
            if not pairs.failures:
                measure_pairs(
                    sides,
                    launcher,
                    match.rule,
                    metric=match.metric,
                    duration_s=match.duration_s,
                    time_s=options.time_s,
                    into=pairs,
                    on_progress=view.confirming,
                )
        except KeyboardInterrupt:
            pairs.stopped = f"interrupted after {len(pairs.log_ratios)} pairs"
            done = _result(match, pairs, launcher.now_s()) if pairs.log_ratios else None
            raise CompareInterrupted(done) from None
        return _result(match, pairs, launcher.now_s())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Match:
    """Who meets whom, and under which rules; pairs have the order of A and B.

    Attributes:
        rate_per_s: The arrivals that both have to serve, None under a closed load.
        duration_s: Time measured per side in a pair.
        differences: What else differs between the two.
    """

    operands: tuple[Operand, Operand]
    resolved: tuple[Resolved, Resolved]
    sides: tuple[Contestant, Contestant]
    metric: str
    rule: Rule
    duration_s: float
    rate_per_s: float | None
    differences: tuple[str, ...]
    anyway: bool


def _match(a: Operand, b: Operand, options: CompareOptions) -> _Match:
    for operand in (a, b):
        if operand.no_space:
            raise UsageError(f"{operand.name} cannot be run: {operand.no_space}")
    spaces = a.space or b.space, b.space or a.space
    if spaces[0] is None or spaces[1] is None:
        raise UsageError(
            f"neither {a.name} nor {b.name} says how to run the model: compare one of them with a "
            "study, a baseline or a space file"
        )
    rate = _rate(a, b, (spaces[0], spaces[1]), options)
    ours, theirs = resolve(_at_rate(spaces[0], rate)), resolve(_at_rate(spaces[1], rate))
    conditions = [fingerprint_of(found.space, found.info) for found in (ours, theirs)]
    space = ours.space
    return _Match(
        operands=(a, b),
        resolved=(ours, theirs),
        sides=(_contestant(a, ours), _contestant(b, theirs)),
        metric=metric_of(space.objective),
        rule=rule_of(options, looks=len(LOOKS), confirm=space.confirm),
        duration_s=(space.confirm or Confirm()).duration_s / LOOKS[0],
        rate_per_s=rate,
        differences=checked(a, b, conditions[0], conditions[1], options.anyway),
        anyway=options.anyway,
    )


def _rate(
    a: Operand, b: Operand, spaces: tuple[SearchSpace, SearchSpace], options: CompareOptions
) -> float | None:
    """The arrivals that both have to serve: as said, else the most that both are shown to."""
    loads = [space.objective.load for space in spaces]
    if not any(load.is_open for load in loads):
        if options.rate_per_s is not None:
            raise UsageError("--rate: the load is closed, so that nothing arrives")
        return None
    if options.rate_per_s is not None:
        return options.rate_per_s
    given = {load.rate_per_s for load in loads if load.rate_per_s}
    if len(given) > 1:
        texts = " and ".join(format_rate(rate) for rate in sorted(given))
        raise UsageError(f"the two have different arrival rates, {texts}: say --rate 500/s")
    shown = [m.arrival_rate_per_s for o in (a, b) if (m := measurement_of(o))]
    known = [rate for rate in (*given, *shown) if rate]
    if not known:
        raise UsageError("both are to serve the same arrivals: say how many, as --rate 500/s")
    return min(known)


def _contestant(operand: Operand, resolved: Resolved) -> Contestant:
    space, config = resolved.space, operand.config
    if why := refusal(config, space):
        raise UsageError(f"{operand.name}: {config_text(config)} {why}")
    record = operand.record or TrialRecord(
        number=0, config=config, phase="measure", verdict=Verdict(outcome=Outcome.UNDECIDED)
    )
    return Contestant(entrant=Entrant(record=record), space=space, info=resolved.info)


def _announce(match: _Match, view: View) -> None:
    a, b = match.operands
    rule, each = match.rule, format_duration(match.duration_s)
    settings = {
        "A": f"{a.name}: {config_text(a.config)}",
        "B": f"{b.name}: {config_text(b.config)}",
        "compared": metric_label(match.metric),
        "pairs": f"{LOOKS[0]} to {LOOKS[-1]}, {each} each side",
        "looking for": f"a slowdown of {percent(rule.tolerance)}" if rule.gate else "a difference",
    }
    view.resolved(replace(study_facts(match.resolved[0]), study="", settings=settings))
    for note in (*a.notes, *b.notes):
        view.note(note)


def _ready(
    match: _Match, launcher: Launcher, view: View, pairs: Pairs
) -> tuple[Contestant, Contestant]:
    """Find what cannot run before anything is measured, how long calls take, and what is answered.

    Raises:
        UsageError: A model cannot be built at all.
    """
    ready = list(match.sides)
    answers: list[tuple[Answers, ...]] = []
    for index, side in enumerate(match.sides):
        view.preparing(f"trying {'AB'[index]} once")
        try:
            ready[index], given = _rehearsed(side, launcher)
            answers.append(given)
        except TrialError as error:
            pairs.failures[index] = error
    if not pairs.failures:
        reference = _check_work(match, answers[0], answers[1], pairs)
        if reference is not None:
            ready = [replace(side, check=partial(_hold_against, reference)) for side in ready]
    return ready[0], ready[1]


def _hold_against(reference: Reference, _config: Config, answers: tuple[Answers, ...]) -> None:
    """Raise WrongOutput if a session of either side answers otherwise than B did at first."""
    try:
        for one in answers:
            agree(one, reference)
    except WrongOutput as error:
        raise WrongOutput(str(error).replace("the baseline", "B")) from None


def _check_work(
    match: _Match, ours: tuple[Answers, ...], theirs: tuple[Answers, ...], pairs: Pairs
) -> Reference | None:
    """Whether both give the same outputs: what does other work is no faster or slower.

    Returns:
        What later sessions are held against; None: nothing.
    """
    a, b = (side.space for side in match.sides)
    if not (ours and theirs and a.trial.check_outputs and b.trial.check_outputs):
        return None
    if a.trial.seed != b.trial.seed:
        pairs.notes.append("outputs are not compared: the two have different seeds")
        return None
    try:
        reference = reference_of(theirs[0])
        agreement = combined([agree(answers, reference) for answers in ours])
    except WrongOutput as error:
        if match.anyway:
            pairs.notes.append(str(error).replace("the baseline", "B"))
        else:
            text = str(error).replace("the baseline", "B")
            pairs.failures[0] = WrongOutput(f"{text} (--anyway compares speeds all the same)")
        return None
    if agreement.untold:
        pairs.notes.append(f"outputs are not compared: {agreement.untold}")
    return reference


def _result(match: _Match, pairs: Pairs, elapsed_s: float) -> CompareResult:
    (a, b), rule = match.operands, match.rule
    # Stopped: there would have been no more pairs, whatever they had shown.
    allowed = None if pairs.stopped else LOOKS[-1]
    test = judge_pairs(pairs.log_ratios, rule, allowed=allowed)
    ratios = tuple(math.exp(value) for value in pairs.log_ratios)
    sign = 1 if METRICS[match.metric].better == "higher" else -1
    alpha = GATE_ALPHA if rule.gate else SEARCH_ALPHA
    notes = [*a.notes, *b.notes, *pairs.notes]
    if test is not None and test.moved:
        apart = ", ".join(f"{i + 1} ({ratios[i]:.3g}×)" for i in test.moved)
        notes.append(f"pairs that lie far from the others count as nearer: {apart}")
    return CompareResult(
        a=_measured_side(match, pairs, 0, alpha),
        b=_measured_side(match, pairs, 1, alpha),
        metric=match.metric,
        basis="fresh",
        metric_ratio=test.ratio**sign if test else None,
        test=test,
        pair_ratios=ratios,
        rate_per_s=match.rate_per_s,
        origin=match.resolved[0].origin,
        is_gate=rule.gate,
        tolerance=rule.tolerance,
        interleaved=pairs.together,
        stopped=pairs.stopped,
        differences=match.differences,
        notes=tuple(notes),
        elapsed_s=elapsed_s,
        at_s=pairs.began_s,
    )


def _rehearsed(side: Contestant, launcher: Launcher) -> tuple[Contestant, tuple[Answers, ...]]:
    """A contestant that is known to run and how long its calls take, and what it answers.

    Raises:
        TrialError: It cannot run.
    """
    with side.open(launcher) as session:
        if side.entrant.step_s > 0:
            return side, session.answers
        plan = trial_plan(side.space)
        windows = tuple(replace(w, duration_s=REHEARSAL_S, iterations=None) for w in plan.windows)
        measurement = summarise(session.measure(replace(plan, windows=windows)))
        record = replace(side.entrant.record, measurements=(measurement,))
        return replace(side, entrant=Entrant(record=record)), session.answers


def _measured_side(match: _Match, pairs: Pairs, index: int, alpha: float) -> Side:
    operand, resolved = match.operands[index], match.resolved[index]
    facts, objective = study_facts(resolved), resolved.space.objective
    side = Side(
        name=operand.name,
        config=operand.config,
        workload=facts.workload,
        device=f"{resolved.info.name}: {resolved.info.description}",
        limits=objective.limits,
        measured_at_s=pairs.began_s,
    )
    if index in pairs.failures:
        error = pairs.failures[index]
        return replace(side, failure=str(error), log_tail=error.log_tail)
    pool = pairs.pool(index)
    if pool is None:
        return side
    measurement = summarise(pool)
    verdict = judge(pool, measurement, objective, alpha=alpha)
    return replace(side, measurement=measurement, verdict=verdict)


def _at_rate(space: SearchSpace, rate_per_s: float | None) -> SearchSpace:
    if rate_per_s is None:
        return space
    load = space.objective.load
    kind = load.kind if load.kind in ("poisson", "constant") else "poisson"
    load = replace(load, kind=kind, rate_per_s=rate_per_s)
    return replace(space, objective=replace(space.objective, load=load))
