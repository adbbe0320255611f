from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto as T
from onnx import helper as h
from onnx_models import ODD, save

from autotune.core.clock import MonotonicClock
from autotune.core.errors import CompileError, UnavailableError, UsageError
from autotune.core.records import Config, InputSpec, WorkloadSpec
from autotune.workloads import (
    check_workload,
    load_workload,
    workload_limits,
)
from autotune.workloads.base import Context, Program
from autotune.workloads.data import make_requests
from autotune.workloads.onnx_runtime import DeviceStaging, session_options

RUNTIMES = ("onnxruntime", "openvino")


def load(
    path: Path, config: Config | None = None, kind: str = "onnxruntime", **spec: Any
) -> Program:
    context = Context(
        config=config or Config(),
        workload=WorkloadSpec(kind=kind, model=str(path), **spec),
        devices=("cpu",),
        framework_device="cpu",
        clock=MonotonicClock(),
    )
    program = load_workload(kind)(context)
    assert isinstance(program, Program)
    return program


def call(program: Program, config: Config, requests: Any, items: int | None = None) -> list[Any]:
    """The program's outputs for the first micro-batch of the first request."""
    assert program.stage is not None and program.run is not None
    staging = program.stage(program.inputs, requests, config)
    assert program.outputs is not None
    output = program.run(*staging.load(0, 0, items))
    if program.wait:
        program.wait()
    return [np.array(array) for array in program.outputs(output)]


# --- files in every form -----------------------------------------------------------------------


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", RUNTIMES)
@pytest.mark.parametrize("name", ODD)
def test_odd_files_are_understood_and_compute_what_they_should(
    tmp_path: Path, name: str, kind: str, packed: bool
) -> None:
    odd = ODD[name]
    path = odd.write(tmp_path / "model.onnx")
    config = Config(batch_size=8, micro_batch_count=2, batched_h2d=packed)
    program = load(path, config, kind)
    assert {spec.name: spec.shape for spec in program.inputs} == odd.shapes
    (request,) = make_requests(program.inputs, 8, 1, 0)
    (found,) = call(program, config, [request])
    parts = [
        array if spec.batch_axis is None else array.take(range(4), axis=spec.batch_axis)
        for array, spec in zip(request, program.inputs, strict=True)
    ]
    tolerance = 1e-2 if odd.precision == "float16" else 1e-4
    np.testing.assert_allclose(found, odd.compute(*parts), rtol=tolerance, atol=tolerance)
    said = " ".join(program.notes)
    assert odd.notes in said
    if kind == "onnxruntime":
        assert program.precision == odd.precision
        assert "provider: CPUExecutionProvider" in said


@pytest.mark.parametrize("name", ODD)
def test_what_a_file_demands_is_known_before_anything_runs(tmp_path: Path, name: str) -> None:
    odd = ODD[name]
    spec = WorkloadSpec(kind="onnxruntime", model=str(odd.write(tmp_path / "model.onnx")))
    check_workload(spec)
    limits = workload_limits(spec)
    if odd.fixed_batch is None:
        assert limits.rules == ()
    else:
        assert limits.rules == ("batch_size == 4 * micro_batch_count",)
        assert "input x of model.onnx has the batch 4 fixed" in limits.notes[-1]


@pytest.mark.parametrize("packed", [False, True])
def test_a_batch_that_is_not_full_takes_the_first_items(tmp_path: Path, packed: bool) -> None:
    odd = ODD["integers, booleans and bytes"]
    config = Config(batch_size=6, batched_h2d=packed)
    program = load(odd.write(tmp_path / "m.onnx"), config)
    assert program.takes_part_batches
    (request,) = make_requests(program.inputs, 6, 1, 0)
    (found,) = call(program, config, [request], items=2)
    np.testing.assert_allclose(found, odd.compute(*(array[:2] for array in request)))


