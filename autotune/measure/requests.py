"""Requests to a server of its own: our loads, sent by one process over many connections.

The server queues and batches by itself, so that a request is a call here, from when it is sent
until its answer is complete. Arrivals of an open load are drawn beforehand, as for any other
workload; a request is due at its arrival, however late it could be sent.
"""

from __future__ import annotations

import asyncio
import math
import selectors
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from autotune.core.clock import Clock
from autotune.core.errors import TrialTimeout, WrongOutput
from autotune.core.records import Floats, InstanceFacts, Plan, Samples, Window
from autotune.core.requests import Answer, Send
from autotune.measure.arrivals import MAX_ARRIVALS, arrival_times

MAX_IN_FLIGHT = 900  # requests; what comes on top fails at once. Selecting knows 1,024 files
FAILED_PAUSE_S = 0.01  # of a client whose request failed: a dead server must not be flooded
MAX_FAILURE_KINDS = 10
MAX_FAILURE_CHARS = 200
POLL_S = 0.1  # how often it is looked whether the server still runs
TOO_MANY = f"more than {MAX_IN_FLIGHT} requests were under way"
OTHER = "other failures"


@dataclass(slots=True)
class Sent:
    """A request; `answer` is None as long as it has none."""

    due_s: float
    start_s: float
    answer: Answer | None = None

    @property
    def is_served(self) -> bool:
        return self.answer is not None and not self.answer.error


@dataclass(slots=True)
class Sender:
    """Sends the requests of one window and notes what came of them.

    Attributes:
        closing_s: Answers that come later do not count, on the clock.
        numbers: Of the requests, which pick what is sent.
    """

    send: Send
    clock: Clock
    closing_s: float
    numbers: Iterator[int]
    sent: list[Sent] = field(default_factory=list)

    async def one(self, due_s: float) -> Sent:
        """Send the next request and wait for its answer."""
        sent = Sent(due_s, self.clock.now_s())
        self.sent.append(sent)
        sent.answer = await self.send(next(self.numbers))
        return sent

    async def open(self, arrivals_s: Floats) -> None:
        """Send each request at its arrival, whether or not others have been answered."""
        pending: set[asyncio.Task[Sent]] = set()
        for due_s in arrivals_s.tolist():
            # At least for no time: answers have to be taken though the sending is behind.
            await asyncio.sleep(max(due_s - self.clock.now_s(), 0.0))
            if len(pending) >= MAX_IN_FLIGHT:
                now_s = self.clock.now_s()
                self.sent.append(Sent(due_s, now_s, Answer(now_s, TOO_MANY)))
                continue
            task = asyncio.ensure_future(self.one(due_s))
            pending.add(task)
            task.add_done_callback(pending.discard)
        await self._finish(pending)

    async def clients(self, count: int, start_s: float, window: Window) -> None:
        """So many clients, each of which sends when its last request has been answered."""
        end_s = start_s + (window.duration_s or math.inf)
        left = min(window.iterations or MAX_ARRIVALS, MAX_ARRIVALS)

        async def client() -> None:
            nonlocal left
            while left > 0 and self.clock.now_s() < end_s:
                left -= 1
                if not (await self.one(self.clock.now_s())).is_served:
                    await asyncio.sleep(FAILED_PAUSE_S)

        each = min(count, MAX_IN_FLIGHT)
        await self._finish({asyncio.ensure_future(client()) for _ in range(each)})

    async def bursts(self, size: int, start_s: float, window: Window) -> list[Sent]:
        """So many requests at once, again when all of them are answered.

        Returns:
            Every burst as one request: from its start until its last answer.
        """
        end_s = start_s + (window.duration_s or math.inf)
        found: list[Sent] = []
        tries = window.iterations or MAX_ARRIVALS
        while tries > 0 and self.clock.now_s() < min(end_s, self.closing_s):
            tries -= 1
            now_s = self.clock.now_s()
            burst = await asyncio.gather(*(self.one(now_s) for _ in range(size)))
            answers = [sent.answer for sent in burst if sent.answer is not None]
            if all(sent.is_served for sent in burst):
                found.append(Sent(now_s, now_s, _last(answers)))
            else:
                await asyncio.sleep(FAILED_PAUSE_S)
        return found

    async def _finish(self, pending: set[asyncio.Task[Any]]) -> None:
        if not pending:
            return
        left_s = max(self.closing_s - self.clock.now_s(), 0.0)
        _, late = await asyncio.wait(set(pending), timeout=left_s)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)


def _last(answers: Sequence[Answer]) -> Answer:
    """Of a burst: when the last one was there, and the last first token."""
    return Answer(
        end_s=max(answer.end_s for answer in answers),
        first_token_s=max(answer.first_token_s for answer in answers),
        token_count=sum(answer.token_count for answer in answers),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedWindow:
    """What was sent within one window, by when it was sent.

    Attributes:
        size: Requests that each of `sent` stands for.
        failures: What came instead of answers, and how often. `unanswered`: requests that still
            had none when the window was over.
    """

    sent: tuple[Sent, ...]
    arrivals_s: Floats
    size: int = 1
    failures: Counter[str] = field(default_factory=Counter)
    unanswered: int = 0


def new_loop() -> asyncio.AbstractEventLoop:
    """An event loop that wakes up in time: waiting by epoll rounds up to whole milliseconds."""
    return asyncio.SelectorEventLoop(selectors.SelectSelector())


async def watched(work: Coroutine[Any, Any, Any], check: Callable[[], None]) -> Any:
    """Wait for some work, or until `check` raises: then nobody will answer any more."""
    task = asyncio.ensure_future(work)
    try:
        while not (await asyncio.wait({task}, timeout=POLL_S))[0]:
            check()
        return task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)  # it closes its connections


