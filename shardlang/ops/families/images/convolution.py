"""Convolutions of [batch, channels, length] and of [batch, channels, height, width], and their
transposes; spatial dims never split."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from shardlang.ops.code import RT, Code, F
from shardlang.ops.declaration import CallSite, Inference, Param, Precision, declare
from shardlang.ops.factors import Factors, quoted, refuse_shape, require_dims
from shardlang.ops.families.images.spatial import KINDS, SPATIAL, Sizes, X, each, image, options, windows
from shardlang.ops.rule import DimFactors, FactorRule
from shardlang.ops.saved_activations import LocalOp, Residuals
from shardlang.ops.site import OpSite, some
from shardlang.ops.texts import group_text
from shardlang.types.dim import TensorType, Term, term_size

# --- convolutions ------------------------------------------------------------


def _infer_conv(site: CallSite) -> Inference:
    x, weight = site.operands[:2]
    image(site, 1 if site.operator.name == "conv1d" else 2)
    _require_weight(site, x, weight)
    _require_bias(site, weight.dims[0])
    attrs = {name: each(site, name) for name in ("stride", "padding", "dilation")}
    window = [term_size(t) for t in weight.dims[2:]]
    spatial = windows(site, window, attrs["stride"], attrs["padding"], attrs["dilation"])
    resolve = site.dims.resolve
    batch, channels = resolve(x.dims[0]), resolve(weight.dims[0])
    rule = _conv_rule(site, [resolve(t) for t in x.dims], [resolve(t) for t in weight.dims], spatial)
    type = TensorType(x.dtype, (batch, channels, *spatial))
    return Inference((type,), rule, {**attrs, "groups": site.static["groups"]})


def _require_bias(site: CallSite, out: Term) -> None:
    if len(site.operands) > 2 and site.operands[2] is not None:
        require_dims(site, 2, (out,))


def _require_channels(site: CallSite, at: int, x: Term, wanted: Sequence[Term]) -> None:
    """SH288 where the weight's dim `at` is not the channels of the value."""
    if (mine := site.operands[1].dims[at]) != x and not site.dims.same(x, mine):
        refuse_shape(site, 1, wanted)


def _require_weight(site: CallSite, x: TensorType, weight: TensorType) -> None:
    groups, name = site.static["groups"], site.operator.name
    _require_rank(site, x, weight, "out, in")
    if groups == 1:
        return _require_channels(site, 1, x.dims[1], (weight.dims[0], x.dims[1], *weight.dims[2:]))
    inner, outer, each = term_size(x.dims[1]), term_size(weight.dims[0]), term_size(weight.dims[1])
    if None in (inner, outer, each) or (groups > 0 and (outer or 0) % groups == 0 and inner == (each or 0) * groups):
        return None
    kernel = ", ".join(["kernel"] * (len(weight.dims) - 2))
    site.refuse("SH293", f"`{name}` cannot make {groups} groups of {inner} channels in and {outer} out",
                f"groups divides both; a weight is `[out, in / groups, {kernel}]`", 1)  # fmt: skip


def _require_rank(site: CallSite, x: TensorType, weight: TensorType, channels: str) -> None:
    """SH287 where a weight has not as many dims as the value."""
    if len(weight.dims) == len(x.dims):
        return
    many, kernel = {3: "three", 4: "four"}[len(x.dims)], ", ".join(["kernel"] * (len(x.dims) - 2))
    fact = f"`{site.operator.name}` needs a weight of {many} dims, and {quoted(site.names[1])} is {weight}"
    site.refuse("SH287", fact, f"a weight is `[{channels}, {kernel}]`", span=site.spans[1])


