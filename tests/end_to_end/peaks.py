"""The most bytes that a rank of a run holds at one time: of all memory that any operation reads or makes, from the
first parameter to the last update.

`peaks(text, ranks, folder)` trains a program on real gloo ranks, in a process of its own as alive.py does. They take
the ways of a device: collectives as NCCL has them, in memory of their own, not those that are made for sockets. What
they send is counted as wired.py does. As a script: `peaks.py MAIN_FILE RANKS`.
"""

from __future__ import annotations

import json
import sys
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from tests.emit.sources import written
from tests.end_to_end.watching import started, watched
from tests.end_to_end.wired import watch


class Peak(NamedTuple):
    """bytes: the most of the last step. at: the operation that came to it. held: what is there then, as (the operation
    that made it, bytes).
    """

    bytes: int
    at: str
    held: list[tuple[str, int]]


def peaks(text: str, ranks: int, folder: Path, strategy: str | None = None) -> list[Peak]:
    """Per rank."""
    found = watched("end_to_end.peaks", written(folder, text, ranks, strategy), ranks, "peak")
    return [Peak(size, at, [(name, held) for name, held in rest]) for size, at, rest in found]


def _held(x: Any) -> tuple[int, int]:
    """How many hold a tensor, and its memory."""
    import torch

    return x._use_count(), torch._C._storage_Use_Count(x.untyped_storage()._cdata)  # type: ignore[attr-defined]


