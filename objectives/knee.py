"""The knee of the throughput curve: the smallest batch size that delivers nearly all there is."""

from autotune.core.objective import Goal, Objective
from autotune.core.records import Load

OBJECTIVE = Objective(
    name="knee",
    description="the smallest batch size with 95 % of the highest throughput",
    load=Load(kind="closed"),
    goals=(Goal(metric="throughput"),),
    knee_share=0.95,
)
