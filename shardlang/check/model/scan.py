"""`scan(cell, x, h0, over = seq)` -> a call of the layer `cell` for each place of a dim, what it
gives for the state being that of the next.

The steps become operators of the graph one by one, so what is said of operators (layouts, cost,
memory, random numbers by the number of the call) holds for them. Values that have the dim are cut
into its places; what the cell gives before its state is stacked along it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardlang.check.context import Frame
from shardlang.check.model.arguments import Argument, by_name, missing_argument
from shardlang.check.model.forward import call_layer
from shardlang.check.model.operators import infer
from shardlang.check.model.types import named_term, operand_dims
from shardlang.check.values import UNKNOWN, CallResults, Instance, Tensor, describe
from shardlang.frozen.records import dataclass
from shardlang.ops.families.extents import STACK
from shardlang.ops.families.lookups import STEP
from shardlang.ops.families.shapes import REARRANGE
from shardlang.sources.source import Span
from shardlang.syntax import ast
from shardlang.types.dim import Term, term_size, term_text

SCAN = "scan"


@dataclass(frozen=True, slots=True)
class _Scan:
    """A scan whose arguments are known. sequences: values that have the dim; states: the others."""

    cell: Instance
    sequences: tuple[tuple[Tensor, Span], ...]
    states: tuple[tuple[Tensor, Span], ...]
    over: Term
    span: Span
    frame: Frame

    @property
    def dims(self) -> Any:
        return self.frame.context.dims


def scan(positional: Sequence[Argument], keywords: Sequence[ast.Keyword], span: Span, frame: Frame) -> Any:
    """The outputs of all steps, and the state behind the last; UNKNOWN after a report."""
    asked = _asked(positional, keywords, span, frame)
    if asked is None:
        return UNKNOWN
    build, states, rows = frame.context.build, [value for value, _ in asked.states], []
    length, before = term_size(asked.over), len(build.ops)
    for at in range(length or 1):
        found = _step(asked, at, states)
        if found is None or (at == 0 and _too_long(asked, len(build.ops) - before)):
            return UNKNOWN
        outputs, states = found
        rows.append(outputs)
    stacked = [_stacked(asked, list(each)) for each in zip(*rows, strict=True)]
    if UNKNOWN in stacked:
        return UNKNOWN
    values = (*stacked, *states)
    return values[0] if len(values) == 1 else CallResults(values)


def _asked(positional: Sequence[Argument], keywords: Sequence[ast.Keyword], span: Span, frame: Frame) -> _Scan | None:
    given: dict[str, Argument] = {}
    if not by_name(SCAN, keywords, ("over",), given, frame):
        return None
    if "over" not in given or len(positional) < 2:
        missing_argument(SCAN, "over" if len(positional) > 1 else "x" if positional else "cell", span, frame)
        return None
    cell = positional[0].evaluate(frame)
    values = [(argument.evaluate(frame), argument.span) for argument in positional[1:]]
    if cell is UNKNOWN or any(value is UNKNOWN for value, _ in values):
        return None
    wrong = next(((v, at) for v, at in values if not isinstance(v, Tensor)), None)
    if not isinstance(cell, Instance) or wrong is not None:
        value, at = wrong if isinstance(cell, Instance) and wrong is not None else (cell, positional[0].span)
        fact = "calls a layer" if not isinstance(cell, Instance) else "goes through tensors"
        frame.wrong("SH297", f"`{SCAN}` {fact}, and this is {describe(value)}", at, describe(value),
                    help=f"write `{SCAN}(cell, x, state, over = seq)`, with `layer cell = Cell(...)`")  # fmt: skip
        return None
    return _parted(cell, values, given["over"].node, span, frame)


def _parted(
    cell: Instance, values: Sequence[tuple[Tensor, Span]], over: ast.Expr | None, span: Span, frame: Frame
) -> _Scan | None:
    """The values by whether they have the dim, which those that come first do."""
    assert over is not None
    term = named_term(over, operand_dims([value.type for value, _ in values]), frame)
    if term is None:
        return None
    has = [any(t == term or frame.context.dims.same(t, term) for t in value.type.dims) for value, _ in values]
    count = has.index(False) if False in has else len(has)
    if count == 0 or True in has[count:]:
        at = 0 if count == 0 else has.index(True, count)
        fact = f"`{SCAN}` goes through values with `{term_text(term)}`, then come states, which lack it"
        frame.wrong("SH297", fact, values[at][1], str(values[at][0].type),
                    help=f"put the values that have `{term_text(term)}` first")  # fmt: skip
        return None
    return _Scan(cell, tuple(values[:count]), tuple(values[count:]), term, span, frame)


def _step(asked: _Scan, at: int, states: Sequence[Tensor]) -> tuple[tuple[Tensor, ...], list[Tensor]] | None:
    """One call of the cell: its outputs, and its states, which have the types of those before."""
    places = {"places": ((asked.over, at),)}
    slices = [
        (infer(STEP, [value], [span], names=[value.name], static=places, span=span, frame=asked.frame), span)
        for value, span in asked.sequences
    ]
    given = [*slices, *zip(states, (span for _, span in asked.states), strict=True)]
    if any(value is UNKNOWN for value, _ in slices):
        return None
    result = call_layer(asked.cell, given, (), asked.span, asked.frame)
    if result is UNKNOWN:
        return None
    values = result.values if isinstance(result, CallResults) else (result,)
    outputs = len(values) - len(states)
    if outputs < 0 or any(map(_differ, [asked] * len(states), states, values[max(outputs, 0) :])):
        _report_states(asked, states, values)
        return None
    return values[:outputs], list(values[outputs:])


def _differ(asked: _Scan, before: Tensor, after: Tensor) -> bool:
    """Whether a state comes back as another type, f32 and mixed precision's low one aside."""
    a, b, low = before.type, after.type, asked.frame.context.low
    alike = a.dtype == b.dtype or (bool(low) and {a.dtype, b.dtype} == {"f32", low})
    alike = alike and len(a.dims) == len(b.dims)
    return not (alike and all(asked.dims.same(x, y) for x, y in zip(a.dims, b.dims, strict=True)))


