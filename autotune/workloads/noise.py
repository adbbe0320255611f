"""The options of workloads whose noise is drawn, not met."""

from __future__ import annotations

from collections.abc import Mapping

from autotune.core.errors import UsageError

DEFAULT_SEED = 0
_OPTIONS = ("noise", "seed")


def read_noise(options: Mapping[str, object], default: float) -> tuple[float, int]:
    """The options `noise` (relative, from 0 to below 1) and `seed`.

    Raises:
        UsageError: Another option, or a value that is no such number.
    """
    for key in options:
        if key not in _OPTIONS:
            raise UsageError(f"workload.{key}: unknown option; known: {', '.join(_OPTIONS)}")
    noise, seed = options.get("noise", default), options.get("seed", DEFAULT_SEED)
    if isinstance(noise, bool) or not isinstance(noise, (int, float)) or not 0 <= noise < 1:
        raise UsageError(f"workload.noise: {noise!r} is not a share from 0 to below 1")
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise UsageError(f"workload.seed: {seed!r} is not a whole number from 0 on")
    return float(noise), seed
