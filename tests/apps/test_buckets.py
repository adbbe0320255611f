from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import autotune
from autotune.cli import app


def run(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["buckets", *words])
    return done.exit_code, done.output


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("lengths.csv").write_text("count,length\n3,10\n1,16\n1,100\n")
    Path("plain.csv").write_text("10\n10\n10\n16\n\n100\n")
    Path("cost.csv").write_text("length,seconds\n8,0.001\n128,0.016\n")
    return tmp_path


@pytest.mark.parametrize("name", ["lengths.csv", "plain.csv"])
def test_a_histogram_and_a_list_of_lengths_give_the_same_buckets(files: Path, name: str) -> None:
    code, text = run(name, "--max-buckets", "2", "--json")
    found = json.loads(text)
    assert code == 0 and found["best"]["sizes"] == [16, 100]
    assert found["powers_of_two"]["sizes"] == [16, 128]


def test_seconds_are_weighed_against_compiling(files: Path) -> None:
    _, text = run("lengths.csv", "--cost", "cost.csv", "--compile-time", "10s", "--json")
    assert json.loads(text)["best"]["sizes"] == [100]
    words = ("--compile-time", "10s", "--items", "1e9", "--multiple-of", "8")
    _, text = run("lengths.csv", "--cost", "cost.csv", *words, "--json")
    found = json.loads(text)
    assert found["best"]["sizes"] == [16, 104] and found["unit"] == "s"
    assert found["best"]["compile_s"] == 20


def test_a_memory_limit_leaves_fewer_buckets(files: Path) -> None:
    limit = ("--memory", "100MiB", "--memory-limit", "150MiB")
    code, text = run("lengths.csv", *limit)
    assert code == 0 and "buckets: 100\n" in text and "1 bucket; " in text and "100 MiB" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["none.csv"], "none.csv cannot be read"),
        (["lengths.csv", "--cost", "cubic"], "neither linear nor quadratic"),
        (["lengths.csv", "--compile-time", "10s"], "only against seconds"),
        (["lengths.csv", "--memory-limit", "1GiB"], "needs --memory or --memory-per-size"),
        (["bad.csv"], "bad.csv:2: 'x' is not made of numbers"),
        (["lengths.csv", "--cost", "short.csv"], "a bucket of 128 is beyond that"),
    ],
)
def test_mistakes_are_told(
    files: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    Path("bad.csv").write_text("5\nx\n")
    Path("short.csv").write_text("8,0.001\n64,0.016\n")
    done = CliRunner().invoke(app, ["buckets", *words])
    assert done.exit_code == 2 and message in done.stderr.replace("\n", " ")


def test_the_function_is_part_of_the_package() -> None:
    assert autotune.choose_buckets([3, 3, 9], 2).best.sizes == (3, 9)
