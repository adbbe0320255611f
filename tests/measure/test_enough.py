"""How much measuring a limit needs, told beforehand."""

from __future__ import annotations

import numpy as np
import pytest

from autotune.core.objective import Limit, Objective
from autotune.core.records import Load
from autotune.measure.enough import enough
from autotune.measure.tail import judge_tail, look_alpha


def objective(**limits: float) -> Objective:
    found = tuple(Limit(metric=name, bound=bound) for name, bound in limits.items())
    return Objective(name="o", limits=found)


@pytest.mark.parametrize("alpha", [0.05, 0.01])
@pytest.mark.parametrize(("metric", "quantile"), [("latency_p99", 0.99), ("latency_p90", 0.9)])
def test_that_many_calls_pass_and_one_less_does_not(
    alpha: float, metric: str, quantile: float
) -> None:
    needs = enough(objective(**{metric: 0.02}), alpha=alpha, call_s=0.001)
    assert needs is not None and needs.metric == metric
    for calls, status in ((needs.calls, "pass"), (needs.calls - 1, "undecided")):
        calm = np.zeros(calls, dtype=bool)
        found = judge_tail(calm, quantile=quantile, alpha=look_alpha(alpha))
        assert found.status == status
    assert needs.least_s == pytest.approx(needs.calls * 0.001)
    assert needs.most_s == pytest.approx(needs.calls * 0.02)


def test_the_limit_that_takes_longest_is_told() -> None:
    needs = enough(objective(latency_p90=1.0, latency_p99=0.001, throughput=5.0), alpha=0.01)
    assert needs is not None and needs.metric == "latency_p90" and needs.least_s is None
    assert "up to" in needs.text() and "baseline" not in needs.text()


def test_a_call_longer_than_the_limit_needs_no_longer_to_show_than_the_limit_allows() -> None:
    needs = enough(objective(latency_p99=0.02), alpha=0.01, call_s=1.0)
    assert needs is not None and needs.least_s == needs.most_s


def test_there_is_nothing_to_tell_without_a_tail_or_where_requests_arrive() -> None:
    assert enough(objective(throughput=5.0), alpha=0.01) is None
    arriving = Objective(
        name="o",
        load=Load(kind="poisson", rate_per_s=10.0),
        limits=(Limit(metric="latency_p99", bound=0.02),),
    )
    assert enough(arriving, alpha=0.01) is None
