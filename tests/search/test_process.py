"""A process is known for good by its number and its start."""

from __future__ import annotations

from autotune.search.process import is_alive, process_start


def test_a_process_that_never_was_is_not_alive() -> None:
    assert process_start(2**22 + 1) == ""
    assert not is_alive(2**22 + 1, "")
