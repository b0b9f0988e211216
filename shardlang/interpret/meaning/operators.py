"""The meaning of each operator on whole tensors, from its definition: a table name ->
function(call, operands).

Written for clarity, a second time beside ops/ and runtime/functions/, which are held to it. Sums,
norms and losses are in statistics.py, lookups, random ones and attention in lookups.py."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from shardlang.errors import RunError
from shardlang.extensions import loaded
from shardlang.interpret.meaning.call import OperatorCall
from shardlang.interpret.meaning.lookups import ATTENTION, LOOKUPS
from shardlang.interpret.meaning.statistics import STATISTICS, affine, by_kernel, moved_statistics
from shardlang.ops.declared import DECLARED, GROUP, Declaration

Function = Callable[..., Tensor]


def _elementwise(function: Callable[..., Tensor]) -> Function:
    """A function of the operands alone."""
    return lambda call, *operands: function(*operands)


def _promoted(function: Callable[[Tensor, Tensor], Tensor]) -> Function:
    """A function of two operands in the type of its result: torch divides whole numbers in float32
    whatever the run's type, and here a number is a tensor, where in torch it is a number."""
    return lambda call, left, right: function(left.to(call.dtypes[0]), right.to(call.dtypes[0]))


def _below(a: Tensor) -> Tensor:
    """exp(a) - 1 with the gradient exp(a): that of `expm1` is its result + 1, which is 0 far
    below."""
    rising = torch.exp(a)
    return torch.expm1(a).detach() + (rising - rising.detach())


def _gelu(call: OperatorCall, x: Tensor) -> Tensor:
    if call.attrs["approximate"] == "tanh":
        inner = math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)
        return 0.5 * x * (1.0 + torch.tanh(inner))
    return 0.5 * x * (1.0 + torch.erf(x / math.sqrt(2.0)))


def _extremum(pair: Callable[[Tensor, Tensor], Tensor], bound: str) -> Function:
    """Equal tensors share the gradient, as in torch; what equals a bound keeps the gradient."""

    def extremum(call: OperatorCall, left: Tensor, right: Tensor) -> Tensor:
        left, right = left.to(call.dtypes[0]), right.to(call.dtypes[0])
        for x, number in ((left, call.constants[1]), (right, call.constants[0])):
            if number is not None:
                return torch.clamp(x, **{bound: number})
        return pair(left, right)

    return extremum


# What torch has under the same name.
_TORCH = ("relu", "tanh", "sigmoid", "exp", "log", "sqrt", "abs", "sin", "cos", "eq", "ne", "lt", "le", "gt", "ge",
          "erf", "logical_and", "logical_or", "logical_not")  # fmt: skip
ELEMENTWISE: dict[str, Function] = {
    **{name: _elementwise(getattr(torch, name)) for name in _TORCH},
    "add": _promoted(lambda a, b: a + b),
    "sub": _promoted(lambda a, b: a - b),
    "mul": _promoted(lambda a, b: a * b),
    "div": _promoted(lambda a, b: a / b),
    "pow": _promoted(lambda a, b: a**b),
    "floor_divide": _promoted(lambda a, b: torch.div(a, b, rounding_mode="floor").detach()),
    "remainder": _promoted(lambda a, b: a - b * torch.div(a, b, rounding_mode="floor")),
    "softplus": _elementwise(lambda a: torch.logaddexp(a, torch.zeros_like(a))),
    "elu": _elementwise(lambda a: torch.where(a > 0, a, _below(torch.where(a > 0, 0.0, a)))),
    "neg": _elementwise(lambda a: -a),
    "gelu": _gelu,
    "silu": _elementwise(lambda a: a * torch.sigmoid(a)),
    "rsqrt": _elementwise(lambda a: 1.0 / torch.sqrt(a)),
    "square": _elementwise(lambda a: a * a),
    "maximum": _extremum(torch.maximum, "min"),
    "minimum": _extremum(torch.minimum, "max"),
    "where": lambda call, c, then, other: torch.where(c, then.to(call.dtypes[0]), other.to(call.dtypes[0])),
    "transfer": lambda call, x: x,
    "to_device": lambda call, x: x,
    "to_host": lambda call, x: x,
    "detach": _elementwise(lambda a: a.detach()),
    "cast": lambda call, a: a.to(call.dtypes[0]),
}


