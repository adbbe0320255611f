"""A small recorded grid, so that whole studies run in a second and are the same every time."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for exporting

HEADER = (
    "batch_size,instance_count,batched_h2d,throughput_items_per_s,latency_p50_s,"
    "latency_p99_s,memory_peak_bytes,status,cost_s"
)


def write_grid(path: Path) -> None:
    """A server of 1 ms + 50 µs per item; two instances give 1.8 times; batch 64 x 2 runs out."""
    lines = [HEADER]
    for batch in (1, 2, 4, 8, 16, 32, 64):
        for instances in (1, 2):
            for batched in (False, True):
                step_s = 0.001 - 0.0002 * batched + 50e-6 * batch
                figures = (
                    f"{batch * (1, 1.8)[instances - 1] / step_s},{step_s},{1.2 * step_s},{10**8}"
                )
                status = "ok"
                if (batch, instances) == (64, 2):
                    figures, status = ",,,", "oom"
                lines.append(f"{batch},{instances},{str(batched).lower()},{figures},{status},0.5")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.fixture
def space_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Writes a space file over the grid into a fresh working directory."""
    monkeypatch.chdir(tmp_path)
    write_grid(tmp_path / "grid.csv")

    def write(name: str = "small.yaml", *, limit: str = "3ms", trials: int = 12) -> Path:
        path = tmp_path / name
        path.write_text(
            "workload: {replay: grid.csv, noise: 0.01}\n"
            f"limits: {{latency_p99: {limit}}}\n"
            f"budget: {{trials: {trials}}}\n"
            "sampler: random\n",
            encoding="utf-8",
        )
        return path

    return write
