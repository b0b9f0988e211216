"""A pretended device: tensors that say they are on `pretended:0` and keep their numbers in a tensor of the CPU.

It makes mistakes loud that only a real accelerator shows: an operator over tensors of host and device, a host tensor
given to the device's process groups, a group made after the start. What runs is counted: kernels, waits of the host,
copies. Ranks are real and talk by gloo.
"""

from __future__ import annotations

import collections
import json
import os
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

from shardlang.runtime import device as devices
from shardlang.runtime.comm.mesh import world
from shardlang.runtime.device import Cpu

NAME = "pretended"
aten = torch.ops.aten
# What a GPU answers to the host by waiting until all that it was given is done.
WAITS = {
    aten._local_scalar_dense.default, aten.nonzero.default, aten._unique2.default, aten.unique_dim.default,
    aten.masked_select.default, aten.equal.default,
}  # fmt: skip
# What launches no kernel beside views.
FREE = {
    "detach", "empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "alias", "lift_fresh",
    "record_stream", "set_", "_unsafe_view", "_reshape_alias",
}  # fmt: skip


class _Backend(backend_registration._DummyBackendModule):  # type: ignore[misc]
    """What torch asks of a backend's module, with nothing behind it."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def get_rng_state(self, device: Any = 0) -> Tensor:
        return torch.zeros(8, dtype=torch.uint8)

    def set_rng_state(self, state: Tensor, device: Any = 0) -> None:
        """There is none."""

    def set_device(self, device: Any) -> None:
        """There is one."""

    def synchronize(self, device: Any = None) -> None:
        """Nothing is under way."""


backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=_Backend())
DEVICE = torch.device(NAME, 0)


class Counts:
    """What this process's device has done: kernels by operator, waits and copies by place, groups made, and how many
    it had at most at one time; products while a sum of 4 bytes an element, as gradients are, was under way; how many of
    these are.
    """

    def __init__(self) -> None:
        self.kernels: collections.Counter[str] = collections.Counter()
        self.waits: collections.Counter[str] = collections.Counter()
        self.copies: collections.Counter[str] = collections.Counter()
        self.groups: list[str] = []
        self.groups_now = self.most_groups = 0
        self.products_beside = self.sums_under_way = 0
        self.rounds = False


counts = Counts()


def _place() -> str:
    """The line of the runtime or of the emitted program that is at work."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if "shardlang/runtime" in file or file.endswith("main.py"):
            return f"{file.rpartition('/')[2]}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return "?"


class OnDevice(Tensor):
    """A tensor of the device; `inner` has its numbers."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> OnDevice:
        made = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, inner.shape, strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype,
            layout=inner.layout, device=DEVICE, requires_grad=False,
        )  # fmt: skip
        made.inner = inner
        return made

    def tolist(self) -> Any:
        counts.waits[f"tolist at {_place()}"] += 1
        return self.inner.tolist()

    def __repr__(self) -> str:  # type: ignore[override]
        return f"OnDevice({self.inner})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class Running(TorchDispatchMode):
    """While it is on, tensors that are made on the device are pretended ones."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Not, as that imports torch's compiler, for seconds."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


def _inner(x: Any) -> Any:
    return x.inner if isinstance(x, OnDevice) else x


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]
    here = [t for t in tensors if isinstance(t, OnDevice)]
    target = kwargs.get("device")
    goes_here = bool(here) if target is None else torch.device(target).type == NAME
    _count(func, args, kwargs, tensors, here, goes_here)
    plain = {**kwargs, **({} if target is None else {"device": torch.device("cpu")})}
    found = func(*tree_map(_inner, args), **tree_map(_inner, plain))
    known = {id(t.inner): t for t in here}

    def wrapped(t: Any) -> Any:
        if not isinstance(t, Tensor) or id(t) in known:
            return known.get(id(t), t)
        return OnDevice(t) if goes_here and not isinstance(t, OnDevice) else t

    found = tree_map(wrapped, found)
    moved = func in (aten._to_copy.default, aten.copy_.default)
    return found if moved or not here else return_and_correct_aliasing(func, args, kwargs, found)


def _count(func: Any, args: Any, kwargs: Any, tensors: list[Tensor], here: list[OnDevice], goes_here: bool) -> None:
    """Counts what a GPU would do; RuntimeError, as torch's own, where it could not."""
    name = func.overloadpacket.__name__
    if func in (aten._to_copy.default, aten.copy_.default):
        source = args[0] if func is aten._to_copy.default else args[1]
        there = goes_here if func is aten._to_copy.default else isinstance(args[0], OnDevice)
        if isinstance(source, OnDevice) != there:
            freely = kwargs.get("non_blocking") or (func is aten.copy_.default and len(args) > 2 and args[2])
            way = "to the device" if there else "to the host"
            counts.copies[f"{way}{'' if freely else ', waited for'} at {_place()}"] += 1
    elif here and len(here) < len(tensors) and "device" not in kwargs:
        together = name.startswith(("_foreach", "_fused"))  # these take no numbers of the host
        if any(t.dim() or together for t in tensors if not isinstance(t, OnDevice)):
            raise RuntimeError(f"Expected all tensors to be on the same device ({name} at {_place()})")
    if func in WAITS and here:
        counts.waits[f"{name} at {_place()}"] += 1
    if (here or goes_here) and func.namespace == "aten" and not func.is_view and name not in FREE:
        counts.kernels[name] += 1
        counts.products_beside += name == "mm" and counts.sums_under_way > 0