def _conv_rule(site: CallSite, x: Sequence[Term], weight: Sequence[Term], spatial: Sequence[Term]) -> FactorRule:
    """Batch and output channels split freely, input channels leave a sum; with groups no channels,
    unless each is a group of its own: then these split freely."""
    factors, groups = Factors(), site.static["groups"]
    batch = factors.term(x[0])
    if groups == 1:
        inner = per_group = factors.term(x[1])
        outer = factors.term(weight[0])
    elif x[1] == weight[0] and groups == term_size(x[1]):
        inner = outer = factors.term(x[1])
        per_group = factors.alone(weight[1])
    else:
        inner, per_group, outer = factors.alone(x[1]), factors.alone(weight[1]), factors.alone(weight[0])
    image = tuple(factors.alone(t) for t in x[2:])
    kernel = tuple(factors.alone(t) for t in weight[2:])
    result = (batch, outer, *[factors.alone(t) for t in spatial])
    return _with_bias(site, factors, [(batch, inner, *image), (outer, per_group, *kernel)], outer, result)


def _with_bias(
    site: CallSite, factors: Factors, operands: list[tuple[DimFactors, ...]], outer: DimFactors,
    result: tuple[DimFactors, ...],
) -> FactorRule:  # fmt: skip
    bias = len(site.operands) > 2 and site.operands[2] is not None
    return factors.rule(operands + [(outer,)] * bias, (result,), ((0, 2), (1, 2)) if bias else ((0,), (1,)))


def _conv_product(rule: FactorRule) -> tuple[int, int, int, int]:
    """Each place of the result is the product of a part of the image and the weight."""
    (batch, outer, *places), (_, *inner) = rule.results[0], rule.operands[1]
    rows, columns, sums = ([f for dim in dims for f in dim] for dims in ((batch, *places), (outer,), inner))
    m, n, k = (math.prod(rule.factors[f].size for f in each) for each in (rows, columns, sums))
    return 1, m, n, k


def _transposed_product(rule: FactorRule) -> tuple[int, int, int, int]:
    """Each place of the image times the weight, whose products are added up where they meet."""
    (batch, inner, *places), (_, outer, *kernel) = rule.operands[:2]
    rows, columns = ([f for dim in dims for f in dim] for dims in ((batch, *places), (outer, *kernel)))
    m, n, k = (math.prod(rule.factors[f].size for f in each) for each in (rows, columns, inner))
    return 1, m, n, k


def _emit_conv(transposed: bool = False) -> Callable[[OpSite], Code]:
    def emit(site: OpSite) -> Code:
        x, weight, *bias = site.operands
        inner, outer = site.rule.operands[0][1], site.rule.results[0][1]
        group = "" if inner == outer else group_text(site, inner)
        if bias and group:
            # The result is pending over the input channels: the bias joins that sum once.
            bias = [RT("replicated_to_pending", bias[0], group)]
        more = options(site, _TRANSPOSED_DEFAULTS if transposed else _CONV_DEFAULTS)
        if inner == outer and "groups" in more:  # each channel is a group
            more["groups"] = site.operand_shapes[0][1]
        none = not some(site.operand_shapes[0][1]) or not some(site.operand_shapes[1][1 if transposed else 0])
        name = f"conv{'_transpose' * transposed}{len(site.operand_shapes[0]) - 2}d"
        return (RT if none else F)(name, x, weight, *bias, **more)

    return emit


_CONV_DEFAULTS: dict[str, object] = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1}
_TRANSPOSED_DEFAULTS: dict[str, object] = {"stride": 1, "padding": 0, "output_padding": 0, "dilation": 1}


def _saved_conv(local: LocalOp) -> Residuals:
    """Image and weight, each for the other's gradient; a bias needs neither."""
    image, weight = local.gradient[:2]
    return Residuals((0,) * weight + (1,) * image)


def _params(n: int, **starts: int) -> tuple[Param, ...]:
    """The parameters of a convolution over n spatial dims: tensors, and a number for each dim."""
    each = (Param(name, KINDS[n], (start,) * n if n > 1 else start) for name, start in starts.items())
    return X, Param("weight", "tensor"), Param("bias", "tensor", None), *each


