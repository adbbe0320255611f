"""What a larger batch means for a training: its learning rate, and how far it still pays."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from autotune.apps.resolve import Resolved
from autotune.core.errors import TrialError, UsageError
from autotune.core.records import Config, Recommendation
from autotune.measure.noise_scale import MIN_STEPS, NoiseScale, noise_scale
from autotune.space.search_space import SearchSpace
from autotune.trial.group import group_spec
from autotune.trial.session import Launcher, RanksSession, open_session
from autotune.workloads import WORKLOADS

GENERATED = "it is of generated items, your own data have another"
STEPS = 2 * MIN_STEPS
LIMIT_S = 300.0


def with_learning_rate(
    recommendation: Recommendation,
    resolved: Resolved,
    launcher: Launcher,
    *,
    left_s: float | None = None,
) -> Recommendation:
    """The recommendation of a training with what its batch means.

    Args:
        left_s: What is left of the budget; a trial's own limit may be taken beyond it.
    """
    record, base = recommendation.record, resolved.space.baseline
    if record is None:
        return recommendation
    told = advice(_batch(record.config), _batch(base))
    scale = _scale_text(record.config, resolved, launcher, left_s)
    return replace(recommendation, reasons=(*recommendation.reasons, *told, *scale))


def _scale_text(
    config: Config, resolved: Resolved, launcher: Launcher, left_s: float | None
) -> Iterator[str]:
    """The gradient noise scale in a sentence, or why it is not known; nothing of a program whose
    gradients nobody sees."""
    space = resolved.space
    if WORKLOADS[space.workload.kind].runs != "ranks":
        return
    least_s = space.trial.timeout_s
    limit_s = LIMIT_S if left_s is None else min(LIMIT_S, max(left_s, least_s))
    try:
        found = measured_scale(config, resolved, launcher, limit_s=limit_s)
    except (TrialError, UsageError) as error:
        yield f"the gradient noise scale could not be measured: {error}"
    else:
        yield f"{found.text()}; {GENERATED}"


def needs_advice(recommendation: Recommendation, space: SearchSpace) -> bool:
    """True if a training's step has another number of items than the baseline's."""
    config = recommendation.record.config if recommendation.record else space.baseline
    trains = config.is_pipeline and not space.workload.options.get("forward_only", False)
    return trains and _batch(config) != _batch(space.baseline)


def advice(batch: int, base: int) -> Iterator[str]:
    """How the learning rate follows the batch, in sentences.

    Linear with a warm-up: Goyal et al. 2017 (arXiv 1706.02677), for SGD; the square root:
    Malladi et al. 2022 (arXiv 2205.10287), for Adam and its like.
    """
    ratio = batch / base
    warm_up = " with a warm-up over the first epochs" if ratio > 1 else ""
    yield (
        f"the global batch is {batch} instead of {base}: start from a learning rate "
        f"{ratio:.3g} times as high for SGD (linear scaling{warm_up}, Goyal et al. 2017), "
        f"{math.sqrt(ratio):.3g} times for Adam (square root, Malladi et al. 2022), and try rates "
        "around it"
    )
    yield (
        "more samples per second are no shorter training: with another batch it may take more "
        "samples to the same accuracy"
    )


def measured_scale(
    config: Config, resolved: Resolved, launcher: Launcher, *, limit_s: float = LIMIT_S
) -> NoiseScale:
    """The gradient noise scale at the model's first weights, over many steps of fresh items.

    Raises:
        UsageError: A step cannot be cut into micro-batches. TrialError: It could not be run.
    """
    config = _in_pieces(config, resolved.space)
    pieces = config.micro_batch_count * int(config.get("gradient_accumulation", 1))
    big = _batch(config) // int(config.get("replicas", 1))
    spec = group_spec(config, resolved.space, resolved.info)
    began_s = launcher.now_s()
    with open_session(spec, launcher, timeout_s=limit_s) as session:
        assert isinstance(session, RanksSession), "a pipeline runs in ranks"
        norms = session.squared_norms(STEPS, max(limit_s - (launcher.now_s() - began_s), 1.0))
    return noise_scale(norms, small=big // pieces, big=big, seed=resolved.space.trial.seed)


def _in_pieces(config: Config, space: SearchSpace) -> Config:
    """The configuration, or one of the same batch whose step has several micro-batches.

    Raises:
        UsageError: There is none.
    """
    if config.micro_batch_count * int(config.get("gradient_accumulation", 1)) > 1:
        return config
    counts = space.parameter("micro_batch_count")
    cut = (
        config.changed(micro_batch_count=c) for c in (counts.choices if counts else ()) if c != 1
    )
    found = next((other for other in cut if space.allows(other)), None)
    if found is None:
        raise UsageError("a step has one micro-batch, and two sizes of batches are compared")
    return found


def _batch(config: Config) -> int:
    return int(config.get("global_batch_size", 1))