def _report_states(asked: _Scan, states: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    carried, gives = (", ".join(str(v.type) for v in tensors) or "nothing" for tensors in (states, values))
    asked.frame.wrong(
        "SH297", f"`{asked.cell.path}` gives {gives}, and does not end with the state that goes in: {carried}",
        asked.span, "this scan", labels=[(asked.states[0][1], "the state before the first step")],
        help="a cell returns what it shows, then its state, of the types that it was given",
    )  # fmt: skip


def _too_long(asked: _Scan, each: int) -> bool:
    """Whether the operators of all steps are more than a program may have, which is reported."""
    build, length = asked.frame.context.build, term_size(asked.over) or 1
    if len(build.ops) + each * (length - 1) <= build.operators_limit or build.full:
        return build.full
    build.full = True
    asked.frame.wrong(
        "SH217", f"{length:,} steps of {each} operators are more than the {build.operators_limit:,} that a program has",
        asked.span, f"over `{term_text(asked.over)}`",
        help="shorten the dim, or compute what does not need the state before the scan, for all steps at once",
    )  # fmt: skip
    return True


def _stacked(asked: _Scan, rows: list[Tensor]) -> Any:
    """Outputs along the dim, which is where the first value that is gone through has it."""
    names, spans = [row.name for row in rows], [asked.span] * len(rows)
    found = infer(STACK, rows, spans, names=names, static={"over": asked.over}, span=asked.span, frame=asked.frame)
    if found is UNKNOWN:
        return found
    dims = asked.sequences[0][0].type.dims
    place = next(at for at, term in enumerate(dims) if term == asked.over or asked.dims.same(term, asked.over))
    first, *rest = found.type.dims
    place = min(place, len(rest))
    if not place:
        return found
    order = (*rest[:place], first, *rest[place:])
    names = [found.name]
    return infer(REARRANGE, [found], spans[:1], names=names, arrow=order, span=asked.span, frame=asked.frame)
