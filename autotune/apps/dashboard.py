"""`autotune dashboard`: a study in optuna-dashboard, with our decision and figures in it.

optuna-dashboard does not know constraints as Optuna 5 has them, so it gets them in the old form
from a storage that tells them so (`search.reviewed`), with the recommended trial as the best one.
It knows no users either, and obeys whoever asks to delete a study: hence the gate.
"""

from __future__ import annotations

import importlib
import json
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from autotune.apps.guarded_web import Gate, Listening, listen, new_token
from autotune.apps.plotly_figures import plotly_figure
from autotune.apps.samples import samples_path
from autotune.apps.store import load_result, load_stored
from autotune.core.codec import to_json_dict
from autotune.core.errors import UnavailableError, UsageError
from autotune.results.charts import Chart
from autotune.results.curves import curve, latency_metric, trial_map
from autotune.results.evidence import measure_command
from autotune.results.front_view import front_chart
from autotune.results.lanes import Lanes
from autotune.results.markdown import escaped
from autotune.results.sections.bottleneck import shares_chart
from autotune.results.sections.stages import stages_chart
from autotune.results.study_result import StudyResult
from autotune.results.summary import (
    ORIGIN_NOTICE,
    figures,
    headline,
    reasons,
    standing,
    status_meaning,
)
from autotune.results.words import config_text
from autotune.search.artifacts import Artifact, artifact_store, attach
from autotune.search.reviewed import reviewed
from autotune.search.study import StoredStudy

NOTE_LINE = "\n\n---\n"


def dashboard(
    study: str,
    *,
    studies_dir: Path = Path("studies"),
    storage: str = "",
    host: str = "127.0.0.1",
    port: int = 8080,
    may_change: bool = False,
) -> Listening:
    """Put our note and figures into the study and set up a server for its storage.

    Args:
        study: Its name; empty: the one that was changed last.
        host: On another address than this machine's own a token is needed, which `url` has.
        port: 0: any that is free.
        may_change: Let the dashboard delete, rename and make studies.
    Raises:
        UnavailableError: optuna-dashboard is not installed. UsageError: There is no such study,
            or the address cannot be used. StorageError: The storage cannot be used.
    """
    package = _package()
    name = study or _latest(studies_dir)
    stored = load_stored(name, studies_dir, storage)
    writable = StoredStudy.load(stored.name, stored.directory, storage=stored.url, read_only=False)
    result = load_result(name, studies_dir, storage)
    annotate(writable, result)
    shown = reviewed(writable.storage, writable.optuna_study._study_id, _best_trial(result))
    inner = package.wsgi(shown, artifact_store=artifact_store(writable.directory))
    token = new_token(host)
    application = Gate(token=token, may_change=may_change).around(inner)
    return listen(application, host, port, token=token, path="/dashboard")


def annotate(stored: StoredStudy, result: StudyResult) -> None:
    """The decision as the study's note, our charts as its figures, files beside the trials.

    What someone wrote below the note's line is kept.
    """
    package = _package()
    study = stored.optuna_study
    _, _, of_others = package.get_note(study).partition(NOTE_LINE)
    package.save_note(study, f"{note_text(result)}{NOTE_LINE}{of_others}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Optuna calls it experimental
        study.set_metric_names([goal.metric for goal in result.facts.objective.goals])
    for name, chart in _charts(result):
        package.save_plotly_graph_object(study, plotly_figure(chart), graph_object_id=name)
    attach(study, stored.directory, _artifacts(result, stored.directory))


def note_text(result: StudyResult) -> str:
    """The decision in Markdown."""
    rows = [(f.name, f.figure, f.detail) for f in figures(result)]
    rows += [(name, text, "") for name, text in standing(result)]
    notice = " ".join(ORIGIN_NOTICE.get(result.facts.origin, ()))
    record = result.recommendation.record
    again: list[str] = []
    if record is not None and result.facts.space_path:
        # Within the line, so that it is broken: a block of code would widen the page.
        again = [f"Measure it again: ``` {measure_command(result, record)} ```", ""]
    lines = [
        f"## {escaped(headline(result))}",
        *([f"**{escaped(notice)}**", ""] if notice else []),
        f"*{result.status}*: {escaped(status_meaning(result))}",
        "",
        *([escaped(config_text(result.config))] if result.config else []),
        "",
        "| | | |",
        "|---|---|---|",
        *(f"| {' | '.join(map(escaped, row))} |" for row in rows),
        "",
        *(f"- {escaped(reason)}" for reason in reasons(result)),
        "",
        *again,
        "*Best Trial* is the recommended one; what breaks a limit is marked as infeasible. Beside "
        "each trial are its raw calls and its log. What is written below the line is kept.",
    ]
    return "\n".join(lines)


def _charts(result: StudyResult) -> Iterator[tuple[str, Chart | Lanes]]:
    found: dict[str, Chart | Lanes | None] = {
        "throughput-over-batch": curve(result, "throughput"),
        "latency-over-batch": curve(result, latency_metric(result)),
        "throughput-over-latency": trial_map(result),
        "front": front_chart(result),
        "time-of-a-call": stages_chart(result),
    }
    for diagnosis in result.diagnoses:
        role = "recommended" if diagnosis.config == result.config else "baseline"
        shares = shares_chart(diagnosis)
        if shares is not None:
            shares = replace(shares, title=f"{shares.title}: {role}")
        found[f"time-by-part-{role}"] = shares
    return ((name, chart) for name, chart in found.items() if chart is not None)


def _best_trial(result: StudyResult) -> int | None:
    """The number of the recommended configuration's last trial."""
    numbers = [r.number for r in result.records if r.config == result.config and r.measurement]
    return max(numbers, default=None)


def _artifacts(result: StudyResult, directory: Path) -> Iterator[Artifact]:
    """Raw calls, logs and profiles: of the proof, then of the trials, the recommended one first."""
    for record in result.recommendation.confirmations:
        path = samples_path(directory, record.phase, record.number)
        if path.is_file():
            yield Artifact(trial=None, name=path.name, source=path)
    profiles = {d.config: d.files for d in result.diagnoses if d.config is not None}
    for record in sorted(result.records, key=lambda r: (r.config != result.config, r.number)):
        path = samples_path(directory, record.phase, record.number)
        if path.is_file():
            yield Artifact(trial=record.number, name=path.name, source=path)
        if record.log_tail.strip():
            yield Artifact(trial=record.number, name="log.txt", source=record.log_tail.encode())
        if record.profile:
            text = json.dumps(to_json_dict(record.profile), indent=1)
            yield Artifact(trial=record.number, name="profile.json", source=text.encode())
        for file in profiles.pop(record.config, ()):
            if (directory / file).is_file():
                yield Artifact(trial=record.number, name=Path(file).name, source=directory / file)


def _latest(studies_dir: Path) -> str:
    """The study that was changed last.

    Raises:
        UsageError: There is none.
    """
    inside = studies_dir.iterdir() if studies_dir.is_dir() else iter(())
    found = [path for path in inside if path.is_dir() and path.name[0] != "."]
    if not found:
        raise UsageError(f"there is no study in {studies_dir}/; run one first")
    return max(found, key=_changed_s).name


def _changed_s(directory: Path) -> float:
    return max((file.stat().st_mtime for file in directory.iterdir()), default=0.0)


def _package() -> ModuleType:
    try:
        return importlib.import_module("optuna_dashboard")
    except ImportError as error:
        raise UnavailableError(
            f"the dashboard needs optuna-dashboard and plotly ({error}); "
            'pip install "autotune-npu[dashboard]"'
        ) from None
