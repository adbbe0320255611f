"""The best of a curve that falls again, with and without a limit before its peak."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import Place

CURVE = {1: 90, 2: 170, 4: 330, 8: 640, 16: 1150, 32: 1800, 64: 1100, 128: 600}
ROWS = "".join(f"{b},{rate},{0.002 * b},ok,0.1\n" for b, rate in CURVE.items())


@pytest.mark.parametrize(("limit", "best"), [("300ms", 32), ("20ms", 8), ("1ms", None)])
def test_the_best_is_the_peak_or_the_last_within_the_limit(
    limit: str, best: int | None, place: Place
) -> None:
    place.write_replay(
        ROWS, f"limits: {{latency_p99: {limit}}}", "budget: {trials: 8}", "sampler: random"
    )
    code, result = place.run()
    if best is None:
        assert code == 1
        assert result["config"] is None
        assert result["closest"]["config"]["batch_size"] == 1
    else:
        assert code == 0
        assert result["config"]["batch_size"] == best
        assert result["measurement"]["throughput_items_per_s"] == pytest.approx(CURVE[best])


@pytest.mark.parametrize("figures", ["nan,0.003", "-5,0.003", "400,-0.001", "0,0.003", "inf,0.003"])
def test_impossible_figures_are_refused_where_they_stand(figures: str, place: Place) -> None:
    place.write_replay(f"1,100,0.003,ok,0.1\n4,{figures},ok,0.1\n8,800,0.003,ok,0.1\n")
    ended = place.autotune("run", "--space", "t.yaml")
    assert ended.returncode == 2
    assert "grid.csv:3" in ended.stderr
    assert not (place.path / "studies").exists()
