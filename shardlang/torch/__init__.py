"""Compiled programs in training loops of the user's own: `bind` makes a torch module of one,
`launch` starts ranks of this machine (specs/bind.md). `CheckpointReader` and `CheckpointWriter` are
checkpoints for torch.distributed.checkpoint (specs/torch_checkpoints.md).

torch is imported here, and by no other part of what a user imports from shardlang."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shardlang.errors import RunError, lacking

try:
    from shardlang.torch.bind import bind
    from shardlang.torch.launch import launch
    from shardlang.torch.module import Figures, ShardModule
    from shardlang.torch.optimizers import NotElementwise
    from shardlang.torch.place import Batch, Field
    from shardlang.torch.ranks import RankError
except ImportError as _error:
    if (_lack := lacking(_error, "shardlang.torch")) is None:
        raise
    raise ImportError(str(_lack), name=_error.name) from _error

if TYPE_CHECKING:
    from shardlang.torch.checkpoints.reader import CheckpointReader
    from shardlang.torch.checkpoints.writer import CheckpointWriter

__all__ = [
    "Batch", "CheckpointReader", "CheckpointWriter", "Field", "Figures", "NotElementwise", "RankError", "RunError",
    "ShardModule", "bind", "launch",
]  # fmt: skip
# torch.distributed.checkpoint takes half as long to import as torch: only for those who use it.
_LATER = {"CheckpointReader": "reader", "CheckpointWriter": "writer"}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"shardlang.torch.checkpoints.{_LATER[name]}"), name)
