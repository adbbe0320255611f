"""Studies that go on: after their space has changed, after a kill, beside others, on advice."""

from __future__ import annotations

import json
import signal
import sqlite3
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from conftest import Place

SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
ROWS = "".join(f"{b},{1000 * b**0.7:.0f},{0.001 + 1e-4 * b},ok,0.1\n" for b in SIZES)
FIXED = ("sampler: grid", "confirm: false", "storage: sqlite:///t.db")
SLOW = """\
#!/bin/sh
sleep 0.3
[ "$1" = 4 ] && kill -SEGV $$
echo "{\\"throughput\\": $1, \\"latency_p99_s\\": 0.001}"
"""


def states(place: Place) -> list[str]:
    with sqlite3.connect(place.path / "t.db") as database:
        return [state for (state,) in database.execute("select state from trials order by number")]


def test_a_space_that_grew_goes_on_with_what_it_has(place: Place) -> None:
    place.write_replay(ROWS, *FIXED, "params: {batch_size: [1, 2, 4]}")
    assert place.run()[0] == 0
    before = place.trials()
    assert [t["batch_size"] for t in before] == ["1", "2", "4"]

    place.write_replay(ROWS, *FIXED, "params: {batch_size: [1, 2, 4, 8]}")
    ended = place.autotune("run", "--space", "t.yaml")
    assert ended.returncode == 0
    said = ended.stdout + ended.stderr
    assert "batch_size was [1, 2, 4], now [1, 2, 4, 8]" in said and "--study NAME" in said
    assert place.trials()[:3] == before and place.trials()[3]["batch_size"] == "8"

    place.write_replay(ROWS, *FIXED, "params: {batch_size: {low: 1, high: 64, log: true}}")
    code, result = place.run()
    assert code == 0 and result["complete"]
    assert [t["batch_size"] for t in place.trials()[4:]] == ["3", "6", "12", "16", "24", "32"]
    assert states(place) == ["COMPLETE"] * len(SIZES)


def test_a_killed_grid_tries_every_configuration_and_a_failing_one_once(place: Place) -> None:
    place.write("slow.sh", SLOW)
    place.write(
        "t.yaml",
        'workload: {command: [sh, slow.sh, "{batch_size}"]}\ndevice: cpu\n'
        "params: {batch_size: [1, 2, 4, 8]}\n" + "\n".join(FIXED),
    )
    tool = place.start("run", "--space", "t.yaml")
    assert tool.stdout is not None
    assert any("( 2 of 40)" in line for line in tool.stdout), "it ended before its second trial"
    tool.send_signal(signal.SIGKILL)
    tool.communicate()
    code, result = place.run()
    assert code == 0 and result["complete"] and result["config"]["batch_size"] == 8
    assert "RUNNING" not in states(place)
    counted = [t for t in place.trials() if t["outcome"] not in ("lost", "interrupted")]
    assert sorted(t["batch_size"] for t in counted) == ["1", "2", "4", "8"]
    (failed,) = (t for t in counted if t["batch_size"] == "4")
    assert failed["outcome"] == "crashed" and "SIGSEGV" in failed["reasons"]
    assert place.run()[1]["trials"] == result["trials"]  # a third run does nothing


def test_workers_of_a_study_follow_the_same_earlier_one(place: Place) -> None:
    searched = ("sampler: mechanistic", "confirm: false", "budget: {trials: 7}")
    place.write_replay(ROWS, *searched)
    best = place.run("--study", "old")[1]["config"]
    tools = [place.start("run", "--space", "t.yaml", "--study", "new") for _ in range(2)]
    for tool in tools:
        output, errors = tool.communicate(timeout=100)
        assert tool.returncode == 0, errors
        assert "starting from what study old found on this model and device" in output
    shown = json.loads(place.autotune("show", "new", "--json").stdout)
    assert shown["warm_start"]["study"] == "old"
    trials = place.trials("new")
    assert str(best["batch_size"]) in [t["batch_size"] for t in trials[:3]]
    assert len({t["batch_size"] for t in trials}) == len([t for t in trials if t["phase"]])

    alone = place.run("--study", "alone", "--no-warm-start")[1]
    assert alone["warm_start"] is None
    (place.path / "studies" / ".library" / "broken.json").write_text("{")
    ended = place.autotune("run", "--space", "t.yaml", "--study", "other", "--set", "warm_start=0")
    assert ended.returncode == 2 and "warm_start" in ended.stderr
