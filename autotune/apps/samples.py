"""Raw samples on disk: every call of a trial, so that any figure can be derived again."""

from __future__ import annotations

import io
import logging
import zipfile
import zlib
from pathlib import Path

import numpy as np

from autotune.apps.store import write_whole
from autotune.core.errors import StorageError
from autotune.core.records import SAMPLE_ARRAYS, Floats, Ints, Phase, Result, Samples

log = logging.getLogger(__name__)

MAX_BYTES = 2**30  # of a file's arrays; what is written has some megabytes
MAX_ITEMS = 10**9  # of a call
_WHOLE = ("window", "instance", "item_count", "switch_count", "fault_count", "first_request",
          "token_count")  # fmt: skip
MAX_QUOTED = 200  # characters of what numpy says
_DAMAGE = (OSError, ValueError, LookupError, TypeError, EOFError, zipfile.BadZipFile, zlib.error,
           RuntimeError)  # fmt: skip
MAX_CALLS = 50_000
"""Calls kept of a trial, the first ones; about 2 MB before compression."""


def samples_path(study_dir: Path, phase: Phase, number: int) -> Path:
    """Where the calls of a trial or of a fresh measurement are kept, if they are."""
    return study_dir / "samples" / f"{phase}-{number}.npz"


def save_samples(study_dir: Path, phase: Phase, number: int, result: Result) -> Path | None:
    """Write `samples/<phase>-<number>.npz` in a study's directory.

    Returns:
        The file, None for finished figures, which have no samples.
    Raises:
        StorageError: It cannot be written.
    """
    if not isinstance(result, Samples):
        return None
    order = np.argsort(result.end_s, kind="stable")[:MAX_CALLS]
    arrays = {
        name: getattr(result, name)[order]
        for name in SAMPLE_ARRAYS
        if getattr(result, name) is not None
    }
    if result.is_queued:
        kept = _arrivals_until(result, order)
        arrays["arrivals_s"] = np.concatenate(kept)
        arrays["arrival_counts"] = np.array([arrivals.size for arrivals in kept])
    path = samples_path(study_dir, phase, number)
    packed = io.BytesIO()
    np.savez_compressed(packed, allow_pickle=False, call_count=result.end_s.size, **arrays)
    write_whole(path, packed.getvalue())
    return path


class SampleKeeper:
    """Keeps the samples of a study's trials; where that fails it says so once.

    No figure depends on them.
    """

    def __init__(self, study_dir: Path) -> None:
        self._study_dir = study_dir
        self._said = False

    def keep(self, phase: Phase, number: int, result: Result) -> None:
        """Write a trial's samples, if it has any."""
        try:
            save_samples(self._study_dir, phase, number, result)
        except StorageError as error:
            if not self._said:
                log.warning("%s; the raw samples of this study are not kept", error)
            self._said = True


def _arrivals_until(samples: Samples, calls: Ints) -> list[Floats]:
    """Arrivals of each window; where calls are left out, those up to the last that is kept."""
    if calls.size == samples.end_s.size:
        return list(samples.arrivals_s)
    assert samples.first_request is not None
    ends = (samples.first_request + samples.item_count)[calls]
    windows = samples.window[calls]
    return [
        arrivals[: ends[windows == index].max(initial=0)]
        for index, arrivals in enumerate(samples.arrivals_s)
    ]


def load_samples(path: Path) -> Samples:
    """Read what `save_samples` wrote; what the instances knew of themselves is not kept there.

    Raises:
        StorageError: It is not that any more.
    """
    try:
        samples = _loaded(path)
        _check(samples)
    except (*_DAMAGE, MemoryError) as error:
        raise StorageError(
            f"{path}: these are no calls of a trial: {str(error)[:MAX_QUOTED]}"
        ) from None
    return samples


def _loaded(path: Path) -> Samples:
    with zipfile.ZipFile(path) as archive:
        if sum(entry.file_size for entry in archive.infolist()) > MAX_BYTES:
            raise ValueError(f"more than {MAX_BYTES} bytes")
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in SAMPLE_ARRAYS if name in file}
        if "arrivals_s" not in file:
            return Samples(**arrays)
        ends = np.cumsum(file["arrival_counts"])
        return Samples(**arrays, arrivals_s=tuple(np.split(file["arrivals_s"], ends[:-1])))


def _check(samples: Samples) -> None:
    """Refuse arrays that do not belong together."""
    arrays = {name: getattr(samples, name) for name in SAMPLE_ARRAYS}
    count = samples.end_s.size
    for name, array in arrays.items():
        kinds = "i" if name in _WHOLE else "if"
        if array is not None and (array.shape != (count,) or array.dtype.kind not in kinds):
            raise ValueError(f"{name} has the shape {array.shape} and type {array.dtype}")
        if array is not None and name != "tpot_s" and not np.isfinite(array).all():
            raise ValueError(f"{name} has numbers that are none")
    for arrivals in samples.arrivals_s:
        is_plain = arrivals.ndim == 1 and arrivals.dtype.kind in "if"
        if not is_plain or not np.isfinite(arrivals).all():
            raise ValueError("arrivals that are no times")
    if not (samples.end_s > samples.start_s).all():
        raise ValueError("a call that ended before it began")
    if count and not (samples.item_count.min() >= 1 and samples.item_count.max() <= MAX_ITEMS):
        raise ValueError("a call of no items")
    if samples.first_request is None:
        return
    sizes = np.array([arrivals.size for arrivals in samples.arrivals_s], dtype=np.int64)
    firsts, counts, windows = samples.first_request, samples.item_count, samples.window
    if count and not (windows.min() >= 0 and windows.max() < sizes.size):
        raise ValueError("a call of no window")
    if count and ((firsts < 0) | (counts < 0) | (counts > sizes[windows] - firsts)).any():
        raise ValueError("a call of requests that are not there")
