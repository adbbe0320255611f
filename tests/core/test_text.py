"""Foreign text is made safe before it is kept or shown."""

from __future__ import annotations

import pytest

from autotune.core.text import clean, describe


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain 你好 µs\n\tline", "plain 你好 µs\n\tline"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07after", "after"),
        ("\x1b]8;;http://x\x1b\\link", "link"),
        ("a\x00b\x08c\x7fd\x9be", "abcde"),
        ("progress 1\rprogress 2\r\nend", "progress 1\nprogress 2\nend"),
        ("lone \ud800 surrogate", "lone \\ud800 surrogate"),
        ("\x1b", ""),
    ],
)
def test_nothing_is_left_that_a_terminal_or_a_file_would_choke_on(text: str, expected: str) -> None:
    assert clean(text) == expected
    clean(text).encode("utf-8")


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def test_an_exception_is_described_whatever_it_does() -> None:
    assert describe(ValueError("bad")) == "ValueError: bad"
    assert describe(KeyboardInterrupt()) == "KeyboardInterrupt"
    assert "Mute" in describe(Mute()) and "RuntimeError" in describe(Mute())