@pytest.mark.parametrize("name", ["a fixed batch of 4", "the batch in the middle"])
def test_what_cannot_run_a_piece_of_a_batch_says_so(tmp_path: Path, name: str) -> None:
    assert not load(ODD[name].write(tmp_path / "m.onnx"), Config(batch_size=4)).takes_part_batches


# --- inputs that must be asked for -------------------------------------------------------------


def relu(path: Path, dims: list[Any], dtype: int = T.FLOAT) -> WorkloadSpec:
    nodes = [h.make_node("Identity", ["x"], ["y"])]
    save(path, nodes, {"x": (dtype, dims)}, {"y": dtype})
    return WorkloadSpec(kind="onnxruntime", model=str(path))


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        (
            ["N", "seq"],
            r"input x: dimension 'seq' .*: \[\{name: x, shape: \[batch, 128\]\}\]",
        ),
        ([None, 3, None], r"dimension 2, which has no name,.*shape: \[batch, 3, 128\]"),
        ([None, None, None], r"dimension 1, .*shape: \[batch, 128, 128\]"),
        (["batch", "2*batch"], "dimension '2\\*batch' of the model is dynamic"),
        (["batch", "h", "w"], "dimension 'h'"),
        (["batch", 0], "input x: the model has a size of 0"),
    ],
)
def test_a_size_nobody_can_know_is_asked_for_by_its_key(
    tmp_path: Path, dims: list[Any], message: str
) -> None:
    with pytest.raises(UsageError, match=rf"workload\.inputs: .*{message}"):
        check_workload(relu(tmp_path / "m.onnx", dims))


def test_a_model_without_an_axis_for_items_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no input of m\.onnx has an axis that counts items"):
        check_workload(relu(tmp_path / "m.onnx", []))


@pytest.mark.parametrize(("dtype", "name"), [(T.STRING, "string"), (T.BFLOAT16, "bfloat16")])
def test_a_type_that_cannot_be_fed_is_named(tmp_path: Path, dtype: int, name: str) -> None:
    with pytest.raises(UsageError, match=f"input x is of type {name}"):
        check_workload(relu(tmp_path / "m.onnx", ["N", 3], dtype))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (InputSpec(name="y", shape=("batch", 3)), "has no input 'y'; it has x"),
        (InputSpec(name="x", shape=("batch",)), r"1 axes are given, .* 2: \[N, 3\]"),
        (InputSpec(name="x", shape=("batch", 4)), r"the size 4 .* has 3 fixed: \[N, 3\]"),
        (InputSpec(name="x", shape=("batch", 3), dtype="int64"), "int64 is given.*float32"),
    ],
)
def test_inputs_that_contradict_the_file_are_refused(
    tmp_path: Path, given: InputSpec, message: str
) -> None:
    spec = relu(tmp_path / "m.onnx", ["N", 3])
    with pytest.raises(UsageError, match=rf"workload\.inputs: .*{message}"):
        check_workload(WorkloadSpec(kind="onnxruntime", model=spec.model, inputs=(given,)))


@pytest.mark.parametrize("kind", RUNTIMES)
def test_given_sizes_ranges_and_the_files_own_type_go_together(tmp_path: Path, kind: str) -> None:
    spec = relu(tmp_path / "m.onnx", ["N", "seq"], T.INT64)
    given = InputSpec(name="x", shape=("batch", 7), low=3, high=9)
    config = Config(batch_size=50)
    program = load(Path(spec.model), config, kind, inputs=(given,))
    assert program.inputs[0].dtype == "int64"
    (found,) = call(program, config, make_requests(program.inputs, 50, 1, 0))
    assert found.shape == (50, 7) and (found.min(), found.max()) == (3, 8)


def test_the_batch_can_be_told_where_the_file_has_fixed_sizes(tmp_path: Path) -> None:
    spec = relu(tmp_path / "m.onnx", [5, 8, 2])
    given = (InputSpec(name="x", shape=(5, "batch", 2)),)
    limits = workload_limits(WorkloadSpec(kind="onnxruntime", model=spec.model, inputs=given))
    assert limits.rules == ("batch_size == 8 * micro_batch_count",)


