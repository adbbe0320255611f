"""The report in Chinese: nothing of its own stays English, nothing of the user's is touched."""

from __future__ import annotations

import ast
import random
import re
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path

import pytest
from report_kinds import LONG, kinds

from autotune.core.diagnosis import Breakdown, Diagnosis, Forecast, Kernel, Roofline
from autotune.core.errors import UsageError
from autotune.core.records import Config, TrialRecord
from autotune.results.bottleneck import diagnose
from autotune.results.document import Verbatim
from autotune.results.forecast import Setting
from autotune.results.language import Catalogue, language, read_po
from autotune.results.report import make_document, render
from autotune.results.study_result import StudyResult

Make = Callable[..., StudyResult]
Trial = Callable[..., TrialRecord]

PLACE = re.compile(r"\{(\w+)(?::\w)?\}")
QUEUE = Forecast(
    knob="instance_count", before=1, after=2, gain=3.2, metric="latency_mean",
    formula="mean latency of 1 over that of 2 instances",
    source="the queue simulated with the measured arrivals and call times",
)  # fmt: skip
ENGLISH = re.compile(r"[A-Za-z]{2,}(?: (?:[a-z]{2,}|a))+")
"""Two words of a sentence, one after the other."""


def phrases() -> dict[str, str]:
    text = (resources.files("autotune.results") / "zh.po").read_text(encoding="utf-8")
    return dict(read_po(text))


def said(result: StudyResult) -> Iterator[tuple[str, str]]:
    """Every text of a report that is its own, with what is made of it in Chinese."""
    heard: dict[str, str] = {}
    chinese = language("zh")

    def listen(text: str) -> str:
        if not isinstance(text, Verbatim):
            heard[text] = chinese(text)
        return text

    make_document(result, now_s=1.8e9, version="1.2.3").said(listen)
    yield from heard.items()


def test_no_text_of_any_report_is_left_in_english(make_study: Make, make_trial: Trial) -> None:
    left = {
        f"{text!r} became {chinese!r}"
        for result in kinds(make_study, make_trial).values()
        for text, chinese in said(result)
        if ENGLISH.search(_without_foreign(chinese)) and not text.startswith("P99 is")
    }
    assert not left, "add to autotune/results/zh.po:\n" + "\n".join(sorted(left))


def _without_foreign(text: str) -> str:
    """Without commands and values of the fixture's own."""
    for foreign in (LONG, "autotune show", "needed 1.2 GiB, the trial may use 1 GiB", "dlrm"):
        text = text.replace(foreign, "")
    return re.sub(r"\b\w+=\S+|P99 is \S+ ms|cpu: \d cores|\d[\d.]* (?:s|ms|min|MiB)\b", "", text)


def test_no_sentence_of_a_verdict_is_left_in_english() -> None:
    """Of all parts, parameters, ranges and sources, drawn at random."""
    rng, chinese = random.Random(8), language("zh")
    left = {
        text
        for _ in range(400)
        for text in drawn_verdict(rng).sentences
        if ENGLISH.search(re.sub(r"aten::\S+", "", chinese(text)))
    }
    assert not left, "add to autotune/results/zh.po:\n" + "\n".join(sorted(left))


def drawn_verdict(rng: random.Random) -> Diagnosis:
    times = [rng.random() ** 4 for _ in range(6)]
    h2d, d2h, idle, between, busy, host = (part / sum(times) for part in times)
    count = rng.choice([0, 1, 28])
    breakdown = Breakdown(
        span_s=1.0, call_count=rng.choice([None, 1, 10]), busy_s=busy, h2d_s=h2d, h2d_alone_s=h2d,
        d2h_s=d2h, d2h_alone_s=d2h, communication_s=between, h2d_count=count, d2h_count=count,
        gap_count=rng.choice([None, 7]), gap_s=idle, idle_s=idle + host, host_s=host,
        memory_share=rng.choice([None, 0.9]), queue_s=rng.choice([0, 3.0]),
        per_call_s=rng.choice([None, 0.5]), copy_overhead_s=rng.choice([None, 1e-6]),
        shared_s=rng.choice([None, 0.0, 0.5]), median_kernel_s=rng.choice([None, 1e-6, 1e-3]),
        kernels=(Kernel(name="aten::mm", count=3, total_s=busy, share=rng.choice([0.3, 0.8])),),
    )  # fmt: skip
    ranges = {"batch_size": (1, 4), "instance_count": (1, 2), "batched_h2d": (False, True)}
    named = {name: ranges[name] for name in rng.sample(sorted(ranges), rng.randrange(4))}
    return diagnose(
        breakdown,
        source="profile",
        config=Config(
            batch_size=rng.choice([1, 4]), instance_count=rng.choice([1, 2]),
            batched_h2d=rng.random() < 0.5, cores_per_instance=rng.choice([1, "all", "8|16"]),
        ),
        setting=Setting(
            choices=named, core_count=rng.choice([None, 2, 24]), overlaps=rng.random() < 0.5,
            is_host=rng.random() < 0.5,
        ),
        roofline=rng.choice([None, Roofline(flops=1e9, moved_bytes=1e6, peak_flops_per_s=1e11,
                                            peak_bytes_per_s=1e10, memory_share=rng.random())]),
        extra=(QUEUE,) if rng.random() < 0.2 else (),
    )  # fmt: skip


