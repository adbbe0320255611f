"""`autotune show`: what a study found, again."""

from __future__ import annotations

from pathlib import Path

from autotune.apps.store import load_result
from autotune.results.study_result import StudyResult


def show(study: str, *, studies_dir: Path = Path("studies"), storage: str = "") -> StudyResult:
    """Read a study's result.

    Raises:
        UsageError: There is no such study. StorageError: It cannot be read.
    """
    return load_result(study, studies_dir, storage)