# --- what is not right -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content", [b"", b"\x00" * 64, b"workload: {model: mlp}\n" * 50, bytes(range(256)) * 8]
)
def test_what_is_no_model_is_found_early(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"m\.onnx is not an ONNX model"):
        check_workload(WorkloadSpec(kind="onnxruntime", model=str(path)))


def test_every_way_of_cutting_a_file_short_ends_in_one_sentence_or_in_the_same_inputs(
    tmp_path: Path,
) -> None:
    whole = ODD["integers, booleans and bytes"].write(tmp_path / "m.onnx").read_bytes()
    refused = 0
    for length in range(0, len(whole), 5):
        path = tmp_path / "cut.onnx"
        path.write_bytes(whole[:length])
        try:
            check_workload(WorkloadSpec(kind="onnxruntime", model=str(path)))
        except UsageError:
            refused += 1
    assert refused > 0.9 * len(whole) / 5


def test_weights_that_are_not_beside_the_file_are_missed(tmp_path: Path) -> None:
    path = ODD["weights in a file beside it"].write(tmp_path / "m.onnx")
    (tmp_path / "weights of it.bin").unlink()
    with pytest.raises(UsageError, match=r"weights of it\.bin, which is not beside it"):
        check_workload(WorkloadSpec(kind="onnxruntime", model=str(path)))


@pytest.mark.parametrize("kind", RUNTIMES)
def test_a_model_the_runtime_cannot_load_is_a_mistake_of_the_files(
    tmp_path: Path, kind: str
) -> None:
    nodes = [h.make_node("NoSuchOperator", ["x"], ["y"])]
    save(tmp_path / "m.onnx", nodes, {"x": (T.FLOAT, ["N", 3])}, {"y": T.FLOAT})
    with pytest.raises(UsageError, match=r"workload\.model: .*NoSuchOperator"):
        load(tmp_path / "m.onnx", kind=kind)


def test_a_precision_the_file_does_not_have_is_refused(tmp_path: Path) -> None:
    path = ODD["half precision in, double out"].write(tmp_path / "m.onnx")
    check_workload(WorkloadSpec(kind="onnxruntime", model=str(path), precision="float16"))
    path = ODD["quantised weights"].write(tmp_path / "m.onnx")
    with pytest.raises(UsageError, match=r"precision: m\.onnx has weights of int8"):
        check_workload(WorkloadSpec(kind="onnxruntime", model=str(path), precision="float16"))
    with pytest.raises(UsageError, match="bfloat16"):
        check_workload(WorkloadSpec(kind="onnxruntime", model=str(path), precision="bfloat16"))


def test_a_torch_workload_of_a_file_says_which_runtimes_take_it(tmp_path: Path) -> None:
    spec = relu(tmp_path / "m.onnx", ["N", 3])
    with pytest.raises(UsageError, match=r"torch cannot run .*onnxruntime or openvino"):
        check_workload(WorkloadSpec(kind="torch", model=spec.model))


def test_a_missing_package_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = relu(tmp_path / "m.onnx", ["N", 3])
    monkeypatch.setattr("importlib.util.find_spec", lambda *_: None)
    with pytest.raises(UnavailableError, match=r"pip install 'autotune-npu\[onnx\]'"):
        check_workload(spec)
    with pytest.raises(UnavailableError, match=r"pip install 'autotune-npu\[openvino\]'"):
        check_workload(WorkloadSpec(kind="openvino", model=spec.model))


UNLOADABLE: dict[str, tuple[dict[str, Any], str]] = {
    "a newer format": ({"ir_version": 99}, "Unsupported model IR version: 99"),
    "newer operators": ({"opset": 999}, "opset"),
    "somebody's own operators": ({"op": "MyOp", "domain": "my.own"}, r"my\.own:MyOp"),
    "an input twice": ({"inputs": ("x", "x")}, r"Duplicate definition-site for \(x\)"),
}


