"""What the ranks of a run keep between forward and backward: the memory that is made in forward and still there after.

`alive(text, ranks, folder)` trains a program on real ranks, in a process of its own as kept.py does. Every tensor that
any operation of a forward gives back is followed by a weak reference to its memory, whoever holds it: autograd, a
function that runs again, a name in the program. As a script: `alive.py MAIN_FILE RANKS`.
"""

from __future__ import annotations

import contextlib
import gc
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.emit.sources import written
from tests.end_to_end.watching import started, watched

QUIET = 5  # so many equal looks in a row


def alive(text: str, ranks: int, folder: Path, strategy: str | None = None) -> list[list[tuple[str, int]]]:
    """Per rank what is there after the forward of the second step: (the operation that made it, its bytes)."""
    found = watched("end_to_end.alive", written(folder, text, ranks, strategy), ranks, "alive")
    return [[(name, size) for name, size in rank] for rank in found]


def following() -> Any:
    """A mode in which every result's memory is noted."""
    from torch.multiprocessing.reductions import StorageWeakRef
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class Following(TorchDispatchMode):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.made: dict[int, tuple[str, StorageWeakRef]] = {}
            # Weak references keep an address from being another's.
            self.given: dict[int, StorageWeakRef] = {}

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            import torch

            for tensor in tree_leaves((args, kwargs)):
                if isinstance(tensor, torch.Tensor) and tensor.untyped_storage()._cdata not in self.made:
                    self.given[tensor.untyped_storage()._cdata] = StorageWeakRef(tensor.untyped_storage())
            results = func(*args, **(kwargs or {}))
            for tensor in tree_leaves(results):
                if isinstance(tensor, torch.Tensor):
                    self._note(str(func), tensor.untyped_storage())
            return results

        def _note(self, name: str, storage: Any) -> None:
            if storage._cdata not in self.given and storage._cdata not in self.made:
                self.made[storage._cdata] = name, StorageWeakRef(storage)

        def left(self, looks: int = QUIET) -> list[tuple[str, int]]:
            """What is still there, by what made it, once so many looks find the same: a thread of gloo lets go of a
            collective's tensors only after it has woken whoever waits for them.
            """
            gc.collect()
            seen = [self._there()]
            while len(seen) < looks or any(each != seen[-1] for each in seen[-looks:]):
                time.sleep(0.05)
                seen.append(self._there())
            return seen[-1]

        def _there(self) -> list[tuple[str, int]]:
            import torch

            found = []
            for name, reference in self.made.values():
                storage = torch.UntypedStorage._new_with_weak_ptr(reference.cdata)
                if storage is not None and storage.nbytes():
                    found.append((name, storage.nbytes()))
            return sorted(found)

    return Following()


def _watch(folder: Path) -> None:
    """Every model made from now on writes what is there after the forwards of its second step."""
    import torch.distributed as dist

    from shardlang.runtime.random import KeyParts
    from shardlang.runtime.step.model import RankModel

    forward_context, backward = RankModel.forward_context, RankModel.backward
    modes: dict[int, Any] = {}

    @contextlib.contextmanager
    def followed(model: Any, kind: Any = ("F", 0)) -> Iterator[None]:
        modes[id(model)] = mode = following()
        with forward_context(model, kind), mode:
            yield

    def measured(model: Any, loss: Any, last: bool = True) -> None:
        rank = dist.get_rank() if dist.is_initialized() else 0
        if KeyParts.step == 2 and last:
            (folder / f"alive-{rank}.json").write_text(json.dumps(modes[id(model)].left()))
        backward(model, loss, last)
        if KeyParts.step == 2 and last:  # the loss and metrics are there yet, a number each
            left = [(name, size) for name, size in modes[id(model)].left() if size > 8]
            assert not left, f"backward leaves {left}"

    RankModel.forward_context = followed  # type: ignore[method-assign, assignment]
    RankModel.backward = measured  # type: ignore[method-assign]
    _watch_stages(folder)


def _watch_stages(folder: Path) -> None:
    """With stages everything from the begin of the second step to its first backward is followed, receives too."""
    import torch.distributed as dist

    from shardlang.runtime.random import KeyParts
    from shardlang.runtime.step.pipeline import PipelineRunner

    step, backward = PipelineRunner.step, PipelineRunner._backward
    open_: list[Any] = []

    def stepped(pipeline: Any, batch: Any) -> Any:
        if KeyParts.step == 2:
            open_.append(following())
            open_[0].__enter__()
        return step(pipeline, batch)

    def measured(pipeline: Any, *rest: Any) -> None:
        if open_:
            mode = open_.pop()
            mode.__exit__(None, None, None)
            (folder / f"alive-{dist.get_rank()}.json").write_text(json.dumps(mode.left()))
        backward(pipeline, *rest)

    PipelineRunner.step = stepped  # type: ignore[method-assign]
    PipelineRunner._backward = measured  # type: ignore[method-assign]


if __name__ == "__main__":
    sys.exit(started(_watch))