# --- sums of products ---


def _einsum(call: OperatorCall, *operands: Tensor) -> Tensor:
    """Each operand with one dim a factor, aligned and multiplied by torch.einsum."""
    (result,) = call.rule.results
    inputs: list[object] = []
    for x, dims in zip(operands, call.rule.operands, strict=True):
        factors = [f for term in dims for f in term]
        inputs += [x.reshape([call.sizes[f] for f in factors]), factors]
    out = [f for term in result for f in term]
    return torch.einsum(*inputs, out).reshape(call.local(result))


PRODUCTS: dict[str, Function] = {"matmul": _elementwise(torch.matmul), "einsum": _einsum}


# --- shapes ---


def _rearrange(call: OperatorCall, x: Tensor) -> Tensor:
    """One dim a factor, in the order of the result, then merged."""
    (before,), (after,) = call.rule.operands, call.rule.results
    have, want = [f for term in before for f in term], [f for term in after for f in term]
    apart = x.reshape([call.sizes[f] for f in have])
    return apart.permute([have.index(f) for f in want]).reshape(call.local(after))


def _expand(call: OperatorCall, x: Tensor) -> Tensor:
    """x with a 1 for each dim that it lacks, repeated along these."""
    (before,), (after,) = call.rule.operands, call.rule.results
    return x.reshape([*call.local(tuple(t if t in before else () for t in after))]).expand(call.local(after)).clone()


def _pad(call: OperatorCall, x: Tensor) -> Tensor:
    for dim, sides in call.attrs["pads"]:
        ends = [x.new_full([n if d == dim else m for d, m in enumerate(x.shape)], call.attrs["value"]) for n in sides]
        x = torch.cat([ends[0], x, ends[1]], dim)
    return x


def _flatten(call: OperatorCall, x: Tensor) -> Tensor:
    kept = len(call.rule.results[0]) - 1
    return x.reshape([*x.shape[:kept], math.prod(x.shape[kept:])])


def _slice(call: OperatorCall, x: Tensor) -> Tensor:
    for dim, start, stop, step in call.attrs["ranges"]:
        x = x.index_select(dim, torch.arange(start, stop, step))
    return x


SHAPES: dict[str, Function] = {
    "rearrange": _rearrange,
    "expand": _expand,
    "flip": lambda call, x: x.flip(call.attrs["dims"]),
    "roll": lambda call, x: torch.roll(x, call.attrs["shift"], call.attrs["dims"][0]),
    "stack": lambda call, *xs: torch.cat([x[None] for x in xs]),
    "pad": _pad,
    "relabel": _elementwise(lambda x: x),
    "flatten": _flatten,
    "concat": lambda call, *xs: torch.cat(xs, call.attrs["dim"]),
    "slice": _slice,
}


# --- images ---


