"""Two configurations compared: who is faster, how sure that is, and whether a gate lets it pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from autotune.core.codec import to_json_dict
from autotune.core.objective import METRICS, Limit
from autotune.core.outcomes import Outcome
from autotune.core.records import Config, Measurement, Verdict
from autotune.measure.paired import POWER, RatioTest
from autotune.results.study_result import Origin

JSON_SCHEMA = 1

Basis = Literal["fresh", "pairs", "blocks", "figures"]
Status = Literal["passed", "failed", "undecided"]

BASIS_TEXT: dict[Basis, str] = {
    "fresh": "measured again side by side, {n} pairs of fresh processes",
    "pairs": "from the study's confirmation, {n} pairs of fresh processes side by side",
    "blocks": "from recorded calls, measured at different times",
    "figures": "from recorded figures alone, measured at different times",
}
"""What a comparison rests on, by how much that is worth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One of the two.

    Attributes:
        name: As it was asked for, such as "online#12".
        workload, device: In words. `source`: study, file or baseline that it comes from.
        measurement: Its figures, None if it has none. `verdict`: under its own limits.
        failure: Why it could not be measured, empty if it could.
        measured_at_s: Unix time, 0 if unknown.
    """

    name: str
    config: Config
    workload: str = ""
    device: str = ""
    limits: tuple[Limit, ...] = ()
    measurement: Measurement | None = None
    verdict: Verdict | None = None
    failure: str = ""
    log_tail: str = ""
    measured_at_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CompareResult:
    """What a comparison found.

    Attributes:
        a, b: The side that is asked about and the one it is held against.
        metric: What is compared, a key of `METRICS`. `metric_ratio`: that of a over that of b.
        test: On the ratio in which more is better; None: no interval can be had.
        pair_ratios: Of `test`, one per pair; () without pairs.
        rate_per_s: Arrivals that both had to serve, None under a closed load.
        is_gate: Whether a regression was asked for.
        stopped: Why measuring ended before the question was settled.
        differences: What else differs between the two.
    """

    a: Side
    b: Side
    metric: str
    basis: Basis
    metric_ratio: float | None = None
    test: RatioTest | None = None
    pair_ratios: tuple[float, ...] = ()
    rate_per_s: float | None = None
    origin: Origin = "measured"
    is_gate: bool = False
    tolerance: float = 0.05
    interleaved: bool = True
    stopped: str = ""
    differences: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    elapsed_s: float = 0.0
    at_s: float = 0.0

    @property
    def broken_limit(self) -> str:
        """Why the first side breaks a limit that the second is not shown to break; else empty."""
        a, b = self.a.verdict, self.b.verdict
        if a is None or a.outcome is not Outcome.OVER_LIMIT:
            return ""
        if b is not None and b.outcome is Outcome.OVER_LIMIT:
            return ""
        return a.reasons[0] if a.reasons else "a limit is broken"

    @property
    def status(self) -> Status:
        """What a gate makes of it.

        Failed: the first side is slower beyond doubt and by no less than half of the tolerance,
        cannot be measured, or breaks a limit. Passed: a slowdown of the tolerance is excluded.
        """
        if self.a.failure or self.broken_limit:
            return "failed"
        if self.test is None or self.b.failure:
            return "undecided"
        if self.test.is_regression:
            return "failed"
        return "passed" if self.test.excluded else "undecided"

    @property
    def found(self) -> Literal["faster", "slower", "alike", "open", "failed"]:
        """In one word what holds of the first side."""
        if self.a.failure or self.b.failure:
            return "failed"
        if self.test is None:
            return "open"
        if self.test.shown != "none":
            return "faster" if self.test.shown == "better" else "slower"
        return "alike" if self.test.excluded and self.test.excluded_better else "open"

    def to_json(self) -> dict[str, Any]:
        """As `compare --json` prints it; no NaN, no Infinity."""
        test = self.test
        data: dict[str, Any] = {
            "schema": JSON_SCHEMA,
            "found": self.found,
            "a": _side_json(self.a),
            "b": _side_json(self.b),
            "metric": METRICS[self.metric].field,
            "metric_ratio": self.metric_ratio,
            "speed_ratio": test.ratio if test else None,
            "speed_ratio_ci95": test.interval95 if test else None,
            "smallest_change": test.smallest_change if test else None,
            "power": POWER,
            "alpha": test.rule.alpha if test else None,
            "pairs": len(self.pair_ratios),
            "pair_ratios": self.pair_ratios,
            "basis": self.basis,
            "interleaved": self.interleaved,
            "arrival_rate_per_s": self.rate_per_s,
            "gate": {
                "status": self.status,
                "tolerance": self.tolerance,
                "broken_limit": self.broken_limit or None,
            }
            if self.is_gate
            else None,
            "origin": self.origin,
            "differences": self.differences,
            "notes": self.notes,
            "stopped": self.stopped or None,
            "elapsed_s": self.elapsed_s,
            "at_s": self.at_s,
        }
        return to_json_dict(data)


def _side_json(side: Side) -> dict[str, Any]:
    m = side.measurement
    return {
        "name": side.name,
        "config": side.config.as_dict(),
        "workload": side.workload,
        "device": side.device,
        "throughput_items_per_s": m.throughput_items_per_s if m else None,
        "latency_p99_s": m.latency_p99_s if m else None,
        "memory_peak_bytes": m.memory_peak_bytes if m else None,
        "outcome": side.verdict.outcome if side.verdict else None,
        "trust": m.trust if m else None,
        "failure": side.failure or None,
        "measured_at_s": side.measured_at_s or None,
    }
