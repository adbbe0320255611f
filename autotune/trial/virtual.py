"""Sessions without processes: simulated models and recorded grids on a virtual clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from autotune.core.clock import VirtualClock
from autotune.core.errors import TrialError
from autotune.core.records import Answers, GroupSpec, InstanceFacts, Plan, Reported, Result, Samples
from autotune.measure.client_queue import local_state
from autotune.measure.engine import (
    OpenWindow,
    Server,
    WarmUp,
    items_of_calls,
    merge,
    run_open_windows,
    run_windows,
    sizes_of,
    to_open_samples,
    to_samples,
    warm_up,
    warm_up_sizes,
    warmup_cap_s,
)
from autotune.measure.load import Serve, Step
from autotune.workloads import WORKLOADS, load_workload
from autotune.workloads.base import Context, Program


class VirtualGroup:
    """A session on virtual time.

    A simulated workload's instances each have a clock of their own that starts at zero: their
    mutual interference is part of the cost model. Under a closed load they run one after the
    other, where there is a queue in the order of their clocks. A recorded workload hands over
    finished figures.

    Args:
        charge: Told how many virtual seconds each step of the session cost.
        began_s: The study's virtual clock.
    """

    is_virtual = True
    answers: tuple[Answers, ...] = ()

    def __init__(
        self, spec: GroupSpec, charge: Callable[[float], None], *, began_s: float = 0.0
    ) -> None:
        self._spec, self._charge, self._began_s = spec, charge, began_s
        self._pending: Plan | None = None
        self._instances: list[_VirtualInstance] = []
        if WORKLOADS[spec.workload.kind].runs == "virtual":
            self._instances = self._open_all()
            charge(max(instance.load_s for instance in self._instances))

    def warm_up(self, plan: Plan) -> None:
        """Warm every simulated instance."""
        for instance in self._instances:
            instance.warm_up(warmup_cap_s(plan), sizes_of(plan, self._spec.config))

    def begin(self, plan: Plan) -> None:
        self._pending = plan

    def result(self) -> Result:
        assert self._pending is not None, "nothing was begun"
        plan, self._pending = self._pending, None
        return self._simulate(plan) if self._instances else self._report(plan)

    def measure(self, plan: Plan) -> Result:
        if any(not instance.is_warm for instance in self._instances):
            self.warm_up(plan)
        self.begin(plan)
        return self.result()

    def close(self) -> None:
        """Nothing is held."""

    def __enter__(self) -> VirtualGroup:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open_all(self) -> list[_VirtualInstance]:
        try:
            return [
                _VirtualInstance(self._spec, i, self._began_s)
                for i in range(self._spec.config.total_instances)
            ]
        except TrialError as error:
            self._charge(error.cost_s)
            raise

    def _simulate(self, plan: Plan) -> Samples:
        count = len(self._instances)
        # Absolute starts are of the real clock; here windows follow each other.
        plan = replace(plan, windows=tuple(replace(w, start_s=None) for w in plan.windows))
        base_s = max(instance.clock.now_s() for instance in self._instances)
        if plan.load.is_queued:
            parts = self._serve(plan, base_s)
        else:
            parts = [instance.measure(plan, base_s, count) for instance in self._instances]
        self._charge(max(instance.clock.now_s() for instance in self._instances) - base_s)
        return merge(parts)

    def _serve(self, plan: Plan, base_s: float) -> list[Samples]:
        states = [local_state(plan.load) for _ in plan.windows]
        servers = [instance.server() for instance in self._instances]
        served = run_open_windows(
            servers, self._spec.config, plan, base_s=base_s, state=states.__getitem__
        )
        return [
            instance.served(windows, plan)
            for instance, windows in zip(self._instances, served, strict=True)
        ]

    def _report(self, plan: Plan) -> Reported:
        try:
            result = load_workload(self._spec.workload.kind)(self._spec, plan)
        except TrialError as error:
            self._charge(error.cost_s)
            raise
        assert isinstance(result, Reported)
        self._charge(result.duration_s)
        return result


class _VirtualInstance:
    def __init__(self, spec: GroupSpec, index: int, began_s: float) -> None:
        self.clock = VirtualClock()
        self.load_s = 0.0
        self._spec, self._index = spec, index
        self._warm: WarmUp | None = None
        context = Context(
            config=spec.config,
            workload=spec.workload,
            devices=(spec.device_of(index),),
            framework_device=spec.device_of(index),
            clock=self.clock,
            instance=index,
            seed=spec.seed,
            began_s=began_s,
        )
        program = load_workload(spec.workload.kind)(context)
        assert isinstance(program, Program) and program.step is not None
        self.load_s = self.clock.now_s()
        self._program = program
        whole: Step = program.step
        self._step = whole
        self._run_queue_wait_s = program.run_queue_wait_s or (lambda: 0.0)
        self._serve: Serve = program.step_items or (lambda call, items: whole(call))
        self._calls_made = 0

    @property
    def is_warm(self) -> bool:
        return self._warm is not None

    def warm_up(self, max_s: float, sizes: Sequence[int]) -> None:
        warm_up_sizes(self._serve, self.clock, sizes, max_s=max_s)
        self._warm = warm_up(self._step, self.clock, max_s=max_s)
        self._calls_made += self._warm.count

    def measure(self, plan: Plan, base_s: float, instance_count: int) -> Samples:
        windows, waits_s = run_windows(
            self._step,
            self.clock,
            plan,
            base_s=base_s,
            share=(self._index, instance_count),
            first_call=self._calls_made,
            run_queue_wait_s=self._run_queue_wait_s,
            serve=self._serve,
        )
        self._calls_made += sum(map(len, windows))
        items = items_of_calls(windows, plan, self._spec.config.batch_size)
        return to_samples(windows, waits_s, items_per_call=items, facts=self._facts())

    def server(self) -> Server:
        """This instance for a load with a queue."""
        return Server(
            serve=self._serve,
            clock=self.clock,
            first_call=self._calls_made,
            run_queue_wait_s=self._run_queue_wait_s,
        )

    def served(self, windows: Sequence[OpenWindow], plan: Plan) -> Samples:
        """What it served as samples."""
        self._calls_made += sum(len(window.served) for window in windows)
        return to_open_samples(windows, plan.load, self._facts())

    def _facts(self) -> InstanceFacts:
        warm = self._warm
        return InstanceFacts(
            instance=self._index,
            load_s=self.load_s,
            memory_peak_bytes=self._program.memory_bytes,
            warmup_count=warm.count if warm else 0,
            warmup_steady=warm.is_steady if warm else True,
            precision=self._program.precision,
            versions=self._program.versions,
            notes=self._program.notes,
            pads=self._program.step_items is None,
        )
