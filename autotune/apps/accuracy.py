"""How good the answers of a configuration are, on a user's own items."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from autotune.apps.resolve import Resolved
from autotune.core.errors import TrialError, UsageError
from autotune.core.records import Config, Recommendation
from autotune.trial.group import group_spec
from autotune.trial.session import Launcher, ProcessSession, open_session

EVALUATION_LIMIT_S = 600.0


def with_accuracy(
    recommendation: Recommendation, resolved: Resolved, launcher: Launcher
) -> Recommendation:
    """The recommendation with what the user's own items say of it, or why they say nothing.

    A mistake in the file or the function costs these figures, not the study before them.
    """
    if recommendation.record is None:
        return recommendation
    try:
        figures = accuracy_of(recommendation.record.config, resolved, launcher)
    except (TrialError, UsageError) as error:
        reason = f"the winner could not be tried on your own items: {error}"
        return replace(recommendation, reasons=(*recommendation.reasons, reason))
    return replace(recommendation, accuracy=figures)


def accuracy_of(config: Config, resolved: Resolved, launcher: Launcher) -> Mapping[str, float]:
    """Figures of all items, run once in one instance of the configuration.

    Raises:
        UsageError: The file does not fit the model, or the function gives no numbers.
        TrialError: It could not be run, or the function failed.
    """
    spec = group_spec(config.changed(instance_count=1), resolved.space, resolved.info)
    with open_session(spec, launcher, timeout_s=EVALUATION_LIMIT_S) as session:
        assert isinstance(session, ProcessSession), "a model runs in processes"
        return session.evaluate(EVALUATION_LIMIT_S)
