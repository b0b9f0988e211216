"""Calls that slide a window over the last dims: convolutions, their turned form, pools; norms of
channels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardlang.importing.bodies.body import Const, Expr, Value
from shardlang.importing.bodies.dims import flat
from shardlang.importing.bodies.maker import Maker
from shardlang.importing.bodies.words import reduction, word
from shardlang.importing.steps.nodes import Node
from shardlang.importing.steps.problems import Refused


@word("conv1d", "conv2d")
def convolution(b: Maker, node: Node, x: Node, weight: Node, bias: Any = None, stride: Any = 1, padding: Any = 0,
                dilation: Any = 1, groups: int = 1) -> Value:  # fmt: skip
    if isinstance(padding, str):
        raise Refused(node, f'padding = "{padding}" of a convolution')
    settings = {"stride": (stride, 1), "padding": (padding, 0), "dilation": (dilation, 1), "groups": (groups, 1)}
    return _slid(b, node, [x, weight, bias], settings, (0, 1), groups)


@word("conv_transpose1d", "conv_transpose2d")
def turned(b: Maker, node: Node, x: Node, weight: Node, bias: Any = None, stride: Any = 1, padding: Any = 0,
           output_padding: Any = 0, groups: int = 1, dilation: Any = 1) -> Value:  # fmt: skip
    if groups != 1:
        raise Refused(node, f"`{node.op}` of groups")
    settings = {"stride": (stride, 1), "padding": (padding, 0), "output_padding": (output_padding, 0),
                "dilation": (dilation, 1)}  # fmt: skip
    return _slid(b, node, [x, weight, bias], settings, (1, 0), groups)


def _slid(b: Maker, node: Node, operands: Sequence[Any], settings: dict[str, tuple[Any, Any]], order: tuple[int, int],
          groups: int) -> Value:  # fmt: skip
    """A convolution; order: which dims of its weight are the channels that it makes and reads."""
    value, kernel = b.use(operands[0]), b.use(operands[1])
    if len(value.dims) != len(kernel.dims):
        raise Refused(node, f"`{node.op}` without a batch")
    terms = [b.solid(kernel, at) for at in range(len(kernel.dims))]
    made, read = (terms[at] for at in order)
    for atom in (atom for term in terms[2:] for atom in flat(term)):
        atom.fixed = True
    if groups == 1:
        b.unify(node, value.dims[1], read)
        b.hint(value.dims[1], "channels", 7)
    for term, name in zip(value.dims[2:], ("length",) if len(value.dims) == 3 else ("height", "width"), strict=True):
        b.hint(term, name, 6)
    given = [value, kernel]
    if operands[2] is not None:
        given.append(b.use(operands[2]))
        b.unify(node, b.solid(given[2], 0), made)
    kept = {name: Const(short, name) for name, (each, usual) in settings.items()
            if (short := _short(each)) != usual}  # fmt: skip
    dims = [value.dims[0], made, *b.spatial(node.shape[2:])]
    return b.add(dims, Expr(node.op.removeprefix("aten."), given, kept), node=node)


@word("max_pool1d", "avg_pool1d", "max_pool2d", "avg_pool2d")
def pool(b: Maker, node: Node, x: Node, kernel: Any, stride: Any = (), padding: Any = 0, *rest: Any, **more: Any,
         ) -> Value:  # fmt: skip
    # Behind the padding: ceil_mode, count_include_pad, divisor_override; dilation, ceil_mode.
    average = node.op.startswith("aten.avg")
    usual = (False, True, None) if average else (1, False)
    given = [_short(each) for each in rest]
    if average and _short(padding) == 0:
        given[1:2] = [True] * len(given[1:2])
    if more or tuple(given) != usual[: len(given)]:
        raise Refused(node, f"`{node.op}` with further settings than its window, stride and padding")
    value = b.use(x)
    named: dict[str, Any] = {}
    if stride and _short(stride) != _short(kernel):
        named["stride"] = Const(_short(stride), "stride")
    if _short(padding) != 0:
        named["padding"] = Const(_short(padding), "padding")
    operands = [value, Const(_short(kernel), "kernel")]
    dims = [value.dims[0], value.dims[1], *b.spatial(node.shape[2:])]
    return b.add(dims, Expr(node.op.removeprefix("aten."), operands, named), node=node)


@word("adaptive_avg_pool1d", "adaptive_avg_pool2d")
def global_pool(b: Maker, node: Node, x: Node, sizes: Any) -> Value:
    if _short(sizes) != 1:
        raise Refused(node, f"`{node.op}` to more than one place")
    return reduction(b, node.like("aten.mean"), x, [-2, -1] if node.op.endswith("2d") else [-1], True)


@word("group_norm")
def group_norm(b: Maker, node: Node, x: Node, groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5,
               cudnn: bool = True) -> Value:  # fmt: skip
    value = b.use(x)
    scales = [b.use(each) for each in (weight, bias) if each is not None]
    for scale in scales:
        b.unify(node, value.dims[1], scale.dims[0])
    b.hint(value.dims[1], "channels", 7)
    operands = [value, Const(groups, "num_groups"), *scales]
    return b.add(value.dims, Expr("group_norm", operands, {"eps": Const(eps, "eps")}), node=node)


@word("batch_norm")
def batch_norm(b: Maker, node: Node, x: Node, weight: Any, bias: Any, mean: Any, var: Any, training: bool,
               momentum: float, eps: float, cudnn: bool = True) -> Value:  # fmt: skip
    if mean is None or not training:
        raise Refused(node, "batch normalisation without running statistics, or by them alone")
    value = b.use(x)
    operands = [value, *(b.use(each) for each in (mean, var, weight, bias) if each is not None)]
    for operand in operands[1:]:
        b.unify(node, value.dims[1], operand.dims[0])
    named = {"momentum": Const(momentum, "momentum"), "eps": Const(eps, "eps")}
    return b.add(value.dims, Expr("batch_norm", operands, named), node=node)


def _short(given: Any) -> Any:
    """One number for all dims where they have the same, else one for each."""
    values = list(given) if isinstance(given, list | tuple) else [given]
    return values[0] if len(set(values)) == 1 else tuple(values)
