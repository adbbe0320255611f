"""What the tests on the stub run."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from autotune.core.records import Config, GroupSpec, InputSpec, Plan, Window, WorkloadSpec
from autotune.devices import device_kind, find_device, open_device
from autotune.devices.base import Seat

NO_TRAITS: Mapping[str, str] = MappingProxyType({})

ANSWER = "answer: "  # before what a fork prints in the end
FORK_LIMIT_S = 120

SHORT = Plan(windows=(Window(iterations=80),), deadline_s=30)


def group(model: str = "mlp", **values: Any) -> GroupSpec:
    """A configuration of a small model on the NPU, `env_NAME` setting a variable."""
    named = {k.replace("env_", "env.") if k.startswith("env_") else k: values[k] for k in values}
    config = Config.from_dict({"batch_size": 8, **named})
    info, kind = find_device("npu:0"), device_kind("npu")
    return GroupSpec(
        config=config,
        workload=WorkloadSpec(kind="torch", model=model, options={"size": "small"}),
        devices=(info.name,),
        cores=kind.assign_cores(config, info),
        environment={**kind.environment(config, info), **config.environment()},
        preload=info.preload,
        traits=info.traits,
    )


# --- an instance's side of the device, in a process on the stub ---------------------------------

INPUTS = (
    *(InputSpec(name=f"x{i}", shape=("batch", 3)) for i in range(5)),
    *(InputSpec(name=f"i{i}", shape=("batch",), dtype="int64") for i in range(4)),
)


def opened(*, shares: bool = False, traits: Mapping[str, str] = NO_TRAITS, **values: Any) -> Any:
    seat = Seat(config=Config.from_dict(values), shares_process=shares, traits=traits)
    return open_device("npu", "npu:0", seat)


def counts() -> dict[str, int]:
    """Calls that the stub has seen in this process."""
    stub = ctypes.CDLL("libascendcl.so")
    stub.stub_count.restype = ctypes.c_long
    names = ("copies_to_device", "batch_calls", "batch_entries")
    return {name: stub.stub_count(name.encode()) for name in names}


def staged(traits: Mapping[str, str] = NO_TRAITS, **values: Any) -> Any:
    """Staging of two requests of 8 items, input k of request n filled with 10 n + k."""
    requests = [
        [np.full(spec.sizes(8), 10 * n + k, dtype=spec.dtype) for k, spec in enumerate(INPUTS)]
        for n in range(2)
    ]
    config = Config.from_dict({"batch_size": 8, **values})
    return opened(traits=traits).stage(INPUTS, requests, config)


def copied(traits: Mapping[str, str] = NO_TRAITS, **values: Any) -> dict[str, Any]:
    """One call: what arrived, and what the stub saw against what the staging states."""
    staging = staged(traits, **values)
    arrived: list[list[float]] = []

    def model(*tensors: Any) -> None:
        arrived.append([float(tensor.flatten()[0].cpu()) for tensor in tensors])

    before = counts()
    staging.run_call(1, [(n, None) for n in range(values.get("micro_batch_count", 1))], model)
    seen = {name: count - before[name] for name, count in counts().items()}
    return {
        "method": staging.method, "stated": staging.copies_per_call, "arrived": arrived, **seen,
    }  # fmt: skip


def seconds_of_call(micro_batch_count: int, compute_s: float) -> tuple[float, ...]:
    """A call whose model takes a given time per micro-batch: its length, and its stages."""
    import torch

    def model(*tensors: Any) -> Any:
        torch.npu.current_stream().synchronize()
        time.sleep(compute_s)
        return tensors[0]

    staging = staged(micro_batch_count=micro_batch_count)
    parts = [(n, None) for n in range(micro_batch_count)]
    staging.run_call(0, parts, model)
    began_s = time.monotonic()
    stages = staging.run_call(0, parts, model)
    return (time.monotonic() - began_s, *stages)


# --- a process that forks -----------------------------------------------------------------------


def serve_forks() -> None:
    """Per line of the input, a JSON object: run `code` in a fork with `environment`.

    The fork prints what the code leaves in `answer`.
    """
    import torch
    import torch_npu

    names = {**globals(), "torch": torch, "torch_npu": torch_npu}
    for line in sys.stdin:
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            signal.alarm(FORK_LIMIT_S)
            os.environ.update(request["environment"])
            _answer(request["code"], dict(names))
        if os.waitpid(pid, 0)[1]:
            print(f"\n{ANSWER}{json.dumps({'error': 'the fork was killed'})}", flush=True)


def _answer(code: str, names: dict[str, Any]) -> None:
    try:
        exec(code, names)
        reply = {"answer": names["answer"]}
    except BaseException:
        reply = {"error": traceback.format_exc()}
    print(f"\n{ANSWER}{json.dumps(reply)}", flush=True)
    os._exit(0)
