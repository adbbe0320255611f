from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from autotune.core.records import Config
from autotune.devices.cpu import PINNED_ENVIRONMENT, CpuDevice, CpuKind, effective_environment


def test_the_pinned_settings_hold_unless_the_user_has_his_own() -> None:
    plain = effective_environment(Config(), {})
    assert effective_environment(Config(), {"TORCH_DEVICE_BACKEND_AUTOLOAD": "1"}) == plain
    assert plain == PINNED_ENVIRONMENT
    config = Config(extra=(("env.MALLOC_TOP_PAD_", "5"), ("env.TASK_QUEUE_ENABLE", "2")))
    mixed = effective_environment(config, {"MALLOC_TRIM_THRESHOLD_": "7", "HOME": "/x"})
    assert mixed["MALLOC_TRIM_THRESHOLD_"] == "7"
    assert mixed["MALLOC_TOP_PAD_"] == "5"
    assert mixed["TASK_QUEUE_ENABLE"] == "2"
    assert "HOME" not in mixed


@pytest.mark.parametrize("where", ["shell", "config"])
@pytest.mark.parametrize("name", ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT"])
def test_the_users_wait_policy_is_alone(where: str, name: str) -> None:
    """Both variables set the same thing; the pinned one must not stand beside the user's."""
    shell = {name: "x"} if where == "shell" else {}
    config = Config(extra=((f"env.{name}", "x"),)) if where == "config" else Config()
    found = effective_environment(config, shell)
    assert {k for k in found if k in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")} == {name}
    assert found[name] == "x"


def test_the_ladder_ends_with_all_cores() -> None:
    info = CpuKind().discover().devices[0]
    assert info.core_ladder[-1] == info.core_count
    assert info.facts["core_count"] == info.core_count


@pytest.mark.parametrize(
    "text",
    [
        "[enforce fail at alloc_cpu.cpp:127] data. DefaultCPUAllocator: can't allocate memory: you "
        "tried to allocate 17592186044416 bytes. Error code 12 (Cannot allocate memory)",
        "CUDA out of memory. Tried to allocate 2.00 GiB",
        "NPU out of memory. Tried to allocate 8.00 GiB (NPU 0; 64.00 GiB total capacity)",
        "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : bad allocation",
        "BFCArena::AllocateRawInternal Failed to allocate memory for requested buffer of size 9",
        "[ONNXRuntimeError] : 1 : FAIL : std::bad_alloc",
    ],
)
def test_failed_allocations_are_known_by_their_texts(text: str) -> None:
    assert CpuDevice().is_out_of_memory(RuntimeError(text))


def test_failed_allocations_are_known_by_their_types() -> None:
    device = CpuDevice()
    assert device.is_out_of_memory(MemoryError())
    assert device.is_out_of_memory(torch.OutOfMemoryError("anything"))
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 42)
    assert device.is_out_of_memory(caught.value)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA error: invalid configuration argument"),
        RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
        ConnectionError("503"),
        KeyboardInterrupt("out of memory"),
    ],
)
def test_other_errors_are_not_out_of_memory(error: BaseException) -> None:
    assert not CpuDevice().is_out_of_memory(error)


def test_an_error_whose_text_cannot_be_had_is_none_of_memory() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError("no text")

    assert not CpuDevice().is_out_of_memory(Mute())


def test_a_model_may_set_what_can_be_set_once(in_child: Callable[..., Any]) -> None:
    answer = in_child("""
        import os
        import torch
        from autotune.devices import open_device
        core = min(os.sched_getaffinity(0))
        device = open_device("cpu", "cpu")
        device.bind((core,))
        torch.set_num_interop_threads(3)  # as a factory of a user's own may
        device.bind((core,))
        answer = torch.get_num_interop_threads()
    """)
    assert answer == 3


def test_binding_holds_for_every_thread_and_survives_foreign_code(
    in_child: Callable[..., Any],
) -> None:
    answer = in_child("""
        import os, threading
        import torch
        from autotune.devices import open_device
        core = min(os.sched_getaffinity(0))
        stop = threading.Event()
        other = threading.Thread(target=stop.wait); other.start()
        device = open_device("cpu", "cpu")
        device.bind((core,))
        before = device.thread_count()
        torch.set_num_threads(64)
        torch.ones(1000, 1000) @ torch.ones(1000, 1000)  # starts the threads
        grabbed = device.thread_count()
        device.bind((core,))
        masks = [sorted(os.sched_getaffinity(int(t))) for t in os.listdir("/proc/self/task")]
        interop = torch.get_num_interop_threads()
        answer = [core, before, grabbed, device.thread_count(), masks, interop]
        stop.set()
    """)
    core, before, grabbed, after, masks, interop = answer
    assert (before, grabbed, after, interop) == (1, 64, 1, 1)
    assert len(masks) > 10, "the foreign code's threads should be among them"
    assert all(mask == [core] for mask in masks)


def test_an_instance_that_is_a_thread_binds_only_itself(in_child: Callable[..., Any]) -> None:
    answer = in_child("""
        import os, threading
        from autotune.devices import open_device
        whole = sorted(os.sched_getaffinity(0))
        seen = []
        def instance():
            open_device("cpu", "cpu").bind((whole[-1],))
            seen.append(sorted(os.sched_getaffinity(0)))
        thread = threading.Thread(target=instance); thread.start(); thread.join()
        answer = [whole, seen[0], sorted(os.sched_getaffinity(0))]
    """)
    whole, thread, process = answer
    assert thread == whole[-1:]
    assert process == whole


def test_cores_that_are_not_there_fail_the_trial(in_child: Callable[..., Any]) -> None:
    answer = in_child("""
        from autotune.core.errors import TrialCrashed
        from autotune.devices import open_device
        try:
            open_device("cpu", "cpu").bind((100_000,))
            answer = "bound"
        except TrialCrashed as error:
            answer = str(error)
    """)
    assert "100000" in answer


def test_the_memory_peak_is_private_and_starts_again(in_child: Callable[..., Any]) -> None:
    answer = in_child("""
        import json, os
        from autotune.devices import open_device
        MiB = 2**20
        shared = bytearray(os.urandom(MiB)) * 200  # before the fork: the parent's, not the child's
        read, write = os.pipe()
        if os.fork() == 0:
            device = open_device("cpu", "cpu")
            device.reset_memory_peak()
            start = device.memory_peak_bytes()
            block = bytearray(os.urandom(MiB)) * 300
            del block
            peak = device.memory_peak_bytes()
            device.reset_memory_peak()
            again = device.memory_peak_bytes()
            for place in range(0, 100 * MiB, 4096):
                shared[place] = 1  # copied on write: now the child's own
            copied = device.memory_peak_bytes()
            figures = [size / MiB for size in (start, peak, again, copied)]
            os.write(write, json.dumps(figures).encode())
            os._exit(0)
        os.wait()
        answer = json.loads(os.read(read, 1000))
    """)
    start, peak, again, copied = answer
    assert start < 50
    assert 300 <= peak - start < 330
    assert again < 50
    assert 100 <= copied - again < 130
