"""What more throughput costs: every configuration that no other beats in all goals."""

from autotune.core.objective import Goal, Objective
from autotune.core.records import Load

OBJECTIVE = Objective(
    name="pareto",
    description="the trade-offs between throughput and P99 latency",
    load=Load(kind="closed"),
    goals=(Goal(metric="throughput"), Goal(metric="latency_p99")),
    front=True,
)
