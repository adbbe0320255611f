"""PyTorch modules: built-in models by name, and a user's `path.py:factory`."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import inspect
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.core.errors import CompileError, UnavailableError, UsageError
from autotune.core.records import FILE_RUNTIMES, Config, InputSpec, WorkloadSpec
from autotune.core.text import describe
from autotune.workloads import user_code
from autotune.workloads.base import Context, Program
from autotune.workloads.calling import caller, required_parameters
from autotune.workloads.data import DTYPES, make_requests
from autotune.workloads.lengths import lengths_of, with_lengths

if TYPE_CHECKING:
    import torch
    from torch import nn

MODELS: dict[str, str] = {
    name: f"autotune.workloads.models.{name}"
    for name in ("mlp", "dlrm", "resnet50", "bert_base", "minilm", "yolov5s")
}
"""Built-in models; a module's `build(size)` returns the network and its inputs."""

PACKAGES: dict[str, tuple[str, ...]] = {
    "resnet50": ("transformers",),
    "bert_base": ("transformers",),
    "minilm": ("transformers",),
}
"""What a built-in needs beside torch."""

PRELOADS: dict[str, tuple[str, ...]] = {
    # transformers loads its parts on use: the part itself must be named.
    "resnet50": ("transformers.models.resnet.modeling_resnet",),
    "bert_base": ("transformers.models.bert.modeling_bert",),
    "minilm": ("transformers.models.bert.modeling_bert",),
}

LENGTHS = {"bert_base": 512, "minilm": 512}
"""The longest sequence of the built-ins that have the option `length`."""

SIZES = ("full", "small")
PRECISIONS = ("float32", "bfloat16", "float16")

PRELOADED_ROOTS = ("torch", "transformers", "numpy")
"""Packages of a user's file that are known to be safe to import before a fork."""

IMAGE_SIZE = 224  # assumed for a model that begins with a convolution


# --- in the parent, without a framework --------------------------------------------------------


def check(spec: WorkloadSpec) -> None:
    """Find mistakes early; imports neither torch nor the user's file.

    Raises:
        UsageError: Unknown model, precision, size, dtype; a missing file or factory.
        UnavailableError: A package is missing.
    """
    if spec.precision not in PRECISIONS:
        raise UsageError(
            f"workload.precision: unknown precision {spec.precision!r}; "
            f"known: {', '.join(PRECISIONS)}"
        )
    for item in spec.inputs:
        if item.dtype not in DTYPES:
            raise UsageError(
                f"workload.inputs: {item.name}: unknown dtype {item.dtype!r}; "
                f"known: {', '.join(DTYPES)}"
            )
    factory = user_code.FactoryPath.parse(spec.model, spec.base_dir)
    if others := FILE_RUNTIMES.get(Path(spec.model).suffix):
        raise UsageError(
            f"workload.runtime: torch cannot run {spec.model}; {' or '.join(others)} can"
        )
    if factory is not None:
        user_code.check(factory)
    else:
        _check_built_in(spec)
    for package in ("torch", *PACKAGES.get(spec.model, ())):
        if importlib.util.find_spec(package) is None:
            raise UnavailableError(
                f"workload.model: {spec.model} needs the package {package}; "
                "install it with: pip install 'autotune-npu[cpu]'"
            )


def _check_built_in(spec: WorkloadSpec) -> None:
    if spec.model not in MODELS:
        raise UsageError(
            f"workload.model: no built-in model {spec.model!r} (there are {', '.join(MODELS)}), "
            "and it is not of the form path.py:factory"
        )
    known = ("size", "length") if spec.model in LENGTHS else ("size",)
    unknown = sorted(set(spec.options) - set(known))
    if unknown:
        raise UsageError(
            f"workload.options.{unknown[0]}: unknown option of {spec.model}; "
            f"known: {', '.join(known)}"
        )
    size, length = spec.options.get("size", SIZES[0]), spec.options.get("length", 1)
    if size not in SIZES:
        raise UsageError(f"workload.options.size: unknown size {size!r}; known: {', '.join(SIZES)}")
    longest = LENGTHS.get(spec.model, 1)
    if spec.lengths is not None and spec.model in LENGTHS:
        if "length" in spec.options:
            raise UsageError("workload.options.length: lengths says it already; leave one out")
        if spec.lengths.longest > longest:
            raise UsageError(
                f"workload.lengths: {spec.lengths.longest} is above the {longest} of {spec.model}"
            )
    if not isinstance(length, int) or not 1 <= length <= longest:
        raise UsageError(
            f"workload.options.length: {length!r} is not a whole number from 1 to {longest}"
        )


