from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import autotune
from autotune.apps.buckets import Ask, buckets
from autotune.core.errors import UsageError

LENGTHS = Path("lengths.csv")


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("lengths.csv").write_text("count,length\n3,10\n1,16\n1,100\n")
    Path("plain.csv").write_text("10\n10\n10\n16\n\n100\n")
    Path("cost.csv").write_text("length,seconds\n8,0.001\n128,0.016\n")
    return tmp_path


@pytest.mark.parametrize("name", ["lengths.csv", "plain.csv"])
def test_a_histogram_and_a_list_of_lengths_give_the_same_buckets(files: Path, name: str) -> None:
    found = buckets(Path(name), 2, Ask()).to_json()
    assert found["best"]["sizes"] == [16, 100] and found["unit"] is None
    assert found["powers_of_two"]["sizes"] == [16, 128]


@pytest.mark.parametrize("text", ["Length;COUNT\n10;3\n16;1\n", "\ufefflength\tn\n10\t3\n16\t1\n"])
def test_other_separators_and_headers_in_capitals_are_read(files: Path, text: str) -> None:
    Path("other.csv").write_text(text, encoding="utf-8")
    assert buckets(Path("other.csv"), 8, Ask()).buckets.best.sizes == (10, 16)


def test_seconds_are_weighed_against_compiling(files: Path) -> None:
    seldom = buckets(LENGTHS, 8, Ask(cost="cost.csv", compile_time="10s")).buckets
    assert seldom.best.sizes == (100,)
    how = Ask(cost="cost.csv", compile_time="10s", item_count=1e9, multiple_of=8)
    often = buckets(LENGTHS, 8, how).to_json()
    assert often["best"]["sizes"] == [16, 104] and often["unit"] == "s"
    assert often["best"]["compile_s"] == 20


def test_the_command_keeps_to_a_memory_limit(files: Path) -> None:
    words = ["buckets", "lengths.csv", "--memory", "100MiB", "--memory-limit", "150MiB"]
    command = [sys.executable, "-m", "autotune", *words]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "buckets: 100\n" in text and "1 bucket; " in text and "100 MiB" in text
    found = json.loads(subprocess.run([*command, "--json"], capture_output=True, check=True).stdout)
    assert found["best"]["memory_bytes"] == 100 * 2**20


@pytest.mark.parametrize(
    ("name", "ask", "message"),
    [
        ("none.csv", Ask(), "none.csv cannot be read"),
        ("lengths.csv", Ask(cost="cubic"), "neither linear nor quadratic"),
        ("lengths.csv", Ask(compile_time="10s"), "only against seconds"),
        ("lengths.csv", Ask(memory_limit="1GiB"), "needs --memory or --memory-per-size"),
        ("lengths.csv", Ask(compile_time="10", item_time="1ms"), "--compile-time: '10' has no"),
        ("bad.csv", Ask(), "bad.csv:2: 'x' is not made of numbers"),
        ("named.csv", Ask(), "needs the columns length and count.*found seq_len, freq"),
        ("huge.csv", Ask(), "1e\\+300"),
        ("lengths.csv", Ask(multiple_of=10**21), "multiple_of from 1 to"),
        ("lengths.csv", Ask(item_time="1ms", item_count=float("nan")), "nan items"),
        ("lengths.csv", Ask(item_time="0s"), "--item-time 0s: must be above 0"),
        ("lengths.csv", Ask(cost="short.csv"), "a bucket of 100 is beyond that"),
    ],
)
def test_mistakes_are_told(files: Path, name: str, ask: Ask, message: str) -> None:
    Path("bad.csv").write_text("5\nx\n")
    Path("named.csv").write_text("seq_len,freq\n5,2\n")
    Path("huge.csv").write_text("1e300\n")
    Path("short.csv").write_text("8,0.001\n64,0.016\n")
    with pytest.raises(UsageError, match=message):
        buckets(Path(name), 8, ask)


def test_the_function_is_part_of_the_package() -> None:
    assert autotune.choose_buckets([3, 3, 9], 2).best.sizes == (3, 9)
