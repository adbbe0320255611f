"""Model factories that misbehave on purpose; each model takes x of shape [batch, 16]."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

LATE_CALL = 12
"""After the first calls that a trial opens with, which are 8 at most."""

_KEPT: list[torch.Tensor] = []


class Hooked(nn.Module):
    """A linear layer that runs `action(call_number, x)` before each call."""

    def __init__(self, action: Callable[[int, torch.Tensor], Any]) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 16)
        self.action = action
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.action(self.calls, x)
        return self.linear(x)


def plain() -> nn.Module:
    return nn.Linear(16, 16)


def runs_out_from_4() -> nn.Module:
    def act(_: int, x: torch.Tensor) -> None:
        if x.shape[0] >= 4:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    return Hooked(act)


def runs_out_late() -> nn.Module:
    def act(call: int, _: torch.Tensor) -> None:
        if call == 30:
            raise torch.OutOfMemoryError("CUDA out of memory.")

    return Hooked(act)


def allocator_fails() -> nn.Module:
    return Hooked(lambda *_: torch.empty(1 << 42))


def launch_limit() -> nn.Module:
    def act(*_: object) -> None:
        raise RuntimeError("CUDA error: invalid configuration argument")

    return Hooked(act)


def refuses() -> nn.Module:
    def act(*_: object) -> None:
        raise ConnectionError("503")

    return Hooked(act)


def tells_its_command_line() -> nn.Module:
    def act(*_: object) -> None:
        raise RuntimeError(Path("/proc/self/cmdline").read_bytes().decode())

    return Hooked(act)


def leaves() -> nn.Module:
    return Hooked(lambda *_: sys.exit(3))


def segfaults() -> nn.Module:
    return Hooked(lambda *_: os.kill(os.getpid(), signal.SIGSEGV))


def killed_late() -> nn.Module:
    return Hooked(lambda call, _: os.kill(os.getpid(), signal.SIGKILL) if call == 20 else None)


def hangs() -> nn.Module:
    def act(call: int, _: torch.Tensor) -> None:
        if call == LATE_CALL:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            while True:
                time.sleep(60)

    return Hooked(act)


def starts_others_and_hangs() -> nn.Module:
    """Leaves a process in a session of its own, then hangs; its pid goes to PIDS_FILE."""

    def act(call: int, _: torch.Tensor) -> None:
        if call == 1:
            code = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
            other = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
            with open(os.environ["PIDS_FILE"], "a") as file:  # noqa: PTH123
                file.write(f"{other.pid}\n")
        if call == LATE_CALL:
            time.sleep(600)

    return Hooked(act)


def prints_a_flood() -> nn.Module:
    return Hooked(lambda *_: print("throughput=999999 " * 200, flush=True))


def prints_a_page() -> nn.Module:
    def act(*_: object) -> None:
        time.sleep(0.002)
        print("x" * 1000, flush=True)

    return Hooked(act)


def raises_oddly() -> nn.Module:
    def act(*_: object) -> None:
        raise RuntimeError("\x1b[2Jodd \ud800")

    return Hooked(act)


def kills_its_parent() -> nn.Module:
    def act(call: int, _: torch.Tensor) -> None:
        if call == 3:
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(60)

    return Hooked(act)


def writes_bytes() -> nn.Module:
    def act(*_: object) -> None:
        os.write(1, "吞吐量: 好\n".encode("gbk"))
        raise ValueError("after the bytes")

    return Hooked(act)


def leaks_100_mb() -> nn.Module:
    _KEPT.append(torch.ones(25_000_000))
    return nn.Linear(16, 16)


def fails_holding_200_mb() -> nn.Module:
    def act(*_: object) -> None:
        big = torch.ones(50_000_000)
        raise torch.OutOfMemoryError(f"CUDA out of memory beside {big.numel()} numbers.")

    return Hooked(act)


def peak_follows_batch() -> nn.Module:
    return Hooked(lambda _, x: torch.ones(x.shape[0] * 2_000_000))


def grabs_threads() -> nn.Module:
    torch.set_num_threads(64)
    return nn.Linear(16, 16)


def sleeps_2_ms() -> nn.Module:
    return Hooked(lambda *_: time.sleep(0.002))


def two_speeds() -> nn.Module:
    return Hooked(lambda call, _: time.sleep(0.02 if (call // 25) % 2 else 0.001))


def counts_calls() -> nn.Module:
    """Appends the batch size of every call to CALLS_FILE."""

    def act(_: int, x: torch.Tensor) -> None:
        with open(os.environ["CALLS_FILE"], "a") as file:  # noqa: PTH123
            file.write(f"{x.shape[0]}\n")

    return Hooked(act)


def multiplies_its_input() -> nn.Module:
    def act(_: int, x: torch.Tensor) -> None:
        x.mul_(10)
        if not torch.isfinite(x).all():
            raise FloatingPointError("the input grew without bound")

    return Hooked(act)


def sleeps_2_ms_per_item() -> nn.Module:
    return Hooked(lambda call, x: time.sleep(0.002 * x.shape[0]))


class Cheating(nn.Module):
    """A small network whose output `cheat(x, answer)` may replace."""

    def __init__(self, cheat: Callable[[torch.Tensor, torch.Tensor], Any]) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 4))
        self.cheat = cheat

    def forward(self, x: torch.Tensor) -> Any:
        return self.cheat(x, self.layers(x))


def honest() -> nn.Module:
    return Cheating(lambda _, answer: answer)


def drops_half_from_8() -> nn.Module:
    return Cheating(lambda x, answer: answer[: x.shape[0] // 2] if x.shape[0] >= 8 else answer)


def blanks_half_from_8() -> nn.Module:
    def cheat(x: torch.Tensor, answer: torch.Tensor) -> torch.Tensor:
        if x.shape[0] >= 8:
            answer[x.shape[0] // 2 :] = 0
        return answer

    return Cheating(cheat)


def remembers_by_size() -> nn.Module:
    kept: dict[int, torch.Tensor] = {}
    return Cheating(
        lambda x, answer: kept.setdefault(x.shape[0], answer) if x.shape[0] >= 8 else answer
    )


def remembers_by_address() -> nn.Module:
    kept: dict[int, torch.Tensor] = {}
    return Cheating(
        lambda x, answer: kept.setdefault(x.data_ptr(), answer) if x.shape[0] >= 8 else answer
    )


def casts_from_8() -> nn.Module:
    return Cheating(lambda x, answer: answer.bfloat16() if x.shape[0] >= 8 else answer)


def drops_out() -> nn.Module:
    return Cheating(lambda _, answer: nn.functional.dropout(answer, 0.5, training=True))


def not_a_number_from_8() -> nn.Module:
    return Cheating(lambda x, answer: answer * float("nan") if x.shape[0] >= 8 else answer)


def random_weights() -> nn.Module:
    model = honest()
    generator = torch.Generator()
    generator.seed()  # from the system's entropy: another model each time it is built
    for parameter in model.parameters():
        parameter.data.normal_(generator=generator)
    return model


def labels_and_mean() -> nn.Module:
    return Cheating(lambda _, answer: {"label": answer.argmax(1), "mean": answer.mean()})
