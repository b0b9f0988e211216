"""rotary, which turns the pairs of a head by angles that grow with their place."""

from __future__ import annotations

from shardlang.ops.code import RT, Code
from shardlang.ops.declaration import CallSite, Inference, Param, Precision, declare
from shardlang.ops.factors import Factors, marked, require, sized
from shardlang.ops.families.reductions import single_position
from shardlang.ops.rule import Split
from shardlang.ops.saved_activations import Local, elements, nothing
from shardlang.ops.site import OpSite
from shardlang.ops.streams import Streams, in_kernels
from shardlang.ops.texts import offset_text
from shardlang.ops.working_memory import Work
from shardlang.types.dim import BYTES, term_size, term_text


def _infer_rotary(site: CallSite) -> Inference | None:
    if not require(site, 0, "floating"):
        return None
    over, along = (single_position(site, (site.static[name],)) for name in ("over", "along"))
    if over is None or along is None:
        return None
    type, base = site.operands[0], site.static["base"]
    width = term_size(type.dims[over])
    if over == along or base <= 0 or (width is not None and width % 2):
        _report_rotary(site, over, along)
        return None
    factors = Factors(marked([type.dims[over]], Split.WHOLE))
    dims = factors.dims(type.dims)
    return Inference((type,), factors.rule((dims,), (dims,), ((0,),)), {"over": over, "along": along, "base": base})


def _report_rotary(site: CallSite, over: int, along: int) -> None:
    term, base = site.operands[0].dims[over], site.static["base"]
    if over == along:
        fact, help = (
            f"`rotary` is over and along `{term_text(term)}`",
            "it turns pairs over one dim, by places along another",
        )
    elif base <= 0:
        fact, help = f"`base` is {base:g}, and angles are its powers", "`base = 10000.0` is usual"
    else:
        fact, help = f"`rotary` turns pairs, and {sized(term)} is odd", f"make `{term_text(term)}` even"
    site.sink.report("SH293", fact, site.span, labels=[(site.spans[0], str(site.operands[0]))], help=help)


def _work_rotary(local: Local) -> Work:
    """Products of halves of x, in f32 at least, that make a result of the same size; what is
    narrower is made wide first."""
    narrow = BYTES[local.operand_types[0].dtype] < BYTES["f32"]
    wide = elements(local.operands[0]) * max(BYTES["f32"], BYTES[local.operand_types[0].dtype])
    return Work((2 + narrow) * wide, (2 + narrow) * wide)


def _streams_rotary(local: Local) -> Streams:
    """Four products of halves, two sums, and both put together; back as many. A narrow
    x is made wide first, and narrow in the end."""
    narrow = BYTES[local.operand_types[0].dtype] < BYTES["f32"]
    way = (5 + 1.5 * narrow, 4 + 1.5 * narrow, 7 + 2 * narrow)
    return in_kernels(way, way, "f32")(local)


def _emit_rotary(site: OpSite) -> Code:
    start = offset_text(site, site.rule.operands[0][site.attrs["along"]])
    parts = [site.operands[0], *(site.attrs[name] for name in ("over", "along", "base"))]
    return RT("rotary", *parts, **({"start": start} if start != "0" else {}))


declare(
    "rotary",
    (Param("x", "tensor"), Param("over", "dim"), Param("along", "dim"), Param("base", "number", 10000.0)),
    _infer_rotary,
    _emit_rotary,
    "Turns each pair (i, i + n/2) of the n elements over a dim by position * base ** (-2 i / n), as Llama does. "
    "The position is the index along another dim.",
    example="(x: [batch, heads, seq, head_dim]) -> [batch, heads, seq, head_dim] "
    "{ rotary(x, over = head_dim, along = seq) }",
    saved=nothing,
    work=_work_rotary,
    streams=_streams_rotary,
    precision=Precision.GIVEN,
)
