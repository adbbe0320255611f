"""Models as chains of layers: the built-in ones, and a user's.

A layer takes the tensors of the one before it and returns a tensor or a tuple of them. Every layer
of a built-in is made under a seed of its own, so that a rank makes only those it holds.
"""

from __future__ import annotations

import importlib
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from autotune.core.errors import UsageError
from autotune.core.records import Config, InputSpec, WorkloadSpec
from autotune.workloads import user_code

if TYPE_CHECKING:
    import torch
    from torch import nn

TARGET = "target"
"""The input that goes to the loss instead of the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A whole or fractional number among a built-in's options."""

    default: float
    low: float
    is_whole: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltIn:
    """A built-in chain: where it is made, and what its size can be."""

    module: str
    options: Mapping[str, Option] = field(default_factory=dict)

    def numbers(self, given: Mapping[str, object]) -> dict[str, Any]:
        """The options with defaults filled in.

        Raises:
            UsageError: An option is unknown or out of its range.
        """
        values: dict[str, Any] = {name: option.default for name, option in self.options.items()}
        for name, value in given.items():
            option = self.options.get(name)
            if option is None:
                known = ", ".join(self.options)
                raise UsageError(f"workload.options.{name}: unknown option; known: {known}")
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not is_number or value < option.low or (option.is_whole and value != int(value)):  # type: ignore[operator, call-overload]
                kind = "a whole number" if option.is_whole else "a number"
                raise UsageError(
                    f"workload.options.{name}: {value!r} is not {kind} of at least {option.low:g}"
                )
            values[name] = value
        if values.get("width", 0) % values.get("heads", 1):
            raise UsageError(
                f"workload.options.heads: width {values['width']} is not divisible by "
                f"{values['heads']}"
            )
        return {n: int(v) if self.options[n].is_whole else float(v) for n, v in values.items()}


_SIZES = {
    "layers": Option(default=8, low=1),
    "width": Option(default=128, low=8),
    "heads": Option(default=4, low=1),
    "length": Option(default=32, low=1),
    "vocabulary": Option(default=512, low=2),
}

BUILT_IN: dict[str, BuiltIn] = {
    "transformer": BuiltIn(module="autotune.workloads.pipeline.models.transformer", options=_SIZES),
    "multimodal": BuiltIn(
        module="autotune.workloads.pipeline.models.multimodal",
        options={**_SIZES, "patches": Option(default=16, low=1), "patch": Option(default=8, low=1)},
    ),
    "sleeping": BuiltIn(
        module="autotune.workloads.pipeline.models.sleeping",
        options={
            "layers": Option(default=8, low=1),
            "width": Option(default=16, low=1),
            "seconds_per_item": Option(default=1e-3, low=0, is_whole=False),
            "seconds_per_call": Option(default=0.0, low=0, is_whole=False),
        },
    ),
}
"""The built-in chains by name."""

Loss = Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """A model cut into layers.

    Attributes:
        count: Number of layers.
        make: Builds the layers from one index up to another.
        inputs: Of the first layer, the target last if there is one.
        loss: Of the last layer's output and the target, the mean over the items.
        tied: Layers that share parameters.
    """

    count: int
    make: Callable[[int, int], Sequence[nn.Module]]
    inputs: tuple[InputSpec, ...]
    loss: Loss
    notes: tuple[str, ...] = ()
    tied: tuple[tuple[int, ...], ...] = ()

    @property
    def model_inputs(self) -> tuple[InputSpec, ...]:
        """Those that the first layer takes."""
        return tuple(item for item in self.inputs if item.name != TARGET)

    def mean_loss(self, output: Any, target: torch.Tensor | None) -> torch.Tensor:
        """The loss of what the last layer returned; of several tensors the first one counts.

        Raises:
            UsageError: It is not one number.
        """
        first = output[0] if isinstance(output, (tuple, list)) else output
        value = self.loss(first) if target is None else self.loss(first, target)
        shape = getattr(value, "shape", None)
        if shape is None or math.prod(shape) != 1:
            what = type(value).__name__ if shape is None else f"a tensor of shape {tuple(shape)}"
            raise UsageError(
                f"workload.model: its loss is {what}; it must be one number, the mean of the items'"
            )
        return value.reshape(())


def layer_count(spec: WorkloadSpec) -> int | None:
    """Layers of a built-in, known without building it; None of a user's model."""
    built_in = BUILT_IN.get(spec.model)
    if built_in is None:
        return None
    extra = 0 if spec.model == "sleeping" else 2  # the embedding and the head
    return int(built_in.numbers(sizes(spec))["layers"]) + extra


def sizes(spec: WorkloadSpec) -> dict[str, object]:
    """The options of the model, those of the training left out."""
    return {k: v for k, v in spec.options.items() if k not in TRAINING}


