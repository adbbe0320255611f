"""A configuration in a table: a column per searched parameter, or one for all of very many."""

from __future__ import annotations

from autotune.core.records import Config
from autotune.results import words
from autotune.results.document import Column, Verbatim
from autotune.results.study_result import StudyResult

MAX_COLUMNS = 6
MAX_WIDTH = 12
"""Characters of a value that a column of its own has room for."""


def setting_columns(result: StudyResult) -> tuple[Column, ...]:
    """The columns of what was searched."""
    if _is_joined(result):
        return (Column(name="configuration", kind="text settings"),)
    return tuple(Column(name=Verbatim(name)) for name in _names(result))


def setting_cells(result: StudyResult, config: Config) -> tuple[str, ...]:
    """The cells of a configuration in these columns."""
    if _is_joined(result):
        return (Verbatim(words.config_text(config, _names(result))),)
    items = words.config_items(config)
    return tuple(Verbatim(items.get(name, "")) for name in _names(result))


def _names(result: StudyResult) -> tuple[str, ...]:
    return result.searched or ("batch_size",)


def _is_joined(result: StudyResult) -> bool:
    names = _names(result)
    values = (words.value_text(n, v) for n in names for v in result.facts.params.get(n, ()))
    return len(names) > MAX_COLUMNS or any(len(value) > MAX_WIDTH for value in values)
