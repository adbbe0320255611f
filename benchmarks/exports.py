"""Whether an exported program is as fast as what was measured: side by side, in turns.

    python benchmarks/exports.py STUDY [--to FORMAT] [--pairs 6] [--seconds 5]

A is the exported program, measured by itself (`--bench`); B is the same configuration in the
tool's own harness. Each is a fresh start of processes, in the order A B B A. It prints the ratio of
their throughputs with its 95 % interval, A's throughput beside the interval that the export
states, and a verdict. Measured in a closed loop: back-to-back calls of full batches.

With `--self-made` it needs no study: it makes one for torch, ONNX Runtime and OpenVINO each.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.apps.export import export_study
from autotune.apps.measure import measure
from autotune.apps.store import load_result
from autotune.measure.ratio import geometric_mean, ratio_interval
from autotune.results.words import config_items
from autotune.space.loader import load_space, load_text
from autotune.trial.group import workload_of

BOUND = 0.05
"""Of the ratio's interval: a program within this of the harness counts as equally fast."""

SELF_MADE = """
workload: {{model: dlrm, options: {{size: small}}, runtime: {runtime}}}
params:
  batch_size: [64, 256]
  instance_count: [1, 2]
  cores_per_instance: [1]
  micro_batch_count: [1, 2]
  batched_h2d: [false, true]
rules: [instance_count * cores_per_instance <= core_count]
baseline: {{batch_size: 64}}
trial: {{duration: 1s}}
budget: {{trials: 8}}
confirm: {{top: 2, duration: 10s}}
"""


@dataclass(frozen=True)
class Found:
    """One study: pairs of rates, program and harness, and what the export states."""

    study: str
    to: str
    pairs: tuple[tuple[float, float], ...]
    stated: float | None
    stated_ci95: tuple[float, float] | None

    def lines(self) -> list[str]:
        ratios = [a / b for a, b in self.pairs]
        low, high = ratio_interval(ratios, 0.95)
        rates = [a for a, _ in self.pairs]
        program, harness = geometric_mean(rates), geometric_mean([b for _, b in self.pairs])
        same = low >= 1 - BOUND and high <= 1 + BOUND
        says = "as fast" if same else "not shown to be as fast" if low <= 1 <= high else "differs"
        lines = [
            f"{self.study} --to {self.to}: program {program:,.0f}/s, harness {harness:,.0f}/s",
            f"  ratio {geometric_mean(ratios):.3f} (95 % {low:.3f} to {high:.3f}), "
            f"{len(ratios)} pairs: {says}",
        ]
        if self.stated is not None:
            lines.append(f"  stated {self.stated:,.0f}/s {self._stated_text(rates)}")
        return lines

    def _stated_text(self, rates: Sequence[float]) -> str:
        if self.stated_ci95 is None:
            return "without an interval"
        low, high = self.stated_ci95
        own = ratio_interval(list(rates), 0.95)
        inside = own[0] <= high and low <= own[1]
        word = "overlap" if inside else "do NOT overlap"
        return (
            f"({low:,.0f} to {high:,.0f}); the program's own {own[0]:,.0f} to {own[1]:,.0f}: "
            f"the intervals {word}"
        )


def compare(study: str, to: str, *, studies_dir: Path, pairs: int, seconds: float) -> Found:
    """Export a study and measure program and harness in turns."""
    result = load_result(study, studies_dir)
    record = result.recommendation.record
    assert record is not None and record.measurement is not None, f"{study} recommends nothing"
    space = load_text(result.facts.space_text, result.facts.space_path)
    to = to or workload_of(record.config, space.workload).kind
    with tempfile.TemporaryDirectory() as directory:
        program = export_study(
            study, to, out=Path(directory), studies_dir=studies_dir, unproven=True
        )[0]
        fixed = [
            f"{key}.{name}={value}"
            for name, value in config_items(record.config).items()
            for key in ("params", "baseline")
        ]
        closed = ["load={closed: {}}", "limits={}", f"trial.duration={seconds}s", *fixed]
        harness = load_text(
            result.facts.space_text,
            result.facts.space_path,
            [*closed, f"confirm={{top: 1, duration: {seconds}s}}"],
        )
        rates = []
        for pair in range(pairs):
            order = "AB" if pair % 2 == 0 else "BA"
            found = {
                side: _program(program, seconds)
                if side == "A"
                else measure(harness, sessions=1).record.measurement.throughput_items_per_s  # type: ignore[union-attr]
                for side in order
            }
            rates.append((found["A"], found["B"] or math.nan))
            print(f"  {study} pair {pair + 1}: {found['A']:,.0f} / {found['B']:,.0f}", flush=True)
    measurement = record.measurement
    is_closed = not result.facts.objective.load.is_queued
    return Found(
        study=study,
        to=to,
        pairs=tuple(rates),
        stated=measurement.throughput_items_per_s if is_closed else None,
        stated_ci95=measurement.throughput_ci95_items_per_s if is_closed else None,
    )


def _program(path: Path, seconds: float) -> float:
    command = [sys.executable, str(path), "--bench", str(seconds)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=600)
    return float(json.loads(done.stdout.splitlines()[-1])["throughput_items_per_s"])


def self_made(runtime: str, directory: Path) -> str:
    """Run a small study of the recommender."""
    from autotune.apps.run import run

    path = directory / f"exports-{runtime}.yaml"
    path.write_text(SELF_MADE.format(runtime=runtime), encoding="utf-8")
    space = load_space(str(path))
    run(space, studies_dir=directory / "studies")
    return space.study


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("study", nargs="?", default="")
    parser.add_argument("--to", default="", help="the runtime it was measured in if left out")
    parser.add_argument("--self-made", nargs="*", metavar="RUNTIME")
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--studies-dir", type=Path, default=Path("studies"))
    asked = parser.parse_args()
    how = {"pairs": asked.pairs, "seconds": asked.seconds}
    found = []
    if asked.self_made is not None:
        with tempfile.TemporaryDirectory() as directory:
            for runtime in asked.self_made or ("torch", "onnxruntime", "openvino"):
                study = self_made(runtime, Path(directory))
                studies = Path(directory) / "studies"
                found.append(compare(study, "", studies_dir=studies, **how))
    else:
        found.append(compare(asked.study, asked.to, studies_dir=asked.studies_dir, **how))
    for one in found:
        print("\n".join(one.lines()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