def preload(spec: WorkloadSpec) -> tuple[str, ...]:
    """Modules that a zygote imports: torch, a built-in's own file, a user's main imports."""
    factory = user_code.FactoryPath.parse(spec.model, spec.base_dir)
    if factory is None:
        return ("torch", MODELS[spec.model], *PRELOADS.get(spec.model, ()))
    imported = user_code.imported_modules(factory.path)
    known = [name for name in imported if name.partition(".")[0] in PRELOADED_ROOTS]
    return tuple(dict.fromkeys(["torch", *known]))


# --- in the child ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """A model that is ready for inference.

    Attributes:
        model: An nn.Module in evaluation mode, or any function.
        call: Takes the tensors in the order of `inputs` and hands them on as the model wants them.
        notes: What was inferred.
    """

    model: Callable[..., Any]
    call: Callable[..., Any]
    inputs: tuple[InputSpec, ...]
    notes: tuple[str, ...] = ()


Compile = Callable[[Callable[..., Any], Sequence[InputSpec]], tuple[Callable[..., Any], float]]
"""From a call and its inputs to a faster call, and the seconds that took."""


def program(context: Context, compile_: Compile | None = None) -> Program:
    """Build the model on the instance's device, ready for inference.

    Args:
        compile_: What makes something faster of the call; None: as the configuration says.
    Raises:
        UsageError: The factory, its result or its inputs are wrong.
        UnavailableError: A package is missing.
        CompileError: It was to be compiled, and cannot be.
    """
    check(context.workload)
    import torch

    config, device = context.config, context.framework_device
    built = build(context.workload, seed=context.seed, config=config, device=device)
    call, inputs, compile_s = built.call, built.inputs, 0.0
    if config.get("torch.memory_format", "contiguous") == "channels_last":
        _module(built.model, "params.torch.memory_format").to(memory_format=torch.channels_last)
    if compile_ is None and config.get("torch.compile", False):
        compile_ = functools.partial(_compiled, context=context)
    if compile_ is not None:
        call, compile_s = compile_(call, inputs)
    return Program(
        inputs=inputs,
        run=inference(call),
        takes_part_batches=not compile_s,
        precision=_precision_of(built.model) or context.workload.precision,
        compile_s=compile_s,
        versions={"torch": str(torch.__version__)},
        notes=built.notes,
    )


def build(spec: WorkloadSpec, *, seed: int, config: Config, device: str) -> Built:
    """Build a model with random weights of a seed, in the precision that is asked for.

    Modules are put into evaluation mode and need no gradients; outputs are left as they are.

    Args:
        config: For a factory that asks for it.
        device: What torch calls it.
    Raises:
        UsageError: The factory, its result or its inputs are wrong.
    """
    import torch

    _seed_everything(seed)
    model, declared = _split(_made(spec, config), spec.model)
    notes: tuple[str, ...] = ()
    inputs = spec.inputs or declared
    if not inputs:
        inputs, notes = _inferred(model)
    if isinstance(model, torch.nn.Module):
        _for_inference(model)
        model.to(device=device)
    if spec.precision != "float32":
        _module(model, "workload.precision").to(dtype=getattr(torch, spec.precision))
    inputs = tuple(_in_precision(item, spec.precision) for item in inputs)
    inputs = with_lengths(inputs, spec.lengths)
    call = caller(model, [item.name for item in inputs], spec.call)
    return Built(model=model, call=call, inputs=inputs, notes=notes)


def _for_inference(model: nn.Module) -> None:
    """Evaluation mode and no gradients, for scripted and exported modules too.

    Raises:
        UsageError: It has no forward, or parameters whose shapes are not known yet.
    """
    import torch
    from torch.nn.parameter import is_lazy

    # Looked up statically: a scripted module's class has a forward that only its objects know.
    if inspect.getattr_static(model, "forward") is torch.nn.Module.forward:
        raise UsageError(f"workload.model: a {type(model).__name__} has no forward to be called")
    with contextlib.suppress(NotImplementedError):  # an exported program is in it for good
        model.eval()
    for parameter in model.parameters():
        if is_lazy(parameter):
            raise UsageError(
                "workload.model: parameters of the model get their shapes at its first call; "
                "call it once in the factory"
            )
        parameter.requires_grad_(False)


def _seed_everything(seed: int) -> None:
    """Weights and random draws repeat, whichever of the usual generators a factory uses."""
    import numpy as np
    import torch

    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def _precision_of(model: Callable[..., Any]) -> str:
    """The type of most of a module's numbers, empty if it has none of its own; int8 if quantised.

    What its code casts to on the way is not seen.
    """
    import torch

    if not isinstance(model, torch.nn.Module):
        return ""
    if any("quantized" in type(module).__module__ for module in model.modules()):
        return "int8"  # its weights are packed away
    counts: Counter[torch.dtype] = Counter()
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.is_floating_point():
            counts[tensor.dtype] += tensor.numel()
    return str(counts.most_common(1)[0][0]).removeprefix("torch.") if counts else ""


def _module(model: Callable[..., Any], key: str) -> nn.Module:
    import torch

    if not isinstance(model, torch.nn.Module):
        raise UsageError(f"{key}: needs an nn.Module, not a function")
    return model


def _compiled(
    call: Callable[..., Any], inputs: Sequence[InputSpec], context: Context
) -> tuple[Callable[..., Any], float]:
    """The call compiled for the configuration's one shape, and the seconds that took."""
    import torch

    size = context.config.batch_size // context.config.micro_batch_count
    (request,) = make_requests(inputs, size, 1, context.seed)
    tensors = [
        torch.as_tensor(array).to(context.framework_device, getattr(torch, item.dtype))
        for array, item in zip(request, inputs, strict=True)
    ]
    began_s = context.clock.now_s()
    try:
        torch._inductor.config.compile_threads = 1  # no pool of processes beside the instance
        compiled = torch.compile(call, dynamic=lengths_of(inputs) is not None)
        inference(compiled)(*tensors)
    except Exception as error:
        if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
            raise
        raise CompileError(f"torch.compile failed: {describe(error)}") from error
    return compiled, context.clock.now_s() - began_s


