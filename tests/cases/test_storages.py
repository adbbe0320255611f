"""Several tools on one database, databases that cannot be used, and files that start nothing."""

from __future__ import annotations

import sqlite3
from collections import Counter
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Place

SIZES = (1, 2, 3, 4, 6, 8, 12, 16)
ROWS = "".join(f"{b},{1000 * b},0.001,ok,0.1\n" for b in SIZES)


def test_tools_that_start_together_share_the_trials_of_a_fresh_database(place: Place) -> None:
    place.write_replay(
        ROWS, "storage: sqlite:///t.db", "budget: {trials: 8}", "sampler: random", "confirm: false"
    )
    tools = [place.start("run", "--space", "t.yaml") for _ in range(3)]
    for tool in tools:
        output, errors = tool.communicate(timeout=100)
        assert tool.returncode == 0, errors
        assert "of 8 (" in output
    with sqlite3.connect(place.path / "t.db") as database:
        trials = database.execute("select number, state from trials order by number").fetchall()
    assert trials == [(number, "COMPLETE") for number in range(8)]
    assert Counter(t["batch_size"] for t in place.trials()) == {str(b): 1 for b in SIZES}


def test_of_several_tools_on_a_study_one_proves_the_best(place: Place) -> None:
    place.write_replay(ROWS, "budget: {trials: 8}", "sampler: random")
    tools = [place.start("run", "--space", "t.yaml") for _ in range(3)]
    outputs = []
    for tool in tools:
        output, errors = tool.communicate(timeout=100)
        assert tool.returncode == 0, errors
        outputs.append(output)
    assert sum("confirming: round 1 " in output for output in outputs) == 1
    for output in outputs:
        proven = "t: confirmed" in output and "complete" in output
        assert proven or "still measuring" in output or "is proving the best" in output
    shown = place.autotune("show", "t").stdout
    assert "t: confirmed" in shown and "not complete" not in shown


@pytest.mark.parametrize(
    "url",
    ["postgresql://u:secret@127.0.0.1:1/d", "mysql://u:secret@127.0.0.1/d", "sqlite:///no/t.db"],
)
def test_an_unusable_storage_is_exit_4_in_one_line_without_a_password(
    url: str, place: Place
) -> None:
    place.write_replay(ROWS, f"storage: {url}")
    ended = place.autotune("run", "--space", "t.yaml")
    assert ended.returncode == 4
    assert ended.stderr.count("\n") == 1
    assert "secret" not in ended.stdout + ended.stderr
    assert "trial 1" not in ended.stdout


def test_a_password_is_in_nothing_that_is_kept_or_shown(place: Place) -> None:
    place.write_replay(ROWS, "budget: {trials: 2}", "confirm: false")
    url = f"sqlite:///{place.path}/t.db?password=s3cret"
    ended = place.autotune("run", "--space", "t.yaml", "--storage", url)
    shown = place.autotune("show", "t", "--storage", url)
    assert ended.returncode == shown.returncode == 0, ended.stderr
    said = (ended.stdout, ended.stderr, shown.stdout, shown.stderr)
    assert not any("s3cret" in text for text in said)
    kept = [path for path in place.path.rglob("*") if path.is_file()]
    assert any(path.suffix == ".db" for path in kept)
    assert not any(b"s3cret" in path.read_bytes() for path in kept)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("params: {batch_size: [0, 1]}", "params.batch_size[0]: 0 is below 1"),
        ("params: {batch_size: {low: 8, high: 1}}", "params.batch_size: low 8 is above high 1"),
        ("params: {batchsize: [1]}", "did you mean 'batch_size'"),
        ("params: {batch_size: [1, 3], micro_batch_count: [4]}", "none of 2 combinations"),
        ("limits: {latency_p99: 5}", "has no unit"),
        ("study: !!python/object/apply:os.system [touch pwned]", "tags"),
    ],
)
def test_a_file_with_a_mistake_starts_nothing(line: str, message: str, place: Place) -> None:
    place.write_space("plain", line, "storage: sqlite:///t.db")
    text = (place.path / "t.yaml").read_text()
    if line.startswith("study"):
        place.write("t.yaml", text.replace("study: t\n", ""))
    ended = place.autotune("run", "--space", "t.yaml")
    assert ended.returncode == 2
    assert message in ended.stderr
    assert "t.yaml:" in ended.stderr and ended.stderr.count("\n") == 1
    assert ended.stdout == ""
    assert [path.name for path in place.path.iterdir()] == ["t.yaml"]
