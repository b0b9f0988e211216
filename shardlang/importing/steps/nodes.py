"""The steps of a traced module: calls of ATen with what they read, where they stand in the tree of
modules, and the line of source that they come from."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from shardlang.importing.authors.lines import Level
from shardlang.importing.authors.marks import Mark

T = TypeVar("T")
INPUT, PARAM, STATE, CONST = "input", "param", "state", "const"
# The size of a dim of a tensor, as a number: of the tensor and the place of the dim.
SIZE = "size"
LEAVES = frozenset((INPUT, PARAM, STATE, CONST))
# Steps that cut a tensor in several, and those that change the order of its dims.
SPLITS = ("aten.split", "aten.split_with_sizes", "aten.chunk", "aten.unbind")
TURNS = ("aten.t", "aten.transpose", "aten.permute", "aten.numpy_T", "aten.swapaxes")


@dataclass(frozen=True)
class Scope:
    """A call of a module: `path` of the module, `call` a name of this call of it,
    and its class."""

    path: str
    call: str
    kind: str

    @property
    def prefix(self) -> str:
        """The beginning of the names of all that is in it."""
        return f"{self.path}." if self.path else ""


@dataclass(frozen=True)
class Stored:
    """The part of a module's tensor that a parameter is: `part` (i, n) is the i-th of n equal ones
    along the first dim, after transposing."""

    name: str
    transposed: bool = False
    part: tuple[int, int] = (1, 1)

    def of(self, whole: Any) -> Any:
        """The part of the module's tensor."""
        found = whole.t() if self.transposed else whole
        number, count = self.part
        return found.chunk(count)[number - 1] if count > 1 else found


@dataclass(eq=False)
class Node:
    """One call of `op` (an ATen name without its overload), or a leaf.

    args, kwargs: as traced, with Nodes for tensors. shape: of the result. scopes: the module calls
    it is in, outermost first, without the whole. place: `file.py:12`. code: that line. value: of
    a CONST, the tensor. stored: of a PARAM or STATE. made: the step that computed a CONST. order:
    of the trace. levels: the lines it comes from, of each `forward`."""

    op: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    shape: tuple[int, ...] = ()
    dtype: Any = None
    scopes: tuple[Scope, ...] = ()
    place: str = "?"
    code: str = ""
    name: str = ""
    value: Any = None
    stored: Stored | None = None
    made: Node | None = None
    order: int = -1
    levels: tuple[Level, ...] = ()

    @property
    def path(self) -> str:
        return self.scopes[-1].path if self.scopes else ""

    @property
    def floating(self) -> bool:
        """Whether it gives numbers of floating point."""
        return self.dtype is not None and bool(self.dtype.is_floating_point)

    def inputs(self) -> list[Node]:
        """The nodes that it reads, in order."""
        return list(_nodes((self.args, tuple(self.kwargs.values()))))

    def itself(self) -> Node:
        """The node, or the one before a cast to its own type."""
        node = self
        while node.op == "aten.to" and node.dtype == node.args[0].dtype:
            node = node.args[0]
        return node

    def like(self, op: str, *args: Any, **changes: Any) -> Node:
        """Another node at the same place."""
        keep = {name: getattr(self, name) for name in ("shape", "dtype", "scopes", "place", "code", "order", "levels")}
        return Node(op, args, **{**keep, **changes})


def _nodes(argument: Any) -> Iterator[Node]:
    if isinstance(argument, Node):
        yield argument
    elif isinstance(argument, list | tuple):
        for each in argument:
            yield from _nodes(each)


def scalar(x: Any, of: Container[str] = (CONST,)) -> float | None:
    """The number that an argument is, or a leaf of one element; None if it is none. of: which
    leaves count."""
    if isinstance(x, Node):
        return float(x.value.item()) if x.op in of and x.value.numel() == 1 else None
    return x if isinstance(x, int | float) else None


def mapped(argument: Any, change: Callable[[Node], Any]) -> Any:
    """An argument with each node replaced."""
    if isinstance(argument, Node):
        return change(argument)
    if isinstance(argument, list | tuple):
        return type(argument)(mapped(each, change) for each in argument)
    return argument


@dataclass
class Traced:
    """A module's steps in order; `outputs` are results, by name. updated: buffers that the module
    writes to, and where. compared: constants that were recognised by their values. marks: which
    nodes are arguments and results of calls, in the order of these."""

    nodes: list[Node]
    inputs: dict[str, Node]
    outputs: dict[str, Node]
    updated: dict[str, Node] = field(default_factory=dict)
    compared: list[Node] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)

    def rewrite(self, rule: Callable[[Node], Node | None]) -> None:
        """Lets all that read a node for which a rule gives another one read that instead."""
        self.replace({node: made for node in self.nodes if (made := rule(node)) is not None})
        self.sweep()

    def replace(self, changes: Mapping[Node, Node]) -> None:
        """Lets all that read a node read another one instead."""

        def now(node: Node) -> Node:
            while node in changes:
                node = changes[node]
            return node

        for node in self.nodes:
            node.args = mapped(node.args, now)
            node.kwargs = {key: mapped(value, now) for key, value in node.kwargs.items()}
        self.outputs = {key: now(value) for key, value in self.outputs.items()}
        for mark in self.marks:
            mark.node = now(mark.node)

    def readers(self) -> dict[Node, list[Node]]:
        """Who reads each node."""
        found: dict[Node, list[Node]] = {node: [] for node in self.nodes}
        for node in self.nodes:
            for each in node.inputs():
                found.setdefault(each, []).append(node)
        return found

    def sweep(self) -> None:
        """Drops what no output needs, and puts each node behind what it reads; inputs stay."""
        ordered: dict[Node, None] = {}
        for output in self.outputs.values():
            _visit(output, ordered)
        at = {node: number for number, node in enumerate(self.nodes)}
        new = [node for node in ordered if node not in at]
        if not new:
            self.nodes = [node for node in self.nodes if node in ordered]
        else:
            self.nodes = _in_order(list(ordered), at)
        unread = [node for node in self.inputs.values() if node not in ordered]
        self.nodes = [*unread, *self.nodes]


def reached(starts: Iterable[T], following: Callable[[T], Iterable[T]]) -> dict[T, None]:
    """All that is reached from some things, each once, without recursion: a module may be deep."""
    found, stack = dict[T, None](), list(starts)
    while stack:
        each = stack.pop()
        if each not in found:
            found[each] = None
            stack += following(each)
    return found


def _visit(start: Node, ordered: dict[Node, None]) -> None:
    """Adds a node behind all that it reads, without recursion: a module may be deep."""
    stack: list[tuple[Node, bool]] = [(start, False)]
    while stack:
        node, done = stack.pop()
        if done:
            ordered.setdefault(node)
        elif node not in ordered:
            stack.append((node, True))
            stack.extend((each, False) for each in reversed(node.inputs()))


def _in_order(nodes: Sequence[Node], at: dict[Node, int]) -> list[Node]:
    """The order of the trace; a new node stands just behind the last that it reads."""
    key: dict[Node, tuple[float, int]] = {}
    for number, node in enumerate(nodes):
        if node in at:
            key[node] = (at[node], 0)
        else:
            behind = max((key[each] for each in node.inputs()), default=(-1.0, 0))
            key[node] = (behind[0], behind[1] + 1 + number)
    return sorted(nodes, key=lambda node: key[node])
