"""`autotune worker`: one more process on a study that several share."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from autotune.apps.store import FACTS, load_stored
from autotune.core.codec import from_json_dict
from autotune.core.errors import UsageError
from autotune.core.text import MASK
from autotune.results.study_result import StudyFacts
from autotune.space.command import words_of
from autotune.space.loader import load_space, load_text
from autotune.space.search_space import SearchSpace
from autotune.space.shipped import find_shipped


def space_of(
    target: str,
    overrides: Sequence[str],
    *,
    studies_dir: Path,
    storage: str = "",
    trusts_storage: bool = False,
) -> SearchSpace:
    """The space of a worker's study.

    Args:
        target: A space file, or the name of a study that was begun.
        storage: Where the study is kept; empty: as its directory says.
        trusts_storage: Whether to run what is kept there. A space names programs and Python
            files, so that whoever can write to the storage says what is run here.
    Raises:
        UsageError: There is neither, or the study's storage is not trusted.
    """
    if _is_space_file(target):
        return load_space(target, overrides)
    stored = load_stored(target, studies_dir, storage)
    if not trusts_storage:
        raise UsageError(
            f"{target} is no space file, and what the study of that name runs is said by its "
            "storage: name its space file, or add --trust-storage"
        )
    attributes = stored.attributes()
    if FACTS not in attributes:
        raise UsageError(f"study {target!r} was begun but holds nothing yet; name its space file")
    facts = from_json_dict(StudyFacts, attributes[FACTS])
    space = load_text(stored.space_text, facts.space_path, [*overrides, *_own(target, stored.url)])
    if any(MASK in word for word in words_of(space.workload)):
        raise UsageError(
            f"study {target!r} keeps no secrets, and its command has one: name its space file"
        )
    return space


def _is_space_file(target: str) -> bool:
    """Whether a name stands for a space file."""
    try:
        find_shipped("search_spaces", target)
    except UsageError:
        return False
    return True


def _own(study: str, url: str) -> tuple[str, ...]:
    return (f"study={json.dumps(study)}", f"storage={json.dumps(url)}")
