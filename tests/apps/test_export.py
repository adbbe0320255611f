from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autotune.apps import export as app
from autotune.apps.run import run
from autotune.core.codec import to_json_dict
from autotune.core.errors import StorageError, UsageError
from autotune.core.records import InputSpec, WorkloadSpec
from autotune.space.loader import load_space
from autotune.workloads import exported


@pytest.fixture
def exports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[WorkloadSpec, int]]:
    """What was exported, instead of exporting it."""
    done: list[tuple[WorkloadSpec, int]] = []

    def write(spec: WorkloadSpec, seed: int, directory: Path) -> None:
        from onnx import TensorProto, helper, save

        done.append((spec, seed))
        directory.mkdir(parents=True)
        x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch"]) for n in "xy")
        graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
        save(helper.make_model(graph, ir_version=8), directory / exported.MODEL_NAME)
        declared = exported.Declared(inputs=(InputSpec(name="x", shape=("batch",)),))
        text = json.dumps(to_json_dict(declared))
        (directory / exported.INPUTS_NAME).write_text(text)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(exported, "_export", write)
    monkeypatch.chdir(tmp_path)
    return done


def test_the_model_of_a_space_file_is_written_into_the_working_directory(
    exports: list[Any], tmp_path: Path
) -> None:
    Path("s.yaml").write_text(
        "workload: {model: mlp, precision: bfloat16}\ntrial: {seed: 4}\nstudy: mine\n"
    )
    (written,) = app.export_space("s.yaml", "onnx", out=None)
    assert written == tmp_path / "mine.onnx" and written.is_file()
    ((spec, seed),) = exports
    assert (spec.model, spec.precision, seed) == ("mlp", "float32", 4)


def test_a_study_is_exported_from_what_it_kept(
    exports: list[Any], tmp_path: Path, space_file: Callable[..., Path]
) -> None:
    space = load_space(space_file(limit="3ms", trials=2))
    run(space)
    with pytest.raises(UsageError, match="a study of kind replay has no model to export"):
        app.export_study(space.study, "onnx", out=None, studies_dir=Path("studies"))
    assert not exports


@pytest.mark.parametrize(
    ("to", "model", "message"),
    [
        ("onxn", "mlp", "unknown format 'onxn'; known: triton, "),
        ("onnx", "m.onnx", "is a model file already"),
    ],
)
def test_what_cannot_be_exported_is_refused(
    exports: list[Any], to: str, model: str, message: str
) -> None:
    Path("m.onnx").write_bytes(b"")
    Path("s.yaml").write_text(f"workload: {{model: {model}}}\n")
    with pytest.raises(UsageError, match=message):
        app.export_space("s.yaml", to, out=None)


def test_a_directory_that_cannot_be_written_to_is_named(exports: list[Any]) -> None:
    Path("s.yaml").write_text("workload: {model: mlp}\n")
    Path("file").write_text("")
    with pytest.raises(StorageError, match=r"file/s\.onnx cannot be written"):
        app.export_space("s.yaml", "onnx", out=Path("file"))
