"""dropout and dropout2d; rand and randn.

The same elements fall out under every layout, since each draws the number of its global index."""

from __future__ import annotations

from collections.abc import Callable

from shardlang.ops.code import RT, Code, method
from shardlang.ops.declaration import Arrow, CallSite, Inference, Operator, Param, Precision, always, declare, declaring
from shardlang.ops.factors import Factors, quoted, require, unary_rule
from shardlang.ops.saved_activations import Aliasing, LocalOp, Residuals, elements, own, size, view
from shardlang.ops.site import OpSite
from shardlang.ops.streams import NOTHING, KernelIO, Streams
from shardlang.ops.texts import cut, key_text, offset_text
from shardlang.ops.working_memory import drawn
from shardlang.types.dim import TensorType


def _infer(site: CallSite) -> Inference:
    type, p = site.operands[0], site.static["p"]
    require(site, 0, "floating")
    if not 0 <= p < 1:
        site.refuse("SH293", f"`p` is {p:g}, and it is the share that falls out: from 0 to less than 1",
                    f"`{site.operator.name}({site.names[0]}, p = 0.1)` drops a tenth")  # fmt: skip
    if site.operator.name == "dropout2d" and len(type.dims) != 4:
        site.refuse("SH287",
                    f"`dropout2d` needs [batch, channels, height, width], and {quoted(site.names[0])} is {type}",
                    "`dropout` drops single elements of any shape", span=site.spans[0])  # fmt: skip
    # The mask is the same on every rank, so what is pending may stay pending.
    return Inference((type,), unary_rule(type, through=True), {"p": p})


def _emit(name: str) -> Callable[[OpSite], Code]:
    def emit(site: OpSite) -> Code:
        offsets = tuple(offset_text(site, factors) for factors in site.rule.operands[0])
        place = {"whole": site.operand_types[0].shape, "offsets": offsets}
        here = place if cut(site, 0) or any(o != "0" for o in offsets) else {}
        return RT(name, site.operands[0], site.attrs["p"], key_text(site), **here)

    return emit


def _masked(dims: int | None) -> Callable[[LocalOp], Residuals]:
    """A byte for each element, or for each of the leading `dims`."""
    return lambda local: Residuals(more=elements(local.operands[0][:dims]) if local.attrs["p"] else 0)


def _streams(dims: int | None) -> Callable[[LocalOp], Streams]:
    """Half a word of 64 bits an element, or each of the leading `dims`, is counted, mixed in four
    kernels and compared (runtime/functions/masks.py); the mask, a byte each, is applied forward
    and backward."""

    def streams(local: LocalOp) -> Streams:
        if not local.attrs["p"]:
            return Streams(NOTHING, NOTHING)
        drawn, whole = elements(local.operands[0][:dims]), size(local.operands[0], local.operand_types[0].dtype)
        forward = KernelIO(20 * drawn + drawn + whole, 20 * drawn + drawn + whole, 7)
        return Streams(forward, KernelIO(drawn + whole, whole, 1) if local.gradient[0] else NOTHING)

    return streams


def _aliasing(local: LocalOp) -> Aliasing:
    """Where nothing falls out the operand itself comes back."""
    return own(local) if local.attrs["p"] else view(local)


class _Dropout(Operator):
    train_only = True


def _dropout(name: str, shape: str, dims: int | None, doc: str) -> None:
    """dims: how many leading ones fall out as a whole; None: each element alone."""
    declaring(_Dropout)(
        name, (Param("x", "tensor"), Param("p", "number", 0.5)), _infer, _emit(name), doc,
        example=f"(x: [{shape}]) -> [{shape}] {{ {name}(x, p = 0.1) }}", random=always, saved=_masked(dims),
        aliasing=_aliasing, work=drawn(dims), streams=_streams(dims), precision=Precision.GIVEN,
    )  # fmt: skip


_dropout("dropout", "..., d", None, "Each element becomes 0 with probability p, else it is divided by 1 - p.")
_dropout("dropout2d", "batch, channels, h, w", 2, "As dropout, for whole channels of [batch, channels, height, width].")


# --- rand, randn -----------------------------------------------------------------


def _infer_drawn(site: CallSite) -> Inference:
    if site.arrow is None:
        site.refuse("SH284", f"`{site.operator.name}` needs the dims of its result",
                    f"`{site.operator.name}(-> [batch, d])`, say")  # fmt: skip
    dims = tuple(map(site.dims.resolve, site.arrow))
    factors = Factors()
    return Inference((TensorType(site.floating, dims),), factors.rule((), (factors.dims(dims),)))


def _emit_drawn(name: str) -> Callable[[OpSite], Code]:
    def emit(site: OpSite) -> Code:
        shape, whole = site.result_shapes[0], site.result_types[0].shape
        offsets = tuple(offset_text(site, factors) for factors in site.rule.results[0])
        place = {"whole": whole, "offsets": offsets} if shape != whole or any(o != "0" for o in offsets) else {}
        made = RT(name, shape, key_text(site), **place)
        return method(made, "double") if site.result_types[0].dtype == "f64" else made

    return emit


for _name, _doc in (("rand", "uniform in [0, 1)"), ("randn", "normal of mean 0 and deviation 1")):
    declare(_name, (), _infer_drawn, _emit_drawn(_name),
            f"Numbers that are {_doc}, drawn anew in each step, by the same generator as `dropout`.",
            example=f"(x: [batch, d]) -> [batch, d] {{ x + {_name}(-> [batch, d]) }}", arrow=Arrow.DIMS, random=always,
            differentiable=False)  # fmt: skip
