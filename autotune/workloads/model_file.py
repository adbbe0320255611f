"""What is needed of a model's file, whatever its format: its inputs and the files beside it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from autotune.core.errors import UsageError

Dim = int | str | None
"""A size, the name of a dynamic axis, or None for one without a name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphInput:
    """An input of the graph that is no weight, or an output.

    Attributes:
        dtype: The name of a type, or what else it is: "sequence", "map", "optional", "type 17".
        dims: None if the file does not even say how many axes there are.
    """

    name: str
    dtype: str
    dims: tuple[Dim, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFile:
    """A model's file.

    Attributes:
        precision: The type that most of the weights have; "float32" if there are none, or if it
            is the runtime that decides in which it computes.
        external: Files with weights, relative to the model's directory.
        outputs: Where the file says them.
    """

    path: Path
    inputs: tuple[GraphInput, ...]
    precision: str = "float32"
    external: tuple[str, ...] = ()
    outputs: tuple[GraphInput, ...] = ()


def complete(file: ModelFile) -> ModelFile:
    """The file, once its weights are there.

    Raises:
        UsageError: A file with weights is not where it should be, beside the model or below.
    """
    for name in file.external:
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise UsageError(
                f"workload.model: {file.path} keeps weights in {name}, outside of its directory"
            )
        if not (file.path.parent / name).is_file():
            raise UsageError(
                f"workload.model: {file.path} keeps weights in {name}, which is not beside it"
            )
    return file
