"""OpenVINO's own files, read without it and run by it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx_models import ODD
from test_onnx_runtime import call, load

from autotune.core.errors import UsageError
from autotune.core.records import Config, InputSpec, WorkloadSpec
from autotune.space.loader import load_space
from autotune.workloads import check_workload, workload_limits
from autotune.workloads.data import make_requests
from autotune.workloads.ir_file import read_ir

SIMPLE = tuple(name for name in ODD if name != "the batch in the middle")


def write_ir(directory: Path, name: str) -> Path:
    """An odd ONNX model as an IR; OpenVINO keeps no names of axes."""
    import openvino as ov

    graph = ov.Core().read_model(str(ODD[name].write(directory / "source.onnx")))
    path = directory / "model.xml"
    ov.save_model(graph, str(path), compress_to_fp16=False)
    return path


@pytest.mark.parametrize("name", SIMPLE)
def test_an_ir_is_understood_and_computes_what_its_source_does(tmp_path: Path, name: str) -> None:
    odd = ODD[name]
    path = write_ir(tmp_path, name)
    check_workload(WorkloadSpec(kind="openvino", model=str(path)))
    config = Config(batch_size=8, micro_batch_count=2)
    program = load(path, config, "openvino")
    assert {spec.name: spec.shape for spec in program.inputs} == odd.shapes
    (request,) = make_requests(program.inputs, 8, 1, 0)
    (found,) = call(program, config, [request])
    parts = [
        array if spec.batch_axis is None else array.take(range(4), axis=spec.batch_axis)
        for array, spec in zip(request, program.inputs, strict=True)
    ]
    tolerance = 1e-2 if odd.precision == "float16" else 1e-4
    np.testing.assert_allclose(found, odd.compute(*parts), rtol=tolerance, atol=tolerance)


def test_another_axis_can_be_named_the_batch(tmp_path: Path) -> None:
    path = write_ir(tmp_path, "the batch in the middle")
    with pytest.raises(UsageError, match=r"workload\.inputs: input x: dimension 1"):
        check_workload(WorkloadSpec(kind="openvino", model=str(path)))
    given = (InputSpec(name="x", shape=(3, "batch", 2)),)
    config = Config(batch_size=5)
    program = load(path, config, "openvino", inputs=given)
    (found,) = call(program, config, make_requests(program.inputs, 5, 1, 0))
    assert found.shape == (3, 5, 2)


def test_a_fixed_batch_is_demanded(tmp_path: Path) -> None:
    path = write_ir(tmp_path, "a fixed batch of 4")
    limits = workload_limits(WorkloadSpec(kind="openvino", model=str(path)))
    assert limits.rules == ("batch_size == 4 * micro_batch_count",)


def test_a_space_file_runs_an_ir_on_openvino_and_nothing_else_does(tmp_path: Path) -> None:
    path = write_ir(tmp_path, "weights among the inputs, and a scalar")
    (tmp_path / "t.yaml").write_text("workload: {model: model.xml}\nparams: {batch_size: [1]}\n")
    assert load_space(tmp_path / "t.yaml").workload.kind == "openvino"
    for kind in ("onnxruntime", "torch"):
        with pytest.raises(UsageError, match=rf"{kind} cannot run .*; openvino can"):
            check_workload(WorkloadSpec(kind=kind, model=str(path)))
    path.with_suffix(".bin").unlink()
    with pytest.raises(UsageError, match=r"model\.bin, which is not beside it"):
        check_workload(WorkloadSpec(kind="openvino", model=str(path)))


PARAMETER = """<layer id="0" name="{name}" type="Parameter"><data
 shape="{shape}"
 element_type="{type}" />
<output><port id="0" names="{names}"><dim>1</dim></port></output></layer>"""
NET = """<?xml version="1.0"?><net name="n" version="11"><layers>{layers}</layers></net>"""


@pytest.mark.parametrize(
    ("shape", "dims"),
    [
        ("?,3", (None, 3)),
        ("1..8,3", (None, 3)),
        ("-1, 3", (None, 3)),
        ("...", None),
        ("", ()),
        ("5", (5,)),
    ],
)
def test_shapes_as_they_are_written(
    tmp_path: Path, shape: str, dims: tuple[int | None, ...] | None
) -> None:
    layer = PARAMETER.format(name="p", shape=shape, type="boolean", names="a\\,b,c")
    (tmp_path / "m.xml").write_text(NET.format(layers=layer))
    (item,) = read_ir(tmp_path / "m.xml").inputs
    assert (item.name, item.dtype, item.dims) == ("a,b", "bool", dims)


def test_inputs_of_a_loops_body_are_not_the_models(tmp_path: Path) -> None:
    inner = PARAMETER.format(name="inner", shape="1", type="f32", names="")
    outer = PARAMETER.format(name="outer", shape="?,2", type="f32", names="")
    loop = f'<layer id="1" name="l" type="Loop"><body><layers>{inner}</layers></body></layer>'
    (tmp_path / "m.xml").write_text(NET.format(layers=loop + outer))
    assert [item.name for item in read_ir(tmp_path / "m.xml").inputs] == ["outer"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00" * 64,
        b"<net><layers><layer",
        b"<html></html>",
        b"<net></net>",
        b"workload: {model: mlp}",
        b'<net><layers><layer type="Parameter"/></layers></net>',
        b'<?xml version="1.0" encoding="nothing"?><net/>',
        b'<!DOCTYPE n [<!ENTITY a "aaaaaaaaaa">'
        + b"".join(
            b'<!ENTITY %c "%s">' % (c + 1, b"&%c;" % c * 10) for c in range(ord("a"), ord("l"))
        )
        + b"]><net>&l;</net>",
    ],
)
def test_what_is_no_ir_is_told(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.xml"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=r"m\.xml is not an OpenVINO IR"):
        check_workload(WorkloadSpec(kind="openvino", model=str(path)))
