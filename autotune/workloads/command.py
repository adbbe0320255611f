"""An outside program that measures: started with a configuration's values, its output read.

It runs in a child of the trial, so that it ends with the trial, whatever it starts itself.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import selectors
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from autotune.core.errors import OutOfMemory, TrialCrashed, TrialError, TrialKilled, UsageError
from autotune.core.lifetime import die_with_parent
from autotune.core.records import Config, GroupSpec, Plan, Reported, Scalar, WorkloadSpec
from autotune.core.text import keepable, without_secrets
from autotune.devices.cpu import OUT_OF_MEMORY
from autotune.space.command import fill, placeholders, words_of
from autotune.workloads.command_output import read_figures
from autotune.workloads.noise import read_noise

DEFAULT_NOISE = 0.03
"""Standard deviation of a figure it reports, relative, unless `workload.noise` says otherwise."""

MAX_OUTPUT_BYTES = 256 * 1024  # of each stream, its end
READ_BYTES = 64 * 1024
TAIL_LINES = 20
POLL_S = 0.05
DRAIN_S = 0.5  # for what is still in the pipes once the program has ended
KILLED_STATUS = 128 + signal.SIGKILL  # what shells and containers say of a program that was killed
_MODEL_FILE = re.compile(r"\.(?:om|onnx|engine|plan|mindir|ms|xml|pt)$")


def check(spec: WorkloadSpec) -> None:
    """Raise UsageError if the program does not exist or an option is wrong."""
    _noise(spec)
    words = _words(spec)
    if spec.options.get("shell") or placeholders(words[:1]):
        return
    program = words[0]
    path = Path(spec.base_dir) / program if "/" in program else program
    if shutil.which(path) is None:
        where = "on PATH" if "/" not in program else "or it cannot be executed"
        raise UsageError(f"workload.{spec.kind}: there is no program '{program}' {where}")


def preload(spec: WorkloadSpec) -> tuple[str, ...]:
    """Nothing: the program brings its own."""
    return ()


def placeholders_of(spec: WorkloadSpec) -> tuple[str, ...]:
    """The names that the command's words, or a server's requests, take values of."""
    return placeholders(words_of(spec))


def file_templates(spec: WorkloadSpec) -> dict[str, tuple[str, ...]]:
    """Words that name a model file for one parameter's value, as in model_bs{batch_size}.om.

    Returns:
        Parameter to the words, each the part behind an option's "=".
    """
    found: dict[str, tuple[str, ...]] = {}
    for word in () if spec.options.get("shell") else _words(spec):
        names, path = placeholders([word]), word.rpartition("=")[2]
        if len(names) == 1 and placeholders([path]) and _MODEL_FILE.search(path):
            found[names[0]] = (*found.get(names[0], ()), path)
    return found


def file_exists(spec: WorkloadSpec, template: str, values: Mapping[str, Scalar]) -> bool:
    """Whether the file that a template names for these values is there."""
    return (Path(spec.base_dir) / fill([template], values)[0]).is_file()


def program_name(spec: WorkloadSpec) -> str:
    """A short name for the program: python bench.py, ./trtexec."""
    words = _words(spec)[0].split() if spec.options.get("shell") else _words(spec)
    has_script = len(words) > 1 and not words[1].startswith("-")
    return " ".join(Path(word).name for word in words[: 2 if has_script else 1])


def report(spec: GroupSpec, plan: Plan) -> Reported:
    """Run the program once and read its figures.

    Whoever calls bounds the time, by ending this process and what it started.

    Raises:
        TrialCrashed: It ended with an exit status that is not 0, or by a signal.
        OutOfMemory: The same, and it said that memory ran out.
        WrongOutput: It ended well, and a figure is missing or is no number.
        UsageError: It cannot be started.
    """
    options = spec.workload.options
    words, line, environment = command_line(spec, _values(spec, plan))
    began_s = time.monotonic()
    process = start(words, spec, environment)
    output, errors = _read(process)
    text = f"{errors}\n{output}"
    tail = "\n".join(keepable(text).strip().splitlines()[-TAIL_LINES:])
    try:
        if process.returncode:
            raise ended_badly(process.returncode, text)
        figures = read_figures(text, options, batch_size=spec.config.batch_size)
    except TrialError as error:
        raise type(error)(f"{error}; to see it again: {line}", log_tail=tail) from None
    return Reported(
        metrics=figures,
        relative_noise=_noise(spec.workload),
        duration_s=time.monotonic() - began_s,
        command_line=line,
        log_tail=tail,
    )


def _words(spec: WorkloadSpec) -> list[str]:
    words = spec.options["command"]
    assert isinstance(words, list)
    return words


def _noise(spec: WorkloadSpec) -> float:
    own = {key: value for key, value in spec.options.items() if key == "noise"}
    return read_noise(own, DEFAULT_NOISE)[0]


def _values(spec: GroupSpec, plan: Plan) -> dict[str, Scalar]:
    """What the placeholders stand for: the parameters, and facts of the trial."""
    length_s = sum(window.duration_s or 0.0 for window in plan.windows)
    return {
        **spec.config.as_dict(),
        "duration_s": float(f"{length_s:.6g}"),
        "iterations": sum(window.iterations or 0 for window in plan.windows),
        "device": spec.devices[0],
        "device_index": int(spec.devices[0].partition(":")[2] or 0),
        "seed": spec.seed,
    }


def command_line(
    spec: GroupSpec, values: Mapping[str, Scalar]
) -> tuple[list[str], str, dict[str, str]]:
    """The words of a command with the values in them, the line to show, and the environment."""
    is_shell = bool(spec.workload.options.get("shell"))
    words = fill(_words(spec.workload), values, quote=is_shell)
    line = without_secrets(words[0] if is_shell else shlex.join(words))
    return words, line, _environment(spec.config)


def start(
    words: Sequence[str],
    spec: GroupSpec,
    environment: Mapping[str, str],
    *,
    stderr: int = subprocess.PIPE,
) -> subprocess.Popen[bytes]:
    """Start a program in a session of its own that dies with this process.

    Raises:
        UsageError: It cannot be started.
    """
    is_shell = bool(spec.workload.options.get("shell"))
    try:
        return subprocess.Popen(
            words[0] if is_shell else list(words),
            shell=is_shell,
            cwd=spec.workload.base_dir or None,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            preexec_fn=functools.partial(die_with_parent, os.getpid()),
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        key = f"workload.{spec.workload.kind}"
        raise UsageError(f"{key}: '{words[0]}' cannot be started: {error}") from None


def _environment(config: Config) -> dict[str, str]:
    """The tool's own environment, numbers written with a point, the configuration's variables."""
    environment = dict(os.environ)
    everything = environment.pop("LC_ALL", None)  # it would override the one below
    if everything:
        environment["LC_CTYPE"] = everything
    return {**environment, "LC_NUMERIC": "C", **config.environment()}


def _read(process: subprocess.Popen[bytes]) -> tuple[str, str]:
    """The ends of its two streams, also passed on to this process's own; waits for its end.

    Something that it left running may keep the streams open for ever: they are left then.
    """
    assert process.stdout is not None and process.stderr is not None
    streams = {process.stdout.fileno(): 1, process.stderr.fileno(): 2}
    kept = {fd: bytearray() for fd in streams}
    until_s: float | None = None
    with selectors.DefaultSelector() as selector:
        for fd in streams:
            selector.register(fd, selectors.EVENT_READ)
        while selector.get_map() and (until_s is None or time.monotonic() < until_s):
            for key, _ in selector.select(POLL_S):
                data = os.read(key.fd, READ_BYTES)
                if not data:
                    selector.unregister(key.fd)
                    continue
                with contextlib.suppress(OSError):
                    os.write(streams[key.fd], data)
                kept[key.fd] += data
                del kept[key.fd][:-MAX_OUTPUT_BYTES]
            if until_s is None and process.poll() is not None:
                until_s = time.monotonic() + DRAIN_S
    process.wait()
    output, errors = (bytes(data).decode("utf-8", errors="replace") for data in kept.values())
    return output, errors


def ended_badly(status: int, text: str, what: str = "the program") -> TrialError:
    """What an exit status that is not 0 means.

    Args:
        text: What it printed.
    """
    lines = keepable(text).strip().splitlines()
    last = f": {lines[-1].strip()[:300]}" if lines else ""
    if OUT_OF_MEMORY.search(text):
        return OutOfMemory(f"{what} ran out of memory{last}")
    if status in (-signal.SIGKILL, KILLED_STATUS):
        return TrialKilled(f"{what} was killed by SIGKILL{last}", signal_name="SIGKILL")
    if status < 0:
        known = {number.value: number.name for number in signal.Signals}
        name = known.get(-status, f"signal {-status}")
        return TrialCrashed(f"{what} was killed by {name}{last}", signal_name=name)
    return TrialCrashed(f"{what} ended with exit status {status}{last}", exit_code=status)
