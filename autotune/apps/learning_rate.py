"""What a larger batch means for a training: its learning rate, and how far it still pays."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from autotune.apps.resolve import Resolved
from autotune.core.errors import TrialError, UsageError
from autotune.core.records import Config, Recommendation
from autotune.measure.noise_scale import MIN_STEPS, NoiseScale, noise_scale
from autotune.trial.group import group_spec
from autotune.trial.session import Launcher, RanksSession, open_session

STEPS = 2 * MIN_STEPS
LIMIT_S = 300.0


def with_learning_rate(
    recommendation: Recommendation, resolved: Resolved, launcher: Launcher
) -> Recommendation:
    """The recommendation of a training with what its batch means, if it is not the baseline's."""
    record, base = recommendation.record, resolved.space.baseline
    if record is None or not needs_advice(record.config, base, resolved):
        return recommendation
    reasons = list(advice(_batch(record.config), _batch(base)))
    try:
        reasons.append(measured_scale(record.config, resolved, launcher).text())
    except (TrialError, UsageError) as error:
        reasons.append(f"the gradient noise scale could not be measured: {error}")
    return replace(recommendation, reasons=(*recommendation.reasons, *reasons))


def needs_advice(config: Config, base: Config, resolved: Resolved) -> bool:
    """True if a training's step has another number of items than the baseline's."""
    trains = not resolved.space.workload.options.get("forward_only", False)
    return config.is_pipeline and trains and _batch(config) != _batch(base)


def advice(batch: int, base: int) -> Iterator[str]:
    """How the learning rate follows the batch, in sentences.

    Linear with a warm-up: Goyal et al. 2017 (arXiv 1706.02677), for SGD; the square root:
    Malladi et al. 2022 (arXiv 2205.10287), for Adam and its like.
    """
    ratio = batch / base
    yield (
        f"the global batch is {batch} instead of {base}: start from a learning rate "
        f"{ratio:.3g} times as high for SGD (linear scaling with a warm-up over the first epochs, "
        f"Goyal et al. 2017), {math.sqrt(ratio):.3g} times for Adam (square root, Malladi et al. "
        "2022), and try rates around it"
    )
    yield (
        "more samples per second are no shorter training: with another batch it may take more "
        "samples to the same accuracy"
    )


def measured_scale(config: Config, resolved: Resolved, launcher: Launcher) -> NoiseScale:
    """The gradient noise scale at the model's first weights, over many steps of fresh items.

    Raises:
        UsageError: A step has one micro-batch only. TrialError: It could not be run.
    """
    pieces = config.micro_batch_count * int(config.get("gradient_accumulation", 1))
    big = _batch(config) // int(config.get("replicas", 1))
    if pieces < 2:
        raise UsageError("a step has one micro-batch, and two sizes of batches are compared")
    spec = group_spec(config, resolved.space, resolved.info)
    with open_session(spec, launcher, timeout_s=LIMIT_S) as session:
        assert isinstance(session, RanksSession), "a pipeline runs in ranks"
        norms = session.squared_norms(STEPS, LIMIT_S)
    return noise_scale(norms, small=big // pieces, big=big, seed=resolved.space.trial.seed)


def _batch(config: Config) -> int:
    return int(config.get("global_batch_size", 1))
