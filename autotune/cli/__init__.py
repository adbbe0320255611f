"""The command line: arguments in, exit code out; the only place that prints.

Exit codes: 0 done; 1 nothing feasible, nothing complete, given up, a regression under --gate, or
undecided under --strict;
2 bad file, key or flag; 3 device or package unavailable; 4 storage; 130 interrupted.

A closed standard stream counts as the null device; JSON or CSV that had nowhere to go is refused
as a bad flag, before anything is measured.
"""

from __future__ import annotations

import os

from autotune.cli.application import app
from autotune.cli.process import EXIT_INTERRUPTED, flush_stdout, open_streams, speak_utf8

# Each adds its commands to the application; `--help` lists them in this order.
from autotune.cli import studying, comparing, deploying, watching  # isort: skip

__all__ = ["app", "comparing", "deploying", "main", "studying", "watching"]


def main() -> None:
    """The command line, from `sys.argv` to the process's exit code."""
    open_streams()
    speak_utf8()
    # Accelerator backends must not load by themselves: this process never touches a device.
    os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    try:
        app(prog_name="autotune")
    except SystemExit as end:
        if end.code == EXIT_INTERRUPTED:
            # If the signal struck within an exec(), as dataclasses use it, the interpreter would
            # end itself by that signal, whatever was made of the exception.
            flush_stdout()
            os._exit(EXIT_INTERRUPTED)
        raise
