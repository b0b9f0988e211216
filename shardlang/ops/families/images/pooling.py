"""Pools, and resampling to other sizes, of [batch, channels, length] and of [batch, channels,
height, width]; spatial dims never split."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from shardlang.ops.code import RT, Code, F
from shardlang.ops.declaration import CallSite, Inference, Param, Precision, declare
from shardlang.ops.factors import Factors
from shardlang.ops.families.images.spatial import KINDS, SPATIAL, X, each, image, options, plain, windows
from shardlang.ops.python_text import literal
from shardlang.ops.saved_activations import LocalOp, Residuals, elements, first, nothing
from shardlang.ops.site import OpSite, some
from shardlang.types.dim import BYTES, TensorType, Term, term_size

Through = tuple[tuple[int, ...], ...]


def _resized(site: CallSite, spatial: list[Term], attrs: dict[str, object], through: Through) -> Inference:
    """The inference of an operator on each channel of each example."""
    x = site.operands[0]
    factors = Factors()
    lead = factors.dims(x.dims[:2])
    operand = (*lead, *[factors.alone(t) for t in x.dims[2:]])
    result = (*lead, *[factors.alone(t) for t in spatial])
    rule = factors.rule((operand,), (result,), through)
    return Inference((TensorType(x.dtype, (*x.dims[:2], *spatial)),), rule, attrs)


def _infer_pool(n: int, through: Through) -> Callable[[CallSite], Inference]:
    def infer(site: CallSite) -> Inference:
        image(site, n)
        kernel, padding = each(site, "kernel_size"), each(site, "padding")
        stride = kernel if site.static["stride"] is None else each(site, "stride")
        if any(2 * p > k for p, k in zip(padding, kernel, strict=True)):
            more = f"{plain(padding)} is more than half of {plain(kernel)}"
            fact = f"`{site.operator.name}` pads by at most half its window, and {more}"
            site.refuse("SH293", fact, "`padding` is half of the window or less")
        spatial = windows(site, kernel, stride, padding, (1,) * n)
        return _resized(site, spatial, {"kernel_size": kernel, "stride": stride, "padding": padding}, through)

    return infer


def _saved_max_pool(local: LocalOp) -> Residuals:
    """The image, and the place of each greatest value."""
    return Residuals((0,), more=elements(local.results[0]) * BYTES["i64"])


def _pool(name: str, n: int, through: Through, saved: Callable[[LocalOp], Residuals], doc: str) -> None:
    def emit(site: OpSite) -> Code:
        kernel = plain(site.attrs["kernel_size"])
        more = options(site, {"stride": kernel, "padding": 0})
        return (F if some(site.operand_shapes[0][1]) else RT)(name, site.operands[0], kernel, **more)

    params = (X, Param("kernel_size", KINDS[n]), Param("stride", KINDS[n], None),
              Param("padding", KINDS[n], (0,) * n if n > 1 else 0))  # fmt: skip
    before, after = (", ".join([str(size)] * n) for size in (32, 16))
    example = f"(x: [batch, channels, {before}]) -> [batch, channels, {after}] {{ {name}(x, 2) }}"
    declare(name, params, _infer_pool(n, through), emit, doc, example=example, saved=saved,
            precision=Precision.GIVEN)  # fmt: skip


for _n in (1, 2):
    _pool(f"max_pool{_n}d", _n, (), _saved_max_pool,
          "The greatest value of each window; without `stride` windows lie side by side.")  # fmt: skip
    _pool(f"avg_pool{_n}d", _n, ((0,),), first,
          "The mean of each window; without `stride` windows lie side by side.")  # fmt: skip


# --- adaptive_avg_pool1d, adaptive_avg_pool2d -------------------------------------


def _infer_adaptive(n: int) -> Callable[[CallSite], Inference]:
    def infer(site: CallSite) -> Inference:
        image(site, n)
        sizes = each(site, "output_size")
        return _resized(site, _of_sizes(site, sizes), {"output_size": sizes}, ((0,),))

    return infer


def _of_sizes(site: CallSite, sizes: Sequence[int | None]) -> list[Term]:
    """The spatial dims of these sizes."""
    if any(size is not None and size < 1 for size in sizes):
        fact = f"`{site.operator.name}` cannot give {' by '.join(map(str, sizes))} elements"
        site.refuse("SH293", fact, "each size of a result is 1 or more", 0)
    return [site.dims.fresh(name, size) for name, size in zip(SPATIAL[len(sizes)], sizes, strict=True)]


def _saved_adaptive(local: LocalOp) -> Residuals:
    """One element alone is a mean, which needs nothing."""
    return Residuals() if math.prod(local.attrs["output_size"]) == 1 else Residuals((0,))


def _adaptive(n: int) -> None:
    name = f"adaptive_avg_pool{n}d"

    def emit(site: OpSite) -> Code:
        module = F if some(site.operand_shapes[0][1]) else RT
        return module(name, site.operands[0], plain(site.attrs["output_size"]))

    before, after = (", ".join([str(size)] * n) for size in (32, 4))
    declare(
        name, (X, Param("output_size", KINDS[n])), _infer_adaptive(n), emit,
        "The means of windows that lie side by side, or overlap by one, so that the result has `output_size` places.",
        example=f"(x: [batch, channels, {before}]) -> [batch, channels, {after}] {{ {name}(x, 4) }}",
        saved=_saved_adaptive, precision=Precision.GIVEN,
    )  # fmt: skip


_adaptive(1)
_adaptive(2)


# --- interpolate ------------------------------------------------------------------

_MODES = {"nearest": (1, 2), "linear": (1,), "bilinear": (2,)}


def _infer_interpolate(site: CallSite) -> Inference:
    image(site, 1, 2)
    n, mode = len(site.operands[0].dims) - 2, site.static["mode"]
    scale, corners = site.static["scale_factor"], site.static["align_corners"]
    wrong = ""
    if n not in _MODES.get(mode, ()):
        known = " and ".join(f"`{name}`" for name, ranks in _MODES.items() if n in ranks)
        wrong, help = f"knows no mode `{mode}` for {n} spatial dim{'s' * (n > 1)}", f"the modes are {known}"
    elif (site.static["size"] is None) == (scale is None):
        wrong, help = "needs `size` or `scale_factor`, and not both", "`scale_factor = 2` doubles each spatial dim"
    elif corners and mode == "nearest":
        wrong, help = "has no corners to align by `nearest`", "`align_corners` is for the linear modes"
    if wrong:
        site.refuse("SH293", f"`interpolate` {wrong}", help)
    before = [term_size(term) for term in site.operands[0].dims[2:]]
    # A size for one spatial dim is a number, which stands here twice.
    given = [None if size is None else int(size * scale) for size in before] if scale else site.static["size"][:n]
    attrs = {"size": tuple(given), "scale": scale, "mode": mode, "align_corners": corners}
    return _resized(site, _of_sizes(site, given), attrs, ((0,),))


def _emit_interpolate(site: OpSite) -> Code:
    scale, mode = site.attrs["scale"], site.attrs["mode"]
    more: dict[str, object] = {"size": plain(site.attrs["size"])} if scale is None else {"scale_factor": scale}
    more |= {} if mode == "nearest" else {"mode": literal(mode)}
    more |= {"align_corners": True} if site.attrs["align_corners"] else {}
    return (F if some(site.operand_shapes[0][1]) else RT)("interpolate", site.operands[0], **more)


declare(
    "interpolate",
    (X, Param("size", "pair", None), Param("scale_factor", "number", None), Param("mode", "str", "nearest"),
     Param("align_corners", "bool", False)),
    _infer_interpolate, _emit_interpolate,
    'x in other spatial sizes, given as such or by a factor: each element is the nearest one of x, or with `mode = '
    '"linear"` (of [batch, channels, length]) and "bilinear" (of images) a mean of its neighbours.',
    example="(x: [batch, channels, 16, 16]) -> [batch, channels, 32, 32] { interpolate(x, scale_factor = 2) }",
    in_torch=None, saved=nothing,
)  # fmt: skip
