"""Metrics as Prometheus collects them: a real server, the official parser."""

from __future__ import annotations

import json
import re
import shutil
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from autotune.apps.guarded_web import Listening
from autotune.apps.history import FOLDER, LINES
from autotune.apps.serve import LEAST_AGE_S, Metrics, grafana_dashboard, serve
from autotune.apps.store import load_result
from autotune.core.codec import to_json_dict
from autotune.core.errors import UsageError
from autotune.results.history import GateEntry
from autotune.results.metrics import NAMES, render_metrics

parser = pytest.importorskip("prometheus_client.parser")
EXAMPLE = Path(__file__).resolve().parents[2] / "studies" / "example"
Samples = dict[str, list[tuple[dict[str, str], float]]]


def parsed(text: str) -> Samples:
    families = parser.text_string_to_metric_families(text)
    return {f.name: [(s.labels, s.value) for s in f.samples] for f in families}


@pytest.fixture
def studies(tmp_path: Path) -> Path:
    shutil.copytree(EXAMPLE, tmp_path / "studies" / "example")
    return tmp_path / "studies"


def served(**how: Any) -> Iterator[Listening]:
    ready = serve(port=0, **how)
    thread = threading.Thread(target=ready.serve, daemon=True)
    thread.start()
    yield ready
    ready.server.shutdown()
    thread.join(10)


def get(ready: Listening, path: str, **headers: str) -> tuple[int, str]:
    host = ready.url.partition("?")[0].removesuffix("/metrics").replace("0.0.0.0", "127.0.0.1")
    request = urllib.request.Request(f"{host}{path}", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_prometheus_reads_what_was_verified(studies: Path) -> None:
    for ready in served(studies_dir=studies):
        status, text = get(ready, "/metrics")
        found, result = parsed(text), load_result("example", studies)
        assert status == 200 and get(ready, "/other")[0] == 404
        assert json.loads(get(ready, "/grafana.json")[1])["title"] == "autotune"
        ((labels, one),) = found["autotune_study_info"]
        assert one == 1 and labels["status"] == result.status == "confirmed"
        assert "batch_size=" in labels["config"]
        record = result.recommendation.record
        assert record is not None and record.measurement is not None
        ((labels, rate),) = found["autotune_verified_throughput_items_per_second"]
        assert rate == record.measurement.throughput_items_per_s and labels["origin"] == "measured"
        counts = {labels["outcome"]: value for labels, value in found["autotune_study_trials"]}
        assert counts == result.counts
        assert found["autotune_study_trials_running"][0][1] == 0
        assert found["autotune_study_complete"][0][1] == 1


def test_elsewhere_the_token_is_needed(studies: Path, tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text("0123456789abcdef0123\n")
    for ready in served(studies_dir=studies, host="0.0.0.0", token_file=secret):
        assert get(ready, "/metrics")[0] == 401
        assert get(ready, "/metrics", Authorization="Bearer wrong")[0] == 401
        assert get(ready, "/metrics", Authorization="Bearer 0123456789abcdef0123")[0] == 200
    for ready in served(studies_dir=studies, host="0.0.0.0"):
        assert "?token=" in ready.url
    secret.write_text("short")
    with pytest.raises(UsageError, match="at least 16"):
        serve(studies_dir=studies, token_file=secret)


def test_a_study_is_read_again_when_it_has_changed_and_not_more_often(
    studies: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from autotune.apps import serve as app

    reads: list[str] = []
    original: Callable[..., Any] = app.load_result
    monkeypatch.setattr(app, "load_result", lambda *a: reads.append(a[0]) or original(*a))
    now_s = [0.0]
    metrics = Metrics(studies, now_s=lambda: now_s[0])
    first = metrics.text()
    (studies / "example" / "new").write_text("x")
    assert metrics.text() == first and reads == ["example"]
    now_s[0] = LEAST_AGE_S
    metrics.text()
    assert reads == ["example"] * 2
    now_s[0] = 3 * LEAST_AGE_S
    metrics.text()
    assert reads == ["example"] * 2


def test_studies_that_cannot_be_read_and_gates_are_counted(studies: Path) -> None:
    (studies / "broken").mkdir()
    entries = [
        GateEntry(at_s=at_s, a="a\n", b='"b"', status=status, ratio=ratio)
        for at_s, status, ratio in ((1.0, "passed", 1.01), (2.0, "failed", 0.9))
    ]
    (studies / FOLDER).mkdir()
    lines = "".join(f"{json.dumps(to_json_dict(entry))}\n" for entry in entries)
    (studies / FOLDER / LINES).write_text(lines)
    found = parsed(Metrics(studies).text())
    assert found["autotune_studies_left_out"] == [({}, 1.0)]
    ((labels, passed),) = found["autotune_gate_passed"]
    assert (labels["a"], labels["b"], passed) == ("a\n", '"b"', 0.0)
    assert found["autotune_gate_ratio"][0][1] == 0.9


def test_no_number_that_is_none() -> None:
    assert parsed(render_metrics([("autotune_info", {}, float("nan"))])) == {}


def test_the_grafana_dashboard_asks_for_metrics_that_there_are() -> None:
    board = json.loads(grafana_dashboard())
    asked = {
        name
        for panel in board["panels"]
        for target in panel["targets"]
        for name in re.findall(r"autotune_\w+", target["expr"])
    }
    assert asked and asked <= set(NAMES)
    ids = [panel["id"] for panel in board["panels"]]
    assert len(set(ids)) == len(ids)
    variable = next(v for v in board["templating"]["list"] if v["name"] == "study")
    assert "autotune_study_info" in variable["query"]["query"]
