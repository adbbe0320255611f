"""What is measured: the model, its inputs, and how requests arrive."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """How long the items of a sequence model are.

    Attributes:
        values: Lengths to draw from, each as likely as it is often there; if empty, all whole
            numbers from `low` to `high` alike.
        multiple_of: A batch is padded to its longest item, rounded up to a multiple of this.
    """

    values: tuple[int, ...] = ()
    low: int = 1
    high: int = 1
    multiple_of: int = 1

    @property
    def longest(self) -> int:
        """The length that the longest batch is padded to."""
        return self.padded(max(self.values, default=self.high))

    def padded(self, length: int) -> int:
        """What a batch is padded to whose longest item has this length."""
        return -(-length // self.multiple_of) * self.multiple_of


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSpec:
    """One input tensor of a model.

    Attributes:
        shape: Sizes; the text "batch" stands for the batch axis, which need not be first, and
            "length" for an axis along which items differ in length.
        low, high: Range of random data, `high` exclusive for integers; None: the dtype's
            default (0 and 2 for integers, standard normal for floats).
        lengths: Of the axis called "length"; beyond an item's length there are zeros.
    """

    name: str
    shape: tuple[int | str, ...]
    dtype: str = "float32"
    low: float | None = None
    high: float | None = None
    lengths: Lengths | None = None

    def sizes(self, batch_size: int, length: int | None = None) -> tuple[int, ...]:
        """The concrete shape for a batch size, and a length; None: the longest there is."""
        longest = self.lengths.longest if self.lengths else 1
        named = {"batch": batch_size, "length": longest if length is None else length}
        return tuple(named[size] if isinstance(size, str) else size for size in self.shape)

    def at_length(self, length: int) -> InputSpec:
        """The same for items that all have this length."""
        shape = tuple(length if size == "length" else size for size in self.shape)
        return replace(self, shape=shape, lengths=None)

    @property
    def length_axis(self) -> int | None:
        """The axis along which items differ in length, None for an input without one."""
        return self.shape.index("length") if "length" in self.shape else None

    @property
    def batch_axis(self) -> int | None:
        """The axis that counts items, None for an input without one."""
        return self.shape.index("batch") if "batch" in self.shape else None


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSpec:
    """A user's own requests.

    Attributes:
        file: An absolute path of an `.npz` file.
        timing: Measure with its items instead of random ones.
        evaluate: "path.py:function" of outputs and expected outputs; empty: they are compared.
    """

    file: str
    timing: bool = True
    evaluate: str = ""


FILE_RUNTIMES = {".onnx": ("onnxruntime", "openvino"), ".xml": ("openvino",)}
"""Runtimes that take a model's file, by its ending; the first is the default."""

CALLS = ("auto", "positional", "keywords", "dict", "tuple")
"""Ways to hand inputs to a model: `auto` goes by the names and types of its parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSpec:
    """What is measured, as the space file's `workload` says it.

    Attributes:
        kind: A key of the workloads table: torch, command, replay, simulated, ...
        model: A built-in's name, an absolute "path.py:factory", a model file, a grid or a
            cost model; empty for a command.
        options: Everything else the kind understands (sizes of a built-in, a replay's noise
            and seed, a command's words and metrics), as plain data.
        base_dir: Directory of the space file, against which relative paths were resolved.
        call: How a torch model gets its inputs: one of `CALLS`.
        lengths: Of the items, where inputs have an axis "length".
        data: Requests of the user's, and what the answers are held against.
        artifact: Directory of what was made of the model for its runtime outside of any trial
            (an ONNX export); empty if nothing was.
    """

    kind: str
    model: str = ""
    precision: str = "float32"
    inputs: tuple[InputSpec, ...] = ()
    options: Mapping[str, object] = field(default_factory=dict)
    base_dir: str = ""
    call: str = "auto"
    lengths: Lengths | None = None
    data: DataSpec | None = None
    artifact: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How requests arrive.

    Attributes:
        kind: "closed": each instance starts its next call when the last has ended.
        rate_per_s: Arrivals per second of an open load; None: the highest that holds.
        trace: File of arrival times for "trace".
        clients: Of a closed load: each of so many clients sends its next request when the last
            has been answered, all into one queue; None: each instance calls back to back.
    """

    kind: Literal["closed", "poisson", "constant", "trace"] = "closed"
    rate_per_s: float | None = None
    trace: str = ""
    clients: int | None = None

    @property
    def is_open(self) -> bool:
        """True if requests arrive whether or not the last one has been answered."""
        return self.kind != "closed"

    @property
    def is_queued(self) -> bool:
        """True if instances take requests from one queue, as many as wait, up to a batch."""
        return self.is_open or self.clients is not None

    @property
    def seeks_rate(self) -> bool:
        """True if the rate is to be found: the highest that holds."""
        return self.kind in ("poisson", "constant") and self.rate_per_s is None
