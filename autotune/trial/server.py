"""The child of a trial that starts a server of the user's and sends it requests."""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import replace
from typing import Any

from autotune.core.clock import Clock, MonotonicClock
from autotune.core.errors import AutotuneError, WrongOutput
from autotune.core.records import GroupSpec, InstanceFacts, Load, Plan, Samples, Window
from autotune.core.text import keepable
from autotune.measure.requests import ServedWindow, new_loop, run_windows, to_samples, watched
from autotune.trial import messages
from autotune.trial.channel import Channel
from autotune.workloads import WORKLOADS, load_workload

STOP_MARGIN_S = 8.0  # beyond the time a server has to end by itself: to kill what does not
WORDS_S = 2.0
WARMUP_CLIENTS = 4
CLOSING_SHARE = 0.9  # of a plan's deadline, after which answers are no longer waited for


def runs_server(request: messages.Open) -> bool:
    """True if the workload is a server."""
    return WORKLOADS[request.spec.workload.kind].runs == "server"


def stop_limit_s(spec: GroupSpec) -> float:
    """How long the child of a server needs at most to end."""
    return float(str(spec.workload.options["stop_timeout_s"])) + STOP_MARGIN_S


def within(spec: GroupSpec, limit_s: float) -> GroupSpec:
    """The same, its server given up early enough before the limit to say why it was not ready."""
    own_s = float(str(spec.workload.options["start_timeout_s"]))
    start_s = min(own_s, max(limit_s - WORDS_S, limit_s / 2))
    options = {**spec.workload.options, "start_timeout_s": start_s}
    return replace(spec, workload=replace(spec.workload, options=options))


def serve_server(channel: Channel, spec: GroupSpec) -> None:
    """Start the server and answer the tool until it says close; then the server is gone.

    Raises:
        Closed: The tool went away.
    """
    server: Any = None
    try:
        server = load_workload(spec.workload.kind)(spec)
        running = _Running(server, spec, server.wait_ready())
        channel.send(messages.Opened())
        while True:
            request = channel.receive()
            if isinstance(request, messages.WarmUp):
                running.warm_up(request.max_s)
                channel.send(messages.Warm())
            elif isinstance(request, messages.Measure):
                channel.send(messages.Measured(running.measure(request.plan, request.base_s)))
            else:
                break
    except AutotuneError as error:
        channel.send(messages.Failed(type(error).__name__, keepable(str(error))))
    finally:
        if server is not None:
            server.stop()


class _Running:
    """A server that is ready, and what is sent to it.

    Args:
        load_s: How long it took to be ready.
    """

    def __init__(self, server: Any, spec: GroupSpec, load_s: float) -> None:
        self._server, self._load_s = server, load_s
        self._timeout_s = float(spec.workload.options["request"]["timeout_s"])  # type: ignore[index]
        self._numbers = itertools.count()
        self._clock: Clock = MonotonicClock()
        self._first_s, self._warm_count, self._memory = 0.0, 0, 0

    def warm_up(self, max_s: float) -> None:
        """A request alone, then some clients for `max_s`.

        Raises:
            WrongOutput: All of them failed.
        """
        alone = Plan(windows=(Window(iterations=1, item_count=1),), deadline_s=self._timeout_s)
        began_s = self._clock.now_s()
        with contextlib.suppress(WrongOutput):  # one may fail; that all do is told below
            self._samples(alone, began_s)
        self._first_s = self._clock.now_s() - began_s
        load = Load(clients=WARMUP_CLIENTS)
        crowd = Plan(windows=(Window(duration_s=max_s),), load=load)
        samples = self._samples(crowd, self._clock.now_s())
        self._warm_count = 1 + int(samples.start_s.size)

    def measure(self, plan: Plan, base_s: float) -> Samples:
        """Run the plan's windows."""
        self._memory = 0
        return self._samples(plan, base_s)

    def _samples(self, plan: Plan, base_s: float) -> Samples:
        loop = new_loop()
        try:
            work = watched(self._sent(plan, base_s), self._server.check)
            windows: list[ServedWindow] = loop.run_until_complete(work)
        finally:
            loop.close()
        self._server.check()
        return to_samples(windows, plan, self._facts())

    async def _sent(self, plan: Plan, base_s: float) -> list[ServedWindow]:
        planned_s = sum(window.duration_s or 0.0 for window in plan.windows)
        left_s = max(CLOSING_SHARE * plan.deadline_s - planned_s, 0.0)
        async with self._server.client() as client:
            return await run_windows(
                client.send,
                self._clock,
                plan,
                base_s=base_s,
                drain_s=min(self._timeout_s, left_s / len(plan.windows)),
                numbers=self._numbers,
                after_window=self._look_at_memory,
            )

    def _look_at_memory(self) -> None:
        self._memory = max(self._memory, self._server.memory_bytes() or 0)

    def _facts(self) -> InstanceFacts:
        return InstanceFacts(
            instance=0,
            load_s=self._load_s,
            first_call_s=self._first_s,
            warmup_count=self._warm_count,
            memory_peak_bytes=self._memory or None,
            precision="the server's",
            notes=(f"started as: {self._server.command_line}",),
        )
