from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from autotune.apps import samples as kept
from autotune.core.records import SAMPLE_ARRAYS, Reported, Samples


def some_calls(count: int) -> Samples:
    start = np.arange(count, dtype=np.float64)
    zeros = np.zeros(count, dtype=np.int64)
    return Samples(
        window=zeros,
        instance=zeros,
        due_s=start,
        start_s=start,
        end_s=start + 0.5,
        item_count=zeros + 8,
        cpu_s=start * 0 + 0.4,
        switch_count=zeros,
        fault_count=zeros,
        h2d_s=start * 0 + 0.1,
    )


def test_samples_come_back_as_they_were(tmp_path: Path) -> None:
    before = some_calls(20)
    path = kept.save_samples(tmp_path, "search", 7, before)
    assert path == tmp_path / "samples" / "search-7.npz"
    after = kept.load_samples(path)
    for name in SAMPLE_ARRAYS:
        np.testing.assert_array_equal(getattr(before, name), getattr(after, name))
    assert after.compute_s is None


def test_their_number_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "MAX_CALLS", 10)
    path = kept.save_samples(tmp_path, "search", 1, some_calls(1000))
    assert path is not None
    assert kept.load_samples(path).end_s.tolist() == [i + 0.5 for i in range(10)]
    with np.load(path) as file:
        assert file["call_count"] == 1000


def test_finished_figures_have_no_samples(tmp_path: Path) -> None:
    assert kept.save_samples(tmp_path, "search", 1, Reported(metrics={})) is None
    assert not (tmp_path / "samples").exists()
