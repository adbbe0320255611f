"""How good `find_knee` and `next_points` are on published curves, disturbed by noise.

    python benchmarks/knee.py published_batch_curves.csv published_triton_batch_concurrency.csv
        [--seeds 20] [--noise 0.03] [--studies 80]

The first table shows the pick with all points visible; the second measures adaptively; the third
picks under a P99 limit on serving sweeps with half of the points measured; the last two run whole
studies, `objective: knee` on replays of some of the curves, and of all sweeps under their limit, to
their proven recommendation.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

import autotune
from autotune.core.records import Floats
from autotune.measure.knee import Knee, find_knee, next_points

SHARE = 0.95
SWEEP_KEY = (
    *("source_repo", "source_path", "section", "gpu", "backend", "accelerator", "precision"),
    *("instances", "max_batch_size", "format", "client_batch"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A published curve, taken as the truth."""

    source: str
    sizes: tuple[int, ...]
    speed: Floats
    latency_p99_s: Floats | None = None

    @property
    def has_isolated(self) -> bool:
        """Whether an interior point is more than 25 % off both neighbours."""
        inner, before, after = self.speed[1:-1], self.speed[:-2], self.speed[2:]
        low, high = np.minimum(before, after), np.maximum(before, after)
        return bool(((inner < 0.75 * low) | (inner > 1.25 * high)).any())

    @property
    def knee_index(self) -> int:
        return int(np.argmax(self.speed >= SHARE * self.speed.max()))


@dataclass(slots=True, kw_only=True)
class Meter:
    """Measures points of a published curve with noise, and keeps count."""

    curve: Published
    noise: float
    rng: np.random.Generator
    sizes: list[int] = field(default_factory=list)
    speed: list[float] = field(default_factory=list)
    latency_p99_s: list[float] = field(default_factory=list)

    def measure(self, size: int) -> None:
        at = self.curve.sizes.index(size)
        factors = np.exp(self.noise * self.rng.standard_normal(2))
        self.sizes.append(size)
        self.speed.append(float(self.curve.speed[at] * factors[0]))
        if self.curve.latency_p99_s is not None:
            self.latency_p99_s.append(float(self.curve.latency_p99_s[at] * factors[1]))

    def wanted(self, limit_s: float | None = None) -> tuple[int, ...]:
        return next_points(
            self.sizes,
            self.speed,
            self.curve.sizes,
            share=SHARE,
            latency_p99_s=None if limit_s is None else self.latency_p99_s,
            limit_s=limit_s,
            noise=self.noise,
        )

    def knee(self, limit_s: float | None = None) -> Knee:
        return find_knee(
            self.sizes,
            self.speed,
            share=SHARE,
            latency_p99_s=None if limit_s is None else self.latency_p99_s,
            limit_s=limit_s,
            noise=self.noise,
        )


def read_curves(path: Path) -> tuple[Published, ...]:
    """Unflagged curves of at least four sizes; a throughput of 0 is a run that failed."""
    rows: dict[str, list[dict[str, str]]] = {}
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            rows.setdefault(row["curve_id"], []).append(row)
    return tuple(_curves(rows.values()))


def _curves(groups: Iterable[list[dict[str, str]]]) -> Iterator[Published]:
    for rows in groups:
        points = sorted(
            (int(float(row["batch_size"])), float(row["throughput_per_s"]))
            for row in rows
            if float(row["throughput_per_s"] or 0.0) > 0.0
        )
        if len(points) >= 4 and not any(row["quality_flags"] for row in rows):
            sizes, speed = zip(*points, strict=True)
            yield Published(source=rows[0]["source_repo"], sizes=sizes, speed=np.array(speed))


def read_sweeps(path: Path) -> tuple[Published, ...]:
    """Concurrency sweeps of at least four points, with their P99."""
    rows: dict[tuple[str, ...], list[tuple[int, float, float]]] = {}
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            point = row["concurrency"], row["inferences_per_s"], row["p99_latency_ms"]
            key = tuple(row[name] for name in SWEEP_KEY)
            rows.setdefault(key, []).append((int(point[0]), float(point[1]), float(point[2]) / 1e3))
    sweeps = []
    for key, points in rows.items():
        if len(points) >= 4:
            sizes, speed, latency = zip(*sorted(points), strict=True)
            sweeps.append(
                Published(
                    source=key[0],
                    sizes=sizes,
                    speed=np.array(speed),
                    latency_p99_s=np.array(latency),
                )
            )
    return tuple(sweeps)


def visible(curve: Published, noise: float, rng: np.random.Generator) -> tuple[float, int]:
    """Share of the peak delivered, and how many sizes the pick is off the true knee."""
    measured = curve.speed * np.exp(noise * rng.standard_normal(len(curve.sizes)))
    knee = find_knee(curve.sizes, measured.tolist(), share=SHARE, noise=noise)
    assert knee.batch_size is not None
    at = curve.sizes.index(knee.batch_size)
    return float(curve.speed[at] / curve.speed.max()), at - curve.knee_index


