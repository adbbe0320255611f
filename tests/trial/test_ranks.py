"""Pipelines as real processes: right answers, measured bubbles, and every way to lose a rank."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from autotune.core.errors import (
    CompileError,
    OutOfMemory,
    TrialCrashed,
    TrialTimeout,
    UsageError,
    WrongOutput,
)
from autotune.core.pipeline import SCHEDULES
from autotune.core.records import Config, GroupSpec, Plan, Window, WorkloadSpec
from autotune.measure.summary import summarise
from autotune.trial.session import Launcher, RanksSession, open_session
from autotune.workloads.pipeline.layout import Layout

CHAINS = Path(__file__).with_name("chains.py")
SMALL = {"layers": 6, "width": 32, "heads": 2, "length": 8, "vocabulary": 32}
STEPS = Plan(windows=(Window(iterations=3),), deadline_s=60)


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    with Launcher() as launcher:
        yield launcher


def group(model: str, options: dict | None = None, **values) -> GroupSpec:
    config = Config.from_dict(
        {"micro_batch_count": 8, "global_batch_size": 16, "stage_count": 2, **values}
    )
    layout = Layout.of(config)
    count = layout.ranks * layout.replicas
    cores = sorted(os.sched_getaffinity(0))
    return GroupSpec(
        config=config,
        workload=WorkloadSpec(kind="pipeline", model=model, options=options or {}),
        devices=("cpu",) * count,
        cores=tuple((cores[rank % len(cores)],) for rank in range(count)),
        environment={"OMP_NUM_THREADS": "1"},
    )


def own(name: str, options: dict | None = None, **values) -> GroupSpec:
    return group(f"{CHAINS}:{name}", options, **values)


def is_gone(pid: int) -> bool:
    return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE


def assert_nothing_left(pids: list[int], port: int) -> None:
    until_s = time.monotonic() + 5
    while not all(map(is_gone, pids)) and time.monotonic() < until_s:
        time.sleep(0.05)
    assert all(map(is_gone, pids))
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=1)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule_computes_what_the_model_does(launcher, schedule):
    with open_session(group("transformer", SMALL, schedule=schedule), launcher) as session:
        figures = summarise(session.measure(STEPS))
    pipeline = figures.pipeline
    assert pipeline.loss_difference <= 1e-5 and pipeline.gradient_difference <= 1e-5
    assert figures.call_count == 3 and len(pipeline.ranks) == 2
    assert figures.throughput_items_per_s == pytest.approx(16 / figures.latency_mean_s, rel=1e-6)


def test_replicas_rounds_and_checkpoints_change_no_gradient(launcher):
    spec = group(
        "multimodal", {**SMALL, "layers": 4}, micro_batch_count=2, schedule="1F1B", replicas=2,
        gradient_accumulation=2, activation_checkpointing=True, bucket_size=4096,
        stage_split="2-4",
    )  # fmt: skip
    with open_session(spec, launcher) as session:
        figures = summarise(session.measure(STEPS)).pipeline
    assert figures.loss_difference <= 1e-5 and figures.gradient_difference <= 1e-5
    assert [rank.layers for rank in figures.ranks] == [(2,), (4,)]
    assert figures.micro_batch_count == 4 and all(rank.reduction_s > 0 for rank in figures.ranks)


def test_the_bubble_of_sleeping_stages_is_the_formulas(launcher):
    spec = group("sleeping", {"layers": 4, "seconds_per_item": 0.004}, micro_batch_count=4)
    with open_session(spec, launcher) as session:
        figures = summarise(session.measure(STEPS)).pipeline
    assert figures.formula_bubble_ratio == pytest.approx(1 / 5)
    assert figures.bubble_ratio == pytest.approx(1 / 5, abs=0.05)
    assert figures.replayed_bubble_ratio <= figures.bubble_ratio + 0.01


def test_gradients_of_micro_batches_are_those_of_the_model(launcher):
    whole = group("transformer", SMALL, micro_batch_count=2, schedule="GPipe", global_batch_size=4)
    turned = group(
        "transformer", SMALL, micro_batch_count=1, gradient_accumulation=2, global_batch_size=4
    )
    found = []
    for spec in (whole, turned):
        with open_session(spec, launcher) as session:
            found.append(session.squared_norms(3, limit_s=60))
    assert [pair for step in found[0] for pair in step] == pytest.approx(
        [pair for step in found[1] for pair in step], rel=1e-4
    )
    assert len({step.big for step in found[0]}) == 3
    assert all(0 < step.big <= step.small for step in found[0])


def test_inference_runs_forward_passes_alone(launcher):
    spec = group("transformer", {**SMALL, "forward_only": True})
    with open_session(spec, launcher) as session:
        figures = summarise(session.measure(STEPS)).pipeline
    assert {span.kind for line in figures.spans for span in line} == {"F"}
    assert figures.loss_difference <= 1e-5


def test_a_wrong_split_is_caught(launcher):
    with open_session(own("right"), launcher) as session:
        assert summarise(session.measure(STEPS)).pipeline.gradient_difference <= 1e-5
    with pytest.raises(WrongOutput, match=r"in the pipeline and .* without"):
        open_session(own("shifted"), launcher)
    with Launcher() as fresh:
        for one in (launcher, fresh):  # the model's layers are known to it, and not yet
            with pytest.raises(CompileError, match=r"stage_split=3-2 has 5 layers"):
                open_session(own("right", stage_split="3-2"), one)


@pytest.mark.parametrize("how", [{"stage_split": "4-2"}, {"schedule": "ZBVZeroBubble"}])
def test_a_users_layers_may_be_odd(launcher, how):
    spec = own("odd", micro_batch_count=4, **how)
    with open_session(spec, launcher) as session:
        figures = summarise(session.measure(STEPS)).pipeline
    assert figures.loss_difference <= 1e-5 and figures.gradient_difference <= 1e-5


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("tied", CompileError, r"layers 0, 3 share parameters, .* on ranks 0, 1"),
        ("summed", UsageError, r"the loss of 4 items together is .* a mean over the items"),
        ("turned", UsageError, r"x has the shape \[3, batch, 8\]; .* must be batch"),
    ],
)
def test_what_a_pipeline_would_compute_otherwise_is_refused(launcher, name, error, words):
    with pytest.raises(error, match=words):
        open_session(own(name), launcher)


def test_layers_on_one_rank_may_share_parameters(launcher):
    spec = own("tied", schedule="ZBVZeroBubble", micro_batch_count=4)
    with open_session(spec, launcher) as session:
        assert summarise(session.measure(STEPS)).pipeline.gradient_difference <= 1e-5
        with pytest.raises(UsageError, match="stages share parameters"):
            session.squared_norms(1, limit_s=60)


@pytest.mark.parametrize(("how", "error"), [("raise", TrialCrashed), ("allocate", OutOfMemory)])
def test_a_rank_that_fails_says_why(launcher, how, error):
    with open_session(own("failing", {"how": how}), launcher) as session:
        with pytest.raises(error, match="rank 1") as caught:
            session.measure(Plan(windows=(Window(iterations=200),), deadline_s=60))
        assert_nothing_left(session._group._pids, session.port)
    assert "last words of the failing rank" in caught.value.log_tail


def test_a_hanging_rank_leaves_word_of_where_it_was(launcher):
    plan = Plan(windows=(Window(iterations=200),), deadline_s=5)
    session = open_session(own("failing", {"how": "hang"}), launcher)
    with session, pytest.raises(TrialTimeout, match="did not answer") as caught:
        session.warm_up(plan)
    own_words = caught.value.log_tail.partition("rank 1:")[2]
    assert "last words of the failing rank" in own_words and "in wait_for_ever" in own_words


@pytest.mark.parametrize(
    ("how", "rank", "error", "words"),
    [
        (signal.SIGKILL, 0, TrialCrashed, "rank 0: killed by SIGKILL"),
        (signal.SIGSTOP, 1, TrialTimeout, "rank 1 was stopped"),
    ],
)
def test_a_lost_rank_ends_the_trial_and_the_next_one_runs(launcher, how, rank, error, words):
    deadline_s = 2.0
    with open_session(own("slow"), launcher) as session:
        assert isinstance(session, RanksSession)
        pids = list(session._group._pids)
        began_s = time.monotonic()
        session.warm_up(STEPS)
        session.begin(Plan(windows=(Window(duration_s=60),), deadline_s=deadline_s))
        os.kill(pids[rank], how)
        with pytest.raises(error, match=words):
            session.result()
        assert_nothing_left(pids, session.port)
    assert time.monotonic() - began_s < 60
    with open_session(own("right"), launcher) as session:
        assert session.measure(STEPS).start_s.size == 3
