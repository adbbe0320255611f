"""What a report says of a pipeline's step."""

from __future__ import annotations

from report_kinds import pipeline

from autotune.results.report import render


def test_a_step_is_drawn_and_its_difference_to_theory_explained(make_study):
    html = render(pipeline(make_study()), now_s=0, version="1")
    assert "How throughput follows the micro-batches" in html
    assert "batch size alone" not in html
    assert "1 instance" not in html and "What more throughput costs in latency" not in html
    for sentence in (
        "The formula for even stages and free transfers says 20.0 %.",
        "Stages of different length make",
        "Transfers, launches and passes of varying length add",
        "Rank 1 computes longest, 33.3 % above the mean",
        "Loss and gradients were not compared",
        "backward 3: ",
    ):
        assert sentence in html, sentence
    assert html.count('class="span"') >= 2 * (2 * 4 + 1)
