from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from autotune.core.errors import UsageError
from autotune.workloads.base import Program
from autotune.workloads.data import make_requests

Build = Callable[..., Program]
Write = Callable[..., Path]

INPUTS = [
    {"name": "a", "shape": ["batch", 3]},
    {"name": "b", "shape": [2, "batch"]},
    {"name": "c", "shape": [], "low": 0.25, "high": 0.26},
]
CODE = """
from typing import Dict, List, NamedTuple, Tuple
class M(nn.Module):
    def forward(self, {signature}):
        {unpack}
        return a.sum(1) + 10 * b.sum(0) + c
def make(): return M(), {inputs}
"""


def output(program: Program) -> torch.Tensor:
    (request,) = make_requests(program.inputs, 4, 1, 0)
    assert program.run is not None
    found = program.run(*map(torch.as_tensor, request))
    a, b, c = map(torch.as_tensor, request)
    assert torch.allclose(found, a.sum(1) + 10 * b.sum(0) + c)
    assert found.shape == (4,)
    return found


@pytest.mark.parametrize(
    ("signature", "unpack"),
    [
        ("a, b, c", ""),
        ("first, second, third", "a, b, c = first, second, third"),
        ("*all", "a, b, c = all"),
        ("c, b, a", ""),
        ("a, extra=None, b=None, c=None", "assert extra is None"),
        ("*, a, b, c", ""),
        ("batch: dict", "a, b, c = batch['a'], batch['b'], batch['c']"),
        ("batch: 'Dict[str, torch.Tensor]'", "a, b, c = (batch[k] for k in 'abc')"),
        ("batch: Tuple[torch.Tensor, ...]", "a, b, c = batch"),
        ("batch: List[torch.Tensor]", "a, b, c = batch"),
    ],
)
def test_inputs_are_handed_over_as_the_signature_says(
    build_program: Build, user_file: Write, signature: str, unpack: str
) -> None:
    code = CODE.format(signature=signature, unpack=unpack or "pass", inputs=INPUTS)
    output(build_program(f"{user_file(code)}:make"))


@pytest.mark.parametrize(
    ("call", "unpack"),
    [
        ("dict", "a, b, c = batch['a'], batch['b'], batch['c']"),
        ("tuple", "a, b, c = batch"),
    ],
)
def test_a_signature_that_says_nothing_can_be_helped_out(
    build_program: Build, user_file: Write, call: str, unpack: str
) -> None:
    path = user_file(CODE.format(signature="batch", unpack=unpack, inputs=INPUTS))
    output(build_program(f"{path}:make", call=call))
    with pytest.raises(UsageError, match=r"one argument, batch, .*\(a, b, c\); write call: dict"):
        build_program(f"{path}:make")


@pytest.mark.parametrize(
    ("signature", "message"),
    [
        ("a, b", r"3 inputs are given \(a, b, c\), but the model takes 2 \(a, b\)"),
        ("a, b, c, d", "the model also takes d; given are a, b, c"),
        ("x, y, z, u", "the model also takes u"),
        ("", "takes 0"),
    ],
)
def test_inputs_that_do_not_fit_are_told(
    build_program: Build, user_file: Write, signature: str, message: str
) -> None:
    path = user_file(CODE.format(signature=signature, unpack="pass", inputs=INPUTS))
    with pytest.raises(UsageError, match=rf"workload\.inputs: .*{message}"):
        build_program(f"{path}:make")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("return torch.autograd.grad(x.sum(), x)[0]", "takes gradients inside its call"),
        ("raise RuntimeError('Expected all tensors to be on the same device, but')",
         "register_buffer"),
    ],
)  # fmt: skip
def test_what_inference_forbids_comes_with_advice(
    build_program: Build, user_file: Write, code: str, message: str
) -> None:
    path = user_file(
        f"class M(nn.Linear):\n    def forward(self, x):\n        {code}\n"
        "def make(): return M(3, 3)"
    )
    program = build_program(f"{path}:make")
    assert program.run is not None
    with pytest.raises(UsageError, match=rf"workload\.model: .*{message}"):
        program.run(torch.ones(2, 3))
