"""Steps that the language cannot say -> pieces of them, each a single step of the trace.

A step that no other reads than one of the same piece is part of that; what else reads becomes a
step of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from shardlang.importing.bodies.words import WORDS
from shardlang.importing.steps.nodes import CONST, LEAVES, Node, Traced

# The step that a piece is.
OPAQUE = "opaque"


@dataclass(frozen=True, eq=False)
class OpaquePiece:
    """Steps in order, the last of which gives the result. operands: what they read of others."""

    steps: tuple[Node, ...]
    operands: tuple[Node, ...]


def made_opaque(traced: Traced, unsaid: Iterable[Node]) -> bool:
    """Makes pieces of the steps that cannot be said, in place; False where that is no help."""
    wanted = _first(traced, dict.fromkeys(unsaid))
    if not wanted or not all(_is_plain(node) for node in wanted):
        return False
    changes: dict[Node, Node] = {}
    readers = traced.readers()
    results = _results(traced, wanted, readers)
    if not results:
        return False
    for node in (node for node in traced.nodes if node in results):
        piece = _piece(node, wanted, results, changes)
        changes[node] = node.like(OPAQUE, *piece.operands, name=node.name, value=piece)
    traced.replace(changes)
    # Where the result stood: calls of modules are in the order of their first steps.
    traced.nodes = [changes.get(node, node) for node in traced.nodes]
    traced.sweep()
    return True


def _is_plain(node: Node) -> bool:
    """Whether a step is one of ATen, or a result of one."""
    return node.op == "item" or node.op.startswith("aten.")


def _first(traced: Traced, unsaid: Mapping[Node, None]) -> dict[Node, None]:
    """Those of the steps that none of the others is behind, for what follows a step without a word
    may have one; with them, steps that are of no use to others but these."""
    behind: set[Node] = set()
    found: dict[Node, None] = {}
    for node in traced.nodes:
        before = [each for each in node.inputs() if each in behind]
        if node in unsaid or before:
            behind.add(node)
        first = node in unsaid and (node.op not in WORDS or all(each in found for each in before))
        if first or (_tied(node) and any(each in found for each in node.inputs())):
            found[node] = None
    for node in reversed(traced.nodes):  # what gives complex numbers to one of them
        if node in found:
            found.update(dict.fromkeys(each for each in node.inputs() if _complex(each) and each.op not in LEAVES))
    return found


def _tied(node: Node) -> bool:
    """Whether a step cannot be apart from what it reads: a part of several results, of complex
    numbers, or of a constant that is no step of the language."""
    apart = node.op == "item" or _complex(node)
    return apart or any(_complex(each) or is_fixed(each) for each in node.inputs())


def _complex(node: Node) -> bool:
    return node.dtype is not None and bool(node.dtype.is_complex)


def _several(node: Node) -> bool:
    """Whether a step gives several tensors, of which `item` takes one."""
    return node.dtype is None


def _results(traced: Traced, wanted: Mapping[Node, None], readers: Mapping[Node, list[Node]]) -> dict[Node, None]:
    """The steps of the pieces that others read, but for those that no tensor goes into."""
    outputs = set(traced.outputs.values())
    found: dict[Node, None] = {}
    reads: set[Node] = set()
    for node in (node for node in traced.nodes if node in wanted):
        if any(each in reads or (each not in wanted and each.op != CONST) for each in node.inputs()):
            reads.add(node)
        others = [each for each in readers[node] if each not in wanted or each.scopes != node.scopes]
        if node in reads and not _several(node) and not _complex(node) and (others or node in outputs):
            found[node] = None
    return found


def is_fixed(node: Node) -> bool:
    """Whether a step reads nothing but constants, through others too."""
    return bool(node.inputs()) and all(each.op == CONST or is_fixed(each) for each in node.inputs())


def _piece(
    result: Node, wanted: Mapping[Node, None], results: Mapping[Node, None], changes: Mapping[Node, Node]
) -> OpaquePiece:
    """The piece that gives a result. changes: steps that are another one from now on."""
    steps: dict[Node, None] = {}
    operands: dict[Node, None] = {}

    def visit(node: Node) -> None:
        for each in node.inputs():
            if (each in wanted and each not in results) or is_fixed(each):
                visit(each)
            elif each.op != CONST:
                operands.setdefault(changes.get(each, each))
        steps.setdefault(node)

    visit(result)
    return OpaquePiece(tuple(steps), tuple(operands))
