"""The dashboard as a reviewer meets it: a real server, a real browser, a study that is kept."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from autotune.apps.dashboard import annotate, dashboard, note_text
from autotune.apps.guarded_web import Listening
from autotune.apps.store import load_result
from autotune.core.errors import UsageError
from autotune.search.study import StoredStudy

pytest.importorskip("optuna_dashboard")
EXAMPLE = Path(__file__).resolve().parents[2] / "studies" / "example"


@pytest.fixture
def studies(tmp_path: Path) -> Path:
    shutil.copytree(EXAMPLE, tmp_path / "studies" / "example")
    return tmp_path / "studies"


@pytest.fixture
def served(studies: Path) -> Iterator[Listening]:
    ready = dashboard("example", studies_dir=studies, port=0)
    thread = threading.Thread(target=ready.serve, daemon=True)
    thread.start()
    yield ready
    ready.server.shutdown()
    thread.join(10)


def get(url: str, method: str = "GET") -> tuple[int, str]:
    request = urllib.request.Request(url, method=method)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_the_study_is_served_with_note_and_figures_and_cannot_be_deleted(served: Listening) -> None:
    base = served.url.removesuffix("/dashboard")
    status, text = get(f"{base}/api/studies/0")
    detail = json.loads(text)
    assert status == 200 and detail["name"] == "example"
    assert "Use this configuration" in detail["note"]["body"]
    shown = {graph["id"] for graph in detail["plotly_graph_objects"]}
    assert {"throughput-over-batch", "throughput-over-latency"} <= shown
    assert get(f"{base}/api/studies/0", "DELETE")[0] == 403
    assert get(f"{base}/api/studies/0")[0] == 200


@pytest.mark.browser
def test_a_browser_shows_decision_and_figures(served: Listening) -> None:
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        pytest.skip("there is no chromium")
    words = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=8000"]
    for page, expected in (("studies/0/note", "Use this configuration"), ("studies/0", "History")):
        done = subprocess.run(
            [*words, "--dump-dom", f"{served.url}/{page}"],
            capture_output=True, text=True, timeout=120, check=True,
        )  # fmt: skip
        assert expected in done.stdout


def test_what_a_reviewer_wrote_is_kept(studies: Path) -> None:
    import optuna_dashboard

    stored = StoredStudy.load("example", studies / "example", read_only=False)
    result = load_result("example", studies)
    annotate(stored, result)
    note = optuna_dashboard.get_note(stored.optuna_study)
    optuna_dashboard.save_note(stored.optuna_study, f"{note}\nchecked by two of us")
    annotate(stored, result)
    again = optuna_dashboard.get_note(stored.optuna_study)
    assert again.startswith(note_text(result)) and again.endswith("checked by two of us")


def test_another_address_gets_a_token_and_the_latest_study_is_the_default(studies: Path) -> None:
    ready = dashboard("", studies_dir=studies, host="0.0.0.0", port=0)
    assert "/dashboard?token=" in ready.url and len(ready.url) > 50
    ready.server.server_close()


def test_what_cannot_be_served_is_said(studies: Path) -> None:
    with pytest.raises(UsageError, match="no study 'absent'"):
        dashboard("absent", studies_dir=studies, port=0)
    with pytest.raises(UsageError, match="no study in"):
        dashboard("", studies_dir=studies / "example", port=0)
    taken = dashboard("example", studies_dir=studies, port=0)
    with pytest.raises(UsageError, match="cannot listen on"):
        dashboard("example", studies_dir=studies, port=taken.server.server_port)
    taken.server.server_close()
