"""How throughput grows with the number of devices that work side by side.

The law is Gunther's Universal Scalability Law (N. J. Gunther, "A General Theory of Computational
Scalability Based on Rational Functions", arXiv:0808.1431):

    X(N) = lambda N / (1 + sigma (N - 1) + kappa N (N - 1))

with sigma for what the devices queue for (a bus, the host's cores) and kappa for what every two of
them have to agree on. The time that one device takes per item, N / X(N), is linear in what is
sought:

    N / X(N) = a + b (N - 1) + c N (N - 1),   a = 1 / lambda, b = sigma a, c = kappa a, all >= 0

so that the fit is a bounded linear least-squares problem with one solution, and the interval of
N / X(N) at any N, measured or not, is its profile: the values for which the best fit that passes
through them is not worse than chance allows.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from autotune.core.records import Floats

CONFIDENCE = 0.99  # one-sided, of a bound
MIN_ERROR = 1e-4  # relative; nothing is known better than that
STEPS = 40  # bisections; each halves what is left of the interval
UNLIMITED = 1e6  # a share of a single device's time that counts as infinite
RANK_TOLERANCE = 1e-9  # singular values below it, of columns of length 1, are rounding


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalePoint:
    """What so many devices together served.

    Attributes:
        rate: Of all of them, per second. `error`: its standard error, relative.
    """

    device_count: int
    rate: float
    error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """The law fitted to measured rates.

    Attributes:
        sigma, kappa: See the module. `sigma_range`, `kappa_range`: intervals whose ends are each
            wrong with probability 1 - `CONFIDENCE`; an upper end may be infinite.
        points: What was measured, by number of devices.
        excess: How many times further from the law the points lie than their errors say, at
            least 1; the errors were taken for that much larger.
    """

    sigma: float
    kappa: float
    sigma_range: tuple[float, float]
    kappa_range: tuple[float, float]
    points: tuple[ScalePoint, ...]
    excess: float
    coefficients: tuple[float, float, float]

    @property
    def measured_up_to(self) -> int:
        """The most devices that were measured."""
        return self.points[-1].device_count

    def rate(self, device_count: int) -> float:
        """Of so many devices together, per second, by the law."""
        return device_count / float(_terms(device_count) @ np.array(self.coefficients))

    def least_rate(self, device_count: int) -> float:
        """The lower bound of that; 0 if there is none."""
        return device_count / _most(_problem(self.points, self.excess), _terms(device_count))

    def slowdown(self, device_count: int) -> float:
        """How many times as long everything takes as on one device alone, by the law."""
        return self.rate(1) * device_count / self.rate(device_count)

    def most_slowdown(self, device_count: int) -> float:
        """The upper bound of that, by what was measured; infinite if there is none."""
        if device_count == 1:
            return 1.0
        least = self.least_rate(device_count)
        return max(1.0, self.rate(1) * device_count / least) if least > 0 else math.inf


def fit_scaling(points: Sequence[ScalePoint]) -> Scaling:
    """Fit the law by bounded least squares of relative errors.

    Several points of the same number of devices count as what they are together.

    Raises:
        ValueError: There is no point, or a rate is not positive.
    """
    merged = _merged(points)
    problem = _problem(merged, 1.0)
    theta, misfit = _solve(*problem)
    spare = len(merged) - int((theta > 0).sum())
    excess = max(1.0, math.sqrt(misfit / spare)) if spare > 0 else 1.0
    problem = _problem(merged, excess)
    a, b, c = (float(value) for value in theta)
    return Scaling(
        sigma=b / a,
        kappa=c / a,
        sigma_range=_share_range(problem, 1),
        kappa_range=_share_range(problem, 2),
        points=merged,
        excess=excess,
        coefficients=(a, b, c),
    )


# --- the least-squares problem -----------------------------------------------------------------


def _terms(device_count: int) -> Floats:
    further = device_count - 1.0
    return np.array([1.0, further, device_count * further])


def _merged(points: Sequence[ScalePoint]) -> tuple[ScalePoint, ...]:
    """One point per number of devices: the mean, weighted by what each is worth."""
    if not points:
        raise ValueError("scaling needs a measured rate")
    merged = []
    for count in sorted({point.device_count for point in points}):
        own = [point for point in points if point.device_count == count]
        if min(point.rate for point in own) <= 0 or count < 1:
            raise ValueError(f"{count} devices with a rate that is not positive")
        weights = np.array([max(point.error, MIN_ERROR) ** -2 for point in own])
        mean = math.exp(float(weights @ np.log([point.rate for point in own]) / weights.sum()))
        error = float(weights.sum() ** -0.5)
        merged.append(ScalePoint(device_count=count, rate=mean, error=error))
    return tuple(merged)


def _problem(points: Sequence[ScalePoint], excess: float) -> tuple[Floats, Floats]:
    """Matrix and target: a row says measured time over itself is 1, by its relative error."""
    errors = [excess * max(point.error, MIN_ERROR) for point in points]
    rows = [
        _terms(p.device_count) * p.rate / p.device_count / error
        for p, error in zip(points, errors, strict=True)
    ]
    return np.array(rows), 1.0 / np.array(errors)


def _solve(matrix: Floats, target: Floats) -> tuple[Floats, float]:
    """The theta >= 0 that fits best, and its sum of squares.

    Some solution has linearly independent columns alone, so that every choice of columns is
    tried: of three there are seven.
    """
    best, least = np.zeros(matrix.shape[1]), float(target @ target)
    for free in _choices(matrix):
        part = np.linalg.lstsq(matrix[:, free], target, rcond=None)[0]
        misfit = float(np.square(matrix[:, free] @ part - target).sum())
        if part.min() >= 0.0 and misfit < least:
            best, least = np.zeros(matrix.shape[1]), misfit
            best[free] = part
    return best, least


def _choices(matrix: Floats) -> Iterator[list[int]]:
    """Every choice of linearly independent columns."""
    sizes = np.linalg.norm(matrix, axis=0)
    columns = range(matrix.shape[1])
    for count in range(1, min(matrix.shape) + 1):
        for free in map(list, itertools.combinations(columns, count)):
            if sizes[free].min() > 0 and (
                np.linalg.matrix_rank(matrix[:, free] / sizes[free], tol=RANK_TOLERANCE) == count
            ):
                yield free


def _allowed(least: float) -> float:
    """The sum of squares up to which a profile counts as inside (Wilks)."""
    from scipy.special import ndtri

    return least + float(ndtri(CONFIDENCE)) ** 2


def _most(problem: tuple[Floats, Floats], terms: Floats) -> float:
    """The upper end of the profile of `terms @ theta`; infinite where nothing limits it.

    What fits well enough is an ellipsoid, cut by theta >= 0. The point of it that is furthest along
    `terms` is inside of one of the faces, and there the furthest of all: of every face the
    furthest point is known in closed form, and counts if it is not outside.
    """
    matrix, target = problem
    if (terms[np.linalg.norm(matrix, axis=0) == 0.0] > 0).any():
        return math.inf
    allowed, most = _allowed(_solve(matrix, target)[1]), 0.0
    for free in _choices(matrix):
        face, along = matrix[:, free], terms[free]
        centre = np.linalg.lstsq(face, target, rcond=None)[0]
        room = allowed - float(np.square(face @ centre - target).sum())
        # (F^T F)^-1 along, by the triangle of F = QR.
        _, triangle = np.linalg.qr(face)
        half = np.linalg.solve(triangle.T, along)
        if room < 0:
            continue
        furthest = centre + math.sqrt(room) * np.linalg.solve(triangle, half) / np.linalg.norm(half)
        if furthest.min() >= 0.0:
            most = max(most, float(along @ furthest))
    return most


def _share_range(problem: tuple[Floats, Floats], index: int) -> tuple[float, float]:
    """The profile of sigma (index 1) or kappa (2), a coefficient over the first one."""
    matrix, target = problem
    theta, least = _solve(matrix, target)

    def misfit(share: float) -> float:
        tied = np.delete(matrix, index, axis=1)
        tied[:, 0] += share * matrix[:, index]
        return _solve(tied, target)[1]

    fitted, allowed = float(theta[index] / theta[0]), _allowed(least)
    low = 0.0 if misfit(0.0) <= allowed else _crossing(misfit, allowed, fitted, 0.0)
    return low, _crossing(misfit, allowed, fitted, UNLIMITED)


def _crossing(
    misfit: Callable[[float], float], allowed: float, inside: float, outside: float
) -> float:
    """Where a profile leaves what is allowed, seen from outside; infinite if it does nowhere."""
    if misfit(outside) <= allowed:
        return math.inf
    for _ in range(STEPS):
        far = inside > 0 and outside > 4.0 * inside
        middle = math.sqrt(inside * outside) if far else 0.5 * (inside + outside)
        if misfit(middle) <= allowed:
            inside = middle
        else:
            outside = middle
    return outside
