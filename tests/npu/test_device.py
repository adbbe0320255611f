"""An instance's side of the NPU, on the stub."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from npu_groups import copied, opened, staged

NATIVE = {"batch_copy": "native"}
WITHOUT = {"batch_copy": "no such call"}
ARRIVED = [float(10 + k) for k in range(9)]


def test_a_process_is_limited_by_the_device_and_a_thread_by_its_stream(
    on_stub: Callable[..., Any],
) -> None:
    answer = on_stub(  # a process can set its device's limit once
        """
        import threading
        one = opened(cores_per_instance="16|24")
        answer = {"device": torch.npu.get_device_limit(0), "facts": [dict(one.facts())]}
        def thread(split):
            device = opened(shares=True, cores_per_instance=split)
            answer["facts"].append(dict(device.facts()))
            answer[split] = torch.npu.get_stream_limit(torch.npu.current_stream())
        for split in ("8|8", "24|48"):
            one = threading.Thread(target=thread, args=(split,)); one.start(); one.join()
        """
    )
    assert answer["device"] == {"cube_core_num": 16, "vector_core_num": 24}
    assert answer["8|8"] == {"cube_core_num": 8, "vector_core_num": 8}
    assert answer["24|48"] == {"cube_core_num": 24, "vector_core_num": 48}
    assert [facts["core split"] for facts in answer["facts"]] == [
        "16|24 by device limit, asked for 16|24",
        "8|8 by stream limit, asked for 8|8",
        "24|48 by stream limit, asked for 24|48",
    ]


def test_the_number_of_copies_is_what_the_runtime_sees() -> None:
    separate = copied(batched_h2d=False)
    assert separate["stated"] == separate["copies_to_device"] == 9
    native = copied(NATIVE, batched_h2d=True)
    assert native["stated"] == native["copies_to_device"] == 2, "one per type"
    assert native["batch_calls"] == 2 and native["batch_entries"] == 9
    assert native["method"] == "foreach (native batch copy)"
    halves = copied(NATIVE, batched_h2d=True, micro_batch_count=2)
    assert halves["stated"] == halves["copies_to_device"] == 4
    without = copied(WITHOUT, batched_h2d=True)
    assert without["stated"] == without["copies_to_device"] == 1 and without["batch_calls"] == 0
    assert without["method"] == "packed (no native batch copy: no such call)"
    packed = copied(NATIVE, batched_h2d=True, batched_h2d_method="packed")
    assert packed["stated"] == packed["copies_to_device"] == 1
    assert separate["arrived"] == native["arrived"] == without["arrived"] == [ARRIVED]
    assert packed["arrived"] == [ARRIVED] and halves["arrived"] == [ARRIVED, ARRIVED]


def test_a_chip_without_batch_copies_copies_one_by_one_and_says_so(
    on_stub: Callable[..., Any],
) -> None:
    answer = on_stub(
        """
        answer = copied(
            {"batch_copy": "no such call"}, batched_h2d=True, batched_h2d_method="foreach"
        )
        """,
        STUB_CANN_SOC="Ascend310P3",
    )
    assert answer["arrived"] == [ARRIVED]
    assert answer["copies_to_device"] == answer["stated"] == 9 and answer["batch_calls"] == 0
    assert answer["method"] == "foreach (no native batch copy: no such call)"


def test_the_next_copy_runs_under_the_present_compute(on_stub: Callable[..., Any]) -> None:
    answer = on_stub(
        "answer = [seconds_of_call(1, 0.03), seconds_of_call(4, 0.03)]",
        STUB_CANN_COPY_LATENCY_US="20000",
    )
    (whole_s, *one), (four_s, h2d_s, compute_s, d2h_s) = answer
    assert whole_s >= sum(one[:2]), "nothing to overlap with"
    # At least nine copies of nine separate inputs, four results.
    assert h2d_s >= 4 * 9 * 0.02 and compute_s >= 4 * 0.03 and d2h_s >= 4 * 0.02
    # Three of the four uploads can lie under compute: the call is shorter than its parts.
    assert four_s < h2d_s + compute_s + d2h_s - 2 * 0.03


def test_results_come_back_to_the_host_in_any_nesting() -> None:
    staging = staged(micro_batch_count=2)
    nested = lambda *t: {"a": (t[0], [t[5].t()]), "b": "text"}  # noqa: E731
    staging.run_call(1, [(0, None), (1, 3)], nested)
    arrived = sorted((list(b.shape), float(b.flatten()[0])) for b in staging._results.values())
    assert arrived == [([3], 15.0), ([3, 3], 10.0), ([4], 15.0), ([4, 3], 10.0)]


def test_memory_peaks_are_those_since_the_reset() -> None:
    import torch

    device = opened()
    big = torch.empty(64 * 2**20, dtype=torch.uint8, device="npu:0")
    assert device.memory_peak_bytes() >= 64 * 2**20
    del big
    torch.npu.empty_cache()
    device.reset_memory_peak()
    small = torch.empty(2**20, dtype=torch.uint8, device="npu:0")
    assert small.numel() <= device.memory_peak_bytes() < 32 * 2**20


def test_errors_are_told_apart_by_their_code_and_not_by_stale_words() -> None:
    import torch

    device = opened()
    try:
        torch.empty(2**40, dtype=torch.uint8, device="npu:0")
    except RuntimeError as error:
        assert device.is_out_of_memory(error)
    stale = "aclrtSynchronizeStream, error code is 107001\nEL0004 Failed to allocate memory"
    assert not device.is_out_of_memory(torch.OutOfMemoryError(f"NPU function error: {stale}"))
    plain = RuntimeError("NPU function error: aclrtMalloc, error code is 207001\nEL0004 gone")
    assert device.is_out_of_memory(plain) and device.is_out_of_memory(MemoryError())
    assert device.explain(plain) == "aclrtMalloc failed with error 207001: EL0004 gone"
    told = RuntimeError(
        "NPU function error: aclrtMemcpy, error code is 507015\nERR00100 PTA call acl api failed\n"
        "[Error]: The aicore execution is abnormal. \n        Rectify the fault.\nEZ9999: core 3"
    )
    assert device.explain(told).endswith("507015: The aicore execution is abnormal; EZ9999: core 3")
    late = RuntimeError("the current copy params are srclen=32.\nERR00100 PTA call\nEE1 link gone")
    assert device.explain(late) == "copy failed, which was found later: EE1 link gone"
    other = ValueError("shape mismatch")
    assert not device.is_out_of_memory(other) and device.explain(other) == ""


HOLDER = """
import torch, torch_npu, time
kept = torch.empty(2**30, dtype=torch.uint8, device="npu:0")
print("held", flush=True)
time.sleep(60)
"""


def test_memory_that_is_still_held_is_waited_for_and_then_reported() -> None:
    other = subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE)
    assert other.stdout is not None
    while b"held" not in other.stdout.readline():
        assert other.poll() is None
    device = opened(traits={"memory_free_bytes": str(2 * 2**30)})
    note = device.wait_for_memory(0.2)
    assert "less memory was free on npu:0" in note and "GiB" in note
    ender = threading.Timer(0.3, lambda: (other.kill(), other.wait()))
    ender.start()
    began_s = time.monotonic()
    assert device.wait_for_memory(60.0) == ""
    assert time.monotonic() - began_s > 0.2
    ender.join()
