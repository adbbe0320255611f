"""A configuration: one way to run the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Union

Scalar = Union[bool, int, float, str]

DIMENSIONS = (
    "batch_size",
    "instance_count",
    "cores_per_instance",
    "batched_h2d",
    "micro_batch_count",
)
"""The five dimensions every configuration has, in the order in which they are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """One way to run the model; the defaults are those of the space file.

    Attributes:
        batch_size: Items per inference call of one instance.
        cores_per_instance: A core count, "cube|vector" on an NPU, or "all".
        extra: Further parameters as sorted pairs, so that a configuration can be a key:
            instance_mode, max_queue_delay (seconds), device_count, env.NAME, a command's
            placeholders.
    """

    batch_size: int = 1
    instance_count: int = 1
    cores_per_instance: int | str = "all"
    batched_h2d: bool = False
    micro_batch_count: int = 1
    extra: tuple[tuple[str, Scalar], ...] = ()

    @classmethod
    def from_dict(cls, values: Mapping[str, Scalar]) -> Config:
        """The inverse of `as_dict`; parameters not named take their default."""
        known = {name: values[name] for name in DIMENSIONS if name in values}
        extra = tuple(sorted((k, v) for k, v in values.items() if k not in DIMENSIONS))
        return cls(**known, extra=extra)  # type: ignore[arg-type]

    def as_dict(self) -> dict[str, Scalar]:
        """All parameters by name, the five dimensions first."""
        return {**{name: getattr(self, name) for name in DIMENSIONS}, **dict(self.extra)}

    def get(self, name: str, default: Scalar) -> Scalar:
        """The value of a parameter, `default` if this configuration has none of that name."""
        return self.as_dict().get(name, default)

    @property
    def is_pipeline(self) -> bool:
        """True if it is of a model that several ranks share."""
        return any(name == "global_batch_size" for name, _ in self.extra)

    @property
    def device_count(self) -> int:
        """Devices of one machine that it takes, each with `instance_count` instances."""
        return int(self.get("device_count", 1))

    @property
    def total_instances(self) -> int:
        """Instances on all its devices together."""
        return self.instance_count * self.device_count

    def environment(self) -> dict[str, str]:
        """The environment variables this configuration sets (its `env.NAME` parameters)."""
        return {k.removeprefix("env."): str(v) for k, v in self.extra if k.startswith("env.")}

    def changed(self, **values: Scalar) -> Config:
        """This configuration with some parameters replaced."""
        return Config.from_dict({**self.as_dict(), **values})
