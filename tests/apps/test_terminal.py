"""The live picture: whole at any width, and without remains when the width changes."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from autotune.apps.terminal import LiveView
from autotune.apps.view import Standing
from autotune.core.objective import Objective
from autotune.core.outcomes import Outcome
from autotune.core.records import Config, Measurement, TrialRecord, Verdict
from autotune.results.study_result import StudyFacts

CONFIG = Config(batch_size=64, instance_count=2, cores_per_instance=1, batched_h2d=True)
FACTS = StudyFacts(
    study="s",
    objective=Objective(name="online_latency"),
    params={
        "batch_size": (1, 64),
        "instance_count": (1, 2),
        "cores_per_instance": (1, 2),
        "batched_h2d": (False, True),
        "micro_batch_count": (1, 2),
    },
)
RECORD = TrialRecord(
    number=7,
    config=CONFIG,
    phase="search",
    verdict=Verdict(outcome=Outcome.OK),
    measurements=(Measurement(throughput_items_per_s=12345.0, latency_p99_s=0.0123),),
)


class Screen:
    """A terminal of some width and what it was sent last."""

    def __init__(self, width: int) -> None:
        self.sent = io.StringIO()
        self.console = Console(
            file=self.sent, force_terminal=True, width=width, height=24, legacy_windows=False
        )

    def draw(self, view: LiveView) -> str:
        self.sent.truncate(0)
        self.sent.seek(0)
        assert view._live is not None
        view._live.refresh()
        return self.sent.getvalue()


def plain(sent: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", sent)


@pytest.mark.parametrize("width", [70, 80, 120])
def test_nothing_is_cut_off_and_trials_have_their_number(width: int) -> None:
    screen = Screen(width)
    with LiveView(screen.console) as view:
        view.resolved(FACTS)
        assert "of 0 trials" not in plain(screen.draw(view))
        view.trial_started(8, CONFIG, Standing(done=7, total=24, best=RECORD))
        view.trial_finished(RECORD, Standing(done=8, total=24, best=RECORD))
        text = plain(screen.draw(view))
    words = text.split()
    assert "…" not in text
    assert words.count("micro_batch_count=1") == 3
    assert re.search(r"now +\(\d s\) trial  8 \( 8 of 24\): batch_size=64", text)
    assert f"#{RECORD.number} " in text


def test_the_time_that_is_left_runs_down(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("autotune.apps.terminal.time.monotonic", lambda: now[0])
    screen = Screen(120)
    with LiveView(screen.console) as view:
        view.resolved(FACTS)
        view.trial_finished(RECORD, Standing(done=8, total=8, left_s=30.0))
        view.confirming("round 1")
        now[0] += 12.0
        assert "18.0 s left at most" in plain(screen.draw(view))


def test_a_picture_that_a_narrower_terminal_has_broken_is_wiped_as_a_whole() -> None:
    screen = Screen(120)
    with LiveView(screen.console) as view:
        view.resolved(FACTS)
        view.trial_started(8, CONFIG, Standing(done=7, total=24, best=RECORD))
        sent = screen.draw(view)
        lines = plain(sent).splitlines()
        usual = screen.draw(view).count("\x1b[1A")
        assert usual == len(lines) - 1
        screen.console.width = 60
        broken = sum((len(line.rstrip("\r")) - 1) // 60 for line in lines if line)
        assert broken > 0
        assert screen.draw(view).count("\x1b[1A") == usual + broken
