"""The library of earlier studies: small files under the studies directory, for warm starts.

It only ever helps: a file that cannot be read is passed over, one that cannot be written is missed,
and neither stops a study.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path

from autotune.apps.store import WARM_START, write_whole
from autotune.core.codec import from_json_dict, to_json_dict
from autotune.core.errors import AutotuneError
from autotune.results.study_result import StudyResult, WarmStart
from autotune.search.study import Study
from autotune.search.warm_start import PastStudy, conditions_of, nearest_past, past_of
from autotune.space.search_space import SearchSpace

log = logging.getLogger(__name__)

LIBRARY = ".library"
"""In the studies directory; no study can have a name that begins with a dot."""

MAX_FILES = 200  # the oldest go first
MAX_FILE_BYTES = 256 * 2**10
MAX_NAMED = 4  # differing conditions in a note


def find_past(
    studies_dir: Path, space: SearchSpace, fingerprint: Mapping[str, str]
) -> PastStudy | None:
    """The earlier study most like this one; None if there is none or the space wants none."""
    if not space.warm_start:
        return None
    return nearest_past(_read_all(studies_dir / LIBRARY), conditions_of(space, fingerprint))


def remember(
    result: StudyResult, space: SearchSpace, fingerprint: Mapping[str, str], studies_dir: Path
) -> None:
    """Keep what a study found for later ones; one file per study and its conditions."""
    fresh = result.recommendation.confirmations
    ranked = result.ranking.ranked
    rest = [r for r in result.records if r not in ranked]
    records = (*fresh, *ranked, *rest)
    past = past_of(space, fingerprint, records, ended_at_s=time.time(), best=result.config)
    if past is None:
        return
    folder = studies_dir / LIBRARY
    identity = json.dumps([past.study, sorted(past.conditions.items())])
    digest = hashlib.sha256(identity.encode()).hexdigest()[:12]
    slug = re.sub(r"[^a-z0-9]+", "-", past.conditions["workload"].lower()).strip("-")[:60]
    data = json.dumps(to_json_dict(past), allow_nan=False).encode()
    try:
        write_whole(folder / f"{slug}-{digest}.json", data)
        for old in _files(folder)[MAX_FILES:]:
            old.unlink(missing_ok=True)
    except (AutotuneError, OSError) as error:
        log.warning("%s; later studies cannot start from this one", error)


def warm_start_of(study: Study) -> WarmStart | None:
    """The earlier study that a study follows, and whether it was right; kept in the study too."""
    advice = study.advice
    if advice is None:
        return None
    start = WarmStart(
        study=advice.past.study,
        ended_at_s=advice.past.ended_at_s,
        differing=advice.differing,
        agrees=advice.agrees(study.records()),
    )
    study.keep(WARM_START, to_json_dict(start))
    return start


def advice_note(study: Study) -> Iterator[str]:
    """A word about where a study starts from, if not from nothing and while it is not done."""
    start, progress = warm_start_of(study), study.progress()
    if start is None or progress.done >= progress.total:
        return
    when = datetime.fromtimestamp(start.ended_at_s).astimezone().date().isoformat()
    differing = ", ".join(start.differing[:MAX_NAMED])
    same = f", though other: {differing}" if differing else ""
    yield (
        f"starting from what study {start.study} found on this model and device ({when}{same}); "
        "warm_start: false starts from nothing"
    )


def _read_all(folder: Path) -> Iterator[PastStudy]:
    for path in _files(folder)[:MAX_FILES]:
        try:
            if path.stat().st_size > MAX_FILE_BYTES:
                raise ValueError("too large")
            data = json.loads(path.read_text("utf-8"))
            if not isinstance(data, dict):
                raise TypeError("not an object")
            yield from_json_dict(PastStudy, data)
        except (OSError, ValueError, TypeError, RecursionError, AutotuneError) as error:
            log.warning("%s is passed over: %s", path, error)


def _files(folder: Path) -> list[Path]:
    """The library's files, the newest first."""
    try:
        found = [(p.stat().st_mtime, p) for p in folder.glob("*.json") if p.is_file()]
    except OSError:
        return []
    return [path for _, path in sorted(found, reverse=True)]
