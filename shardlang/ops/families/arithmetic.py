"""Sums, products, quotients, remainders and powers of tensors and numbers, dims aligned from the
right."""

from __future__ import annotations

from collections.abc import Callable

from shardlang.ops.code import Code, around, atom, infix, method
from shardlang.ops.declaration import CallSite, Inference, Param, Precision, between, declare
from shardlang.ops.factors import each_element, elementwise, promote, require
from shardlang.ops.saved_activations import LocalOp, Residuals, nothing, others
from shardlang.ops.site import OpSite
from shardlang.ops.working_memory import WorkingMemory, passing_alike, plain
from shardlang.types.dim import FLOATS

# How many operands of truth values torch refuses.
_REFUSED = {"sub": 1, "pow": 2, "floor_divide": 1, "remainder": 1}
_PAIR = (Param("left", "tensor"), Param("right", "tensor"))


def _infer(through: tuple[tuple[int, ...], ...], floating: bool = False) -> Callable[[CallSite], Inference]:
    def infer(site: CallSite) -> Inference:
        bools = [at for at, type in enumerate(site.operands) if type.dtype == "bool"]
        if len(bools) >= _REFUSED.get(site.operator.name, 3):
            require(site, bools[0], "number")
        return elementwise(site, _dtype(site, floating), through)

    return infer


def _dtype(site: CallSite, floating: bool) -> str:
    """The promoted type; a whole number keeps an integer tensor, and makes a bool an integer."""
    types = site.operands
    tensors = [t for t, span in zip(types, site.spans, strict=True) if not (not t.dims and _whole(span.text))]
    dtype = promote(tensors or types)
    if dtype == "bool" and len(tensors) < len(types):
        dtype = "i64"
    return site.floating if floating and dtype not in FLOATS else dtype


def _whole(text: str) -> bool:
    return text.replace("_", "").isdigit()


def _power(local: LocalOp) -> Residuals:
    """For a power to a number the base; to what has a gradient, the result too."""
    return Residuals((0, 1), (0,)) if local.gradient[1] else Residuals((0, 1))


def _binary(
    name: str, symbol: str, through: tuple[tuple[int, ...], ...], doc: str, saved: Callable[[LocalOp], Residuals],
    floating: bool = False, precision: Precision = Precision.BESIDE, work: Callable[[LocalOp], WorkingMemory] = plain,
    differentiable: bool = True, emit: Callable[[OpSite], Code] | None = None,
) -> None:  # fmt: skip
    example = f"(left: [..., d], right: [..., d]) -> [..., d] {{ left {symbol} right }}"
    declare(name, _PAIR, _infer(through, floating), emit or between(symbol), doc, example=example, numbers=True,
            saved=saved, symbol=symbol, precision=precision, work=work, differentiable=differentiable)  # fmt: skip


def _whole_quotient(site: OpSite) -> Code:
    """torch has no derivative of what is rounded down."""
    text = infix("//", *site.operands)
    return method(text, "detach") if site.result_types[0].floating else text


_binary("add", "+", ((0, 1),), "The sum of two values.", nothing, work=passing_alike)
_binary("sub", "-", ((0, 1),), "The difference of two values.", nothing)
_binary("mul", "*", ((0,), (1,)), "The product of two values, element by element.", others)
_binary(
    "div",
    "/",
    ((0,),),
    "The quotient of two values, floating also for whole numbers.",
    lambda local: Residuals((0, 1) if local.gradient[1] else (1,)),
    floating=True,
)
_binary(
    "floor_divide",
    "//",
    (),
    "The quotient of two values, rounded down.",
    nothing,
    differentiable=False,
    emit=_whole_quotient,
)
_binary(
    "remainder",
    "%",
    (),
    "left - right * (left // right): it has the sign of right.",
    lambda local: Residuals((0, 1) if local.gradient[1] else ()),
)
_binary("pow", "**", (), "The left value to the power of the right.", _power, precision=Precision.INSIDE)


declare("neg", (Param("x", "tensor"),), each_element("number", through=True),
        lambda site: around("-", atom(site.operands[0])), "The negative of x.",
        example="(x: [..., d]) -> [..., d] { -x }", saved=nothing, symbol="-", precision=Precision.GIVEN)  # fmt: skip
