"""What `cnmon info` prints of a card: best effort, from the documented "Key : Value" layout.

It has never been run against a real card.
"""

from __future__ import annotations

import re

from autotune.devices.readings import Reading

MAX_CHARS = 1_000_000
MAX_FIGURE = 1e9  # beyond this a figure is a fault of the text
_FIGURE = re.compile(r"(-?\d+(?:\.\d+)?)\s*(%|C|W|MiB|MB)?")
_WANTED = {
    "utilization": ("mlu average", "mlu overall"),
    "power": ("usage",),
    "temperature": ("chip", "board"),
}


def parse(text: str) -> Reading:
    """The figures of the first card in the text.

    Raises:
        ValueError: None of the figures is in it.
    """
    if len(text) > MAX_CHARS:
        raise ValueError(f"{len(text)} characters; at most {MAX_CHARS} are read")
    section = ""
    figures: dict[tuple[str, str], float] = {}
    for line in text.splitlines():
        key, _, value = (part.strip() for part in line.partition(":"))
        if key and not value:
            section = key.casefold()
        match = _FIGURE.match(value)
        if match is not None and abs(figure := float(match.group(1))) < MAX_FIGURE:
            figures.setdefault((section, key.casefold()), figure)
    found = {
        section: next((figures[section, k] for k in keys if (section, k) in figures), None)
        for section, keys in _WANTED.items()
    }
    used, total = (figures.get(("physical memory usage", key)) for key in ("used", "total"))
    if not any(value is not None for value in (*found.values(), used)):
        raise ValueError("no utilisation, power, temperature or memory of a card in it")
    share = found["utilization"]
    return Reading(
        utilisation_ratio=share / 100 if share is not None and 0 <= share <= 100 else None,
        memory_used_bytes=None if used is None else round(used * 2**20),
        memory_total_bytes=None if total is None else round(total * 2**20),
        temperature_c=found["temperature"],
        power_w=found["power"],
    )
