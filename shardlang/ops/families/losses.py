"""Losses: cross_entropy, nll_loss, mse_loss, bce_with_logits, each one number.

Each is a sum over the items of the whole batch divided by the count of the whole, so over a split
batch it is pending and no run divides by a number of ranks. Counts that depend on the data are
all-reduced within the operator."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NoReturn

from shardlang.ops.code import RT, Code, F, around, atom, call_of, infix, method
from shardlang.ops.declaration import (
    CallRefused,
    CallSite,
    Indexing,
    Inference,
    Operator,
    Param,
    Precision,
    Total,
    declare,
    declaring,
)
from shardlang.ops.factors import Factors, Mark, namesakes, quoted, require, same_dims, sized
from shardlang.ops.families.reductions import tally_text
from shardlang.ops.python_text import literal, tuple_text
from shardlang.ops.rule import Split, Statistics
from shardlang.ops.saved_activations import LocalOp, Residuals, elements, size
from shardlang.ops.site import OpSite
from shardlang.ops.streams import KernelIO, Streams, in_kernels
from shardlang.ops.texts import cut, factors_of, group_text, groups_of, offset_text
from shardlang.ops.working_memory import WorkingMemory, plain
from shardlang.types.dim import BYTES, Dim, TensorType, Term, low, term_text, wide

KEPT_COUNT = "kept_count"
CHUNKED = "chunked_cross_entropy"
IN_F32 = "cross_entropy_in_f32"

# --- losses over classes -----------------------------------------------------


def _class_dim(site: CallSite) -> int:
    """The position of the one dim that the label lacks; SH289 where there is none."""
    scores, label = site.operands
    _require_one(site)
    for at in _likely_first(scores, label):
        if same_dims(site, scores.dims[:at] + scores.dims[at + 1 :], label.dims):
            return at
    names = site.names
    lacking = [t for t in scores.dims if t not in label.dims]
    site.sink.report(
        "SH289",
        f"`{site.operator.name}` needs {quoted(names[1])} to have all dims of {quoted(names[0])} but one, the classes",
        site.span,
        labels=[(site.spans[0], str(scores)), (site.spans[1], f"{label}; it lacks {_listed(lacking)}")],
        help="a label is the index of a class: `i64`, with the dims of the scores but the class dim, in their order",
    )
    raise CallRefused


def _require_one(site: CallSite) -> None:
    """SH289 where the label's dims do not say which dim of the scores the classes are, as both are
    one dim."""
    scores, label = site.operands
    resolve = site.dims.resolve
    dims, due = [resolve(t) for t in scores.dims], [resolve(t) for t in label.dims]
    places = [at for at in range(len(dims)) if dims[:at] + dims[at + 1 :] == due]
    if len(places) < 2:
        return
    names, dim = site.names, quoted(term_text(dims[places[-1]]))
    kept = [term_text(t) for t in scores.dims]
    kept[places[-1]] = "classes"
    site.refuse(
        "SH289",
        f"{quoted(names[0])} has {dim} twice, so nothing says which of the two is the classes of {site.operator.name}",
        f"declare `dim classes = {term_text(dims[places[-1]])}`, and say which it is: "
        f"`relabel({names[0] if names[0].isidentifier() else 'scores'} -> [{', '.join(kept)}])`", 0, 1,
    )  # fmt: skip


def _likely_first(scores: TensorType, label: TensorType) -> list[int]:
    """Positions to try: first dims that the label lacks by name, lest others unify."""
    lacking = [i for i, t in enumerate(scores.dims) if t not in label.dims]
    by_name = [i for i in lacking if not (scores.dims[i] and scores.dims[i][0].literal)]
    rest = [i for i in lacking if i not in by_name]
    exact = [i for i in (*by_name, *rest) if scores.dims[:i] + scores.dims[i + 1 :] == label.dims]
    return [*exact, *by_name, *rest] or list(range(len(scores.dims)))


def _listed(terms: list[Term]) -> str:
    return ", ".join(sized(t) for t in terms) or "none of them"


def _class_loss(site: CallSite, mark: Mark, through: tuple[tuple[int, ...], ...]) -> Inference:
    require(site, 0, "floating")
    require(site, 1, "integer")
    at = _class_dim(site)
    resolve = site.dims.resolve
    dims = [resolve(t) for t in site.operands[0].dims]
    marks: dict[Dim, Mark] = dict.fromkeys(dims[at], mark)
    factors = Factors(marks)
    scores = factors.dims(dims)
    rule = factors.rule((scores, scores[:at] + scores[at + 1 :]), ((),), through)
    attrs = {"dim": at, "ignore_index": site.static["ignore_index"]}
    return Inference((TensorType(wide(site.operands[0].dtype), ()),), rule, attrs)


def _infer_cross_entropy(site: CallSite) -> Inference:
    smoothing = site.static["label_smoothing"]
    if not 0 <= smoothing <= 1:
        site.refuse("SH293", f"`label_smoothing` is {smoothing:g}, and it is a share from 0 to 1",
                    "`label_smoothing = 0.1` gives a tenth of the weight to all classes alike")  # fmt: skip
    found = _class_loss(site, (Split.INSIDE, statistics_of(smoothing)), ())
    return Inference(found.results, found.rule, {**found.attrs, "label_smoothing": smoothing})


def statistics_of(smoothing: float) -> Statistics:
    """Ranks reduce the greatest of a row, then together its sum, the picked one, and their mean for
    smoothing."""
    return (1, 2 if smoothing == 0 else 3), ()


def _infer_nll(site: CallSite) -> Inference:
    # A pick among log-probabilities is linear in them: a rank picks where it has the class, and the
    # sum is pending.
    return _class_loss(site, (Split.FREE, ((), ())), ((0,),))


def options_of(site: OpSite) -> dict[str, object]:
    """Keyword arguments that differ from their defaults."""
    ignore, smoothing = site.attrs["ignore_index"], site.attrs.get("label_smoothing", 0)
    found: dict[str, object] = {} if ignore is None else {"ignore_index": ignore}
    return {**found, "label_smoothing": smoothing} if smoothing else found


def _count(site: OpSite) -> str:
    """The divisor of the sum: the number of items of the whole, those that are ignored left out."""
    label = site.operands[1]
    ignore = site.attrs["ignore_index"]
    if len(site.operands) > 2:
        return site.operands[2]
    if ignore is None:
        return str(math.prod(site.operand_types[1].shape))
    group = group_text(site, factors_of(site.rule.operands[1]))
    mask = infix("!=", label, ignore)
    return RT("count", mask, group) if group else RT("count", mask)


def _local_sum(site: OpSite, function: str, reduction: str) -> Code:
    """The loss over the local items, by torch or the runtime: "mean", "sum" or each ("none")."""
    scores, label = site.operands[:2]
    dim, rank = site.attrs["dim"], len(site.operand_shapes[0])
    factors = site.rule.operands[0][dim]
    group = group_text(site, factors)
    options = options_of(site)
    mode = mode_of(reduction)
    if group:
        size = math.prod(site.rule.factors[f].size for f in factors)
        sums = function == "cross_entropy"  # the other one's result is pending
        extra = {"classes": size} if sums and site.attrs.get("label_smoothing") else {}
        options = {"start": offset_text(site, factors), **extra, **options}
        return RT(function, scores, label, dim, *([group] if sums else []), **options, **mode)
    at, function = (RT, IN_F32) if low(site.operand_types[0].dtype) else (F, function)
    if dim != 1 and rank > 1 and reduction == "none":
        return at(function, method(scores, "movedim", dim, 1), label, **options, **mode)
    if dim != 1 and rank > 1:
        scores, label = _rows(site)
    return at(function, scores, label, **options, **mode)


def mode_of(reduction: str) -> dict[str, str]:
    return {} if reduction == "mean" else {"reduction": literal(reduction)}


def _rows(site: OpSite) -> tuple[str, str]:
    """Scores as [items, classes] and the labels as [items]: what torch is fast at."""
    scores, label = site.operands[:2]
    dim, rank = site.attrs["dim"], len(site.operand_shapes[0])
    last = scores if dim == rank - 1 else method(scores, "movedim", dim, -1)
    if rank == 2:
        return last, label
    return method(last, "flatten", 0, rank - 2), method(label, "flatten")


def _first_of(groups: list[str]) -> str:
    """The condition that this rank is the first of groups over which only items are pending."""
    if len(groups) > 1:
        return call_of("all", around("g.index == 0 for g in ", tuple_text(groups)))
    return f"{groups[0]}.index == 0" if groups else ""


def _labelled(local: LocalOp) -> tuple[int, int]:
    """The number of labels, and bytes per label that our losses keep: a position and a mark."""
    count = elements(local.operands[1])
    return count, count * (BYTES["i64"] + BYTES["bool"])


def _saved_cross_entropy(local: LocalOp) -> Residuals:
    """The share of each class, or its logarithm; labels, or where they are and which count."""
    count, places = _labelled(local)
    (_, scores), ignored = _scores(local), local.attrs["ignore_index"] is not None
    divisor, number = _divisor(local)
    if local.shares((local.attrs["dim"],)):
        return Residuals(divisor, more=scores + places + (count if ignored else 0) + number)
    smooth = bool(local.attrs["label_smoothing"]) and ignored
    return Residuals((1, *divisor), more=scores + _weight(local) + (count if smooth else 0) + number)


def _work_cross_entropy(local: LocalOp) -> WorkingMemory:
    """Ours has the scores less the greatest, their exponentials, and for each label where it is
    and seven numbers. torch's makes the gradient of the shares' logarithms, then of the scores."""
    (count, places), (given, scores) = _labelled(local), _scores(local)
    narrow = given < scores
    if local.shares((local.attrs["dim"],)):
        return WorkingMemory(2 * scores + places + 7 * count * _weight(local), narrow * (scores + given))
    return WorkingMemory(forward=2 * narrow * scores, backward=2 * scores)


def _streams_cross_entropy(local: LocalOp) -> Streams:
    """torch's has two kernels backward, and two more that cast; ours takes the greatest, the
    difference, its exponentials and their sum in turn, and casts the gradient alone."""
    shared, (given, scores) = local.shares((local.attrs["dim"],)), _scores(local)
    way = in_kernels(*(((5, 3, 8), (1, 1, 4)) if shared else ((1, 1, 2), (2, 2, 2))), "f32")(local)
    casts, slopes = given < scores and not shared, given < scores and way.backward.kernels > 0
    forward = zip(way.forward, (given, scores, 1), strict=True)
    backward = zip(way.backward, (scores, given, 1), strict=True)
    return Streams(KernelIO(*[a + casts * b for a, b in forward]), KernelIO(*[a + slopes * b for a, b in backward]))


def _scores(local: LocalOp) -> tuple[int, int]:
    """Bytes of the scores as they are, and in f32 at least."""
    dtype = local.operand_types[0].dtype
    return size(local.operands[0], dtype), size(local.operands[0], wide(dtype))


def _divisor(local: LocalOp) -> tuple[tuple[int, ...], int]:
    """The divisor of a loss: its operand, or its bytes, unless it is a number in the text."""
    if len(local.operands) > 2:
        return (2,), 0
    types = zip(local.operands, local.operand_types, strict=True)
    smooth = bool(local.attrs.get("label_smoothing")) and not local.shares((local.attrs["dim"],))
    counted = smooth or any(shape != type.shape for shape, type in types)
    return (), BYTES["i64"] if counted and local.attrs["ignore_index"] is not None else 0


def _weight(local: LocalOp) -> int:
    """torch's own losses keep the sum of the labels' weights."""
    return BYTES[wide(local.operand_types[0].dtype)]


def _saved_nll(local: LocalOp) -> Residuals:
    _, places = _labelled(local)
    divisor, number = _divisor(local)
    if local.shares((local.attrs["dim"],)):
        return Residuals((0, *divisor), more=places + number)
    return Residuals((0, 1, *divisor), more=_weight(local) + number)


_CLASS_PARAMS = (Param("scores", "tensor"), Param("label", "tensor"), Param("ignore_index", "int", None))


def _of_classes(
    name: str, params: tuple[Param, ...], infer: Callable[[CallSite], Inference],
    saved: Callable[[LocalOp], Residuals], doc: str, work: Callable[[LocalOp], WorkingMemory] = plain,
    precision: Precision = Precision.F32, streams: Callable[[LocalOp], Streams | None] = lambda local: None,
    declared: Callable[..., None] = declare,
) -> None:  # fmt: skip
    def emit(site: OpSite) -> Code:
        if not cut(site, 0) and not cut(site, 1) and len(site.operands) == 2:
            return _local_sum(site, name, "mean")
        return infix("/", _local_sum(site, name, "sum"), _count(site))

    def accumulate(site: OpSite) -> Code:
        ignore = site.attrs["ignore_index"]
        mask = "" if ignore is None else infix("!=", site.operands[1], ignore)
        groups = groups_of(site, site.rule.operands[0][site.attrs["dim"]]) if name == "nll_loss" else []
        return tally_text(site, _local_sum(site, name, "none"), 1, mask, _first_of(groups))

    doc = f"The mean {doc}; the class dim is the one the label lacks."
    example = f"(scores: [..., classes], label: i64[...]) -> [] {{ {name}(scores, label) }}"
    declared(
        name, params, infer, emit, doc, example=example, reduces=Total.MEAN, accumulate=accumulate, saved=saved,
        work=work, streams=streams, indexes=Indexing(1, 0), precision=precision,
    )  # fmt: skip


class _Chunkable(Operator):
    chunked = CHUNKED


_of_classes(
    "cross_entropy", (*_CLASS_PARAMS, Param("label_smoothing", "number", 0.0)), _infer_cross_entropy,
    saved=_saved_cross_entropy, doc="cross-entropy of scores and class indices", work=_work_cross_entropy,
    precision=Precision.WIDENS, streams=_streams_cross_entropy, declared=declaring(_Chunkable),
)  # fmt: skip
_of_classes(
    "nll_loss", _CLASS_PARAMS, _infer_nll, _saved_nll, "of the negative log-probabilities of the label's classes"
)


def _infer_kept_count(site: CallSite) -> Inference:
    factors = Factors()
    label = factors.dims(site.operands[0].dims)
    rule = factors.rule((label,), ((),))
    return Inference((TensorType("i64", ()),), rule, {"ignore_index": site.static["ignore_index"]})


declare(
    KEPT_COUNT,
    (Param("label", "tensor"), Param("ignore_index", "int")),
    _infer_kept_count,
    lambda site: method(infix("!=", site.operands[0], site.attrs["ignore_index"]), "sum"),
    "How many labels are not ignored: what a loss of microbatches is divided by.",
    differentiable=False,
    internal=True,
)


# --- losses of two values alike ----------------------------------------------


def _infer_alike(site: CallSite) -> Inference:
    left, right = site.operands
    require(site, 0, "floating")
    if not same_dims(site, left.dims, right.dims):
        _refuse_unlike(site)
    factors = Factors()
    dims = factors.dims([site.dims.resolve(t) for t in left.dims])
    return Inference((TensorType(left.dtype, ()),), factors.rule((dims, dims), ((),)))


def _refuse_unlike(site: CallSite) -> NoReturn:
    left, right = site.operands
    names = site.names
    few, many = (0, 1) if len(left.dims) < len(right.dims) else (1, 0)
    short, long = site.operands[few], site.operands[many]
    fits = len(left.dims) != len(right.dims) and {t for t in short.dims if t} == {t for t in long.dims if t}
    dims = ", ".join(term_text(t) for t in long.dims)
    site.refuse("SH290", f"`{site.operator.name}` compares values of the same dims: {quoted(names[0])} is {left}, "
                f"{quoted(names[1])} is {right}",
                f"`rearrange({names[few]} -> [{dims}])` gives {quoted(names[few])} the dims of {quoted(names[many])}"
                if fits else namesakes(site.operands) or "nothing is broadcast in a loss; give both the same dims",
                0, 1)  # fmt: skip


def _alike_call(site: OpSite, function: str, reduction: str) -> Code:
    left, right = site.operands
    if not site.operand_types[1].floating:
        right = method(right, "to", around("", atom(left), ".dtype"))
    return F(function, left, right, **mode_of(reduction))


def _saved_alike(local: LocalOp, squared: bool) -> Residuals:
    """Both; of a target in whole numbers what it is converted to. The memory of torch's mse_loss,
    one number, is that of the squares."""
    shape, dtype = local.operands[0], local.operand_types[0].dtype
    squares = max(0, elements(shape) - 1) * BYTES[dtype] if squared else 0
    if local.operand_types[1].floating:
        return Residuals((0, 1), more=squares)
    return Residuals((0,), more=squares + size(local.operands[1], dtype))


def _alike(name: str, function: str, doc: str) -> None:
    def emit(site: OpSite) -> Code:
        if not cut(site, 0):
            return _alike_call(site, function, "mean")
        return infix("/", _alike_call(site, function, "sum"), math.prod(site.operand_types[0].shape))

    def accumulate(site: OpSite) -> Code:
        return tally_text(site, _alike_call(site, function, "none"))

    def saved(local: LocalOp) -> Residuals:
        return _saved_alike(local, name == "mse_loss")

    params = (Param("input", "tensor"), Param("target", "tensor"))
    example = f"(input: [..., d], target: [..., d]) -> [] {{ {name}(input, target) }}"
    declare(name, params, _infer_alike, emit, doc, example=example, reduces=Total.MEAN, accumulate=accumulate,
            saved=saved, in_torch=function)  # fmt: skip


_alike("mse_loss", "mse_loss", "The mean of the squared differences.")
_alike(
    "bce_with_logits",
    "binary_cross_entropy_with_logits",
    "The mean binary cross-entropy of logits and labels from 0 to 1.",
)
