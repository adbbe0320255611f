"""Exports that are configurations: Triton's, an environment file, JSON; and who may have them."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from exporting import subject

from autotune.apps import export, export_text, export_triton
from autotune.apps.operands import read_operand
from autotune.apps.run import run
from autotune.core.errors import UsageError
from autotune.core.records import Config
from autotune.results.triton import Tensor, triton_config
from autotune.space.loader import load_space


@pytest.fixture(scope="module")
def schema() -> ModuleType:
    """Triton's own schema of `config.pbtxt`, out of its client without what that needs."""
    found = importlib.util.find_spec("tritonclient")
    if found is None or not found.submodule_search_locations:
        pytest.skip("tritonclient is not installed")
    path = Path(found.submodule_search_locations[0]) / "grpc" / "model_config_pb2.py"
    spec = importlib.util.spec_from_file_location("model_config_pb2", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def parsed(schema: ModuleType, text: str) -> Any:
    from google.protobuf import text_format

    return text_format.Parse(text, schema.ModelConfig())


def test_tritons_schema_takes_the_repository(schema: ModuleType, tmp_path: Path) -> None:
    import onnx
    from onnx import TensorProto, helper

    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", 26])
    dense = helper.make_tensor_value_info("n", TensorProto.FLOAT, ["batch"])
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 26])
    nodes = [
        helper.make_node("Cast", ["ids"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["n", "one"], ["u"]),
        helper.make_node("Add", ["f", "u"], ["y"]),
    ]
    one = helper.make_tensor("one", TensorProto.INT64, [1], [1])
    graph = helper.make_graph(nodes, "g", [ids, dense], [out], [one])
    onnx.save(helper.make_model(graph, ir_version=8), tmp_path / "m.onnx")
    about = subject(
        tmp_path,
        "workload: {model: m.onnx}\nstudy: my.study\n",
        {"cores": "0,1 2,3"},
        batch_size=32,
        instance_count=2,
        max_queue_delay=0.0025,
        onnxruntime__graph_optimization="extended",
    )
    config_path, model_path = export_triton.triton(about)
    assert model_path == tmp_path / "my_study" / "1" / "model.onnx" and model_path.is_file()
    text = config_path.read_text()
    config = parsed(schema, text)
    assert (config.name, config.backend, config.max_batch_size) == ("my_study", "onnxruntime", 32)
    assert [list(i.dims) for i in config.input] == [[26], [1]]
    assert list(config.input[1].reshape.shape) == [] and config.input[1].HasField("reshape")
    assert [schema.DataType.Name(i.data_type) for i in config.input] == ["TYPE_INT64", "TYPE_FP32"]
    assert list(config.output[0].dims) == [26]
    assert list(config.dynamic_batching.preferred_batch_size) == [32]
    assert config.dynamic_batching.max_queue_delay_microseconds == 2500
    groups = [(g.count, g.host_policy, g.kind) for g in config.instance_group]
    assert groups == [(1, "instance_0", 2), (1, "instance_1", 2)]
    assert config.parameters["intra_op_thread_count"].string_value == "2"
    assert config.optimization.graph.level == 1
    assert "--host-policy=instance_1,cpu-cores=2-3" in text and "1,950/s" in text


def test_a_model_without_batch_axes_or_with_a_gpu(schema: ModuleType) -> None:
    x = Tensor(name="x", dtype="float16", dims=(4, -1), batch_axis=1)
    whole = parsed(schema, triton_config("m", Config(batch_size=4), [x], [x], cores=()))
    assert whole.max_batch_size == 0 and list(whole.input[0].dims) == [4, -1]
    assert not whole.HasField("dynamic_batching")
    alone = Tensor(name="scale", dtype="float32", dims=(), batch_axis=None)
    with pytest.raises(UsageError, match="scale is a single number, and Triton wants an axis"):
        triton_config("m", Config(batch_size=4), [x, alone], [x], cores=())
    first = Tensor(name="x", dtype="float32", dims=(-1, 4), batch_axis=0)
    on_gpu = triton_config("m", Config(instance_count=3), [first], [first], cores=((0,),), gpu=1)
    group = parsed(schema, on_gpu).instance_group[0]
    assert (group.count, list(group.gpus)) == (3, [1])
    assert group.kind == schema.ModelInstanceGroup.KIND_GPU


def test_a_shell_takes_the_environment_file(tmp_path: Path) -> None:
    environment = {"cores": "0", "OMP_WAIT_POLICY": "PASSIVE", "MALLOC_TOP_PAD_": "67108864"}
    odd = {"env__TASK": "it's $HOME;\necho `id`", "cores_per_instance": "12|24"}
    about = subject(tmp_path, "workload: {model: mlp}\n", environment, **odd)
    (path,) = export_text.env(about)
    script = f'set -a; . {path}; set +a; taskset -c "$AUTOTUNE_CORES_0" env -0'
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    found = dict(line.split("=", 1) for line in done.stdout.split("\0") if "=" in line)
    assert found["OMP_WAIT_POLICY"] == "PASSIVE" and found["OMP_NUM_THREADS"] == "1"
    assert found["AUTOTUNE_BATCH_SIZE"] == "8" and found["TASK"] == odd["env__TASK"]
    assert found["AUTOTUNE_BATCHED_H2D"] == "false"
    assert found["AUTOTUNE_CORES_PER_INSTANCE"] == "12|24" and not done.stderr
    text = path.read_text()
    assert text.startswith("# study       s (confirmed)") and "OMP_NUM_THREADS=1\n" in text
    assert "quotes of TASK, AUTOTUNE_CORES_PER_INSTANCE" in text


@pytest.fixture
def replayed(space_file: Callable[..., Path]) -> str:
    space = load_space(space_file(limit="3ms", trials=4))
    run(space)
    return space.study


def test_what_is_no_proof_needs_a_word_and_says_so(replayed: str) -> None:
    def to(form: str, **how: Any) -> Path:
        return export.export_study(replayed, form, out=None, studies_dir=Path("studies"), **how)[0]

    with pytest.raises(UsageError, match=r"figures are replayed, not measured.*--unproven"):
        to("json")
    with pytest.raises(UsageError, match="measured with replay, and openvino runs the model"):
        to("openvino")
    path = to("json", unproven=True)
    assert "replayed" in json.loads(path.read_text())["evidence"]["unproven"][-1]
    assert "# UNPROVEN: its figures are replayed" in to("env", unproven=True).read_text()


def test_figures_of_several_devices_are_no_proof_for_one(tmp_path: Path) -> None:
    about = subject(tmp_path, "workload: {model: mlp}\n", {}, device_count=2)
    assert about.result is not None
    for form, doubted in (("torch", True), ("json", False)):
        found = export._evidence(
            about.result, export.FORMATS[form], form, about.space, tmp_path
        ).unproven
        assert [("on 2 devices together" in doubt) for doubt in found] == [True] * doubted


def test_compare_takes_the_json(replayed: str) -> None:
    (path,) = export.export_study(
        replayed, "json", out=None, studies_dir=Path("studies"), unproven=True
    )
    operand = read_operand(str(path), Path("studies"))
    content = json.loads(path.read_text())
    assert operand.config.as_dict() == content["config"] == content["evidence"]["config"]


def test_nothing_is_exported_where_nothing_is_recommended(space_file: Callable[..., Path]) -> None:
    space = load_space(space_file(limit="0.1ms", trials=2))
    run(space)
    with pytest.raises(UsageError, match="is infeasible: there is no configuration to export"):
        export.export_study(
            space.study, "env", out=None, studies_dir=Path("studies"), unproven=True
        )


def test_a_space_file_recommends_nothing(space_file: Callable[..., Path]) -> None:
    with pytest.raises(UsageError, match="--to env needs a study"):
        export.export_space(str(space_file()), "env", out=None)
