"""Comparing real models in real processes: old code against new, other answers, crashes."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.apps.comparable import CompareOptions
from autotune.apps.compare import compare, keep_baseline
from autotune.core.errors import UsageError

FRESH, GATE = CompareOptions(fresh=True), CompareOptions(fresh=True, gate=True)
MODEL = """\
import time
import torch
from wait import WAIT_S


class Ranker(torch.nn.Module):
    def __init__(self, factor, crash):
        super().__init__()
        self.layer = torch.nn.Linear(8, 4)
        self.factor, self.crash = factor, crash

    def forward(self, x):
        if self.crash:
            raise RuntimeError("no kernel for this")
        time.sleep(WAIT_S)
        return self.factor * self.layer(x)


def build(factor=1.0, crash=False):
    return Ranker(factor, crash)
"""
SPACE = """\
workload:
  model: ranker.py:build
  inputs: [{name: x, shape: [batch, 8], dtype: float32}]
params: {batch_size: 4, cores_per_instance: 1}
confirm: {duration: 3s}
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ranker.py").write_text(MODEL)
    (tmp_path / "wait.py").write_text("WAIT_S = 0.004\n")
    (tmp_path / "ranker.yaml").write_text(SPACE)
    return tmp_path


def test_new_code_is_measured_against_the_kept_one(place: Path) -> None:
    folder = keep_baseline("ranker.yaml", "before", FRESH)
    assert (folder / "files/ranker.py").is_file() and (folder / "files/wait.py").is_file()
    (place / "wait.py").write_text("WAIT_S = 0.012\n")
    result = compare("ranker.yaml", "baseline:before", GATE)
    assert result.status == "failed"
    assert result.test is not None and result.test.ratio < 0.6
    assert result.interleaved and len(result.pair_ratios) >= 6
    assert any("B runs those of then" in note for note in result.notes)


def test_other_answers_are_other_work(place: Path) -> None:
    changed = "ranker.yaml#workload.options.factor=2.0"
    result = compare(changed, "ranker.yaml", GATE)
    assert result.status == "failed"
    assert result.pair_ratios == ()
    assert "outputs differ from B's" in result.a.failure


def test_a_side_that_crashes(place: Path) -> None:
    result = compare("ranker.yaml#workload.options.crash=true", "ranker.yaml", GATE)
    assert result.status == "failed"
    assert "no kernel for this" in result.a.failure


def test_a_factory_that_is_not_there_is_a_mistake(place: Path) -> None:
    with pytest.raises(UsageError, match="nope"):
        compare("ranker.yaml#workload.model=ranker.py:nope", "ranker.yaml", FRESH)