TRAINING: dict[str, object] = {"forward_only": False, "optimizer": "sgd", "compare": True}
"""Options of a pipeline beside those of its model."""


def chain(spec: WorkloadSpec, seed: int, config: Config) -> Chain:
    """The chain of a workload.

    Raises:
        UsageError: The factory or its result is wrong.
    """
    built_in = BUILT_IN.get(spec.model)
    if built_in is None:
        return _users(spec, seed, config)
    module = importlib.import_module(built_in.module)
    made: Chain = module.chain(seed=seed, **built_in.numbers(sizes(spec)))
    return made


def seeded(seed: int, layer: int) -> None:
    """Let what is drawn next depend on the seed and the layer alone."""
    import torch

    torch.manual_seed(seed * 1_000_003 + layer)


def _users(spec: WorkloadSpec, seed: int, config: Config) -> Chain:
    """A factory's `nn.Sequential` or list of modules, perhaps with its inputs.

    It is built whole on every rank, which keeps its own layers.
    """
    import torch

    factory = user_code.FactoryPath.parse(spec.model, spec.base_dir)
    assert factory is not None, "checked before"
    _seed_all(seed)
    found = user_code.call(user_code.load(factory), str(factory), sizes(spec), config)
    model, declared = user_code.split(found)
    inputs = spec.inputs or user_code.input_specs(declared, str(factory))
    is_chain = isinstance(model, (torch.nn.Sequential, torch.nn.ModuleList, list, tuple))
    if not is_chain or not all(isinstance(layer, torch.nn.Module) for layer in model):
        raise UsageError(
            f"workload.model: {factory} returned {type(model).__name__}; a pipeline is cut "
            "between the modules of an nn.Sequential, or of a list of modules"
        )
    if not inputs:
        raise UsageError(
            "workload.inputs: give the model's inputs, and the loss's target as the last one, "
            "such as [{name: x, shape: [batch, 16]}, {name: target, shape: [batch, 4]}]"
        )
    _check_inputs(inputs)
    own = getattr(model, "loss", None)
    layers = [layer for layer in model if layer is not own]  # set as an attribute it is a child
    if not layers:
        raise UsageError(f"workload.model: {factory} returned no layers at all")
    loss, note = _loss_of(model, inputs)
    return Chain(
        tied=tuple(_tied(layers)),
        count=len(layers),
        make=lambda first, last: layers[first:last],
        inputs=inputs,
        loss=loss,
        notes=(note,),
    )


def _seed_all(seed: int) -> None:
    """Every rank builds the model for itself, and must draw the same weights."""
    import numpy as np
    import torch

    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def _check_inputs(inputs: Sequence[InputSpec]) -> None:
    for item in inputs:
        if item.batch_axis != 0:
            shape = ", ".join(map(str, item.shape))
            raise UsageError(
                f"workload.inputs: {item.name} has the shape [{shape}]; a pipeline cuts an input "
                "along its first axis, which must be batch: turn it round in the first layer, and "
                "keep in the model what all items share"
            )
    if all(item.name == TARGET for item in inputs):
        raise UsageError("workload.inputs: there is only the target; give what the model takes")


def _tied(layers: Sequence[nn.Module]) -> Iterator[tuple[int, ...]]:
    """Groups of layers that have a parameter in common."""
    holders: dict[int, dict[int, None]] = {}
    for index, layer in enumerate(layers):
        for parameter in layer.parameters():
            holders.setdefault(id(parameter), {})[index] = None
    yield from dict.fromkeys(tuple(held) for held in holders.values() if len(held) > 1)


def _loss_of(model: Any, inputs: Sequence[InputSpec]) -> tuple[Loss, str]:
    """The model's own `loss(output, target)`, or what fits the target's type."""
    own = getattr(model, "loss", None)
    if callable(own):
        return own, "loss: the model's own"
    target = next((item for item in inputs if item.name == TARGET), None)
    if target is not None and "int" in target.dtype:
        return cross_entropy, "loss: cross entropy, from the target's type"
    if target is not None:
        return mean_squares, "loss: mean of squared differences, from the target's type"
    return mean_squares, "loss: mean of the squared output, as there is no target"


def cross_entropy(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Over the last axis, the mean over all others."""
    import torch.nn.functional as functional

    return functional.cross_entropy(output.flatten(0, -2), target.flatten())


def mean_squares(output: torch.Tensor, target: torch.Tensor | None = None) -> torch.Tensor:
    """Mean of the squares of the difference, of the output itself without a target."""
    difference = output if target is None else output - target
    if not difference.is_floating_point():
        difference = difference.double()
    squares: torch.Tensor = difference.square().mean()
    return squares
