"""The values a trial hands from layer to layer: frozen, keyword-only, SI units in the names."""

from __future__ import annotations

from autotune.core.records.config import (
    DIMENSIONS,
    Config,
    Scalar,
)
from autotune.core.records.plan import (
    GroupSpec,
    Plan,
    Window,
)
from autotune.core.records.recommendation import (
    Comparison,
    Recommendation,
    Reversal,
    Sustained,
    TurnRate,
)
from autotune.core.records.samples import (
    SAMPLE_ARRAYS,
    Answers,
    Floats,
    InstanceFacts,
    Ints,
    Reported,
    Result,
    Samples,
    Series,
    StageTimes,
)
from autotune.core.records.trial import (
    SCHEMA_VERSION,
    Measurement,
    Phase,
    RateFacts,
    TrialRecord,
    Verdict,
    measured,
)
from autotune.core.records.workload import (
    CALLS,
    FILE_RUNTIMES,
    DataSpec,
    InputSpec,
    Lengths,
    Load,
    WorkloadSpec,
)

__all__ = [
    "CALLS",
    "DIMENSIONS",
    "FILE_RUNTIMES",
    "SAMPLE_ARRAYS",
    "SCHEMA_VERSION",
    "Answers",
    "Comparison",
    "Config",
    "DataSpec",
    "Floats",
    "GroupSpec",
    "InputSpec",
    "InstanceFacts",
    "Ints",
    "Lengths",
    "Load",
    "Measurement",
    "Phase",
    "Plan",
    "RateFacts",
    "Recommendation",
    "Reported",
    "Result",
    "Reversal",
    "Samples",
    "Scalar",
    "Series",
    "StageTimes",
    "Sustained",
    "TrialRecord",
    "TurnRate",
    "Verdict",
    "Window",
    "WorkloadSpec",
    "measured",
]
