"""conv2d, max_pool2d, avg_pool2d on [batch, channels, height, width]; spatial dims never split."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shardlang.ops.code import RT, Code, F
from shardlang.ops.declaration import CallSite, Inference, Param, Precision, declare
from shardlang.ops.factors import Factors, quoted, require, same_dims
from shardlang.ops.families.normalisations import report_shape
from shardlang.ops.rule import FactorRule
from shardlang.ops.saved_activations import Local, Saved, elements, first
from shardlang.ops.site import OpSite
from shardlang.ops.texts import group_text
from shardlang.types.dim import BYTES, TensorType, Term, term_size, term_text

_X = Param("x", "tensor")
Pair = tuple[int, int]


def _image(site: CallSite) -> bool:
    type = site.operands[0]
    if not require(site, 0, "floating"):
        return False
    if len(type.dims) == 4:
        return True
    site.sink.report(
        "SH287",
        f"`{site.operator.name}` needs [batch, channels, height, width], and {quoted(site.names[0])} is {type}",
        site.spans[0],
        help=f"`rearrange({site.names[0]} -> [...])` gives it four dims; a literal 1 adds one of size 1",
    )
    return False


def _after(
    site: CallSite, window: Sequence[int | None], stride: Pair, padding: Pair, dilation: Pair
) -> list[Term] | None:
    """The spatial dims that windows leave; None after reporting SH293."""
    result: list[Term] = []
    for i, term in enumerate(site.operands[0].dims[2:]):
        size, wide = term_size(term), window[i]
        if size is None or wide is None:
            result.append(site.dims.fresh(("height", "width")[i], None))
            continue
        room = size + 2 * padding[i] - dilation[i] * (wide - 1) - 1
        if room < 0 or stride[i] < 1:
            _report_window(site, term, wide, padding[i], stride[i])
            return None
        result.append(site.dims.fresh(("height", "width")[i], room // stride[i] + 1))
    return result


def _report_window(site: CallSite, term: Term, wide: int, padding: int, stride: int) -> None:
    fact = f"a window of {wide} over `{term_text(term)}` with {padding} of padding"
    fact = f"a stride of {stride}" if stride < 1 else fact
    site.sink.report(
        "SH293", f"`{site.operator.name}` has no place for {fact}", site.span,
        labels=[(site.spans[0], str(site.operands[0]))],
        help="a window fits into the padded image, and a stride is 1 or more",
    )  # fmt: skip


# --- conv2d ------------------------------------------------------------------


def _infer_conv2d(site: CallSite) -> Inference | None:
    x, weight = site.operands[:2]
    bias = site.operands[2] if len(site.operands) > 2 else None
    if not _image(site) or not _weight_fits(site, x, weight):
        return None
    if bias is not None and not same_dims(site, bias.dims, weight.dims[:1]):
        report_shape(site, 2, weight.dims[:1])
        return None
    static = site.static
    window = [term_size(t) for t in weight.dims[2:]]
    spatial = _after(site, window, static["stride"], static["padding"], static["dilation"])
    if spatial is None:
        return None
    resolve = site.dims.resolve
    batch, channels = resolve(x.dims[0]), resolve(weight.dims[0])
    rule = _conv_rule(site, [resolve(t) for t in x.dims], [resolve(t) for t in weight.dims], spatial, bias is not None)
    attrs = {name: static[name] for name in ("stride", "padding", "dilation", "groups")}
    return Inference((TensorType(x.dtype, (batch, channels, *spatial)),), rule, attrs)


def _weight_fits(site: CallSite, x: TensorType, weight: TensorType) -> bool:
    groups = site.static["groups"]
    if len(weight.dims) != 4:
        site.sink.report(
            "SH287", f"`conv2d` needs a weight of four dims, and {quoted(site.names[1])} is {weight}", site.spans[1],
            help="a weight is `[out, in, kernel, kernel]`",
        )  # fmt: skip
        return False
    if groups == 1:
        if weight.dims[1] == x.dims[1] or site.dims.same(x.dims[1], weight.dims[1]):
            return True
        report_shape(site, 1, (weight.dims[0], x.dims[1], *weight.dims[2:]))
        return False
    inner, outer, each = term_size(x.dims[1]), term_size(weight.dims[0]), term_size(weight.dims[1])
    if None in (inner, outer, each) or (groups > 0 and (outer or 0) % groups == 0 and inner == (each or 0) * groups):
        return True
    site.sink.report(
        "SH293", f"`conv2d` cannot make {groups} groups of {inner} channels in and {outer} out", site.span,
        labels=[(site.spans[1], str(weight))],
        help="groups divides both; a weight is `[out, in / groups, kernel, kernel]`",
    )  # fmt: skip
    return False


def _conv_rule(
    site: CallSite, x: Sequence[Term], weight: Sequence[Term], spatial: Sequence[Term], bias: bool
) -> FactorRule:
    """Batch and output channels split freely, input channels leave a sum; none with groups."""
    factors = Factors()
    batch = factors.term(x[0])
    if site.static["groups"] == 1:
        inner = each = factors.term(x[1])
        outer = factors.term(weight[0])
    else:
        inner, each, outer = factors.alone(x[1]), factors.alone(weight[1]), factors.alone(weight[0])
    image = tuple(factors.alone(t) for t in x[2:])
    kernel = tuple(factors.alone(t) for t in weight[2:])
    result = (batch, outer, *[factors.alone(t) for t in spatial])
    operands = [(batch, inner, *image), (outer, each, *kernel)]
    return factors.rule(operands + [(outer,)] * bias, (result,), ((0, 2), (1, 2)) if bias else ((0,), (1,)))


def _conv_flops(rule: FactorRule, attrs: Mapping[str, Any]) -> int:
    return 2 * math.prod(_conv_product(rule))


def _conv_product(rule: FactorRule) -> tuple[int, int, int, int]:
    """Each place of the result is the product of a part of the image and the weight."""
    (batch, outer, *places), (_, *inner) = rule.results[0], rule.operands[1]
    rows, columns, sums = ([f for dim in dims for f in dim] for dims in ((batch, *places), (outer,), inner))
    m, n, k = (math.prod(rule.factors[f].size for f in each) for each in (rows, columns, sums))
    return 1, m, n, k


def _pairs(site: OpSite, defaults: dict[str, object]) -> dict[str, object]:
    """Attributes that differ from torch's defaults, as keywords; (2, 2) is written 2."""
    found = {}
    for name, default in defaults.items():
        value = site.attrs[name]
        plain = value[0] if isinstance(value, tuple) and value[0] == value[1] else value
        if plain != default:
            found[name] = plain
    return found


