"""The process: its streams and signals, and what every end of a command becomes."""

from __future__ import annotations

import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from autotune.cli.output import json_said, print_interrupted
from autotune.core.text import keepable

EXIT_OK, EXIT_NOTHING, EXIT_INTERRUPTED = 0, 1, 130


def guarded(body: Callable[[], int], closed_pipe: int, *, as_json: bool) -> int:
    """Run a command; turn every expected end into its exit code, with one line for a person."""
    from autotune.core.errors import AutotuneError, StorageError

    debug = os.environ.get("AUTOTUNE_DEBUG") == "1"
    logging.getLogger("autotune").addHandler(_Warnings(logging.WARNING))
    if debug:
        logging.basicConfig(level=logging.DEBUG, handlers=[_Everything()])
    try:
        try:
            _on_signals(_interrupt)
            code = body()
            sys.stdout.flush()
        finally:
            _on_signals(signal.SIG_IGN)  # how this ends is settled; a late signal changes nothing
    except AutotuneError as error:
        if debug:
            print(keepable(traceback.format_exc()), file=sys.stderr)
        print(keepable(f"autotune: {error}"), file=sys.stderr)
        if log_tail := getattr(error, "log_tail", ""):
            print(keepable(log_tail.rstrip()), file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("autotune: interrupted", file=sys.stderr)
        if as_json and not json_said:
            print_interrupted()
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        flush_stdout()
        return closed_pipe
    except OSError as error:  # such as a full disk behind the output
        if debug:
            print(keepable(traceback.format_exc()), file=sys.stderr)
        where = f"{error.filename}: " if error.filename else ""
        print(f"autotune: {where}{error.strerror or error}", file=sys.stderr)
        flush_stdout()
        return StorageError.exit_code
    return code


class _Warnings(logging.Handler):
    """Prints the libraries' warnings; `sys.stderr` is looked up anew, a live view replaces it."""

    def emit(self, record: logging.LogRecord) -> None:
        print(keepable(f"autotune: {record.getMessage()}"), file=sys.stderr, flush=True)


class _Everything(logging.StreamHandler[Any]):
    """Prints what libraries log for whoever looks for a fault, secrets apart."""

    def format(self, record: logging.LogRecord) -> str:
        return keepable(super().format(record))


def _interrupt(number: int, _frame: object) -> None:
    """End in good order at the first signal; a second one kills at once.

    A terminal that is closed says so twice: itself, and by its shell.
    """
    _on_signals(signal.SIG_DFL)
    if number == signal.SIGHUP:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        _leave_closed_terminal()
    raise KeyboardInterrupt


def _on_signals(action: Callable[[int, Any], None] | signal.Handlers) -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        # `nohup` ignores a hangup for whatever it starts.
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, action)


def _leave_closed_terminal() -> None:
    """Put the null device where a terminal was that takes nothing any more."""
    for fd in (1, 2):
        try:
            os.write(fd, b"")
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), fd)


def open_streams() -> None:
    """Put the null device where a standard stream is closed, before a file takes its number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = Path(os.devnull).open(mode, encoding="utf-8")  # noqa: SIM115 - for good
            os.set_inheritable(stream.fileno(), True)
            setattr(sys, name, stream)


def check_stdout(options: dict[str, Any]) -> None:
    """Refuse output that was asked for but would be lost.

    Raises:
        UsageError: Standard output is closed.
    """
    from autotune.core.errors import UsageError

    flag = next((f for f in ("json", "csv") if options.get(f"as_{f}")), None)
    if flag and sys.stdout.name == os.devnull:
        raise UsageError(f"--{flag} writes to the standard output, which is closed")


def flush_stdout() -> None:
    """Flush what can be; the interpreter must not try it again where that fails."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def speak_utf8() -> None:
    """Study names may be in any script, whatever the locale; start over if it forbids that."""
    if sys.getfilesystemencoding().lower() != "utf-8" and not sys.flags.utf8_mode:
        environment = {**os.environ, "PYTHONUTF8": "1"}
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
