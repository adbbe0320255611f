"""Configurations as coordinates: what the surrogate's formulas need of every parameter."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from autotune.core.pipeline import PARAMETERS, SCHEDULES
from autotune.core.records import Floats, Ints, Scalar
from autotune.measure.pipeline_theory import idle_share

BATCH_NAMES = ("global_batch_size", "batch_size")  # the first one that a space has
EFFECT_SD = 0.4  # of one choice's effect on log t0 and log t1: a factor of 1.5
CROWDING_SD = 0.25  # of what a core split adds to the slope in the number of instances
SLICE_TILES = (16, 32, 64, 128, 8, 24, 48, 96, 192, 256)  # that kernels may pad a slice to
USUAL_TILES = 4  # of them, the first, are so usual that some padding to them is always expected
_IDLE = ("schedule", "stage_count", "chunks_per_rank", "micro_batch_count")
FLIGHT_TILES = tuple(range(8, 164, 4))  # of all instances, that a device may take at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimension:
    """A parameter's choices and where they lie.

    Attributes:
        position: One coordinate per choice, natural logarithm where all are positive; None for
            choices without an order.
    """

    name: str
    choices: tuple[Scalar, ...]
    position: Floats | None

    @classmethod
    def of(cls, name: str, choices: Sequence[Scalar]) -> Dimension:
        """Find the coordinates of any mix of choices; "all" lies at the largest."""
        sizes = [_size(c) for c in choices]
        known = [s for s, c in zip(sizes, choices, strict=True) if s is not None and c != "all"]
        if not known or any(s is None for s in sizes):
            return cls(name=name, choices=tuple(choices), position=None)
        filled = np.array(
            [max(known) if c == "all" else s for s, c in zip(sizes, choices, strict=True)]
        )
        if name == "cores_per_instance" or (filled.min() > 0 and filled.max() / filled.min() > 3):
            return cls(name=name, choices=tuple(choices), position=np.log(filled))
        return cls(name=name, choices=tuple(choices), position=filled)

    def nearest(self, value: Scalar) -> int | None:
        """The index of the choice nearest to a number that is not among the choices."""
        if self.position is None or isinstance(value, (str, bool)):
            return None
        numbers = np.array([c if not isinstance(c, str) else np.nan for c in self.choices], float)
        return int(np.nanargmin(np.abs(numbers - value)))


def _size(choice: Scalar) -> float | None:
    """A number's value, the first number of "cube|vector"; None for anything else."""
    if isinstance(choice, bool):
        return None
    if isinstance(choice, (int, float)):
        return float(choice)
    if choice == "all":
        return math.inf
    head = choice.split("|")[0]
    return float(head) if "|" in choice and head.isdecimal() else None


class Encoding:
    """Turns rows of choice indices into the model's coordinates.

    Attributes:
        has_mechanism: True if a batch size and only positive counts are among the parameters.
        is_pipeline: True if the micro-batches go through stages on several devices.
    """

    def __init__(self, dimensions: Sequence[Dimension]) -> None:
        self.dimensions = tuple(dimensions)
        self._index = [{c: i for i, c in enumerate(d.choices)} for d in self.dimensions]
        self._column = {d.name: i for i, d in enumerate(self.dimensions)}
        self.batch = next((n for n in BATCH_NAMES if n in self._column), None)
        self.has_mechanism = self.batch is not None
        self.is_pipeline = {"global_batch_size", "micro_batch_count"} <= set(self._column)
        by_formula = [self.batch, *(["micro_batch_count"] if self.is_pipeline else [])]
        others = [(i, d) for i, d in enumerate(self.dimensions) if d.name not in by_formula]
        self._others = [(i, _effects(d), _places(d)) for i, d in others if len(d.choices) > 1]

    def row(self, values: Mapping[str, Scalar]) -> tuple[int, ...] | None:
        """Choice indices of a configuration; None if it lacks a parameter or has a foreign value.

        A number that is not among the choices counts as the nearest.
        """
        row = []
        for dimension, index in zip(self.dimensions, self._index, strict=True):
            if dimension.name not in values:
                return None
            value = values[dimension.name]
            place = index[value] if value in index else dimension.nearest(value)
            if place is None:
                return None
            row.append(place)
        return tuple(row)

    def log_value(self, name: str | None, rows: Ints) -> Floats:
        """Logarithm of a positive number among the parameters, 0 if there is none of that name."""
        if name is None or name not in self._column:
            return np.zeros(len(rows))
        column = self._column[name]
        numbers = [float(c) for c in self.dimensions[column].choices]
        logs: Floats = np.log(np.maximum(np.array(numbers), 1e-9))
        return logs[rows[:, column]]

    def features(self, rows: Ints) -> Features:
        """The coordinates of configurations, shape (configurations, parameters) of indices."""
        log_batch = self.log_value(self.batch, rows)
        log_instances = self.log_value("instance_count", rows)
        log_slices = self.log_value("micro_batch_count", rows)
        effects = [np.zeros((len(rows), 0))]
        places = [(log_batch - log_slices)[:, None]]
        for i, effects_of, places_of in self._others:
            effects.append(effects_of[rows[:, i]])
            places.append(places_of[rows[:, i]])
        return Features(
            log_batch=log_batch,
            log_instances=log_instances,
            log_slices=log_slices,
            effects=np.hstack(
                [
                    *effects,
                    self._crowding(rows, log_instances),
                    self._oversubscription(rows, log_instances),
                ]
            ),
            places=np.hstack(places),
            padding=self._padding(log_batch - log_slices, log_instances),
            log_idle=self._log_idle(rows) if self.is_pipeline else None,
        )

    def _padding(self, log_slice: Floats, log_instances: Floats) -> Floats:
        """Of a slice, and of all slices in flight; what a pipeline's slices cost is a formula."""
        padding = np.hstack(
            [
                _padding(np.exp(log_slice), SLICE_TILES),
                _padding(np.exp(log_slice + log_instances), FLIGHT_TILES),
            ]
        )
        return np.zeros_like(padding) if self.is_pipeline else padding

    def _log_idle(self, rows: Ints) -> Floats:
        """Logarithm of a step's time over its work, for even stages and free transfers."""
        found = []
        for row in rows:
            values = {
                name: self.dimensions[column].choices[row[column]]
                for name, column in self._column.items()
                if name in _IDLE
            }
            schedule = str(values.get("schedule", PARAMETERS["schedule"]))
            if schedule not in SCHEDULES:  # somebody else's grid names its own
                schedule = str(PARAMETERS["schedule"])
            stages = int(values.get("stage_count", PARAMETERS["stage_count"]))
            chunks = int(values.get("chunks_per_rank", 1 if SCHEDULES[schedule].single else 2))
            count = int(values["micro_batch_count"])
            found.append(math.log1p(idle_share(schedule, stages, count, chunks)))
        return np.array(found, float)

    def _crowding(self, rows: Ints, log_instances: Floats) -> Floats:
        """For every core split a slope of its own in the number of instances."""
        column = self._column.get("cores_per_instance")
        if column is None or "instance_count" not in self._column:
            return np.zeros((len(rows), 0))
        choices = np.arange(len(self.dimensions[column].choices))
        is_split = rows[:, column][:, None] == choices
        slopes: Floats = CROWDING_SD * log_instances[:, None] * is_split
        return slopes

    def _oversubscription(self, rows: Ints, log_instances: Floats) -> Floats:
        """Hinges in cores wanted by all instances together, knots inside the space's range."""
        column = self._column.get("cores_per_instance")
        position = None if column is None else self.dimensions[column].position
        if column is None or position is None or "instance_count" not in self._column:
            return np.zeros((len(rows), 0))
        counts = self.dimensions[self._column["instance_count"]].choices
        wanted = np.add.outer(np.log(np.array(counts, float)), position)
        if np.ptp(wanted) == 0:
            return np.zeros((len(rows), 0))
        knots = np.quantile(wanted, (0.2, 0.5, 0.8))
        demand = log_instances + position[rows[:, column]]
        hinges: Floats = EFFECT_SD * np.maximum(demand[:, None] - knots, 0.0)
        return hinges


