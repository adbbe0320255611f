"""Comparing what words name: studies, trials, files, baselines, configurations."""

from __future__ import annotations

import json
import math
import shutil
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.apps import compare_fresh
from autotune.apps.comparable import CompareOptions, compare_options
from autotune.apps.compare import CompareInterrupted, compare, keep_baseline
from autotune.apps.run import run
from autotune.apps.show import show
from autotune.core.errors import AutotuneError, UsageError
from autotune.results.compare_words import compare_lines, markdown
from autotune.results.junit import junit
from autotune.results.regression import CompareResult
from autotune.results.tables import to_json
from autotune.space.loader import load_space

FRESH, GATE = CompareOptions(fresh=True), CompareOptions(fresh=True, gate=True)


@pytest.fixture
def own_study(space_file: Callable[..., Path]) -> str:
    """A study run here, so that its grid may be changed."""
    run(load_space(space_file("first.yaml")))
    return "first"


@pytest.fixture(scope="module")
def finished() -> list[Path]:
    """Where the study that most tests look at is kept, once it has been run."""
    return []


@pytest.fixture
def study(
    space_file: Callable[..., Path],
    finished: list[Path],
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> str:
    """A finished study; run once, copied for every test."""
    path = space_file("first.yaml")
    if not finished:
        run(load_space(path))
        finished.append(tmp_path_factory.mktemp("finished") / "studies")
        shutil.copytree(tmp_path / "studies", finished[0])
    else:
        shutil.copytree(finished[0], tmp_path / "studies")
    return "first"


def text(result: CompareResult) -> str:
    return "\n".join(compare_lines(result))


class TestRecorded:
    def test_the_winner_against_its_baseline_rests_on_the_proof(self, study: str) -> None:
        result = compare(study)
        assert result.basis == "pairs"
        assert result.interleaved and len(result.pair_ratios) == 6
        assert result.found == "faster"
        assert (result.a.name, result.b.name) == ("first", "first#baseline")
        a, b = result.a.measurement, result.b.measurement
        assert a is not None and b is not None and result.metric_ratio is not None
        assert a.throughput_items_per_s and b.throughput_items_per_s
        quotient = a.throughput_items_per_s / b.throughput_items_per_s
        assert result.metric_ratio == pytest.approx(quotient, rel=0.02)
        assert "A is faster" in text(result)

    def test_turned_round_it_is_the_inverse(self, study: str) -> None:
        there, back = compare(study), compare("first#baseline", study)
        assert there.test is not None and back.test is not None
        assert back.found == "slower"
        assert back.test.ratio == pytest.approx(1 / there.test.ratio)

    def test_figures_of_different_times_say_so(
        self, study: str, space_file: Callable[..., Path]
    ) -> None:
        run(load_space(space_file("second.yaml", trials=4)))
        result = compare("second", study)
        assert result.basis == "figures"
        assert result.test is None and result.found == "open"
        assert any("different times" in note for note in result.notes)
        assert replace(result, is_gate=True).status == "undecided"

    def test_the_same_measurement_twice(self, study: str) -> None:
        result = compare(study, study)
        assert result.metric_ratio == 1.0 and result.test is None

    def test_other_limits_are_said(self, study: str, space_file: Callable[..., Path]) -> None:
        run(load_space(space_file("strict.yaml", limit="2ms", trials=4)))
        differences = " ".join(compare("strict", study).differences)
        assert "limits.latency_p99: A has 2.00 ms, B has 3.00 ms" in differences

    def test_different_models_are_refused_unless_asked_for(
        self, study: str, space_file: Callable[..., Path], tmp_path: Path
    ) -> None:
        (tmp_path / "other.csv").write_text((tmp_path / "grid.csv").read_text())
        space_file("other.yaml").write_text("workload: {replay: other.csv}\nbudget: {trials: 3}\n")
        run(load_space(tmp_path / "other.yaml"))
        with pytest.raises(UsageError, match=r"workload: A has replay .*other\.csv"):
            compare("other", study)
        assert compare("other", study, CompareOptions(anyway=True)).metric_ratio is not None

    def test_a_file_names_its_model_device_and_conditions(
        self, study: str, space_file: Callable[..., Path], tmp_path: Path
    ) -> None:
        file = tmp_path / "kept.json"
        written = to_json(show(study))
        file.write_text(json.dumps(written))
        result = compare(study, str(file))
        assert (result.b.workload, result.b.device) == (result.a.workload, result.a.device)
        assert result.b.workload == "grid.csv (replay)"
        assert not any("does not name" in note for note in result.notes)
        written["conditions"]["workload"] = "replay other.csv"
        file.write_text(json.dumps(written))
        with pytest.raises(UsageError, match=r"workload: A has .*B has replay other\.csv"):
            compare(study, str(file))
        for older in ("conditions", "workload", "device"):
            del written[older]
        file.write_text(json.dumps(written))
        assert any("does not name" in note for note in compare(study, str(file)).notes)

    def test_what_was_never_measured_needs_fresh(self, study: str) -> None:
        with pytest.raises(UsageError, match="add --fresh"):
            compare("first.yaml#batch_size=16", study)


class TestFresh:
    def test_no_difference_passes_the_gate(self, study: str) -> None:
        result = compare(study, study, GATE)
        assert (result.status, result.found) == ("passed", "alike")
        assert "passed: a slowdown of 5 % is excluded" in text(result)

    def test_a_slower_configuration_fails_the_gate(self, study: str) -> None:
        result = compare("first.yaml#batch_size=1", study, GATE)
        assert result.status == "failed"
        assert result.test is not None and result.test.ratio < 0.5
        assert "failed: A is" in text(result)

    def test_one_that_breaks_the_limit_fails_the_gate_however_fast(self, study: str) -> None:
        fast = "first.yaml#batch_size=64,instance_count=1,batched_h2d=true"
        result = compare(fast, "first.yaml#batch_size=16", GATE)
        assert result.found == "faster"
        assert result.status == "failed"
        assert "breaks a limit that B holds" in text(result)

    def test_a_side_that_cannot_run_fails_the_gate(self, study: str) -> None:
        broken = "first.yaml#batch_size=64,instance_count=2"
        result = compare(broken, study, GATE)
        assert (result.status, result.found) == ("failed", "failed")
        assert "A could not be measured" in text(result)
        turned = compare(study, broken, GATE)
        assert turned.status == "undecided"
        assert "B could not be measured" in text(turned)

    def test_a_file_is_measured_in_the_other_sides_space(self, study: str, tmp_path: Path) -> None:
        shown = to_json(compare_study(study))
        (tmp_path / "kept.json").write_text(json.dumps(shown))
        result = compare("kept.json", "first#baseline", FRESH)
        assert result.found == "faster"
        assert result.a.config == compare(study).a.config
        with pytest.raises(UsageError, match=r"neither .* says how to run"):
            compare("kept.json", "kept.json", FRESH)

    def test_an_interruption_tells_what_was_complete(
        self, study: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        inner = compare_fresh.measure_pairs

        def interrupted(*words: object, **options: object) -> object:
            inner(*words, **options)  # type: ignore[arg-type]
            raise KeyboardInterrupt

        monkeypatch.setattr(compare_fresh, "measure_pairs", interrupted)
        with pytest.raises(CompareInterrupted) as caught:
            compare(study, "", FRESH)
        assert caught.value.result is not None
        assert caught.value.result.stopped == "interrupted after 6 pairs"

    def test_a_rate_needs_arrivals(self, study: str) -> None:
        with pytest.raises(UsageError, match="the load is closed"):
            compare(study, "", replace(FRESH, rate_per_s=5.0))


def compare_study(name: str):  # type: ignore[no-untyped-def]
    from autotune.apps.store import load_result

    return load_result(name, Path("studies"))


class TestWords:
    @pytest.mark.parametrize(
        ("word", "message"),
        [
            ("nope", "there is no study 'nope'"),
            ("first#99", "has no trial 99; its trials go up to"),
            ("first#fast", "chooses nothing"),
            ("first#batch_size=", "chooses nothing"),
            ("first#batchsize=3", "batchsize"),
            ("first#batch_size=[1,2]", "expected a whole number"),
            ("", "empty word"),
            ("nope.json", "cannot be read"),
            ("baseline:nope", "there is no baseline 'nope'"),
            ("baseline:../x", "not the name"),
            ("nope.yaml", "no space file"),
        ],
    )
    def test_what_names_nothing_is_refused(self, study: str, word: str, message: str) -> None:
        with pytest.raises(UsageError, match=message):
            compare(word, study, FRESH)

    def test_a_study_may_have_a_number_sign_in_its_name(
        self, space_file: Callable[..., Path]
    ) -> None:
        space = load_space(space_file("x.yaml", trials=3))
        run(replace(space, study="exp#1"))
        assert compare("exp#1").a.name == "exp#1"
        assert compare("exp#1#baseline", "exp#1").found in ("slower", "open")

    def test_a_lone_word_needs_a_study(self, study: str) -> None:
        for word in ("first.yaml", "first#baseline", "baseline:x"):
            with pytest.raises(UsageError, match="what to compare it with"):
                compare(word)

    def test_a_study_without_a_winner_says_what_to_name(
        self, space_file: Callable[..., Path]
    ) -> None:
        run(load_space(space_file("hard.yaml", limit="1us", trials=3)))
        with pytest.raises(AutotuneError, match=r"recommends nothing .*such as hard#"):
            compare("hard")
        assert compare("hard#1", "hard#baseline").metric_ratio is not None

    def test_a_file_that_is_no_result(self, study: str, tmp_path: Path) -> None:
        for content, message in (("{", "not JSON"), ("[]", "not a result"), ("{}", "no config")):
            (tmp_path / "bad.json").write_text(content)
            with pytest.raises(UsageError, match=message):
                compare("bad.json", study)

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({"tolerance": "5"}, "no unit"),
            ({"tolerance": "0.1%"}, "between"),
            ({"time": "5min"}, "is for --fresh"),
            ({"fresh": True, "rate": "0"}, "above 0"),
        ],
    )
    def test_options_are_checked(self, given: dict[str, object], message: str) -> None:
        words: dict[str, object] = {
            "fresh": False, "gate": False, "tolerance": "5%", "time": "", "rate": "",
            "anyway": False, "studies_dir": Path(), "storage": "",
        }  # fmt: skip
        with pytest.raises(UsageError, match=message):
            compare_options(**{**words, **given})  # type: ignore[arg-type]


