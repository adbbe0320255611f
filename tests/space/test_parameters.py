"""What may stand under `params`, and what it becomes."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.space.parameters import MAX_CHOICES, ladder

HEAD = "workload: {model: mlp}\n"
COMMAND = 'workload: {command: [bench, "{batch_size}", "{mode}"]}\n'


def choices(space, name):
    return space.parameter(name).choices


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("{low: 1, high: 24, log: true}", (1, 2, 3, 4, 6, 8, 12, 16, 24)),
        ("{low: 5, high: 20, log: on}", (5, 6, 8, 12, 16, 20)),
        ("{low: 7, high: 7, log: true}", (7,)),
        ("{low: 2, high: 5}", (2, 3, 4, 5)),
        ("{low: 4, high: 17, step: 4}", (4, 8, 12, 16)),
        ("{low: 1, high: 3, log: false}", (1, 2, 3)),
        ("[8, 1, 4]", (1, 4, 8)),
        ("[1e3, 1]", (1, 1000)),
        ("16", (16,)),
        ("1e3", (1000,)),
    ],
)
def test_batch_sizes(load, written, expected):
    space = load(HEAD + f"params: {{batch_size: {written}}}")
    parameter = space.parameter("batch_size")
    assert parameter.choices == expected
    assert parameter.log
    assert all(type(choice) is int for choice in parameter.choices)


@given(st.integers(1, 10**9), st.integers(1, 10**9))
def test_the_ladder_keeps_its_bounds_and_grows_by_at_most_half(one, other):
    low, high = min(one, other), max(one, other)
    rungs = ladder(low, high)
    assert (rungs[0], rungs[-1]) == (low, high)
    assert all(a < b and b <= 2 * a for a, b in itertools.pairwise(rungs))


@pytest.mark.parametrize(
    ("written", "place", "words"),
    [
        ("{batch_size: [0, 1, 2]}", "params.batch_size[0]", "0 is below 1"),
        ("{batch_size: [-4, 4]}", "params.batch_size[0]", "-4 is below 1"),
        ("{batch_size: 0}", "params.batch_size", "0 is below 1"),
        ("{batch_size: {low: 0, high: 8}}", "params.batch_size.low", "0 is below 1"),
        ("{batch_size: {low: 0, high: 8, log: true}}", "params.batch_size.low", "0 is below 1"),
        ("{instance_count: [0]}", "params.instance_count[0]", "0 is below 1"),
        ("{micro_batch_count: [0]}", "params.micro_batch_count[0]", "0 is below 1"),
        ("{cores_per_instance: [0]}", "params.cores_per_instance[0]", "0 is below 1"),
        ("{batch_size: {low: 8, high: 1}}", "params.batch_size", "low 8 is above high 1"),
        ("{batch_size: []}", "params.batch_size", "an empty list"),
        ("{batch_size: {}}", "params.batch_size", "low is missing"),
        ("{batch_size: {low: 1}}", "params.batch_size", "high is missing"),
        ("{batch_size: [1, 1, 2]}", "params.batch_size[1]", "1 is given twice"),
        ("{batch_size: [1, 1e0]}", "params.batch_size[1]", "1e0 is given twice"),
        ('{batch_size: [1, 2.0, "4"]}', "params.batch_size[2]", "the text '4'"),
        ("{batch_size: [1.5]}", "params.batch_size[0]", "1.5 is not a whole number"),
        ("{batch_size: [08]}", "params.batch_size[0]", "leading zero"),
        ("{batch_size: [010]}", "params.batch_size[0]", "leading zero; write 10"),
        ("{batch_size: [016]}", "params.batch_size[0]", "leading zero"),
        ("{batch_size: [1_000]}", "params.batch_size[0]", "1_000"),
        ("{batch_size: [0x10]}", "params.batch_size[0]", "0x10"),
        ("{batch_size: [1:30]}", "params.batch_size[0]", "1:30"),
        ("{batch_size: [.inf]}", "params.batch_size[0]", ".inf"),
        ("{batch_size: [.nan]}", "params.batch_size[0]", ".nan"),
        ("{batch_size: [1e400]}", "params.batch_size[0]", "1e400"),
        ("{batch_size: [1e30]}", "params.batch_size[0]", "is above"),
        ("{batch_size: [99999999999999999999999]}", "params.batch_size[0]", "is above"),
        ("{batch_size: [true]}", "params.batch_size[0]", "true"),
        ("{batch_size: [~]}", "params.batch_size[0]", "nothing"),
        ("{batch_size: {choices: [1, 2]}}", "params.batch_size.choices", "write the list itself"),
        ("{batch_size: {low: 1, hgh: 2}}", "params.batch_size.hgh", "did you mean 'high'?"),
        ("{batch_size: {low: 1, high: 8, step: pow2}}", "params.batch_size.step", "'pow2'"),
        ("{batch_size: {low: 1, high: 8, step: 0}}", "params.batch_size.step", "0 is below 1"),
        ("{batch_size: {low: 1, high: 8, log: 2}}", "params.batch_size", "true or false"),
        ("{batch_size: {low: 1, high: 8, log: true, step: 2}}", "params.batch_size.step", "log"),
        ("{batch_size: {low: 1, high: 10001}}", "params.batch_size", "at most 10000"),
        ("{batchsize: [1, 2]}", "params.batchsize", "did you mean 'batch_size'?"),
        ("{batch-size: [1, 2]}", "params.batch-size", "did you mean 'batch_size'?"),
        ("{batched_h2d: [1]}", "params.batched_h2d[0]", "true or false"),
        ('{batched_h2d: ["true"]}', "params.batched_h2d[0]", "the text 'true'"),
        ("{batched_h2d: [on, auto]}", "params.batched_h2d[1]", "true or false"),
        ("{batched_h2d: {low: 0, high: 1}}", "params.batched_h2d", "a range"),
        ("{instance_mode: [proces]}", "params.instance_mode[0]", "did you mean 'process'?"),
        ("{cores_per_instance: [auto, 1]}", "params.cores_per_instance[0]", "stands alone"),
        ("{cores_per_instance: ['2']}", "params.cores_per_instance[0]", "the text '2'"),
        ("{cores_per_instance: [8|0]}", "params.cores_per_instance[0]", "8|0"),
        ("{max_queue_delay: [2]}", "params.max_queue_delay[0]", "no unit"),
        ("{max_queue_delay: [-1ms]}", "params.max_queue_delay[0]", "at least 0"),
        ("{max_queue_delay: {low: 0ms, high: 2ms}}", "params.max_queue_delay", "step is missing"),
        (
            "{max_queue_delay: {low: 1ms, high: 2ms, log: true}}",
            "params.max_queue_delay.log",
            "log",
        ),
        ("{env.: [1]}", "params.env.", "unknown parameter"),
        ("{env.A=B: [1]}", "params.env.A=B", "unknown parameter"),
        ("{env.A: [1, '1']}", "params.env.A[1]", "given twice"),
        ("{env.A: [{b: 1}]}", "params.env.A[0]", "a mapping"),
        ("{env.HF_TOKEN: [hf_abcdefgh]}", "params.env.HF_TOKEN", "no place for a secret"),
    ],
)
def test_a_bad_parameter_is_refused_with_its_place(refusal, written, place, words):
    message = refusal(HEAD + f"params: {written}")
    assert message.startswith(f"t.yaml:2: {place}: "), message
    assert words in message and "\n" not in message


def test_every_item_is_found_in_its_own_line(refusal):
    text = HEAD + "params:\n  batch_size:\n    - 4\n    - 0\n"
    assert refusal(text) == "t.yaml:5: params.batch_size[1]: 0 is below 1"


def test_as_many_choices_as_allowed_load(load):
    space = load(HEAD + f"params: {{batch_size: {{low: 1, high: {MAX_CHOICES}}}}}")
    assert len(choices(space, "batch_size")) == MAX_CHOICES


@pytest.mark.parametrize("written", ["[on, off]", "[yes, no]", "[True, FALSE]", "[true, false]"])
def test_booleans_in_all_their_spellings(load, written):
    assert choices(load(HEAD + f"params: {{batched_h2d: {written}}}"), "batched_h2d") == (
        written.lower().startswith(("[on", "[yes", "[true")),
        False,
    )


def test_core_splits(load):
    space = load(HEAD + 'params: {cores_per_instance: [all, 4, "16|16", 8|8, 2]}')
    parameter = space.parameter("cores_per_instance")
    assert parameter.choices == (2, 4, "all", "16|16", "8|8")
    assert not parameter.is_numeric and not parameter.auto
    assert load(HEAD + "params: {cores_per_instance: auto}").parameter("cores_per_instance").auto


def test_delays_become_seconds(load):
    head = HEAD + "load: {poisson: {rate: max}}\nlimits: {latency_p99: 20ms}\n"
    listed = load(head + "params: {max_queue_delay: [2ms, 0, 500us]}")
    assert choices(listed, "max_queue_delay") == (0.0, 0.0005, 0.002)
    stepped = load(head + "params: {max_queue_delay: {low: 0ms, high: 1ms, step: 0.2ms}}")
    assert choices(stepped, "max_queue_delay") == (0.0, 0.0002, 0.0004, 0.0006, 0.0008, 0.001)


def test_a_delay_under_a_closed_load_is_left_out_and_said(load):
    space = load(HEAD + "params: {max_queue_delay: [0ms, 2ms]}")
    assert space.parameter("max_queue_delay") is None
    assert "max_queue_delay" in space.notes[0]


def test_environment_values_stay_as_written(load):
    space = load(HEAD + "params: {env.A: [on, 010, 1_000, 1:30, 2024-01-01, 1.50, 'x y', auto]}")
    expected = ("on", "010", "1_000", "1:30", "2024-01-01", "1.50", "x y", "auto")
    assert choices(space, "env.A") == expected
    config = next(space.configs())
    assert config.environment() == {"A": "on"}


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("[on, off]", ("on", "off")),
        ("[true, false]", (True, False)),
        ("[3, 1.5]", (1.5, 3)),
        ('["08", "1:30"]', ("08", "1:30")),
        ("[fast, '2']", ("fast", "2")),
        ("fast", ("fast",)),
        ("{low: 0, high: 1, step: 0.25}", (0.0, 0.25, 0.5, 0.75, 1.0)),
    ],
)
def test_a_commands_own_parameters(load, written, expected):
    assert choices(load(COMMAND + f"params: {{mode: {written}}}"), "mode") == expected


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("[on, off, auto]", 'quote text: "on"'),
        ("[yes, fast]", 'quote text: "yes"'),
        ("[true, off]", "mixes"),
        ("[1, fast]", "mixes numbers and text"),
        ("[1, '2']", "mixes numbers and text"),
        ("[08, 010]", 'quote it: "08"'),
        ("[1:30]", 'quote it: "1:30"'),
        ("2024-01-01", 'quote it: "2024-01-01"'),
        ("[1_000]", 'quote it: "1_000"'),
        ("[.nan]", "quote it"),
        ("{low: a, high: b, step: 1}", "expected a number"),
        ("{low: 0.5, high: 1.5}", "step is missing"),
        ("{low: 0, high: 1, step: -1}", "-1 is not above 0"),
        ("{low: 0, high: 1, step: 1e-9}", "at most 10000"),
    ],
)
def test_a_commands_own_parameters_are_never_changed_unseen(refusal, written, words):
    message = refusal(COMMAND + f"params: {{mode: {written}}}")
    assert message.startswith("t.yaml:2: params.mode") and words in message


def test_the_five_dimensions_come_first_and_always(load):
    space = load(HEAD + "params: {env.B: 1, instance_count: [1, 2]}")
    assert [p.name for p in space.params] == [
        "batch_size",
        "instance_count",
        "cores_per_instance",
        "batched_h2d",
        "micro_batch_count",
        "env.B",
    ]
    assert [p.choices for p in space.params] == [(1,), (1, 2), ("all",), (False,), (1,), ("1",)]
    assert [p.name for p in space.searched] == ["instance_count"]


def test_too_many_parameters_are_refused(refusal):
    names = ", ".join(f"env.V{i}: 1" for i in range(65))
    assert "at most 64" in refusal(HEAD + f"params: {{{names}}}")