def adaptive(curve: Published, noise: float, rng: np.random.Generator) -> tuple[float, float, int]:
    """Share of the peak delivered, measurements per size of the curve, sizes off the knee."""
    meter = Meter(curve=curve, noise=noise, rng=rng)
    while wanted := meter.wanted():
        for size in wanted:
            meter.measure(size)
    knee = meter.knee()
    assert knee.batch_size is not None
    at = curve.sizes.index(knee.batch_size)
    measured = len(meter.sizes) / len(curve.sizes)
    return float(curve.speed[at] / curve.speed.max()), measured, at - curve.knee_index


def limited(curve: Published, noise: float, rng: np.random.Generator) -> tuple[float, float, float]:
    """Throughput against the best under the limit, P99 against the limit, measured share.

    The limit is twice the P99 at the smallest concurrency; half of the points may be measured.
    """
    latency = curve.latency_p99_s
    assert latency is not None
    limit = 2.0 * float(latency[0])
    meter = Meter(curve=curve, noise=noise, rng=rng)

    most = len(curve.sizes) // 2
    while len(meter.sizes) < most and (wanted := meter.wanted(limit)):
        for size in wanted[: most - len(meter.sizes)]:
            meter.measure(size)
    knee = meter.knee(limit)
    measured = len(meter.sizes) / len(curve.sizes)
    if knee.batch_size is None:
        return 0.0, 0.0, measured
    at = curve.sizes.index(knee.batch_size)
    best = float(curve.speed[latency <= limit].max())
    return float(curve.speed[at]) / best, float(latency[at]) / limit, measured


def study(
    curve: Published, noise: float, seed: int, directory: Path, limit_s: float | None = None
) -> tuple[float, float, int]:
    """A whole study of a replay of the curve: as `adaptive`, of the proven recommendation.

    With a limit on P99 the last figure is the recommendation's index; -1: there is none.
    """
    latency = curve.latency_p99_s if limit_s is not None else None
    names, columns = ["batch_size", "throughput_items_per_s"], [curve.sizes, curve.speed]
    if latency is not None:
        names, columns = [*names, "latency_p99_s"], [*columns, latency]
    rows = [",".join(map(str, row)) + ",ok,0.5" for row in zip(*columns, strict=True)]
    text = "\n".join([",".join([*names, "status", "cost_s"]), *rows, ""])
    (directory / "curve.csv").write_text(text, encoding="utf-8")
    space = directory / "curve.yaml"
    workload = f"{{replay: curve.csv, noise: {noise}, seed: {seed}}}"
    limits = "" if limit_s is None else f"limits: {{latency_p99: {limit_s}s}}\n"
    space.write_text(f"workload: {workload}\nobjective: knee\n{limits}", encoding="utf-8")
    result = autotune.run(space, studies_dir=directory / "studies")
    measured = result.trial_count / len(curve.sizes)
    if result.config is None:
        return 0.0, measured, -1
    at = curve.sizes.index(result.config.batch_size)
    if latency is not None:
        best = float(curve.speed[latency <= limit_s].max())
        return float(curve.speed[at]) / best, measured, at
    return float(curve.speed[at] / curve.speed.max()), measured, at - curve.knee_index


def by_source(curves: Sequence[Published]) -> dict[str, list[Published]]:
    groups: dict[str, list[Published]] = {"all": list(curves)}
    for curve in curves:
        groups.setdefault(curve.source, []).append(curve)
    return groups


def sample(
    run: Callable[[Published, float, np.random.Generator], tuple[float, ...]],
    curves: Sequence[Published],
    seeds: int,
    noise: float,
) -> Floats:
    """Results, shape (curves, seeds, figures)."""
    results = [
        [run(curve, noise, np.random.default_rng([seed, index])) for seed in range(seeds)]
        for index, curve in enumerate(curves)
    ]
    return np.array(results, dtype=np.float64)


def print_visible(curves: Sequence[Published], seeds: int, noise: float) -> bool:
    plain = [curve for curve in curves if not curve.has_isolated]
    results = sample(visible, plain, seeds, noise)
    sources = np.array([curve.source for curve in plain])
    print(f"all points visible, {len(plain)} curves without isolated points, {seeds} seeds")
    print(f"{'source':32} curves  >=93% of peak  >=95%   pick: the knee  smaller  larger")
    for source in ("all", *dict.fromkeys(sources)):
        part = results if source == "all" else results[sources == source]
        share, off = part[..., 0], part[..., 1]
        print(
            f"{source:32} {len(part):6}  {(share >= 0.93).mean():13.4f}"
            f"  {(share >= 0.95).mean():6.4f}  {(off == 0).mean():14.3f}"
            f"  {(off < 0).mean():7.3f}  {(off > 0).mean():6.3f}"
        )
    return bool((results[..., 0] >= 0.93).mean() >= 0.98)


