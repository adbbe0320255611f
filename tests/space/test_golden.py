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
    expected = json.loads((GOLDEN / "space_v1.json").read_text(encoding="utf-8"))
    assert json.loads(json.dumps(found)) == expected