@pytest.mark.parametrize("name", UNLOADABLE)
def test_whatever_the_runtime_cannot_load_is_a_mistake_of_the_files(
    tmp_path: Path, name: str
) -> None:
    how, message = UNLOADABLE[name]
    domain, inputs = how.get("domain", ""), how.get("inputs", ("x",))
    node = h.make_node(how.get("op", "Relu"), ["x"], ["y"], domain=domain)
    values = [h.make_tensor_value_info(n, T.FLOAT, ["N", 3]) for n in inputs]
    graph = h.make_graph([node], "g", values, [h.make_tensor_value_info("y", T.FLOAT, None)])
    opsets = [h.make_opsetid("", how.get("opset", 17)), h.make_opsetid("my.own", 1)]
    model = h.make_model(graph, opset_imports=opsets, ir_version=how.get("ir_version", 8))
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(UsageError, match=f"cannot load .*{message}") as caught:
        load(path)
    assert "onnxruntime_src" not in str(caught.value)


def test_weights_that_are_cut_short_or_elsewhere_are_told(tmp_path: Path) -> None:
    path = ODD["weights in a file beside it"].write(tmp_path / "m.onnx")
    (tmp_path / "weights of it.bin").write_bytes(b"short")
    with pytest.raises(UsageError, match=r"cannot load .*out of bounds"):
        load(path)
    content = path.read_bytes()
    path.write_bytes(content.replace(b"weights of it.bin", b"../eights of it.b"))
    with pytest.raises(UsageError, match="outside of its directory"):
        check_workload(WorkloadSpec(kind="onnxruntime", model=str(path)))


def test_no_memory_is_no_mistake_of_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import onnxruntime as ort
    from onnxruntime.capi.onnxruntime_pybind11_state import RuntimeException

    def fails(*_: Any, **__: Any) -> None:
        raise RuntimeException("Failed to allocate memory for requested buffer of size 1")

    spec = relu(tmp_path / "m.onnx", ["N", 3])
    monkeypatch.setattr(ort, "InferenceSession", fails)
    with pytest.raises(RuntimeException):
        load(Path(spec.model))


def test_a_shape_that_only_openvino_refuses_costs_that_configuration(tmp_path: Path) -> None:
    nodes = [h.make_node("Reshape", ["x", "shape"], ["y"])]
    weights = {"shape": np.array([2, 8], np.int64)}
    path = tmp_path / "m.onnx"
    save(path, nodes, {"x": (T.FLOAT, ["N", 4])}, {"y": T.FLOAT}, weights)
    load(path, Config(batch_size=4), "openvino")
    with pytest.raises(CompileError, match="openvino cannot compile the model: "):
        load(path, Config(batch_size=5), "openvino")


# --- outputs that are no plain tensors ---------------------------------------------------------


def odd_outputs(path: Path, nodes: list[Any], outputs: list[Any]) -> Program:
    """A model over x, [N, 4]."""
    x = h.make_tensor_value_info("x", T.FLOAT, ["N", 4])
    graph = h.make_graph(nodes, "g", [x], outputs)
    opsets = [h.make_opsetid("", 17), h.make_opsetid("ai.onnx.ml", 3)]
    path.write_bytes(h.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())
    return load(path, Config(batch_size=3))


