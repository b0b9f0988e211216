"""rotary, which turns the pairs of a head by angles that grow with their place."""

from __future__ import annotations

from shardlang.ops.code import RT, Code
from shardlang.ops.declaration import CallSite, Inference, Param, Precision, declare
from shardlang.ops.factors import Factors, marked, require, sized
from shardlang.ops.families.reductions import single_position
from shardlang.ops.rule import Split
from shardlang.ops.saved_activations import LocalOp, elements, nothing
from shardlang.ops.site import OpSite
from shardlang.ops.streams import Streams, in_kernels
from shardlang.ops.texts import offset_text
from shardlang.ops.working_memory import WorkingMemory
from shardlang.types.dim import BYTES, term_size, term_text

# Which elements are a pair.
PAIRS = ("halves", "neighbours")


def _infer_rotary(site: CallSite) -> Inference:
    require(site, 0, "floating")
    over, along = (single_position(site, (site.static[name],)) for name in ("over", "along"))
    type, base = site.operands[0], site.static["base"]
    _require_possible(site, over, along)
    factors = Factors(marked([type.dims[over]], Split.WHOLE))
    dims = factors.dims(type.dims)
    attrs = {"over": over, "along": along, "base": base}
    attrs |= {name: site.static[name] for name in ("pairs", "part", "scales")}
    return Inference((type,), factors.rule((dims,), (dims,), ((0,),)), attrs)


def _require_possible(site: CallSite, over: int, along: int) -> None:
    """SH293 where an argument is not."""
    term, base = site.operands[0].dims[over], site.static["base"]
    size, part, scales = term_size(term), site.static["part"], site.static["scales"]
    turned = size if part is None else part
    fact = help = ""
    if part is not None and not (0 < part <= (part if size is None else size) and part % 2 == 0):
        fact, help = f"`part` is {part}, of {sized(term)}", "an even number of elements is turned, the first of the dim"
    elif site.static["pairs"] not in PAIRS:
        fact, help = f"`rotary` knows no pairs `{site.static['pairs']}`", '`pairs` is "halves" or "neighbours"'
    elif scales is not None and turned is not None and len(scales) != turned // 2:
        fact = f"`scales` has {len(scales)} numbers, for {turned // 2} pairs"
        help = "each is a factor of the angle of a pair, in their order"
    elif over == along:
        fact = f"`rotary` is over and along `{term_text(term)}`"
        help = "it turns pairs over one dim, by places along another"
    elif base <= 0:
        fact, help = f"`base` is {base:g}, and angles are its powers", "`base = 10000.0` is usual"
    elif turned is not None and turned % 2:
        fact, help = f"`rotary` turns pairs, and {sized(term)} is odd", f"make `{term_text(term)}` even"
    if fact:
        site.refuse("SH293", fact, help, 0)


def _work_rotary(local: LocalOp) -> WorkingMemory:
    """Products of halves of x, in f32 at least, that make a result of the same size; what is
    narrower is made wide first."""
    narrow = BYTES[local.operand_types[0].dtype] < BYTES["f32"]
    wide = elements(local.operands[0]) * max(BYTES["f32"], BYTES[local.operand_types[0].dtype])
    return WorkingMemory((2 + narrow) * wide, (2 + narrow) * wide)


def _streams_rotary(local: LocalOp) -> Streams:
    """Four products of halves, two sums, and both put together; back as many. A narrow
    x is made wide first, and narrow in the end."""
    narrow = BYTES[local.operand_types[0].dtype] < BYTES["f32"]
    way = (5 + 1.5 * narrow, 4 + 1.5 * narrow, 7 + 2 * narrow)
    return in_kernels(way, way, "f32")(local)


def _emit_rotary(site: OpSite) -> Code:
    start = offset_text(site, site.rule.operands[0][site.attrs["along"]])
    parts = [site.operands[0], *(site.attrs[name] for name in ("over", "along", "base"))]
    pairs, part, scales = (site.attrs[name] for name in ("pairs", "part", "scales"))
    options: dict[str, object] = {"start": start} if start != "0" else {}
    options |= {"neighbours": True} if pairs != PAIRS[0] else {}
    options |= {name: value for name, value in (("part", part), ("scales", scales)) if value is not None}
    return RT("rotary", *parts, **options)


declare(
    "rotary",
    (
        Param("x", "tensor"),
        Param("over", "dim"),
        Param("along", "dim"),
        Param("base", "number", 10000.0),
        Param("pairs", "str", PAIRS[0]),
        Param("part", "int", None),
        Param("scales", "numbers", None),
    ),
    _infer_rotary,
    _emit_rotary,
    "Turns each pair (i, i + n/2) of the n elements over a dim by position * base ** (-2 i / n), as Llama does. "
    'The position is the index along another dim. With `pairs = "neighbours"` pairs are (2 i, 2 i + 1), as in GPT-J; '
    "of a `part` only so many elements, the first, are turned, and n is their number; `scales` are factors of the "
    "angles, one a pair.",
    example="(x: [batch, heads, seq, head_dim]) -> [batch, heads, seq, head_dim] "
    "{ rotary(x, over = head_dim, along = seq) }",
    saved=nothing,
    work=_work_rotary,
    streams=_streams_rotary,
    precision=Precision.GIVEN,
)
