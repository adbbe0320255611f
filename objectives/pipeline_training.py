"""Training over several devices: as many samples per second as possible.

At a fixed `global_batch_size` that is the shortest step. Where it is searched too, the batch is
the best one that the limits (`memory_peak`, of the fullest device) leave; samples per second say
nothing of how many samples a training takes with it.
"""

from autotune.core.objective import Goal, Objective
from autotune.core.records import Load

OBJECTIVE = Objective(
    name="pipeline_training",
    description="highest throughput of a training step over all devices",
    load=Load(kind="closed"),
    goals=(Goal(metric="throughput"),),
)
