"""softmax, log_softmax, layer_norm, rms_norm, batch_norm.

Over a split dim they reduce their statistics; the dim is never gathered."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from shardlang.ops.code import RT, Code, F, method
from shardlang.ops.declaration import CallRefused, CallSite, Inference, Param, Precision, declare
from shardlang.ops.factors import Factors, marked, quoted, refuse_shape, require, require_dims, same_dims
from shardlang.ops.families.reductions import positions, single_position
from shardlang.ops.rule import FactorRule, Split, Statistics
from shardlang.ops.saved_activations import LocalOp, Residuals, made, size
from shardlang.ops.site import OpSite, some
from shardlang.ops.streams import Streams, in_kernels
from shardlang.ops.texts import factors_of, group_text
from shardlang.types.dim import TensorType, Term, low, term_size, wide

_X = Param("x", "tensor")


def _infer_softmax(site: CallSite) -> Inference:
    require(site, 0, "floating")
    dim = single_position(site, site.static["over"])
    type = site.operands[0]
    factors = Factors(marked([type.dims[dim]], Split.INSIDE, ((1, 1), (1,))))
    dims = factors.dims(type.dims)
    return Inference((type,), factors.rule((dims,), (dims,)), {"dim": dim})


def _softmax(name: str, doc: str) -> None:
    def emit(site: OpSite) -> Code:
        dim = site.attrs["dim"]
        group = group_text(site, site.rule.operands[0][dim])
        return RT(name, site.operands[0], dim, group) if group else F(name, site.operands[0], dim)

    def streams(local: LocalOp) -> Streams | None:
        return in_kernels((5, 3, 6), (6, 3, 4))(local) if local.shares((local.attrs["dim"],)) else None

    example = f"(x: [..., d]) -> [..., d] {{ {name}(x, over = d) }}"
    declare(name, (_X, Param("over", "dims")), _infer_softmax, emit, doc, example=example, saved=made, streams=streams,
            precision=Precision.INSIDE)  # fmt: skip


_softmax("softmax", "exp(x) divided by its sum over one dim.")
_softmax("log_softmax", "The logarithm of softmax over one dim.")


# --- layer_norm, rms_norm ----------------------------------------------------


def _infer_norm(statistics: Statistics) -> Callable[[CallSite], Inference]:
    def infer(site: CallSite) -> Inference:
        require(site, 0, "floating")
        dims = positions(site, site.static["over"])
        type = site.operands[0]
        over = [type.dims[d] for d in dims]
        extra = _affine(site, over)
        resolve = site.dims.resolve
        whole = [resolve(t) for t in type.dims]
        factors = Factors(marked([whole[d] for d in dims], Split.INSIDE, statistics))
        operand = factors.dims(whole)
        small = tuple(operand[d] for d in dims)
        rule = factors.rule((operand, *[small] * len(extra)), (operand,))
        attrs = {"dims": dims, "has": extra, "eps": site.static["eps"]}
        return Inference((TensorType(type.dtype, tuple(whole)),), rule, attrs)

    return infer


def _affine(site: CallSite, over: Sequence[Term]) -> tuple[str, ...]:
    """Which of weight and bias are given, of the dims `over`."""
    names = [param.name for param in site.operator.params if param.kind == "tensor"]
    pairs = enumerate(zip(names, site.operands, strict=False))
    given = {name: at for at, (name, type) in pairs if name in ("weight", "bias") and type is not None}
    for at in given.values():
        require_dims(site, at, over)
    return tuple(given)


def _emit_norm(name: str) -> Callable[[OpSite], Code]:
    def emit(site: OpSite) -> Code:
        dims, has = site.attrs["dims"], site.attrs["has"]
        x, *given = site.operands
        rank = len(site.operand_shapes[0])
        sizes = tuple(site.operand_types[0].shape[d] for d in dims)
        named, eps = dict(zip(has, given, strict=True)), site.attrs["eps"]
        group = group_text(site, factors_of(site.rule.operands[0][d] for d in dims))
        # On the CPU torch's own keep more of a low x, or round their sums to its type.
        if not group and dims == tuple(range(rank - len(dims), rank)) and not low(site.operand_types[0].dtype):
            plain, named = (given, {}) if has[:1] == ("weight",) else ([], named)
            return F(name, x, sizes, *plain, **named, eps=eps)
        return RT(name, x, dims, size=math.prod(sizes), **named, eps=eps, **({"group": group} if group else {}))

    return emit


def _saved_norm(local: LocalOp, dims: tuple[int, ...], whole: tuple[int, ...], given: int = 1) -> Residuals:
    """For torch's own norm the operands `whole`, with mean and deviation of each row; without these
    what is normalised, before weight and bias (operands from `given` on), with the deviations; all
    that in f32 for a low x."""
    shape, dtype, has = local.operands[0], wide(local.operand_types[0].dtype), local.attrs["has"]
    each = size(tuple(n for d, n in enumerate(shape) if d not in dims), dtype)
    if whole:
        return Residuals(whole, more=2 * each)
    weight, apart = (given,) if "weight" in has else (), bool(has) or low(local.operand_types[0].dtype)
    return Residuals(weight, () if apart else (0,), each + (size(shape, dtype) if apart else 0))


def _saved_low(local: LocalOp, statistics: int) -> Residuals:
    """A low x as it is, with statistics of each row in f32, and the weight."""
    rows = tuple(n for d, n in enumerate(local.operands[0]) if d not in local.attrs["dims"])
    return Residuals((0, 1) if "weight" in local.attrs["has"] else (0,), more=statistics * size(rows, "f32"))


def _saved_layer_norm(local: LocalOp) -> Residuals:
    if low(local.operand_types[0].dtype):
        return _saved_low(local, 2)
    dims, rank = local.attrs["dims"], len(local.operands[0])
    plain = dims == tuple(range(rank - len(dims), rank)) and not local.shares(dims)
    return _saved_norm(local, dims, tuple(range(len(local.operands))) if plain else ())


def _saved_rms_norm(local: LocalOp) -> Residuals:
    """torch's own multiplies x by deviations: both are kept, and the product for a weight."""
    if low(local.operand_types[0].dtype):
        return _saved_low(local, 1)
    dims, rank = local.attrs["dims"], len(local.operands[0])
    kept = _saved_norm(local, dims, ())
    plain = dims == tuple(range(rank - len(dims), rank)) and not local.shares(dims)
    return Residuals((0, *kept.operands), () if local.attrs["has"] else kept.results, kept.more) if plain else kept


