"""Where the time of a pipeline's step went: busy, waiting, communication, and the same replayed."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence

from autotune.core.pipeline import PipelineFigures, RankFigures, RankTrace, Span
from autotune.measure.pipeline_theory import bubble_ratio

PASSES = "FBIW"
MAX_SPANS = 1500  # of a step that is kept to be drawn, all ranks together

Work = tuple[str, int, int]
"""A piece of work: kind, stage, micro-batch."""


def figures_of(traces: Sequence[RankTrace]) -> PipelineFigures | None:
    """The figures of a pipeline from what its ranks kept; None if they kept nothing.

    Args:
        traces: Of every rank; those of the first replica count.
    """
    own = sorted((t for t in traces if t.replica == 0), key=lambda t: t.place)
    if not own or not all(trace.steps for trace in own):
        return None
    shown = _median_step(own)
    lines = [trace.steps[shown].spans for trace in own]
    first = own[0]
    per_round = first.micro_batches // first.rounds
    return PipelineFigures(
        schedule=first.schedule,
        micro_batch_count=first.micro_batches,
        stage_count=len(own),
        bubble_ratio=_usual_bubble(own),
        formula_bubble_ratio=bubble_ratio(first.schedule, len(own), per_round, first.chunks),
        replayed_bubble_ratio=replayed_bubble(own),
        step_s=first.steps[shown].duration_s,
        ranks=_ranks(own, lines),
        spans=tuple(lines) if sum(map(len, lines)) <= MAX_SPANS else (),
        loss=first.loss,
        loss_difference=first.loss_difference,
        gradient_difference=first.gradient_difference,
    )


def _ranks(traces: Sequence[RankTrace], lines: Sequence[Sequence[Span]]) -> tuple[RankFigures, ...]:
    end_s = max(map(_end_s, lines))
    found = []
    for trace, line, wait_s in zip(traces, lines, waiting(lines), strict=True):
        own_end_s, busy_s = _end_s(line), sum(_kind_s(line, kind) for kind in PASSES)
        found.append(
            RankFigures(
                rank=trace.rank,
                stages=trace.stages,
                layers=trace.layers,
                busy_s=busy_s,
                waiting_s=wait_s + end_s - own_end_s,
                communication_s=max(0.0, own_end_s - busy_s - wait_s),
                reduction_s=_kind_s(line, "R"),
                update_s=_kind_s(line, "U"),
                in_flight=in_flight(line),
                memory_peak_bytes=trace.memory_peak_bytes,
            )
        )
    return tuple(found)


def measured_bubble(lines: Sequence[Sequence[Span]]) -> float:
    """Share of the ranks' time, from the step's start to the last pass's end, without a pass."""
    end_s = max((s.end_s for line in lines for s in line if s.kind in PASSES), default=0.0)
    busy_s = sum(s.end_s - s.start_s for line in lines for s in line if s.kind in PASSES)
    return 1.0 - busy_s / (end_s * len(lines)) if end_s else 0.0


def waiting(lines: Sequence[Sequence[Span]]) -> list[float]:
    """Per rank the seconds in which the next piece of work had not its input yet.

    A piece's input is there when the work it depends on has ended, wherever that ran; what it
    started later than that, and than the rank's last piece ended, is communication.
    """
    ends = {_work(s): s.end_s for line in lines for s in line if s.kind in PASSES}
    waits: list[float] = []
    for line in lines:
        before_s = total = 0.0
        for span in _passes(line):
            ready_s = max((ends[w] for w in _needs(span, ends)), default=0.0)
            total += min(max(ready_s - before_s, 0.0), max(span.start_s - before_s, 0.0))
            before_s = max(before_s, span.end_s)
        waits.append(total)
    return waits


def in_flight(line: Sequence[Span]) -> int:
    """The most (stage, micro-batch) pairs whose activations a rank held at once."""
    held = most = 0
    for span in _passes(line):
        held += {"F": 1, "B": -1, "W": -1}.get(span.kind, 0)
        most = max(most, held)
    return most


def replay(
    orders: Sequence[Sequence[Work]], lengths_s: Mapping[tuple[str, int], float]
) -> list[list[Span]]:
    """Run every rank's work in its order with given lengths and transfers that take no time.

    Args:
        lengths_s: By kind and stage.
    Raises:
        ValueError: The orders wait for each other for ever.
    """
    everything = {work for order in orders for work in order}
    ends: dict[Work, float] = {}
    lines: list[list[Span]] = [[] for _ in orders]
    free_s = [0.0] * len(orders)
    left = sum(map(len, orders))
    while left:
        before = left
        for rank, order in enumerate(orders):
            while len(lines[rank]) < len(order):
                work = order[len(lines[rank])]
                needs = _needs(Span(*work, 0.0, 0.0), everything)
                if any(need not in ends for need in needs):
                    break
                start_s = max([free_s[rank], *(ends[need] for need in needs)])
                free_s[rank] = ends[work] = start_s + lengths_s[work[:2]]
                lines[rank].append(Span(*work, start_s, free_s[rank]))
                left -= 1
        if left == before:
            raise ValueError("the ranks' orders of work wait for each other")
    return lines


def replayed_bubble(traces: Sequence[RankTrace]) -> float:
    """The bubble of the order that was run, with the mean length of every stage's passes."""
    times: dict[tuple[str, int], list[float]] = defaultdict(list)
    for trace in traces:
        for step in trace.steps:
            for span in _passes(step.spans):
                times[span.kind, span.stage].append(span.end_s - span.start_s)
    lengths_s = {key: statistics.fmean(values) for key, values in times.items()}
    orders = [[_work(s) for s in _passes(trace.steps[-1].spans)] for trace in traces]
    return measured_bubble(replay(orders, lengths_s))


def _median_step(traces: Sequence[RankTrace]) -> int:
    """Which of the steps kept is the one of median length."""
    times_s = [step.duration_s for step in traces[0].steps]
    return sorted(range(len(times_s)), key=times_s.__getitem__)[(len(times_s) - 1) // 2]


def _usual_bubble(traces: Sequence[RankTrace]) -> float:
    steps = zip(*(trace.steps for trace in traces), strict=True)
    return statistics.median(measured_bubble([step.spans for step in ranks]) for ranks in steps)


def _passes(line: Sequence[Span]) -> list[Span]:
    return [span for span in line if span.kind in PASSES]


def _end_s(line: Sequence[Span]) -> float:
    return max((span.end_s for span in _passes(line)), default=0.0)


def _kind_s(line: Sequence[Span], kind: str) -> float:
    return sum(span.end_s - span.start_s for span in line if span.kind == kind)


def _work(span: Span) -> Work:
    return span.kind, span.stage, span.micro_batch


def _needs(span: Span, known: Mapping[Work, float] | set[Work]) -> list[Work]:
    """What a piece of work waits for, as far as it is among the known work."""
    kind, stage, number = span.kind, span.stage, span.micro_batch
    if kind == "F":
        needs: list[Work] = [("F", stage - 1, number)]
    elif kind == "W":
        needs = [("I", stage, number)]
    else:
        above: list[Work] = [("B", stage + 1, number), ("I", stage + 1, number)]
        needs = [*above, ("F", stage, number)]
    return [need for need in needs if need in known]
