"""A study: its trials in the storage, who runs which, and what is to be done next."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import optuna
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState

from autotune.core.codec import from_json_dict, to_json_dict
from autotune.core.collector import uncollected
from autotune.core.errors import StorageError, UsageError
from autotune.core.outcomes import Outcome
from autotune.core.records import (
    SCHEMA_VERSION,
    Config,
    Phase,
    Recommendation,
    TrialRecord,
    Verdict,
)
from autotune.search.advised import with_advice
from autotune.search.conditions import differences, space_changes
from autotune.search.grid import Attempt
from autotune.search.lease import Heart, LeaseWatch, new_lease, renewed
from autotune.search.sampler import Proposer, counts, make_sampler
from autotune.search.storage import (
    alone,
    exclusive,
    open_storage,
    retried,
    storage_errors,
    together,
)
from autotune.search.telling import checked, directions, optuna_params, told
from autotune.search.warm_start import Advice, PastStudy, advice_of
from autotune.space.search_space import SearchSpace

log = logging.getLogger(__name__)

_MAPPINGS = ("fingerprint", "params", "facts", "ending", "recommendation", "insight", "warm_start",
             "past", "canary", "outputs")  # fmt: skip
PAST = "past"
"""Key under which a study keeps the earlier one that advises it."""

_FIRST = {"schema_version", "space", "params"}
"""What earlier versions wrote of a new study before its fingerprint, one after the other."""

LOOK_S = 1.0  # between two looks at a lease of which it is not known yet whether its holder lives


class StopReason(str, Enum):
    """Why no further trial is run."""

    TRIALS = "trials"
    TIME = "time"
    EXHAUSTED = "exhausted"
    GAIN = "gain"
    CRASHES = "crashes"
    INTERRUPTED = "interrupted"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A configuration to be measured, claimed for this worker.

    Attributes:
        again: It has been measured before; the sampler asks for another measurement.
    """

    number: int
    config: Config
    phase: Phase
    again: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Trials that count against the budget; `total` is over all runs of the study."""

    done: int
    running: int
    total: int


class StoredStudy:
    """A study as it is kept; reading changes nothing.

    Attributes:
        name: Its name in the storage.
        directory: Where its report and journal are.
    """

    def __init__(
        self, study: optuna.Study, storage: BaseStorage, url: str, directory: Path
    ) -> None:
        self.name = study.study_name
        self.directory = directory
        self._study = study
        self._storage = storage
        self._url = url
        self._decoded: dict[int, TrialRecord] = {}
        self._watch = LeaseWatch()

    @classmethod
    def load(
        cls, name: str, study_dir: Path, *, storage: str = "journal", read_only: bool = True
    ) -> StoredStudy:
        """Open a study to look at it.

        Args:
            read_only: False: for a tool of Optuna's that writes notes.
        Raises:
            UsageError: There is no study of that name. StorageError: It cannot be read.
        """
        opened = open_storage(storage, study_dir, read_only=read_only)
        with storage_errors(storage):
            try:
                study = optuna.load_study(study_name=name, storage=opened, sampler=_no_sampler())
            except KeyError:
                raise UsageError(f"there is no study {name!r} in {study_dir}") from None
            stored = cls(study, opened, storage, study_dir)
            _check_schema(stored.attributes(), name)
        return stored

    def attributes(self) -> Mapping[str, Any]:
        """What is kept of the study as a whole: space, params, fingerprint, schema_version."""
        with storage_errors(self._url):
            return retried(lambda: self._study.user_attrs)

    @property
    def optuna_study(self) -> optuna.Study:
        """The same for tools of Optuna's. `storage`: where it is kept, likewise."""
        return self._study

    @property
    def storage(self) -> BaseStorage:
        return self._storage

    @property
    def url(self) -> str:
        """Where it is kept, as a space file says it."""
        return self._url

    @property
    def space_text(self) -> str:
        """The space file it was last run with, overrides applied."""
        return str(self.attributes().get("space", ""))

    @property
    def fingerprint(self) -> Mapping[str, str]:
        """The conditions its trials were measured under."""
        return dict(self.attributes().get("fingerprint") or {})

    def records(self) -> tuple[TrialRecord, ...]:
        """All finished trials, by number."""
        with storage_errors(self._url), uncollected():
            return tuple(r for t in self._trials() if (r := self._record(t)) is not None)

    def running(self) -> int:
        """Trials that are being run now, as far as can be told: their workers live."""
        with storage_errors(self._url):
            left = [t for t in self._trials() if not t.state.is_finished()]
        return sum(not self._is_lost(trial) for trial in left)

    def recommendation(self) -> Recommendation | None:
        """What the last run recommended; None if none ended yet."""
        data = self.attributes().get("recommendation")
        return None if data is None else from_json_dict(Recommendation, data)

    def past(self) -> PastStudy | None:
        """The earlier study that advised this one from its beginning; None if there was none."""
        data = self.attributes().get(PAST)
        return None if data is None else from_json_dict(PastStudy, data)

    def _trials(self) -> list[FrozenTrial]:
        # Optuna's own view of the storage reads of a database only what it has not seen finished.
        view = self._study._storage
        return retried(lambda: view.get_all_trials(self._study._study_id, deepcopy=False))

    def _is_lost(self, trial: FrozenTrial) -> bool | None:
        """Whether a running trial's worker is dead; None: not known yet."""
        return self._watch.is_dead(trial.user_attrs.get("lease", {}))

    def _record(self, trial: FrozenTrial) -> TrialRecord | None:
        if not trial.state.is_finished():
            return None
        if trial.number not in self._decoded:
            data = trial.user_attrs.get("record")
            self._decoded[trial.number] = (
                _unfinished(trial, Outcome.LOST)
                if data is None
                else from_json_dict(TrialRecord, data)
            )
        return self._decoded[trial.number]