def _emit_conv2d(site: OpSite) -> Code:
    x, weight, *bias = site.operands
    group = group_text(site, site.rule.operands[0][1])
    if bias and group:
        # The result is pending over the input channels: the bias joins that sum once.
        bias = [RT("replicated_to_pending", bias[0], group)]
    options = _pairs(site, {"stride": 1, "padding": 0, "dilation": 1, "groups": 1})
    module = RT if _perhaps_none(site, 0, 1) or _perhaps_none(site, 1, 0) else F
    return module("conv2d", x, weight, *bias, **options)


def _perhaps_none(site: OpSite, at: int, dim: int) -> bool:
    """Whether a dim is cut unevenly, so that a rank may have nothing of it."""
    return site.operand_shapes[at][dim] == 0 or not isinstance(site.operand_shapes[at][dim], int)


def _saved_conv(local: Local) -> Saved:
    """Image and weight, each for the other's gradient; a bias needs neither."""
    image, weight = local.gradient[:2]
    return Saved((0,) * weight + (1,) * image)


declare(
    "conv2d",
    (
        _X,
        Param("weight", "tensor"),
        Param("bias", "tensor", None),
        Param("stride", "pair", (1, 1)),
        Param("padding", "pair", (0, 0)),
        Param("dilation", "pair", (1, 1)),
        Param("groups", "int", 1),
    ),
    _infer_conv2d,
    _emit_conv2d,
    "The sliding product of an image [batch, in, height, width] and a weight [out, in, kernel, kernel].",
    _conv_flops,
    product=_conv_product,
    example="(x: [batch, in, 32, 32], weight: [out, in, 5, 5], bias: [out]) -> [batch, out, 28, 28] "
    "{ conv2d(x, weight, bias) }",
    saved=_saved_conv,
    precision=Precision.LOW,
)


# --- pooling -----------------------------------------------------------------


def _infer_pool(through: tuple[tuple[int, ...], ...]) -> Callable[[CallSite], Inference | None]:
    def infer(site: CallSite) -> Inference | None:
        if not _image(site):
            return None
        static = site.static
        kernel = static["kernel_size"]
        stride, padding = static["stride"] or kernel, static["padding"]
        if any(2 * p > k for p, k in zip(padding, kernel, strict=True)):
            site.sink.report(
                "SH293", f"`{site.operator.name}` pads by at most half its window, and {padding} is more than half of "
                f"{kernel}", site.span, help="`padding` is half of the window or less",
            )  # fmt: skip
            return None
        spatial = _after(site, kernel, stride, padding, (1, 1))
        if spatial is None:
            return None
        x = site.operands[0]
        factors = Factors()
        lead = factors.dims(x.dims[:2])
        operand = (*lead, *[factors.alone(t) for t in x.dims[2:]])
        result = (*lead, *[factors.alone(t) for t in spatial])
        attrs = {"kernel_size": kernel, "stride": stride, "padding": padding}
        rule = factors.rule((operand,), (result,), through)
        return Inference((TensorType(x.dtype, (*x.dims[:2], *spatial)),), rule, attrs)

    return infer


def _saved_max_pool(local: Local) -> Saved:
    """The image, and the place of each greatest value."""
    return Saved((0,), more=elements(local.results[0]) * BYTES["i64"])


def _pool(name: str, through: tuple[tuple[int, ...], ...], saved: Callable[[Local], Saved], doc: str) -> None:
    def emit(site: OpSite) -> Code:
        kernel = site.attrs["kernel_size"]
        plain = kernel[0] if kernel[0] == kernel[1] else kernel
        options = _pairs(site, {"stride": plain, "padding": 0})
        return (RT if _perhaps_none(site, 0, 1) else F)(name, site.operands[0], plain, **options)

    params = (
        _X,
        Param("kernel_size", "pair"),
        Param("stride", "pair", None),
        Param("padding", "pair", (0, 0)),
    )
    example = f"(x: [batch, channels, 32, 32]) -> [batch, channels, 16, 16] {{ {name}(x, 2) }}"
    declare(name, params, _infer_pool(through), emit, doc, example=example, saved=saved,
            precision=Precision.GIVEN)  # fmt: skip


_pool("max_pool2d", (), _saved_max_pool,
      "The greatest value of each window; without `stride` windows lie side by side.")
_pool("avg_pool2d", ((0,),), first, "The mean of each window; without `stride` windows lie side by side.")
