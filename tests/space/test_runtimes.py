"""The runtime as a parameter, and parameters that only one runtime has."""

from __future__ import annotations

from collections import Counter

import pytest

from autotune.core.records import Config, Lengths
from autotune.devices import find_device
from autotune.space.runtimes import READERS, workloads_of
from autotune.trial.group import group_spec

HEAD = "workload: {model: dlrm}\n"
ALL = "runtime: [torch, onnxruntime, openvino]"


def test_configurations_that_would_run_alike_are_one(load):
    space = load(
        f"{HEAD}params: {{{ALL}, openvino.streams: [1, 2], onnxruntime.spinning: [true, false],"
        " torch.memory_format: [channels_last, contiguous], batch_size: 4, micro_batch_count: 2}"
    )
    configs = list(space.configs())
    assert Counter(c.get("runtime", "") for c in configs) == {
        "torch": 2, "onnxruntime": 2, "openvino": 2,
    }  # fmt: skip
    for config in configs:
        if config.get("runtime", "") != "torch":
            assert config.get("torch.memory_format", "") == "contiguous"
        if config.get("runtime", "") != "openvino":
            assert config.get("openvino.streams", 0) == 1


def test_parameters_of_a_runtime_that_is_not_there_are_left_out_with_a_word(load):
    space = load(HEAD + "params: {openvino.streams: [1, 2], torch.compile: [false, true]}")
    assert [p.name for p in space.searched] == ["torch.compile"]
    assert space.notes == ("openvino.streams left out: the model runs on torch",)
    assert len(list(space.configs())) == 2


def test_more_streams_than_requests_are_no_configuration(load):
    space = load(
        "workload: {model: dlrm, runtime: openvino}\n"
        "params: {openvino.streams: [1, 2, 4], micro_batch_count: [1, 2], batch_size: [2]}"
    )
    found = {(c.get("openvino.streams", 0), c.micro_batch_count) for c in space.configs()}
    assert found == {(1, 1), (1, 2), (2, 2)}


def test_a_runtime_that_cannot_change_the_precision_keeps_single(load):
    space = load(f"{HEAD}params: {{{ALL}, precision: [float32, bfloat16]}}")
    found = {(c.get("runtime", ""), c.get("precision", "")) for c in space.configs()}
    assert found == {
        ("torch", "float32"), ("torch", "bfloat16"), ("onnxruntime", "float32"),
        ("openvino", "float32"), ("openvino", "bfloat16"),
    }  # fmt: skip
    specs = workloads_of(space.params, space.rules, space.workload)
    assert {(spec.kind, spec.precision) for spec in specs} == found


def test_the_runtime_need_not_be_said_twice(load):
    space = load(HEAD + "params: {runtime: [onnxruntime, openvino]}")
    assert space.workload.kind == "onnxruntime"
    assert space.baseline.get("runtime", "") == "onnxruntime"
    space = load(HEAD + f"params: {{{ALL}}}\nbaseline: {{runtime: openvino}}")
    assert space.baseline.get("runtime", "") == "openvino"


def test_a_configuration_chooses_what_its_group_runs(load):
    space = load(f"{HEAD}params: {{{ALL}, precision: [float32, bfloat16]}}")
    config = Config.from_dict({"runtime": "openvino", "precision": "bfloat16"})
    spec = group_spec(config, space, find_device("cpu"))
    assert (spec.workload.kind, spec.workload.precision) == ("openvino", "bfloat16")
    spec = group_spec(Config(), space, find_device("cpu"))
    assert (spec.workload.kind, spec.workload.precision) == ("torch", "float32")


@pytest.mark.parametrize(
    ("params", "where", "message"),
    [
        ("runtime: [torch, onxruntime]", "runtime[1]", "did you mean 'onnxruntime'?"),
        ("openvino.stream: 2", "openvino.stream", "did you mean 'openvino.streams'?"),
        ("openvino.streams: [0]", "openvino.streams[0]", "0 is below 1"),
        ("openvino.streams: {low: 0, high: 4}", "openvino.streams.low", "0 is below 1"),
        ("onnxruntime.arena: [1]", "onnxruntime.arena[0]", "expected true or false"),
        ("precision: {low: 1, high: 2}", "precision.low", "unknown value '1'"),
    ],
)
def test_mistakes_are_named_with_their_place(refusal, params: str, where: str, message: str):
    said = refusal(f"{HEAD}params: {{{params}}}")
    assert said.startswith(f"t.yaml:2: params.{where}: ")
    assert message in said


def test_in_a_command_these_names_are_placeholders_like_any_other(load):
    space = load(
        'workload: {command: [bench, "{precision}", "{runtime}"]}\n'
        "params: {precision: [fp16, int8], runtime: [mine]}"
    )
    assert space.parameter("precision").choices == ("fp16", "int8")
    assert {c.get("runtime", "") for c in space.configs()} == {"mine"}


def test_a_replay_may_have_columns_of_these_names(load, tmp_path):
    (tmp_path / "grid.csv").write_text("batch_size,runtime,throughput_items_per_s\n1,mine,5\n")
    space = load("workload: {replay: grid.csv}\nparams: {runtime: [mine]}")
    assert space.parameter("runtime").choices == ("mine",)
    assert "runtime" in READERS


@pytest.mark.parametrize(
    ("written", "lengths"),
    [
        ("{low: 8, high: 128}", Lengths(low=8, high=128)),
        ("{low: 8, high: 128, multiple_of: 16}", Lengths(low=8, high=128, multiple_of=16)),
        ("[12, 30, 30]", Lengths(values=(12, 30, 30))),
        ("{values: [12, 30], multiple_of: 8}", Lengths(values=(12, 30), multiple_of=8)),
    ],
)
def test_lengths_are_a_range_or_values(load, written: str, lengths: Lengths):
    space = load(f"workload: {{model: minilm, lengths: {written}}}")
    assert space.workload.lengths == lengths


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("{low: 8}", "lengths: give low and high, or values"),
        ("{low: 8, high: 4}", "lengths.low: low 8 is above high 4"),
        ("[12, 0]", "lengths[1]: 0 is below 1"),
        ("[]", "lengths: 0 values"),
        ("{lo: 8}", "lengths.lo: unknown key 'lo'; did you mean 'low'?"),
        ("{values: [1], low: 2}", "lengths: give low and high, or values"),
    ],
)
def test_wrong_lengths_are_refused(refusal, written: str, message: str):
    said = refusal(f"workload: {{model: minilm, lengths: {written}}}")
    assert said.startswith(f"t.yaml:1: workload.{message}")
