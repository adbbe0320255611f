"""A study on disk: where it is, what is kept of it, and how it becomes a `StudyResult` again."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import time
import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path

from autotune.core.codec import from_json_dict, to_json_dict
from autotune.core.diagnosis import Diagnosis
from autotune.core.errors import StorageError, UsageError
from autotune.core.insight import Insight
from autotune.core.text import clean, without_secrets
from autotune.results.ranking import rank
from autotune.results.recommend import decide
from autotune.results.report import Format, render
from autotune.results.study_result import Ending, StudyFacts, StudyResult, WarmStart
from autotune.search.storage import check_url, from_anywhere
from autotune.search.study import StoredStudy
from autotune.version import __version__

log = logging.getLogger(__name__)

FACTS, ENDING, BASIS, PROVING = "facts", "ending", "basis", "proving"
INSIGHT = "insight"
"""Keys under which a study keeps what it is about, how its last run ended, what its recommendation
was made from, who is proving one, and what the model of its search believes."""

WARM_START = "warm_start"
"""Key under which it keeps which earlier study it followed, if any."""

DIAGNOSIS = "diagnosis.json"
"""In a study's directory: where the time of its baseline goes, and of what it recommends."""

STORAGE = "storage.txt"
"""In a study's directory: the database it is kept in, if it is not the journal beside it."""

MAX_URL_CHARS = 300

MAX_NAME_BYTES = 255
"""Of a file's name, in every file system of today."""


def study_dir(studies_dir: Path, study: str) -> Path:
    """The directory of a study.

    Raises:
        UsageError: The name could lead out of the studies directory, or is no file's name.
    """
    name = unicodedata.normalize("NFC", study)
    if len(name.encode("utf-8", "replace")) > MAX_NAME_BYTES:
        raise UsageError(f"{study[:40]!r}… is longer than the name of a study can be")
    if not name or name[0] in ".-" or any(c in "/\\" or not c.isprintable() for c in name):
        raise UsageError(f"{study!r} is not the name of a study; studies are in {studies_dir}/")
    return studies_dir / name


def remember_storage(directory: Path, url: str) -> None:
    """Note where a study is kept, for commands that only get its name; never a password."""
    note = directory / STORAGE
    if url != "journal":
        write_whole(note, f"{without_password(from_anywhere(url))}\n".encode())
    elif note.is_file():
        with _file_errors(note):
            note.unlink()


def without_password(url: str) -> str:
    """A database URL that can be shown, and still be used where no password is needed."""
    scheme, separator, rest = url.partition("://")
    user, at, place = rest.rpartition("@")
    bare = without_secrets(f"{scheme}{separator}{user.partition(':')[0]}{at}{place}")
    return re.sub(r"[?&]\w+=\*\*\*", "", bare)


def load_stored(study: str, studies_dir: Path, storage: str = "") -> StoredStudy:
    """Open a study to look at it, wherever it is kept; arguments and errors as of `load_result`."""
    directory = study_dir(studies_dir, study)
    storage = storage or _remembered(directory)
    if storage == "journal" and not directory.is_dir():
        raise UsageError(f"there is no study {study!r} in {studies_dir}/{_known(studies_dir)}")
    return StoredStudy.load(directory.name, directory, storage=storage)


def load_result(study: str, studies_dir: Path, storage: str = "") -> StudyResult:
    """Read a study back; nothing is changed.

    Args:
        storage: Where it is kept; empty: as its directory says, else the journal there.
    Raises:
        UsageError: There is no such study. StorageError: It cannot be read.
    """
    stored = load_stored(study, studies_dir, storage)
    attributes = stored.attributes()
    if FACTS not in attributes:
        raise UsageError(f"study {study!r} was begun but holds nothing yet; run it first")
    facts = from_json_dict(StudyFacts, attributes[FACTS])
    ending = from_json_dict(Ending, attributes.get(ENDING, {"stopped": "it was killed"}))
    records = stored.records()
    recommendation = stored.recommendation()
    insight = attributes.get(INSIGHT)
    known = from_json_dict(Insight, insight) if insight else None
    if recommendation is None:
        ranking = rank(records, facts.objective, facts.baseline, known)
        recommendation = decide(ranking, facts.objective)
    report = stored.directory / report_name("en", "html")
    start = attributes.get(WARM_START)
    return StudyResult(
        facts=facts,
        records=records,
        recommendation=recommendation,
        ending=ending,
        report=report if report.is_file() else None,
        insight=known,
        warm_start=from_json_dict(WarmStart, start) if start else None,
        diagnoses=read_diagnoses(stored.directory),
        conditions=stored.fingerprint,
    )


def write_diagnoses(found: Sequence[Diagnosis], directory: Path) -> None:
    """Keep diagnoses beside a study.

    Raises:
        StorageError: They cannot be written.
    """
    data = {"schema": 1, "diagnoses": [to_json_dict(one) for one in found]}
    write_whole(directory / DIAGNOSIS, json.dumps(data, allow_nan=False).encode())


def read_diagnoses(directory: Path) -> tuple[Diagnosis, ...]:
    """What was kept beside a study; a file that cannot be read is passed over with a word."""
    path = directory / DIAGNOSIS
    if not path.is_file():
        return ()
    try:
        data = json.loads(path.read_text("utf-8"))
        return tuple(from_json_dict(Diagnosis, one) for one in data["diagnoses"])
    except (OSError, ValueError, TypeError, LookupError, RecursionError, UsageError) as error:
        log.warning("%s is passed over: %s", path, error)
        return ()


def report_name(lang: str, form: Format) -> str:
    """The report's file in a study's directory: report.html, report.zh.md."""
    return f"report{'' if lang == 'en' else f'.{lang}'}.{form}"


def write_report(
    result: StudyResult, directory: Path, *, lang: str = "en", form: Format = "html"
) -> Path:
    """Write the report.

    Args:
        lang: A key of `language.LANGUAGES`.
    Raises:
        UsageError: There is no such language.
        StorageError: It cannot be written; what the study holds is kept all the same.
    """
    text = render(result, now_s=time.time(), version=__version__, lang=lang, form=form)
    path = directory / report_name(lang, form)
    try:
        write_whole(path, text.encode())
    except StorageError as error:
        study = result.facts.study
        raise StorageError(
            f"{error}; the study itself is kept: autotune show {study} prints it, "
            f"autotune report {study} writes the report again"
        ) from error
    return path


def write_whole(path: Path, data: bytes) -> None:
    """Write a file whole or not at all.

    Raises:
        StorageError: It cannot be written.
    """
    if path.is_dir():
        raise StorageError(f"{path} is a directory; a file is wanted")
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    with _file_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            unfinished.write_bytes(data)
            unfinished.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                unfinished.unlink()
            raise


@contextlib.contextmanager
def _file_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror}") from error


def _remembered(directory: Path) -> str:
    note = directory / STORAGE
    if not note.is_file():
        return "journal"
    with _file_errors(note):
        first, *_ = note.read_text("utf-8", "replace")[:MAX_URL_CHARS].splitlines() or [""]
        url = clean(first.strip())
    try:
        check_url(url)
    except UsageError as error:
        raise UsageError(f"{note}: {error}") from None
    return url


def _known(studies_dir: Path) -> str:
    names = sorted(p.name for p in studies_dir.glob("*") if p.is_dir() and p.name[0] != ".")
    return f"; there are {', '.join(names[:8])}{' …' if len(names) > 8 else ''}" if names else ""
