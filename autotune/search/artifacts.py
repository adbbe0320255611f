"""Files of trials in Optuna's artifact store, where its dashboard shows them beside the trial."""

from __future__ import annotations

import io
import json
import mimetypes
import os
import shutil
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import optuna
from optuna.artifacts import FileSystemArtifactStore

from autotune.core.errors import StorageError

DIRECTORY = "artifacts"
"""In a study's directory; `optuna-dashboard --artifact-dir` takes it as well."""

MAX_ARTIFACTS = 1000
"""Of a study; what comes later in the list is left out."""

_OF_STUDY = "artifacts:"
_OF_TRIAL = "dashboard:artifacts:"
"""Keys of a study's attributes: its own artifacts, and those of trials that are finished and so
cannot get attributes of their own any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """A file to be shown.

    Attributes:
        trial: Number of its trial, None for the study's own.
        name: What it is called there.
        source: A file, or its contents.
    """

    trial: int | None
    name: str
    source: Path | bytes


def artifact_store(directory: Path) -> FileSystemArtifactStore:
    """The store of a study's directory.

    Raises:
        StorageError: The directory cannot be made.
    """
    path = directory / DIRECTORY
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror}") from error
    return FileSystemArtifactStore(base_path=path)


def attach(study: optuna.Study, directory: Path, artifacts: Iterable[Artifact]) -> int:
    """Put files into the study's store; those that are there already are left as they are.

    A file on the same disk is linked, not copied.

    Returns:
        How many there are now, of those given.
    Raises:
        StorageError: A file cannot be written.
    """
    store = artifact_store(directory)
    storage, study_id = study._storage, study._study_id
    known = storage.get_study_system_attrs(study_id)
    trials = {t.number: t._trial_id for t in storage.get_all_trials(study_id, deepcopy=False)}
    count = 0
    for artifact in artifacts:
        if count >= MAX_ARTIFACTS:
            break
        if artifact.trial is not None and artifact.trial not in trials:
            continue
        count += 1
        of = "study" if artifact.trial is None else artifact.trial
        identity = str(uuid.uuid5(uuid.NAMESPACE_OID, f"{study.study_name}/{of}/{artifact.name}"))
        owner = _OF_STUDY if artifact.trial is None else f"{_OF_TRIAL}{trials[artifact.trial]}:"
        if owner + identity in known:
            continue
        try:
            _put(store, directory / DIRECTORY / identity, identity, artifact.source)
        except OSError as error:
            raise StorageError(f"{directory / DIRECTORY}: {error.strerror}") from error
        kind, encoding = mimetypes.guess_type(artifact.name)
        meta = {
            "artifact_id": identity,
            "filename": artifact.name,
            "mimetype": kind or "application/octet-stream",
            "encoding": encoding,
        }
        storage.set_study_system_attr(study_id, owner + identity, json.dumps(meta))
    return count


def _put(store: FileSystemArtifactStore, path: Path, identity: str, source: Path | bytes) -> None:
    if isinstance(source, bytes):
        store.write(identity, io.BytesIO(source))
        return
    path.unlink(missing_ok=True)
    try:
        os.link(source, path)
    except OSError:  # another disk, or a file system without links
        shutil.copyfile(source, path)
