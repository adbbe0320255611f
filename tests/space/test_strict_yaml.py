"""The file format: encoding, duplicates, tags, aliases, kinds; every message names its line."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from autotune.core.errors import UsageError
from autotune.space import strict_yaml
from autotune.space.strict_yaml import dump, parse

HEAD = "workload: {model: mlp}\n"


def test_comments_and_quotes_and_block_text_are_read(load):
    space = load("# first\nworkload:\n  model: 'mlp'   # a built-in\ndevice: >-\n  cpu\n")
    assert (space.workload.model, space.device) == ("mlp", "cpu")


def test_a_duplicate_key_fails_with_both_lines(refusal):
    text = HEAD + "params:\n  batch_size: [1, 2]\n  instance_count: 1\n  batch_size: [64]\n"
    assert refusal(text) == "t.yaml:5: the key 'batch_size' is given twice, first in line 3"


def test_a_duplicate_key_in_flow_style_fails(refusal):
    message = refusal(HEAD + "params: {batch_size: {low: 1, high: 2, low: 4}}")
    assert "t.yaml:2" in message and "'low' is given twice" in message


def test_quoting_does_not_hide_a_duplicate(refusal):
    assert "given twice" in refusal(HEAD + 'device: cpu\n"device": simulated\n')


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ("", "empty"),
        ("# only a comment\n", "empty"),
        ("---\n", "nothing"),
        ("- workload\n- params\n", "a list"),
        ("just words\n", "just words"),
        ("workload: {model: mlp}\n---\nworkload: {model: mlp}\n", "a second document"),
    ],
)
def test_a_file_that_is_not_one_mapping_is_refused(refusal, content, found):
    message = refusal(content)
    assert found in message and "\n" not in message


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("params: {batch_size: 1,2,4}", "t.yaml:2: ", ["key 2", "a list needs brackets"]),
        (
            "params:\n  batch_size: 1,2,4",
            "t.yaml:3: params.batch_size: ",
            ["whole number", "1,2,4"],
        ),
        ('params: {batch_size: "16"}', "t.yaml:2: params.batch_size: ", ["whole", "text '16'"]),
        ("params:", "t.yaml:2: params: ", ["mapping", "nothing"]),
        ("params: [1]", "t.yaml:2: params: ", ["mapping", "list"]),
        ("params: {batch_size: }", "t.yaml:2: params.batch_size: ", ["whole", "nothing"]),
        ("params: {batch_size: [[1]]}", "t.yaml:2: params.batch_size[0]: ", ["whole", "a list"]),
        ("budget: 40", "t.yaml:2: budget: ", ["mapping", "40"]),
        ("budget: {trials: [4]}", "t.yaml:2: budget.trials: ", ["whole number", "a list"]),
        ("rules: batch_size < 3", "t.yaml:2: rules: ", ["a list", "batch_size < 3"]),
        ("device: [cpu]", "t.yaml:2: device: ", ["text", "a list"]),
        ("study: {name: a}", "t.yaml:2: study: ", ["text", "a mapping"]),
        ("limits: {latency_p99: [20ms]}", "t.yaml:2: limits.latency_p99: ", ["unit", "a list"]),
        ("baseline: 1", "t.yaml:2: baseline: ", ["mapping", "1"]),
        ("load: closed", "t.yaml:2: load: ", ["mapping", "closed"]),
    ],
)
def test_a_wrong_kind_is_one_line_with_expected_and_found(refusal, text, place, words):
    message = refusal(HEAD + text)
    assert "\n" not in message
    assert message.startswith(place)
    for word in words:
        assert word in message


def test_shape_as_text_is_refused(refusal):
    text = 'workload:\n  model: mlp\n  inputs: [{name: x, shape: "batch,16"}]\n'
    message = refusal(text)
    assert message.startswith("t.yaml:3: workload.inputs[0].shape: expected a list")
    assert "batch,16" in message


def test_a_tab_is_named(refusal):
    message = refusal(b"workload:\n\tmodel: mlp\n")
    assert message.startswith("t.yaml:2: ") and "tab" in message and "\n" not in message


def test_byte_order_mark_and_windows_line_ends_work(load):
    space = load(b"\xef\xbb\xbfworkload: {model: mlp}\r\nparams:\r\n  batch_size: [1, 2]\r\n")
    assert space.parameter("batch_size").choices == (1, 2)


def test_other_encodings_get_a_clear_word(refusal):
    text = "workload: {model: mlp}\n# 最大吞吐\nstudy: 吞吐\n"
    message = refusal(text.encode("gbk"))
    assert message.startswith("t.yaml:2: ") and "UTF-8" in message
    assert "UTF-8" in refusal(text.encode("utf-16"))


def test_utf8_works_under_any_locale(tmp_path: Path):
    path = tmp_path / "批.yaml"
    path.write_bytes("# 批大小\nworkload: {model: mlp}\nstudy: 测试\n".encode())
    code = (
        "import sys; from autotune.space.loader import load_space;"
        "sys.stdout.buffer.write(load_space(sys.argv[1]).study.encode())"
    )
    env = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    root = str(Path(strict_yaml.__file__).parents[2])
    env["PYTHONPATH"] = root
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], env=env, capture_output=True, check=True
    )
    assert done.stdout.decode() == "测试"


def _bomb() -> str:
    lines = ["a: &a [1,1,1,1,1,1,1,1,1]"]
    for last, name in zip("abcdefgh", "bcdefghi", strict=True):
        lines.append(f"{name}: &{name} [{','.join([f'*{last}'] * 9)}]")
    return "\n".join([*lines, HEAD, "params: {batch_size: *i}"])


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (_bomb(), "aliases"),
        (HEAD + "params: {batch_size: &x [*x]}", "itself"),
        (HEAD + "params: &p {batch_size: [1], <<: *p}", "itself"),
        (HEAD + "params: {batch_size: *nowhere}", "anchor"),
        (HEAD + "device: " + "[" * 5000, "nested"),
        (HEAD + "device: " + "{a: " * 5000, "nested"),
        (HEAD + "device: " + "- " * 5000, ""),
        (HEAD + "device: '" + "x" * 300_000 + "'", "at most"),
        (HEAD + "device: '" + "x" * 200_000 + "'", "at most"),
        (HEAD + "x" * 100_000 + ": 1", "t.yaml:2"),
        (HEAD + "x" * 1000 + ": 1", "unknown key"),
        (HEAD + "params: {batch_size: [" + "1, " * 50_000 + "2]}", "values"),
    ],
)
def test_bombs_are_refused_within_a_second_and_in_few_words(refusal, content, word):
    began = time.process_time()
    message = refusal(content)
    assert time.process_time() - began < 2.0
    assert word in message and len(message) < 400


def test_small_anchors_and_merge_keys_work(load):
    space = load(
        "workload: {model: mlp}\n"
        "params:\n  batch_size: &sizes {low: 1, high: 8, log: true}\n"
        "  micro_batch_count:\n    <<: *sizes\n    high: 4\n"
        "  instance_count: &n [1, 2]\n  cores_per_instance: *n\n"
    )
    assert space.parameter("micro_batch_count").choices == (1, 2, 3, 4)
    assert space.parameter("cores_per_instance").choices == (1, 2)


def test_a_fault_in_a_merged_key_names_the_line_of_its_origin(refusal):
    text = HEAD + "budget: &b\n  trials: 5\ntrial:\n  <<: *b\n"
    assert refusal(text).startswith("t.yaml:3: trial.trials: unknown key 'trials'")


@pytest.mark.parametrize(
    "value",
    [
        '!!python/object/apply:os.system ["touch pwned"]',
        "!!python/name:os.system",
        "!mine x",
        "!!str 5",
        "!!binary aGk=",
        "!!set {a, b}",
    ],
)
def test_tags_are_refused_and_nothing_runs(refusal, value, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    message = refusal(HEAD + f"study: {value}\n")
    assert message.startswith("t.yaml:2: ") and "tag" in message
    assert not (tmp_path / "pwned").exists()


def test_control_characters_are_refused_with_their_line(refusal):
    assert refusal(HEAD + "device: a\x00b\n") == (
        "t.yaml:2: character U+0000 is not allowed in YAML"
    )


@pytest.mark.parametrize("key", ["on", "yes", "1", "1.5", "2024-01-01", "~", "[a]", "{a: 1}"])
def test_a_key_that_is_not_text_is_refused(refusal, key):
    message = refusal(HEAD + f"? {key}\n: {{latency_p99: 5ms}}\n")
    assert message.startswith("t.yaml:2: ") and ("quote" in message or "must be text" in message)


def test_text_that_begins_with_a_special_character_gets_a_hint(refusal):
    assert "quote" in refusal(HEAD + "limits: {throughput: >= 500/s}\n")
    assert "quote" in refusal(HEAD + "limits:\n  throughput: >= 500/s\n")


def test_a_dumped_tree_is_read_back_the_same():
    text = (
        "a: [1, '1', \"x: y\", on, 'on', ~, [], {}, -2.5]\n"
        "'b c': {d: {e: [f, [g]]}}\n'5': \"tab\\t \\\" \\\\ 批\\x85\"\nh: |\n  two\n  lines\n"
    )
    tree = parse(text, "t")
    again = parse(dump(tree), "t")
    assert _plain(again) == _plain(tree)


def _plain(node):
    if isinstance(node.value, dict):
        return {key: _plain(value) for key, value in node.value.items()}
    if isinstance(node.value, list):
        return [_plain(item) for item in node.value]
    return node.value, node.is_plain and not strict_yaml._CONTROL.search(str(node.value))


def test_undefined_yaml_is_one_line():
    for text in ("a: b: c", "a: 'open", "a: [1, 2", "@a: 1", "a: &", "%FOO\n---\na: 1\n: :"):
        with pytest.raises(UsageError) as caught:
            parse(text, "t")
        assert "\n" not in str(caught.value)
