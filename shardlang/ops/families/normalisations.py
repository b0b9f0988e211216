"""softmax, log_softmax, layer_norm, rms_norm, batch_norm.

Over a split dim they reduce their statistics; the dim is never gathered.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from shardlang.ops.declaration import CallSite, Inference, Operator, Param, register
from shardlang.ops.factors import Factors, marked, quoted, require
from shardlang.ops.families.reductions import positions, single_position
from shardlang.ops.rule import FactorRule, Split
from shardlang.ops.saved_activations import Local, Saved, made, size
from shardlang.ops.site import OpSite
from shardlang.ops.texts import factors_of, group_text, receiver
from shardlang.python_text import tuple_text
from shardlang.types.dim import TensorType, Term, term_text

_X = Param("x", "tensor")


def _infer_softmax(site: CallSite) -> Inference | None:
    if not require(site, 0, "floating"):
        return None
    dim = single_position(site, site.static["over"])
    if dim is None:
        return None
    type = site.operands[0]
    factors = Factors(marked([type.dims[dim]], Split.INSIDE, (2, 1)))
    dims = factors.dims(type.dims)
    return Inference((type,), factors.rule((dims,), (dims,)), {"dim": dim})


def _softmax(name: str, doc: str) -> None:
    def emit(site: OpSite) -> str:
        dim = site.attrs["dim"]
        group = group_text(site, site.rule.operands[0][dim])
        return f"rt.{name}({site.operands[0]}, {dim}, {group})" if group else f"F.{name}({site.operands[0]}, {dim})"

    example = f"(x: [..., d]) -> [..., d] {{ {name}(x, over = d) }}"
    register(Operator(name, (_X, Param("over", "dims")), _infer_softmax, emit, doc, example=example, saved=made))


_softmax("softmax", "exp(x) divided by its sum over one dim.")
_softmax("log_softmax", "The logarithm of softmax over one dim.")


# --- layer_norm, rms_norm ----------------------------------------------------


def _infer_norm(statistics: tuple[int, int]) -> Callable[[CallSite], Inference | None]:
    def infer(site: CallSite) -> Inference | None:
        if not require(site, 0, "floating"):
            return None
        dims = positions(site, site.static["over"])
        if dims is None:
            return None
        type = site.operands[0]
        over = [type.dims[d] for d in dims]
        extra = _affine(site, over)
        if extra is None:
            return None
        resolve = site.dims.resolve
        whole = [resolve(t) for t in type.dims]
        factors = Factors(marked([whole[d] for d in dims], Split.INSIDE, statistics))
        operand = factors.dims(whole)
        small = tuple(operand[d] for d in dims)
        rule = factors.rule((operand, *[small] * len(extra)), (operand,))
        attrs = {"dims": dims, "has": extra, "eps": site.static["eps"]}
        return Inference((TensorType(type.dtype, tuple(whole)),), rule, attrs)

    return infer


def _affine(site: CallSite, over: Sequence[Term]) -> tuple[str, ...] | None:
    """Which of weight and bias are given; None after reporting one whose dims are not `over`."""
    given: list[str] = []
    for at, param in enumerate(site.operator.params):
        type = site.operands[at] if at < len(site.operands) and param.name in ("weight", "bias") else None
        if type is None:
            continue
        if not same_dims(site, type.dims, over):
            report_shape(site, at, over)
            return None
        given.append(param.name)
    return tuple(given)


def same_dims(site: CallSite, dims: Sequence[Term], wanted: Sequence[Term]) -> bool:
    """Whether two lists of dims are one, literal dims unified."""
    return len(dims) == len(wanted) and all(a == b or site.dims.same(a, b) for a, b in zip(dims, wanted, strict=True))


def report_shape(site: CallSite, at: int, wanted: Sequence[Term]) -> None:
    """SH288: an operand such as `weight` has other dims than the first operand asks for."""
    dims = ", ".join(term_text(t) for t in wanted)
    site.sink.report(
        "SH288",
        f"`{site.operator.name}` needs {quoted(site.names[at])} to be [{dims}], and it is {site.operands[at]}",
        site.spans[at],
        labels=[(site.spans[0], str(site.operands[0]))],
        help=f"declare it as `[{dims}]`",
    )


def _emit_norm(name: str) -> Callable[[OpSite], str]:
    def emit(site: OpSite) -> str:
        dims, has = site.attrs["dims"], site.attrs["has"]
        x, given = site.operands[0], list(site.operands[1:])
        rank = len(site.operand_shapes[0])
        sizes = tuple(site.operand_types[0].shape[d] for d in dims)
        named = [f"{h}={g}" for h, g in zip(has, given, strict=True)]
        eps = f"eps={site.attrs['eps']}"
        group = group_text(site, factors_of(site.rule.operands[0][d] for d in dims))
        if not group and dims == tuple(range(rank - len(dims), rank)):
            plain = given if has[:1] == ("weight",) else named
            return f"F.{name}({', '.join([x, tuple_text(sizes), *plain, eps])})"
        parts = [x, tuple_text(dims), f"size={math.prod(sizes)}", *named, eps]
        return f"rt.{name}({', '.join([*parts, f'group={group}'] if group else parts)})"

    return emit


def _saved_norm(local: Local, dims: tuple[int, ...], whole: tuple[int, ...], given: int = 1) -> Saved:
    """Of torch's own norm the operands `whole`, with mean and deviation of each row; without these what is normalised,
    before weight and bias (operands from `given` on), with the deviations.
    """
    shape, dtype, has = local.operands[0], local.operand_types[0].dtype, local.attrs["has"]
    each = size(tuple(n for d, n in enumerate(shape) if d not in dims), dtype)
    if whole:
        return Saved(whole, more=2 * each)
    weight = (given,) if "weight" in has else ()
    return Saved(weight, () if has else (0,), each + (size(shape, dtype) if has else 0))


def _saved_layer_norm(local: Local) -> Saved:
    dims, rank = local.attrs["dims"], len(local.operands[0])
    plain = dims == tuple(range(rank - len(dims), rank)) and not local.shares(dims)
    return _saved_norm(local, dims, tuple(range(len(local.operands))) if plain else ())


def _saved_rms_norm(local: Local) -> Saved:
    """torch's own multiplies x by the deviations: both are kept, and, for a weight's gradient, what comes of it."""
    dims, rank = local.attrs["dims"], len(local.operands[0])
    kept = _saved_norm(local, dims, ())
    plain = dims == tuple(range(rank - len(dims), rank)) and not local.shares(dims)
    return Saved((0, *kept.operands), () if local.attrs["has"] else kept.results, kept.more) if plain else kept


_NORM = (_X, Param("weight", "tensor", None), Param("bias", "tensor", None))
register(
    Operator(
        "layer_norm", (*_NORM, Param("over", "dims"), Param("eps", "number", 1e-5)), _infer_norm((2, 2)),
        _emit_norm("layer_norm"), "x less its mean, divided by its deviation, over dims; then times weight, plus bias.",
        example="(x: [..., d], weight: [d], bias: [d]) -> [..., d] { layer_norm(x, weight, bias, over = d) }",
        saved=_saved_layer_norm,
    )
)  # fmt: skip
register(
    Operator(
        "rms_norm", (*_NORM[:2], Param("over", "dims"), Param("eps", "number", 1e-5)), _infer_norm((1, 1)),
        _emit_norm("rms_norm"), "x divided by the root of its mean square, over dims; then times weight.",
        example="(x: [..., d], weight: [d]) -> [..., d] { rms_norm(x, weight, over = d) }",
        saved=_saved_rms_norm,
    )
)  # fmt: skip


# --- batch_norm --------------------------------------------------------------


def _infer_batch_norm(site: CallSite) -> Inference | None:
    type, mean = site.operands[0], site.operands[1]
    if not require(site, 0, "floating"):
        return None
    at = next((i for i, t in enumerate(type.dims) if (t,) == mean.dims), -1)
    if at < 0 and len(type.dims) > 1 and same_dims(site, mean.dims, type.dims[1:2]):
        at = 1
    if at < 0:
        report_shape(site, 1, type.dims[1:2])
        return None
    channel = (type.dims[at],)
    given = [i for i, t in enumerate(site.operands) if i > 1 and t is not None]
    for i in given:
        if not same_dims(site, site.operands[i].dims, channel):
            report_shape(site, i, channel)
            return None
    return _batch_norm(site, at, tuple(site.operator.params[i].name for i in given if i > 2))


def _batch_norm(site: CallSite, at: int, has: tuple[str, ...]) -> Inference:
    type = site.operands[0]
    whole = [site.dims.resolve(t) for t in type.dims]
    others = [t for d, t in enumerate(whole) if d != at]
    factors = Factors(marked(others, Split.INSIDE, (2, 2)))
    operand = factors.dims(whole)
    rule = factors.rule((operand, *[(operand[at],)] * (2 + len(has))), (operand,))
    attrs = {"dim": at, "has": has, "eps": site.static["eps"], "momentum": site.static["momentum"]}
    return Inference((TensorType(type.dtype, tuple(whole)),), rule, attrs)


def _some(size: str) -> bool:
    """Whether a local size is known to be above 0."""
    return size.isdigit() and size != "0"


def _emit_batch_norm(site: OpSite) -> str:
    dim, has = site.attrs["dim"], site.attrs["has"]
    rule: FactorRule = site.rule
    others = factors_of(f for d, f in enumerate(rule.operands[0]) if d != dim)
    group = group_text(site, others) if site.training else ""
    x = site.operands[0]
    named = [f"{h}={g}" for h, g in zip(has, site.operands[3:], strict=True)]
    plain = list(site.operands[3:]) if has[:1] == ("weight",) else named
    tail = [f"momentum={site.attrs['momentum']}", f"eps={site.attrs['eps']}"]
    # Of channels that are cut unevenly a rank may have none, which torch's own does not take; nor does it know when it
    # runs again for backward.
    own = site.recomputed or not _some(site.operand_shapes[0][dim])
    if group or (site.training and own):
        size = math.prod(rule.factors[f].size for f in others)
        parts = [x, str(dim), *site.operands[1:3], *named, f"size={size}", *tail]
        return f"rt.batch_norm({', '.join([*parts, f'group={group}'] if group else parts)})"
    if not site.training and not _some(site.operand_shapes[0][dim]):
        return f"rt.batch_norm_eval({', '.join([x, str(dim), *site.operands[1:3], *named, tail[1]])})"
    mode = [f"training={site.training}"]
    if dim == 1:
        return f"F.batch_norm({', '.join([x, *site.operands[1:3], *plain, *mode, *tail])})"
    moved = f"{receiver(x)}.movedim({dim}, 1)"
    return f"F.batch_norm({', '.join([moved, *site.operands[1:3], *plain, *mode, *tail])}).movedim(1, {dim})"


def _saved_batch_norm(local: Local) -> Saved:
    shape, dim = local.operands[0], local.attrs["dim"]
    others = tuple(d for d in range(len(shape)) if d != dim)
    weight = (3,) if "weight" in local.attrs["has"] else ()
    return _saved_norm(local, others, () if local.shares(others) else (0, 1, 2, *weight), 3)


register(
    Operator(
        "batch_norm",
        (
            _X,
            Param("running_mean", "tensor"),
            Param("running_var", "tensor"),
            Param("weight", "tensor", None),
            Param("bias", "tensor", None),
            Param("momentum", "number", 0.1),
            Param("eps", "number", 1e-5),
        ),
        _infer_batch_norm,
        _emit_batch_norm,
        "x normalised over all dims but that of the running statistics: by the whole batch's own when training "
        "(which then move towards them by `momentum`), by the running ones in `eval`. The variance of the batch is "
        "divided by the count; the running one moves towards that divided by the count less 1, as in torch.",
        updates=(1, 2),
        example="(x: [batch, channels, h, w], mean: [channels], var: [channels], weight: [channels], "
        "bias: [channels]) -> [batch, channels, h, w] { batch_norm(x, mean, var, weight, bias) }",
        saved=_saved_batch_norm,
    )
)