def _streams_norm(local: LocalOp) -> Streams | None:
    """Ours takes mean, variance and product in turn, in f32 at least."""
    return in_kernels((7, 5, 9), (9, 5, 11), "f32")(local) if local.shares(local.attrs["dims"]) else None


_NORM = (_X, Param("weight", "tensor", None), Param("bias", "tensor", None))
declare(
    "layer_norm", (*_NORM, Param("over", "dims"), Param("eps", "number", 1e-5)), _infer_norm(((1, 1), (2,))),
    _emit_norm("layer_norm"), "(x - mean) / deviation over dims, then times weight, plus bias.",
    example="(x: [..., d], weight: [d], bias: [d]) -> [..., d] { layer_norm(x, weight, bias, over = d) }",
    saved=_saved_layer_norm, streams=_streams_norm, precision=Precision.INSIDE,
)  # fmt: skip
declare(
    "rms_norm", (*_NORM[:2], Param("over", "dims"), Param("eps", "number", 1e-5)), _infer_norm(((1,), (1,))),
    _emit_norm("rms_norm"), "x divided by the root of its mean square, over dims; then times weight.",
    example="(x: [..., d], weight: [d]) -> [..., d] { rms_norm(x, weight, over = d) }",
    saved=_saved_rms_norm, streams=_streams_norm, precision=Precision.INSIDE,
)  # fmt: skip


# --- batch_norm --------------------------------------------------------------


def _infer_batch_norm(site: CallSite) -> Inference:
    type, mean = site.operands[0], site.operands[1]
    require(site, 0, "floating")
    at = next((i for i, t in enumerate(type.dims) if (t,) == mean.dims), -1)
    if at < 0 and len(type.dims) > 1 and same_dims(site, mean.dims, type.dims[1:2]):
        at = 1
    if at < 0:
        refuse_shape(site, 1, type.dims[1:2])
    require_dims(site, 2, (type.dims[at],))
    has = _affine(site, (type.dims[at],))
    whole = [site.dims.resolve(t) for t in type.dims]
    others = [t for d, t in enumerate(whole) if d != at]
    factors = Factors(marked(others, Split.INSIDE, ((1, 1), (2,))))
    operand = factors.dims(whole)
    rule = factors.rule((operand, *[(operand[at],)] * (2 + len(has))), (operand,))
    attrs = {"dim": at, "has": has, "eps": site.static["eps"], "momentum": site.static["momentum"]}
    return Inference((TensorType(type.dtype, tuple(whole)),), rule, attrs)


def _emit_batch_norm(site: OpSite) -> Code:
    dim, has = site.attrs["dim"], site.attrs["has"]
    rule: FactorRule = site.rule
    others = factors_of(f for d, f in enumerate(rule.operands[0]) if d != dim)
    group = group_text(site, others) if site.training else ""
    x, mean, variance, *given = site.operands
    named, tail = dict(zip(has, given, strict=True)), {name: site.attrs[name] for name in ("momentum", "eps")}
    # Of channels that are cut unevenly a rank may have none, which torch's own does not take; nor
    # does it know when it runs again for backward.
    own = site.recomputed or not some(site.operand_shapes[0][dim])
    if group or (site.training and own):
        size = math.prod(rule.factors[f].size for f in others)
        tail |= {"group": group} if group else {}
        return RT("batch_norm", x, dim, mean, variance, **named, size=size, **tail)
    if not site.training and not some(site.operand_shapes[0][dim]):
        return RT("batch_norm_eval", x, dim, mean, variance, **named, eps=tail["eps"])
    plain, named = (given, {}) if has[:1] == ("weight",) else ([], named)
    moved = x if dim == 1 else method(x, "movedim", dim, 1)
    text = F("batch_norm", moved, mean, variance, *plain, **named, training=site.training, **tail)
    return text if dim == 1 else method(text, "movedim", 1, dim)


