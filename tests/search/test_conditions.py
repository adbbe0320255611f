"""What tells workloads apart in a study's conditions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from search_fakes import make_space

from autotune.core.records import WorkloadSpec
from autotune.devices import find_device
from autotune.search.conditions import fingerprint_of, model_digests


def workload_of(*words: str, shell: bool = False) -> str:
    spec = WorkloadSpec(kind="command", options={"command": list(words), "shell": shell})
    space = replace(make_space(), workload=spec)
    return fingerprint_of(space, find_device("simulated"))["workload"]


def test_commands_are_told_apart_by_their_words() -> None:
    assert workload_of("./bench", "--mode", "a") != workload_of("./bench", "--mode", "b")
    assert workload_of("a/x | b/tail", shell=True) != workload_of("c/y | b/tail", shell=True)


def test_a_checkout_elsewhere_holds_the_same_program() -> None:
    assert workload_of("/one/bench.py", "--batch={batch_size}") == workload_of(
        "/two/bench.py", "--batch={batch_size}"
    )


def test_weights_in_a_file_of_their_own_are_part_of_a_model(tmp_path: Path) -> None:
    layer = '<layer id="0" name="c" type="Const" version="opset1"><data/></layer>'
    model = tmp_path / "m.xml"
    model.write_text(f'<net name="n" version="11"><layers>{layer}</layers></net>')
    (tmp_path / "m.bin").write_bytes(b"one")
    before = model_digests(str(model))
    assert set(before) == {"model file", "model file m.bin"}
    (tmp_path / "m.bin").write_bytes(b"two")
    after = model_digests(str(model))
    assert [name for name in after if after[name] != before[name]] == ["model file m.bin"]
