"""Offline batch work: as many items per second as possible, latency left free."""

from autotune.core.objective import Goal, Objective
from autotune.core.records import Load

OBJECTIVE = Objective(
    name="offline_throughput",
    description="highest throughput",
    load=Load(kind="closed"),
    goals=(Goal(metric="throughput"),),
)