def _conv(n: int) -> None:
    side, after = (", ".join([str(size)] * n) for size in (32, 28))
    params = (*_params(n, stride=1, padding=0, dilation=1), Param("groups", "int", 1))
    shape, kernel = ", ".join(SPATIAL[n]), ", ".join(["kernel"] * n)
    declare(
        f"conv{n}d", params, _infer_conv, _emit_conv(),
        f"The sliding product of a value [batch, in, {shape}] and a weight [out, in, {kernel}].",
        product=_conv_product,
        example=f"(x: [batch, in, {side}], weight: [out, in, {', '.join('5' * n)}], bias: [out]) "
        f"-> [batch, out, {after}] {{ conv{n}d(x, weight, bias) }}",
        saved=_saved_conv, precision=Precision.LOW,
    )  # fmt: skip


_conv(1)
_conv(2)


def _infer_transposed(site: CallSite) -> Inference:
    x, weight = site.operands[:2]
    n = 1 if site.operator.name == "conv_transpose1d" else 2
    image(site, n)
    _require_rank(site, x, weight, "in, out")
    _require_channels(site, 0, x.dims[1], (x.dims[1], *weight.dims[1:]))
    _require_bias(site, weight.dims[1])
    attrs = {name: each(site, name) for name in ("stride", "padding", "output_padding", "dilation")}
    spatial = _before(site, [term_size(t) for t in weight.dims[2:]], attrs)
    given, kernel = ([site.dims.resolve(t) for t in type.dims] for type in (x, weight))
    factors = Factors()
    batch, inner, outer = factors.term(given[0]), factors.term(given[1]), factors.term(kernel[1])
    operands = [(batch, inner, *map(factors.alone, given[2:])), (inner, outer, *map(factors.alone, kernel[2:]))]
    rule = _with_bias(site, factors, operands, outer, (batch, outer, *map(factors.alone, spatial)))
    type = TensorType(x.dtype, (given[0], kernel[1], *spatial))
    return Inference((type,), rule, attrs)


def _before(site: CallSite, window: Sequence[int | None], attrs: Mapping[str, Sizes]) -> list[Term]:
    """The spatial dims of which a convolution makes those of the operand."""
    result: list[Term] = []
    each = zip(*(attrs[name] for name in ("stride", "padding", "output_padding", "dilation")), strict=True)
    for i, (stride, padding, more, dilation) in enumerate(each):
        size, wide, name = term_size(site.operands[0].dims[2 + i]), window[i], SPATIAL[len(window)][i]
        after = None if size is None or wide is None else (
            (size - 1) * stride - 2 * padding + dilation * (wide - 1) + more + 1)  # fmt: skip
        if min(stride, dilation) < 1 or min(padding, more) < 0 or more >= max(stride, dilation) or (
            after is not None and after < 1):  # fmt: skip
            given = f"{padding} of padding, {more} of output_padding and a dilation of {dilation}"
            fact = f"`{site.operator.name}` leaves nothing of a stride of {stride}, {given}"
            help = "output_padding is less than the stride or the dilation, and padding takes less than there is"
            site.refuse("SH293", fact, help, 0)
        result.append(site.dims.fresh(name, after))
    return result


def _transposed(n: int) -> None:
    params = _params(n, stride=1, padding=0, output_padding=0, dilation=1)
    side, after, two = (", ".join([str(size)] * n) for size in (16, 32, 2))
    declare(
        f"conv_transpose{n}d", params, _infer_transposed, _emit_conv(transposed=True),
        f"The convolution conv{n}d turned round, as its backward does: each element of a value [batch, in, "
        f"{', '.join(SPATIAL[n])}] times a weight [in, out, {', '.join(['kernel'] * n)}], added up where they meet.",
        product=_transposed_product,
        example=f"(x: [batch, in, {side}], weight: [in, out, {two}], bias: [out]) -> [batch, out, {after}] "
        f"{{ conv_transpose{n}d(x, weight, bias, stride = 2) }}",
        saved=_saved_conv, precision=Precision.LOW,
    )  # fmt: skip


_transposed(1)
_transposed(2)
