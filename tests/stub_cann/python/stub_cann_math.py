"""Operators on the stub NPU, computed on the host.

What moves or makes memory goes to the unmodified torch_npu and from there to the stub runtime:
allocations, copies to and from the device, views. Everything else is computed by torch's CPU
kernels right in the "device" memory, which is host memory, after the current stream has run dry.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

_MEMORY = {
    "aten::empty.memory_format", "aten::empty_strided", "aten::set_.source_Storage",
    "aten::set_.source_Storage_storage_offset", "aten::record_stream", "aten::is_pinned",
    "aten::_pin_memory", "aten::resize_", "aten::_foreach_copy_",
}  # fmt: skip
_COPIES = {"aten::copy_", "aten::_to_copy"}
_MAX_STORAGES = 4096


@functools.cache
def _is_view(func: torch._ops.OpOverload) -> bool:
    returned = func._schema.returns
    return bool(returned) and all(r.alias_info and not r.alias_info.is_write for r in returned)


@functools.lru_cache(_MAX_STORAGES)
def _host_storage(address: int, size_bytes: int) -> torch.UntypedStorage:
    buffer = (ctypes.c_uint8 * size_bytes).from_address(address)
    return torch.frombuffer(buffer, dtype=torch.uint8).untyped_storage()


def _on_host(tensor: torch.Tensor) -> torch.Tensor:
    """A CPU tensor over the same memory."""
    host = torch.empty(0, dtype=tensor.dtype)
    storage = tensor.untyped_storage()
    if storage.nbytes() == 0:
        return host.new_empty(tensor.shape)
    shared = _host_storage(storage.data_ptr(), storage.nbytes())
    return host.set_(shared, tensor.storage_offset(), tensor.shape, tensor.stride())


def _is_npu(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "npu"


class MathOnHost(TorchDispatchMode):
    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        name = func._schema.name + (
            f".{func._overloadname}" if func._overloadname != "default" else ""
        )
        device = kwargs.get("device")
        makes_npu = device is not None and torch.device(device).type == "npu"
        tensors = [v for v in torch.utils._pytree.arg_tree_leaves(*args, **kwargs) if _is_npu(v)]
        if not (tensors or makes_npu) or name in _MEMORY or _is_view(func):
            return func(*args, **kwargs)
        if name in _COPIES and _is_plain_copy(name, args, kwargs):
            return func(*args, **kwargs)
        return self._compute(func, args, kwargs, tensors, makes_npu)

    def _compute(
        self, func: Any, args: Any, kwargs: dict[str, Any], tensors: list[Any], makes_npu: bool
    ) -> Any:
        torch.npu.current_stream().synchronize()
        originals: dict[int, torch.Tensor] = {}

        def down(value: Any) -> Any:
            if not _is_npu(value):
                return value
            host = _on_host(value)
            originals[id(host)] = value
            return host

        host_args, host_kwargs = tree_map(down, args), tree_map(down, kwargs)
        target = tensors[0].device if tensors else torch.device(kwargs["device"])
        if makes_npu:
            host_kwargs["device"] = "cpu"
        goes_down = "device" in kwargs and not makes_npu and kwargs["device"] is not None

        def up(value: Any) -> Any:
            if not isinstance(value, torch.Tensor) or goes_down:
                return value
            if id(value) in originals:
                return originals[id(value)]
            made = torch.empty_strided(
                value.shape, value.stride(), dtype=value.dtype, device=target
            )
            _on_host(made).copy_(value)
            return made

        return tree_map(up, func(*host_args, **host_kwargs))


def _is_plain_copy(name: str, args: Any, kwargs: Mapping[str, Any]) -> bool:
    """A transfer between host and device that needs no kernel."""
    if name == "aten::copy_":
        target, source = args[0], args[1]
        return (
            target.device.type != source.device.type
            and target.dtype == source.dtype
            and target.is_contiguous()
            and source.is_contiguous()
            and target.shape == source.shape
        )
    source, dtype = args[0], kwargs.get("dtype") or args[0].dtype
    device = torch.device(kwargs.get("device") or source.device)
    return device.type != source.device.type and dtype == source.dtype and source.is_contiguous()


def install() -> None:
    """Enter the mode here and in every thread that starts from now on: it is thread-local."""
    MathOnHost().__enter__()
    run = threading.Thread.run

    def run_in_mode(thread: threading.Thread) -> None:
        with MathOnHost():
            run(thread)

    threading.Thread.run = run_in_mode  # type: ignore[method-assign]
