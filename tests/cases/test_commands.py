"""Outside programs as workloads: however they behave, the study goes on and says what happened."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from conftest import Place

BENCH = Path(__file__).with_name("bench.py")
COMMAND = f'[{sys.executable}, {BENCH}, "{{mode}}", "{{batch_size}}"]'
SPACE = """\
workload: {{command: {command}}}
device: cpu
limits: {{latency_p99: 1s}}
params: {{batch_size: [{sizes}], mode: [{modes}]}}
baseline: {{mode: {first}}}
trial: {{timeout: 4s}}
budget: {{trials: 60}}
sampler: grid
confirm: false
"""
FAULTS = {
    ("killed", 4): ("crashed", "killed by SIGSEGV"),
    ("memory", 4): ("oom", "ran out of memory"),
    ("allocate", 1): ("oom", "ran out of memory"),
    ("secret", 1): ("crashed", "exit status 1: no access with ***"),
    ("import", 1): ("crashed", "exit status 1: ModuleNotFoundError: No module named 'mine'"),
    ("partial", 1): ("wrong_output", "expected metric latency_p99"),
    ("nan", 4): ("wrong_output", "throughput_items_per_s is nan"),
    ("negative", 4): ("wrong_output", "throughput_items_per_s is -5"),
    ("hang", 4): ("timeout", "took longer than 4.00 s"),
}
SECRET = "hunter2hunter2"
HARMLESS = ("flood", "bytes", "stdin", "daemon", "locale")


def write(place: Place, sizes: str, *modes: str, command: str = COMMAND) -> None:
    text = SPACE.format(command=command, sizes=sizes, modes=", ".join(modes), first=modes[0])
    place.write("t.yaml", text)


@pytest.fixture(scope="module")
def ran(make_place: Callable[[], Place]) -> dict[str, Any]:
    """One study of every mode."""
    place = make_place()
    write(place, "1, 4", "plain", *dict.fromkeys(mode for mode, _ in FAULTS), *HARMLESS)
    code, result = place.run(env={"LC_ALL": "C", "SOME_TOKEN": SECRET})
    trials = {(t["mode"], int(t["batch_size"])): t for t in place.trials()}
    kept = [path.read_bytes() for path in (place.path / "studies").rglob("*") if path.is_file()]
    left = place.processes()
    return {"code": code, "result": result, "trials": trials, "left": left, "kept": kept}


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_is_named_with_the_way_to_see_it_again(
    ran: dict[str, Any], fault: tuple[str, int]
) -> None:
    outcome, words = FAULTS[fault]
    trial = ran["trials"][fault]
    assert trial["outcome"] == outcome
    assert words in trial["reasons"]
    if outcome != "timeout":
        assert (
            f"to see it again: {sys.executable} {BENCH} {fault[0]} {fault[1]}" in trial["reasons"]
        )


@pytest.mark.parametrize("mode", HARMLESS)
def test_floods_foreign_bytes_locales_and_open_pipes_harm_nothing(
    ran: dict[str, Any], mode: str
) -> None:
    for size in (1, 4):
        assert ran["trials"][mode, size]["outcome"] == "ok"
        assert float(ran["trials"][mode, size]["throughput_items_per_s"]) == 100.0 * size


def test_the_study_ends_well_and_nothing_is_left_running(ran: dict[str, Any]) -> None:
    assert ran["code"] == 0
    assert ran["result"]["config"]["batch_size"] == 4
    assert ran["left"] == []


def test_what_a_program_prints_of_the_environment_is_kept_without_its_secrets(
    ran: dict[str, Any],
) -> None:
    assert ran["kept"] and not any(SECRET.encode() in data for data in ran["kept"])


def test_a_program_that_never_works_ends_the_study_with_its_own_words(place: Place) -> None:
    write(place, "1, 2, 4, 8", "import")
    ended = place.autotune("run", "--space", "t.yaml")
    assert ended.returncode == 1
    assert "No module named 'mine'" in ended.stderr + ended.stdout
    assert len(place.trials()) == 3


def test_the_best_lies_inside_and_a_limit_moves_it(place: Place) -> None:
    write(place, "1, 2, 4, 8, 16, 32, 64", "peak")
    _, result = place.run()
    assert result["config"]["batch_size"] == 32
    _, result = place.run("--set", "limits.latency_p99=20ms", "--study", "strict")
    assert result["config"]["batch_size"] == 8


def test_a_proof_takes_turns_and_needs_no_framework(place: Place) -> None:
    write(place, "1, 8", "peak")
    code, result = place.run("--set", "confirm={top: 1, duration: 1s}")
    assert code == 0 and result["status"] == "confirmed"
    assert result["gain"] == pytest.approx(6.8)


def test_the_budget_of_time_holds_inside_a_trial(place: Place) -> None:
    write(place, "4, 1", "hang")
    code, result = place.run(
        "--set", "trial.timeout=10min", "--set", "baseline.batch_size=4", "--time", "4s"
    )
    assert code == 1 and result["elapsed_s"] < 60
    assert [t["outcome"] for t in place.trials()] == ["interrupted"]
    assert place.processes() == []


def test_words_are_never_given_to_a_shell(place: Place) -> None:
    (place.path / "victim").touch()
    command = f"{sys.executable} {BENCH} {{mode}} {{batch_size}}; rm victim"
    write(place, "1", "plain", command=f'"{command}"')
    place.run()
    assert (place.path / "victim").exists()


def test_with_a_shell_values_are_quoted(place: Place) -> None:
    command = f"{sys.executable} {BENCH} plain {{batch_size}} {{mode}} | tail -1"
    write(place, "1, 2", "'a; rm victim'", command=f'"{command}", shell: true')
    (place.path / "victim").touch()
    code, result = place.run()
    assert code == 0 and result["config"]["batch_size"] == 2
    assert (place.path / "victim").exists()


def test_the_models_that_exist_are_the_space(place: Place) -> None:
    for size in (2, 8):
        place.write(f"net_bs{size}.om", "")
    command = COMMAND.replace("]", ', "--model=net_bs{batch_size}.om"]')
    write(place, "1, 2, 4, 8", "plain", command=command)
    place.run()
    assert sorted(int(t["batch_size"]) for t in place.trials()) == [2, 8]
    (place.path / "net_bs2.om").unlink()
    (place.path / "net_bs8.om").unlink()
    ended = place.autotune("run", "--space", "t.yaml", "--study", "none")
    assert ended.returncode == 2
    assert "there is no file net_bs{batch_size}.om" in ended.stderr


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ('["nosuch-program", "{batch_size}", "{mode}"]', "no program 'nosuch-program' on PATH"),
        ('["./absent", "{batch_size}", "{mode}"]', "no program './absent'"),
        ('[echo, "{batch}", "{batch_size}", "{mode}"]', "unknown placeholder {batch}"),
        ('[echo, "{mode}"]', "params.batch_size is searched, but the command has no {batch_size}"),
    ],
)
def test_what_cannot_be_started_is_refused_at_once(place: Place, command: str, words: str) -> None:
    write(place, "1, 2", "plain", command=command)
    ended = place.autotune("run", "--space", "t.yaml")
    assert ended.returncode == 2 and words in ended.stderr
