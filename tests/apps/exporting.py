"""What tests of exports share: a recommendation that nobody searched for, and its programs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from autotune.apps.export import Subject
from autotune.core.outcomes import Outcome
from autotune.core.records import Config, Measurement, Recommendation, TrialRecord, Verdict
from autotune.results.evidence import evidence_of
from autotune.results.study_result import StudyFacts, StudyResult
from autotune.space.loader import load_space
from autotune.space.search_space import SearchSpace

COMMAND = ("autotune run", "--space s.yaml", "--set budget.trials=4")


def result_of(space: SearchSpace, config: Config, **environment: str) -> StudyResult:
    """A confirmed study of one configuration."""
    measurement = Measurement(
        throughput_items_per_s=1950.0,
        throughput_ci95_items_per_s=(1900.0, 2000.0),
        latency_p99_s=0.0182,
        environment={"precision": "float32", "torch": "2.13.0", "note 1": "n", **environment},
    )
    record = TrialRecord(
        number=1,
        config=config,
        phase="confirm",
        verdict=Verdict(outcome=Outcome.OK),
        measurements=(measurement,),
        started_at_s=1.7e9,
    )
    facts = StudyFacts(
        study=space.study,
        objective=space.objective,
        workload="a model (torch, float32)",
        device=f"{'cpu' if space.device == 'auto' else space.device}: 2 cores",
        space_path="s.yaml",
        command=COMMAND,
    )
    proven = Recommendation(status="confirmed", record=record)
    return StudyResult(facts=facts, records=(record,), recommendation=proven)


def subject(directory: Path, text: str, environment: dict[str, str], **values: Any) -> Subject:
    """A study of a space file's text, exported into its directory."""
    path = directory / "s.yaml"
    path.write_text(text)
    named = {key.replace("__", "."): value for key, value in values.items()}
    config = Config.from_dict({"batch_size": 8, **named})
    space = load_space(str(path))
    result = result_of(space, config, **environment)
    record = result.recommendation.record
    assert record is not None
    return Subject(
        space=space,
        config=config,
        directory=directory,
        result=result,
        evidence=evidence_of(result, record, latency_ci95_s=(0.017, 0.019)),
    )


def run_program(path: Path, *words: str) -> dict[str, Any]:
    """Run an exported program somewhere else, without this project on its path if it can be."""
    own = {k: v for k, v in os.environ.items() if k != "PYTHONPATH" or "stub_cann" in v}
    done = subprocess.run(
        [sys.executable, str(path), *words],
        env={**own, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    found: dict[str, Any] = json.loads(lines[-1]) if lines else {}
    return found
