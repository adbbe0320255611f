"""Copies, compute and results of one instance on a torch accelerator, on streams with events.

The next micro-batch is copied on a stream of its own while the present one is computed. It is
started before the present one's compute is launched, so that it overlaps even where the model
waits for its own results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from autotune.core.records import Config, InputSpec, StageTimes
from autotune.devices.base import Part
from autotune.devices.staging import CopyMethod, TorchStaging, tensors_of

if TYPE_CHECKING:
    import torch

MAX_HOST_BUFFERS = 256  # results of distinct shapes that are kept for reuse


class _Marks:
    """The events of one micro-batch."""

    def __init__(self, runtime: Any) -> None:
        self.copy_began = runtime.Event(enable_timing=True)
        self.copied = runtime.Event(enable_timing=True)
        self.compute_began = runtime.Event(enable_timing=True)
        self.computed = runtime.Event(enable_timing=True)
        self.fetched = runtime.Event(enable_timing=True)

    def times(self) -> StageTimes:
        """Valid once all of it is done; the device counts in milliseconds."""
        return StageTimes(
            self.copy_began.elapsed_time(self.copied) * 1e-3,
            self.compute_began.elapsed_time(self.computed) * 1e-3,
            self.computed.elapsed_time(self.fetched) * 1e-3,
        )


class StreamStaging(TorchStaging):
    """Staging that overlaps copies with compute and clocks both on the device.

    Args:
        runtime: The framework's module for the device: torch.npu, torch.cuda, torch.mlu.
        stream: The one the instance computes on.
        method: How the inputs are copied.
        is_native: True if one call for many tensors is one operation of the runtime.
        note: What the user should know about that, added to `method`.
    """

    def __init__(
        self,
        inputs: Sequence[InputSpec],
        requests: Sequence[Sequence[Any]],
        config: Config,
        *,
        device: str,
        runtime: Any,
        stream: Any,
        method: CopyMethod,
        is_native: bool = False,
        note: str = "",
    ) -> None:
        super().__init__(inputs, requests, config, device=device, method=method, pinned=True)
        if method == "foreach" and not is_native:
            self.copies_per_call = config.micro_batch_count * len(inputs)
        if note:
            self.method = f"{method} ({note})"
        self._runtime, self._compute = runtime, stream
        count = config.micro_batch_count
        self._copying = runtime.Stream() if count > 1 else stream
        self._marks = [_Marks(runtime) for _ in range(count)]
        self._results: dict[tuple[Any, ...], torch.Tensor] = {}
        stream.synchronize()  # the slots are cleared before another stream writes to them

    def run_call(self, call: int, parts: Sequence[Part], run: Callable[..., Any]) -> StageTimes:
        """Copy, run and fetch all parts of a call, and wait for them."""
        compute, last = self._compute, len(parts) - 1
        ahead = self._start(call, parts, 0)
        for position, marks in zip(range(len(parts)), self._marks, strict=False):
            tensors = ahead
            if position < last:
                ahead = self._start(call, parts, position + 1)
            compute.wait_event(marks.copied)
            marks.compute_began.record(compute)
            output = run(*tensors)
            marks.computed.record(compute)
            self._fetch(position, output)
            marks.fetched.record(compute)
        compute.synchronize()  # launches return early: without it the clock would stop too soon
        stages = [marks.times() for marks in self._marks[: len(parts)]]
        return StageTimes(*(sum(column) for column in zip(*stages, strict=True)))

    def _start(self, call: int, parts: Sequence[Part], position: int) -> Sequence[torch.Tensor]:
        """Begin to copy a part; its slot is free once the part before the last is computed."""
        micro_batch, items = parts[position]
        marks, copying = self._marks[position], self._copying
        if copying is self._compute:
            marks.copy_began.record(copying)
            tensors = self.load(call, micro_batch, items)
        else:
            if position >= 2:
                copying.wait_event(self._marks[position - 2].computed)
            with self._runtime.stream(copying):
                marks.copy_began.record(copying)
                tensors = self.load(call, micro_batch, items)
        marks.copied.record(copying)
        return tensors

    def _fetch(self, position: int, output: Any) -> None:
        """Bring the outputs to page-locked host memory, as whoever asked would want them."""
        for index, tensor in enumerate(tensors_of(output)):
            self._result(position, index, tensor).copy_(tensor.contiguous(), non_blocking=True)

    def _result(self, position: int, index: int, tensor: torch.Tensor) -> torch.Tensor:
        import torch

        key = (position, index, tensor.shape, tensor.dtype)
        if key not in self._results:
            if len(self._results) >= MAX_HOST_BUFFERS:
                self._results.clear()
            self._results[key] = torch.empty(tensor.shape, dtype=tensor.dtype).pin_memory()
        return self._results[key]
