"""Online serving: as many items per second as possible while latency limits hold."""

from autotune.core.objective import Goal, Objective
from autotune.core.records import Load

OBJECTIVE = Objective(
    name="online_latency",
    description="highest throughput whose latency limit holds",
    load=Load(kind="closed"),
    goals=(Goal(metric="throughput"),),
    required_limits=(
        "latency_p99",
        "latency_p999",
        "latency_p90",
        "latency_p50",
        "latency_mean",
    ),
)
