"""Compiled programs in a training loop of the user's own: `bind` makes a torch module of one,
`launch` starts ranks of this machine (specs/bind.md).

torch is imported here, and by no other part of what a user imports from shardlang."""

from __future__ import annotations

try:
    from shardlang.errors import RunError
    from shardlang.torch.bind import bind
    from shardlang.torch.launch import launch
    from shardlang.torch.module import Figures, ShardModule
    from shardlang.torch.optimizers import NotElementwise
    from shardlang.torch.place import Batch, Field
    from shardlang.torch.ranks import RankError
except ImportError as _error:
    if (_error.name or "").partition(".")[0] not in ("torch", "numpy", "safetensors"):
        raise
    _help = '`pip install "shardlang[train]"` installs all that training needs'
    raise ImportError(f"error[SH517]: shardlang.torch needs {_error.name}\nhelp: {_help}", name=_error.name) from _error

__all__ = ["Batch", "Field", "Figures", "NotElementwise", "RankError", "RunError", "ShardModule", "bind", "launch"]
