"""One rank of a pipeline: its stages, and the step that all ranks run together."""

from __future__ import annotations

import bisect
import inspect
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage

from autotune.core.clock import Clock
from autotune.core.errors import CompileError, UsageError
from autotune.core.pipeline import SCHEDULES, Pass, StepTrace
from autotune.core.records import Config, WorkloadSpec
from autotune.workloads.data import make_requests
from autotune.workloads.pipeline.chain import TARGET, TRAINING, chain
from autotune.workloads.pipeline.layout import Layout, setting, whole
from autotune.workloads.pipeline.ranks.increments import Increments
from autotune.workloads.pipeline.ranks.recorder import Recorder
from autotune.workloads.pipeline.ranks.reduction import Reduction
from autotune.workloads.pipeline.ranks.reference import Unpipelined, norms
from autotune.workloads.pipeline.ranks.stages import (
    Joined,
    event_maker,
    parameters_of,
    schedule_class,
)

LEARNING_RATE = 1e-4  # small: the weights hardly move, and the work of moving them is done
OPTIMIZERS = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW, "none": None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """Where a rank stands and what it runs on.

    Attributes:
        device: What torch calls its device. `wait`: Waits until that has done its work.
    """

    rank: int
    config: Config
    workload: WorkloadSpec
    device: str
    seed: int
    clock: Clock
    wait: Callable[[], None]


