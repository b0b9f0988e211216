"""`recompute` and `place saved on host` -> groups of operators whose saved activations backward
computes again, or brings back from the host, one for each call of a layer.

memory.py counts what that saves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shardlang.check.selectors import text
from shardlang.diagnostics.diagnostic import Sink
from shardlang.frozen.records import dataclass
from shardlang.graph.graph import Graph, Op
from shardlang.graph.places import MOST_LOOKED, PathIndex
from shardlang.hints.nearest import offer
from shardlang.ops.declaration import REGISTRY
from shardlang.ops.families.internal import TRANSFER
from shardlang.plan.plan import Recomputed
from shardlang.sources.source import Span
from shardlang.syntax import ast

GATHERS, NO_PRODUCTS, TO_HOST = "gathers", "all but products", "place saved on host"


@dataclass(frozen=True)
class RecomputeRule:
    """`recompute` at a selector. what: "" for all, else what of it; TO_HOST: what is saved is not
    computed again, but placed on the host."""

    selector: ast.Selector
    what: str


def recomputed(
    graph: Graph, written: Sequence[tuple[ast.Recompute | ast.Place, ast.Selector]], op_stage: Sequence[int] | None,
    sink: Sink,
) -> tuple[Recomputed, ...]:  # fmt: skip
    """The groups, each ascending, in the order of their first operators. A call is cut where its
    stage ends.

    Where selectors cover each other (`encoder`, `encoder.blocks[*]`), the finest counts. Operators
    without gradient, the loss and metrics stay as they are."""
    rules = [RecomputeRule(selector, _what(rule, sink)) for rule, selector in written]
    paths = _paths(graph) if rules else []
    covered = _covered(rules, paths, sink)
    groups: list[tuple[list[int], str]] = []
    latest: dict[tuple[str, int], list[int]] = {}
    begins: dict[tuple[str, int], tuple[str, int]] = {}
    told: set[Span] = set()
    for op in graph.ops:
        own, what = _finest(paths[op.id], covered, told, sink) if rules else ("", "")
        if not own or op.operator == TRANSFER or op.section != "loss" or graph.loss in op.results:
            continue
        key = own, op_stage[op.id] if op_stage is not None else 0
        # Each call of a layer begins with the same operator.
        again = key in begins and begins[key][0] == op.path and begins[key][1] != op.call
        if key not in latest or again:
            latest[key] = []
            groups.append((latest[key], what))
            begins[key] = op.path, op.call
        latest[key].append(op.id)
    readers = _readers(graph) if any(what for _, what in groups) else {}
    found = (_group(graph, ops, what, readers) for ops, what in groups)
    return tuple(g for g in found if any(graph.values[v].gradient for at in g.call for v in graph.ops[at].results))


def _what(rule: ast.Recompute | ast.Place, sink: Sink) -> str:
    """The words behind `recompute`; reports those that are unknown."""
    if isinstance(rule, ast.Place):
        return TO_HOST
    what, known = " ".join(word.text for word in rule.what or ()), [f"recompute {GATHERS}", f"recompute {NO_PRODUCTS}"]
    if what not in ("", GATHERS, NO_PRODUCTS):
        help = offer(f"recompute {what}", known, f"write `recompute`, `{known[0]}` or `{known[1]}`")
        sink.report("SH321", f"`{what}` is nothing that can be computed again", rule.span, help=help)
    return what


def _paths(graph: Graph) -> list[list[str]]:
    """The paths of each operator: its own, and further names of what it makes (`h = norm(x)`)."""
    found = [[op.path.partition(":")[0]] for op in graph.ops]
    for path, values in graph.addresses.items():
        for value in values:
            producer = graph.producers.get(value)
            if producer is not None and path not in found[producer]:
                found[producer].append(path)
    return found


Covered = Mapping[str, Sequence[tuple[RecomputeRule, str]]]


def _covered(rules: Sequence[RecomputeRule], paths: Sequence[Sequence[str]], sink: Sink) -> Covered:
    """Path -> the rules that cover it, and what of it they name. Reports a rule that covers none of
    the paths."""
    places = PathIndex(path for each in paths for path in each)
    found = places.by_path([(text(rule.selector), rule.selector.span) for rule in rules], sink)
    used = {at for covers in found.values() for at, _ in covers}
    for at, rule in enumerate(rules if places.looked <= MOST_LOOKED else ()):
        if at not in used:
            sink.report(
                "SH308", f"`{rule.selector.span.text}` covers nothing that is computed", rule.selector.span,
                help="name layers, `blocks[*]`, or values of a forward",
            )  # fmt: skip
    return {path: [(rules[at], own) for at, own in covers] for path, covers in found.items()}


def _finest(paths: Sequence[str], covered: Covered, told: set[Span], sink: Sink) -> tuple[str, str]:
    """The innermost layer, of those that rules name, around an operator of these paths, and what of
    it is computed again: "value" where the rule names what the operator makes. ("", "") if there is
    none. covered: path -> the rules that cover it, and what of it they name. told: mistakes that
    are reported already."""
    named = [(path, rule) for path in paths for rule, own in covered.get(path, ()) if own == path]
    found = named or [(own, rule) for rule, own in covered.get(paths[0], ())]
    own = max((own for own, _ in found), key=len, default="")
    if not own:
        return "", ""
    first, *others = [rule for layer, rule in found if layer == own]
    for other in others:
        span = other.selector.span
        if other.what != first.what and span not in told:
            told.add(span)
            both = TO_HOST in (first.what, other.what)
            fact = "what is saved of `{}` for backward" if both else "what of `{}` is computed again"
            fact = f"two rules say differently {fact.format(own)}"
            sink.again("SH308", fact, span, first.selector.span, "keep one of them")
    if named and first.what == TO_HOST and first.selector.span not in told:
        told.add(first.selector.span)
        help = f"name the layer around it, or write `recompute` in place of `{TO_HOST}`"
        sink.report("SH308", f"`{own}` is a value, and `{TO_HOST}` is for layers", first.selector.span, help=help)
    return own, "value" if named else first.what


def _readers(graph: Graph) -> dict[int, list[int]]:
    """Value -> the operators that read it."""
    found: dict[int, list[int]] = {}
    for op in graph.ops:
        for value in op.operands:
            found.setdefault(value, []).append(op.id)
    return found


def _group(graph: Graph, ops: Sequence[int], what: str, readers: dict[int, list[int]]) -> Recomputed:
    """The group of one call. Its results that others read are kept, or the layers after it would
    compute them again from the first."""
    call = tuple(ops)
    if what in ("", "value", TO_HOST):
        return Recomputed(call, call, drops=what == "value", to_host=what == TO_HOST)
    inside, given, again = set(call), set[int](), []
    for op in reversed([graph.ops[at] for at in call] if what == NO_PRODUCTS else []):
        read = [reader for v in op.results for reader in readers.get(v, [-1])]
        if any(reader not in inside or (reader in given and _moves(graph.ops[reader])) for reader in read):
            given.add(op.id)
        elif any(graph.values[v].gradient for v in op.results) and not _is_product(op):
            again.append(op.id)
    return Recomputed(tuple(reversed(again)), call, drops=True)


def _moves(op: Op) -> bool:
    """Whether an operator only moves or casts elements: its result may be memory of its operand."""
    return REGISTRY[op.operator].moves


def _is_product(op: Op) -> bool:
    return REGISTRY[op.operator].flops(op.rule, op.attrs) > 0
