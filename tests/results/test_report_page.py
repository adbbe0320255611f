"""The report in a browser, at the width of a screen and of a telephone, in both languages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from browser import Browser
from report_kinds import kinds

from autotune.core.outcomes import Outcome
from autotune.core.records import TrialRecord
from autotune.results.report import render
from autotune.results.study_result import StudyResult

FAULTS = """(() => {
  const faults = [], texts = [], wide = document.documentElement.scrollWidth;
  if (wide > innerWidth) faults.push(`the page is ${wide} wide`);
  for (const box of document.querySelectorAll('main, main *')) {
    const clips = getComputedStyle(box).overflowX;
    if (!box.ownerSVGElement && clips !== 'visible' && box.scrollWidth > box.clientWidth + 1)
      faults.push(`cut: ${box.className} ${box.textContent.trim().slice(0, 60)}`);
  }
  const walk = document.createTreeWalker(document.querySelector('main'), NodeFilter.SHOW_TEXT);
  for (let node = walk.nextNode(); node; node = walk.nextNode()) {
    const parent = node.parentElement;
    if (!node.data.trim() || parent.closest('style, title, details:not([open]) > :not(summary)'))
      continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    const svg = parent.ownerSVGElement;
    const frame = svg ? svg.getBoundingClientRect() : {left: 0, right: innerWidth};
    for (const r of range.getClientRects()) {
      if (r.width < 1 || r.height < 1) continue;
      const text = node.data.trim().slice(0, 60);
      if (r.left < frame.left - 1 || r.right > frame.right + 1)
        faults.push(`outside: ${text} ${r.left | 0}..${r.right | 0}`);
      texts.push({text, node, top: r.top + 2, foot: r.bottom - 2, left: r.left, right: r.right});
    }
  }
  texts.sort((a, b) => a.top - b.top);
  for (let i = 0; i < texts.length; i++)
    for (let j = i + 1; j < texts.length && texts[j].top < texts[i].foot; j++) {
      const a = texts[i], b = texts[j];
      if (a.node !== b.node && a.left + 1 < b.right && b.left + 1 < a.right)
        faults.push(`overlap: ${a.text} | ${b.text}`);
    }
  return [...new Set(faults)].slice(0, 20);
})()"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(tmp_path_factory.mktemp("chromium")) as opened:
        yield opened


@pytest.mark.browser
@pytest.mark.parametrize("lang", ["en", "zh"])
def test_nothing_is_cut_overlaps_asks_for_anything_or_complains(
    lang: str,
    browser: Browser,
    tmp_path: Path,
    make_study: Callable[..., StudyResult],
    make_trial: Callable[..., TrialRecord],
) -> None:
    faults = []
    shown = kinds(make_study, make_trial)
    alike = [outcome for outcome in Outcome if outcome is not Outcome.CRASHED]
    for kind, result in shown.items():
        if kind in alike:
            continue  # but for the word they are the same page
        page = tmp_path / "report.html"
        page.write_text(render(result, now_s=1.8e9, version="1", lang=lang), encoding="utf-8")
        for width in (1280, 390):
            browser.open(page.as_uri(), width)
            found = [*browser.value(FAULTS), *browser.complaints, *browser.requests[1:]]
            faults += [f"{kind} at {width}: {fault}" for fault in found]
    assert not faults, "\n".join(faults)


@pytest.mark.browser
def test_the_check_sees_what_is_wrong(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "bad.html"
    page.write_text(
        "<!doctype html><main>"
        "<p style='position:absolute;top:9px'>one</p><p style='position:absolute;top:12px'>two</p>"
        "<p style='position:absolute;top:90px;left:380px'>outside</p>"
        "<div style='overflow:hidden;width:50px;white-space:nowrap'>all of this is cut</div>"
        "</main><script>console.error('bad'); fetch('http://127.0.0.1:1/')</script>",
        encoding="utf-8",
    )
    browser.open(page.as_uri(), 390)
    found = " ".join(browser.value(FAULTS))
    for fault in ("the page is", "cut: ", "outside: outside", "overlap: one | two"):
        assert fault in found
    assert "bad" in " ".join(browser.complaints)
    assert "http://127.0.0.1:1/" in browser.requests
