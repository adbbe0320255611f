"""The command line as a user meets it: exit codes, streams, signals, locales, pipes."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
LIMIT_S = 60
GRID = "batch_size,instance_count,throughput_items_per_s,latency_p99_s,status,cost_s\n" + "".join(
    f"{b},{i},{b * (1, 1.8)[i - 1] / (0.001 + 50e-6 * b)},{0.0012 + 60e-6 * b},ok,0.1\n"
    for b in (1, 2, 4, 8, 16, 32)
    for i in (1, 2)
)
SPACE = """\
workload: {replay: grid.csv, noise: 0.01}
limits: {latency_p99: 2ms}
budget: {trials: 6}
sampler: random
"""
MODEL = """\
import time
import torch


class Slow(torch.nn.Module):
    def forward(self, x):
        time.sleep(0.002)
        return x


def slow():
    return Slow()


def needs(what):
    return Slow()


def crashing(config):
    if config.batch_size > 1:
        print("a last word")
        raise RuntimeError("no kernel for this batch")
    return Slow()


class Narrow(torch.nn.Module):
    def forward(self, x):
        return x @ torch.ones(3, 1)


def narrow():
    return Narrow()
"""
SLOW_SPACE = """\
workload: {model: "model.py:slow", inputs: [{name: x, shape: [batch, 16]}]}
params: {batch_size: [1, 2, 4, 8, 16, 32, 64, 128]}
trial: {duration: 0.5s}
confirm: {duration: 1s}
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A working directory with a recorded grid and a model whose calls take 2 ms."""
    (tmp_path / "grid.csv").write_text(GRID)
    (tmp_path / "small.yaml").write_text(SPACE)
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "slow.yaml").write_text(SLOW_SPACE)
    return tmp_path


def environment(changes: Mapping[str, str]) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), **changes}


def words(*args: str) -> list[str]:
    return [sys.executable, "-m", "autotune", *args]


def autotune(
    place: Path, *args: str, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words(*args),
        cwd=place,
        env=environment(env or {}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=LIMIT_S,
        check=False,
    )


def started(place: Path, *args: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        words(*args),
        cwd=place,
        env=environment({}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for_line(process: subprocess.Popen[str], start: str) -> None:
    assert process.stdout is not None
    until_s = time.monotonic() + LIMIT_S
    for line in process.stdout:
        if line.startswith(start):
            return
        assert time.monotonic() < until_s
    raise AssertionError(f"no line {start!r}: {process.communicate()}")


def left_running(place: Path) -> list[str]:
    """Processes that still work in the directory, after a moment to end."""
    for _ in range(40):
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                is_dead = "\nState:\tZ" in (entry / "status").read_text()
                if not is_dead and (entry / "cwd").resolve() == place:
                    found.append((entry / "cmdline").read_text().replace("\0", " "))
            except OSError:
                continue
        if not found:
            return []
        time.sleep(0.05)
    return found


# --- cheap to start ----------------------------------------------------------------------------


@pytest.mark.parametrize("code", ["import autotune", "import autotune.cli", "HELP"])
def test_import_and_help_load_nothing_heavy(code: str) -> None:
    if code == "HELP":
        code = (
            "import sys; sys.argv = ['autotune', '--help']\n"
            "from autotune.cli import main\n"
            "try: main()\nexcept SystemExit as end: assert end.code == 0"
        )
    heavy = ["torch", "optuna", "scipy", "numpy", "jinja2", "yaml", "pydantic", "plotly"]
    check = f"{code}\nimport sys\nprint('LOADED', [m for m in {heavy} if m in sys.modules])"
    ended = subprocess.run(
        [sys.executable, "-c", check],
        env=environment({}),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1] == "LOADED []"


def test_help_and_version(place: Path) -> None:
    ended = autotune(place, "--help")
    assert ended.returncode == 0
    for name in ("run", "show", "measure", "report", "doctor"):
        assert re.search(rf"^  {name} ", ended.stdout, re.M)
    assert re.fullmatch(r"autotune \d+\.\d+\.\d+\n", autotune(place, "--version").stdout)


# --- results and exit codes --------------------------------------------------------------------


def test_json_is_one_object_on_stdout_and_everything_else_goes_to_stderr(place: Path) -> None:
    ended = autotune(place, "run", "--space", "small.yaml", "--json")
    assert ended.returncode == 0, ended.stderr
    data = json.loads(ended.stdout)
    assert data["status"] == "confirmed" and data["complete"] is True
    assert data["report"] == "studies/small/report.html"
    assert (place / data["report"]).is_file()
    assert "trial 5 (6 of 6)" in ended.stderr

    shown = autotune(place, "show", "small", "--json")
    assert json.loads(shown.stdout) == data


def test_resolved_values_come_before_the_first_trial(place: Path) -> None:
    ended = autotune(place, "run", "--space", "small.yaml", "--set", "limits.latency_p99=3ms")
    lines = ended.stdout.splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("trial 0 (1 of 6)"))
    before = "\n".join(lines[:first])
    assert "P99 latency ≤ 3.00 ms" in before
    assert re.search(r"batch_size +1, 2, 4, 8, 16, 32", before)


def test_short_options_are_keys_of_the_space_file(place: Path) -> None:
    options = ("--trials", "3", "--study", "2024", "--seed", "5", "--sampler", "grid")
    ended = autotune(place, "run", "--space", "small.yaml", "--dry-run", *options)
    assert ended.returncode == 0, ended.stderr
    assert "study 2024" in ended.stdout
    assert "3 trials" in ended.stdout and "seed 5" in ended.stdout
    assert not (place / "studies").exists()


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (["run", "--space", "nope.yaml"], 2, "no space file 'nope.yaml'"),
        (["run", "--space", "small.yaml", "--set", "budget.trails=3"], 2, "did you mean 'trials'"),
        (["run", "--space", "small.yaml", "--trails", "3"], 2, "--trails"),
        (["run", "--space", "small.yaml", "--set", "limits.latency_p99=20"], 2, "unit"),
        (["run", "--space", "small.yaml", "--on-change", "maybe"], 2, "refuse or continue"),
        (["run", "--space", "slow.yaml", "--device", "npu:0"], 3, "npu"),
        (["run", "--space", "small.yaml", "--storage", "sqlite:////nowhere/x.db"], 4, "/nowhere"),
        (["run", "--space", "small.yaml", "--set", "load.poisson.rate=max"], 2, "load.poisson"),
        (["show", "nope"], 2, "no study 'nope'"),
        (["show", "../small"], 2, "not the name of a study"),
        (["report", "nope"], 2, "no study 'nope'"),
        (["measure", "--space", "small.yaml", "--set", "batch_size=77"], 2, "77"),
    ],
)
def test_mistakes_are_one_clear_line_and_an_exit_code(
    args: Sequence[str], code: int, message: str, place: Path
) -> None:
    ended = autotune(place, *args)
    assert ended.returncode == code, ended.stderr
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr
    assert ended.stdout == "" or "trial" not in ended.stdout.split("\n")[-1]


def test_a_wrong_factory_is_found_before_a_study_exists(place: Path) -> None:
    change = 'workload.model="model.py:needs"'
    ended = autotune(place, "run", "--space", "slow.yaml", "--set", change)
    assert ended.returncode == 2
    assert "needs 'what'" in ended.stderr and "Traceback" not in ended.stderr
    assert not (place / "studies").exists()


def test_nothing_feasible_is_exit_1_with_the_limit_and_the_closest(place: Path) -> None:
    limit = ("--set", "limits.latency_p99=0.1ms")
    ended = autotune(place, "run", "--space", "small.yaml", *limit)
    assert ended.returncode == 1
    assert "No tested configuration holds P99 latency ≤ 100 µs" in ended.stdout
    assert "breaks ≤ 100 µs" in ended.stdout
    shown = autotune(place, "show", "small", "--json")
    assert shown.returncode == 1
    data = json.loads(shown.stdout)
    assert data["config"] is None and data["closest"]["config"]["batch_size"] >= 1


def test_undecided_is_exit_1_only_under_strict(place: Path) -> None:
    # A gain of nothing: the only other configuration is a copy of the baseline's figures.
    same = "batch_size,throughput_items_per_s,latency_p99_s,status,cost_s\n"
    same += "1,1000,0.001,ok,0.1\n2,1001,0.001,ok,0.1\n"
    (place / "grid.csv").write_text(same)
    ended = autotune(place, "run", "--space", "small.yaml", "--json")
    status = json.loads(ended.stdout)["status"]
    strict = autotune(place, "show", "small", "--strict")
    assert ended.returncode == 0
    assert strict.returncode == (1 if status == "undecided" else 0)
    assert status in ("undecided", "confirmed")


def test_crashing_alike_ends_the_study_with_the_original_error(place: Path) -> None:
    change = 'workload.model="model.py:crashing"'
    ended = autotune(place, "run", "--space", "slow.yaml", "--set", change)
    assert ended.returncode == 1
    assert "RuntimeError: no kernel for this batch" in ended.stdout
    assert "trials failed alike" in ended.stderr
    assert "the last lines of trial 3:" in ended.stderr and "a last word" in ended.stderr
    assert "4 of 40" in ended.stdout
    report = (place / "studies/slow/report.html").read_text(encoding="utf-8")
    assert "no kernel for this batch" in report
    assert left_running(place) == []


def test_a_study_in_which_every_trial_crashed_names_the_error(place: Path) -> None:
    change = 'workload.model="model.py:narrow"'
    ended = autotune(place, "run", "--space", "slow.yaml", "--set", change)
    assert ended.returncode == 1
    assert "slow: failed. Nothing could be measured: RuntimeError: mat1 and mat2" in ended.stdout
    assert "3 of 40" in ended.stdout and "infeasible" not in ended.stdout
    for command in ("show", "report"):
        assert autotune(place, command, "slow").returncode == 1


def test_show_report_and_measure(place: Path) -> None:
    assert autotune(place, "run", "--space", "small.yaml").returncode == 0
    top = autotune(place, "show", "small", "--top", "3")
    assert len(re.findall(r"^ +\d  trial", top.stdout, re.M)) == 3
    table = autotune(place, "show", "small", "--csv").stdout.splitlines()
    assert "throughput_items_per_s" in table[0] and len(table) > 6
    (place / "studies/small/report.html").unlink()
    written = autotune(place, "report", "small")
    assert written.stdout == "studies/small/report.html\n"
    assert (place / written.stdout.strip()).is_file()
    sure = ("--set", "batch_size=8", "--set", "instance_count=2", "--json")
    measured = json.loads(autotune(place, "measure", "--space", "small.yaml", *sure).stdout)
    assert measured["config"]["batch_size"] == 8 and measured["verdict"]["outcome"] == "ok"
    assert json.loads(autotune(place, "doctor", "--json").stdout)["versions"]["python"]


def test_compare_as_a_gate(place: Path) -> None:
    assert autotune(place, "run", "--space", "small.yaml").returncode == 0
    shown = autotune(place, "compare", "small")
    assert shown.returncode == 0
    assert "A is faster" in shown.stdout
    gate = ("--fresh", "--gate", "--json", "--junit", "out/junit.xml", "--markdown", "out/gate.md")
    passed = autotune(place, "compare", "small", *gate)
    assert passed.returncode == 0
    assert json.loads(passed.stdout)["gate"]["status"] == "passed"
    failed = autotune(place, "compare", "small#baseline", "small", *gate)
    assert failed.returncode == 1
    assert json.loads(failed.stdout)["gate"]["status"] == "failed"
    assert "<failure" in (place / "out/junit.xml").read_text()
    assert "❌" in (place / "out/gate.md").read_text()
    assert autotune(place, "compare", "small", "--gate", "--tolerance", "5").returncode == 2
    kept = autotune(place, "compare", "small", "--save-baseline", "first")
    assert kept.stdout.startswith("kept as baseline:first in studies/.baselines/first/")
    assert autotune(place, "compare", "small", "baseline:first", "--fresh").returncode == 0


def test_the_example_for_ci_does_what_it_says(place: Path) -> None:
    steps = yaml.safe_load((ROOT / "examples/ci-gate.yml").read_text())["jobs"]["gate"]["steps"]
    commands = [s["run"] for s in steps if s.get("run", "").startswith("autotune")]
    (place / "ranker.yaml").write_text(f"{SPACE}baseline: {{batch_size: 16}}\n")
    for command in commands:
        words = shlex.split(command.replace("$STUDIES", str(place / "kept")))
        done = autotune(place, *words[1:])
        assert done.returncode == 0, done.stderr
    assert "passed" in (place / "gate.md").read_text()
    assert (place / "kept/.gates/history.html").is_file()


def test_a_second_run_goes_on_and_a_third_only_prints(place: Path) -> None:
    assert autotune(place, "run", "--space", "small.yaml", "--trials", "4").returncode == 0
    second = autotune(place, "run", "--space", "small.yaml")
    assert "4 of 6" in second.stdout and "2 to go" in second.stdout
    assert len(re.findall(r"^trial ", second.stdout, re.M)) == 2
    third = autotune(place, "run", "--space", "small.yaml")
    assert re.findall(r"^(trial |confirming)", third.stdout, re.M) == []
    assert "Use this configuration" in third.stdout


def test_a_repaired_journal_is_said_aloud(place: Path) -> None:
    assert autotune(place, "run", "--space", "small.yaml", "--trials", "4").returncode == 0
    journal = place / "studies" / "small" / "study.journal"
    with journal.open("ab") as file:
        file.write(b'{"op_code": 5, "worker_id": "cut off')
    second = autotune(place, "run", "--space", "small.yaml")
    assert second.returncode == 0, second.stderr
    assert "4 of 6" in second.stdout
    assert str(journal.relative_to(place)) in second.stderr


# --- signals and pipes -------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_run_at_once_and_says_how_to_go_on(
    number: signal.Signals, place: Path
) -> None:
    process = started(place, "run", "--space", "slow.yaml")
    wait_for_line(process, "trial ")
    sent_s = time.monotonic()
    process.send_signal(number)
    output, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130
    assert time.monotonic() - sent_s < 10
    assert "Go on with: autotune run --space slow.yaml" in errors
    assert "Traceback" not in errors and "not complete: interrupted" in output
    assert "studies/slow/report.html" in output
    assert (place / "studies/slow/report.html").is_file()
    assert left_running(place) == []
    shown = autotune(place, "show", "slow")
    assert shown.returncode == 0 and "unconfirmed" in shown.stdout


def test_a_run_killed_before_any_trial_is_reported_as_empty(place: Path) -> None:
    process = started(place, "run", "--space", "slow.yaml")
    wait_for_line(process, "building")
    journal = place / "studies/slow/study.journal"
    until_s = time.monotonic() + LIMIT_S
    while not (journal.exists() and '"facts"' in journal.read_text()):
        assert time.monotonic() < until_s
        time.sleep(0.01)
    process.kill()
    process.communicate()
    for command in ("show", "report"):
        ended = autotune(place, command, "slow")
        assert ended.returncode == 1, ended.stdout
        assert ended.stderr == "no trial of study slow is complete; run it first\n"
    assert left_running(place) == []


@pytest.mark.parametrize("args", [("show", "small"), ("show", "small", "--csv"), ("doctor",)])
def test_a_reader_that_has_seen_enough_is_no_failure(args: tuple[str, ...], place: Path) -> None:
    autotune(place, "run", "--space", "small.yaml", "--set", "confirm=false")
    process = started(place, *args)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait(timeout=LIMIT_S) == 0


def test_a_closed_pipe_ends_quietly_and_leaves_nothing_running(place: Path) -> None:
    process = started(place, "run", "--space", "slow.yaml")
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.readline() == "study slow\n"
    process.stdout.close()
    assert process.stderr.read() == ""
    process.wait(timeout=LIMIT_S)
    assert left_running(place) == []


def test_a_signal_before_anything_has_begun_ends_in_one_line(place: Path) -> None:
    code = (
        "import builtins, os, signal\n"
        "from autotune.__main__ import main\n"
        "load = builtins.__import__\n"
        "def strike(name, *rest):\n"
        "    if name == 'typer': os.kill(os.getpid(), signal.SIGINT)\n"
        "    return load(name, *rest)\n"
        "builtins.__import__ = strike\n"
        "main()"
    )
    ended = scripted(place, code)
    assert ended.returncode == 130
    assert ended.stderr == "autotune: interrupted\n"


@pytest.mark.parametrize("module", ["typer", "autotune.apps.run", "autotune.apps.library"])
def test_a_signal_before_a_study_exists_leaves_one_json_object(module: str, place: Path) -> None:
    code = (
        "import builtins, os, signal, sys\n"
        "from autotune.__main__ import main\n"
        "sys.argv = ['autotune', 'run', '--space', 'small.yaml', '--json']\n"
        "load = builtins.__import__\n"
        "def strike(name, *rest, **more):\n"
        f"    if name == {module!r}: os.kill(os.getpid(), signal.SIGINT)\n"
        "    return load(name, *rest, **more)\n"
        "builtins.__import__ = strike\n"
        "main()"
    )
    ended = scripted(place, code)
    assert ended.returncode == 130
    assert ended.stderr == "autotune: interrupted\n"
    told = json.loads(ended.stdout)
    assert told["stopped"] == "interrupted" and told["config"] is None and not told["complete"]
    assert not (place / "studies").exists()


def test_a_signal_within_exec_ends_with_the_exit_code_of_an_interruption(place: Path) -> None:
    # Whatever is made of that exception, `python -m` would kill itself at its end.
    code = (
        "import sys, autotune.apps.doctor as looking, autotune.cli\n"
        "strike = 'import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(9)'\n"
        "looking.doctor = lambda: exec(strike)\n"
        "sys.argv = ['autotune', 'doctor']\n"
        "autotune.cli.main()"
    )
    ended = scripted(place, code)
    assert ended.returncode == 130
    assert ended.stderr == "autotune: interrupted\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_at_the_very_end_changes_nothing(number: signal.Signals, place: Path) -> None:
    assert autotune(place, "run", "--space", "small.yaml").returncode == 0
    for delay_s in (0.0, 0.002, 0.005, 0.01, 0.02):
        process = started(place, "show", "small")
        wait_for_line(process, "small:")  # all of it is put out at once
        time.sleep(delay_s)
        process.send_signal(number)
        _, errors = process.communicate(timeout=LIMIT_S)
        assert process.returncode in (0, 130), delay_s
        assert "Traceback" not in errors


def scripted(place: Path, code: str) -> subprocess.CompletedProcess[str]:
    (place / "script.py").write_text(code)
    return subprocess.run(
        [sys.executable, "-m", "script"],
        cwd=place,
        env=environment({}),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


# --- where the output goes ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "env", [{}, {"NO_COLOR": "1"}, {"TERM": "dumb"}, {"COLUMNS": "20"}, {"FORCE_COLOR": "1"}]
)
def test_without_a_terminal_there_are_plain_lines_about_one_per_trial(
    env: dict[str, str], place: Path
) -> None:
    ended = autotune(place, "run", "--space", "small.yaml", env=env)
    assert ended.returncode == 0
    assert not set("\r\x1b") & set(ended.stdout + ended.stderr)
    assert len(re.findall(r"^trial \d \(\d of 6\) ", ended.stdout, re.M)) == 6


@pytest.mark.parametrize(
    ("ending", "code", "message"),
    [
        (">&-", 0, ""),
        ("2>&-", 0, ""),
        ("<&- >&- 2>&-", 0, ""),
        (">/dev/full", 4, "autotune: No space left on device\n"),
        ("--json >&-", 2, "autotune: --json writes to the standard output, which is closed\n"),
    ],
)
def test_an_output_that_is_closed_or_full(
    ending: str, code: int, message: str, place: Path
) -> None:
    command = f"{shlex.join(words('run', '--space', 'small.yaml'))} {ending}"
    ended = subprocess.run(
        ["sh", "-c", command],
        cwd=place,
        env=environment({}),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (code, message)
    assert (place / "studies/small/report.html").exists() == (code == 0)


def test_a_study_may_be_named_in_any_script(place: Path) -> None:
    ended = autotune(place, "run", "--space", "small.yaml", "--study", "𠀀", "--dry-run")
    assert ended.returncode == 0, ended.stderr
    assert "study 𠀀" in ended.stdout


def test_any_script_is_printed_under_any_locale(place: Path) -> None:
    (place / "zh.yaml").write_bytes(f"# 批大小\nstudy: 测试\n{SPACE}".encode())
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    ended = autotune(place, "run", "--space", "zh.yaml", env=locale)
    assert ended.returncode == 0, ended.stderr
    assert "study 测试" in ended.stdout
    assert (place / "studies/测试/report.html").is_file()
    assert "测试: confirmed" in autotune(place, "show", "测试", env=locale).stdout
    (place / "gbk.yaml").write_bytes(f"# 批大小\n{SPACE}".encode("gbk"))
    wrong = autotune(place, "run", "--space", "gbk.yaml", env=locale)
    assert wrong.returncode == 2 and "gbk.yaml" in wrong.stderr and "UTF-8" in wrong.stderr


def on_a_terminal(place: Path, *args: str, env: Mapping[str, str]) -> str:
    """Run under a pseudo-terminal and return all it was sent."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        words(*args), cwd=place, env=environment(env), stdin=follower, stdout=follower,
        stderr=follower,
    )  # fmt: skip
    os.close(follower)
    received = b""
    until_s = time.monotonic() + LIMIT_S
    while time.monotonic() < until_s:
        if select.select([leader], [], [], 0.2)[0]:
            try:
                chunk = os.read(leader, 65536)
            except OSError:  # the other side is closed
                break
            received += chunk
        elif process.poll() is not None:
            break
    os.close(leader)
    assert process.wait(timeout=LIMIT_S) == 0
    return received.decode()


