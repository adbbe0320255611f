"""Planning by a study: simulated fleets whose scaling and costs are declared."""

from __future__ import annotations

import itertools
import json
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.apps import resolve
from autotune.apps.plan import doubts, plan, read_basics
from autotune.apps.plan_confirm import confirm_plan
from autotune.apps.plan_options import plan_options
from autotune.apps.plan_records import Known, scaling_of
from autotune.apps.run import run
from autotune.core.errors import AutotuneError, UsageError
from autotune.core.outcomes import Outcome
from autotune.core.records import Config, Measurement, TrialRecord, Verdict
from autotune.devices import find_device
from autotune.results.fleet import FleetPlan
from autotune.results.fleet_words import plan_lines
from autotune.space.loader import load_space

fleets = SimpleNamespace(
    **runpy.run_path(str(Path(__file__).resolve().parents[2] / "benchmarks" / "plan.py"))
)


@pytest.fixture(scope="module")
def online(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The studies directory of a finished study of arriving requests, P99 within 6 ms."""
    folder = tmp_path_factory.mktemp("online")
    text = fleets.ONLINE.format(seed=1, limit_ms=1e3 * fleets.LIMIT_S, confirm_s=2)
    text = text.replace("trials: 16", "trials: 10")
    run(load_space(fleets.written(folder, text)), studies_dir=folder / "studies")
    yield folder / "studies"


@pytest.fixture(scope="module")
def offline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """That of a study of throughput, with one and two devices that slow each other down."""
    folder = tmp_path_factory.mktemp("offline")
    text = fleets.OFFLINE.format(seed=1, contention=0.05, coherency=0.001)
    text = text.replace("batched_h2d: [true]", "batched_h2d: [true]\n  device_count: [1, 2, 4]")
    text = text.replace("trials: 4", "trials: 12")
    run(load_space(fleets.written(folder, text)), studies_dir=folder / "studies")
    yield folder / "studies"


def planned(studies: Path, **words: Any) -> FleetPlan:
    return plan("case", plan_options(studies_dir=studies, **words))


def text(found: FleetPlan) -> str:
    return "\n".join(plan_lines(found))


def declared_per_s(found: FleetPlan) -> float:
    """The highest rate that one device really holds."""
    return fleets.true_queue(found.config).limit_rate()


class TestUnderArrivals:
    def test_the_devices_hold_the_rate_with_the_headroom(self, online: Path) -> None:
        for rate in ("2000", "90000/s"):
            found = planned(online, rate=rate, headroom="30%")
            alone = declared_per_s(found)
            assert 0.7 * found.devices * alone >= found.wanted.rate_per_s
            assert found.single_per_s <= alone <= 1.1 * found.likely_per_s
            # No more than the margin of the bound explains.
            needed = found.wanted.capacity_per_s / alone
            assert found.devices <= 1 + needed * alone / found.single_per_s

    def test_a_wider_limit_needs_no_more_devices_a_stricter_one_no_fewer(
        self, online: Path
    ) -> None:
        counts = [
            planned(online, rate="600000", limits=[f"latency_p99={bound}"]).devices
            for bound in ("4ms", "6ms", "20ms")
        ]
        assert counts[0] > counts[1] >= counts[2]

    def test_the_table_is_quicker_at_half_load_and_holds_at_full(self, online: Path) -> None:
        found = planned(online, rate="30000", headroom="30%")
        figures = fleets.table_figures(found)
        assert figures["half_mean_ratio"] > 1.03
        assert figures["half_over_allowed"] < 1 and figures["full_over_allowed"] < 1
        assert found.rows[-1].index == found.configs.index(found.config)

    def test_a_server_can_follow_the_file(self, online: Path, tmp_path: Path) -> None:
        out = tmp_path / "table.json"
        found = planned(online, rate="30000", out=out)
        table = json.loads(out.read_text())
        assert table == found.table_json()
        steps = table["steps"]
        assert len(steps) > 1 and steps[-1]["config"] == found.config.as_dict()
        for before, after in itertools.pairwise(steps):
            assert after["down_below_per_s"] < before["up_above_per_s"]
        assert table["measure_rate_over_s"] >= 1

    def test_words_and_json(self, online: Path) -> None:
        found = planned(online, rate="90000", price_per_hour=1.5, power="300W")
        shown = text(found)
        assert f"{found.devices} devices for 90,000/s with P99 latency ≤ 6.00 ms" in shown
        assert "Simulated." in shown and "share nothing" in shown and "Load table" in shown
        data = json.loads(json.dumps(found.to_json(), allow_nan=False))
        assert data["devices"] == found.devices and data["load_table"]["levels"]
        assert data["cost"]["per_hour"] == 1.5 * found.devices
        million = 1.5 * found.devices / 3600 / 90000 * 1e6
        assert data["cost"]["per_million_items"] == pytest.approx(million)
        kwh = 300 * found.devices / 90000 * 1e6 / 3.6e6
        assert data["cost"]["kwh_per_million_items"] == pytest.approx(kwh)

    def test_what_it_rests_on_may_be_one_noisy_trial(self, online: Path) -> None:
        basics = read_basics("case", plan_options(rate="1000", studies_dir=online))
        assert not any("short trial" in note for note in basics.notes)
        facts = replace(basics.result.facts, origin="measured")
        noisy = replace(basics.full.measurement, trust="noisy: a neighbour")
        record = replace(basics.full.record, phase="search", measurements=(noisy,))
        once, why = doubts(replace(basics.full, record=record), replace(basics.result, facts=facts))
        assert "not measured again" in once and why.endswith("is noisy: a neighbour")

    def test_measured_it_is_the_right_number(self, online: Path) -> None:
        alone = declared_per_s(planned(online, rate="1000"))
        options = plan_options(
            rate=f"{0.7 * 1.9 * alone}/s", headroom="30%", confirm=True, studies_dir=online
        )
        found = confirm_plan("case", options)
        assert found.devices == 2 and found.basis in ("shown", "measured")
        assert found.rate_checks[-1].outcome == "ok"
        assert any(check.kept and check.ratio and check.ratio > 1 for check in found.level_checks)
        assert "measured:" in text(found)

    def test_another_device_is_not_measured(
        self, online: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        there = find_device("simulated")
        monkeypatch.setattr(
            resolve, "find_device", lambda name: replace(there, description="another chip")
        )
        with pytest.raises(UsageError, match=r"is of simulated: .*, and here is .*another chip"):
            confirm_plan("case", plan_options(rate="1000", confirm=True, studies_dir=online))


class TestThroughput:
    @pytest.mark.parametrize("count", [1, 3, 6])
    def test_measured_it_is_the_right_number(self, offline: Path, count: int) -> None:
        service = fleets.true_service(planned(offline, rate="1000").config)
        config = planned(offline, rate="1000").config
        items = config.batch_size * config.instance_count
        alone = items / (service.medians_s[-1] * service.residuals.mean())
        capacity = alone * count / (1 + 0.05 * (count - 1) + 0.001 * count * (count - 1))
        options = plan_options(
            rate=f"{0.7 * 0.97 * capacity}/s", headroom="30%", confirm=True, studies_dir=offline
        )
        found = confirm_plan("case", options)
        assert found.devices == count
        assert found.scaling is not None and not found.is_extrapolated
        low, high = found.scaling.sigma_range
        assert low <= 0.05 <= high

    def test_the_studys_own_trials_show_the_scaling(self, offline: Path) -> None:
        found = planned(offline, rate="2000000")
        assert found.basis == "throughput" and found.scaling is not None
        assert [point.device_count for point in found.scaling.points] == [1, 2, 4]
        assert found.is_extrapolated == (found.devices > 4)
        assert "Universal Scalability Law" in text(found)
        assert not found.rows and found.to_json()["load_table"] is None

    def test_beyond_what_was_measured_the_worst_law_counts(self, offline: Path) -> None:
        found = planned(offline, rate="2400000")
        assert found.is_extrapolated and found.devices > found.likely_devices
        assert "nothing was measured" in text(found)

    def test_machines_share_nothing_with_each_other(self, offline: Path) -> None:
        together = planned(offline, rate="2400000")
        apart = planned(offline, rate="2400000", per_machine=4)
        assert apart.devices < together.devices and not apart.is_extrapolated

    def test_what_no_number_of_them_holds(self, offline: Path) -> None:
        with pytest.raises(AutotuneError, match=r"no number of devices .* --per-machine"):
            planned(offline, rate="100000000")


def trial(number: int, rate: float, **values: Any) -> Known:
    measurement = Measurement(
        throughput_items_per_s=rate, throughput_ci95_items_per_s=(0.999 * rate, 1.001 * rate)
    )
    return Known(
        record=TrialRecord(
            number=number,
            config=Config.from_dict(values),
            phase="search",
            verdict=Verdict(outcome=Outcome.OK),
            measurements=(measurement,),
        )
    )


def test_without_trials_of_its_own_the_worst_scaling_counts() -> None:
    known = [
        trial(0, 100.0, batch_size=1, device_count=1),
        trial(1, 190.0, batch_size=1, device_count=2),
        trial(2, 500.0, batch_size=8, device_count=1),
        trial(3, 800.0, batch_size=8, device_count=2),
        trial(4, 900.0, batch_size=16, device_count=1),
    ]
    found, of = scaling_of(known[4].config, known, exact=True)
    assert found is not None and of == Config(batch_size=8)
    assert found.slowdown(2) == pytest.approx(1.25, rel=0.01)
    found, of = scaling_of(known[0].config, known, exact=True)
    assert found is not None and of == known[0].config
    assert found.slowdown(2) == pytest.approx(2 / 1.9, rel=0.01)
    assert scaling_of(known[4].config, known[4:], exact=True) == (None, None)


class TestRefusals:
    @pytest.mark.parametrize(
        ("words", "message"),
        [
            ({"rate": "fast"}, "--rate"),
            ({"rate": "0"}, "above 0"),
            ({"rate": "5ms"}, "unknown unit 'ms'"),
            ({"rate": "1e3", "headroom": "95%", "limits": ["latency_p99=5"]}, "latency_p99: '5'"),
            ({"rate": "1e400"}, "1e400"),
            ({"rate": "100", "headroom": "30"}, "no unit"),
            ({"rate": "100", "headroom": "99%"}, "at most 95%"),
            ({"rate": "100", "limits": ["latency_p99"]}, "write metric=value"),
            ({"rate": "100", "limits": ["throughput=5/s"]}, "the rate is what --rate says"),
            ({"rate": "100", "limits": ["latency=5ms"]}, "unknown limit"),
            ({"rate": "100", "price_per_hour": -1.0}, "0 or more"),
            ({"rate": "100", "time": "5min"}, "for --confirm"),
        ],
    )
    def test_words(self, words: dict[str, Any], message: str) -> None:
        with pytest.raises(UsageError, match=message):
            plan_options(**words)

    def test_no_study(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="there is no study 'case'"):
            planned(tmp_path, rate="100")

    def test_no_trial(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        Path("grid.csv").write_text(
            "batch_size,throughput_items_per_s,status,cost_s\n1,,oom,1\n2,,oom,1\n"
        )
        fleets.written(tmp_path, "workload: {replay: grid.csv}\nbudget: {trials: 2}\n")
        run(load_space("case.yaml"))
        with pytest.raises(AutotuneError, match="case has no measured trial"):
            planned(Path("studies"), rate="100")

    def test_a_limit_that_nothing_holds(self, online: Path) -> None:
        with pytest.raises(AutotuneError, match=r"at any rate of arrivals.*a lone request takes"):
            planned(online, rate="100", limits=["latency_p99=100us"])

    def test_a_limit_that_was_not_measured(self, online: Path) -> None:
        with pytest.raises(AutotuneError, match="has not measured power"):
            planned(online, rate="100", limits=["power=300W"])

    def test_memory_that_nothing_keeps(self, online: Path) -> None:
        with pytest.raises(AutotuneError, match="no tested configuration keeps peak memory"):
            planned(online, rate="100", limits=["memory_peak=1MiB"])

    def test_no_table_to_write(self, offline: Path, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="no load table"):
            planned(offline, rate="1000", out=tmp_path / "table.json")


class TestRecordedFigures:
    """A study that called back to back and kept quantiles alone."""

    def test_the_queue_is_simulated_with_them(self, space_file: Callable[..., Path]) -> None:
        run(load_space(space_file(trials=28)))
        found = plan("small", plan_options(rate="40000", headroom="30%"))
        assert found.origin == "replayed" and found.basis == "simulated"
        shown = text(found)
        assert "from their arrival on" in shown and "--confirm measures it" in shown
        # One device gets at most 32 items in 2.4 ms done, 1.8 times that with two instances.
        assert found.single_per_s < 24000 < found.devices * found.single_per_s
        with pytest.raises(UsageError, match="replay hands over finished figures"):
            confirm_plan("small", plan_options(rate="40000", confirm=True))


def test_the_command(online: Path) -> None:
    def autotune(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "autotune", "plan", "case", "--studies-dir", online, *words],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    done = autotune("--rate", "90000", "--json")
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert data["wanted"] == {
        "rate_per_s": 90000.0,
        "limits": {"latency_p99_s": 0.006},
        "headroom": 0.3,
        "devices_per_machine": None,
    }
    refused = autotune("--rate", "90000", "--limit", "power=300W")
    assert refused.returncode == 1 and "has not measured power" in refused.stderr
