"""A user's own items: timed with, and what the winner makes of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

if TYPE_CHECKING:
    from conftest import Place

MODEL = """\
import torch
class Doubled(torch.nn.Module):
    def forward(self, x):
        if (x < 0).any():
            raise ValueError("these are not the user's items")
        return torch.stack([x.sum(1), 2 * x.sum(1)], 1)
def score(outputs, expected):
    return {"right": float((outputs[:, 1] == expected).mean()), "items_seen": len(outputs)}
"""
SPACE = """\
workload:
  model: m.py:Doubled
  inputs: [{name: x, shape: [batch, 3], low: %s, high: 1}]
  data: %s
params: {batch_size: [2, 4], micro_batch_count: 2, instance_count: 2}
trial: {iterations: 20}
sampler: grid
confirm: false
"""


def write(place: Place, data: str, low: str) -> None:
    x = np.arange(21, dtype=np.float32).reshape(7, 3)
    expected = 2 * x.sum(1)
    expected[3] += 1
    np.savez(place.path / "d.npz", x=x, expected=expected)
    place.write("m.py", MODEL)
    place.write("t.yaml", SPACE % (low, data))


def test_the_winner_is_scored_on_all_items_by_the_users_function(place: Place) -> None:
    write(place, "{file: d.npz, timing: false, evaluate: m.py:score}", "0")
    code, result = place.run()
    assert code == 0
    assert result["accuracy"] == {"items": 7, "right": pytest.approx(6 / 7), "items_seen": 7}
    shown = place.autotune("show", "t").stdout
    assert "Right" in shown and "on 7 items of your own" in shown


def test_a_function_that_fails_costs_its_figures_and_not_the_study(place: Place) -> None:
    write(place, "{file: d.npz, timing: false, evaluate: m.py:score}", "0")
    place.write("m.py", MODEL.replace("len(outputs)}", "len(outputs) / 0}"))
    code, result = place.run()
    assert code == 0
    assert result["status"] == "unconfirmed" and result["config"]["batch_size"] in (2, 4)
    assert not result["accuracy"]
    told = "the winner could not be tried on your own items: ZeroDivisionError: division by zero"
    assert told in result["verdict"]["reasons"]
    assert told in place.autotune("show", "t").stdout.replace("\n", " ")


def test_a_file_alone_is_what_is_timed_and_compared_with(place: Place) -> None:
    write(place, "d.npz", "0")
    place.write("m.py", MODEL.replace("torch.stack([x.sum(1), 2 * x.sum(1)], 1)", "2 * x.sum(1)"))
    code, result = place.run()
    assert code == 0
    assert result["accuracy"]["items"] == 7
    assert result["accuracy"]["largest_difference"] == pytest.approx(1 / 60, rel=0.05)


def test_a_file_that_does_not_fit_is_a_mistake_found_before_the_study(place: Place) -> None:
    write(place, "d.npz", "0")
    np.savez(place.path / "d.npz", y=np.zeros(3))
    for timing in ("true", "false"):
        data = f"{{file: d.npz, timing: {timing}, evaluate: m.py:score}}"
        place.write("t.yaml", SPACE % ("0", data))
        ended = place.autotune("run", "--space", "t.yaml")
        assert ended.returncode == 2
        assert "no array 'x'; it has y" in ended.stderr
    assert not (place.path / "studies").exists()
