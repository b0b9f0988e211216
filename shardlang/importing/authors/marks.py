"""Which tensors each call of a module is given and gives, by the names of `forward`'s arguments.

While a module is traced, what its calls are given and give goes through a slice that takes all of
it, whose end is a number that says which it is; the slices are dropped from the trace."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

# The ends of such slices begin here: no tensor is as long.
_FIRST = 1 << 60
_SLICE = "aten.slice"


@dataclass
class Mark:
    """A tensor of a call of a module: the argument `name`, or with "" the result at a place.
    call, node: which call, and the step that gives it, once the trace is read."""

    name: str
    at: int
    call: str = ""
    node: Any = None


class Marks:
    """All marks of a trace, in the order of the calls."""

    def __init__(self) -> None:
        self.all: list[Mark] = []

    @contextlib.contextmanager
    def of(self, module: nn.Module) -> Iterator[None]:
        """Marks what goes into and out of the modules inside, but for those of torch itself."""
        hooks = []
        for inner in module.modules():
            if inner is not module and not type(inner).__module__.startswith("torch."):
                hooks.append(inner.register_forward_pre_hook(self._before, with_kwargs=True))
                hooks.append(inner.register_forward_hook(self._behind))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def read(self, program: torch.fx.GraphModule) -> list[Mark]:
        """Drops the slices from a program; the marks that are in it, with `call` and `node`."""
        graphs = [each for each in program.modules() if isinstance(each, torch.fx.GraphModule)]
        found = [mark for each in graphs for mark in self._of(each.graph)]
        for each in graphs if found else ():
            each.recompile()
        return found

    def _of(self, graph: Any) -> list[Mark]:
        found = []
        for node in list(graph.nodes):
            if node.op != "call_function" or str(getattr(node.target, "overloadpacket", "")) != _SLICE:
                continue
            end = node.args[3] if len(node.args) > 3 else 0
            if isinstance(end, int) and _FIRST <= end < _FIRST + len(self.all):
                mark = self.all[end - _FIRST]
                mark.call, mark.node = next(reversed(node.meta.get("nn_module_stack") or {"": None})), node.args[0]
                found.append(mark)
                node.replace_all_uses_with(node.args[0])
                graph.erase_node(node)
        return found

    def _before(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        try:
            given = inspect.signature(module.forward).bind(*args, **kwargs)
        except (TypeError, ValueError):
            return None
        places = {name: at for at, name in enumerate(given.signature.parameters)}
        names: dict[int, str] = {}
        for name, each in [*given.arguments.items(), *kwargs.items()]:
            names.setdefault(id(each), name)
        # What is given twice stays one: a module may ask `query is key`.
        known: dict[int, Any] = {}

        def marked(each: Any) -> Any:
            name = names.get(id(each), "")
            if name and name.isascii() and id(each) not in known:
                known[id(each)] = self._marked(each, name, places.get(name, len(places)))
            return known.get(id(each), each)

        return tuple(map(marked, args)), {name: marked(each) for name, each in kwargs.items()}

    def _behind(self, module: nn.Module, args: Any, results: Any) -> Any:
        if type(results) is tuple:
            return tuple(self._marked(each, "", at) for at, each in enumerate(results))
        return None

    def _marked(self, x: Any, name: str, at: int) -> Any:
        plain = isinstance(x, Tensor) and not isinstance(x, nn.Parameter) and x.layout is torch.strided
        if not plain or x.is_nested or not x.dim():
            return x
        self.all.append(Mark(name, at))
        return torch.ops.aten.slice(x, 0, 0, _FIRST + len(self.all) - 1)