def test_sequences_and_brain_floats_are_read(tmp_path: Path) -> None:
    nodes = [
        h.make_node("SplitToSequence", ["x"], ["parts"], axis=1, keepdims=1),
        h.make_node("Relu", ["x"], ["y"]),
    ]
    outputs = [
        h.make_tensor_sequence_value_info("parts", T.FLOAT, None),
        h.make_tensor_value_info("y", T.FLOAT, None),
    ]
    program = odd_outputs(tmp_path / "m.onnx", nodes, outputs)
    requests = make_requests(program.inputs, 3, 2, 0)
    assert program.stage is not None and program.run is not None and program.outputs is not None
    staging = program.stage(program.inputs, requests, Config(batch_size=3))
    for number in range(6):
        parts, y = program.outputs(program.run(*staging.load(number, 0)))
        (x,) = requests[number % 2]
        np.testing.assert_array_equal(np.concatenate(parts, axis=1), x)
        np.testing.assert_array_equal(y, np.maximum(x, 0))

    nodes = [h.make_node("Cast", ["x"], ["y"], to=T.BFLOAT16)]
    outputs = [h.make_tensor_value_info("y", T.BFLOAT16, None)]
    program = odd_outputs(tmp_path / "b.onnx", nodes, outputs)
    (found,) = call(program, Config(batch_size=3), requests)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, requests[0][0], rtol=2**-8)


@pytest.mark.parametrize("labels", ["int64s", "strings"])
def test_a_classifier_with_maps_of_probabilities_is_run(tmp_path: Path, labels: str) -> None:
    """As exporters of tree and linear models make them."""
    names: Any = [0, 1] if labels == "int64s" else ["no", "yes"]
    kind = "classlabels_ints" if labels == "int64s" else "classlabels_strings"
    ml: dict[str, Any] = {"domain": "ai.onnx.ml"}
    nodes = [
        h.make_node(
            "LinearClassifier", ["x"], ["label", "p"], **ml, coefficients=[0.5, -1, 1, 0.2] * 2,
            intercepts=[0.0, 0.1], post_transform="SOFTMAX", **{kind: names},
        ),
        h.make_node("ZipMap", ["p"], ["maps"], **ml, **{f"classlabels_{labels}": names}),
    ]  # fmt: skip
    key = T.INT64 if labels == "int64s" else T.STRING
    maps = h.make_map_type_proto(key, h.make_tensor_type_proto(T.FLOAT, []))
    outputs = [
        h.make_tensor_value_info("label", key, [None]),
        h.make_value_info("maps", h.make_sequence_type_proto(maps)),
    ]
    program = odd_outputs(tmp_path / "m.onnx", nodes, outputs)
    found = call(program, Config(batch_size=3), make_requests(program.inputs, 3, 1, 0))
    if labels == "int64s":
        label, probabilities = found
        assert probabilities.shape == (3, 2)
        np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-6)
        np.testing.assert_array_equal(probabilities.argmax(axis=1), label)
    else:
        assert found[0].shape == (3,)


@pytest.mark.parametrize("packed", [False, True])
def test_outputs_may_have_another_shape_at_every_call(tmp_path: Path, packed: bool) -> None:
    odd = ODD["as many rows as there are"]
    config = Config(batch_size=4, batched_h2d=packed)
    program = load(odd.write(tmp_path / "m.onnx"), config)
    requests = make_requests(program.inputs, 4, 3, 0)
    assert program.stage is not None and program.run is not None and program.outputs is not None
    staging = program.stage(program.inputs, requests, config)
    for number in range(9):
        (found,) = program.outputs(program.run(*staging.load(number, 0)))
        np.testing.assert_array_equal(found, odd.compute(*requests[number % 3]))


# --- the session -------------------------------------------------------------------------------


def test_a_session_has_the_threads_of_its_cores_and_spins_only_alone() -> None:
    import onnxruntime as ort

    spinning = "session.intra_op.allow_spinning"
    alone, shared = (session_options(ort, Config(instance_count=n)) for n in (1, 2))
    assert alone.intra_op_num_threads == len(os.sched_getaffinity(0))
    assert alone.get_session_config_entry(spinning) == "1"
    assert shared.get_session_config_entry(spinning) == "0"
    told = Config(instance_count=2, extra=(("onnxruntime.spinning", True),))
    assert session_options(ort, told).get_session_config_entry(spinning) == "1"