class Rank:
    """A rank that has joined the others; every method is called by all of them alike.

    Args:
        known: What a rank before found out of the model without a pipeline; None: rank 0 does.
    Raises:
        UsageError: The model is wrong.
        CompileError: Its layers do not fit the stages.
        UnavailableError: The installed torch has no such schedule.
    """

    def __init__(self, seat: Seat, known: Pass | None) -> None:
        self._seat, self._config = seat, seat.config
        self._options = {**TRAINING, **seat.workload.options}
        self._layout = Layout.of(seat.config)
        self._chain = chain(seat.workload, seat.seed, seat.config)
        self.replica, self.place = divmod(seat.rank, self._layout.ranks)
        self._recorder = Recorder(seat.clock, event_maker(seat.device))
        self._increments: Increments | None = None
        self._batch, self._target = self._data()
        self.reference = known or self._reference()
        self._groups()
        self._build()

    @property
    def notes(self) -> tuple[str, ...]:
        """What a user should know of how the model is run."""
        counts = "-".join(map(str, self.counts))
        notes = (*self._chain.notes, f"layers per stage: {counts}")
        if setting(self._config, "stage_split") == "balanced" and not self.reference.forward_s:
            notes += ("stage_split: balanced is even here, as no layer was timed (compare: false)",)
        return notes

    @property
    def versions(self) -> dict[str, str]:
        """What it runs on."""
        return {"torch": str(torch.__version__)}

    @property
    def stages(self) -> tuple[int, ...]:
        """The stages this rank holds."""
        return self._layout.stages_of(self.place)

    @property
    def layers(self) -> tuple[int, ...]:
        """How many layers each of them has."""
        return tuple(self.counts[stage] for stage in self.stages)

    def first_step(self) -> Pass:
        """The step in which shapes are found out: its loss, and the norms of its gradients."""
        loss = self._passes(keep=True)
        found: dict[str, float] = {}
        for stage, parts in self._parts.items():
            found |= norms(parts, sum(self.counts[:stage])) if self._trains else {}
            for layer in parts:
                layer.train(self._trains)
        return Pass(loss=self._mean_loss(loss), gradient_norms=found)

    def step(self) -> StepTrace:
        """One step; its length here is this rank's own, see `together`."""
        seat, recorder = self._seat, self._recorder
        began_s = seat.clock.now_s()
        recorder.begin()
        self._passes(keep=False)
        if self._optimizer is not None:
            with recorder.piece("U"):
                self._optimizer.step()
        seat.wait()
        return StepTrace(seat.clock.now_s() - began_s, recorder.spans())

    def squared_norms(self, steps: int) -> tuple[tuple[float, float], ...]:
        """Squared norms of gradients at the present weights, per step on fresh items.

        The mean over a replica's micro-batches, and that of the gradient of all of them; both
        means over the replicas.

        Raises:
            UsageError: Stages share parameters, whose gradients are then those of both.
        """
        starts = list(itertools.accumulate(self.counts))
        for group in self._chain.tied:
            if len({bisect.bisect_right(starts, layer) for layer in group}) > 1:
                raise UsageError("stages share parameters: no stage has a gradient of its own")
        found = []
        for number in range(steps):
            self._batch, self._target = self._data(number + 1)
            self._increments = Increments(self._parts, self._layout.micro_batches)
            self._passes(keep=False, reduces=False)
            found.append(self._increments.squares(self._layout.rounds))
        self._increments = None
        self._batch, self._target = self._data()
        table = torch.tensor(found, dtype=torch.float64 if self._is_cpu else torch.float32)
        table = table.to(self._seat.device)
        dist.all_reduce(table)
        return tuple((small, big) for small, big in (table / self._layout.replicas).tolist())

    def together(self, *values: float) -> tuple[float, ...]:
        """The highest of every value over all ranks; all go on from here at the same time."""
        table = torch.tensor(values, dtype=torch.float64 if self._is_cpu else torch.float32)
        table = table.to(self._seat.device)
        dist.all_reduce(table, op=dist.ReduceOp.MAX)
        return tuple(table.tolist())

    def gathered(self, value: Any) -> list[Any]:
        """What every rank has, known to all of them."""
        found: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(found, value)
        return found

    # --- building ------------------------------------------------------------------------------

    @property
    def _device(self) -> torch.device:
        return torch.device(self._seat.device)

    @property
    def _is_cpu(self) -> bool:
        return self._seat.device == "cpu"

    @property
    def _trains(self) -> bool:
        return not self._options["forward_only"]

    def _data(self, number: int = 0) -> tuple[tuple[torch.Tensor, ...], torch.Tensor | None]:
        """This replica's part of a global batch: the model's inputs, and the target."""
        total = whole(self._config, "global_batch_size")
        (arrays,) = make_requests(self._chain.inputs, total, 1, self._seat.seed + number)
        size = total // self._layout.replicas
        part = slice(self.replica * size, (self.replica + 1) * size)
        # Rank 0 holds the whole, as it may have to run the model without a pipeline.
        self._whole = [torch.as_tensor(array) for array in arrays]
        tensors = [self._placed(tensor[part]) for tensor in self._whole]
        specs = self._chain.inputs
        target = next((t for t, s in zip(tensors, specs, strict=True) if s.name == TARGET), None)
        inputs = tuple(t for t, s in zip(tensors, specs, strict=True) if s.name != TARGET)
        return inputs, target

    def _placed(self, tensor: torch.Tensor) -> torch.Tensor:
        moved = tensor.to(self._seat.device)
        precision = getattr(torch, self._seat.workload.precision)
        return moved.to(precision) if moved.is_floating_point() else moved

    def _made(self, first: int, last: int) -> list[nn.Module]:
        layers = list(self._chain.make(first, last))
        for layer in layers:
            layer.to(device=self._seat.device, dtype=getattr(torch, self._seat.workload.precision))
            layer.eval()  # neither dropout nor a batch's own statistics: answers are compared
        return layers

    def _reference(self) -> Pass:
        """Of the unpipelined model, found by rank 0 and told to all."""
        told: list[Pass | None] = [None]
        if self._seat.rank == 0:
            told = [self._unpipelined()]
        dist.broadcast_object_list(told, src=0, device=self._device)
        assert told[0] is not None
        return told[0]

    def _unpipelined(self) -> Pass:
        if not self._options["compare"]:
            return Pass(gradient_norms={}, untold="workload.options.compare is false")
        placed = [self._placed(tensor) for tensor in self._whole]
        specs = self._chain.inputs
        batch = [t for t, s in zip(placed, specs, strict=True) if s.name != TARGET]
        target = next((t for t, s in zip(placed, specs, strict=True) if s.name == TARGET), None)
        plain = self._made(0, self._chain.count)
        model = Unpipelined(self._chain, plain, self._seat.clock, self._seat.wait)
        found = model.run(batch, target, items=self._layout.items, trains=self._trains)
        for layer in plain:  # a user's layers are the very ones that the stages are made of
            layer.zero_grad(set_to_none=True)
        return found

    def _groups(self) -> None:
        """Groups of ranks: one per replica, and one per place with that place of all replicas."""
        layout = self._layout
        pipelines = [
            dist.new_group([replica * layout.ranks + place for place in range(layout.ranks)])
            for replica in range(layout.replicas)
        ]
        peers = [
            dist.new_group([replica * layout.ranks + place for replica in range(layout.replicas)])
            for place in range(layout.ranks)
        ]
        self._pipeline = pipelines[self.replica]
        self._reduction = Reduction(
            peers[self.place],
            layout.replicas,
            whole(self._config, "bucket_size"),
            overlaps=bool(setting(self._config, "overlap")),
        )

    def _build(self) -> None:
        layout, reference = self._layout, self.reference
        times_s = [f + b for f, b in zip(reference.forward_s, reference.backward_s, strict=True)]
        split = str(setting(self._config, "stage_split"))
        try:
            self.counts = layout.counts(split, self._chain.count, times_s)
        except UsageError as error:
            raise CompileError(str(error)) from None  # a user's model: its layers are known now
        layout.check_tied(self._chain.tied, self.counts)
        self._parts: dict[int, list[nn.Module]] = {}
        recomputes = self._trains and bool(setting(self._config, "activation_checkpointing"))
        is_parted = self._trains and SCHEDULES[layout.schedule].splits_backward
        stages = []
        for index in layout.stages_of(self.place):
            first = sum(self.counts[:index])
            layers = self._made(first, first + self.counts[index])
            self._parts[index] = layers
            stage = PipelineStage(
                Joined(layers, recomputes=recomputes, is_parted=is_parted),
                index,
                layout.stages,
                self._device,
                group=self._pipeline,
            )
            self._recorder.watch(stage, layout.micro_batches, self._counter(index))
            stages.append(stage)
        self._chain = replace(self._chain, make=_made_already)  # the other stages' layers go
        kind = schedule_class(layout.schedule)
        loss = self._scaled_loss if self._trains else None
        single = SCHEDULES[layout.schedule].single
        given = stages[0] if single else stages
        self._schedule = kind(given, layout.micro_batches, loss_fn=loss, scale_grads=False)
        self._returns = "return_outputs" in inspect.signature(self._schedule.step).parameters
        self._parameters = parameters_of([m for parts in self._parts.values() for m in parts])
        maker: Any = OPTIMIZERS[str(self._options["optimizer"])]
        self._optimizer: torch.optim.Optimizer | None = None
        if self._trains and self._parameters and maker is not None:
            self._optimizer = maker(self._parameters, lr=LEARNING_RATE)

    # --- running -------------------------------------------------------------------------------

    def _passes(self, *, keep: bool, reduces: bool = True) -> list[torch.Tensor]:
        """All rounds of forward and backward passes, gradients averaged over the replicas.

        Args:
            keep: Whether the loss is wanted where there is no backward pass.
            reduces: Whether gradients are averaged over replicas.
        Returns:
            The scaled losses of this rank's micro-batches, if it holds the last stage.
        """
        self._done = dict.fromkeys(self._parts, 0)
        self._reduces = reduces and self._trains and self._layout.replicas > 1
        for parameter in self._parameters:
            parameter.grad = None
        losses: list[torch.Tensor] = []
        size = self._batch[0].shape[0] // self._layout.rounds
        for number in range(self._layout.rounds):
            self._recorder.round = number
            part = slice(number * size, (number + 1) * size)
            with torch.enable_grad() if self._trains else torch.no_grad():
                losses += self._round(part, keep=keep)
        if self._reduces:
            with self._recorder.piece("R"):
                if not self._reduction.overlaps:
                    self._reduction.send(self._parameters)
                self._reduction.finish()
        return losses

    def _round(self, part: slice, *, keep: bool) -> list[torch.Tensor]:
        target = None if self._target is None else self._target[part]
        is_first, is_last = 0 in self._parts, self._layout.stages - 1 in self._parts
        inputs = [tensor[part] for tensor in self._batch] if is_first else []
        if not self._trains:
            quiet = {} if keep or not self._returns else {"return_outputs": False}
            output = self._schedule.step(*inputs, **quiet)
            return [self._chain_loss(output, target)] if keep and is_last else []
        losses: list[torch.Tensor] = []
        named: dict[str, Any] = {"return_outputs": False} if self._returns else {}
        if is_last:
            # Something that can be cut in as many pieces, where the loss takes no target.
            named["target"] = self._batch[0][part] if target is None else target
            named["losses"] = losses
        self._schedule.step(*inputs, **named)
        return losses

    def _chain_loss(self, output: Any, target: torch.Tensor | None) -> torch.Tensor:
        value = self._chain.mean_loss(output, target)
        pieces = 1 if not self._trains else self._layout.micro_batches
        scaled: torch.Tensor = value / (pieces * self._layout.rounds)
        return scaled

    def _scaled_loss(self, output: Any, target: torch.Tensor | None) -> torch.Tensor:
        """Scaled, so that gradients add up to those of the mean over the whole batch."""
        scaled = self._chain_loss(output, target if self._target is not None else None)
        self._recorder.extend()
        return scaled

    def _counter(self, stage: int) -> Callable[[str], None]:
        """Sends a stage's gradients once its last backward pass of the step has ended."""
        passes = self._layout.micro_batches * self._layout.rounds

        def ended(kind: str) -> None:
            self._done[stage] += kind in "BW"
            if self._increments is not None and kind in "BW":
                self._increments.take(stage)
            if (
                self._reduces
                and self._reduction.overlaps
                and kind in "BW"
                and self._done[stage] == passes
            ):
                self._reduction.send(parameters_of(self._parts[stage]))

        return ended

    def _mean_loss(self, losses: Sequence[torch.Tensor]) -> float | None:
        """The loss of the whole global batch, known to every rank."""
        own = sum((float(loss.detach()) for loss in losses), 0.0)
        table = torch.tensor([own], dtype=torch.float64 if self._is_cpu else torch.float32)
        table = table.to(self._seat.device)
        dist.all_reduce(table)
        mean = float(table.item()) / self._layout.replicas
        return mean if math.isfinite(mean) else None


def _made_already(first: int, last: int) -> Sequence[nn.Module]:
    raise AssertionError(f"layers {first} to {last} were asked for after the stages were built")