class TestBaselines:
    def test_one_is_kept_and_found_again(self, study: str) -> None:
        folder = keep_baseline(study, "nightly", FRESH)
        assert (folder / "baseline.json").is_file()
        result = compare(study, "baseline:nightly", GATE)
        assert (result.status, result.b.config) == ("passed", result.a.config)
        assert compare("first#baseline", "baseline:nightly", GATE).status == "failed"

    def test_of_several_the_one_of_the_model_counts(
        self, study: str, space_file: Callable[..., Path], tmp_path: Path
    ) -> None:
        (tmp_path / "other.csv").write_text((tmp_path / "grid.csv").read_text())
        space_file("other.yaml").write_text("workload: {replay: other.csv}\nbudget: {trials: 3}\n")
        run(load_space(tmp_path / "other.yaml"))
        keep_baseline(study, "nightly", FRESH)
        keep_baseline("other", "nightly", FRESH)
        assert compare(study, "baseline:nightly").b.workload == "grid.csv (replay)"
        assert compare("other", "baseline:nightly").b.workload == "other.csv (replay)"

    def test_a_changed_model_is_run_as_it_was(self, own_study: str, tmp_path: Path) -> None:
        keep_baseline(own_study, "before", FRESH)
        rows = (tmp_path / "grid.csv").read_text().splitlines()
        slower = [rows[0]]
        for row in rows[1:]:
            cells = row.split(",")
            cells[3] = str(float(cells[3]) * 0.9) if cells[3] else ""
            slower.append(",".join(cells))
        (tmp_path / "grid.csv").write_text("\n".join(slower) + "\n")
        result = compare(own_study, "baseline:before", GATE)
        assert result.status == "failed"
        assert result.test is not None and result.test.ratio == pytest.approx(0.9, rel=0.01)
        assert any("B runs those of then" in note for note in result.notes)

    def test_one_of_an_old_version_is_read(self, study: str, tmp_path: Path) -> None:
        golden = Path(__file__).parents[1] / "golden" / "baseline_v1.json"
        folder = tmp_path / "studies" / ".baselines" / "nightly" / "kept"
        folder.mkdir(parents=True)
        shutil.copy(golden, folder / "baseline.json")
        result = compare(study, "baseline:nightly")
        assert result.b.config.batch_size == 8
        assert result.metric_ratio is not None
        with pytest.raises(UsageError, match=r"baseline:nightly cannot be run: .*no file"):
            compare(study, "baseline:nightly", FRESH)

    def test_a_damaged_one_is_told(self, study: str) -> None:
        folder = keep_baseline(study, "n", FRESH)
        (folder / "baseline.json").write_text("{")
        with pytest.raises(AutotuneError, match="not a baseline"):
            compare(study, "baseline:n")

    def test_a_file_of_figures_is_none(self, study: str, tmp_path: Path) -> None:
        (tmp_path / "kept.json").write_text(json.dumps(to_json(compare_study(study))))
        with pytest.raises(UsageError, match="does not say how to run"):
            keep_baseline("kept.json", "n", FRESH)


