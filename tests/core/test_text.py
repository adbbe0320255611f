"""Foreign text is made safe before it is kept or shown."""

from __future__ import annotations

import pytest

from autotune.core.text import clean, describe, keepable, without_secrets


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
        ("not \u202eturned\u2066 round", "not turned round"),
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


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://u:s3cret@h/d", "postgresql://u:***@h/d"),
        ("at postgresql+psycopg://u:s3@t@h/d failed", "at postgresql+psycopg://u:***@h/d failed"),
        ("mysql://:s3cret@h/d", "mysql://:***@h/d"),
        ("postgresql://h/d?user=u&password=s3cret&x=1", "postgresql://h/d?user=u&password=***&x=1"),
        ("http://h/?api_key=s3cret'", "http://h/?api_key=***'"),
        ("sqlite:///a:b.db and user@host", "sqlite:///a:b.db and user@host"),
        ("a: 'db://u:s3cret@h'\nx: me@h", "a: 'db://u:***@h'\nx: me@h"),
        ("vllm serve --api-key s3cret -p 3", "vllm serve --api-key *** -p 3"),
        ("['x', '--api-key', 's3cret', '-p']", "['x', '--api-key', '***', '-p']"),
        ("- --hf-token\n- s3cret\n- x", "- --hf-token\n- ***\n- x"),
        ("{'api_key': ['s3cret'], 'x': 1}", "{'api_key': ['***'], 'x': 1}"),
        ('authorization: "Bearer s3cret"', 'authorization: "Bearer ***"'),
        ("authorization: Bearer ${K} --token {t}", "authorization: Bearer ${K} --token {t}"),
        ("--max-tokens 5 --tokenizer x --eos-token", "--max-tokens 5 --tokenizer x --eos-token"),
        ("prompt_tokens: 5, password authentication", "prompt_tokens: 5, password authentication"),
    ],
)  # fmt: skip
def test_secrets_are_never_shown(text: str, shown: str) -> None:
    assert without_secrets(text) == shown


def test_what_the_environment_keeps_secret_is_not_kept_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {
        "SOME_TOKEN": "abcd-efgh-1",
        "PGPASSWORD": "abcd-efgh-12",
        "MAX_TOKEN": "12345678",
        "A_KEY_FILE": "/etc/some/file",
        "B_TOKEN": "false",
    }.items():
        monkeypatch.setenv(name, value)
    text = "environ: abcd-efgh-12 abcd-efgh-1 12345678 /etc/some/file false"
    assert keepable(text) == "environ: *** *** 12345678 /etc/some/file false"
    assert describe(ValueError("no abcd-efgh-1")) == "ValueError: no ***"


def test_no_password_is_too_long_to_be_left_out_and_no_text_takes_long() -> None:
    password = "s3cr3t" + "9" * 100_000
    shown = without_secrets(f"a postgresql://me:{password}@host/db")
    assert shown == "a postgresql://me:***@host/db"
    lines = "x://a:" * 50_000
    assert without_secrets(lines) == lines