def _made(spec: WorkloadSpec, config: Config) -> Any:
    factory = user_code.FactoryPath.parse(spec.model, spec.base_dir)
    if factory is None:
        options = dict(spec.options)
        if spec.lengths is not None and spec.model in LENGTHS:
            options["length"] = "length"
        return importlib.import_module(MODELS[spec.model]).build(**options)
    import torch

    found = user_code.load(factory)
    if isinstance(found, torch.nn.Module):
        return found  # the model itself, made when the file was imported
    return user_code.call(found, str(factory), spec.options, config)


def _split(built: Any, name: str) -> tuple[Callable[..., Any], tuple[InputSpec, ...]]:
    """Part a factory's result into the model and the inputs it declares, if any."""
    import torch

    model, declared = user_code.split(built)
    if isinstance(model, torch.export.ExportedProgram):
        model = model.module()
    if not callable(model):
        raise user_code.no_model(model, name)
    return model, user_code.input_specs(declared, name)


def _in_precision(item: InputSpec, precision: str) -> InputSpec:
    return replace(item, dtype=precision) if item.dtype == "float32" else item


def inference(call: Callable[..., Any]) -> Callable[..., Any]:
    """The model under inference mode, which costs less than recording for gradients."""
    import torch

    inference_mode = torch.inference_mode

    def run(*tensors: torch.Tensor) -> Any:
        try:
            with inference_mode():
                return call(*tensors)
        except RuntimeError as error:
            advice = _advice(describe(error))
            if not advice:
                raise
            raise UsageError(f"workload.model: {advice} ({describe(error)})") from error

    return run


_ADVICE = {
    "does not require grad": "the model takes gradients inside its call; what is measured is "
    "inference, where nothing is recorded for them",
    "Inference tensors": "the model takes gradients inside its call, or keeps tensors of one call "
    "for the next in a way that inference mode forbids",
    "on the same device": "a tensor of the model is not on its device; one that is no parameter "
    "must be registered as a buffer (register_buffer) to move with the model",
}


def _advice(text: str) -> str:
    return next((advice for sign, advice in _ADVICE.items() if sign in text), "")


# --- inputs nobody declared --------------------------------------------------------------------


def _inferred(model: Callable[..., Any]) -> tuple[tuple[InputSpec, ...], tuple[str, ...]]:
    """Guess the one input of a module from its first layer, and say so.

    Raises:
        UsageError: It has several inputs, or no layer that tells.
    """
    import torch

    problem = "it has no layer that tells their shape"
    if isinstance(model, torch.nn.Module):
        if len(required_parameters(model.forward)) > 1:
            problem = "it takes several"
        else:
            found = next(filter(None, map(_first_input, model.modules())), None)
            if found is not None:
                return (found,), (f"input inferred from the first layer: {list(found.shape)}",)
    raise UsageError(
        f"workload.inputs: the inputs of the model cannot be inferred, since {problem}; "
        "give them, such as inputs: [{name: x, shape: [batch, 16]}]"
    )


def _first_input(layer: nn.Module) -> InputSpec | None:
    from torch import nn

    if isinstance(layer, nn.Linear):
        return InputSpec(name="x", shape=("batch", layer.in_features))
    if isinstance(layer, (nn.Embedding, nn.EmbeddingBag)):
        shape = ("batch",) if isinstance(layer, nn.Embedding) else ("batch", 1)
        return InputSpec(name="ids", shape=shape, dtype="int64", low=0, high=layer.num_embeddings)
    if isinstance(layer, nn.Conv2d):
        return InputSpec(name="x", shape=("batch", layer.in_channels, IMAGE_SIZE, IMAGE_SIZE))
    return None
