"""How often `judge_tail` is wrong, and how often it decides, on series of known dependence.

    python benchmarks/measurement.py [--repeats 2000] [--seed 0]

Every series is stationary with a known share of samples over the limit: at the boundary (1 %) a
"pass" and a "fail" are both errors and must be rare; below it (0.2 %) a "pass" is wanted.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.signal import lfilter
from scipy.special import ndtri

from autotune.measure.tail import judge_tail, look_alpha, look_sizes, variance_floor_for

Flags = npt.NDArray[np.bool_]
SIZES = (1000, 2000, 5000, 10_000, 20_000)
ALPHAS = (0.05, 0.01)
CHUNK = 250


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A kind of series.

    Attributes:
        draw: (generator, repeats, length, share over the limit) -> flags (repeats, length).
        floor: The variance floor that the engine would pass.
        bars: Allowed share of false passes by alpha, given the length.
    """

    draw: Callable[[np.random.Generator, int, int, float], Flags]
    floor: float
    bars: Callable[[int], tuple[float, float]] = lambda n: (0.06, 0.015)


def independent(rng: np.random.Generator, repeats: int, n: int, share: float) -> Flags:
    return rng.random((repeats, n)) < share


def batches(rng: np.random.Generator, repeats: int, n: int, share: float) -> Flags:
    """Batches of 16 requests that are over the limit together, cut at a random phase."""
    flags = np.repeat(rng.random((repeats, n // 16 + 2)) < share, 16, axis=1)
    phase = int(rng.integers(16))
    return flags[:, phase : phase + n]


def autoregressive(rng: np.random.Generator, repeats: int, n: int, share: float) -> Flags:
    """A Gaussian AR(1) latency with coefficient 0.9."""
    shocks = rng.standard_normal((repeats, n))
    shocks[:, 1:] *= math.sqrt(1.0 - 0.9**2)
    return np.asarray(lfilter([1.0], [1.0, -0.9], shocks, axis=1) > ndtri(1.0 - share))


def queue(utilisation: float) -> Process:
    """Waits in an M/D/1 queue; the limit from the exact exponential decay of its tail."""
    decay = float(brentq(lambda x: utilisation * math.expm1(x) - x, 1e-6, 50.0))
    scale = (1.0 - utilisation) / (utilisation * math.exp(decay) - 1.0)

    def draw(rng: np.random.Generator, repeats: int, n: int, share: float) -> Flags:
        warm_up = int(40 * utilisation / (1.0 - utilisation) ** 2)
        gaps = rng.exponential(1.0 / utilisation, (repeats, n + warm_up))
        walk = np.cumsum(1.0 - gaps, axis=1)
        waits = walk - np.minimum(np.minimum.accumulate(walk, axis=1), 0.0)
        return np.asarray(waits[:, warm_up:] > math.log(scale / share) / decay)

    return Process(draw=draw, floor=variance_floor_for(max_batch=1, utilisation=utilisation))


def stalls(rng: np.random.Generator, repeats: int, n: int, share: float) -> Flags:
    """Stalls of geometric length, 50 samples in the mean; all samples of a stall are over."""
    flags = np.zeros((repeats, n), dtype=bool)
    for row in flags:
        begin, stalled = 0, bool(rng.random() < share)
        while begin < n:
            mean = 50.0 if stalled else 50.0 * (1.0 - share) / share
            end = begin + int(rng.geometric(1.0 / mean))
            row[begin:end] = stalled
            begin, stalled = end, not stalled
    return flags


PROCESSES = {
    "independent": Process(draw=independent, floor=1.0),
    "batches of 16": Process(draw=batches, floor=variance_floor_for(max_batch=16)),
    "M/D/1 .7": queue(0.7),
    "M/D/1 .9": queue(0.9),
    "stalls": Process(draw=stalls, floor=variance_floor_for(mean_stall_samples=50.0)),
    "AR(1) .9": Process(
        draw=autoregressive, floor=1.0, bars=lambda n: (0.06, 0.02) if n >= 5000 else (0.15, 0.13)
    ),
}
FAIL_BARS = (0.05, 0.015)


def series(process: Process, repeats: int, n: int, share: float, seed: int) -> Iterator[Flags]:
    """Draw `repeats` series of length `n`, a few at a time."""
    rng = np.random.default_rng([seed, n])
    for begin in range(0, repeats, CHUNK):
        yield from process.draw(rng, min(CHUNK, repeats - begin), n, share)


def verdict_rates(
    process: Process, *, repeats: int, n: int, share: float, alpha: float, seed: int
) -> tuple[float, float]:
    """Shares of "pass" and of "fail" among fresh series."""
    statuses = [
        judge_tail(flags, alpha=alpha, variance_floor=process.floor).status
        for flags in series(process, repeats, n, share, seed)
    ]
    return statuses.count("pass") / repeats, statuses.count("fail") / repeats


def look_rates(
    process: Process, *, repeats: int, first_n: int, alpha: float, seed: int
) -> tuple[float, float]:
    """Shares of "pass" and "fail" at the boundary, looking up to three times."""
    sizes = look_sizes(first_n, 4 * first_n)
    level = look_alpha(alpha, len(sizes))
    statuses = []
    for flags in series(process, repeats, sizes[-1], 0.01, seed):
        verdicts = (judge_tail(flags[:n], alpha=level, variance_floor=process.floor) for n in sizes)
        statuses.append(next((v.status for v in verdicts if v.status != "undecided"), "undecided"))
    return statuses.count("pass") / repeats, statuses.count("fail") / repeats


def print_boundary(repeats: int, seed: int) -> bool:
    """False passes and false fails, a star where a bar is broken; True if none is."""
    print(f"\nfalse pass, false fail at the boundary; alpha 5 % | 1 %; {repeats} series each")
    good = True
    for name, process in PROCESSES.items():
        cells = []
        for n in SIZES:
            cell = []
            for alpha, pass_bar, fail_bar in zip(ALPHAS, process.bars(n), FAIL_BARS, strict=True):
                passed, failed = verdict_rates(
                    process, repeats=repeats, n=n, share=0.01, alpha=alpha, seed=seed
                )
                broken = passed > pass_bar or failed > fail_bar
                good &= not broken
                cell.append(f"{passed:.4f} {failed:.4f}{'*' if broken else ' '}")
            cells.append(f"n={n}: " + "| ".join(cell))
        print(f"{name:14}", "  ".join(cells))
    return good


def print_power(repeats: int, seed: int) -> bool:
    """Share that passes at a true 0.2 %; True if the bars for independent samples are met."""
    print("\npassed where truly 0.2 % are over the limit; alpha 5 % | 1 %")
    good = True
    for name, process in PROCESSES.items():
        cells = []
        for n in SIZES:
            rates = [
                verdict_rates(process, repeats=repeats, n=n, share=0.002, alpha=a, seed=seed)[0]
                for a in ALPHAS
            ]
            bar = {1000: 0.85, 5000: 0.99}.get(n, 0.0) if name == "independent" else 0.0
            good &= rates[0] >= bar
            cells.append(f"n={n}: " + " | ".join(f"{rate:.3f}" for rate in rates))
        print(f"{name:14}", "  ".join(cells))
    return good


def print_looks(repeats: int, seed: int) -> None:
    """Errors at the boundary when an undecided window is doubled twice."""
    print("\nfalse pass, false fail with three looks at n, 2n, 4n; total alpha 5 % | 1 %")
    for name, process in PROCESSES.items():
        cells = []
        for n in (1000, 2000, 5000):
            rates = [
                look_rates(process, repeats=repeats, first_n=n, alpha=a, seed=seed) for a in ALPHAS
            ]
            cells.append(f"n={n}: " + " | ".join(f"{p:.4f} {f:.4f}" for p, f in rates))
        print(f"{name:14}", "  ".join(cells))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    good = print_boundary(options.repeats, options.seed)
    good &= print_power(options.repeats, options.seed)
    print_looks(options.repeats, options.seed)
    print("\nall bars met" if good else "\na bar is broken")
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
