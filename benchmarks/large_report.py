"""How large a report becomes, how long it takes to write, and to open in Chromium.

    python benchmarks/large_report.py 200 10000

A study of so many trials is made of the example's: its journal is written out with as many, each a
trial of the example with another batch size and figures that are a few percent off.
"""

from __future__ import annotations

import copy
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = ROOT / "studies" / "example" / "study.journal"
CREATE_STUDY, ATTRIBUTE_OF_STUDY, CREATE_TRIAL = 0, 2, 4

WRITE = """
import resource, sys, time
from pathlib import Path
from autotune.apps.report import report
began = time.process_time()
path = report("large", studies_dir=Path(sys.argv[1]), lang=sys.argv[2]).report
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(f"{time.process_time() - began:.1f} s of CPU, {peak:.0f} MiB, ", end="")
print(f"{path.stat().st_size / 1e6:.2f} MB")
"""


def make_journal(count: int, path: Path) -> None:
    """A journal of a study of `count` trials."""
    rng = random.Random(0)
    lines = [json.loads(line) for line in EXAMPLE.read_text("utf-8").splitlines()]
    created = [line for line in lines if line["op_code"] == CREATE_TRIAL]
    own: dict[int, list[dict[str, Any]]] = {}
    for line in lines:
        if "trial_id" in line:
            own.setdefault(line["trial_id"], []).append(line)
    head = [line for line in lines if line["op_code"] == CREATE_STUDY]
    tail = [line for line in lines if line["op_code"] == ATTRIBUTE_OF_STUDY]
    for line in head:
        line["study_name"] = "large"
    for line in tail:
        if "facts" in line.get("user_attr", {}):
            line["user_attr"]["facts"]["study"] = "large"
    with path.open("w", encoding="utf-8") as file:
        for line in [*head, *_trials(count, created, own, rng), *tail]:
            file.write(f"{json.dumps(line)}\n")


def _trials(
    count: int,
    created: list[dict[str, Any]],
    own: dict[int, list[dict[str, Any]]],
    rng: random.Random,
) -> Iterator[dict[str, Any]]:
    for number in range(count):
        source = number if number < len(created) else rng.randrange(1, len(created))
        yield created[source]
        for line in copy.deepcopy(own[source]):
            line["trial_id"] = number
            record = line.get("user_attr", {}).get("record")
            if record and number >= len(created):
                _varied(record, number, rng)
            yield line


def _varied(record: dict[str, Any], number: int, rng: random.Random) -> None:
    record["number"] = number
    record["config"]["batch_size"] = rng.randrange(1, 2048)
    factor = rng.lognormvariate(0.0, 0.1)
    for measurement in record["measurements"]:
        measurement["throughput_items_per_s"] *= factor
    record["verdict"]["objectives"]["throughput_items_per_s"] *= factor


def open_s(page: Path) -> float:
    """Seconds until Chromium has loaded and laid out a page, its own start left out."""
    sys.path.insert(0, str(ROOT / "tests"))
    from browser import Browser

    with tempfile.TemporaryDirectory() as profile, Browser(Path(profile)) as browser:
        browser.open("about:blank", 1280)
        began_s = time.monotonic()
        browser.open(page.as_uri(), 1280)
        browser.value("document.documentElement.scrollHeight")
        return time.monotonic() - began_s


def main() -> None:
    for count in map(int, sys.argv[1:] or ["200", "10000"]):
        with tempfile.TemporaryDirectory() as directory:
            (Path(directory) / "large").mkdir()
            make_journal(count, Path(directory) / "large" / "study.journal")
            for lang, name in (("en", "report.html"), ("zh", "report.zh.html")):
                words = [sys.executable, "-c", WRITE, directory, lang]
                done = subprocess.run(words, capture_output=True, text=True, check=True)
                opened_s = open_s(Path(directory) / "large" / name)
                print(f"{count} trials, {lang}: {done.stdout.strip()}, opens in {opened_s:.2f} s")


if __name__ == "__main__":
    main()
