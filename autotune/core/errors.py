"""Errors of this project; each top class fixes an exit code, each trial error an outcome."""

from __future__ import annotations

from autotune.core.outcomes import Outcome


class AutotuneError(Exception):
    """Base of every error this project raises on purpose."""

    exit_code = 1


class UsageError(AutotuneError):
    """A file, key, flag or argument is wrong; the message says where and what to do."""

    exit_code = 2


class UnavailableError(AutotuneError):
    """A device or package is not there; the message says how to get it."""

    exit_code = 3


class StorageError(AutotuneError):
    """The study's storage, or its driver, cannot be used."""

    exit_code = 4


class TrialError(AutotuneError):
    """One configuration failed; becomes an outcome and never stops the study.

    Attributes:
        outcome: What the failure means.
        log_tail: The last lines the child printed, possibly empty.
        cost_s: Virtual seconds that a recorded failure cost; 0 for a real one.
    """

    outcome = Outcome.CRASHED

    def __init__(self, reason: str, *, log_tail: str = "", cost_s: float = 0.0) -> None:
        super().__init__(reason)
        self.log_tail = log_tail
        self.cost_s = cost_s


class OutOfMemory(TrialError):
    """The configuration needs more memory than there is."""

    outcome = Outcome.OOM


class TrialTimeout(TrialError):
    """The trial did not end within its deadline and was killed."""

    outcome = Outcome.TIMEOUT


class CompileError(TrialError):
    """The runtime cannot compile the model in this shape or partition."""

    outcome = Outcome.COMPILE_ERROR


class TrialCrashed(TrialError):
    """A child raised, exited or was killed.

    Attributes:
        child_exit_code: The child's exit status, None when a signal or an exception ended it.
        signal_name: Such as "SIGSEGV", None when no signal ended it.
    """

    def __init__(
        self,
        reason: str,
        *,
        exit_code: int | None = None,
        signal_name: str | None = None,
        log_tail: str = "",
    ) -> None:
        super().__init__(reason, log_tail=log_tail)
        self.child_exit_code = exit_code
        self.signal_name = signal_name


class TrialKilled(TrialCrashed):
    """A process of the trial was ended by SIGKILL, which none sends itself: by an operator or a
    limit of the system's. The first time this says nothing of the configuration.
    """


class TrialLost(TrialError):
    """What held the trial died with it; this says nothing of the configuration."""

    outcome = Outcome.LOST


class WrongOutput(TrialError):
    """The trial ran but its output is not what it must be (NaN, missing metric, other values)."""

    outcome = Outcome.WRONG_OUTPUT
