"""Holds every configuration's outputs against the baseline's before its speed counts."""

from __future__ import annotations

import logging

from autotune.core.codec import from_json_dict, to_json_dict
from autotune.core.errors import TrialError, WrongOutput
from autotune.core.records import Answers, Config
from autotune.devices.base import DeviceInfo
from autotune.measure.equal_work import Agreement, Reference, combined, compare, reference_of
from autotune.search.study import Study
from autotune.space.search_space import SearchSpace
from autotune.trial.group import group_spec
from autotune.trial.session import Launcher, open_session

log = logging.getLogger(__name__)

OUTPUTS = "outputs"
"""The study's attribute that keeps the baseline's answers for later runs and other workers."""


class Guard:
    """The baseline's answers, found once, and what they were held against.

    Nobody is accused on the word of a reference that does not repeat itself: before the first
    configuration is refused, the baseline is opened afresh and has to answer alike.
    """

    def __init__(
        self, study: Study, space: SearchSpace, info: DeviceInfo, launcher: Launcher
    ) -> None:
        self._study, self._space, self._info, self._launcher = study, space, info, launcher
        self._reference: Reference | None = None
        self._is_verified = False

    def check(self, config: Config, answers: tuple[Answers, ...]) -> Agreement:
        """Compare what a configuration's instances answered.

        Raises:
            WrongOutput: It is not what the baseline answers, or no number at all.
        """
        if not answers or not self._space.trial.check_outputs:
            return Agreement()
        reference = self._find(answers if config == self._space.baseline else ())
        try:
            return combined([compare(one, reference) for one in answers])
        except WrongOutput:
            if config != self._space.baseline and self._answers_again(reference):
                raise
            return self._give_up("the baseline itself answers otherwise when it is built again")

    def _find(self, answers: tuple[Answers, ...]) -> Reference:
        """The reference: found before, kept in the study, or from the baseline's answers."""
        if self._reference is None:
            kept = self._study.attributes().get(OUTPUTS)
            if kept:
                self._reference = from_json_dict(Reference, kept)
            else:
                self._keep(self._measured(answers))
        assert self._reference is not None
        return self._reference

    def _measured(self, answers: tuple[Answers, ...]) -> Reference:
        try:
            answers = answers or self._fresh()
            return reference_of(answers[0]) if answers else Reference(untold="no outputs are seen")
        except WrongOutput:
            if answers:
                raise  # the baseline's own trial
            return Reference(untold="the baseline's outputs are no numbers")
        except TrialError as error:
            return Reference(untold=f"the baseline did not run: {error}")

    def _answers_again(self, reference: Reference) -> bool:
        """True if a fresh baseline answers what the reference says; found out once."""
        if not self._is_verified:
            try:
                for answers in self._fresh():
                    compare(answers, reference)
            except WrongOutput:
                return False
            except TrialError as error:
                log.warning("the baseline could not be opened again: %s", error)
            self._is_verified = True
        return True

    def _fresh(self) -> tuple[Answers, ...]:
        spec = group_spec(self._space.baseline, self._space, self._info)
        timeout_s = self._space.trial.timeout_s
        with open_session(spec, self._launcher, timeout_s=timeout_s) as session:
            return session.answers

    def _give_up(self, why: str) -> Agreement:
        self._keep(Reference(untold=why))
        return Agreement(untold=why)

    def _keep(self, reference: Reference) -> None:
        self._reference = reference
        self._study.keep(OUTPUTS, to_json_dict(reference))
        if reference.untold:
            log.warning("outputs are not compared: %s", reference.untold)
