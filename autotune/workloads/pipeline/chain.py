"""Models as chains of layers: the built-in ones, and a user's.

A layer takes the tensors of the one before it and returns a tensor or a tuple of them. Every layer
of a built-in is made under a seed of its own, so that a rank makes only those it holds.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
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
    """

    count: int
    make: Callable[[int, int], Sequence[nn.Module]]
    inputs: tuple[InputSpec, ...]
    loss: Loss
    notes: tuple[str, ...] = ()

    @property
    def model_inputs(self) -> tuple[InputSpec, ...]:
        """Those that the first layer takes."""
        return tuple(item for item in self.inputs if item.name != TARGET)


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
    torch.manual_seed(seed)
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
    layers = list(model)
    loss, note = _loss_of(model, inputs)
    return Chain(
        count=len(layers),
        make=lambda first, last: layers[first:last],
        inputs=inputs,
        loss=loss,
        notes=(note,),
    )


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
    squares: torch.Tensor = (output if target is None else output - target).square().mean()
    return squares
