"""Measure every configuration of a space file, to have a recorded grid to search.

    python benchmarks/measure_grid.py benchmarks/grids/mlp_cpu.yaml --rounds 3

Every round measures each configuration once, in fresh processes and in an order of its own, so that
what the machine does meanwhile hits all alike. Of a configuration's rounds the quieter half counts
(three at least), by the share of time for which its threads waited for a core, which knows nothing
of the figures. The grid holds medians over these and the spread of the throughput (largest less
smallest); how it came about is written beside it as JSON. Started again, it goes on where it was
stopped; `--afresh` forgets what was measured.

On a machine that others use, `--shared` divides every throughput by the share of time in which the
threads did not wait for a core, as an estimate of what they would have done alone. Latencies cannot
be mended so, nor can instances of several threads, which wait for each other: both are left out.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import autotune
from autotune.apps.resolve import Resolved, resolve, study_facts
from autotune.core.errors import TrialError
from autotune.core.records import Config
from autotune.measure.summary import summarise
from autotune.trial.group import group_spec, trial_plan
from autotune.trial.session import Launcher, open_session
from autotune.workloads.grid import STATUSES

FIGURES = (
    *("throughput_items_per_s", "latency_mean_s", "latency_p50_s"),
    *("latency_p99_s", "memory_peak_bytes"),
)
COLUMNS = (
    FIGURES[0],
    "throughput_spread_items_per_s",
    *FIGURES[1:],
    "status",
    "cost_s",
)
DIGITS = 5
LATENCIES = ("latency_mean_s", "latency_p50_s", "latency_p99_s")
MAX_WAITED = 0.95
ESTIMATED = "estimated: as measured, divided by the share of time not spent waiting for a core"
LEAST_ROUNDS = 3  # that a median is taken of, where there are as many

_TOLD = ("autotune", "python", "numpy", "cpu")

Row = dict[str, Any]
"""One measurement: `config`, `round`, `status`, and if it is ok the figures, `cost_s`, `trust`."""


def measure(resolved: Resolved, config: Config, launcher: Launcher) -> Row:
    """Measure a configuration once, in fresh processes."""
    space = resolved.space
    began_s = launcher.now_s()
    try:
        spec = group_spec(config, space, resolved.info)
        with open_session(spec, launcher, timeout_s=space.trial.timeout_s) as session:
            found = summarise(session.measure(trial_plan(space)))
    except TrialError as error:
        status = str(error.outcome)
        return {
            "status": status if status in STATUSES else "crashed",
            "cost_s": launcher.now_s() - began_s,
            "reason": str(error),
        }
    window_s = found.duration_s or 0.0
    return {
        "status": "ok",
        "cost_s": max(launcher.now_s() - began_s - window_s, 0.0),
        "trust": found.trust,
        "waited": found.run_queue_wait_ratio or 0.0,
        **{name: getattr(found, name) for name in FIGURES},
    }


def configurations(resolved: Resolved, *, is_shared: bool) -> list[Config]:
    """What is measured: all, on a shared machine those of one core per instance."""
    configs = resolved.space.configs()
    return [c for c in configs if not is_shared or c.cores_per_instance == 1]


def measured_rows(
    resolved: Resolved, rounds: int, kept: Path, *, is_shared: bool = False
) -> list[Row]:
    """All rounds, those already in `kept` included; every new row is kept at once."""
    rows = [json.loads(text) for text in kept.read_text().splitlines()] if kept.is_file() else []
    done = {(row["round"], tuple(row["config"].items())) for row in rows}
    configs = configurations(resolved, is_shared=is_shared)
    with Launcher() as launcher, kept.open("a", encoding="utf-8") as file:
        for number in range(rounds):
            for index in np.random.default_rng(number).permutation(len(configs)):
                values = configs[index].as_dict()
                if (number, tuple(values.items())) in done:
                    continue
                row = {"round": number, "config": values}
                row |= measure(resolved, configs[index], launcher)
                rows.append(row)
                print(json.dumps(row), file=file, flush=True)
            print(
                f"round {number + 1} of {rounds}: {len(configs)} configurations",
                flush=True,
            )
    return rows


def adapted(row: Row) -> Row:
    """A measurement beside others as it is likely to have been alone, without latencies."""
    if row["status"] != "ok":
        return row
    left = 1.0 - min(row["waited"], MAX_WAITED)
    return {**row, FIGURES[0]: row[FIGURES[0]] / left, **dict.fromkeys(LATENCIES)}


def pooled(resolved: Resolved, rows: Sequence[Row]) -> Iterable[Row]:
    """One line per configuration; its status is the one that most rounds gave."""
    names = [p.name for p in resolved.space.params if len(p.choices) > 1]
    for config in resolved.space.configs():
        own = [row for row in rows if row["config"] == config.as_dict()]
        if not own:
            continue
        status, _ = Counter(row["status"] for row in own).most_common(1)[0]
        agreeing = quieter([row for row in own if row["status"] == status])
        line: Row = {name: _text(config.as_dict()[name]) for name in names}
        line |= {
            "status": status,
            "cost_s": round(median(r["cost_s"] for r in agreeing), 3),
        }
        if status == "ok":
            line |= {name: _median([row[name] for row in agreeing]) for name in FIGURES}
            rates = [row[FIGURES[0]] for row in agreeing]
            line[COLUMNS[1]] = _rounded(max(rates) - min(rates))
        yield line


def quieter(rows: Sequence[Row]) -> list[Row]:
    """The half of a configuration's rounds that waited least for cores, three at least."""
    count = max(LEAST_ROUNDS, (len(rows) + 1) // 2)
    return sorted(rows, key=lambda row: row.get("waited", 0.0))[:count]


def provenance(
    resolved: Resolved, rows: Sequence[Row], rounds: int, *, is_shared: bool
) -> dict[str, Any]:
    """What a reader has to know about the grid's figures."""
    space = resolved.space
    groups: dict[str, list[Row]] = {}
    for row in rows:
        if row["status"] == "ok":
            groups.setdefault(str(row["config"]), []).append(row)
    used = [quieter(group) for group in groups.values() if len(group) > 1]
    rates = [[row[FIGURES[0]] for row in group] for group in used]
    spreads = [(max(r) - min(r)) / median(r) for r in rates]
    facts = study_facts(resolved)
    return {
        "measured_on": f"{os.cpu_count()} cores, {resolved.info.kind}",
        "date": datetime.datetime.now(tz=datetime.timezone.utc).date().isoformat(),
        "workload": facts.workload,
        "rounds": rounds,
        "throughput": ESTIMATED if is_shared else "as measured",
        "window_s": space.trial.duration_s,
        "configurations": len({str(row["config"]) for row in rows}),
        "noisy_share": float(np.mean([r.get("trust", "quiet") != "quiet" for r in rows])),
        "waited_median": float(np.median([r.get("waited", 0.0) for g in used for r in g] or [0.0])),
        "spread_median": float(np.median(spreads)) if spreads else None,
        "spread_p90": float(np.quantile(spreads, 0.9)) if spreads else None,
        "environment": {
            **{k: v for k, v in facts.environment.items() if k in _TOLD},
            "torch": version("torch"),
        },
        "space": space.source.text,
    }


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _median(values: Sequence[float | None]) -> float | int | str:
    known = [v for v in values if v is not None]
    return _rounded(median(known)) if known else ""


def _rounded(value: float) -> float | int:
    number = float(f"{value:.{DIGITS}g}")
    return int(number) if number.is_integer() else number


def main(words: Sequence[str] | None = None) -> int:
    """Measure, and write the grid beside the space file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("space", help="space file whose configurations are all measured")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--to", type=Path, help="the grid; beside the space file by default")
    parser.add_argument("--shared", action="store_true", help="the machine is not ours alone")
    parser.add_argument("--afresh", action="store_true", help="forget what was measured before")
    arguments = parser.parse_args(words)
    resolved = resolve(autotune.load_space(arguments.space))
    target = arguments.to or Path(arguments.space).with_suffix(".csv")
    kept = target.with_suffix(".rounds.jsonl")
    if arguments.afresh:
        kept.unlink(missing_ok=True)
    rows = measured_rows(resolved, arguments.rounds, kept, is_shared=arguments.shared)
    if arguments.shared:
        rows = [adapted(row) for row in rows if row["config"]["cores_per_instance"] == 1]
    lines = list(pooled(resolved, rows))
    with target.open("w", newline="", encoding="utf-8") as file:
        names = [*(name for name in lines[0] if name not in COLUMNS), *COLUMNS]
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
    about = provenance(resolved, rows, arguments.rounds, is_shared=arguments.shared)
    target.with_suffix(".json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    spread = f", spread {about['spread_median']:.1%} (median)" if about["spread_median"] else ""
    print(f"{target}: {len(lines)} configurations{spread}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
