"""Small ONNX models in the odd forms that exporters and people produce, with what they compute."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto as T
from onnx import helper as h
from onnx import numpy_helper

Array = npt.NDArray[Any]
WEIGHT = np.arange(16 * 4, dtype=np.float32).reshape(16, 4) / 10 - 3
QUANTUM = np.float32(0.05)


def save(
    path: Path,
    nodes: Sequence[onnx.NodeProto],
    inputs: dict[str, tuple[int, Sequence[int | str | None]]],
    outputs: dict[str, int],
    weights: dict[str, Array] | None = None,
    *,
    weights_are_inputs: bool = False,
    external: str = "",
) -> Path:
    """Write a model; outputs have no shape of their own."""
    values = [h.make_tensor_value_info(n, t, dims) for n, (t, dims) in inputs.items()]
    initializers = [numpy_helper.from_array(a, n) for n, a in (weights or {}).items()]
    if weights_are_inputs:
        values = [
            *(h.make_tensor_value_info(w.name, w.data_type, w.dims) for w in initializers),
            *values,
        ]
    results = [h.make_tensor_value_info(n, t, None) for n, t in outputs.items()]
    graph = h.make_graph(list(nodes), "g", values, results, initializers)
    model = h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=8)
    if external:
        onnx.save(model, path, save_as_external_data=True, location=external, size_threshold=0)
    else:
        onnx.save(model, path)
    return path


@dataclass(frozen=True)
class Odd:
    """A model file: how it is written, and what it computes of its inputs in order.

    Attributes:
        shapes: Of the inputs as they must be understood.
        fixed_batch: The batch it insists on.
        notes: A word of what must be said about it.
    """

    write: Callable[[Path], Path]
    compute: Callable[..., Array]
    shapes: dict[str, tuple[int | str, ...]]
    fixed_batch: int | None = None
    notes: str = ""
    precision: str = "float32"
    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)


def _node(op: str, inputs: str, output: str, **attributes: Any) -> onnx.NodeProto:
    return h.make_node(op, inputs.split(), [output], **attributes)


def _weights_and_scalar(path: Path) -> Path:
    nodes = [_node("MatMul", "x w", "m"), _node("Mul", "m s", "y")]
    ins = {"x": (T.FLOAT, ["batch", 16]), "s": (T.FLOAT, [])}
    return save(path, nodes, ins, {"y": T.FLOAT}, {"w": WEIGHT}, weights_are_inputs=True)


def _types(path: Path) -> Path:
    nodes = [
        _node("Gather", "w ids", "e"),
        _node("Cast", "keep", "k", to=T.FLOAT),
        _node("Cast", "pixel", "p", to=T.FLOAT),
        _node("Mul", "k p", "kp"),
        _node("Unsqueeze", "kp axis", "u"),
        _node("Mul", "e u", "y"),
    ]
    ins = {
        "ids": (T.INT64, ["N", 3]),
        "keep": (T.BOOL, ["N", 3]),
        "pixel": (T.UINT8, ["N", 3]),
    }
    weights = {"w": WEIGHT, "axis": np.array([2], np.int64)}
    return save(path, nodes, ins, {"y": T.FLOAT}, weights)


def _quantised(path: Path) -> Path:
    nodes = [
        _node("QuantizeLinear", "x scale zero", "q"),
        _node("MatMulInteger", "q w zero", "i"),
        _node("Cast", "i", "f", to=T.FLOAT),
        _node("Mul", "f scale", "y"),
    ]
    weights = {
        "scale": QUANTUM,
        "zero": np.array(0, np.int8),
        "w": (np.arange(64) % 7 - 3).astype(np.int8).reshape(16, 4),
    }
    return save(path, nodes, {"x": (T.FLOAT, ["bs", 16])}, {"y": T.FLOAT}, weights)


def _quantised_result(x: Array) -> Array:
    q = np.clip(np.rint(x / QUANTUM), -128, 127).astype(np.int32)
    w = (np.arange(64) % 7 - 3).astype(np.int32).reshape(16, 4)
    return (q @ w).astype(np.float32) * QUANTUM


def _branches(path: Path) -> Path:
    """A condition with a graph on either side, and an input that nothing uses."""

    def branch(name: str, op: str) -> onnx.GraphProto:
        out = h.make_tensor_value_info(f"{name}_out", T.FLOAT, None)
        return h.make_graph([_node(op, "x", f"{name}_out")], name, [], [out])

    nodes = [
        _node("ReduceSum", "x", "sum", keepdims=0),
        _node("Greater", "sum nought", "c"),
        h.make_node(
            "If", ["c"], ["y"], then_branch=branch("a", "Relu"), else_branch=branch("b", "Neg")
        ),
    ]
    ins = {"x": (T.FLOAT, ["batch_0", 16]), "unused": (T.INT32, ["batch_1"])}
    return save(path, nodes, ins, {"y": T.FLOAT}, {"nought": np.array(0, np.float32)})


def _half(path: Path) -> Path:
    nodes = [_node("MatMul", "x w", "m"), _node("Cast", "m", "y", to=T.DOUBLE)]
    weights = {"w": WEIGHT.astype(np.float16)}
    return save(path, nodes, {"x": (T.FLOAT16, ["n", 16])}, {"y": T.DOUBLE}, weights)


def _relu(dims: Sequence[int | str | None], name: str = "x") -> Callable[[Path], Path]:
    return lambda path: save(
        path, [h.make_node("Relu", [name], ["y"])], {name: (T.FLOAT, dims)}, {"y": T.FLOAT}
    )


def _external(path: Path) -> Path:
    nodes = [_node("MatMul", "x w", "y")]
    ins = {"x": (T.FLOAT, ["Batch", 16])}
    return save(path, nodes, ins, {"y": T.FLOAT}, {"w": WEIGHT}, external="weights of it.bin")


def _found(path: Path) -> Path:
    """Of another shape at every call, as what a detector finds."""
    nodes = [_node("Greater", "x nought", "b"), _node("NonZero", "b", "y")]
    ins = {"x": (T.FLOAT, ["N", 16])}
    return save(path, nodes, ins, {"y": T.INT64}, {"nought": np.array(0, np.float32)})


def _reshaped(path: Path) -> Path:
    weights = {"shape": np.array([0, 4, 4], np.int64)}
    nodes = [_node("Reshape", "x shape", "y")]
    return save(path, nodes, {"x": (T.FLOAT16, ["N", 16])}, {"y": T.FLOAT16}, weights)


def _summed(path: Path) -> Path:
    nodes = [_node("ReduceSum", "x", "y", keepdims=0)]
    return save(path, nodes, {"x": (T.FLOAT, ["N", 2])}, {"y": T.FLOAT})


def _back(path: Path) -> Path:
    nodes = [
        _node("QuantizeLinear", "x scale zero", "q"),
        _node("DequantizeLinear", "q scale zero", "d"),
        _node("DequantizeLinear", "w scale zero", "wd"),
        _node("MatMul", "d wd", "y"),
    ]
    weights = {
        "scale": QUANTUM,
        "zero": np.array(0, np.int8),
        "w": (np.arange(64) % 7 - 3).astype(np.int8).reshape(16, 4),
    }
    return save(path, nodes, {"x": (T.FLOAT, ["bs", 16])}, {"y": T.FLOAT}, weights)


def _back_result(x: Array) -> Array:
    return _quantised_result(x) * QUANTUM


def relu(x: Array) -> Array:
    return np.maximum(x, 0)


def _looked_up(ids: Array, keep: Array, pixel: Array) -> Array:
    return WEIGHT[ids] * (keep * pixel)[..., None].astype(np.float32)


ODD: dict[str, Odd] = {
    "weights among the inputs, and a scalar": Odd(
        _weights_and_scalar, lambda x, s: x @ WEIGHT * s, {"x": ("batch", 16), "s": ()}
    ),
    "integers, booleans and bytes": Odd(
        _types,
        _looked_up,
        {"ids": ("batch", 3), "keep": ("batch", 3), "pixel": ("batch", 3)},
    ),
    "quantised weights": Odd(_quantised, _quantised_result, {"x": ("batch", 16)}, precision="int8"),
    "branches, an unused input, a batch of two names": Odd(
        _branches,
        lambda x, _: relu(x) if x.sum() > 0 else -x,
        {"x": ("batch", 16), "unused": ("batch",)},
    ),
    "half precision in, double out": Odd(
        _half,
        lambda x: (x.astype(np.float32) @ WEIGHT).astype(np.float64),
        {"x": ("batch", 16)},
        precision="float16",
    ),
    "a fixed batch of 4": Odd(_relu([4, 16]), relu, {"x": ("batch", 16)}, fixed_batch=4),
    "an axis without a name": Odd(
        _relu([None, 5]), relu, {"x": ("batch", 5)}, notes="without a name"
    ),
    "a size below nought": Odd(_relu([-1, 5]), relu, {"x": ("batch", 5)}, notes="without a name"),
    "the batch in the middle": Odd(_relu([3, "batch_size", 2]), relu, {"x": (3, "batch", 2)}),
    "a first axis with another name": Odd(
        _relu(["rows", 5]), relu, {"x": ("batch", 5)}, notes="'rows'"
    ),
    "a name in another script": Odd(
        _relu(["批", 5], "输入/x:0"), relu, {"输入/x:0": ("batch", 5)}, notes="批"
    ),
    "as many rows as there are": Odd(
        _found, lambda x: np.argwhere(x > 0).T, {"x": ("batch", 16)}, precision="float32"
    ),
    "shapes for its only constants": Odd(
        _reshaped, lambda x: x.reshape(len(x), 4, 4), {"x": ("batch", 16)}, precision="float16"
    ),
    "a number out": Odd(_summed, lambda x: x.sum(dtype=np.float32), {"x": ("batch", 2)}),
    "quantised and back": Odd(_back, _back_result, {"x": ("batch", 16)}, precision="int8"),
    "weights in a file beside it": Odd(_external, lambda x: x @ WEIGHT, {"x": ("batch", 16)}),
}
