"""The dashboard as a reviewer meets it: a real server, a real browser, a study that is kept."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
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
    assert {"throughput-over-batch", "throughput-over-latency", "time-of-a-call"} <= shown
    for path in ("", "/0", "/artifacts/0/0/00000000-0000-0000-0000-000000000000"):
        assert get(f"{base}/api/studies{path}", "DELETE")[0] == 403
    assert get(f"{base}/api/artifacts/0/0", "POST")[0] == 403
    assert get(f"{base}/api/studies/0")[0] == 200


def test_feasibility_is_told_and_the_recommended_trial_is_the_best(
    served: Listening, studies: Path
) -> None:
    detail = json.loads(get(f"{served.url.removesuffix('/dashboard')}/api/studies/0")[1])
    result = load_result("example", studies)
    trials = {trial["number"]: trial for trial in detail["trials"]}
    assert all(trial["constraints"] for trial in trials.values())
    over = {r.number for r in result.records if max(r.verdict.excess.values(), default=0.0) > 0}
    for number, trial in trials.items():
        attributes = {a["key"]: a["value"] for a in trial["user_attrs"]}
        assert attributes["feasible"] == ("no" if number in over else "yes")
        assert (max(trial["constraints"]) > 0) == (number in over)
        assert "record" not in attributes and "lease" not in attributes
    (best,) = detail["best_trials"]
    recommended = [r.number for r in result.records if r.config == result.config]
    assert best["number"] in recommended
    # What is kept is as it was: the next run of the study must find its records.
    again = load_result("example", studies)
    assert again.records == result.records and again.recommendation == result.recommendation


def test_raw_calls_logs_and_profiles_lie_beside_their_trial(studies: Path) -> None:
    directory = studies / "example"
    (directory / "samples").mkdir()
    for name in ("search-3.npz", "confirm-1.npz"):
        (directory / "samples" / name).write_bytes(name.encode())
    result = load_result("example", studies)
    evil = "</pre><script>alert(1)</script>"
    records = tuple(
        replace(r, log_tail=evil, profile={"span_s": 1.0}) if r.number == 3 else r
        for r in result.records
    )
    stored = StoredStudy.load("example", directory, read_only=False)
    for _ in range(2):  # the second time there is nothing to add
        annotate(stored, replace(result, records=records))
    ready = dashboard("example", studies_dir=studies, port=0)
    thread = threading.Thread(target=ready.serve, daemon=True)
    thread.start()
    base = ready.url.removesuffix("/dashboard")
    detail = json.loads(get(f"{base}/api/studies/0")[1])
    assert [a["filename"] for a in detail["artifacts"]] == ["confirm-1.npz"]
    (trial,) = (t for t in detail["trials"] if t["number"] == 3)
    by_name = {a["filename"]: a for a in trial["artifacts"]}
    assert sorted(by_name) == ["log.txt", "profile.json", "search-3.npz"]
    for name, content in (("search-3.npz", "search-3.npz"), ("log.txt", evil)):
        artifact = by_name[name]
        url = f"{base}/artifacts/0/{trial['trial_id']}/{artifact['artifact_id']}"
        assert get(url) == (200, content)
        assert artifact["mimetype"] in ("application/octet-stream", "text/plain")
    ready.server.shutdown()
    thread.join(10)


def test_the_note_escapes_what_others_have_written(studies: Path) -> None:
    result = load_result("example", studies)
    evil = "<img src=x onerror=alert(1)> | [a](javascript:alert(1))"
    proof = replace(result.recommendation, reasons=(evil,))
    text = note_text(replace(result, recommendation=proof))
    assert "\\<img" in text and "\\[a\\]" in text and "\\|" in text
    facts = replace(result.facts, origin="simulated", space_path="online.yaml")
    text = note_text(replace(result, facts=facts))
    assert "nothing was measured on a device" in text
    assert "``` autotune measure --space online.yaml --set" in text


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
