"""Operators that work on each element alone: activations, powers, comparisons, where.

Sums, products and powers of two tensors are in arithmetic.py."""

from __future__ import annotations

import math
from collections.abc import Callable

from shardlang.ops.code import TORCH, Code, F, Module
from shardlang.ops.declaration import CallSite, Inference, Param, Precision, between, calls, declare
from shardlang.ops.factors import each_element, elementwise, promote, require
from shardlang.ops.python_text import literal
from shardlang.ops.saved_activations import LocalOp, Residuals, first, made
from shardlang.ops.site import OpSite

_X, _PAIR = Param("x", "tensor"), (Param("left", "tensor"), Param("right", "tensor"))
_GIVEN = Precision.GIVEN


_floating, _any_number = each_element("floating"), each_element("number")


def _unary(
    name: str, module: Module, doc: str, saved: Callable[[LocalOp], Residuals],
    infer: Callable[[CallSite], Inference] = _floating, precision: Precision = Precision.INSIDE,
    of_number: Callable[[float], float] | None = None,
) -> None:  # fmt: skip
    example = f"(x: [..., d]) -> [..., d] {{ {name}(x) }}"
    declare(name, (_X,), infer, calls(module, name), doc, example=example, saved=saved, precision=precision,
            of_number=of_number)  # fmt: skip


_unary("relu", TORCH, "The greater of x and 0.", made, _any_number, _GIVEN)
_unary("silu", F, "x * sigmoid(x).", first, precision=_GIVEN)
_unary("tanh", TORCH, "The hyperbolic tangent.", made, precision=_GIVEN)
_unary("sigmoid", TORCH, "1 / (1 + exp(-x)).", made, precision=_GIVEN)
_unary("erf", TORCH, "The error function.", first)
_unary("softplus", F, "log(1 + exp(x)).", first)
_unary("elu", F, "x where it is greater than 0, elsewhere exp(x) - 1.", first)
_unary("exp", TORCH, "e to the power of x.", made, of_number=math.exp)
_unary("log", TORCH, "The natural logarithm.", first, of_number=math.log)
_unary("sqrt", TORCH, "The square root.", made, of_number=math.sqrt)
_unary("rsqrt", TORCH, "1 / sqrt(x).", made)
_unary("square", TORCH, "x * x.", first, _any_number)
_unary("abs", TORCH, "The absolute value.", first, _any_number, _GIVEN)
_unary("sin", TORCH, "The sine.", first, precision=_GIVEN)
_unary("cos", TORCH, "The cosine.", first, precision=_GIVEN)


def _infer_gelu(site: CallSite) -> Inference:
    found = _floating(site)
    approximate = site.static.get("approximate", "none")
    if approximate not in ("none", "tanh"):
        site.refuse("SH293", f'`gelu` knows no approximation "{approximate}"', '`approximate` is "none" or "tanh"')
    return Inference(found.results, found.rule, {"approximate": approximate})


def _emit_gelu(site: OpSite) -> Code:
    kind = site.attrs["approximate"]
    return F("gelu", site.operands[0], **({} if kind == "none" else {"approximate": literal(kind)}))


declare(
    "gelu", (_X, Param("approximate", "str", "none")), _infer_gelu, _emit_gelu,
    'x * Phi(x), Phi the normal distribution function; `approximate = "tanh"` as in torch.',
    example="(x: [..., d]) -> [..., d] { gelu(x) }", saved=first, precision=_GIVEN,
)  # fmt: skip


def _comparison(name: str, symbol: str, doc: str) -> None:
    example = f"(left: [..., d], right: [..., d]) -> bool[..., d] {{ left {symbol} right }}"
    declare(name, _PAIR, lambda site: elementwise(site, "bool"), between(symbol), doc, example=example,
            numbers=True, differentiable=False, symbol=symbol, precision=_GIVEN)  # fmt: skip


_comparison("eq", "==", "Where left equals right, as bool.")
_comparison("ne", "!=", "Where left differs from right, as bool.")
_comparison("lt", "<", "Where left is less than right, as bool.")
_comparison("le", "<=", "Where left is at most right, as bool.")
_comparison("gt", ">", "Where left is greater than right, as bool.")
_comparison("ge", ">=", "Where left is at least right, as bool.")


def _truths(site: CallSite) -> Inference:
    for at in range(len(site.operands)):
        require(site, at, "bool")
    return elementwise(site, "bool")


def _logical(name: str, symbol: str, params: tuple[Param, ...], example: str, doc: str) -> None:
    declare(name, params, _truths, calls(TORCH, name), doc, example=example, differentiable=False, symbol=symbol,
            precision=_GIVEN)  # fmt: skip


_BOTH = "(left: bool[..., d], right: bool[..., d]) -> bool[..., d]"
_logical("logical_and", "and", _PAIR, f"{_BOTH} {{ left and right }}", "Where both hold.")
_logical("logical_or", "or", _PAIR, f"{_BOTH} {{ left or right }}", "Where either holds.")
_logical("logical_not", "not", (_X,), "(x: bool[..., d]) -> bool[..., d] { not x }", "Where x does not hold.")


def _compared(local: LocalOp) -> Residuals:
    """Which of the two is given; a bound that is a number is none."""
    return Residuals(tuple(range(len(local.operands))))


def _extremum(name: str, bound: str, doc: str) -> None:
    """`torch.maximum` needs tensors; a number is a bound of `torch.clamp`."""

    def emit(site: OpSite) -> Code:
        for x, number in zip(site.operands, reversed(site.numbers), strict=True):
            if number is not None:
                return TORCH("clamp", x, **{bound: number})
        return TORCH(name, *site.operands)

    example = f"(left: [..., d], right: [..., d]) -> [..., d] {{ {name}(left, right) }}"
    declare(name, _PAIR, lambda site: elementwise(site, promote(site.operands)), emit, doc, example=example,
            numbers=True, saved=_compared, precision=_GIVEN)  # fmt: skip


_extremum("maximum", "min", "The greater of two values, element by element.")
_extremum("minimum", "max", "The lesser of two values, element by element.")


def _infer_where(site: CallSite) -> Inference:
    require(site, 0, "bool")
    return elementwise(site, promote(site.operands[1:]))


declare(
    "where",
    (Param("condition", "tensor"), Param("then", "tensor"), Param("otherwise", "tensor")),
    _infer_where,
    calls(TORCH, "where"),
    "`then` where the condition holds, `otherwise` elsewhere.",
    example="(condition: bool[..., d], then: [..., d], otherwise: [..., d]) -> [..., d] "
    "{ where(condition, then, otherwise) }",
    numbers=True,
    saved=first,
    precision=_GIVEN,
)
