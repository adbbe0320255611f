"""Arguments of public functions, checked: what is wrong in words, not in those of numpy."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from autotune.core.records import Floats

MAX_SHOWN_CHARS = 40
MAX_SIZE = 10**9
"""Of a batch; as in a space file."""


def flags(name: str, values: object) -> npt.NDArray[np.bool_]:
    """A list or array of truth values in one dimension; 1 and 0 count as such.

    Raises:
        ValueError: It is something else, such as the latencies themselves.
    """
    array = _row(name, values)
    if array.dtype == np.bool_:
        return array
    if array.size and (array.dtype.kind not in "iuf" or not np.isin(array, (0, 1)).all()):
        odd = next(v for v in array.tolist() if not (_is_number(v) and v in (0, 1)))
        raise ValueError(
            f"{name} holds true and false, found {_shown(odd)}; compare first, as in "
            "latency_s > limit_s"
        )
    return array.astype(np.bool_)


def real(name: str, value: object) -> float:
    """A number, possibly infinite.

    Raises:
        ValueError: It is none, or not a number (NaN).
    """
    if not _is_number(value) or math.isnan(number := float(value)):  # type: ignore[arg-type]
        raise ValueError(f"{name} is a number, found {_shown(value)}")
    return number


def reals(name: str, values: object, *, finite: bool = True) -> Floats:
    """A list or array of numbers in one dimension, if wanted all of them finite.

    Raises:
        ValueError: It is something else.
    """
    array = _row(name, values)
    if array.size and array.dtype.kind not in "iuf":
        written: Sequence[Any] = values if isinstance(values, Sequence) else array.tolist()
        odd = [v for v in written if not _is_number(v)]
        found = f"found {_shown(odd[0])}" if odd else "one is too large"
        raise ValueError(f"{name} holds numbers, {found}")
    floats = array.astype(np.float64)
    if finite and not np.isfinite(floats).all():
        raise ValueError(f"{name}: all must be finite, found {floats[~np.isfinite(floats)][0]}")
    return floats


def sizes(name: str, values: object) -> Floats:
    """Batch sizes: positive whole numbers, up to a thousand million.

    Raises:
        ValueError: There is another among them.
    """
    floats = reals(name, values)
    wrong = (floats < 1) | (floats > MAX_SIZE) | (floats != np.floor(floats))
    if wrong.any():
        raise ValueError(
            f"{name}: sizes are positive whole numbers up to {MAX_SIZE}, found {floats[wrong][0]:g}"
        )
    return floats


def _row(name: str, values: object) -> npt.NDArray[Any]:
    """An array of one dimension."""
    is_list = isinstance(values, Sequence) and not isinstance(values, (str, bytes, bytearray))
    if not is_list and not hasattr(values, "__array__"):
        raise ValueError(f"{name} is a list or an array, found {_shown(values)}")
    try:
        array = np.asarray(values)
    except (ValueError, TypeError, OverflowError):
        raise ValueError(f"{name}: its entries are not alike") from None
    if array.ndim != 1:
        raise ValueError(f"{name} has one dimension, found {array.ndim}")
    return array


def _is_number(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, (bool, np.bool_))


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= MAX_SHOWN_CHARS else f"a {type(value).__name__}"
