"""The child of a trial that starts an outside program instead of building a model."""

from __future__ import annotations

from autotune.core.errors import AutotuneError
from autotune.core.records import GroupSpec
from autotune.core.text import keepable
from autotune.trial import messages
from autotune.trial.channel import Channel
from autotune.workloads import WORKLOADS, load_workload


def runs_program(request: messages.Open) -> bool:
    """True if the workload is an outside program."""
    return WORKLOADS[request.spec.workload.kind].runs == "program"


def serve_program(channel: Channel, spec: GroupSpec) -> None:
    """Answer the tool until it says close: every measurement is a run of the program.

    Its output goes to the trial's log; an error of its own says all that there is to say.

    Raises:
        Closed: The tool went away.
    """
    report = load_workload(spec.workload.kind)
    channel.send(messages.Opened())
    while True:
        request = channel.receive()
        if isinstance(request, messages.WarmUp):
            channel.send(messages.Warm())  # whether and how it warms up is the program's business
        elif isinstance(request, messages.Measure):
            try:
                result = report(spec, request.plan)
            except AutotuneError as error:
                channel.send(messages.Failed(type(error).__name__, keepable(str(error))))
                return
            channel.send(messages.Measured(result))
        else:
            return