def _convolution(function: Callable[..., Tensor], out: int, *options: str) -> Function:
    """torch rejects values and weights without channels (uneven parts): one of zeros stands in. If
    each channel is a group, a part has as many groups as channels."""

    def convolved(call: OperatorCall, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        given, none = {name: call.attrs[name] for name in options}, weight.shape[out] == 0
        apart = call.attrs.get("groups", 1) > 1
        if x.shape[1] == 0:
            x, weight = _one_more(x, 1), weight if apart else _one_more(weight, 1 - out)
        if none:
            weight, bias = _one_more(weight, out), None if bias is None else _one_more(bias, 0)
        if apart:
            given["groups"] = x.shape[1] // weight.shape[1]
        result = function(x, weight, bias, **given)
        return result.narrow(1, 0, 0) if none else result

    return convolved


def _one_more(x: Tensor, dim: int) -> Tensor:
    shape = [1 if d == dim else size for d, size in enumerate(x.shape)]
    return torch.cat([x, x.new_zeros(shape)], dim)


def _of_channels(function: Callable[..., Tensor], *options: str) -> Function:
    """A function of each channel, of which a part may have none."""

    def apply(call: OperatorCall, x: Tensor) -> Tensor:
        given = [call.attrs[name] for name in options]
        return function(x, *given) if x.shape[1] else function(_one_more(x, 1), *given).narrow(1, 0, 0)

    return apply


def _interpolate(call: OperatorCall, x: Tensor) -> Tensor:
    attrs = call.attrs
    given = {"size": attrs["size"]} if attrs["scale"] is None else {"scale_factor": attrs["scale"]}
    corners = None if attrs["mode"] == "nearest" else attrs["align_corners"]
    resized = functional.interpolate(_one_more(x, 1), mode=attrs["mode"], align_corners=corners, **given)
    return resized.narrow(1, 0, x.shape[1])


def _group_norm(call: OperatorCall, x: Tensor, *given: Tensor) -> Tensor:
    each = call.attrs["each"]
    groups = x.unflatten(1, (x.shape[1] // each, each)).flatten(2)
    centred = groups - groups.mean(2, keepdim=True)
    normal = centred / torch.sqrt(centred.square().mean(2, keepdim=True) + call.attrs["eps"])
    return affine(normal.reshape(x.shape), (1,), call.attrs["has"], given)


_CONV, _POOL = ("stride", "padding", "dilation"), ("kernel_size", "stride", "padding")
_TRANSPOSED = (*_CONV, "output_padding")
IMAGES: dict[str, Function] = {
    "conv1d": _convolution(functional.conv1d, 0, *_CONV, "groups"),
    "conv2d": _convolution(functional.conv2d, 0, *_CONV, "groups"),
    "conv_transpose1d": _convolution(functional.conv_transpose1d, 1, *_TRANSPOSED),
    "conv_transpose2d": _convolution(functional.conv_transpose2d, 1, *_TRANSPOSED),
    "max_pool1d": _of_channels(functional.max_pool1d, *_POOL),
    "max_pool2d": _of_channels(functional.max_pool2d, *_POOL),
    "avg_pool1d": _of_channels(functional.avg_pool1d, *_POOL),
    "avg_pool2d": _of_channels(functional.avg_pool2d, *_POOL),
    "adaptive_avg_pool1d": _of_channels(functional.adaptive_avg_pool1d, "output_size"),
    "adaptive_avg_pool2d": _of_channels(functional.adaptive_avg_pool2d, "output_size"),
    "interpolate": _interpolate,
    "group_norm": _group_norm,
}


def _declared(call: OperatorCall, *operands: Tensor) -> Tensor:
    """The function that a file declares, as it is; empty parts give zeros, which add nothing."""
    if not all(x.numel() for x in operands):
        zeros = torch.zeros(call.local(call.rule.results[0]), dtype=call.dtypes[0])
        return sum((x.flatten()[:0].sum() for x in operands if x.is_floating_point()), zeros)
    declaration: Declaration = call.attrs[DECLARED]
    loaded.module(Path(declaration.path), declaration.source)
    function = loaded.function(declaration.source, declaration.function)
    settings = dict(call.attrs["settings"])
    if declaration.inside:
        sizes = {name: math.prod(call.sizes[f] for f in factors) for name, factors in call.attrs["factors"]}
        settings[GROUP] = _Alone(sizes)
    try:
        result: Tensor = function(*(x.contiguous() for x in operands), **settings)
    except Exception as error:
        fact = f"`{declaration.name}` is not what it is declared to be: {type(error).__name__}: {error}"
        path = Path(declaration.path)
        raise RunError("SH618", fact, file=path, line=loaded.line_of(error, path)) from error
    return result


class _Alone:
    """The group of a function that has all of the dims over which it sums."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self.size = sizes.__getitem__

    def sum(self, x: Tensor, dims: int | tuple[int, ...]) -> Tensor:
        return x.sum(dims, keepdim=True)

    def max(self, x: Tensor, dims: int | tuple[int, ...]) -> Tensor:
        return x.detach().amax(dims, keepdim=True)

    def min(self, x: Tensor, dims: int | tuple[int, ...]) -> Tensor:
        return x.detach().amin(dims, keepdim=True)


OPERATORS: dict[str, Function] = {
    DECLARED: _declared, **ELEMENTWISE, **PRODUCTS, **SHAPES, **IMAGES, **STATISTICS, **LOOKUPS, **ATTENTION,
}  # fmt: skip


# What the states become that an operator writes, in the order of its `updates`.
MOVED = {"batch_norm": moved_statistics}

# Operators that round further by torch's kernels than by their formula.
KERNELS = {"batch_norm": by_kernel}
