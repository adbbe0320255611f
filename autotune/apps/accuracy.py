"""How good the answers of a configuration are, on a user's own items."""

from __future__ import annotations

from collections.abc import Mapping

from autotune.apps.resolve import Resolved
from autotune.core.errors import TrialError
from autotune.core.records import Config
from autotune.trial.group import group_spec
from autotune.trial.session import Launcher, ProcessSession, open_session

EVALUATION_LIMIT_S = 600.0


def accuracy_of(config: Config, resolved: Resolved, launcher: Launcher) -> Mapping[str, float]:
    """Figures of all items, run once in one instance of the configuration; {} without a file.

    Raises:
        UsageError: The file does not fit the model.
    """
    space = resolved.space
    if space.workload.data is None:
        return {}
    spec = group_spec(config.changed(instance_count=1), space, resolved.info)
    try:
        with open_session(spec, launcher, timeout_s=EVALUATION_LIMIT_S) as session:
            assert isinstance(session, ProcessSession), "a model runs in processes"
            return session.evaluate(EVALUATION_LIMIT_S)
    except TrialError:
        return {}  # its trials have worked: an accident, and no figure rests on it
