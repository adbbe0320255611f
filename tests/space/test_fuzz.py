"""Whatever the bytes: a space or a UsageError, soon, in few words."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autotune.core.errors import UsageError
from autotune.space.loader import load_space
from autotune.space.schema import SpaceFile

SEEDS = [
    path.read_bytes()
    for path in (
        Path(__file__).parents[1] / "golden" / "space_v1.yaml",
        Path(__file__).parents[2] / "search_spaces" / "online.yaml",
    )
]
WORDS = (
    "[ ] { } ' \" # &a *a <<:_ !!x_ ?_ |_ >_ :_ -_ % @ ~ 0 -1 1e9 1e400 .nan on 08 1:30 20ms 4GiB "
    "low:_ high:_ step:_ log:_true all 8|8 batch auto"
)
TOKENS = [
    *(word.replace("_", " ").encode() for word in WORDS.split()),
    *(b"\n", b"\n  ", b"\t", b"\r\n", b"---\n", b"...\n", b"\x00", b"\xff\xfe", b"\xc3", b"\x85"),
    *("批".encode(), b"\xe2\x80\xa8"),
]


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    data = bytearray(draw(st.sampled_from(SEEDS)))
    for _ in range(draw(st.integers(1, 6))):
        at = draw(st.integers(0, len(data)))
        span = draw(st.integers(0, 12))
        piece = draw(st.one_of(st.sampled_from(TOKENS), st.binary(max_size=4)))
        if draw(st.booleans()) and len(data) > 40:  # move a piece of the file itself
            start = draw(st.integers(0, len(data) - 20))
            piece = bytes(data[start : start + draw(st.integers(1, 20))])
        data[at : at + span] = piece
    return bytes(data)


def _load(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    began = time.process_time()
    try:
        load_space(path)
    except UsageError as error:
        assert len(str(error)) < 3000
    assert time.process_time() - began < 10.0


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "f.yaml"


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(mutated())
def test_mutated_files(path, data):
    _load(path, data)


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.binary(max_size=200))
def test_any_bytes(path, data):
    _load(path, data)


_YAML = st.recursive(
    st.one_of(
        st.sampled_from(["1", "0", "-3", "x", "on", "~", "20ms", "'1'", "1.5", "[]", "{}", "auto"]),
        st.text("ab1:-| ", max_size=5).map(lambda text: f"'{text}'"),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]"),
        st.dictionaries(
            st.sampled_from(
                ["low", "high", "step", "log", "batch_size", "model", "rate", "closed"]
            ),
            inner,
            max_size=3,
        ).map(lambda d: "{" + ", ".join(f"{k}: {v}" for k, v in d.items()) + "}"),
    ),
    max_leaves=6,
)
_KEYS = SpaceFile.model_fields.keys() - {"workload"}


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.dictionaries(st.sampled_from(sorted(_KEYS)), _YAML, max_size=3))
def test_well_formed_nonsense(path, sections):
    text = "workload: {model: mlp}\n" + "".join(f"{k}: {v}\n" for k, v in sections.items())
    _load(path, text.encode())
