"""What a space's rules leave of a pipeline, and why a configuration is refused, in words."""

from __future__ import annotations

import itertools
from collections import Counter

from autotune.core.errors import UsageError
from autotune.core.records import Config
from autotune.devices.base import DeviceInfo
from autotune.space.search_space import SearchSpace
from autotune.workloads.pipeline.chain import layer_count
from autotune.workloads.pipeline.layout import HOST_RANKS, Bounds, rules

MAX_REFUSED = 2000  # combinations that are looked at for one that can run
MAX_REASONS = 3


def layout_rules(space: SearchSpace, info: DeviceInfo) -> tuple[str, ...]:
    """What a pipeline's configurations have to keep on a device.

    Raises:
        UsageError: A split is not of this model, or no combination can run.
    """
    split = space.parameter("stage_split")
    bounds = _bounds(space, HOST_RANKS if info.kind == "cpu" else 1 + len(info.peers))
    found = tuple(rules(bounds, [str(c) for c in split.choices] if split else []))
    reasons: Counter[str] = Counter()
    names = [parameter.name for parameter in space.params]
    for values in itertools.product(*(parameter.choices for parameter in space.params)):
        why = bounds.refusal(Config.from_dict(dict(zip(names, values, strict=True))))
        if not why or reasons.total() >= MAX_REFUSED:
            return found
        reasons[why] += 1
    shown = "; ".join(why for why, _ in reasons.most_common(MAX_REASONS))
    raise UsageError(f"params: none of {reasons.total()} combinations can run: {shown}")


def refusal(config: Config, space: SearchSpace) -> str:
    """Which rule a configuration breaks, and why a pipeline needs it; empty if it is allowed."""
    if space.allows(config):
        return ""
    rule = space.broken_rule(config)
    if rule is None:
        return "is not among the recorded configurations"
    why = _bounds(space, None).refusal(config) if config.is_pipeline else ""
    return f"breaks the rule '{rule.text}'{': ' * bool(why)}{why}"


def _bounds(space: SearchSpace, devices: int | None) -> Bounds:
    schedule = space.parameter("schedule")
    return Bounds(
        schedules=tuple(map(str, schedule.choices)) if schedule else ("GPipe",),
        layers=layer_count(space.workload),
        devices=devices,
        has_chunks=space.parameter("chunks_per_rank") is not None,
        forward_only=bool(space.workload.options.get("forward_only")),
    )
