"""The model in ONNX Runtime, one session per instance."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from autotune.programs.command import main
from autotune.programs.instance import bind, find_file
from autotune.programs.memory import Array, HostCopies, Layout, Settings
from autotune.programs.server import Server

SETTINGS: Settings = {}

PROVIDER = "CPUExecutionProvider"
SLOT_COUNT = 2
LOG_ERRORS_ONLY = 3


class OnnxRuntime:
    """A session with its inputs bound to memory once; a call copies there."""

    def __init__(self, settings: Settings, index: int, layout: Layout) -> None:
        import onnxruntime as ort

        options = session_options(ort, settings, bind(settings, index))
        path = str(find_file(settings["model"]))
        self._session = ort.InferenceSession(path, options, providers=[PROVIDER])
        if self._session.get_providers()[0] != PROVIDER:
            raise RuntimeError(f"onnxruntime runs the model on {self._session.get_providers()}")
        self._pads = settings["pads"]
        self._layout, self._calls = layout, 0
        self._copies = HostCopies(layout, SLOT_COUNT, packed=settings["batched_h2d"])
        self._bindings: dict[tuple[int, int, int], Any] = {}
        self.adopt = self._copies.adopt

    def call(self, adopted: Any, items: Sequence[int]) -> list[Any]:
        """Copy and run, micro-batch after micro-batch."""
        bindings = []
        for part, count in enumerate(items):
            slot = (self._calls + part) % SLOT_COUNT
            used = self._layout.items if self._pads else count
            self._copies.load(slot, adopted[part], used)
            binding = self._binding(part, slot, used)
            try:
                self._session.run_with_iobinding(binding)
            except Exception:  # outputs of another shape do not fit into the last call's memory
                self._bind_outputs(binding)
                self._session.run_with_iobinding(binding)
            bindings.append(binding)
        self._calls += len(items)
        return bindings

    def outputs(self, result: list[Any]) -> list[list[Array]]:
        """What the sessions' own memory holds."""
        return [[value.numpy() for value in binding.get_outputs()] for binding in result]

    def _binding(self, part: int, slot: int, items: int) -> Any:
        key = (part, slot, items)
        if key not in self._bindings:
            binding = self._session.io_binding()
            views = self._copies.first(slot, items)
            for item, view in zip(self._session.get_inputs(), views, strict=True):
                where = (view.dtype.type, view.shape, view.ctypes.data)
                binding.bind_input(item.name, "cpu", 0, *where)
            self._bind_outputs(binding)
            self._bindings[key] = binding
        return self._bindings[key]

    def _bind_outputs(self, binding: Any) -> None:
        binding.clear_binding_outputs()
        for output in self._session.get_outputs():
            binding.bind_output(output.name, "cpu")


def session_options(ort: Any, settings: Settings, thread_count: int) -> Any:
    """The session's options: threads as many as the instance has cores."""
    chosen = settings["runtime"]
    options = ort.SessionOptions()
    options.log_severity_level = LOG_ERRORS_ONLY
    options.intra_op_num_threads = thread_count
    options.inter_op_num_threads = chosen["inter_op_threads"]
    for pool in ("intra_op", "inter_op"):
        options.add_session_config_entry(
            f"session.{pool}.allow_spinning", str(int(chosen["spinning"]))
        )
    options.execution_mode = getattr(ort.ExecutionMode, chosen["execution_mode"])
    level = chosen["graph_optimization"]
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    options.enable_cpu_mem_arena = chosen["arena"]
    return options


def server() -> Server:
    """The server of this configuration, for use as a library."""
    return Server(OnnxRuntime, SETTINGS)


if __name__ == "__main__":
    sys.exit(main(OnnxRuntime, SETTINGS))
