"""Lookups by index: embedding, gather, take, pick, one_hot, arange.

Over a split dim a rank looks up what it has, and the sum is pending."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shardlang.ops.code import RT, TORCH, Code, F, around, atom, infix, method
from shardlang.ops.declaration import CallSite, Indexing, Inference, Param, Precision, declare
from shardlang.ops.factors import Factors, marked, quoted, refuse_twice, require, same_dims, sized
from shardlang.ops.families.reductions import single_position
from shardlang.ops.rule import DimFactors, InsideExchange, SentInside, Split, SplitOp, shared_axes
from shardlang.ops.saved_activations import Aliasing, LocalOp, Residuals, elements, nothing, own, size
from shardlang.ops.site import OpSite
from shardlang.ops.streams import looked_up
from shardlang.ops.texts import TORCH_DTYPES, cut, group_text, offset_text
from shardlang.ops.working_memory import WorkingMemory
from shardlang.types.dim import BYTES, TensorType, term_size, term_text

PICK = "pick"
STEP = "scanned"  # a place of what a scan goes through


def _rows_sent(op: SplitOp, table: int) -> Iterator[SentInside]:
    """Rows that are sent to the ranks that look them up: the numbers asked for, with how many there
    are for each member, then the rows and their gradients; as many for each member, and none asked
    for twice."""
    axes = shared_axes(op.rule, op.axes)
    if not axes:
        return
    ids = next(dims for dims in op.rule.operands if all(table not in dim for dim in dims))
    others = [f for f in range(len(op.rule.factors)) if f != table]
    ranks = op.degree(axes)

    def sent(itemsize: int, factors: Sequence[int]) -> int:
        return -(-(ranks - 1) * op.elements(factors) * itemsize // ranks) * op.times

    asked = sent(8, [f for f in others if any(f in dim for dim in ids)]) + 8 * (ranks - 1) * op.times
    rows = sent(op.itemsizes[-1], others)
    yield axes, asked, 0
    yield axes, rows, rows * op.trained


ROWS = InsideExchange("rows", "all_to_all", _rows_sent, asked=True)


def _infer_embedding(site: CallSite) -> Inference:
    ids, table = site.operands
    require(site, 0, "integer")
    if len(table.dims) != 2:
        site.refuse("SH287", f"`embedding` needs a table of two dims, and {quoted(site.names[1])} is {table}",
                    "a table is `[rows, width]`: `embedding(ids, table)`", span=site.spans[1])  # fmt: skip
    padding, size = site.static["padding"], term_size(table.dims[0])
    if padding is not None and not 0 <= padding < (padding + 1 if size is None else size):
        site.refuse("SH293", f"`padding` is {padding}, and {quoted(site.names[1])} has {sized(table.dims[0])}",
                    "it is the row that has no gradient, from 0", 1)  # fmt: skip
    factors = Factors()
    # The places of ids over the dim of the rows, or of the width, are another index than these.
    (mine,), (rows,) = factors.by_place([ids.dims]), factors.by_place([table.dims])
    if len(rows[0]) == 1:
        factors.exchanged(rows[0][0], ROWS)
    rule = factors.rule((mine, rows), ((*mine, rows[1]),), ((1,),))
    return Inference((TensorType(table.dtype, (*ids.dims, table.dims[1])),), rule, {"padding": padding})


def _emit_embedding(site: OpSite) -> Code:
    ids, padding = site.operands[0], site.attrs["padding"]
    plain = not site.sparse and not group_text(site, site.rule.operands[1][0])
    if padding is None or plain:
        return _looked_up(site, {} if padding is None else {"padding_idx": padding})
    return RT("without_gradient", _looked_up(site, {}), infix("==", ids, padding))


def _looked_up(site: OpSite, padding: dict[str, int]) -> Code:
    """The rows in the type of the result, into which those of a table in f32 are cast."""
    rows, dtype = site.rule.operands[1][0], site.result_types[0].dtype
    cast = "" if site.operand_types[1].dtype == dtype else TORCH_DTYPES[dtype]
    if shared_axes(site.rule, site.axes):
        return _emit_exchange(site, rows[0], {"dtype": cast} if cast else {})
    found = _emit_rows(site, rows, padding)
    return method(found, "to", cast) if cast else found


def _emit_rows(site: OpSite, rows: DimFactors, padding: dict[str, int]) -> Code:
    ids, table = site.operands
    start = {"start": offset_text(site, rows)} if group_text(site, rows) else {}
    if site.sparse:
        return RT("sparse_embedding", ids, table, **start)
    return RT("embedding", ids, table, **start) if start else F("embedding", ids, table, **padding)


def _emit_exchange(site: OpSite, rows: int, more: dict[str, object]) -> Code:
    """The table is split over the axes that split the ids."""
    more |= {"sizes": site.sizes[rows]} if rows in site.sizes else {}
    more |= {"sparse": True} if site.sparse else {}
    return RT("exchanged_embedding", *site.operands, site.rule.factors[rows].size, site.groups[rows], **more)


def _places(local: LocalOp, index: int) -> int:
    """Bytes of where in this rank's part of a split dim each index is, and whether it is."""
    return elements(local.operands[index]) * (BYTES["i64"] + BYTES["bool"])


