"""Space files written to a directory of the test's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from autotune.core.errors import UsageError
from autotune.space.loader import load_space
from autotune.space.search_space import SearchSpace

Load = Callable[..., SearchSpace]
Refusal = Callable[..., str]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Load a file of some text, or of some bytes."""

    def load(
        content: str | bytes, overrides: Sequence[str] = (), name: str = "t.yaml"
    ) -> SearchSpace:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return load_space(path, overrides)

    return load


@pytest.fixture
def refusal(load: Load, tmp_path: Path) -> Refusal:
    """The message with which a file is refused, its directory taken out."""

    def refusal(content: str | bytes, overrides: Sequence[str] = (), name: str = "t.yaml") -> str:
        with pytest.raises(UsageError) as caught:
            load(content, overrides, name)
        message = str(caught.value).replace(f"{tmp_path}/", "")
        assert len(message) < 1500
        assert message.isprintable() or "\n" in message
        return message

    return refusal