def test_every_place_of_a_phrase_is_filled_in_its_translation() -> None:
    for message, text in phrases().items():
        assert text, message
        assert set(PLACE.findall(message)) == set(PLACE.findall(text)), message


def test_places_take_numbers_words_and_texts_that_are_translated_in_their_turn() -> None:
    say = Catalogue(
        {
            "{count:n} of {all:n} were {how:t}.": "{all} 中 {count} {how}。",
            "measured": "已测",
            "{name:w} is {value}": "{name} 为 {value}",
            "all of {names:l}": "全部 {names}",
            "and": "和",
        }
    )
    assert say("3 of 1,024 were measured.") == "1,024 中 3 已测。"
    assert say("three of 1,024 were measured.") == "three of 1,024 were measured."
    assert say("a.b is measured") == "a.b 为 measured"
    assert say("3 of 4 were measured. Nobody knows") == "4 中 3 已测。Nobody knows"
    assert say("nobody knows; 3 of 4 were measured.") == "nobody knows; 4 中 3 已测。"
    assert say("measured; a is b") == "已测；a 为 b"
    assert say("all of a 1, 2 and b") == "全部 a 1, 2 和 b"
    assert say(Verbatim("measured")) == "measured"


def test_what_the_user_named_stays_as_it_is(make_study: Make) -> None:
    result = make_study(study="measured")
    html = render(result, now_s=0, version="1", lang="zh")
    assert "<h1>measured</h1>" in html and 'lang="zh-Hans"' in html
    assert "autotune measure --space online.yaml" in re.sub(r"</?span>", "", html)
    assert "limits: {latency_p99: 20ms}" in html


def test_markdown_says_the_same_in_both_languages_and_escapes(make_study: Make) -> None:
    evil = "a|b <script>`x`"
    result = make_study(study=evil)
    for lang, decision in (("en", "Use this configuration"), ("zh", "采用此配置")):
        text = render(result, now_s=0, version="1", lang=lang, form="md")
        assert decision in text and "autotune measure --space online.yaml" in text
        assert "<script" not in text.replace("\\<script", "")
        rows = [line for line in text.splitlines() if line.startswith("|")]
        assert len(rows) > 60 and all(line.endswith("|") for line in rows)


def test_an_unknown_language_is_refused(make_study: Make) -> None:
    with pytest.raises(UsageError, match="'fr' is unknown; there are en, zh"):
        render(make_study(), now_s=0, version="1", lang="fr")


def test_a_catalogue_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="not a line of a catalogue"):
        dict(read_po('msgid "a"\nmsgstr "b"\nnonsense\n'))


PACKAGE = Path(__file__).resolve().parents[2] / "autotune"
SPEAKING = (
    *sorted((PACKAGE / "results" / "sections").glob("*.py")),
    *(
        PACKAGE / "results" / f"{name}.py"
        for name in (
            "batch_knee", "bottleneck", "checking", "curves", "forecast", "front_view", "left_open",
            "markdown", "recommend", "report", "summary", "sustained", "why", "words",
        )
    ),
    PACKAGE / "measure" / "judge.py",
    PACKAGE / "measure" / "noise.py",
    PACKAGE / "search" / "confirm.py",
    PACKAGE / "search" / "rate_confirm.py",
)  # fmt: skip
"""What the sentences of a report come from."""

NOT_IN_REPORTS = (
    "The front:", "more, all in the report", "confirming: round", "remove the limit",
    "number range", "text settings", "autotune measure",
)  # fmt: skip
"""Said in a terminal or in an error alone, or no words of a person."""


def sentences(path: Path) -> Iterator[tuple[int, str]]:
    """Pieces of sentences that a module is made of, docstrings and errors left out."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    silent: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Raise, ast.Assert)):
            silent |= {id(inner) for inner in ast.walk(node)}
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            silent.add(id(node.value))
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text and id(node) not in silent and ENGLISH.search(node.value):
            yield node.lineno, node.value


def test_every_sentence_in_the_source_has_its_place_in_the_catalogue() -> None:
    """Also those that none of the made-up studies has called for."""
    parts = [part for message in phrases() for part in PLACE.split(message)]
    whole = "\n".join([*parts, *(part.lower() for part in parts)])
    missing = [
        f"{path.relative_to(PACKAGE)}:{line}: {text!r}"
        for path in SPEAKING
        for line, text in sentences(path)
        if not all(piece.strip(" ×") in whole for piece in _pieces(text))
        and not any(known in text for known in NOT_IN_REPORTS)
    ]
    assert not missing, "add to autotune/results/zh.po:\n" + "\n".join(missing)


def _pieces(text: str) -> Iterator[str]:
    """Its sentences: a catalogue has them one by one."""
    for sentence in re.split(r"(?<=[.;:]) |; ", re.sub(r"\{\w+\}", "\0", text)):
        yield from (piece for piece in sentence.split("\0") if ENGLISH.search(piece))