def _saved_batch_norm(local: LocalOp) -> Residuals:
    shape, dim = local.operands[0], local.attrs["dim"]
    others = tuple(d for d in range(len(shape)) if d != dim)
    weight = (3,) if "weight" in local.attrs["has"] else ()
    return _saved_norm(local, others, () if local.shares(others) else (0, 1, 2, *weight), 3)


declare(
    "batch_norm",
    (
        _X,
        Param("running_mean", "tensor", written=True),
        Param("running_var", "tensor", written=True),
        Param("weight", "tensor", None),
        Param("bias", "tensor", None),
        Param("momentum", "number", 0.1),
        Param("eps", "number", 1e-5),
    ),
    _infer_batch_norm,
    _emit_batch_norm,
    "x normalised over all dims except that of the running statistics. Training uses the statistics of the whole "
    "batch and moves the running ones towards them by `momentum`; `eval` uses the running ones. The variance of "
    "the batch is divided by the count, that for the running one by the count less 1, as in torch.",
    example="(x: [batch, channels, h, w], mean: [channels], var: [channels], weight: [channels], "
    "bias: [channels]) -> [batch, channels, h, w] { batch_norm(x, mean, var, weight, bias) }",
    saved=_saved_batch_norm,
    precision=Precision.FIRST,
)


# --- group_norm --------------------------------------------------------------


def _infer_group_norm(site: CallSite) -> Inference:
    type, groups = site.operands[0], site.static["num_groups"]
    require(site, 0, "floating")
    count = term_size(type.dims[1]) if len(type.dims) > 1 else 0
    if groups < 1 or count == 0 or (count or 0) % groups:
        fact = f"`group_norm` cannot make {groups} groups of {quoted(site.names[0])}"
        help = "`num_groups` divides the channels, the second dim"
        site.sink.report("SH293", fact, site.spans[0], str(type), help=help)
        raise CallRefused
    whole = [site.dims.resolve(t) for t in type.dims]
    has = _affine(site, whole[1:2])
    factors = Factors(marked([_within(whole[1], groups), *whole[2:]], Split.WHOLE))
    operand = factors.dims([site.dims.resolve(t) for t in whole])
    attrs = {"num_groups": groups, "each": (count or groups) // groups, "has": has, "eps": site.static["eps"]}
    rule = factors.rule((operand, *[operand[1:2]] * len(has)), (operand,))
    return Inference((TensorType(type.dtype, tuple(whole)),), rule, attrs)


def _within(channels: Term, groups: int) -> Term:
    """The factors of the channels that a group has several of: those after which the major ones are
    all the groups; else all."""
    before = 1
    for at, dim in enumerate((*channels, None)):
        if before == groups:
            return channels[at:]
        before *= (dim.size or 0) if dim is not None else 0
    return channels


def _emit_group_norm(site: OpSite) -> Code:
    """torch's own has no gradient of a bias without a weight, and wants some channels."""
    x, *given = site.operands
    channels, has, eps = site.operand_shapes[0][1], site.attrs["has"], site.attrs["eps"]
    if has == ("bias",) or not some(channels):
        return RT("group_norm", x, site.attrs["each"], **dict(zip(has, given, strict=True)), eps=eps)
    assert isinstance(channels, int)
    return F("group_norm", x, channels // site.attrs["each"], *given, eps=eps)


def _saved_group_norm(local: LocalOp) -> Residuals:
    """x and the weight, with mean and deviation of each group."""
    batch, channels = local.operands[0][:2]
    each = size((batch, channels // local.attrs["each"]), local.operand_types[0].dtype)
    return Residuals((0, 1) if "weight" in local.attrs["has"] else (0,), more=2 * each)


declare(
    "group_norm",
    (_X, Param("num_groups", "int"), Param("weight", "tensor", None), Param("bias", "tensor", None),
     Param("eps", "number", 1e-5)),
    _infer_group_norm, _emit_group_norm,
    "x of [batch, channels, ...] normalised over the channels of each of `num_groups` groups and all dims behind; "
    "then times weight, plus bias, of a number for each channel.",
    example="(x: [batch, 32, h, w], weight: [32], bias: [32]) -> [batch, 32, h, w] "
    "{ group_norm(x, 8, weight, bias) }",
    saved=_saved_group_norm,
)  # fmt: skip