class Study(StoredStudy):
    """A study that trials are run in.

    Attributes:
        notes: What the user should know: resumed, changed, cleaned up; what comes
            up after opening is logged as a warning too.
        advice: Of an earlier study, if it is followed.
    """

    def __init__(
        self,
        study: optuna.Study,
        storage: BaseStorage,
        directory: Path,
        space: SearchSpace,
        worker: str = "",
    ) -> None:
        super().__init__(study, storage, space.storage, directory)
        self.space = space
        self.notes: list[str] = []
        self._is_open = False
        self._sampler: Proposer = make_sampler(space, space.sampler, space.trial.seed)
        self._worker = worker
        self._running: dict[int, int] = {}
        self._heart = Heart()
        self.advice: Advice | None = None

    @classmethod
    def open(
        cls,
        space: SearchSpace,
        study_dir: Path,
        *,
        fingerprint: Mapping[str, str],
        on_change: Literal["refuse", "continue"] = "refuse",
        past: PastStudy | None = None,
        worker: str = "",
    ) -> Study:
        """Create a study, or go on with the one of that name.

        Args:
            fingerprint: What must not change within a study, see `fingerprint_of`.
            on_change: Whether to go on although the fingerprint differs.
            past: An earlier study that may advise this one if it is new; one that was begun
                keeps the adviser it has, for all its workers.
            worker: A name for this worker in the records.
        Raises:
            UsageError: The stored study was made under other conditions or for another goal.
            StorageError: The storage cannot be used.
        """
        storage = open_storage(space.storage, study_dir)
        with storage_errors(space.storage), exclusive(storage, study_dir, space.study):
            inner = retried(
                lambda: optuna.create_study(
                    study_name=space.study,
                    storage=storage,
                    sampler=_no_sampler(),
                    directions=directions(space.objective),
                    load_if_exists=True,
                )
            )
            study = cls(inner, storage, study_dir, space, worker)
            study._reconcile(fingerprint, on_change, past)
            study._sweep()
        study._follow_advice(fingerprint)
        progress = study.progress()
        if progress.done or progress.running:
            left = max(progress.total - progress.done - progress.running, 0)
            text = f"{space.study}: {progress.done} of {progress.total} trials done, {left} to go"
            study._note(text)
        study._is_open = True
        return study

    def progress(self) -> Progress:
        """How many trials count against the budget so far."""
        with storage_errors(self._url):
            history = self._history(self._trials())
        counted = [a for a in history if counts(a, history)]
        running = sum(a.record is None for a in counted)
        return Progress(
            done=len(counted) - running, running=running, total=self.space.budget.trials
        )

    def ask(self) -> Asked | StopReason:
        """Claim the next configuration, or say why there is none.

        One worker asks at a time, so that no two try the same and the total is kept.
        """
        lease = new_lease(self._worker)
        with storage_errors(self._url):
            found = retried(lambda: self._ask(lease))
        if isinstance(found, StopReason):
            return found
        trial_id, asked = found
        self._running[asked.number] = trial_id
        self._heart.hold(trial_id, lambda: self._renew(trial_id, lease))
        return asked

    def _ask(self, lease: Mapping[str, str | int | float]) -> tuple[int, Asked] | StopReason:
        with alone(self._storage, self.directory, self.name):
            trials = self._sweep()
            for trial in trials:
                # Asked for before the connection broke, which is why nobody was told.
                if trial.user_attrs.get("lease", {}).get("token") == lease["token"]:
                    again = bool(trial.user_attrs.get("again"))
                    return trial._trial_id, self._asked(trial.number, _config(trial), again)
            history = self._history(trials)
            counted = sum(counts(a, history) for a in history)
            if counted >= self.space.budget.trials:
                return StopReason.TRIALS
            if self._gains_little(history):
                return StopReason.GAIN
            config = self._sampler.propose(history)
            if config is None:
                return StopReason.EXHAUSTED
            again = any(a.config == config and counts(a, history) for a in history)
            return self._claim(config, trials, lease, again=again)

    def is_unsure(self) -> bool:
        """True while of some running trial it is not known yet whether its worker lives."""
        with storage_errors(self._url):
            return any(
                self._is_lost(trial) is None
                for trial in self._trials()
                if not trial.state.is_finished() and trial.number not in self._running
            )

    def tell(self, record: TrialRecord) -> TrialRecord:
        """Keep a trial's record and finish the trial.

        Returns:
            The record as kept: a figure that is not a number makes it wrong_output.
        """
        record = checked(record, self.space.objective)
        trial_id = self._running[record.number]
        with storage_errors(self._url), self._heart.lock:
            retried(lambda: self._finish(trial_id, record))
            self._heart.drop(trial_id)
        del self._running[record.number]
        return record

    def abandon(self) -> None:
        """Mark whatever this worker still runs as interrupted, so that it is tried again."""
        with storage_errors(self._url), self._heart.lock:
            for trial_id in list(self._running.values()):
                self._heart.drop(trial_id)
                record = _unfinished(self._storage.get_trial(trial_id), Outcome.INTERRUPTED)
                self._finish(trial_id, record)
        self._running.clear()

    def save_recommendation(self, recommendation: Recommendation) -> None:
        """Keep what this run recommends; it replaces that of an earlier run."""
        self._set("recommendation", to_json_dict(recommendation))

    def keep(self, key: str, value: Mapping[str, Any]) -> None:
        """Keep plain data of the study as a whole; `attributes` gives it back."""
        self._set(key, dict(value))

    def claim(self, task: str) -> bool:
        """Take over a task of the study as a whole, if no other worker is at it.

        Waits until it is known whether who is at it lives, `lease.GONE_S` at most.
        """
        with storage_errors(self._url):
            lease = new_lease(self._worker)
            while (taken := retried(lambda: self._claim_task(task, lease))) is None:
                time.sleep(LOOK_S)
        if taken:
            self._heart.hold(task, lambda: self._set(task, renewed(lease)))
        return taken

    def _claim_task(self, task: str, lease: Mapping[str, str | int | float]) -> bool | None:
        with alone(self._storage, self.directory, self.name):
            held = self.attributes().get(task)
            if held and held.get("token") == lease["token"]:
                return True  # taken before the connection broke
            is_free = self._watch.is_dead(held) if held else True
            if is_free:
                self._set(task, dict(lease))
            return is_free

    def release(self, task: str) -> None:
        """Give back what `claim` took."""
        with self._heart.lock:
            self._heart.drop(task)
            self._set(task, {})

    # --- asking and telling --------------------------------------------------------------------

    def _history(self, trials: Sequence[FrozenTrial]) -> list[Attempt]:
        return [
            Attempt(_config(trial), None)
            if (record := self._record(trial)) is None
            else Attempt(record.config, record)
            for trial in trials
        ]

    def _gains_little(self, history: Sequence[Attempt]) -> bool:
        """True if one more trial is expected to gain less than the budget asks for."""
        least = self.space.budget.gain
        if least is None:
            return False
        gain = self._sampler.expected_gain(history)
        return gain is not None and gain < least

    def _claim(
        self,
        config: Config,
        trials: Sequence[FrozenTrial],
        lease: Mapping[str, str | int | float],
        *,
        again: bool,
    ) -> tuple[int, Asked]:
        params, distributions = optuna_params(self.space, config, trials)
        template = optuna.trial.create_trial(
            state=TrialState.RUNNING,
            params=params,
            distributions=distributions,
            user_attrs={
                "config": config.as_dict(),
                "lease": lease,
                "outcome": "running",
                **({"again": True} if again else {}),
            },
        )
        # One operation of the storage: a trial is never seen without its configuration.
        trial_id = self._storage.create_new_trial(self._study._study_id, template_trial=template)
        number = self._storage.get_trial_number_from_id(trial_id)
        return trial_id, self._asked(number, config, again)

    def _asked(self, number: int, config: Config, again: bool) -> Asked:
        phase: Phase = "baseline" if config == self.space.baseline else "search"
        return Asked(number=number, config=config, phase=phase, again=again)

    def _renew(self, trial_id: int, lease: Mapping[str, str | int | float]) -> None:
        with storage_errors(self._url):
            self._storage.set_trial_user_attr(trial_id, "lease", renewed(lease))

    def _finish(self, trial_id: int, record: TrialRecord) -> None:
        """Write everything of a trial, its state last; may be repeated."""
        current = self._storage.get_trial(trial_id)
        if current.state.is_finished():
            if "record" not in current.user_attrs or "lost" in str(current.user_attrs["outcome"]):
                self._note(f"trial {record.number} came back after it had been given up as lost")
            return
        message = told(record, self.space.objective)
        attributes = {**message.attributes, "record": to_json_dict(record)}
        with together(self._storage):
            for key, value in attributes.items():
                self._storage.set_trial_user_attr(trial_id, key, value)
            if message.values is not None:
                trial = optuna.trial.Trial(self._study, trial_id)
                known = trial.constraints  # of a version that did not keep a result whole
                for key, excess in message.constraints.items():
                    if key not in known:
                        trial.set_constraint(key, excess)
            self._storage.set_trial_state_values(trial_id, message.state, message.values)

    def _sweep(self) -> list[FrozenTrial]:
        """Give up the trials whose worker is dead, so that they are tried again; all trials."""
        trials, swept = self._trials(), False
        for trial in trials:
            if trial.state.is_finished() or trial.number in self._running:
                continue
            if self._is_lost(trial):
                record = _unfinished(trial, Outcome.LOST)
                retried(lambda t=trial, r=record: self._finish(t._trial_id, r))  # type: ignore[misc]
                self._note(f"trial {trial.number}: its worker died; it will be tried again")
                swept = True
        return self._trials() if swept else trials

    # --- opening -------------------------------------------------------------------------------

    def _reconcile(
        self, fingerprint: Mapping[str, str], on_change: str, past: PastStudy | None
    ) -> None:
        stored = self.attributes()
        if stored.keys() <= _FIRST:  # new, or its first worker died while it was being made
            if self._trials():
                raise UsageError(
                    f"study {self.name!r} of this storage was not made by autotune; "
                    "choose another name with --study"
                )
            advice = {} if past is None else {PAST: to_json_dict(past)}
            self._remember(fingerprint, schema_version=SCHEMA_VERSION, **advice)
            return
        _check_schema(stored, self.name)
        self._check_directions()
        differing = differences(stored.get("fingerprint", {}), fingerprint)
        if differing and on_change == "refuse":
            raise UsageError(
                f"study {self.name!r} was measured under other conditions: {'; '.join(differing)}. "
                "Old and new figures do not compare: start a new study with --study NAME, or go on "
                "anyway with --on-change continue"
            )
        for difference in differing:
            self._note(f"{self.name} goes on although {difference}")
        for change in space_changes(stored.get("params", {}), self.space):
            self._note(
                f"{self.name}: {change}; trials so far are kept, those outside the new space are "
                "no candidates (start over with --study NAME)"
            )
        self._remember(fingerprint)

    def _follow_advice(self, fingerprint: Mapping[str, str]) -> None:
        past = self.past() if self.space.warm_start else None
        if past is None:
            return
        advice = advice_of(past, self.space, fingerprint)
        advised = with_advice(self._sampler, advice, self.space.baseline)
        if advised is not self._sampler:
            self._sampler, self.advice = advised, advice

    def _check_directions(self) -> None:
        # Optuna silently keeps the stored directions.
        stored = [
            "maximize" if d.name == "MAXIMIZE" else "minimize" for d in self._study.directions
        ]
        wanted = directions(self.space.objective)
        if stored != wanted:
            raise UsageError(
                f"study {self.name!r} was made to {' and '.join(stored)}, but the objective "
                f"{self.space.objective.name} is to {' and '.join(wanted)}; "
                "choose another name with --study"
            )

    def _remember(self, fingerprint: Mapping[str, str], **more: Any) -> None:
        """Keep what the study is about, all of it or nothing."""
        about = {
            "space": self.space.source.text,
            "params": {p.name: list(p.choices) for p in self.space.params},
            "fingerprint": dict(fingerprint),
            **more,
        }
        known = self.attributes()
        changed = {key: value for key, value in about.items() if known.get(key) != value}

        def write() -> None:
            with together(self._storage):
                for key, value in changed.items():
                    self._study.set_user_attr(key, value)

        with storage_errors(self._url):
            retried(write)

    def _set(self, key: str, value: Any) -> None:
        with storage_errors(self._url):
            if self._study.user_attrs.get(key) != value:
                retried(lambda: self._study.set_user_attr(key, value))

    def _note(self, text: str) -> None:
        self.notes.append(text)
        # Whoever opens a study shows its notes; what happens later has only the log.
        log.log(logging.WARNING if self._is_open else logging.INFO, "%s", text)


