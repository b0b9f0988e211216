"""Parameters and states as this rank holds them: initialised by global index, and reachable by path
(`p.blocks[3].fc1.weight`).

How a value begins depends on its path and the seed alone, never on how it is cut. Loading weights is in weights.py,
reducing gradients in buckets.py, sharding over further axes in zero.py.
"""

from __future__ import annotations

import keyword
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from shardlang.runtime import random
from shardlang.runtime.copies import device_of
from shardlang.runtime.program import Block, Parameter, Program, State, dtype_of

_PART = re.compile(r"([^.\[\]]+)|\[(\d+)\]")


class Node:
    """A place in the tree of paths. Members are attributes (`p.w`); layers of an array, and members whose names Python
    has other uses for, are items (`p.blocks[3]`, `p["lambda"]`, `p["__class__"]`). `_made` holds the attributes that
    are made anew at each use (ZeRO-3).
    """

    def __init__(self) -> None:
        self._items: dict[str | int, Any] = {}
        self._made: dict[str, Callable[[], Tensor]] = {}

    def __getattr__(self, name: str) -> Tensor:
        made = self.__dict__.get("_made", {})
        if name not in made:
            raise AttributeError(name)
        return made[name]()

    def __getitem__(self, part: str | int) -> Any:
        item = self._items[part]
        return item() if callable(item) else item


def _parts(path: str) -> list[str | int]:
    return [name or int(index) for name, index in _PART.findall(path)]


def _is_item(part: str | int) -> bool:
    """As the emitter writes it: an index, a keyword, and what may be an attribute that Python or this page made."""
    return isinstance(part, int) or part.startswith("_") or keyword.iskeyword(part)


def namespace(leaves: Mapping[str, Tensor | Callable[[], Tensor]]) -> Node:
    """path -> tensor, or -> function that makes it at each use, as one tree of attributes and items."""
    root = Node()
    for path, leaf in leaves.items():
        node = root
        *parents, last = _parts(path)
        for part in parents:
            node = (node._items if _is_item(part) else node.__dict__).setdefault(part, Node())
        if _is_item(last):
            node._items[last] = leaf
        else:
            (node.__dict__ if isinstance(leaf, Tensor) else node._made)[last] = leaf
    return root


def copied(held: Tensor | Callable[[], Tensor], dtype: torch.dtype) -> Callable[[], Tensor]:
    """A function that gives a parameter, or what its function makes, in another type; its gradient is in its own."""
    return lambda: (held if isinstance(held, Tensor) else held()).to(dtype)


def _bounds(kind: str, args: tuple[float, ...]) -> tuple[float, float]:
    """The interval that a uniform initialisation draws from."""
    if kind == "uniform":
        return (args[0], args[1]) if len(args) > 1 else (0.0, args[0] if args else 1.0)
    if kind == "kaiming_uniform":
        # a = sqrt(5), which torch.nn.Linear and Conv2d pass to torch.nn.init.kaiming_uniform_: 1 / sqrt(fan_in).
        slope = args[1] if len(args) > 1 else math.sqrt(5.0)
        bound = math.sqrt(6.0 / ((1.0 + slope * slope) * args[0]))
    else:
        bound = math.sqrt(6.0 / (args[0] + args[1]))
    return -bound, bound


def initial(init: tuple[Any, ...], path: str, whole: tuple[int, ...], block: Block, dtype: torch.dtype,
            place: str = "") -> Tensor:  # fmt: skip
    """The block of a value of shape `whole` as `init` says: (kind, *arguments), kinds as in specs/running.md."""
    kind, *args = init
    device = device_of(place)
    if kind in ("zeros", "ones", "constant"):
        value = {"zeros": 0.0, "ones": 1.0}.get(kind) if kind != "constant" else args[0]
        return torch.full(block.shape, value, dtype=dtype, device=device)
    key = random.key(path, step=0)
    if kind == "normal":
        mean, deviation = (0.0, *args)[-2:] if args else (0.0, 1.0)
        return random.normal(key, block.shape, whole, block.offsets, device).mul_(deviation).add_(mean).to(dtype)
    low, high = _bounds(kind, tuple(args))
    return random.uniform(key, block.shape, whole, block.offsets, device).mul_(high - low).add_(low).to(dtype)


def make(program: Program, tensor: Parameter | State, block: Block) -> Tensor:
    """A block of it as it begins, without ZeRO."""
    return initial(tensor.init, tensor.path, tuple(tensor.shape), block, dtype_of(program, tensor), tensor.place)