def print_adaptive(curves: Sequence[Published], seeds: int, noise: float) -> bool:
    results = sample(adaptive, curves, seeds, noise)
    sources = np.array([curve.source for curve in curves])
    print(f"\nmeasured adaptively, all {len(curves)} curves, {seeds} seeds")
    print(
        f"{'source':32} curves  measured: median  mean"
        "   loss beyond 5%  over 10%   pick: the knee  smaller  larger"
    )
    for source in ("all", *dict.fromkeys(sources)):
        part = results if source == "all" else results[sources == source]
        share, measured, off = part[..., 0], part[..., 1], part[..., 2]
        print(
            f"{source:32} {len(part):6}  {np.median(measured):16.3f}  {measured.mean():.3f}"
            f"  {np.maximum(0.95 - share, 0).mean():15.4f}  {(share < 0.9).mean():8.4f}"
            f"  {(off == 0).mean():15.3f}  {(off < 0).mean():7.3f}  {(off > 0).mean():6.3f}"
        )
    share, measured = results[..., 0], results[..., 1]
    return bool(
        np.median(measured) <= 0.5
        and np.maximum(0.95 - share, 0).mean() <= 0.01
        and (share < 0.9).mean() <= 0.02
    )


def print_limited(sweeps: Sequence[Published], seeds: int, noise: float) -> bool:
    results = sample(limited, sweeps, seeds, noise)
    speed, latency, measured = results[..., 0], results[..., 1], results[..., 2]
    print(f"\nunder a P99 limit, {len(sweeps)} sweeps, {seeds} seeds")
    print(f"measured share: median {np.median(measured):.3f}, most {measured.max():.3f}")
    print(f"within 5% of the best: {(speed >= 0.95).mean():.4f}")
    print(f"nothing picked: {(speed == 0).mean():.4f}")
    print(f"over the limit: {(latency > 1).mean():.4f}; worst P99 / limit: {latency.max():.4f}")
    return bool((speed >= 0.95).mean() >= 0.8 and latency.max() <= 1.03 and measured.max() <= 0.5)


def print_studies(curves: Sequence[Published], count: int, noise: float) -> bool:
    chosen = curves[:: max(1, len(curves) // count)][:count]
    results = []
    for seed, curve in enumerate(chosen):
        with tempfile.TemporaryDirectory() as directory:
            results.append(study(curve, noise, seed, Path(directory)))
    share, measured, off = np.array(results).T
    print(f"\nwhole studies, {len(chosen)} curves")
    print(f"measured share: median {np.median(measured):.3f}, mean {measured.mean():.3f}")
    print(f"mean loss beyond 5%: {np.maximum(0.95 - share, 0).mean():.4f}")
    print(f"over 10% below the peak: {(share < 0.9).mean():.4f}")
    print(f"recommended: the knee {(off == 0).mean():.3f}, larger {(off > 0).mean():.3f}")
    return bool(
        np.median(measured) <= 0.5
        and np.maximum(0.95 - share, 0).mean() <= 0.01
        and (share < 0.9).mean() <= 0.02
    )


def print_limited_studies(sweeps: Sequence[Published], noise: float) -> bool:
    results = []
    for seed, curve in enumerate(sweeps):
        assert curve.latency_p99_s is not None
        limit_s = 2.0 * float(curve.latency_p99_s[0])
        with tempfile.TemporaryDirectory() as directory:
            speed, measured, at = study(curve, noise, seed, Path(directory), limit_s)
        over = float(curve.latency_p99_s[at]) / limit_s if at >= 0 else 0.0
        results.append((speed, measured, over))
    speed, measured, over = np.array(results).T
    print(f"\nwhole studies under a P99 limit, {len(sweeps)} sweeps")
    print(f"measured share: median {np.median(measured):.3f}, most {measured.max():.3f}")
    print(f"within 5% of the best: {(speed >= 0.95).mean():.4f}")
    print(f"worst P99 / limit: {over.max():.4f}")
    return bool((speed >= 0.95).mean() >= 0.8 and over.max() <= 1.03)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("curves", type=Path)
    parser.add_argument("sweeps", type=Path)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--noise", type=float, default=0.03)
    parser.add_argument("--studies", type=int, default=80)
    options = parser.parse_args()
    curves, sweeps = read_curves(options.curves), read_sweeps(options.sweeps)
    good = print_visible(curves, options.seeds, options.noise)
    good &= print_adaptive(curves, options.seeds, options.noise)
    good &= print_limited(sweeps, options.seeds, options.noise)
    if options.studies:
        good &= print_studies(curves, options.studies, options.noise)
        good &= print_limited_studies(sweeps, options.noise)
    print("\nall bars met" if good else "\na bar is broken")
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