def _no_sampler() -> optuna.samplers.BaseSampler:
    """Optuna never samples here: every trial is created with its configuration."""
    return optuna.samplers.RandomSampler(seed=0)


def _config(trial: FrozenTrial) -> Config:
    return Config.from_dict(trial.user_attrs.get("config", trial.params))


_UNFINISHED_REASONS = {
    Outcome.LOST: "its worker died before it was done",
    Outcome.INTERRUPTED: "stopped before it was done",
}


def _unfinished(trial: FrozenTrial, outcome: Outcome) -> TrialRecord:
    """The record of a trial that nobody finished."""
    lease = trial.user_attrs.get("lease", {})
    began = trial.datetime_start
    return TrialRecord(
        number=trial.number,
        config=_config(trial),
        phase="search",
        verdict=Verdict(outcome=outcome, reasons=(_UNFINISHED_REASONS[outcome],)),
        started_at_s=0.0 if began is None else began.timestamp(),
        worker=str(lease.get("worker", "")),
    )


def _check_schema(attributes: Mapping[str, Any], name: str) -> None:
    version = attributes.get("schema_version")
    if not isinstance(version, int):
        raise UsageError(f"study {name!r} was not made by autotune; choose another with --study")
    if version > SCHEMA_VERSION:
        raise UsageError(
            f"study {name!r} was written by a newer autotune (schema {version}, this one reads "
            f"{SCHEMA_VERSION}); upgrade autotune"
        )
    for key in _MAPPINGS:
        if not isinstance(attributes.get(key) or {}, Mapping):
            raise StorageError(f"study {name!r} is damaged: what it keeps as {key} is no mapping")
    for key, value in {**(attributes.get("fingerprint") or {})}.items():
        if not isinstance(value, str):
            raise StorageError(f"study {name!r} is damaged: its condition {key!r} is no text")
