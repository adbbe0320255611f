"""`--set key.path=value`: the file's rules for values, the override's name in messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.core.errors import UsageError
from autotune.core.objective import Limit
from autotune.space.loader import load_space
from autotune.space.overrides import split_path

FILE = (
    "workload: {model: mlp}\nlimits: {latency_p99: 20ms}\n"
    "params:\n  batch_size: [1, 2]\n  env.A.x: 1\nconfirm: false\n"
)
BASIC = FILE.replace("  env.A.x: 1\n", "")


def test_values_replace_the_files(load):
    space = load(
        BASIC,
        [
            "params.batch_size={low: 1, high: 8, log: true}",
            "params.env.OMP_WAIT_POLICY=[PASSIVE, ACTIVE]",
            "limits.latency_p99 = 5ms",
            "limits.memory_peak=1GiB",
            "budget.trials=1e2",
            "confirm.top=2",
            "study=010",
            "baseline.env.OMP_WAIT_POLICY=ACTIVE",
        ],
    )
    assert space.parameter("batch_size").choices == (1, 2, 3, 4, 6, 8)
    assert space.parameter("env.OMP_WAIT_POLICY").choices == ("PASSIVE", "ACTIVE")
    assert space.objective.limits[0] == Limit(metric="latency_p99", bound=0.005)
    assert space.budget.trials == 100 and space.confirm.top == 2 and space.study == "010"
    assert space.baseline.environment() == {"OMP_WAIT_POLICY": "ACTIVE"}


def test_a_part_of_a_range_can_be_set(load):
    text = BASIC.replace("[1, 2]", "{low: 1, high: 8, log: true}")
    space = load(text, ["params.batch_size.high=4"])
    assert space.parameter("batch_size").choices == (1, 2, 3, 4)
    space = load(BASIC, ["params.batch_size.low=3", "params.batch_size.high=4"])
    assert space.parameter("batch_size").choices == (3, 4)


def test_null_takes_a_key_out(load):
    space = load(BASIC, ["limits=null", "params.batch_size=null", "confirm=~"])
    assert space.objective.limits == () and space.parameter("batch_size").choices == (1,)
    assert space.confirm is not None


def test_the_last_of_two_wins(load):
    assert load(BASIC, ["trial.seed=1", "trial.seed=2"]).trial.seed == 2


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("params.batch_size=0", "--set params.batch_size: 0 is below 1"),
        ("params.batch_size=[4, 0]", "--set params.batch_size: params.batch_size[1]: 0 is below 1"),
        ("params={batch_size: 0}", "--set params: params.batch_size: 0 is below 1"),
        ("limits.latency_p99=20", "--set limits.latency_p99: '20' has no unit"),
        ("params.batchsize=1", "--set params.batchsize: unknown parameter 'batchsize'; did you"),
        ("limit.latency_p99=5ms", "--set limit.latency_p99: limit: unknown key 'limit'; did you"),
        ("budget.trails=5", "--set budget.trails: unknown key 'trails'; did you mean 'trials'?"),
        ("params.batch_size=[1", "--set params.batch_size: "),
        ("params.batch_size=08", "--set params.batch_size: 08 has a leading zero; write 8"),
        ("study=!!str x", "--set study: YAML tags"),
        ('study="a\\tb"', "--set study: 'a\\tb' contains '\\t'"),
        ("study={a: 1, a: 2}", "--set study: the key 'a' is given twice"),
        ("study", "--set study: write key.path=value"),
        ("=5", "--set =5: write key.path=value"),
        ("study=", "--set study: no value after '='"),
        ("trial..seed=1", "--set trial..seed: an empty key in the path"),
        ("workload.inputs.name=x", "--set workload.inputs.name: cannot reach into a list"),
    ],
)
def test_a_bad_override_is_named(refusal, override, message):
    text = BASIC.replace("{model: mlp}", "{model: mlp, inputs: [{name: x, shape: [batch]}]}")
    assert refusal(text, [override]).startswith(message)


def test_other_faults_still_name_their_line(refusal):
    message = refusal(BASIC.replace("[1, 2]", "[0]"), ["trial.seed=1"])
    assert message.startswith("t.yaml:4: params.batch_size[0]: ")


def test_paths_of_parameters_keep_their_dots():
    assert split_path("params.env.A") == ["params", "env.A"]
    assert split_path("params.env.low") == ["params", "env.low"]
    assert split_path("params.env.A.low") == ["params", "env.A", "low"]
    assert split_path("params.batch_size.step") == ["params", "batch_size", "step"]
    assert split_path("baseline.env.A") == ["baseline", "env.A"]
    assert split_path("workload.options.width") == ["workload", "options", "width"]


def test_a_path_given_on_the_command_line_starts_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
        (folder / "m.py").write_text("")
    space_file = there / "s.yaml"
    space_file.write_text("workload: {model: m.py:make}\n")
    monkeypatch.chdir(here)
    assert load_space(space_file).workload.model == f"{there}/m.py:make"
    set_here = load_space(space_file, ["workload.model=./m.py:make"])
    assert set_here.workload.model == f"{here}/m.py:make"
    with pytest.raises(UsageError, match=r"--set workload.model: no file .*/here/nowhere.py"):
        load_space(space_file, ["workload.model=nowhere.py:make"])


def test_the_recorded_text_has_the_overrides_and_loads_to_the_same(load, tmp_path):
    once = load(BASIC, ["limits.throughput=500/s", "study=2024-01-01", "params.env.B=['1', on]"])
    again = load(once.source.text, name="again.yaml")
    assert again.source.text == once.source.text
    assert (again.params, again.objective, again.study) == (once.params, once.objective, once.study)
    assert load(BASIC).source.text == BASIC
