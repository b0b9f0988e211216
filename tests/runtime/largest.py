"""How large tensors are that an operation makes."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Largest(TorchDispatchMode):
    """The most elements that a tensor made within has."""

    def __init__(self) -> None:
        super().__init__()
        self.found = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        self.found = max([self.found, *(x.numel() for x in tree_leaves(made) if isinstance(x, Tensor))])
        return made
