"""`autotune report`: write a study's report again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from autotune.apps.store import load_result, study_dir, write_report
from autotune.results.report import Format
from autotune.results.study_result import StudyResult


def report(
    study: str,
    *,
    studies_dir: Path = Path("studies"),
    storage: str = "",
    lang: str = "en",
    form: Format = "html",
) -> StudyResult:
    """Write the report of a study from what its storage holds.

    Args:
        lang: "en" or "zh".

    Returns:
        The result, with the report's path; without one if no trial is complete, since there
        is nothing to report.
    Raises:
        UsageError: There is no such study, or language. StorageError: It cannot be read.
    """
    result = load_result(study, studies_dir, storage)
    if not result.trial_count:
        return result
    directory = study_dir(studies_dir, study)
    return replace(result, report=write_report(result, directory, lang=lang, form=form))
