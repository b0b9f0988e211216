"""Steps in order -> the tree of the calls of modules that become layers.

A module without tensors of its own is written where it is called, as are a Sequential that is no
element of an array, and a list."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from shardlang.importing.authors.marks import Mark
from shardlang.importing.steps.nodes import LEAVES, PARAM, STATE, Node, Scope, Traced
from shardlang.importing.steps.unfold import is_number

Item = "Node | Call"
# Their layers are those of the library.
_RECURRENT = ("torch.nn.modules.rnn.LSTM", "torch.nn.modules.rnn.GRU")


@dataclass(eq=False)
class Call:
    """One call of a module: the steps and calls in it, in order; `outside`: what it reads that is
    made elsewhere, `results`: what others read of it, both in the order of its `forward`;
    `names`: of what it reads, the arguments'; `places`: of what it gives, in a tuple."""

    scope: Scope
    items: list[Node | Call] = field(default_factory=list)
    outside: list[Node] = field(default_factory=list)
    results: list[Node] = field(default_factory=list)
    names: dict[Node, str] = field(default_factory=dict)
    places: dict[Node, int] = field(default_factory=dict)

    def steps(self) -> Iterator[Node]:
        """All steps in it, those of inner calls too."""
        for item in self.items:
            if isinstance(item, Call):
                yield from item.steps()
            else:
                yield item


def tree(traced: Traced, kind: str) -> Call:
    """The call of the whole module, of class `kind`, with all calls in it."""
    root = Call(Scope("", "", kind))
    open_calls: dict[str, Call] = {"": root}
    owners = [node.name for node in traced.nodes if node.op in (PARAM, STATE)]
    for node in traced.nodes:
        if node.op in LEAVES:
            continue
        call = root
        for scope in node.scopes:
            if _is_layer(scope, owners):
                if scope.call not in open_calls:
                    open_calls[scope.call] = Call(scope)
                    call.items.append(open_calls[scope.call])
                call = open_calls[scope.call]
        call.items.append(node)
    readers = traced.readers()
    outputs = set(traced.outputs.values())
    marks: dict[str, list[Mark]] = {}
    for mark in traced.marks:
        marks.setdefault(mark.call, []).append(mark)
    for call in _all(root):
        _ends(call, readers, outputs)
        _order(call, marks.get(call.scope.call, []))
    for call in _all(root):
        _behind(call)
    root.results = list(dict.fromkeys(traced.outputs.values()))
    root.outside = list(traced.inputs.values())
    return root


def _all(call: Call) -> Iterator[Call]:
    yield call
    for item in call.items:
        if isinstance(item, Call):
            yield from _all(item)


def _is_layer(scope: Scope, owners: list[str]) -> bool:
    if scope.kind.endswith(_RECURRENT):
        return False
    if scope.kind.endswith(".Sequential") and not scope.path.rpartition(".")[2].isdigit():
        return False
    return any(name.startswith(f"{scope.path}.") for name in owners)


def _ends(call: Call, readers: dict[Node, list[Node]], outputs: set[Node]) -> None:
    """Finds what the call reads of others, and gives them."""
    inside = dict.fromkeys(call.steps())
    found: dict[Node, None] = {}
    for node in inside:
        for each in node.inputs():
            own = each.op in (PARAM, STATE) and each.name.startswith(f"{call.scope.path}.")
            if each not in inside and not own and each.op != "const":
                found.setdefault(each)
    call.outside = list(found)
    call.results = [
        node for node in inside if node in outputs or any(reader not in inside for reader in readers.get(node, []))
    ]


def _behind(call: Call) -> None:
    """Puts each step behind what it reads: a call stands where its first step does, which may be
    there before what later ones read, as a mask is."""
    items = call.items
    maker = {node: at for at, item in enumerate(items)
             for node in (item.results if isinstance(item, Call) else [item])}  # fmt: skip
    placed: dict[int, None] = {}

    def place(at: int, around: frozenset[int]) -> None:
        item = items[at]
        for node in item.outside if isinstance(item, Call) else item.inputs():
            before = maker.get(node, at)
            if before not in placed and before not in around:
                place(before, around | {before})
        placed.setdefault(at)

    for at in range(len(items)):
        place(at, frozenset({at}))
    call.items = [items[at] for at in placed]


def _order(call: Call, marks: Sequence[Mark]) -> None:
    """Puts what a call reads and gives into the order of its `forward`; what that does not name
    comes last."""
    given = sorted((mark for mark in marks if mark.name), key=lambda mark: mark.at)
    for mark in given:
        call.names.setdefault(mark.node, mark.name)
    first = {mark.node: at for at, mark in reversed(list(enumerate(given)))}
    call.outside.sort(key=lambda node: first.get(node, len(given)))
    call.places = {mark.node: mark.at for mark in reversed(marks) if not mark.name}
    call.results.sort(key=lambda node: call.places.get(node, len(marks)))


def tables(traced: Traced) -> None:
    """Layers that are called otherwise than a layer of the library become steps of the model around
    them: tables of which one row alone is read, products with a matrix of another layer."""
    for table, readers in traced.readers().items():
        home = table.name.rpartition(".")[0]
        one = all(node.op == "aten.embedding" and node.args[0] is table and is_number(node.args[1]) for node in readers)
        if table.op == PARAM and home and one:
            for node in readers:
                if node.scopes and node.scopes[-1].path == home:
                    node.scopes = node.scopes[:-1]
    for node in traced.nodes:
        linear = node.op == "aten.linear" and node.scopes and node.scopes[-1].kind.endswith(".Linear")
        if linear and not node.args[1].name.startswith(f"{node.scopes[-1].path}."):
            node.scopes = node.scopes[:-1]
