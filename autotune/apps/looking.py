"""Run one configuration once more and find out where its time goes; try what a forecast says."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from autotune.apps.resolve import Resolved
from autotune.apps.view import View
from autotune.core.diagnosis import Breakdown, Diagnosis, Forecast, Source
from autotune.core.errors import TrialError, UsageError
from autotune.core.records import Config, Load, Plan, Samples, TrialRecord, Window
from autotune.measure.account import (
    Place,
    Recording,
    Stages,
    median_cycle_s,
    recorded_breakdown,
    roofline_of,
)
from autotune.measure.profile_files import read_profile
from autotune.measure.queueing import ServiceTimes, simulate
from autotune.measure.ratio import ratio_interval
from autotune.measure.summary import summarise
from autotune.results.bottleneck import diagnose
from autotune.results.checking import trial_diagnosis
from autotune.results.forecast import Setting, forecast
from autotune.results.words import config_text
from autotune.trial.group import group_spec, trial_plan
from autotune.trial.session import Launcher, ProcessSession, Session, open_session
from autotune.workloads import WORKLOADS
from autotune.workloads.simulated import declared_breakdown

WINDOW_S = 1.0  # of calls that nothing watches, of a recording, of what checks a forecast
MAX_CALLS = 100  # that are recorded
MAX_RECORDED = 100_000  # operators in a recording, so that its file stays small
INSPECT_LIMIT_S = 60.0
ROUNDS = 2  # in which a forecast is checked, both configurations in each
MAX_ROUNDS = 4  # as long as they disagree
AGREE = 1.15  # their highest ratio over their lowest at most
QUEUE_SEED = 0


def place_of(resolved: Resolved) -> Place:
    """Where a space's configurations run."""
    return Place(is_host=resolved.info.kind == "cpu", core_count=resolved.info.core_count)


def setting_of(resolved: Resolved) -> Setting:
    """What limits and helps a forecast for a space."""
    place = place_of(resolved)
    return Setting(
        choices={p.name: p.choices for p in resolved.space.params if len(p.choices) > 1},
        core_count=place.core_count,
        overlaps=not place.is_host,
        is_host=place.is_host,
    )


def known_diagnosis(record: TrialRecord, resolved: Resolved) -> Diagnosis | None:
    """The verdict on a trial without running anything: as declared, or from its stage times.

    None if neither tells, or if arrivals and not its calls decide what it serves.
    """
    space, setting = resolved.space, setting_of(resolved)
    if space.objective.load.is_queued or not record.verdict.outcome.is_measured:
        return None
    if WORKLOADS[space.workload.kind].runs != "virtual":
        return trial_diagnosis(record, setting)
    breakdown = declared_breakdown(space.workload, record.config)
    return diagnose(breakdown, source="declared", config=record.config, setting=setting)


