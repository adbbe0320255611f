"""Under which conditions the figures were seen."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from autotune.core.units import format_size
from autotune.results.document import Block, Bullets, Foreign, Pairs, Section, Verbatim
from autotune.results.study_result import StudyResult
from autotune.results.summary import measurement_of

_NAME_WORDS = 4


def conditions(result: StudyResult) -> Section:
    """Settings, versions, the device's own figures, and the space file."""
    return Section(title="Conditions", blocks=tuple(_blocks(result)))


def _blocks(result: StudyResult) -> Iterator[Block]:
    measurement = measurement_of(result.shown)
    if measurement.warnings:
        yield Bullets(items=tuple(dict.fromkeys(measurement.warnings)))
    facts = result.facts
    environment = [_fact(*pair) for pair in measurement.environment.items()]
    named: dict[str, list[tuple[str, str]]] = {
        # Keys of the space file, and names of packages, are the same in all languages.
        "Settings": [(Verbatim(name), text) for name, text in facts.settings.items()],
        "Environment of the tool": [
            (Verbatim(name), Verbatim(text)) for name, text in facts.environment.items()
        ],
        "Environment of the measurement": environment,
        "The device beside the measurement": _telemetry(measurement.telemetry),
    }
    for title, pairs in named.items():
        if pairs:
            yield Pairs(title=title, pairs=tuple(pairs))
    if text := facts.space_text.strip():
        yield Foreign(title="The space file", text=text)


def _telemetry(told: Mapping[str, float]) -> list[tuple[str, str]]:
    """What the device told of itself, where it told it."""
    kinds: dict[str, tuple[str, Callable[[float], str]]] = {
        "utilisation_mean_ratio": ("in use, mean", lambda share: f"{share:.0%}"),
        "memory_used_peak_bytes": ("memory in use by all, at most", format_size),
        "temperature_max_c": ("temperature, at most", lambda celsius: f"{celsius:.0f} °C"),
        "power_mean_w": ("power, mean", lambda watts: f"{watts:.3g} W"),
        "frequency_mean_hz": ("clock, mean", lambda hertz: f"{hertz / 1e6:.0f} MHz"),
        "frequency_min_hz": ("clock, lowest", lambda hertz: f"{hertz / 1e6:.0f} MHz"),
        "readings": ("readings", lambda count: f"{count:.0f}"),
    }
    return [(name, text(told[key])) for key, (name, text) in kinds.items() if key in told]


def _fact(name: str, text: str) -> tuple[str, str]:
    """A pair of the environment: a numbered note names itself, or is simply a note."""
    if not re.fullmatch(r"note \d+", name):
        return name, text
    subject, colon, rest = text.partition(": ")
    return (subject, rest) if colon and len(subject.split()) <= _NAME_WORDS else ("note", text)
