"""The gates' history: what is kept, what a damaged file costs, what the page shows."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.apps import history as history_module
from autotune.apps.history import FOLDER, LINES, MAX_ENTRIES, read_history, remember
from autotune.core.codec import to_json_dict
from autotune.core.records import Config
from autotune.measure.paired import GATE_ALPHA, Rule, judge_pairs
from autotune.results.history import GateEntry, render_history
from autotune.results.regression import CompareResult, Side

RULE = Rule(alpha=GATE_ALPHA, gate=True)


def result(log_ratio: float = 0.0, a: str = "ranker", at_s: float = 1e9) -> CompareResult:
    pairs = [log_ratio + 0.001 * (n % 3 - 1) for n in range(8)]
    return CompareResult(
        a=Side(name=a, config=Config(), workload="ranker.py:build"),
        b=Side(name="baseline:main", config=Config()),
        metric="throughput",
        basis="fresh",
        test=judge_pairs(pairs, RULE),
        pair_ratios=(1.0,) * 8,
        is_gate=True,
        at_s=at_s,
    )


def test_every_gate_adds_a_line_and_writes_the_page(tmp_path: Path) -> None:
    page = remember(result(), tmp_path)
    remember(result(-0.1), tmp_path)
    statuses = [entry.status for entry in read_history(tmp_path)]
    assert statuses == ["passed", "failed"]
    text = page.read_text()
    assert "ranker against baseline:main" in text
    assert text.count("<tr class=") == 2
    assert "<script" not in text and "://" not in text


def test_half_a_line_and_foreign_ones_are_passed_over(tmp_path: Path) -> None:
    remember(result(), tmp_path)
    path = tmp_path / FOLDER / LINES
    sound = json.loads(path.read_text())
    odd = [{"at_s": 1e300}, {"status": "odd"}, {"ratio": -1.0}, {"ci95": [0.5, 1e308]}]
    lines = "".join(f"{json.dumps({**sound, **change})}\n" for change in (*odd, {"tolerance": 7.0}))
    end = '[]\n7\n{"at_s": "x"}\n{"at_s": 1.0, "a": "ra'
    path.write_text(path.read_text() + lines + end)
    remember(result(at_s=2e9), tmp_path)
    assert [entry.at_s for entry in read_history(tmp_path)] == [1e9, 2e9]


def test_the_history_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_module, "MAX_ENTRIES", 8)
    assert MAX_ENTRIES == 1000
    for number in range(30):
        remember(result(at_s=float(number)), tmp_path)
    kept = [entry.at_s for entry in read_history(tmp_path)]
    assert 8 <= len(kept) <= 10
    assert kept[-1] == 29.0 and kept == sorted(kept)


def test_pairings_are_apart_and_their_names_are_no_markup(tmp_path: Path) -> None:
    entry = GateEntry(at_s=1e9, a="<b>x</b>", b="y", status="undecided")
    entries = [entry, replace(entry, a="other", ratio=0.9, ci95=(0.8, 1.0), status="failed")]
    text = render_history(entries, version="1")
    assert text.count("<section>") == 2
    assert "<b>x</b>" not in text
    assert text.count('<svg class="chart"') == 2  # wide and narrow, of the one that has a ratio


def test_an_entry_of_this_version_is_read_for_ever() -> None:
    line = (
        '{"at_s": 1.0, "a": "x", "b": "y", "status": "passed", "why": "", "metric": "throughput", '
        '"ratio": 1.0, "ci95": [0.9, 1.1], "smallest_change": 0.03, "tolerance": 0.05, "pairs": 6, '
        '"model": "", "device": "", "schema_version": 1}'
    )
    entry = history_module.from_json_dict(GateEntry, json.loads(line))
    assert to_json_dict(entry) == json.loads(line)