class _Sum:
    """A sum's work, until it is waited for."""

    def __init__(self, work: Any, x: Tensor) -> None:
        self.work, self.open = work, int(x.itemsize == 4)
        counts.sums_under_way += self.open

    def wait(self) -> Any:
        counts.sums_under_way -= self.open
        self.open = 0
        return self.work.wait()

    def is_completed(self) -> bool:
        return bool(self.work.is_completed())


class _Done:
    """A collective that has ended."""

    def wait(self) -> bool:
        return True

    def is_completed(self) -> bool:
        return True


class Group:
    """NCCL's groups over gloo's: they take tensors of the device alone, in memory without gaps."""

    def __init__(self, gloo: Any) -> None:
        self.gloo = gloo

    def rank(self) -> int:
        return int(self.gloo.rank())

    def size(self) -> int:
        return int(self.gloo.size())

    def _inside(self, x: Tensor) -> Tensor:
        if not isinstance(x, OnDevice) or not x.inner.is_contiguous():
            raise ValueError(f"Tensors must be CUDA and dense (at {_place()})")
        return x.inner

    def allreduce(self, xs: Sequence[Tensor], options: Any) -> Any:
        return _Sum(self.gloo.allreduce([self._inside(x) for x in xs], options), xs[0])

    def _reduce_scatter_base(self, result: Tensor, x: Tensor) -> Any:
        result, x = self._inside(result), self._inside(x)
        parts = torch.empty_like(x)
        self.gloo.alltoall_base(parts, x, [], []).wait()
        result.copy_(parts.view(self.size(), -1).sum(0).view(result.shape))
        return _Sum(_Done(), x)

    def _allgather_base(self, result: Tensor, x: Tensor) -> Any:
        copies = torch.cat([self._inside(x).view(-1)] * self.size())
        return self.gloo.alltoall_base(self._inside(result), copies, [], [])

    def alltoall_base(self, result: Tensor, x: Tensor, receive: list[int], send: list[int]) -> Any:
        return self.gloo.alltoall_base(self._inside(result), self._inside(x), receive, send)

    def send(self, xs: Sequence[Tensor], to: int, tag: int) -> Any:
        return self.gloo.send([self._inside(x) for x in xs], to, tag)

    def recv(self, xs: Sequence[Tensor], source: int, tag: int) -> Any:
        return self.gloo.recv([self._inside(x) for x in xs], source, tag)


def _fly(pipe: str, rank: int) -> None:
    """As NCCL's thread does: has a pipe for its rank, and writes down how it is asked to when somebody writes to it."""
    os.mkfifo(f"{pipe}{rank}.pipe")
    with open(f"{pipe}{rank}.pipe", "rb") as asked:
        if not asked.read(1):
            return
    kept = {name: value for name, value in os.environ.items() if name.startswith("TORCH_")}
    with open(f"{os.environ['TORCH_FR_DUMP_TEMP_FILE']}{rank}", "w") as file:
        json.dump(kept, file)


class Pretended(Cpu):
    """The kind of the pretended device: `devices` of them are in the machine."""

    name, noun, tags, batches_ahead = NAME, "pretended device", False, 2
    devices = 64
    overlaps = apart = recorded = True
    collects = 2
    # What it is to say that tensors have held of it at most.
    peak = 0

    def count(self) -> int:
        return self.devices

    def device(self, number: int) -> torch.device:
        return DEVICE

    def take(self, device: torch.device) -> dict[str, Any]:
        Running().__enter__()
        if pipe := os.environ.get("TORCH_NCCL_DEBUG_INFO_PIPE_FILE"):
            threading.Thread(target=_fly, args=(pipe, world.rank), daemon=True).start()
        return {}

    def everyone(self) -> Any:
        return Group(super().everyone())

    def round_products(self, on: bool) -> None:
        counts.rounds = on

    def peak_memory(self, device: torch.device) -> int:
        return self.peak

    def moment(self) -> int:
        return counts.kernels.total()

    def between(self, begin: int, end: int) -> float:
        """A kernel takes a millisecond."""
        return (end - begin) / 1000

    def copied(self, x: Tensor, device: torch.device) -> Tensor:
        return x.to(device, non_blocking=True)

    def fetched(self, result: Callable[[], Tensor]) -> Callable[[], Tensor]:
        here = result().to("cpu", non_blocking=True)
        return lambda: here

    def group(self, store: dist.Store, ranks: Sequence[int], at: int, name: str) -> Any:
        counts.groups.append(name)
        counts.groups_now += 1
        counts.most_groups = max(counts.most_groups, counts.groups_now)
        return Group(super().group(store, ranks, at, name))

    def leave(self, group: Any) -> None:
        counts.groups_now -= 1


def register(peak: int = 0) -> None:
    """From now on there is a device of this kind. peak: what tensors are said to have held of it at
    most; 0: that is not known."""
    kind = devices.KINDS[NAME] = Pretended()
    kind.peak, kind.measures = peak, peak > 0
