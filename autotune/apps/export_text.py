"""A recommendation as an environment file, and as JSON."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from autotune.apps.export import Subject, evidence_lines
from autotune.apps.store import write_whole
from autotune.core.pipeline import NOT_OF_PIPELINES
from autotune.core.records import DIMENSIONS
from autotune.core.text import clean
from autotune.results.tables import to_json

PREFIX = "AUTOTUNE_"
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


def env(subject: Subject) -> tuple[Path, ...]:
    """`STUDY.env`: a line per variable, for a shell, systemd's EnvironmentFile or docker.

    Beside the variables that held when it was measured there are the parameters, and the cores of
    each instance for `taskset`. A value that a shell would not take as it is stands in quotes,
    which docker alone would keep.
    """
    path = subject.directory / f"{subject.space.study}.env"
    values = dict(subject.environment)
    threads = {len(own) for own in subject.cores}
    if len(threads) == 1:
        values = {name: str(*threads) for name in _THREADS} | values
    unknown = NOT_OF_PIPELINES if subject.config.is_pipeline else ()
    for name in DIMENSIONS:
        if name not in unknown:
            values[f"{PREFIX}{name.upper()}"] = _plain(getattr(subject.config, name))
    for name, value in subject.config.extra:
        if not name.startswith("env."):
            values[f"{PREFIX}{name.upper().replace('.', '_')}"] = _plain(value)
    for index, own in enumerate(subject.cores):
        values[f"{PREFIX}CORES_{index}"] = ",".join(map(str, own))
    use: tuple[str, ...] = (
        f"set -a; . ./{path.name}; set +a",
        f'taskset -c "${PREFIX}CORES_0" PROGRAM        # and so on, one per instance',
    )
    written = {name: shlex.quote(value) if value else "" for name, value in values.items()}
    in_quotes = [name for name, value in written.items() if value != values[name]]
    if in_quotes:
        use += (f"docker --env-file would keep the quotes of {', '.join(in_quotes)}",)
    lines = [
        *(f"# {clean(line)}" for line in evidence_lines(subject)),
        *(f"# note        {clean(line)}" for line in _notes(subject)),
        "#",
        *(f"# {line}" for line in use if subject.cores or "taskset" not in line),
        *(f"{name}={value}" for name, value in written.items()),
    ]
    write_whole(path, ("\n".join(lines) + "\n").encode())
    return (path,)


def _notes(subject: Subject) -> tuple[str, ...]:
    """Of a training's pipeline what was found beside figures, such as another learning rate."""
    if subject.result is None or not subject.config.is_pipeline:
        return ()
    return subject.result.recommendation.reasons


def json_file(subject: Subject) -> tuple[Path, ...]:
    """`STUDY.json`: what `show --json` prints, with the evidence; `compare` takes it."""
    assert subject.result is not None and subject.evidence is not None
    path = subject.directory / f"{subject.space.study}.json"
    content = {
        **to_json(subject.result),
        "evidence": subject.evidence.to_json(),
        "cores": [list(own) for own in subject.cores],
        "environment": subject.environment,
    }
    text = json.dumps(content, allow_nan=False, ensure_ascii=False, indent=1)
    write_whole(path, f"{text}\n".encode())
    return (path,)


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