async def run_windows(
    send: Send,
    clock: Clock,
    plan: Plan,
    *,
    base_s: float,
    drain_s: float,
    numbers: Iterator[int],
    after_window: Callable[[], None] = lambda: None,
) -> list[ServedWindow]:
    """Run the windows of a plan one after the other.

    Args:
        base_s: When the first window starts that has no start of its own.
        drain_s: How long after its end a window waits for answers.
        numbers: Of the requests, which pick what is sent.
    """
    windows: list[ServedWindow] = []
    for index, window in enumerate(plan.windows):
        start_s = base_s if window.start_s is None else window.start_s
        await asyncio.sleep(max(start_s - clock.now_s(), 0.0))
        sender = Sender(send, clock, 0.0, numbers)
        windows.append(await _run_window(sender, plan, index, start_s, drain_s))
        base_s = clock.now_s()
        after_window()
    return windows


async def _run_window(
    sender: Sender, plan: Plan, index: int, start_s: float, drain_s: float
) -> ServedWindow:
    window, load = plan.windows[index], plan.load
    sender.closing_s = start_s + (window.duration_s or plan.deadline_s) + drain_s
    if load.is_open:
        arrivals_s = start_s + arrival_times(
            load,
            seed=plan.arrival_seed,
            window=index,
            duration_s=window.duration_s,
            count=window.iterations,
        )
        await sender.open(arrivals_s)
        return _served(sender.sent, arrivals_s)
    if load.clients is not None:
        await sender.clients(load.clients, start_s, window)
        sent = sorted(sender.sent, key=lambda one: one.start_s)
        return _served(sent, np.array([one.start_s for one in sent], dtype=np.float64))
    size = window.item_count or 1
    bursts = await sender.bursts(size, start_s, window)
    return replace(_served(sender.sent, np.empty(0)), sent=tuple(bursts), size=size)


def _served(sent: Sequence[Sent], arrivals_s: Floats) -> ServedWindow:
    failures: Counter[str] = Counter()
    for one in sent:
        if one.answer is not None and one.answer.error:
            what = one.answer.error[:MAX_FAILURE_CHARS]
            failures[what if what in failures or len(failures) < MAX_FAILURE_KINDS else OTHER] += 1
    unanswered = sum(one.answer is None for one in sent)
    return ServedWindow(
        sent=tuple(sent), arrivals_s=arrivals_s, failures=failures, unanswered=unanswered
    )


def to_samples(windows: Sequence[ServedWindow], plan: Plan, facts: InstanceFacts) -> Samples:
    """All requests of the windows as arrays.

    Raises:
        WrongOutput: Requests were sent, and none was answered as it should be.
        TrialTimeout: None was answered at all in time.
    """
    rows = [
        (index, first, one, one.answer)
        for index, window in enumerate(windows)
        for first, one in enumerate(window.sent)
        if one.answer is not None and not one.answer.error
    ]
    failures = sum((window.failures for window in windows), Counter[str]())
    if not rows and failures:
        what, _ = failures.most_common(1)[0]
        raise WrongOutput(f"all {failures.total()} requests failed: {what}")
    if not rows and any(window.unanswered for window in windows):
        raise TrialTimeout("no request was answered within the time of the windows")
    count, load = len(rows), plan.load
    start_s = np.array([one.start_s for _, _, one, _ in rows], dtype=np.float64)
    due_s = np.array([one.due_s for _, _, one, _ in rows], dtype=np.float64)
    end_s = np.array([answer.end_s for *_, answer in rows], dtype=np.float64)
    first_s = np.array([answer.first_token_s for *_, answer in rows], dtype=np.float64)
    tokens = np.array([answer.token_count for *_, answer in rows], dtype=np.int64)
    sizes = np.array([windows[index].size for index, *_ in rows], dtype=np.int64)
    is_streamed = bool(count) and not np.isnan(first_s).all()
    zeros = np.zeros(count, dtype=np.int64)
    return Samples(
        window=np.array([index for index, *_ in rows], dtype=np.int64),
        instance=zeros,
        due_s=due_s,
        start_s=start_s,
        end_s=end_s,
        item_count=sizes,
        cpu_s=np.zeros(count),
        switch_count=zeros,
        fault_count=zeros,
        first_request=np.array([f for _, f, *_ in rows], dtype=np.int64)
        if load.is_queued
        else None,
        late_s=start_s - due_s if load.is_queued else None,
        ttft_s=first_s - due_s if is_streamed else None,
        tpot_s=_per_token_s(first_s, end_s, tokens / sizes) if is_streamed else None,
        token_count=tokens if is_streamed else None,
        arrivals_s=tuple(window.arrivals_s for window in windows) if load.is_queued else (),
        rate_per_s=load.rate_per_s,
        clients=load.clients,
        in_server=True,
        failures=dict(failures),
        facts=(facts,),
    )


def _per_token_s(first_s: Floats, end_s: Floats, tokens: Floats) -> Floats:
    """From one token to the next on average; NaN for answers of a single one."""
    further = np.where(tokens > 1, tokens - 1, np.nan)
    return np.asarray((end_s - first_s) / further)
