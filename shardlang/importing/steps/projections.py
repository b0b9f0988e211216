"""One matrix for queries, keys and values -> a layer for each, so that heads can be split; and the
projections of `nn.MultiheadAttention`, which it writes in turned, joined and stacked dims."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shardlang.importing.steps.nodes import PARAM, Node, Scope, Stored, Traced
from shardlang.importing.steps.writes import order_of

_LINEAR = "torch.nn.modules.linear.Linear"
_TURNS = ("aten.transpose", "aten.permute")
# Views that give a last dim several.
_SPREADS = ("aten.view", "aten.reshape", "aten.unflatten")
_VIEWS = ("aten.view", "aten.reshape", "aten.flatten", *_TURNS)


def projections(traced: Traced) -> None:
    """Changes the steps in place."""
    for change in (_unstacked, _joined, _within):
        change(traced)
        traced.sweep()
    traced.rewrite(_turned_before)
    readers = traced.readers()
    traced.rewrite(lambda node: _turned_behind(node, readers))


@dataclass(frozen=True)
class _Pick:
    """A reader of a `view`, some of whose dims may be turned before. order: which dim of the view
    each dim then is; None for one of a single place that is none of them."""

    read: Node
    view: Node
    order: list[int | None]

    def takes(self, dim: int) -> bool:
        """Whether it is one element of a dim of the view."""
        return self.view.op in _SPREADS and self.read.op == "aten.select" and self.order[self.read.args[1]] == dim

    def of(self, source: Node, at: int) -> Node:
        """The same of a slice of the last dim, `at`, of what is viewed."""
        number, shape = self.read.args[2], (*self.view.shape[:at], *self.view.shape[at + 1 :])
        wide = source.shape[at] // self.view.shape[at]
        part = source.like("aten.slice", source, at, number * wide, (number + 1) * wide, code=self.read.code,
                           shape=(*source.shape[:at], wide))  # fmt: skip
        if part.shape == self.read.shape:
            return part
        order = [each - (each > at) for each in self.order if each not in (at, None)]
        return self.read.like("aten.permute", self.read.like("aten.view", part, list(shape), shape=shape), order)


def _unstacked(traced: Traced) -> None:
    """The parts of a last dim that views have in a dim of their own, all of which are picked from
    there, are slices of it, also if dims were turned in between."""
    readers = traced.readers()
    changes: dict[Node, Node] = {}
    for source in traced.nodes:
        picks = _picks(source, readers) if source.op == "aten.linear" else []
        at = len(source.shape) - 1
        taken = picks and all(each.takes(at) and each.view.shape[:at] == source.shape[:at] for each in picks)
        if taken and sorted(each.read.args[2] for each in picks) == list(range(picks[0].view.shape[at])):
            changes |= {each.read: each.of(source, at) for each in picks}
    traced.replace(changes)


def _picks(source: Node, readers: dict[Node, list[Node]]) -> list[_Pick]:
    """The readers of the views of a node."""
    found: list[_Pick] = []
    stack = [_Pick(view, view, list(range(len(view.shape)))) for view in readers[source]]
    while stack:
        last = stack.pop()
        for read in readers[last.read]:
            order = _turned(read, last.order)
            (found if order is None else stack).append(_Pick(read, last.view, order or last.order))
    return found


def _turned(step: Node, order: list[int | None]) -> list[int | None] | None:
    """The dims of a tensor behind a step that changes their order, or adds or drops one of a single
    place; None for another step."""
    if step.op in _TURNS:
        return [order[at] for at in order_of(step.op, step.args, len(order))]
    rank = max(len(order), len(step.shape))
    at = step.args[1] % rank if step.op in ("aten.unsqueeze", "aten.squeeze") and len(step.args) > 1 else None
    if at is None or (step.op == "aten.squeeze" and order[at] is not None):
        return None
    return [*order[:at], None, *order[at:]] if step.op == "aten.unsqueeze" else [*order[:at], *order[at + 1 :]]


@dataclass(frozen=True)
class _Piece:
    """A part of the rows of a product's matrix: `linear`, what is `read` of it, and which rows."""

    linear: Node
    read: Node
    start: int
    end: int