@dataclass(frozen=True, slots=True, kw_only=True)
class Looker:
    """What it takes to run configurations of a space.

    Attributes:
        window_s: Length of a window.
    """

    resolved: Resolved
    launcher: Launcher
    view: View
    window_s: float = WINDOW_S

    @property
    def place(self) -> Place:
        """Where it runs."""
        return place_of(self.resolved)

    @property
    def setting(self) -> Setting:
        """What limits and helps a forecast here."""
        return setting_of(self.resolved)

    def diagnose(self, config: Config, folder: Path) -> Diagnosis:
        """Run a configuration, record it if that can be done, and judge it.

        Args:
            folder: For the recording's files.
        Raises:
            TrialError: It cannot run.
            UsageError: Its workload hands over figures only, so that nothing is seen of its calls.
        """
        kind = self.resolved.space.workload.kind
        if WORKLOADS[kind].runs == "ranks":
            raise UsageError(
                "a pipeline is not recorded: where its ranks' time goes is in the report of its "
                "study (autotune report STUDY) and in measure --json, rank by rank"
            )
        if WORKLOADS[kind].runs not in ("child", "virtual"):
            raise UsageError(
                f"workload {kind}: what its calls do is not seen from here; profile it by its own "
                "means and read that with --profile DIR"
            )
        self.view.confirming(f"looking at {config_text(config)}")
        with self._session(config) as session:
            recording, queued = self._recorded(config, session, folder)
        breakdown, source = self._breakdown(recording)
        extra = [f for f in (self._queue_forecast(config, queued, breakdown),) if f is not None]
        found = diagnose(
            breakdown,
            source=source,
            config=config,
            setting=self.setting,
            roofline=roofline_of(recording.inspection),
            extra=extra,
            efficiency=self._efficiency(config, recording.plain),
        )
        files = recording.profile.files if recording.profile is not None else ()
        return replace(found, files=files)

    def checked(self, found: Diagnosis) -> Diagnosis:
        """A diagnosis whose forecast of the next knob was tried, side by side in time."""
        made = found.forecast
        if made is None or found.config is None or not math.isfinite(made.gain):
            return found
        changed = found.config.changed(**{made.knob: made.after})
        self.view.confirming(f"checking {made.knob}={made.after}")
        try:
            ratios = self._ratios(found.config, changed, made)
        except TrialError as error:
            self.view.note(f"{config_text(changed)} could not be tried: {error}")
            return found
        tried = replace(
            made,
            measured=float(np.exp(np.median(np.log(ratios)))),
            measured_ci=ratio_interval(ratios, 0.95) if len(ratios) > 2 else None,
        )
        return replace(found, forecasts=tuple(tried if f is made else f for f in found.forecasts))

    # --- runs ----------------------------------------------------------------------------------

    def _session(self, config: Config) -> Session:
        spec = group_spec(config, self.resolved.space, self.resolved.info)
        return open_session(spec, self.launcher, timeout_s=self.resolved.space.trial.timeout_s)

    def _plan(self, load: Load, turn: int = 0) -> Plan:
        window = Window(duration_s=self.window_s)
        plan = trial_plan(self.resolved.space, arrival_seed=turn)
        return replace(plan, windows=(window,), load=load)

    @property
    def _load(self) -> Load:
        """The study's own load, where it has a rate."""
        load = self.resolved.space.objective.load
        return Load() if load.seeks_rate else load

    def _recorded(
        self, config: Config, session: Session, folder: Path
    ) -> tuple[Recording, Samples | None]:
        calls = session.measure(self._plan(Load()))
        plain = Stages.of_samples(calls) if isinstance(calls, Samples) else None
        if plain is None:
            kind = self.resolved.space.workload.kind
            raise UsageError(f"workload {kind}: its calls tell no stages")
        queued = None
        if self._load.is_queued:
            served = session.measure(self._plan(self._load))
            assert isinstance(served, Samples)
            queued = served
        recording = Recording(config=config, plain=plain, queue_s=_wait_s(queued))
        if isinstance(session, ProcessSession):
            recording = self._profiled(recording, session, folder)
        return recording, queued

    def _profiled(self, recording: Recording, session: ProcessSession, folder: Path) -> Recording:
        inspection = session.inspect(INSPECT_LIMIT_S)
        recording = replace(recording, inspection=inspection)
        folder.mkdir(parents=True, exist_ok=True)
        each = 4 * max(len(inspection.work), 1)  # an operator calls others
        profiled = session.profile(
            folder,
            calls=min(MAX_CALLS, max(MAX_RECORDED // each, 1)),
            duration_s=self.window_s,
            limit_s=self.resolved.space.trial.timeout_s + INSPECT_LIMIT_S,
        )
        if not profiled.calls:
            self.view.note(
                f"{profiled.note or 'its operators are not seen'}; launches count as computing here"
            )
            return recording
        try:
            profile = read_profile(folder)
        except UsageError as error:
            self.view.note(f"the recording cannot be read: {error}")
            return recording
        return replace(recording, profile=profile, calls=profiled.calls, call_s=profiled.call_s)

    def _breakdown(self, recording: Recording) -> tuple[Breakdown, Source]:
        workload, config = self.resolved.space.workload, recording.config
        if WORKLOADS[workload.kind].runs == "virtual":
            declared = declared_breakdown(workload, config)
            return replace(declared, queue_s=recording.queue_s), "declared"
        return recorded_breakdown(recording, self.place), "profile"

    def _efficiency(self, config: Config, plain: Stages) -> float | None:
        """Throughput of the instances together over that of as many alone."""
        if config.instance_count == 1:
            return None
        self.view.confirming("one instance alone, for comparison")
        with self._session(config.changed(instance_count=1)) as session:
            calls = session.measure(self._plan(Load()))
        alone = Stages.of_samples(calls) if isinstance(calls, Samples) else None
        return alone.cycle_s / plain.cycle_s if alone is not None else None

    def _ratios(self, before: Config, after: Config, made: Forecast) -> list[float]:
        """How much better it is in each round; further ones while they disagree, as by noise."""
        ratios = [self._ratio(before, after, made, turn) for turn in range(ROUNDS)]
        while len(ratios) < MAX_ROUNDS and not max(ratios) <= AGREE * min(ratios):
            ratios.append(self._ratio(before, after, made, len(ratios)))
        return ratios

    def _ratio(self, before: Config, after: Config, made: Forecast, turn: int) -> float:
        """How much better the changed configuration is, one after the other, in turn first."""
        is_queued = made.metric == "latency_mean" or self._load.clients is not None
        load = self._load if is_queued else Load()
        worth = {}
        for config in (before, after) if turn % 2 == 0 else (after, before):
            with self._session(config) as session:
                calls = session.measure(self._plan(load, turn))
            if is_queued or not isinstance(calls, Samples):
                measured = summarise(calls)
                latency_s, rate = measured.latency_mean_s, measured.throughput_items_per_s
                worth[config] = 1 / (latency_s or math.nan) if made.metric != "throughput" else rate
            else:
                items = config.total_instances * config.batch_size
                worth[config] = items / median_cycle_s(calls)
        return (worth[after] or math.nan) / (worth[before] or math.nan)

    # --- queues --------------------------------------------------------------------------------

    def _queue_forecast(
        self, config: Config, queued: Samples | None, breakdown: Breakdown
    ) -> Forecast | None:
        """What more instances do for the mean latency under the load as it is."""
        if queued is None or queued.clients is not None or not queued.arrivals_s:
            return None
        served = forecast("instance_count", breakdown, config, self.setting)
        if served is None or not isinstance(served.after, int) or not queued.start_s.size:
            return None
        before, after = config.instance_count, served.after
        calls = ServiceTimes.fit(queued.item_count, queued.end_s - queued.start_s)
        # Their calls take longer by what they wait for each other where they share.
        slower = calls.slowed(max(after / before / served.gain, 1.0))
        latency_s = [
            float(
                np.mean(
                    simulate(
                        queued.arrivals_s[0],
                        times,
                        np.random.default_rng(QUEUE_SEED),
                        max_batch=config.batch_size,
                        max_delay_s=float(config.get("max_queue_delay", 0.0)),
                        servers=count,
                    )
                )
            )
            for times, count in ((calls, before), (slower, after))
        ]
        return Forecast(
            knob="instance_count",
            before=before,
            after=after,
            gain=latency_s[0] / latency_s[1],
            metric="latency_mean",
            formula=f"mean latency of {before} over that of {after} instances",
            source="the queue simulated with the measured arrivals and call times",
        )


def _wait_s(queued: Samples | None) -> float:
    """How long a request waited for its call to begin, on average; 0 without a queue."""
    if queued is None or not queued.start_s.size:
        return 0.0
    latency_s = queued.request_latency_s()
    served = latency_s[np.isfinite(latency_s)]
    calls_s = np.repeat(queued.end_s - queued.start_s, queued.item_count)
    return max(float(served.mean() - calls_s.mean()), 0.0)
