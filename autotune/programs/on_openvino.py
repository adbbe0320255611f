"""The model in OpenVINO on the CPU, compiled once per instance."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from autotune.programs.command import main
from autotune.programs.instance import bind, find_file
from autotune.programs.memory import Array, HostCopies, Layout, Settings
from autotune.programs.server import Server

SETTINGS: Settings = {}

SLOT_COUNT = 2


class OpenVino:
    """A compiled model with an infer request per slot; micro-batches run side by side."""

    def __init__(self, settings: Settings, index: int, layout: Layout) -> None:
        import openvino as ov

        thread_count = bind(settings, index)
        core = ov.Core()
        graph = core.read_model(str(find_file(settings["model"])))
        self._pads = settings["pads"]
        graph.reshape({f.name: self._shape(ov, f) for f in layout.fields})
        self._compiled = core.compile_model(
            graph,
            "CPU",
            {
                **settings["runtime"],
                "INFERENCE_NUM_THREADS": thread_count,
                "ENABLE_CPU_PINNING": False,  # the instance is bound already
            },
        )
        self._layout, self._calls = layout, 0
        self._is_async = settings["micro_batch_count"] > 1
        self._slot_count = max(SLOT_COUNT, settings["micro_batch_count"])
        packed = settings["batched_h2d"]
        self._copies = HostCopies(layout, self._slot_count, packed=packed)
        self._requests: dict[tuple[int, int], Any] = {}
        self._ov = ov
        self.adopt = self._copies.adopt

    def call(self, adopted: Any, items: Sequence[int]) -> list[Any]:
        """Copy and start every micro-batch, then wait for all."""
        started = []
        for part, count in enumerate(items):
            slot = (self._calls + part) % self._slot_count
            used = self._layout.items if self._pads else count
            self._copies.load(slot, adopted[part], used)
            request = self._request(slot, used)
            if self._is_async:
                request.start_async()
            else:
                request.infer()
            started.append(request)
        if self._is_async:
            for request in started:
                request.wait()
        self._calls += len(items)
        return started

    def outputs(self, result: list[Any]) -> list[list[Array]]:
        """What the requests' own memory holds."""
        return [[tensor.data for tensor in request.output_tensors] for request in result]

    def _request(self, slot: int, items: int) -> Any:
        if (slot, items) not in self._requests:
            request = self._compiled.create_infer_request()
            for index, view in enumerate(self._copies.first(slot, items)):
                request.set_input_tensor(index, self._ov.Tensor(view, shared_memory=True))
            self._requests[slot, items] = request
        return self._requests[slot, items]

    def _shape(self, ov: Any, field: Any) -> Any:
        """Of one size where the model is compiled for it, else of any number of items."""
        sizes = list(field.shape)
        if not self._pads and field.axis is not None:
            sizes[field.axis] = -1
        return ov.PartialShape(sizes)


def server() -> Server:
    """The server of this configuration, for use as a library."""
    return Server(OpenVino, SETTINGS)


if __name__ == "__main__":
    sys.exit(main(OpenVino, SETTINGS))
