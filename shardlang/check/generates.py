"""A checked program -> the value that scores the next token and the field of tokens, with which
`shardc predict --generate` writes text; or why it cannot (SH518)."""

from __future__ import annotations

from shardlang.check.program import CheckedProgram
from shardlang.diagnostics.diagnostic import Sink
from shardlang.frozen.records import dataclass
from shardlang.graph.graph import Graph, GraphValue, Kind
from shardlang.types.dim import term_size


@dataclass(frozen=True, slots=True)
class Generates:
    """scores: of the type [batch, seq, vocab]; tokens: whole numbers [batch, seq] below `vocab`."""

    scores: GraphValue
    tokens: GraphValue
    vocab: int
    seq: int


def generates(program: CheckedProgram, scores: GraphValue | None, sink: Sink) -> Generates | None:
    """scores: the value that its user names; None: what the model of `train` returns. None after a
    report."""
    graph = program.graph
    scores = returned(graph) if scores is None else scores
    if scores is None:
        fact = "the model of `train` returns no scores of tokens, [batch, seq, vocab]"
        span = graph.values[graph.loss if graph.loss is not None else -1].span
        sink.report("SH518", fact, span, help="name the value that scores the next token: --value NAME")
        return None
    name = graph.shown(scores.id).removeprefix("train.")
    read = [graph.values[at] for at in sorted(_needed(graph, scores.id)) if graph.values[at].kind is Kind.DATA]
    tokens = [v for v in read if not v.type.floating and v.type.dtype != "bool" and len(v.type.dims) == 2]
    if len(read) != 1 or not tokens:
        listed = " and ".join(f"`{v.name}` ({v.type})" for v in read) or "no field"
        fact = f"`{name}` is made of {listed}; to generate, a model reads one field, whole numbers [batch, seq]"
        help = "a model that reads more is taken to torch: shardc export"
        sink.report("SH518", fact, scores.span, help=help)
        return None
    field, dims = tokens[0], scores.type.dims
    if not scores.type.floating or len(dims) != 3 or dims[:2] != field.type.dims:
        fact = f"`{name}` is {scores.type}; scores of the next token are [{_dims(field)}, vocab]"
        sink.report("SH518", fact, scores.span, help="name the value that scores the next token: --value NAME")
        return None
    vocab, seq = term_size(dims[2]), term_size(dims[1])
    if vocab is None or seq is None or field.bound != vocab:
        bound = "without a bound" if field.bound is None else f"below {field.bound}"
        fact = f"`{name}` has scores of {vocab} tokens, and `{field.name}` is numbers {bound}"
        sink.report("SH518", fact, scores.span, help="what a model reads and what it scores are the same tokens")
        return None
    return Generates(scores, field, vocab, seq)


def _dims(field: GraphValue) -> str:
    return str(field.type).partition("[")[2].rstrip("]")


def returned(graph: Graph) -> GraphValue | None:
    """The value that the model returns, if it is one."""
    found = {graph.values[at] for path, ids in graph.addresses.items() if path == "return" for at in ids}
    return found.pop() if len(found) == 1 else None


def _needed(graph: Graph, value: int) -> set[int]:
    """The values that a value is computed from."""
    found, left = set(), [value]
    while left:
        at = left.pop()
        if at not in found:
            found.add(at)
            left.extend(graph.ops[graph.producers[at]].operands if at in graph.producers else ())
    return found