def test_on_a_terminal_there_is_a_live_picture_and_the_result_stays(place: Path) -> None:
    sent = on_a_terminal(
        place, "run", "--space", "small.yaml", env={"TERM": "xterm", "COLUMNS": "100"}
    )
    assert "\x1b[" in sent
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", sent)
    for piece in ("6 of 6 trials", "best  ok", "now   (0 s) confirming", "small: confirmed"):
        assert piece in plain
    assert "\x1b[?25h" in sent  # the cursor is back


def test_a_narrow_terminal_still_says_how_far_it_is(place: Path) -> None:
    sent = on_a_terminal(
        place, "run", "--space", "small.yaml", "--time", "5min",
        env={"TERM": "xterm", "COLUMNS": "20"},
    )  # fmt: skip
    plain = " ".join(re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", sent).split())
    assert re.search(r"6 of 6 trials, [\d. a-z]+ left at most", plain)


def test_a_dumb_terminal_gets_plain_lines(place: Path) -> None:
    sent = on_a_terminal(place, "run", "--space", "small.yaml", env={"TERM": "dumb"})
    assert "\x1b" not in sent
    assert "trial 5 (6 of 6)" in sent


# --- from a script -----------------------------------------------------------------------------


def test_a_script_without_a_main_guard_runs_once(place: Path) -> None:
    script = "import autotune\nprint('once')\nr = autotune.run(space='slow.yaml', overrides=OVER)\n"
    script += "print(r.status, r.trial_count)\n"
    over = "['budget.trials=2', 'confirm=false']"
    (place / "run.py").write_text(script.replace("OVER", over))
    ended = subprocess.run(
        [sys.executable, "run.py"],
        cwd=place,
        env=environment({}),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "once\nunconfirmed 2\n"
    assert left_running(place) == []
