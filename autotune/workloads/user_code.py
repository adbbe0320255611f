"""A user's `path.py:factory`: looked at without running it, and loaded under a name of its own."""

from __future__ import annotations

import ast
import difflib
import hashlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.core.errors import UsageError
from autotune.core.records import Config, InputSpec

FILE_BYTES_LIMIT = 4 * 2**20
NEIGHBOUR_LIMIT = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class FactoryPath:
    """Where a factory is: `path.py:name`."""

    path: Path
    name: str

    @classmethod
    def parse(cls, text: str, base_dir: str = "") -> FactoryPath | None:
        """Split "path.py:factory"; None if it is not of that form.

        Args:
            base_dir: Directory that a relative path starts from.
        """
        path, colon, name = text.rpartition(":")
        if not colon or not path.endswith(".py"):
            return None
        return cls(path=Path(base_dir, path).expanduser(), name=name)

    def __str__(self) -> str:
        return f"{self.path}:{self.name}"


def check(factory: FactoryPath) -> None:
    """Find what is wrong with a factory without running its file.

    Raises:
        UsageError: No such file, not Python, no such name, or surely no callable.
    """
    tree = _parse(factory.path)
    bound = dict(_bound_names(tree.body))
    if "*" in bound or "__getattr__" in bound:
        return  # names may come from elsewhere; only running it can tell
    if factory.name not in bound:
        functions = [name for name, node in bound.items() if isinstance(node, ast.FunctionDef)]
        raise UsageError(
            f"workload.model: {factory.path} has no {factory.name!r}"
            + _suggestion(factory.name, functions)
        )
    if isinstance(bound[factory.name], _LITERALS):
        raise UsageError(f"workload.model: {factory} is not callable; it must be a function")


def imported_modules(path: Path) -> tuple[str, ...]:
    """Modules that a file imports at its top level, as written."""
    modules: dict[str, None] = {}
    for node in _parse(path).body:
        if isinstance(node, ast.Import):
            modules.update(dict.fromkeys(alias.name for alias in node.names))
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            modules[node.module] = None
    return tuple(modules)


def neighbours(path: Path) -> tuple[Path, ...]:
    """The files beside a model's file that it imports, directly or through each other.

    Imports are read, not run: one whose name is put together at run time is not seen. At most
    `NEIGHBOUR_LIMIT` files.
    """
    found = [path]
    for file in found:  # grows while it is walked
        for parts in _imports(file, path.parent):
            for source in _sources(parts, path.parent):
                if len(found) <= NEIGHBOUR_LIMIT and source not in found and source.is_file():
                    found.append(source)
    return tuple(found[1:])


def _sources(module: tuple[str, ...], root: Path) -> Iterator[Path]:
    """Where a module and the packages around it would be."""
    for end in range(1, len(module) + 1):
        place = root.joinpath(*module[:end])
        yield place.with_name(f"{place.name}.py")
        yield place / "__init__.py"