def test_the_parameters_of_the_runtime_reach_its_session() -> None:
    import onnxruntime as ort

    chosen = {
        "onnxruntime.execution_mode": "parallel",
        "onnxruntime.graph_optimization": "basic",
        "onnxruntime.arena": False,
        "onnxruntime.inter_op_threads": 3,
    }
    options = session_options(ort, Config.from_dict(chosen))
    assert options.execution_mode == ort.ExecutionMode.ORT_PARALLEL
    assert options.graph_optimization_level == ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    assert not options.enable_cpu_mem_arena
    assert options.inter_op_num_threads == 3
    plain = session_options(ort, Config())
    assert plain.graph_optimization_level == ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    assert plain.enable_cpu_mem_arena


@pytest.mark.parametrize("device", ["cuda:0", "npu:1", "mlu:0"])
def test_a_provider_that_is_not_there_is_never_replaced_by_the_cpu(
    tmp_path: Path, device: str
) -> None:
    spec = relu(tmp_path / "m.onnx", ["N", 3])
    context = Context(
        config=Config(),
        workload=spec,
        devices=(device,),
        framework_device=device,
        clock=MonotonicClock(),
    )
    wanted = {"cuda:0": "CUDAExecutionProvider", "npu:1": "CANNExecutionProvider"}.get(device)
    error = UnavailableError if wanted else UsageError
    with pytest.raises(error, match=f"no {wanted}" if wanted else "no provider for the device mlu"):
        load_workload("onnxruntime")(context)
    with pytest.raises(UnavailableError, match="openvino is run on the CPU only"):
        load_workload("openvino")(context)


@pytest.mark.parametrize("packed", [False, True])
def test_copies_into_memory_of_the_runtimes_own_give_the_same(tmp_path: Path, packed: bool) -> None:
    """The way to an accelerator, here with the CPU as the device."""
    import onnxruntime as ort

    from autotune.workloads.onnx_runtime import _bind

    odd = ODD["integers, booleans and bytes"]
    path = odd.write(tmp_path / "m.onnx")
    config = Config(batch_size=6, micro_batch_count=2, batched_h2d=packed)
    program = load(path, config)
    requests = make_requests(program.inputs, 6, 2, 0)
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    device = ("cpu", 0)
    staging = DeviceStaging(
        program.inputs,
        requests,
        config,
        ort=ort,
        device=device,
        bind=lambda tensors: _bind(session, device, tensors),
    )
    for number in range(4):
        (binding,) = staging.load(*divmod(number, 2))
        session.run_with_iobinding(binding)
        begin = number % 2 * 3
        wanted = odd.compute(*(a[begin : begin + 3] for a in requests[number // 2]))
        np.testing.assert_allclose(binding.get_outputs()[0].numpy(), wanted)
    assert staging.copies_per_call == 2 * (1 if packed else 3)


def test_checking_imports_no_framework(tmp_path: Path) -> None:
    import subprocess
    import sys

    path = ODD["quantised weights"].write(tmp_path / "m.onnx")
    code = (
        "import sys\nfrom autotune import workloads\n"
        "from autotune.core.records import WorkloadSpec\n"
        "for kind in ('onnxruntime', 'openvino'):\n"
        f"    for model in ({str(path)!r}, 'dlrm'):\n"
        "        spec = WorkloadSpec(kind=kind, model=model)\n"
        "        workloads.check_workload(spec)\n"
        "        workloads.workload_limits(spec)\n"
        "        assert workloads.preload_modules(spec) == (kind,)\n"
        "assert not {'torch', 'onnx', 'onnxruntime', 'openvino'} & set(sys.modules)"
    )
    root = str(Path(__file__).resolve().parents[2])
    assert subprocess.run([sys.executable, "-c", code], cwd=root, timeout=60).returncode == 0
