"""The fixture's switch: with STUB_CANN_MATH=1, operators on the stub NPU are computed on the host.

Python imports this file by its name when the folder is on PYTHONPATH.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


class _AfterTorchNpu(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Lets torch_npu be imported as usual and then installs the mode."""

    _is_looking = False

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "torch_npu" or self._is_looking:
            return None
        self._is_looking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._is_looking = False
        if spec is None or spec.loader is None:
            return None
        self._inner, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._inner.exec_module(module)
        import stub_cann_math

        stub_cann_math.install()


if os.environ.get("STUB_CANN_MATH") == "1":
    sys.meta_path.insert(0, _AfterTorchNpu())