def _effects(dimension: Dimension) -> Floats:
    """Square root of the prior covariance of a parameter's main effect, one row per choice."""
    count = len(dimension.choices)
    if dimension.position is None:
        independent: Floats = EFFECT_SD * np.eye(count)
        return independent
    z = dimension.position - dimension.position.mean()
    span = max(float(np.ptp(z)), 1e-9)
    if dimension.name == "cores_per_instance":
        return np.hstack([EFFECT_SD * z[:, None], 0.75 * EFFECT_SD * np.eye(count)])
    slope = EFFECT_SD if _is_count(dimension) else 2 * EFFECT_SD / span
    gap = np.subtract.outer(z, z) / max(span / 3, 0.3 if _is_count(dimension) else 0.0)
    values, vectors = np.linalg.eigh((0.5 * EFFECT_SD) ** 2 * np.exp(-0.5 * gap**2))
    keep = values > 1e-3 * values.max()
    return np.hstack([slope * z[:, None], vectors[:, keep] * np.sqrt(values[keep])])


def _places(dimension: Dimension) -> Floats:
    """Coordinates of the residual's kernel, in units of its length."""
    if dimension.position is None or dimension.name == "cores_per_instance":
        return np.eye(len(dimension.choices)) / math.sqrt(2)  # any two are 1 apart
    z = dimension.position - dimension.position.mean()
    scaled: Floats = z if _is_count(dimension) else 2 * z / max(float(np.ptp(z)), 1e-9)
    return scaled[:, None]


def _padding(items: Floats, sizes: Sequence[int]) -> Floats:
    """Logarithm of how much so many items grow when padded to whole tiles, a column per tile."""
    tiles = np.array(sizes, float)
    whole = np.ceil(items[:, None] / tiles - 1e-9) * tiles
    overhead: Floats = np.log(whole / items[:, None])
    return overhead


def _is_count(dimension: Dimension) -> bool:
    return dimension.name in ("instance_count", "micro_batch_count")


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """Configurations as the model sees them, one row each."""

    log_batch: Floats
    log_instances: Floats
    log_slices: Floats
    effects: Floats
    places: Floats
    padding: Floats
    log_idle: Floats | None = None  # of a pipeline alone

    @property
    def log_work(self) -> Floats:
        """Logarithm of the items one cycle of all instances serves."""
        return self.log_instances + self.log_batch

    def take(self, index: Ints) -> Features:
        """Some of the rows."""
        return Features(
            log_batch=self.log_batch[index],
            log_instances=self.log_instances[index],
            log_slices=self.log_slices[index],
            effects=self.effects[index],
            places=self.places[index],
            padding=self.padding[index],
            log_idle=None if self.log_idle is None else self.log_idle[index],
        )

    def joined(self, other: Features) -> Features:
        """These rows and then those of `other`."""
        return Features(
            log_batch=np.concatenate([self.log_batch, other.log_batch]),
            log_instances=np.concatenate([self.log_instances, other.log_instances]),
            log_slices=np.concatenate([self.log_slices, other.log_slices]),
            effects=np.vstack([self.effects, other.effects]),
            places=np.vstack([self.places, other.places]),
            padding=np.vstack([self.padding, other.padding]),
            log_idle=None
            if self.log_idle is None or other.log_idle is None
            else np.concatenate([self.log_idle, other.log_idle]),
        )
