"""The one vocabulary of outcomes: how a trial ended, and what that means to the search."""

from __future__ import annotations

from enum import Enum


class Outcome(str, Enum):
    """How a trial ended.

    Measured outcomes carry a measurement. Infeasible ones say that this configuration
    cannot run, which the search learns from. Accidents say nothing about the
    configuration. Retried ones never count: the configuration is tried again.
    """

    OK = "ok"
    OVER_LIMIT = "over_limit"
    UNDECIDED = "undecided"
    OOM = "oom"
    TIMEOUT = "timeout"
    COMPILE_ERROR = "compile_error"
    CRASHED = "crashed"
    WRONG_OUTPUT = "wrong_output"
    LOST = "lost"
    INTERRUPTED = "interrupted"

    def __str__(self) -> str:
        return self.value

    @property
    def is_measured(self) -> bool:
        """True if the trial has a measurement."""
        return self in _MEASURED

    @property
    def is_infeasible(self) -> bool:
        """True if the configuration itself cannot run here."""
        return self in _INFEASIBLE

    @property
    def is_accident(self) -> bool:
        """True if a fault ended the trial that the search must not learn from."""
        return self in _ACCIDENTS

    @property
    def is_retried(self) -> bool:
        """True if the trial did not get its chance and is to be run again."""
        return self in _RETRIED

    @property
    def informs_search(self) -> bool:
        """True if Optuna is told COMPLETE; the others are told FAIL."""
        return self.is_measured or self.is_infeasible


_MEASURED = frozenset({Outcome.OK, Outcome.OVER_LIMIT, Outcome.UNDECIDED})
_INFEASIBLE = frozenset({Outcome.OOM, Outcome.TIMEOUT, Outcome.COMPILE_ERROR})
_ACCIDENTS = frozenset({Outcome.CRASHED, Outcome.WRONG_OUTPUT})
_RETRIED = frozenset({Outcome.LOST, Outcome.INTERRUPTED})
