"""Models in runtimes of their own, in real processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from onnx import TensorProto, helper, save

from autotune.core.records import Config, GroupSpec, Plan, Samples, Window, WorkloadSpec
from autotune.measure.equal_work import compare, reference_of
from autotune.trial.session import Launcher, open_session

CORES = sorted(os.sched_getaffinity(0))
PLAN = Plan(windows=(Window(iterations=30),))


@pytest.fixture(scope="module")
def launcher() -> Iterator[Launcher]:
    with Launcher() as launcher:
        yield launcher


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "m.onnx"
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", 64]) for n in "xy")
    graph = helper.make_graph([helper.make_node("Softmax", ["x"], ["y"])], "g", [x], [y])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        path = tmp_path_factory.mktemp("cache")
        patch.setenv("XDG_CACHE_HOME", str(path))
        yield path


@pytest.mark.parametrize("mode", ["process", "thread"])
@pytest.mark.parametrize("kind", ["onnxruntime", "openvino"])
def test_every_instance_has_its_own_core_and_the_same_work(
    kind: str, mode: str, model: Path, launcher: Launcher
) -> None:
    spec = GroupSpec(
        config=Config(
            batch_size=4, instance_count=2, micro_batch_count=2, extra=(("instance_mode", mode),)
        ),
        workload=WorkloadSpec(kind=kind, model=str(model)),
        devices=("cpu",),
        cores=((CORES[-1],), (CORES[0],)),
    )
    with open_session(spec, launcher) as session:
        one, other = session.answers
        samples = session.measure(PLAN)
    assert isinstance(samples, Samples)
    assert samples.item_count.tolist() == [4] * 30
    first, second = samples.facts
    assert (first.cores, second.cores) == ((CORES[-1],), (CORES[0],))
    assert first.thread_count == second.thread_count == 1
    assert compare(one, reference_of(other)).difference == 0.0
    assert kind in first.versions
    assert first.copies_per_call == 2
    assert not first.pads if kind == "onnxruntime" else first.compile_s > 0


def test_all_runtimes_do_the_same_work_on_the_same_weights(
    launcher: Launcher, exports: Path
) -> None:
    """And a lower precision is told from it."""
    assert exports
    answers = {}
    for kind, precision in (
        ("torch", "float32"), ("onnxruntime", "float32"), ("openvino", "float32"),
        ("torch", "bfloat16"),
    ):  # fmt: skip
        options = {"size": "small"}
        workload = WorkloadSpec(kind=kind, model="mlp", precision=precision, options=options)
        config = Config(batch_size=4, batched_h2d=kind != "torch")
        spec = GroupSpec(config=config, workload=workload, devices=("cpu",), cores=((CORES[0],),))
        with open_session(spec, launcher) as session:
            (answers[kind, precision],) = session.answers
    reference = reference_of(answers["torch", "float32"])
    assert not reference.untold
    for kind in ("onnxruntime", "openvino"):
        found = compare(answers[kind, "float32"], reference)
        assert found.difference is not None and found.difference < 1e-4
    lower = compare(answers["torch", "bfloat16"], reference)
    assert lower.difference is not None and 1e-4 < lower.difference < lower.tolerance
