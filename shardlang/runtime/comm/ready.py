"""The result of a collective that has begun, to be waited for."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import Tensor

from shardlang.runtime.comm.mesh import Group
from shardlang.runtime.comm.record import LoggedWork

_OPTIONS = {name: dist.AllreduceOptions() for name in ("sum", "max", "min")}
_OPTIONS["max"].reduceOp = dist.ReduceOp.MAX
_OPTIONS["min"].reduceOp = dist.ReduceOp.MIN


class AsyncResult:
    """The result of a collective, which is there once `work` is done. sent: what that reads until
    then."""

    def __init__(self, result: Tensor, work: Any = None, sent: Tensor | None = None) -> None:
        self.result, self.work, self.sent = result, work, sent

    def advance(self) -> None:
        """Starts a second round, where there is one and the first is over."""

    def wait(self) -> Tensor:
        if self.work is not None:
            self.work.wait()
        return self.result


def begin_in_place(x: Tensor, group: Group, how: str) -> AsyncResult:
    """Starts torch's own sum (max, min) over the group, which writes into `x`."""
    return AsyncResult(x, LoggedWork("all-reduce", group, x).of(group.handle(x).allreduce([x], _OPTIONS[how])))