def _saved_embedding(local: LocalOp) -> Residuals:
    rows = local.rule.operands[1][0]
    marks = elements(local.operands[0]) * BYTES["bool"] if local.attrs["padding"] is not None else 0
    if local.exchanged:  # the ids that this rank is asked for, and where each of its own is among those it asks for
        return Residuals(more=2 * elements(local.operands[0]) * BYTES["i64"] + marks)
    return Residuals(more=_places(local, 0) + marks) if any(local.cut[f] for f in rows) else Residuals((0,))


def _work_embedding(local: LocalOp) -> WorkingMemory:
    """A part of the rows is looked up, then copied with zeros for rows elsewhere, and cast."""
    rows, dtype, table = local.rule.operands[1][0], local.result_types[0].dtype, local.operand_types[1].dtype
    looked_up = size(local.results[0], table)
    copied = not local.exchanged and any(local.cut[f] for f in rows)
    if not copied and dtype == table:
        return WorkingMemory()
    forward = max(2 * looked_up * copied, looked_up + (dtype != table) * size(local.results[0], dtype))
    return WorkingMemory(forward, looked_up + size(local.operands[1], table))


def _saved_gather(local: LocalOp) -> Residuals:
    """torch's own keeps x too, for its shape."""
    return Residuals((0,), more=_places(local, 1)) if local.shares((local.attrs["dim"],)) else Residuals((0, 1))


declare("embedding", (Param("ids", "tensor"), Param("table", "tensor"), Param("padding", "int", None)),
        _infer_embedding, _emit_embedding,
        "The rows of a table by index. The row `padding` gets a gradient of 0.",
        example="(ids: i64[..., seq], table: [rows, width]) -> [..., seq, width] { embedding(ids, table) }",
        saved=_saved_embedding, work=_work_embedding, precision=Precision.LOW, indexes=Indexing(0, 1, 0, rows=True),
        streams=looked_up)  # fmt: skip


