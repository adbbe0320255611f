"""The layers of the architecture, enforced: who may import whom, and who may print."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "autotune"

MAY_IMPORT = {
    "core": set(),
    "programs": set(),  # what export hands out: it stands alone
    "space": {"core"},
    "devices": {"core"},
    "workloads": {"core", "space", "devices"},
    "measure": {"core", "space", "devices"},
    "trial": {"core", "space", "devices", "workloads", "measure"},
    "search": {"core", "space", "devices", "workloads", "measure", "trial"},
    "results": {"core", "measure"},
    "apps": {
        "core", "space", "devices", "workloads", "measure", "trial", "search", "results", "version",
    },
    "cli": {
        "core", "space", "devices", "workloads", "measure", "trial", "search", "results", "apps",
        "version", "__main__",
    },
}  # fmt: skip
FRAMEWORKS = {"torch", "torch_npu", "transformers", "onnxruntime", "openvino", "mindspore"}
FILES = sorted(PACKAGE.rglob("*.py"))


def layer_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path, *, top_level: bool = False) -> Iterator[tuple[str, int]]:
    """Modules that a file imports at run time, with their lines."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in _statements(tree) if top_level else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            assert node.module is not None
            yield node.module, node.lineno
            yield from ((f"{node.module}.{alias.name}", node.lineno) for alias in node.names)


def _statements(tree: ast.Module) -> Iterator[ast.AST]:
    """What runs when the module is imported: not functions, not `if TYPE_CHECKING`."""
    for node in tree.body:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        if not isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield from ast.walk(node)


def test_every_layer_is_declared() -> None:
    layers = {layer_of(path) for path in FILES} - {"__init__", "__main__", "version"}
    assert layers <= set(MAY_IMPORT)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_downwards(path: Path) -> None:
    layer = layer_of(path)
    if layer in {"__init__", "__main__"}:
        return  # the public face, whose imports are lazy
    allowed = MAY_IMPORT.get(layer, set()) | {layer}
    for module, line in imports(path):
        if module.startswith("autotune."):
            target = module.split(".")[1]
            assert target in allowed, f"{path}:{line}: {layer} must not import {target}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_heavy_packages_stay_where_they_belong(path: Path) -> None:
    layer = layer_of(path)
    for module, line in imports(path):
        root = module.split(".")[0]
        if root == "optuna":
            assert layer == "search", f"{path}:{line}: only search imports optuna"
        if root in FRAMEWORKS:
            assert layer in {"devices", "workloads", "programs"}, (
                f"{path}:{line}: {root} in {layer}"
            )
    for module, line in imports(path, top_level=True):
        root = module.split(".")[0]
        if layer != "workloads" or not {"models", "ranks"} & set(path.parts):
            assert root not in FRAMEWORKS, f"{path}:{line}: {root} must be imported on use"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_only_the_command_line_prints(path: Path) -> None:
    if layer_of(path) in {"cli", "programs"}:
        return
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in {"print", "input"}, f"{path}:{node.lineno}"