def _imports(file: Path, root: Path) -> Iterator[tuple[str, ...]]:
    """What a file imports anywhere in it, each from the folder `root` on."""
    try:
        tree = _parse(file)
    except UsageError:
        return  # whoever imports it will say so
    package = file.parent.relative_to(root).parts
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (tuple(alias.name.split(".")) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            module = (*above, *(node.module or "").split("."))
            base = tuple(part for part in module if part)
            yield from ((*base, alias.name) for alias in node.names)


def load(factory: FactoryPath) -> Callable[..., Any]:
    """Import the file under a unique name and return its factory.

    Its folder comes first on the import path, so that it finds its neighbours.

    Raises:
        UsageError: The file cannot be imported, or has no such callable.
    """
    path = factory.path.resolve()
    name = f"autotune_user_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    module = sys.modules.get(name)
    if module is None:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None, "a .py file has a loader"
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # dataclasses and pickling look the module up
        sys.path.insert(0, str(path.parent))
        try:
            spec.loader.exec_module(module)
        except MemoryError:
            raise
        except Exception as error:
            del sys.modules[name]
            reason = f"{type(error).__name__}: {error}"
            raise UsageError(f"workload.model: importing {path} failed: {reason}") from error
    found = getattr(module, factory.name, None)
    if found is None:
        raise UsageError(f"workload.model: {path} has no {factory.name!r}")
    if not callable(found):
        raise UsageError(f"workload.model: {factory} is a {type(found).__name__}, not a function")
    result: Callable[..., Any] = found
    return result


def call(
    function: Callable[..., Any], name: str, options: Mapping[str, object], config: Config
) -> Any:
    """Call a factory with those of its parameters that are known.

    Args:
        options: Keywords from the space file's `workload.options`; `config` is the configuration.
    Raises:
        UsageError: It needs a parameter nobody gives, or does not know an option.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some builtins tell nothing
        return function(**options)
    offered = {"config": config, **options}
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    named = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    # nn.Module's own constructor takes any keyword, and refuses each: config goes by name alone.
    given = {k: v for k, v in offered.items() if k in named or (takes_any and k in options)}
    unknown = [key for key in options if key not in given]
    if unknown:
        raise UsageError(
            f"workload.options.{unknown[0]}: {name} takes no {unknown[0]!r}"
            + _suggestion(unknown[0], list(named))
        )
    missing = [
        p.name
        for p in parameters
        if p.default is p.empty
        and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
        and (p.name not in given or p.kind is p.POSITIONAL_ONLY)
    ]
    if missing:
        raise UsageError(
            f"workload.model: {name} needs {missing[0]!r}, which is neither config "
            "nor a key of workload.options"
        )
    return function(**given)


def split(built: Any) -> tuple[Any, Any]:
    """Part a factory's result into the model and the inputs it declares, None if it does not."""
    if isinstance(built, tuple) and len(built) == 2:
        return built
    return built, getattr(built, "inputs", None)


def no_model(found: Any, name: str) -> UsageError:
    """What to say of a factory whose result cannot be called."""
    return UsageError(
        f"workload.model: {name} returned {type(found).__name__}; "
        "expected a module, a function, or a pair (module, inputs)"
    )


def input_specs(declared: Any, name: str) -> tuple[InputSpec, ...]:
    """The inputs that a factory declares beside its model.

    Raises:
        UsageError: One is no mapping such as {name: x, shape: [batch, 16]}.
    """
    if not isinstance(declared, (list, tuple)):
        return ()
    return tuple(_input_spec(item, name) for item in declared)


def _input_spec(item: Any, name: str) -> InputSpec:
    if isinstance(item, InputSpec):
        return item
    if isinstance(item, Mapping):
        try:
            return InputSpec(**{**item, "shape": tuple(item["shape"])})
        except (KeyError, TypeError) as error:
            raise UsageError(
                f"workload.model: {name} declares the input {dict(item)}; expected "
                "name, shape and perhaps dtype, low, high"
            ) from error
    raise UsageError(
        f"workload.model: {name} declares an input as {type(item).__name__}; expected a mapping "
        "such as {name: x, shape: [batch, 16]}"
    )


_LITERALS = (ast.Constant, ast.List, ast.Tuple, ast.Dict, ast.Set, ast.JoinedStr)


def _parse(path: Path) -> ast.Module:
    if not path.is_file():
        raise UsageError(f"workload.model: there is no file {path.absolute()}")
    if path.stat().st_size > FILE_BYTES_LIMIT:
        raise UsageError(f"workload.model: {path} is larger than {FILE_BYTES_LIMIT} bytes")
    try:
        return ast.parse(path.read_bytes(), filename=str(path))
    except SyntaxError as error:
        raise UsageError(f"workload.model: {path}:{error.lineno}: {error.msg}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"workload.model: {path} is not Python: {error}") from error


def _bound_names(body: list[ast.stmt]) -> Iterator[tuple[str, ast.AST]]:
    """Names that statements at a module's top level bind, each with what it is bound to."""
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name, node
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                yield alias.asname or alias.name.partition(".")[0], node
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                is_name = isinstance(target, ast.Name)
                for part in ast.walk(target):
                    if isinstance(part, ast.Name):
                        yield part.id, (node.value or node) if is_name else node
        else:  # if, try, with, for: what they hold may be bound
            for attribute in ("body", "orelse", "finalbody"):
                yield from _bound_names(getattr(node, attribute, []))
            for handler in getattr(node, "handlers", []):
                yield from _bound_names(handler.body)


def _suggestion(name: str, known: list[str]) -> str:
    """The nearest known name, else all of them, as the end of a message."""
    nearest = difflib.get_close_matches(name, known, n=1)
    if nearest:
        return f"; did you mean {nearest[0]!r}?"
    return f"; known: {', '.join(known[:20])}" if known else ""
