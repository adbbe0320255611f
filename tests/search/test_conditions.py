"""What tells workloads apart in a study's conditions."""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

from search_fakes import make_space

from autotune.core.records import Load, WorkloadSpec
from autotune.devices import find_device
from autotune.search.conditions import differences, fingerprint_of, model_digests
from autotune.space.search_space import Parameter


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


def conditions(**parts: object) -> dict[str, str]:
    space = make_space()
    load = parts.pop("load", None)
    if load is not None:
        space = replace(space, objective=replace(space.objective, load=load))
    return fingerprint_of(replace(space, **parts), find_device("simulated"))  # type: ignore[arg-type]


def test_a_model_brings_the_version_of_every_runtime_it_may_have() -> None:
    one = conditions(workload=WorkloadSpec(kind="torch", model="mlp"))
    assert one["version of torch"] == version("torch")
    assert "version of openvino" not in one
    runtimes = Parameter(name="runtime", choices=("torch", "openvino"))
    several = conditions(workload=WorkloadSpec(kind="torch", model="mlp"), params=(runtimes,))
    assert {"version of torch", "version of openvino"} <= several.keys()


def test_another_version_is_another_condition_but_an_unknown_one_is_not() -> None:
    now = {"version of torch": "2.13.0", "workload": "torch mlp"}
    assert differences({**now, "version of torch": "2.12.0"}, now) == [
        "version of torch was 2.12.0, now 2.13.0"
    ]
    assert differences({"workload": "torch mlp"}, now) == []
    assert differences(now, {"workload": "torch mlp"}) == []


def test_loads_are_told_apart_by_their_clients_and_by_what_a_trace_holds(tmp_path: Path) -> None:
    assert conditions(load=Load(clients=4))["load"] != conditions(load=Load(clients=8))["load"]
    assert conditions(load=Load())["load"] == "closed"
    trace = tmp_path / "arrivals.txt"
    load = Load(kind="trace", trace=str(trace))
    trace.write_text("0\n1\n")
    before = conditions(load=load)
    trace.write_text("0\n2\n")
    assert [text.split(" was ")[0] for text in differences(before, conditions(load=load))] == [
        "load file"
    ]
