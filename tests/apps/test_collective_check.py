"""Ranks that are tried out together, and what is said of those that do not come."""

from __future__ import annotations

from autotune.apps.collective_check import check_ranks, judged
from autotune.devices.probe import Probed


def answer(**changed) -> Probed:
    figures = {"reduce_s": 1e-4, "pass_s": 1e-4, "reduce_bytes_per_s": 1e9, "pass_bytes_per_s": 1e9}
    return Probed(answer={"sum": 2.0, "torch": "2.9", **figures, **changed})


def test_two_ranks_on_the_cpu_find_each_other():
    found = check_ranks("cpu", 2)
    assert {check.status for check in found} == {"ok"}
    assert "2 together through gloo" in found[0].detail
    assert [check.name for check in found[1:]] == ["all-reduce", "to the next rank"]


def test_what_is_wrong_is_said_with_what_to_do():
    (lost,) = judged([answer(), Probed(failure="connect timed out")], "hccl")
    assert lost.name == "rank 1" and "is a port blocked" in lost.advice
    (nodes,) = judged([Probed(failure="RuntimeError: HCCL error 7"), answer()], "hccl")
    assert "davinci_manager" in nodes.advice
    (unknown,) = judged([Probed(failure="AssertionError: Unknown backend type hccl")], "hccl")
    assert "torch_npu" in unknown.advice
    (wrong,) = judged([answer(), answer(sum=3.0)], "gloo")
    assert wrong.status == "failed" and "added up to 3 on rank 1" in wrong.detail
    assert any(c.name == "versions" for c in judged([answer(), answer(torch="2.8")], "gloo"))
