"""Looking at a device from a short-lived child.

A vendor's package may end the interpreter, hang, or take the device when it is imported, so it is
never imported into the tool's own process. The child imports it, asks, prints and ends.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from autotune.core.lifetime import die_with_parent
from autotune.devices.outside import ask

PROBE_LIMIT_S = 60.0
REASON_LIMIT = 300  # characters of a vendor's message that are shown
_MARK = "autotune-probe:"  # before the answer, as vendors' packages print


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """What a probe answered, or why it did not."""

    answer: Any = field(default_factory=dict)
    failure: str = ""


@functools.cache
def probe(target: str, *arguments: str, limit_s: float = PROBE_LIMIT_S) -> Probed:
    """Call a function in a child of its own, once per process.

    Args:
        target: "module:function"; it takes the arguments and returns plain data.
    """
    try:
        done = ask(
            [sys.executable, "-m", "autotune.devices.probe", str(os.getpid()), target, *arguments],
            limit_s=limit_s,
            environment=_environment(os.environ),
        )
    except subprocess.TimeoutExpired:
        return Probed(failure=f"it did not answer within {limit_s:g} s")
    printed = done.stdout.decode("utf-8", "replace").splitlines()
    answers = [line for line in printed if _MARK in line]
    if done.returncode == 0 and answers:
        return Probed(answer=json.loads(answers[-1].partition(_MARK)[2]))
    if done.returncode < 0:
        return Probed(failure=f"the probe ended by {signal.Signals(-done.returncode).name}")
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
    return Probed(failure=_last_words(lines) or f"exit status {done.returncode}")


def _last_words(lines: list[str]) -> str:
    """The line that names the error: vendors append paragraphs of advice to it."""
    raised = [line for line in lines if line[:1].strip() and "Error: " in line]
    return (raised[-1] if raised else lines[-1] if lines else "")[:REASON_LIMIT]


def _environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The child finds the same packages, and torch does not load the vendor's plug-in by itself."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return {**environment, "PYTHONPATH": path, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}


def main() -> None:
    """Entry of the child: argv is its parent, the target and that one's arguments."""
    die_with_parent(int(sys.argv[1]))
    module, _, name = sys.argv[2].partition(":")
    answer = getattr(importlib.import_module(module), name)(*sys.argv[3:])
    sys.stdout.write(f"\n{_MARK}{json.dumps(answer)}\n")
    sys.stdout.flush()
    os._exit(0)  # a device's own clean-up may hang


if __name__ == "__main__":
    main()
