"""Paths of parameters -> the tree that the functions of an emitted program are given:
`p.blocks[3].fc1.weight`.

A node is a layer and knows its path. state/initial.py makes the tensors."""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor

_PART = re.compile(r"([^.\[\]]+)|\[(\d+)\]")


class LayerNode:
    """A layer, or an array of layers. Members are attributes (`p.w`); layers of an array, and
    members whose names Python has other uses for, are items (`p.blocks[3]`, `p["lambda"]`,
    `p["__class__"]`). An iteration and a slice give the layers of an array in the order of their
    index. `_made` holds the attributes that are made anew at each use (ZeRO-3). `_keys`: random
    keys by path and number of the call, where these are tensors (compiled.py)."""

    def __init__(self, path: str = "", keys: Mapping[tuple[str, int], Tensor] | None = None) -> None:
        self._path = path
        self._keys = keys
        self._items: dict[str | int, Any] = {}
        self._made: dict[str, Callable[[], Tensor]] = {}

    def __getattr__(self, name: str) -> Tensor:
        made = self.__dict__.get("_made", {})
        if name not in made:
            raise AttributeError(f"`{self.__dict__.get('_path')}` has no member `{name}` here")
        return made[name]()

    def __getitem__(self, part: str | int | slice) -> Any:
        if isinstance(part, slice):
            wanted = range(*part.indices(max(self._layers(), default=-1) + 1))
            return [self[at] for at in self._layers() if at in wanted]
        item = self._items[part]
        return item() if callable(item) else item

    def __iter__(self) -> Iterator[Any]:
        return (self[at] for at in self._layers())

    def _layers(self) -> list[int]:
        return sorted(at for at in self._items if isinstance(at, int))

    def _child(self, part: str | int) -> LayerNode:
        """The layer of this name or index below this one, made where there is none yet."""
        below = f"{self._path}[{part}]" if isinstance(part, int) else f"{self._path}.{part}".removeprefix(".")
        members: dict[Any, Any] = self._items if _is_item(part) else self.__dict__
        layer: LayerNode = members.setdefault(part, LayerNode(below))
        return layer


def path(node: LayerNode) -> str:
    """The path of a layer, as in the user's program; "" of the whole model."""
    return node._path


def layer_of(variables: Mapping[str, Any]) -> str:
    """The path of the layer whose function has these local variables; "" of the whole model."""
    layer = variables.get("p")
    return path(layer) if isinstance(layer, LayerNode) else ""


def _is_item(part: str | int) -> bool:
    """As the emitter writes it: an index, a keyword, and attributes of Python or of this page."""
    return isinstance(part, int) or part.startswith("_") or keyword.iskeyword(part)


def namespace(leaves: Mapping[str, Tensor | Callable[[], Tensor]]) -> LayerNode:
    """path -> tensor, or -> function that makes it at each use, as a tree of attributes."""
    root = LayerNode()
    for path, leaf in leaves.items():
        node = root
        *parents, last = (name or int(index) for name, index in _PART.findall(path))
        for part in parents:
            node = node._child(part)
        if _is_item(last):
            node._items[last] = leaf
        else:
            held: dict[Any, Any] = node.__dict__ if isinstance(leaf, Tensor) else node._made
            held[last] = leaf
    return root
