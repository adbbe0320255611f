"""What tells workloads apart in a study's conditions."""

from __future__ import annotations

from dataclasses import replace

from search_fakes import make_space

from autotune.core.records import WorkloadSpec
from autotune.devices import find_device
from autotune.search.conditions import fingerprint_of


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