@cache
def _by_one() -> tuple[int, int]:
    """The same where autograd adds two parts of a gradient, and nobody else has the first."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    found = list[tuple[int, int]]()

    class Looking(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.ops.aten.add.Tensor:
                found.append(_held(args[0]))
            return func(*args, **(kwargs or {}))

    x = torch.ones(2, requires_grad=True)
    with Looking():
        (x.sin() * x.cos()).sum().backward()
    (only,) = found
    return only


def _autograd_asks() -> bool:
    """Whether a mode is asked by autograd itself, not by Python that runs in a backward."""
    frame: Any = sys._getframe(2)
    while "/torch/" in frame.f_code.co_filename and frame.f_code.co_name != "_engine_run_backward":
        frame = frame.f_back
    return bool(frame.f_code.co_name == "_engine_run_backward")


def following() -> Any:
    """A mode that adds up, after every operation, the memory that is alive.

    Autograd adds a part of a gradient to the first one in place where nobody else has that: but never under a mode,
    whose tensors might be any. So the mode does it.
    """
    import torch
    from torch.multiprocessing.reductions import StorageWeakRef
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    by_one = _by_one()

    class Following(TorchDispatchMode):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            # Weak references keep an address from being another's.
            self.known: dict[int, tuple[str, int, StorageWeakRef]] = {}
            self.total = 0  # of all that is known, also of what has gone since the last look
            self.peak = Peak(0, "", [])
            self.place = ""

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self._note("given", (args, kwargs))
            if func is torch.ops.aten.add.Tensor and _held(args[0]) == by_one and _autograd_asks():
                func = torch.ops.aten.add_.Tensor
            results = func(*args, **(kwargs or {}))
            self._note(f"{func}{self.place and ' ' + _where()}", results)
            self._look(str(func))
            return results

        def _note(self, name: str, tensors: Any) -> None:
            for tensor in tree_leaves(tensors):
                if isinstance(tensor, torch.Tensor) and tensor.is_sparse:
                    self._note(name, (tensor._indices(), tensor._values()))
                elif isinstance(tensor, torch.Tensor):
                    storage = tensor.untyped_storage()
                    known = self.known.get(storage._cdata)
                    if known is None or known[1] != storage.nbytes():
                        self.total += storage.nbytes() - (known[1] if known is not None else 0)
                        self.known[storage._cdata] = name, storage.nbytes(), StorageWeakRef(storage)

        def _look(self, name: str) -> None:
            if self.total <= self.peak.bytes:
                return
            gone = [at for at, (_, _, reference) in list(self.known.items()) if reference.expired()]
            self.total -= sum(known[1] for at in gone if (known := self.known.pop(at, None)))
            if self.total > self.peak.bytes:
                held = [(made, size) for made, size, _ in self.known.values() if size]
                self.peak = Peak(self.total, f"{name} {_where()}" if self.place else name, held)

    return Following()


def _where() -> str:
    frame: Any = sys._getframe(2)
    found = []
    while frame is not None:
        name = frame.f_code.co_filename
        if "shardlang" in name or name.endswith("main.py"):
            found.append(f"{Path(name).name}:{frame.f_lineno}")
        frame = frame.f_back
    return " ".join(found[:3])


def _watch(folder: Path) -> None:
    """Every run writes the peak of its last step."""
    import numpy as np
    import torch
    import torch.distributed as dist
    from torch.utils._pytree import tree_map_only

    from shardlang.runtime import messages, random
    from shardlang.runtime.comm import primitives
    from shardlang.runtime.comm.mesh import Group
    from shardlang.runtime.device import Cpu
    from shardlang.runtime.state import saved_on_host
    from shardlang.runtime.step.train import TrainingRun

    watch(folder)
    random.CHUNK = 2**62
    primitives._native = lambda x: True
    primitives.share = primitives.stage = lambda *_: None  # type: ignore[assignment]
    handle, quiet = Group.handle, torch.utils._python_dispatch._disable_current_modes

    class Unseen:
        """Something of gloo's: what it makes to add up is its own. It works on copies, since its thread lets go of a
        collective's tensors only after it has woken whoever waits for them.
        """

        def __init__(self, of: Any, copies: list[tuple[Any, Any]]) -> None:
            self.of, self.copies = of, copies

        def __getattr__(self, name: str) -> Any:
            def called(*arguments: Any) -> Any:
                copies = list[tuple[Any, Any]]()

                def copied(tensor: torch.Tensor) -> torch.Tensor:
                    copies.append((tensor, tensor.clone()))
                    return copies[-1][1]

                with quiet():
                    found = getattr(self.of, name)(*tree_map_only(torch.Tensor, copied, arguments))
                return Unseen(found, copies) if hasattr(found, "wait") else found

            return called

        def wait(self) -> None:
            with quiet():
                self.of.wait()
                for tensor, copy in self.copies:
                    tensor.copy_(copy)
            self.copies.clear()

    Group.handle = lambda group, x: Unseen(handle(group, x), [])  # type: ignore[method-assign]
    begin_send, sends = messages.begin_send, list[Any]()

    def begun(tensor: Any, *rest: Any) -> Any:
        with torch.utils._python_dispatch._disable_current_modes():
            copy = tensor.clone()
            sends.append((copy, begin_send(copy, *rest)))
        # A device's is there before the next one begins; gloo's does not say so.
        return SimpleNamespace(wait=sends[-1][1].wait, is_completed=lambda: True)

    messages.begin_send = begun

    class Elsewhere(Cpu):
        """The host's memory, which no tensor has."""

        apart = True

        def leaving(self, x: Any) -> Any:
            with quiet():
                return (x.view(torch.uint8).numpy().tobytes(), x.dtype), lambda: None

        def coming(self, x: Any, device: Any) -> Any:
            numbers, dtype = np.frombuffer(x[0], dtype=np.uint8), x[1]
            there = torch.empty(len(numbers) // dtype.itemsize, dtype=dtype)
            with quiet():
                there.view(torch.uint8).numpy()[:] = numbers
            return lambda: there

    saved_on_host.kind_of = lambda device: Elsewhere()
    made, step = TrainingRun.__init__, TrainingRun._epochs
    mode = following()
    import os

    mode.place = os.environ.get("PEAKS", "")

    def followed(run: Any, *arguments: Any) -> None:
        torch.utils._python_dispatch._push_mode(mode)
        made(run, *arguments)

    def measured(run: Any) -> None:
        update = run.model.update

        def updated(step: int, total: int) -> None:
            update(step, total)
            if step == total - 1:
                mode.peak = Peak(0, "", [])

        run.model.update = updated
        step(run)
        rank = dist.get_rank() if dist.is_initialized() else 0
        (folder / f"peak-{rank}.json").write_text(json.dumps(mode.peak))

    TrainingRun.__init__ = followed  # type: ignore[method-assign]
    TrainingRun._epochs = measured  # type: ignore[method-assign]


if __name__ == "__main__":
    sys.exit(started(_watch))