def _infer_gather(site: CallSite) -> Inference:
    """The index has x's dims with another (or no) dim in the place of `over`."""
    x, index = site.operands
    require(site, 1, "integer")
    at = single_position(site, (site.static["over"],))
    keeps = len(index.dims) == len(x.dims)
    rest = x.dims[:at] + x.dims[at + 1 :]
    mine = index.dims[:at] + index.dims[at + 1 :] if keeps else index.dims
    if not same_dims(site, rest, mine):
        fact = f"{quoted(site.names[1])} to have the other dims of {quoted(site.names[0])}, and it is {index}"
        help = "it has x's dims in their order, with its own dim, or none, in the place of the one that is looked up"
        site.refuse("SH288", f"`gather` over `{term_text(x.dims[at])}` needs {fact}", help, 0, span=site.spans[1])
    resolve = site.dims.resolve
    factors = Factors()
    values = factors.dims([resolve(t) for t in x.dims])
    dims = tuple(resolve(t) for t in index.dims)
    chosen = factors.dims(dims)
    if keeps and dims[at] == resolve(x.dims[at]):
        own = factors.alone(dims[at])
        chosen = (*chosen[:at], own, *chosen[at + 1 :])
    rule = factors.rule((values, chosen), (chosen,), ((0,),))
    return Inference((TensorType(x.dtype, dims),), rule, {"dim": at, "keeps": keeps})


def _emit_gather(site: OpSite) -> Code:
    x, index = site.operands
    dim, keeps = site.attrs["dim"], site.attrs["keeps"]
    factors = site.rule.operands[0][dim]
    if group_text(site, factors):
        return RT("gather", x, dim, index, start=offset_text(site, factors))
    return (TORCH if keeps else RT)("gather", x, dim, index)


declare(
    "gather", (Param("x", "tensor"), Param("index", "tensor"), Param("over", "dim")), _infer_gather, _emit_gather,
    "The element of x at each index along the dim `over`. The index has the other dims of x, and its "
    "own dim, or none, in the place of `over`.",
    example="(x: [batch, classes], index: i64[batch]) -> [batch] { gather(x, index, over = classes) }",
    saved=_saved_gather, precision=Precision.GIVEN, indexes=Indexing(1, 0),
)  # fmt: skip


# --- take ----------------------------------------------------------------------


def _infer_take(site: CallSite) -> Inference:
    x, index = site.operands
    at = single_position(site, (site.static["over"],))
    require(site, 1, "integer")
    dims = (*x.dims[:at], *index.dims, *x.dims[at + 1 :])
    refuse_twice(site, dims)
    factors = Factors()
    # The places of the index over the dim that is looked up are another index than that.
    (chosen,), (values,) = factors.by_place([index.dims]), factors.by_place([x.dims])
    rule = factors.rule((values, chosen), ((*values[:at], *chosen, *values[at + 1 :]),), ((0,),))
    return Inference((TensorType(x.dtype, dims),), rule, {"dim": at})


def _emit_take(site: OpSite) -> Code:
    dim = site.attrs["dim"]
    factors = site.rule.operands[0][dim]
    part = cut(site, 0, (dim,)) or group_text(site, factors)
    start = {"start": offset_text(site, factors)} if part else {}
    return RT("take", site.operands[0], dim, site.operands[1], **start)


def _saved_take(local: LocalOp) -> Residuals:
    dim = local.attrs["dim"]
    part = local.shares((dim,)) or local.operands[0][dim] != local.operand_types[0].shape[dim]
    return Residuals(more=_places(local, 1)) if part else Residuals((1,))


declare(
    "take", (Param("x", "tensor"), Param("index", "tensor"), Param("over", "dim")), _infer_take, _emit_take,
    "The elements of x at each index along the dim `over`, in whose place the dims of the index stand.",
    example="(x: [buckets, heads], index: i64[seq, keys]) -> [seq, keys, heads] { take(x, index, over = buckets) }",
    saved=_saved_take, precision=Precision.GIVEN, indexes=Indexing(1, 0),
)  # fmt: skip


# --- pick ---------------------------------------------------------------------


