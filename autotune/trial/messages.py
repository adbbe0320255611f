"""What the tool and a group's processes say to each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autotune.core.diagnosis import Inspection
from autotune.core.pipeline import Pass
from autotune.core.records import Answers, GroupSpec, Plan, Result


@dataclass(frozen=True)
class Settle:
    """Wait until the device's memory is what it was at first; answered by `Settled`."""

    spec: GroupSpec
    device_kind: str
    limit_s: float


@dataclass(frozen=True)
class Settled:
    """The device is ready for the group, or the limit was reached.

    Attributes:
        note: What the user should know, if anything.
    """

    note: str = ""


@dataclass(frozen=True)
class Meeting:
    """Where the ranks of a pipeline find each other.

    Attributes:
        limit_s: The longest that one waits for another, beside the tool's own deadline.
        known: What was found of the model without a pipeline; None: rank 0 is to find it.
        has_agent: Who started the ranks listens there, not rank 0.
    """

    host: str
    port: int
    limit_s: float
    known: Pass | None = None
    has_agent: bool = False


@dataclass(frozen=True)
class Open:
    """Build the model for these instances of the group; answered by `Opened`.

    Attributes:
        notes: What the instances are to say of themselves beside their own.
        meeting: Of the ranks of a pipeline; rank 0's listening socket comes with the message, as
            a file descriptor.
    """

    spec: GroupSpec
    device_kind: str
    instances: tuple[int, ...]
    notes: tuple[str, ...] = ()
    meeting: Meeting | None = None


@dataclass(frozen=True)
class Opened:
    """All instances of the process have made their first calls.

    Attributes:
        answers: Of each instance that runs a model.
        first: Of a rank: loss and gradients of its first step.
        reference: Of a rank: those without a pipeline.
    """

    answers: tuple[Answers, ...] = ()
    first: Pass | None = None
    reference: Pass | None = None


@dataclass(frozen=True)
class WarmUp:
    """Call until steady, for at most this long; answered by `Warm`.

    Attributes:
        sizes: Batch sizes to call beforehand, for as long again.
    """

    max_s: float
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Warm:
    """All instances of the process are warm."""


@dataclass(frozen=True)
class Evaluate:
    """Run the user's own items through the first instance; answered by `Evaluated`."""


@dataclass(frozen=True)
class Evaluated:
    """Figures of the outputs by name."""

    figures: Mapping[str, float]


@dataclass(frozen=True)
class Inspect:
    """Let the first instance count its model's work and try its device; answered by `Inspected`."""


@dataclass(frozen=True)
class Inspected:
    """What it found out."""

    inspection: Inspection


@dataclass(frozen=True)
class Profile:
    """Call for a while, the first instance under a profiler; answered by `Profiled`.

    Attributes:
        folder: Where the first instance's process leaves its files; empty: it only calls, so that
            the profiled instance has the company that it has in a trial.
        calls: At most so many. `duration_s`: at most so long.
    """

    folder: str
    calls: int
    duration_s: float


@dataclass(frozen=True)
class Profiled:
    """Files are there, if the runtime can be profiled.

    Attributes:
        calls: That were recorded; 0 without a profiler.
        call_s: Mean time of one of them, the profiler's own included.
        note: Why there are none, where there should be.
    """

    calls: int = 0
    call_s: float = 0.0
    note: str = ""


@dataclass(frozen=True)
class Norms:
    """Take the norms of gradients over so many steps on fresh items; answered by `NormsTaken`."""

    steps: int


@dataclass(frozen=True)
class NormsTaken:
    """Squared norms per step: of micro-batches, their mean, and of the whole batch."""

    norms: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Measure:
    """Run the plan's windows; the first starts at `base_s` of the machine's monotonic clock.

    Under an open load that several processes share, the file of their cursors follows as a file
    descriptor (`measure.client_queue.shared_states_file`).
    """

    plan: Plan
    base_s: float


@dataclass(frozen=True)
class Measured:
    """The calls of all instances of the process, or what an outside program reported."""

    result: Result


@dataclass(frozen=True)
class Failed:
    """An instance failed; the process ends itself after this.

    Attributes:
        error: Class name of an error of ours.
        reason: The original error's type and text.
    """

    error: str
    reason: str


@dataclass(frozen=True)
class Close:
    """End."""