def _joined(traced: Traced) -> None:
    """One matrix for queries, keys and values is a layer for each."""
    readers = traced.readers()
    pieces: dict[Node, list[_Piece]] = {}
    for node in traced.nodes:
        if node.op == "aten.linear" and _matrix(node.args[1]).op == PARAM:
            pieces.setdefault(_matrix(node.args[1]), []).extend(_pieces(node, readers))
    changes: dict[Node, Node] = {}
    for weight, found in pieces.items():
        count, rows = len(found), weight.shape[0]
        wide = rows // count
        places = sorted((each.start, each.end) for each in found)
        equal = places == [(at * wide, (at + 1) * wide) for at in range(count)]
        if count < 2 or not equal or not all(_only(each, readers) for each in found):
            continue
        labels = [_label(each.read, readers, f"part{each.start // wide + 1}") for each in found]
        if len(set(labels)) < count:
            continue
        for each, label in zip(found, labels, strict=True):
            changes[each.read] = _separate(each, label, (each.start // wide + 1, count))
    traced.replace(changes)


def _matrix(weight: Node) -> Node:
    """The parameter that a matrix is, or has rows of."""
    return weight.args[0] if weight.op == "aten.slice" and weight.args[1] == 0 else weight


def _pieces(node: Node, readers: dict[Node, list[Node]]) -> list[_Piece]:
    """The parts of the result of a product that are read, or all of it."""
    first = node.args[1].args[2] if node.args[1].op == "aten.slice" else 0
    parts = readers.get(node, [])
    if not parts or not all(_is_part(node, each) for each in parts):
        return [_Piece(node, node, first, first + node.shape[-1])]
    return [_Piece(node, each, first + each.args[2], first + each.args[2] + each.shape[-1]) for each in parts]


def _only(piece: _Piece, readers: dict[Node, list[Node]]) -> bool:
    """Whether nothing else reads the matrix and the bias, which are cut alike."""
    weight, bias, *_ = [*piece.linear.args[1:], None]
    if bias is not None and (_matrix(bias).op != PARAM or bias.op != weight.op or bias.args[1:] != weight.args[1:]):
        return False
    for each in (weight, bias):
        if each is None:
            continue
        if each.op == PARAM and len(readers[each]) > 1:
            return False
        if each.op != PARAM and (len(readers[each]) > 1 or any(
                other.op != "aten.slice" for other in readers[_matrix(each)])):  # fmt: skip
            return False
    return True


def _is_part(node: Node, reader: Node) -> bool:
    return reader.op == "aten.slice" and reader.args[1] == len(node.shape) - 1 and reader.args[0] is node


def _separate(piece: _Piece, label: str, which: tuple[int, int]) -> Node:
    """The layer of one part."""
    node = piece.linear
    weights = [None if each is None else _matrix(each) for each in node.args[1:]]
    homes = {each.name.rpartition(".")[0] for each in weights if each is not None}
    plain = all(each.name.rpartition(".")[2] in ("weight", "bias") for each in weights if each is not None)
    home, _, attribute = node.path.rpartition(".")
    scopes, prefix = node.scopes, f"{node.path}.{label}_" if node.path else f"{label}_"
    if homes == {node.path} and attribute and plain:
        path, last = f"{home}.{label}" if home else label, node.scopes[-1]
        scopes = (*node.scopes[:-1], Scope(path, f"{last.call}.{label}", last.kind))
        prefix = f"{path}."
    elif homes == {node.path} and node.scopes:
        scopes, prefix = _inside(node, label), f"{node.path}.{label}."
    rows = [None if each is None else _rows(each, prefix, which) for each in weights]
    return node.like("aten.linear", node.args[0], *rows, shape=piece.read.shape, scopes=scopes, code=piece.read.code)


def _inside(node: Node, label: str) -> tuple[Scope, ...]:
    """The scopes of a layer that the module of a step has."""
    path, call = (node.scopes[-1].path, node.scopes[-1].call) if node.scopes else ("", "")
    return (*node.scopes, Scope(f"{path}.{label}" if path else label, f"{call}.{label}", _LINEAR))


def _rows(weight: Node, prefix: str, which: tuple[int, int]) -> Node:
    assert weight.stored is not None
    name = prefix + weight.name.rpartition(".")[2].removeprefix("in_proj_")
    stored = Stored(weight.stored.name, weight.stored.transposed, which)
    shape = (weight.shape[0] // which[1], *weight.shape[1:])
    return Node(PARAM, shape=shape, dtype=weight.dtype, name=name, stored=stored, value=weight.value)


def _label(part: Node, readers: dict[Node, list[Node]], otherwise: str) -> str:
    """`query`, `key` or `value`, by what attention reads it as."""
    node = part
    for _ in range(20):
        following = readers.get(node, [])
        attends = [each for each in following if each.op == "aten.scaled_dot_product_attention"]
        if attends:
            return ("query", "key", "value")[attends[0].args.index(node)]
        if not following:
            break
        node = following[0]
    return otherwise


def _within(traced: Traced) -> None:
    """A product with the matrix of a layer is a call of it, if the module does not call it."""
    readers = traced.readers()
    for node in traced.nodes:
        weights: list[Any] = [each for each in node.args[1:] if each is not None] if node.op == "aten.linear" else []
        if not weights or any(each.op != PARAM or readers[each] != [node] for each in weights):
            continue
        home, _, label = weights[0].name.removesuffix(".weight").rpartition(".")
        names = [f"{home}.{label}.{last}" if home else f"{label}.{last}" for last in ("weight", "bias")]
        if home == node.path and label and [each.name for each in weights] == names[: len(weights)]:
            node.scopes = _inside(node, label)


def _turned_before(node: Node) -> Node | None:
    """The rows of a product are turned behind it, not before it."""
    turn = node.args[0] if node.op == "aten.linear" else None
    if not isinstance(turn, Node) or not _turns_rows(turn):
        return None
    x = turn.args[0]
    new = node.like("aten.linear", x, *node.args[1:], shape=(*x.shape[:-1], node.shape[-1]))
    return turn.like(turn.op, new, *turn.args[1:], shape=node.shape, order=node.order)


def _turned_behind(turn: Node, readers: dict[Node, list[Node]]) -> Node | None:
    """The rows of a product with what was turned already are turned before it."""
    node = turn.args[0] if _turns_rows(turn) else None
    if not isinstance(node, Node) or node.op != "aten.linear" or readers[node] != [turn]:
        return None
    x = node.args[0]
    if x.op not in _VIEWS:
        return None
    shape = (*turn.shape[:-1], x.shape[-1])
    rows = turn.like(turn.op, x, *turn.args[1:], shape=shape, order=node.order, code="")
    return node.like("aten.linear", rows, *node.args[1:], shape=turn.shape)


def _turns_rows(node: Node) -> bool:
    """Whether a step changes the order of all dims but the last."""
    rank = len(node.shape)
    if node.op == "aten.permute":
        return bool(node.args[1][-1] % rank == rank - 1)
    return node.op == "aten.transpose" and all(at % rank != rank - 1 for at in node.args[1:])