class TestForMachines:
    def test_json_has_no_word_that_json_lacks(self, study: str) -> None:
        for result in (compare(study), compare(study, study), compare(study, study, GATE)):
            data = json.loads(json.dumps(result.to_json(), allow_nan=False))
            assert data["schema"] == 1
            assert math.isfinite(data["metric_ratio"])
        assert data["gate"]["status"] == "passed"

    def test_junit_tells_failed_from_undecided(self, study: str) -> None:
        passed = compare(study, study, GATE)
        failed = compare("first#baseline", study, GATE)
        undecided = replace(passed, test=None)
        for result, kind in ((passed, None), (failed, "failure"), (undecided, "skipped")):
            suite = ElementTree.fromstring(junit(result)).find("testsuite")
            assert suite is not None
            case = suite.find("testcase")
            assert case is not None
            kinds = [child.tag for child in case if child.tag != "system-out"]
            assert kinds == ([kind] if kind else [])
            assert suite.get("failures") == str(int(kind == "failure"))

    def test_markdown_keeps_its_table_whatever_the_names_are(self, study: str) -> None:
        result = compare(study, study, GATE)
        side = replace(result.a, name="a|b`c\nd<script>")
        lines = markdown(replace(result, a=side)).splitlines()
        row = next(line for line in lines if line.startswith("| what"))
        assert row.count("|") - row.count("\\|") == 4
        assert "<script>" not in "".join(lines)
