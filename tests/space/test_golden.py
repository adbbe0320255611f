"""A stored space file keeps its meaning."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from autotune.space.loader import load_space

GOLDEN = Path(__file__).parents[1] / "golden"


def test_the_first_releases_file_still_means_the_same():
    space = load_space(GOLDEN / "space_v1.yaml")
    found = dataclasses.asdict(dataclasses.replace(space, source=type(space.source)()))
    found["workload"]["base_dir"] = ""
    assert found["workload"].pop("artifact") == ""  # came later; nothing is stored in it
    expected = json.loads((GOLDEN / "space_v1.json").read_text(encoding="utf-8"))
    assert _known_then(json.loads(json.dumps(found)), expected) == expected


def _known_then(found, expected):
    """`found` without the keys that came later; those have defaults."""
    if isinstance(found, dict) and isinstance(expected, dict):
        return {k: _known_then(v, expected[k]) for k, v in found.items() if k in expected}
    if isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        return [_known_then(f, e) for f, e in zip(found, expected, strict=True)]
    return found
