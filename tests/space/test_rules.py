"""Rules: what they may say, what they mean, and that they are never Python."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.core.errors import UsageError
from autotune.space.rules import Rule

VALUES = {
    "batch_size": 12,
    "instance_count": 2,
    "cores_per_instance": 3,
    "batched_h2d": True,
    "micro_batch_count": 4,
    "instance_mode": "thread",
    "env.MODE": "2",
}
FACTS = {"core_count": 8, "cube_count": 24, "vector_count": 48}


def holds(text: str, **changed: object) -> bool:
    return Rule(text=text).holds({**VALUES, **changed}, FACTS)  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("instance_count * cores_per_instance <= core_count", True),
        ("instance_count * cores_per_instance + 3 <= core_count", False),
        ("batch_size % micro_batch_count == 0", True),
        ("batch_size // 5 == 2 and batch_size / 5 == 2.4", True),
        ("1 <= instance_count < 2", False),
        ("1 <= instance_count <= 2 != 3", True),
        ("not batched_h2d or batch_size > 12", False),
        ("batched_h2d == true", True),
        ("batched_h2d != False and batched_h2d", True),
        ("batch_size in (8, 12)", True),
        ("batch_size not in [8, 12]", False),
        ("instance_mode == 'thread'", True),
        ('instance_mode in ("process", "fork")', False),
        ("env.MODE == '2'", True),
        ("-batch_size < +1", True),
        ("(batch_size - 2) * (instance_count + 1) == 30", True),
        ("core_count - cube_count / 3 == 0", True),
        ("max_queue_delay == 0", True),
        ("cores_per_instance == 'all'", False),
        ("batched_h2d * 2 == 2", True),
    ],
)
def test_what_a_rule_means(text, expected):
    assert holds(text) is expected


def test_all_counts_as_the_whole_of_core_count():
    rule = "instance_count * cores_per_instance <= core_count"
    assert not holds(rule, cores_per_instance="all")
    assert holds(rule, cores_per_instance="all", instance_count=1)
    assert holds("cores_per_instance == 'all'", cores_per_instance="all")
    assert holds("cores_per_instance in ('all', '8|8')", cores_per_instance="8|8")


def test_cube_and_vector_parts():
    assert holds("cube_per_instance == 8 and vector_per_instance == 16", cores_per_instance="8|16")
    assert holds("cube_per_instance == 24 and vector_per_instance == 48", cores_per_instance="all")
    assert holds("cube_per_instance == vector_per_instance", cores_per_instance=4)


def test_a_rule_that_divides_by_zero_is_broken():
    assert not holds("batch_size / (instance_count - 2) < 5")
    assert not holds("batch_size % (instance_count - 2) == 0 or batch_size > 1")


def test_a_rule_holds_while_its_facts_are_unknown():
    rule = Rule(text="cores_per_instance <= core_count")
    assert rule.holds({"cores_per_instance": 99}, {})
    assert rule.missing_facts({}) == ("core_count",)
    assert rule.missing_facts(FACTS) == ()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "batch_size",  # not a condition by itself, found when it is used
        "batch_size + 1",
        "batch_size ** 2 < 9",
        "2 << 3 > 1",
        "abs(batch_size) < 3",
        "__import__('os').system('touch pwned') == 0",
        "batch_size.__class__ == 1",
        "().__class__.__bases__ == 1",
        "a.b.c < 1",
        "x[0] < 1",
        "[x for x in (1, 2)] == 1",
        "(lambda: 1) == 1",
        "batch_size < 3 if batched_h2d else 4",
        "f'{batch_size}' == '3'",
        "batch_size is 3",
        "batch_size := 3",
        "batch_size = 3",
        "batch_size < 3; batch_size > 1",
        "batch_size in 3",
        "batch_size in instance_mode",
        "batch_size == None",
        "batch_size == 1j",
        "batch_size == b'a'",
        "batch_size == ...",
        "'a' + 'b' == 'ab'",
        "instance_mode < 3",
        "batch_size and batched_h2d",
        "1 < 2 and 3",
        "batch_size <",
        "(" * 400 + "1" + ")" * 90,
        "not " * 100 + "batched_h2d",
        "-" * 400 + "1 < 2",
        "batch_size < 1" + " + 1" * 200,
        "batch_size < 3\nor batch_size > 4",
        "batch_size < 0777",
    ],
)
def test_anything_else_is_refused(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError) as caught:
        Rule(text=text).holds(VALUES, FACTS)
    assert len(str(caught.value)) < 300
    assert list(tmp_path.iterdir()) == []


def test_a_rule_survives_pickling_and_compares_by_its_text():
    rule = Rule(text="batch_size < 3")
    again = pickle.loads(pickle.dumps(rule))
    assert again == rule and not again.holds(VALUES, FACTS)
    assert rule.names == {"batch_size"}


@given(st.text(max_size=60))
def test_any_text_is_a_rule_or_refused(text):
    try:
        Rule(text=text).holds(VALUES, FACTS)
    except UsageError as error:
        assert len(str(error)) < 400


_TERMS = st.recursive(
    st.sampled_from(["batch_size", "instance_count", "3", "0.5", "7"]),
    lambda inner: st.tuples(inner, st.sampled_from("+-*/%"), inner).map(
        lambda t: f"({' '.join(t)})"
    ),
    max_leaves=6,
)


@given(_TERMS, st.sampled_from(["<", "<=", "==", "!=", ">", ">="]), _TERMS)
def test_arithmetic_is_what_python_makes_of_it(left, comparison, right):
    text = f"{left} {comparison} {right}"
    try:
        expected = bool(eval(text, {}, dict(VALUES)))
    except ZeroDivisionError:
        expected = False
    assert holds(text) is expected
