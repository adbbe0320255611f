from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from autotune.apps import samples as kept
from autotune.core.errors import StorageError
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


def open_calls(count: int) -> Samples:
    """Two requests per call, arriving half a second before its end."""
    calls = some_calls(count)
    arrivals_s = np.repeat(calls.end_s, 2) - 0.5
    return replace(
        calls,
        item_count=np.full(count, 2),
        first_request=2 * np.arange(count),
        late_s=np.zeros(count),
        arrivals_s=(arrivals_s, np.array([1e3])),  # a second window, in which nothing was served
        rate_per_s=2.0,
    )


def test_requests_of_an_open_load_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = kept.save_samples(tmp_path, "search", 1, open_calls(6))
    assert path is not None
    latency_s = kept.load_samples(path).request_latency_s()
    assert latency_s.tolist() == [0.5] * 12 + [np.inf]
    monkeypatch.setattr(kept, "MAX_CALLS", 4)
    path = kept.save_samples(tmp_path, "search", 2, open_calls(6))
    assert path is not None
    assert kept.load_samples(path).request_latency_s().tolist() == [0.5] * 8


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


def test_calls_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    good = kept.save_samples(tmp_path, "search", 1, open_calls(6))
    assert good is not None
    with np.load(good) as file:
        arrays = {name: file[name] for name in file}
    wrong = {
        "end_s": arrays["end_s"][:3],
        "window": arrays["window"] + 7,
        "first_request": arrays["first_request"] * 10**9,
        "item_count": arrays["item_count"].astype("U8"),
    }
    for name, array in wrong.items():
        np.savez(path, allow_pickle=False, **{**arrays, name: array})
        with pytest.raises(StorageError, match=r"x\.npz: these are no calls"):
            kept.load_samples(path)
    path.write_bytes(good.read_bytes()[:-50])
    with pytest.raises(StorageError):
        kept.load_samples(path)
