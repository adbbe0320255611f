"""The items on which configurations are compared: a few, drawn once, in every place of a batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from autotune.core.records import InputSpec, Ints
from autotune.workloads.data import make_requests, ring_size

PROBE_ITEMS = 4
"""Different items. Few, as a baseline of batch 1 needs a call for each; any two tell apart a model
that answers from memory, and a batch holds each of them many times over."""

PROBE_SEED = 2_000_003  # apart from the seeds of the measured requests
MAX_PROBES = 2 * PROBE_ITEMS


class Probes(NamedTuple):
    """Requests of whole batches, and which item stands at each place: shape (calls, batch)."""

    requests: list[list[npt.NDArray[Any]]]
    items: Ints


def make_probes(inputs: Sequence[InputSpec], batch_size: int, seed: int) -> Probes:
    """Draw the probe items and fill batches with them.

    Item k is the same for every batch size. Each run of `PROBE_ITEMS` places holds every item
    once, in a drawn order: no rule that drops, repeats or reorders places keeps all answers.
    """
    pool = make_requests(inputs, PROBE_ITEMS, 1, seed + PROBE_SEED)[0]
    calls = min(MAX_PROBES, ring_size(inputs, batch_size))
    items = _arranged(calls * batch_size, seed).reshape(calls, batch_size)
    requests = [
        [
            array if spec.batch_axis is None else np.take(array, row, axis=spec.batch_axis)
            for spec, array in zip(inputs, pool, strict=True)
        ]
        for row in items
    ]
    return Probes(requests, items)


def calls_for_all(batch_size: int) -> int:
    """Calls after which every item has been seen twice, and two calls can be compared."""
    return max(2, math.ceil(2 * PROBE_ITEMS / batch_size))


def _arranged(places: int, seed: int) -> Ints:
    rounds = np.tile(np.arange(PROBE_ITEMS), (math.ceil(places / PROBE_ITEMS), 1))
    rng = np.random.default_rng((seed, PROBE_SEED))
    return rng.permuted(rounds, axis=1).ravel()[:places]
