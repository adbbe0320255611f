"""The sections of a space file other than its parameters: values, defaults, refusals."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.core.objective import Limit
from autotune.core.records import InputSpec, Load
from autotune.space.search_space import Budget, Confirm, TrialOptions

HEAD = "workload: {model: mlp}\n"


def test_everything_left_out_takes_its_default(load):
    space = load(HEAD, name="my space.v2.yaml")
    assert space.study == "my-space.v2"
    assert (space.device, space.sampler, space.storage) == ("auto", "auto", "journal")
    assert space.objective.name == "offline_throughput"
    assert space.objective.load == Load() and space.objective.limits == ()
    assert space.budget == Budget(trials=40, time_s=None)
    assert space.trial == TrialOptions(duration_s=2.0, iterations=None, timeout_s=60.0, seed=0)
    assert space.confirm == Confirm(top=3, duration_s=20.0, alpha=0.01)
    assert (space.workload.kind, space.workload.precision) == ("torch", "float32")
    assert [rule.text for rule in space.rules] == ["batch_size % micro_batch_count == 0"]
    assert space.baseline.as_dict() == {
        "batch_size": 1,
        "instance_count": 1,
        "cores_per_instance": "all",
        "batched_h2d": False,
        "micro_batch_count": 1,
    }


def test_a_latency_limit_makes_the_study_online(load):
    assert load(HEAD + "limits: {latency_p90: 5ms}").objective.name == "online_latency"
    assert load(HEAD + "limits: {memory_peak: 1GiB}").objective.name == "offline_throughput"


@pytest.mark.parametrize(
    ("written", "limit"),
    [
        ("latency_p99: 20ms", Limit(metric="latency_p99", bound=0.02)),
        ("latency_p99: 50 ms", Limit(metric="latency_p99", bound=0.05)),
        ('latency_p99: "<= 20ms"', Limit(metric="latency_p99", bound=0.02)),
        ("latency_mean: 1.5e3us", Limit(metric="latency_mean", bound=0.0015)),
        ("memory_peak: 4GiB", Limit(metric="memory_peak", bound=4 * 2**30)),
        ('throughput: ">= 500/s"', Limit(metric="throughput", bound=500.0)),
        ("throughput: 500/s", Limit(metric="throughput", bound=500.0)),
        ("power: 300W", Limit(metric="power", bound=300.0)),
    ],
)
def test_limits_in_si(load, written, limit):
    (found,) = load(HEAD + f"limits: {{{written}}}").objective.limits
    assert found.metric == limit.metric
    assert found.bound == pytest.approx(limit.bound)


@pytest.mark.parametrize(
    ("section", "place", "words"),
    [
        ("limits: {p99: 50ms}", "limits.p99", "did you mean 'latency_p99'?"),
        ("limits: {latency_p99: 50}", "limits.latency_p99", "no unit"),
        ("limits: {latency_p99: 0}", "limits.latency_p99", "0 is not above 0"),
        ("limits: {latency_p99: 0ms}", "limits.latency_p99", "0ms is not above 0"),
        ("limits: {latency_p99: -1ms}", "limits.latency_p99", "-1ms is not above 0"),
        ("limits: {latency_p99: -1}", "limits.latency_p99", "no unit"),
        ("limits: {latency_p99: 50mss}", "limits.latency_p99", "unknown unit 'mss'"),
        ("limits: {latency_p99: 4GiB}", "limits.latency_p99", "unknown unit 'GiB'"),
        ("limits: {latency_p99: .nan}", "limits.latency_p99", "duration"),
        ("limits: {latency_p99: infms}", "limits.latency_p99", "duration"),
        ("limits: {latency_p99: 1e999s}", "limits.latency_p99", "not finite"),
        ("limits: {latency_p99: 1:30}", "limits.latency_p99", "1:30"),
        ("limits: {latency_p99: }", "limits.latency_p99", "nothing"),
        ('limits: {latency_p99: ">= 5ms"}', "limits.latency_p99", "a maximum; write <="),
        ('limits: {throughput: "<= 5/s"}', "limits.throughput", "a minimum; write >="),
        ("limits: {throughput: 500}", "limits.throughput", "no unit"),
        ("objective: online_latency", "objective", "needs a limit on one of latency_p99"),
        ("objective: online_latncy", "objective", "did you mean 'online_latency'?"),
        ("load: {poison: {rate: max}}", "load.poison", "did you mean 'poisson'?"),
        ("load: {poisson: {}}", "load.poisson", "rate is missing"),
        ("load: {poisson: {rate: 500}}", "load.poisson.rate", "no unit"),
        ("load: {poisson: {rate: 0/s}}", "load.poisson.rate", "not above 0"),
        ("load: {poisson: {rat: max}}", "load.poisson.rat", "did you mean 'rate'?"),
        ("load: {closed: {rate: max}}", "load.closed.rate", "write {} or {clients: 16}"),
        ("load: {closed: {clients: 0}}", "load.closed.clients", "below 1"),
        ("load: {closed: {clients: 1.5}}", "load.closed.clients", "not a whole number"),
        ("load: {closed: {clients: 16/s}}", "load.closed.clients", "expected a whole number"),
        ("load: {closed: {}, poisson: {rate: max}}", "load", "closed and poisson"),
        ("load: {}", "load", "found none"),
        ("load: {trace: nowhere.txt}", "load.trace", "no file"),
        ("budget: {trials: 0}", "budget.trials", "0 is below 1"),
        ("budget: {trials: 2.5}", "budget.trials", "not a whole number"),
        ("budget: {time: 5}", "budget.time", "no unit"),
        ("budget: {time: 0s}", "budget.time", "not above 0"),
        ("budget: {time: 1:30}", "budget.time", "1:30"),
        ("budget: {tirals: 5}", "budget.tirals", "did you mean 'trials'?"),
        ("trial: {duration: 2}", "trial.duration", "no unit"),
        ("trial: {duration: 90s}", "trial.timeout", "not above the duration"),
        ("trial: {timeout: 2s}", "trial.timeout", "not above the duration"),
        ("trial: {duration: 2s, iterations: 5}", "trial.iterations", "exclude"),
        ("trial: {iterations: 0}", "trial.iterations", "0 is below 1"),
        ("trial: {seed: -1}", "trial.seed", "-1 is below 0"),
        ("trial: {warm_up: 10}", "trial.warm_up", "unknown key"),
        ("measure: {warmup: 10}", "measure", "unknown key 'measure'"),
        ("sampler: gpp", "sampler", "did you mean 'gp'?"),
        ("confirm: 3", "confirm", "expected a mapping"),
        ("confirm: {top: 0}", "confirm.top", "0 is below 1"),
        ("confirm: {alpha: 1}", "confirm.alpha", "between 0 and 0.5"),
        ("confirm: {alpha: 0}", "confirm.alpha", "between 0 and 0.5"),
        ("confirm: {durtion: 5s}", "confirm.durtion", "did you mean 'duration'?"),
        ('storage: ""', "storage", "empty text"),
        ("storage: jurnal", "storage", "did you mean 'journal'?"),
        ("storage: study.db", "storage", "unknown value 'study.db'; known: journal, sqlite"),
        ('device: ""', "device", "empty text"),
        ("on: {latency_p99: 50ms}", "", "not text"),
        ("baseline: {batchsize: 1}", "baseline.batchsize", "did you mean 'batch_size'?"),
        ("baseline: {batch_size: 0}", "baseline.batch_size", "0 is below 1"),
        ("baseline: {batch_size: [1]}", "baseline.batch_size", "a list"),
        ("study: ../evil", "study", "'/'"),
        ("study: a b", "study", "' '"),
        ("study: .hidden", "study", "begins with '.'"),
        ("study: ..", "study", "begins with '.'"),
        ("study: -x", "study", "begins with '-'"),
        ('study: "a\\nb"', "study", "'\\n'"),
        ("study: <script>", "study", "'<'"),
        ("study: ~", "study", "nothing"),
        (f"study: {'n' * 101}", "study", "longer than 100"),
        (f"study: {'批' * 70}", "study", "longer than 100"),
        ("rules: [bach_size < 4]", "rules[0]", "did you mean 'batch_size'?"),
        ("rules: [batch_size]", "rules", "not true or false"),
        ("rules: [[1]]", "rules[0]", "a list"),
    ],
)
def test_a_bad_value_is_refused_with_its_place(refusal, section, place, words):
    message = refusal(HEAD + section)
    assert message.startswith(f"t.yaml:2: {place}"), message
    assert words in message and "\n" not in message


def test_several_faults_are_told_at_once(refusal):
    text = HEAD + "budget: {trials: 0}\nsampler: gpp\ntrial: {seed: x}\n"
    lines = refusal(text).splitlines()
    assert [line.split(":")[1] for line in lines] == ["2", "4", "3"]


def test_a_missing_workload_is_named(refusal):
    assert refusal("device: cpu\n") == "t.yaml:1: workload: is missing"


@pytest.mark.parametrize(
    ("written", "name"),
    [
        *((name, name) for name in ("2024-01-01", "1_000", "010", "on", "测试", "a.b-c_1")),
        ("e\u0301tude", "étude"),
        ("1:30", None),
    ],
)
def test_a_study_keeps_its_name_as_written(load, refusal, written, name):
    if name is None:
        assert "':'" in refusal(HEAD + f"study: {written}")
    else:
        assert load(HEAD + f"study: {written}").study == name


@pytest.mark.parametrize("value", ["false", "off", "no"])
def test_confirmation_can_be_skipped(load, value):
    assert load(HEAD + f"confirm: {value}").confirm is None
    assert load(HEAD + "confirm: true").confirm == Confirm()
    assert load(HEAD + "confirm: {top: 1}").confirm == Confirm(top=1)


def test_iterations_take_the_place_of_a_duration(load):
    assert load(HEAD + "trial: {iterations: 1e4}").trial == TrialOptions(
        duration_s=None, iterations=10_000
    )


def test_loads(load, tmp_path: Path):
    assert load(HEAD + "load: {closed: {}}").objective.load == Load()
    assert load(HEAD + "load: {closed: {clients: 16}}").objective.load == Load(clients=16)
    tail = "limits: {latency_p99: 5ms}\n"
    sought = load(HEAD + tail + "load: {poisson: {rate: max}}").objective.load
    assert sought == Load(kind="poisson")
    expected = Load(kind="constant", rate_per_s=10.0)
    assert load(HEAD + "load: {constant: {rate: 600/min}}").objective.load == expected
    (tmp_path / "arrivals.txt").write_text("0.1\n")
    found = load(HEAD + "load: {trace: arrivals.txt}").objective.load
    assert found == Load(kind="trace", trace=str(tmp_path / "arrivals.txt"))


# --- workloads ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("{}", "found none"),
        ("{model: mlp, replay: g.csv}", "model and replay"),
        ("{runtime: torch}", "found none"),
        ("{replay: g.csv, runtime: torch}", "runtime belongs to model, not to replay"),
        ("{model: mlp, metrics: {}}", "metrics belongs to command"),
        ("{model: mlp, noise: 0.1}", "noise belongs to replay or simulated or command"),
        ("{modle: mlp}", "did you mean 'model'?"),
        ("{model: mlp, runtime: torhc}", "did you mean 'torch'?"),
        ("{model: mlp, precision: fp32}", "known: float32"),
        ("{model: absent.py:make}", "no file"),
        ("{model: ./sub/absent.onnx}", "no file"),
        ("{model: there.py}", "names no factory"),
        ("{model: 'there.py:'}", "names no factory"),
        ("{model: 'there.py:a b'}", "names no factory"),
        ("{model: a/b}", "not path.py:factory"),
        ("{replay: absent.csv}", "no file"),
        ("{simulated: a, noise: 1}", "between"),
        ("{simulated: a, noise: -0.1}", "between"),
        ("{simulated: a, seed: x}", "whole number"),
        ("{model: mlp, inputs: [{name: x}]}", "shape: is missing"),
        ("{model: mlp, inputs: [{name: x, shape: [batch, 0]}]}", "0 is below 1, or 'batch'"),
        ("{model: mlp, inputs: [{name: x, shape: [batch, seq]}]}", "'seq'"),
        ("{model: mlp, inputs: [{name: x, shape: [batch, batch]}]}", "one axis only"),
        ("{model: mlp, inputs: [{name: x, shape: [1], dtype: float}]}", "did you mean 'float"),
        ("{model: mlp, inputs: [{name: x, shape: [1], low: 5, high: 5}]}", "not below high"),
        ("{model: mlp, inputs: [{name: x, shape: [1], low: .nan}]}", ".nan"),
        ("{model: mlp, inputs: [{name: x, shape: []}, {name: x, shape: []}]}", "given twice"),
        ("{model: mlp, options: [1]}", "expected a mapping"),
        ("{model: mlp, options: {a: [1]}}", "expected text, found a list"),
        ("{command: []}", "an empty list"),
        ("{command: {a: b}}", "a list of words or text"),
        ("{command: [a, [b]]}", "expected text, found a list"),
        ('{command: "a \'b"}', "cannot be split"),
        ("{command: [a], shell: true}", "one text, found a list"),
        ('{command: [bench, "{batch}"]}', "{batch}; did you mean 'batch_size'?"),
        ('{command: "bench {batchsize}"}', "did you mean 'batch_size'?"),
        ("{command: [a], metrics: {thruput: t}}", "did you mean 'throughput'?"),
        ("{command: [a], metrics: {latency_p99_s: {unit: ms}}}", "give either key or regex"),
        ("{command: [a], metrics: {latency_p99: {key: a, regex: b}}}", "either key or regex"),
        ("{command: [a], metrics: {latency_p99: {regex: '('}}}", "no regular expression"),
        ("{command: [a], metrics: {latency_p99: {regex: 'p99'}}}", "has no group"),
        ("{command: [a], metrics: {latency_p99: a}, parser: trtexec}", "leave them out"),
        ("{command: [a], parser: nosuch}", "nosuch"),
        ("{model: mlp, parser: json}", "parser belongs to command"),
        ("{command: [a], metrics: {latency_p99_s: {key: a, unit: GiB}}}", "no unit of latency"),
        ("{command: [a], metrics: {latency_p99_s: {key: a, unit: sec}}}", "unknown value 'sec'"),
    ],
)
def test_a_bad_workload_is_refused(refusal, written, words, tmp_path: Path):
    (tmp_path / "there.py").write_text("")
    message = refusal(f"workload: {written}\n")
    assert message.startswith("t.yaml:1: workload"), message
    assert words in message and "\n" not in message


def test_paths_are_relative_to_the_file_not_to_the_working_directory(
    load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "models").mkdir()
    for name in ("f.py", "net.onnx", "grid.csv"):
        (tmp_path / "models" / name).write_text("")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    factory = load("workload: {model: models/f.py:make}").workload
    assert (factory.kind, factory.model) == ("torch", f"{tmp_path}/models/f.py:make")
    assert factory.base_dir == str(tmp_path)
    onnx = load("workload: {model: models/net.onnx}").workload
    assert (onnx.kind, onnx.model) == ("onnxruntime", f"{tmp_path}/models/net.onnx")
    replay = load("workload: {replay: models/grid.csv, noise: 0.03, seed: 4}").workload
    assert (replay.kind, replay.model) == ("replay", f"{tmp_path}/models/grid.csv")
    assert replay.options == {"noise": 0.03, "seed": 4}


def test_a_model_with_everything(load):
    spec = load(
        "workload:\n  model: mlp\n  runtime: openvino\n  precision: bfloat16\n"
        "  options: {width: 64, name: small, fast: true}\n"
        "  inputs:\n  - {name: ids, shape: [26, batch], dtype: int64, low: 0, high: 1e3}\n"
        "  - {name: s, shape: []}\n"
    ).workload
    assert (spec.kind, spec.precision) == ("openvino", "bfloat16")
    assert spec.options == {"width": 64, "name": "small", "fast": True}
    assert spec.inputs == (
        InputSpec(name="ids", shape=(26, "batch"), dtype="int64", low=0, high=1000),
        InputSpec(name="s", shape=()),
    )


def test_a_command_in_its_forms(load):
    json_words = 'workload: {command: [echo, \'{"a": {"b": 5}}\', "{batch_size}", "{{x}}", "-{k}"]}'
    spec = load(json_words + "\nparams: {k: [1, 2]}").workload
    assert spec.kind == "command"
    assert spec.options["command"] == ["echo", '{"a": {"b": 5}}', "{batch_size}", "{{x}}", "-{k}"]
    text = load("workload: {command: \"bench --a 'b c' {batch_size}; rm -rf x\"}").workload
    assert text.options["command"] == ["bench", "--a", "b c", "{batch_size};", "rm", "-rf", "x"]
    assert text.options["shell"] is False
    shell = load('workload: {command: "bench | tail -1", shell: true}').workload
    assert (shell.options["command"], shell.options["shell"]) == (["bench | tail -1"], True)
    metrics = load(
        "workload: {command: [b], metrics: {throughput_items_per_s: t,"
        " latency_p99_s: {key: l, unit: ms}}}"
    ).workload.options["metrics"]
    assert metrics == {
        "throughput_items_per_s": {"key": "t", "unit": None},
        "latency_p99_s": {"key": "l", "unit": "ms"},
    }


def test_a_parameter_that_no_placeholder_uses_is_a_typo(refusal):
    text = 'workload: {command: [b, "{batch_size}"]}\nparams: {mode: [a, b]}\n'
    assert "unknown parameter 'mode'" in refusal(text)


def test_the_divisibility_rule_speaks_of_the_global_batch_in_a_pipeline(load):
    head = "workload: {model: transformer, runtime: pipeline}\n"
    space = load(head + "params: {global_batch_size: [8, 12], micro_batch_count: [1, 4, 8]}")
    assert [rule.text for rule in space.rules] == ["global_batch_size % micro_batch_count == 0"]
    assert space.parameter("global_batch_size").log
    assert space.allowed_count(100) == 5


def test_a_sought_rate_needs_a_tail_to_hold(load, refusal):
    text = "workload: {model: dlrm}\nparams: {batch_size: [1, 2]}\nload: {poisson: {rate: max}}\n"
    message = refusal(text + "limits: {latency_mean: 5ms}\n")
    assert message.startswith("t.yaml:3: load: rate: max needs a limit on a latency quantile")
    space = load(text + "limits: {latency_p90: 5ms}\n")
    assert space.objective.load.seeks_rate and space.objective.load.is_open
