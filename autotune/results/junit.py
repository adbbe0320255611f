"""A gate's result as JUnit XML, which CI systems show as a test."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from datetime import datetime, timezone

from autotune.core.text import clean
from autotune.results.compare_words import compare_lines, gate_text, headline
from autotune.results.regression import CompareResult


def junit(result: CompareResult) -> bytes:
    """One suite with one case; undecided counts as skipped, since nothing was shown."""
    name = clean(f"{result.a.name} against {result.b.name}")
    seconds = f"{result.elapsed_s:.3f}"
    failed, skipped = result.status == "failed", result.status == "undecided"
    suite = ElementTree.Element(
        "testsuite",
        name="autotune compare",
        tests="1",
        failures=str(int(failed)),
        errors="0",
        skipped=str(int(skipped)),
        time=seconds,
        timestamp=datetime.fromtimestamp(result.at_s, timezone.utc).isoformat(timespec="seconds"),
    )
    case = ElementTree.SubElement(
        suite, "testcase", classname="autotune.compare", name=name, time=seconds
    )
    if failed or skipped:
        kind = "failure" if failed else "skipped"
        attributes = {"message": clean(gate_text(result))}
        if failed:
            attributes["type"] = "regression"
        ending = ElementTree.SubElement(case, kind, attributes)
        ending.text = clean(headline(result))
    output = ElementTree.SubElement(case, "system-out")
    output.text = clean("\n".join(compare_lines(result)).lstrip())
    suites = ElementTree.Element("testsuites")
    suites.append(suite)
    ElementTree.indent(suites)
    data: bytes = ElementTree.tostring(suites, encoding="utf-8", xml_declaration=True)
    return data + b"\n"