def _infer_pick(site: CallSite) -> Inference:
    type, places = site.operands[0], site.static["places"]
    at = single_position(site, [term for term, _ in places])
    index, size = places[0][1], term_size(type.dims[at])
    if size is not None and not -size <= index < size:
        site.refuse("SH291", f"`pick` takes number {index} of {sized(type.dims[at])}",
                    f"0 to {size - 1}, or -{size} to -1, from the end", 0)  # fmt: skip
    whole = site.operator.name == STEP
    factors = Factors(marked(type.dims[at : at + 1], Split.WHOLE) if whole else None)
    dims = factors.dims(type.dims)
    rule = factors.rule((dims,), (dims[:at] + dims[at + 1 :],), ((0,),))
    attrs = {"dim": at, "index": index + (size or 0) * (index < 0)}
    return Inference((TensorType(type.dtype, type.dims[:at] + type.dims[at + 1 :]),), rule, attrs)


def _emit_pick(site: OpSite) -> Code:
    x, dim, index = site.operands[0], site.attrs["dim"], site.attrs["index"]
    if cut(site, 0, (dim,)):
        return RT("pick", x, dim, index, start=offset_text(site, site.rule.operands[0][dim]))
    return around("", atom(x), f"[{':, ' * dim}{index}]", primary=True)


def _aliasing_pick(local: LocalOp) -> Aliasing:
    at = local.attrs["dim"]
    if local.operands[0][at] != local.operand_types[0].shape[at]:
        return own(local)
    return Aliasing(True, tuple(d - (d > at) for d in local.order if d != at))


declare(PICK, (Param("x", "tensor"), Param("places", "places")), _infer_pick, _emit_pick,
        "The element at one index of a dim, also written `x[d = 3]`; the dim is gone in the result. A number below 0 "
        "counts from the end.",
        example="(x: [batch, seq, d]) -> [batch, d] { pick(x, seq = 0) }", saved=nothing, aliasing=_aliasing_pick,
        moves=True, precision=Precision.GIVEN)  # fmt: skip
declare(STEP, (Param("x", "tensor"), Param("places", "places")), _infer_pick, _emit_pick,
        "The element at one index of a dim that a scan goes through, which is whole.", internal=True,
        saved=nothing, aliasing=_aliasing_pick, moves=True, precision=Precision.GIVEN)  # fmt: skip


# --- one_hot, arange -----------------------------------------------------------


def _infer_one_hot(site: CallSite) -> Inference:
    ids, classes = site.operands[0], site.static["classes"]
    require(site, 0, "integer")
    factors = Factors()
    (mine,) = factors.by_place([ids.dims])
    rule = factors.rule((mine,), ((*mine, factors.term(classes)),))
    return Inference((TensorType("i64", (*ids.dims, classes)),), rule)


def _emit_one_hot(site: OpSite) -> Code:
    factors = site.rule.results[0][-1]
    size, start = site.result_shapes[0][-1], offset_text(site, factors)
    if not group_text(site, factors):
        return F("one_hot", site.operands[0], size)
    return RT("one_hot", site.operands[0], size, start=start)


declare(
    "one_hot", (Param("ids", "tensor"), Param("classes", "newdim")), _infer_one_hot, _emit_one_hot,
    "1 at the index along a further last dim, 0 elsewhere, as i64.", differentiable=False,
    example="(ids: i64[..., seq]) -> i64[..., seq, 10] { one_hot(ids, 10) }", indexes=Indexing(0, 1, -1),
)  # fmt: skip


def _infer_arange(site: CallSite) -> Inference:
    dims = (site.static["dim"],)
    factors = Factors()
    return Inference((TensorType("i64", dims),), factors.rule((), (factors.dims(dims),)))


def _emit_arange(site: OpSite) -> Code:
    size, start = site.result_shapes[0][0], offset_text(site, site.rule.results[0][0])
    return RT("arange", size) if start == "0" else RT("arange", size, start=start)


declare("arange", (Param("dim", "newdim"),), _infer_arange, _emit_arange, "The indices of a dim, from 0, as i64.",
        example="(x: [batch, seq]) -> [batch, seq] { x * arange(seq) }", differentiable=False,
        places=lambda attrs: 0)  # fmt: skip
