"""What a rank does in a step and when, by the host's clock or the device's."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from autotune.core.clock import Clock
from autotune.core.pipeline import Span

_Mark = Any  # seconds of the host's clock, or an event of the device


class Recorder:
    """Records the passes of a rank's stages.

    A device that computes while the host goes on is asked for the times of events in its own
    queue, once a step is over; elsewhere the host's clock is right.

    Attributes:
        round: Which of a step's rounds (gradient accumulation) is running.
    """

    def __init__(self, clock: Clock, new_event: Callable[[], Any] | None) -> None:
        self._clock, self._new_event = clock, new_event
        self._marks: list[tuple[str, int, int, _Mark, _Mark]] = []
        self._zero: _Mark = None
        self.round = 0

    def begin(self) -> None:
        """A step begins now."""
        self._marks.clear()
        self._zero = self._mark()
        self.round = 0

    def spans(self) -> tuple[Span, ...]:
        """What was done since, in order; the device must have been waited for."""
        return tuple(
            Span(kind, stage, number, self._since(begin), self._since(end))
            for kind, stage, number, begin, end in self._marks
        )

    @contextmanager
    def piece(self, kind: str, stage: int = -1, number: int = -1) -> Iterator[None]:
        """Record what is done inside."""
        begin = self._mark()
        yield
        self._marks.append((kind, stage, number, begin, self._mark()))

    def extend(self) -> None:
        """What was done since belongs to the last piece."""
        if self._marks:
            self._marks[-1] = (*self._marks[-1][:4], self._mark())

    def watch(self, stage: Any, micro_batches: int, after: Callable[[str], None]) -> None:
        """Record the passes of a `PipelineStage`.

        Args:
            after: Called with the kind of every pass that has ended.
        """

        def wrap(name: str, kind_of: Callable[[dict[str, Any]], str]) -> None:
            inner = getattr(stage, name)

            @functools.wraps(inner)
            def recorded(chunk: int, *args: Any, **named: Any) -> Any:
                if name != "forward_one_chunk" and not stage.has_backward:
                    return inner(chunk, *args, **named)  # which does nothing then
                kind = kind_of(named)
                number = self.round * micro_batches + chunk
                with self.piece(kind, stage.stage_index, number):
                    result = inner(chunk, *args, **named)
                after(kind)
                return result

            setattr(stage, name, recorded)

        wrap("forward_one_chunk", lambda named: "F")
        wrap("backward_one_chunk", lambda named: "B" if named.get("full_backward", True) else "I")
        wrap("backward_weight_one_chunk", lambda named: "W")

    def _mark(self) -> _Mark:
        if self._new_event is None:
            return self._clock.now_s()
        event = self._new_event()
        event.record()
        return event

    def _since(self, mark: _Mark) -> float:
        if self._new_event is None:
            return float(mark - self._zero)
        return float(self._zero.elapsed_time(mark)) * 1e-3
