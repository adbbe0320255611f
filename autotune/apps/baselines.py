"""Baselines: configurations with their figures and their model's files, kept to compare with later.

    studies/.baselines/NAME/<model>-<device>-<digest>/baseline.json, files/...

One name may hold several, by model, device and versions; saving again under the same three
replaces the old one. The model's own files are kept as well, so that what was fast then can be
measured against what is there now.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from autotune.apps.store import study_dir, write_whole
from autotune.core.codec import from_json_dict, to_json_dict
from autotune.core.errors import StorageError, UsageError
from autotune.core.records import SCHEMA_VERSION, Config, TrialRecord
from autotune.results.study_result import Origin
from autotune.search.conditions import model_digests, model_files

FOLDER, FILE, FILES = ".baselines", "baseline.json", "files"
MAX_FILE_BYTES = 64 * 2**20
"""Of a model's file that is kept with a baseline; of a larger one only its digest is."""

MAX_ENTRIES = 200
_IDENTITY = ("workload", "precision", "inputs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """A configuration as it was.

    Attributes:
        source: What it was saved from, such as "online".
        fingerprint: The conditions of `record`, versions and digests of the model's files
            included.
        kept_model: The model's file in `files/`, empty if none is kept.
    """

    name: str
    source: str
    config: Config
    record: TrialRecord | None = None
    space_path: str = ""
    space_text: str = ""
    fingerprint: Mapping[str, str] = field(default_factory=dict)
    workload: str = ""
    device: str = ""
    origin: Origin = "measured"
    kept_model: str = ""
    saved_at_s: float = 0.0
    schema_version: int = SCHEMA_VERSION


def save_baseline(baseline: Baseline, model: str, studies_dir: Path) -> Path:
    """Keep a baseline, and the files of its model.

    Args:
        model: As the space has it: "path.py:factory", a file, or a built-in's name.
    Returns:
        Its directory.
    Raises:
        UsageError: The name is none. StorageError: It cannot be written.
    """
    folder = study_dir(studies_dir / FOLDER, baseline.name) / _key(baseline.fingerprint)
    kept_model = ""
    files = model_files(model)
    for file in files.values():
        if file.stat().st_size > MAX_FILE_BYTES:
            break
    else:
        first = next(iter(files.values()), None)
        for file in files.values():
            assert first is not None, "there are files"
            write_whole(folder / FILES / file.relative_to(first.parent), file.read_bytes())
        kept_model = first.name if first is not None else ""
    saved = {**to_json_dict(baseline), "kept_model": kept_model, "saved_at_s": time.time()}
    text = json.dumps(saved, allow_nan=False, ensure_ascii=False, indent=1)
    write_whole(folder / FILE, f"{text}\n".encode())
    return folder


def find_baseline(
    name: str, fingerprint: Mapping[str, str], studies_dir: Path
) -> tuple[Baseline, Path]:
    """The baseline of that name for a model and device: of the same versions, else the newest.

    Args:
        fingerprint: Of what it will be compared with; empty: any model and device.
    Returns:
        The baseline and its directory.
    Raises:
        UsageError: There is none. StorageError: It cannot be read.
    """
    root = studies_dir / FOLDER
    folder = study_dir(root, name)
    kept = [(_read(path), path.parent) for path in sorted(folder.glob(f"*/{FILE}"))[:MAX_ENTRIES]]
    if not kept:
        names = sorted(p.name for p in root.glob("*") if p.is_dir())
        known = f"there are {', '.join(names)}" if names else "none was saved yet"
        raise UsageError(
            f"there is no baseline {name!r} in {root}/; {known}. "
            f"Save one with autotune compare STUDY --save-baseline {name}"
        )
    fitting = [(b, p) for b, p in kept if _same_model(b.fingerprint, fingerprint)] or kept
    newest = sorted(fitting, key=lambda pair: pair[0].saved_at_s, reverse=True)
    same = [(b, p) for b, p in newest if _versions(b.fingerprint) == _versions(fingerprint)]
    return (same or newest)[0]


def model_overrides(baseline: Baseline, directory: Path) -> tuple[list[str], tuple[str, ...]]:
    """What makes a space run the model as it was when the baseline was saved, and a word on it."""
    kind, _, model = baseline.fingerprint.get("workload", "").partition(" ")
    then = {k: v for k, v in baseline.fingerprint.items() if k.startswith("model file")}
    if not then or model_digests(model) == then:
        return [], ()
    if not baseline.kept_model:
        return [], ("the model's files have changed and were too large to keep: B runs today's",)
    kept = (directory / FILES / baseline.kept_model).resolve()
    factory = model.rpartition(":")[2] if ".py:" in model else ""
    path = f"{kept}:{factory}" if factory else str(kept)
    note = "the model's files have changed since the baseline was saved: B runs those of then"
    key = "replay" if kind == "replay" else "model"
    return [f"workload.{key}={json.dumps(path)}"], (note,)


def _key(fingerprint: Mapping[str, str]) -> str:
    """A directory's name: model and device to read, a digest to tell apart."""
    model = Path(fingerprint.get("workload", "").rpartition(" ")[2] or "model").name
    device = fingerprint.get("device", "").partition(":")[0] or "device"
    identity = json.dumps([*_identity(fingerprint), _versions(fingerprint)])
    digest = hashlib.sha256(identity.encode()).hexdigest()[:8]
    return "-".join([re.sub(r"[^\w.]+", "_", f"{model}-{device}")[:80].lstrip("._"), digest])


def _same_model(ours: Mapping[str, str], theirs: Mapping[str, str]) -> bool:
    return not theirs or _identity(ours) == _identity(theirs)


def _identity(fingerprint: Mapping[str, str]) -> list[str]:
    """Model and device; a checkout elsewhere is the same model."""
    kind, _, model = fingerprint.get("workload", "").partition(" ")
    others = [fingerprint.get(name, "") for name in (*_IDENTITY[1:], "device")]
    return [kind, Path(model).name, *others]


def _versions(fingerprint: Mapping[str, str]) -> dict[str, str]:
    return {k: v for k, v in fingerprint.items() if k.startswith("version of") or k == "python"}


def _read(path: Path) -> Baseline:
    try:
        return from_json_dict(Baseline, json.loads(path.read_text("utf-8")))
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror}") from error
    except (ValueError, TypeError, RecursionError, UsageError) as error:
        raise StorageError(f"{path}: not a baseline ({error})") from error
