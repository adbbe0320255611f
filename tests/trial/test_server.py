"""Servers as workloads: their figures are of good answers alone, and nothing of them is left."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from autotune.core.errors import TrialCrashed, TrialTimeout, UsageError, WrongOutput
from autotune.core.objective import Goal, Limit, Objective
from autotune.core.outcomes import Outcome
from autotune.core.records import Config, GroupSpec, Load, Plan, Samples, Window, WorkloadSpec
from autotune.measure.judge import judge
from autotune.measure.requests import TOO_MANY
from autotune.measure.summary import summarise
from autotune.trial.rate_search import RateSearch, rate_goal, search_rate
from autotune.trial.session import Launcher, open_session
from autotune.workloads import check_workload

SERVER = Path(__file__).with_name("web_server.py")
REQUEST = {"path": "/", "method": "POST", "headers": {}, "body": "{}", "timeout_s": 5.0}
OPENAI = {"model": "m", "output_tokens": {"values": [5], "low": 1, "high": 1, "multiple_of": 1},
          "prompt_tokens": {"values": [], "low": 3, "high": 9, "multiple_of": 1}}  # fmt: skip


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    with Launcher() as launcher:
        yield launcher


def spec(mode: str, *args: str, request: dict[str, Any] = REQUEST, **options: Any) -> GroupSpec:
    workload = WorkloadSpec(
        kind="server",
        options={
            "command": [sys.executable, str(SERVER), mode, "{port}", *args],
            "url": "http://127.0.0.1:{port}",
            "ready": "/health",
            "start_timeout_s": 20.0,
            "stop_timeout_s": 0.3,
            "request": request,
            **options,
        },
        base_dir="/tmp",
    )
    return GroupSpec(config=Config(), workload=workload, devices=("cpu",), cores=((),))


def measured(launcher: Launcher, group: GroupSpec, load: Load, duration_s: float = 0.6) -> Samples:
    plan = Plan(windows=(Window(duration_s=duration_s),), load=load)
    with open_session(group, launcher, timeout_s=30.0) as session:
        samples = session.measure(plan)
    assert isinstance(samples, Samples)
    assert left_running() == []
    return samples


def left_running() -> list[str]:
    lines = (
        " ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])
    )
    return [line for line in lines if str(SERVER) in line or "time.sleep(603)" in line]


def test_arrivals_are_sent_when_they_are_due_and_clients_wait_for_their_answers(
    launcher: Launcher,
) -> None:
    open_ = measured(launcher, spec("good"), Load(kind="poisson", rate_per_s=100))
    assert open_.arrivals_s[0].size == open_.item_count.sum() == open_.end_s.size > 20
    assert (open_.start_s >= open_.due_s).all() and np.isfinite(open_.request_latency_s()).all()
    assert np.median(open_.end_s - open_.start_s) >= 0.002
    closed = measured(launcher, spec("good", "0.01", "2"), Load(clients=4))
    figures = summarise(closed)
    # Two workers of 10 ms each serve at most 200 per second, and four clients keep them busy.
    assert figures.throughput_items_per_s is not None
    assert 60 < figures.throughput_items_per_s <= 200
    assert figures.latency_p50_s is not None and figures.latency_p50_s > 0.018
    assert figures.memory_peak_bytes and figures.failed_count == 0


def test_tokens_that_are_streamed_have_times_of_their_own(launcher: Launcher) -> None:
    request = {**REQUEST, "openai": OPENAI, "path": "/v1/chat/completions"}
    del request["body"]
    samples = measured(launcher, spec("stream", "0.01", request=request), Load(clients=2))
    figures = summarise(samples)
    assert samples.token_count is not None and set(samples.token_count) == {5}
    assert figures.ttft_p50_s is not None and figures.ttft_p50_s >= 0.03
    assert figures.tpot_p50_s is not None and 0.01 <= figures.tpot_p50_s < figures.ttft_p50_s
    assert figures.throughput_items_per_s is not None
    assert figures.throughput_tokens_per_s == pytest.approx(5 * figures.throughput_items_per_s)
    limits = (Limit(metric="ttft_p99", bound=0.02), Limit(metric="tpot_p50", bound=10.0))
    objective = Objective(name="o", goals=(Goal(metric="token_rate"),), limits=limits)
    verdict = judge(samples, figures, objective)
    assert verdict.outcome is Outcome.OVER_LIMIT
    assert verdict.excess["ttft_p99_s"] > 0 > verdict.excess["tpot_p50_s"]
    with pytest.raises(WrongOutput, match="broke off before"):
        measured(launcher, spec("stream_breaks", request=request), Load(clients=1))


def test_failed_requests_are_counted_and_never_fast(launcher: Launcher) -> None:
    samples = measured(launcher, spec("sometimes"), Load(kind="constant", rate_per_s=50))
    figures = summarise(samples)
    failed = sum(samples.failures.values())
    assert failed == figures.failed_count and 10 <= failed <= 20
    assert int(np.isinf(samples.request_latency_s()).sum()) == failed
    (warning,) = (text for text in figures.warnings if "HTTP 500" in text)
    assert f"{failed} requests failed: " in warning and "no memory left" in warning
    tail = Objective(name="o", limits=(Limit(metric="latency_p99", bound=5.0),))
    assert judge(samples, figures, tail).outcome is Outcome.OVER_LIMIT
    verdict = judge(samples, figures, Objective(name="o"))
    assert verdict.outcome is Outcome.WRONG_OUTPUT and "HTTP 500" in verdict.reasons[0]
    with pytest.raises(WrongOutput, match=r"all \d+ requests failed: HTTP 500"):
        measured(launcher, spec("fails"), Load(clients=1))


@pytest.mark.parametrize(
    ("mode", "error", "words"),
    [
        ("dies", TrialCrashed, "exit status 3: CUDA error: an illegal memory access"),
        ("broken", TrialCrashed, "No module named 'mine'"),
        ("late", TrialTimeout, r"not ready at http://127.0.0.1:\d+/health within 1 s .*starting"),
    ],
)
def test_a_server_that_dies_or_never_comes_up_says_its_last_words(
    launcher: Launcher, mode: str, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        group = spec(mode, start_timeout_s=1.0 if mode == "late" else 20.0)
        measured(launcher, group, Load(clients=2))
    assert left_running() == []


def test_what_ignores_every_request_to_end_is_gone_all_the_same(launcher: Launcher) -> None:
    measured(launcher, spec("stubborn"), Load(clients=1), duration_s=0.2)


def test_a_port_that_is_taken_is_told_before_and_when_it_is_needed(launcher: Launcher) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        group = spec("good", url=url)
        with pytest.raises(UsageError, match=r"listens on 127.0.0.1:\d+ already"):
            check_workload(group.workload)
        with pytest.raises(UsageError, match="listens on"):
            open_session(group, launcher)


def test_a_secret_of_the_environment_is_sent_and_not_kept(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = {**REQUEST, "headers": {"x-key": "Bearer ${TEST_KEY}"}}
    with pytest.raises(UsageError, match="the environment has no TEST_KEY"):
        check_workload(spec("good", request=request).workload)
    monkeypatch.setenv("TEST_KEY", "hunter2")
    with Launcher() as fresh:
        samples = measured(fresh, spec("good", request=request), Load(clients=1), duration_s=0.2)
    assert "hunter2" not in repr(samples.facts) and "hunter2" not in repr(request)


def test_the_rate_that_a_server_holds_is_found_without_seeing_its_queue(launcher: Launcher) -> None:
    # Four workers of 20 ms serve 200 per second; half of that leaves hardly any waiting.
    objective = Objective(
        name="o",
        load=Load(kind="poisson"),
        limits=(Limit(metric="latency_p99", bound=0.2),),
    )
    goal = rate_goal(Config(), objective, window_s=1.0, seed=0, in_server=True)
    with open_session(spec("good", "0.02", "4"), launcher, timeout_s=30.0) as session:
        found = search_rate(session, replace(goal, proves=False), objective)
    assert 60 < found.finding.rate_per_s < 230
    assert found.verdict.outcome is Outcome.UNDECIDED  # an estimate; only a proof shows it
    assert found.measurement.latency_p99_s is not None
    assert "latency_p99_s" not in found.measurement.estimated


@pytest.mark.parametrize(
    ("what", "outcome"), [(TOO_MANY, Outcome.UNDECIDED), ("status 500", Outcome.WRONG_OUTPUT)]
)
def test_a_rate_beyond_the_servers_is_no_wrong_answer(
    what: str, outcome: Outcome, launcher: Launcher
) -> None:
    objective = Objective(
        name="o", load=Load(kind="poisson"), limits=(Limit(metric="latency_p99", bound=0.2),)
    )
    goal = rate_goal(Config(), objective, window_s=1.0, seed=0, in_server=True)
    search = RateSearch(goal=replace(goal, proves=False), objective=objective)
    with open_session(spec("good", "0.005", "4"), launcher, timeout_s=30.0) as session:
        while (plan := search.plan) is not None:
            search.measure(session, plan)
    last = max(search.measured)
    search.measured[last] = replace(search.measured[last], failures={what: 1000})
    assert search.result().verdict.outcome is outcome
