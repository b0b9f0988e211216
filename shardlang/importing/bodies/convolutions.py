"""Calls that slide a window over the last dims: convolutions, their turned form, pools; norms of
channels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardlang.importing.bodies.body import Const, Expr, Value
from shardlang.importing.bodies.dims import Atom, atoms, flat, size
from shardlang.importing.bodies.maker import Maker
from shardlang.importing.bodies.selections import pad
from shardlang.importing.bodies.words import reduction, word
from shardlang.importing.steps.nodes import Node
from shardlang.importing.steps.problems import Refused

# Settings in which convolutions of one model may differ.
_VARIED = ("stride", "padding")


@word("conv1d", "conv2d")
def convolution(b: Maker, node: Node, x: Node, weight: Node, bias: Any = None, stride: Any = 1, padding: Any = 0,
                dilation: Any = 1, groups: int = 1) -> Value:  # fmt: skip
    if isinstance(padding, str):
        x, padding = _same(b, node, x, weight, dilation) if padding == "same" else (x, 0)
    settings = {"stride": (stride, 1), "padding": (padding, 0), "dilation": (dilation, 1), "groups": (groups, 1)}
    return _slid(b, node, [x, weight, bias], settings, (0, 1), groups)


def _same(b: Maker, node: Node, x: Node, weight: Node, dilation: Any) -> tuple[Node, Any]:
    """The tensor to read, and the padding, that leave the sizes as they are; torch takes it with
    stride 1 alone. Windows of even sizes have one place more behind than before."""
    wide = weight.shape[2:]
    apart = [dilation] * len(wide) if isinstance(dilation, int) else list(dilation) * (len(wide) // len(dilation))
    total = [(each - 1) * step for each, step in zip(wide, apart, strict=True)]
    if not any(each % 2 for each in total):
        return x, [each // 2 for each in total]
    sides = [side for each in total[::-1] for side in (each // 2, each - each // 2)]
    shape = (*x.shape[:2], *(size + each for size, each in zip(x.shape[2:], total, strict=True)))
    _hint_places(b, b.use(x))
    padded = node.like("aten.pad", x, sides, shape=shape, code="")
    b.known[padded] = pad(b, padded, x, sides)
    return padded, 0


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
    if groups == 1 and not flat(value.dims[1]):
        channels = [value.dims[0], terms[order[1]], *value.dims[2:]]
        value = b.add(channels, Expr("relabel", [value], into=channels))
    made, read = (terms[at] for at in order)
    for atom in atoms(terms[2:]):
        atom.fixed = not atom.declared
    if groups == 1:
        b.unify(node, value.dims[1], read)
        b.hint(value.dims[1], "channels", 7)
    _hint_places(b, value)
    given = [value, kernel]
    if operands[2] is not None:
        given.append(b.use(operands[2]))
        b.unify(node, b.solid(given[2], 0), made)
    kept = {name: Const(short, name, usual) for name, (each, usual) in settings.items()
            if (short := _short(each)) != usual or name in _VARIED}  # fmt: skip
    dims = [value.dims[0], made, *b.spatial(node.shape[2:])]
    return b.add(dims, Expr(node.op.removeprefix("aten."), given, kept), node=node)


def _hint_places(b: Maker, value: Value) -> None:
    for term, name in zip(value.dims[2:], ("length",) if len(value.dims) == 3 else ("height", "width"), strict=True):
        b.hint(term, name, 6)
        if len(value.dims) == 4:  # for an image whose patches are numbered by dims of these names
            b.hint(term, f"image_{name}", 7)


@word("max_pool1d", "avg_pool1d", "max_pool2d", "avg_pool2d")
def pool(b: Maker, node: Node, x: Node, kernel: Any, stride: Any = (), padding: Any = 0, *rest: Any, **more: Any,
         ) -> Value:  # fmt: skip
    # Behind the padding: ceil_mode, count_include_pad, divisor_override; dilation, ceil_mode.
    average = node.op.startswith("aten.avg")
    usual = (False, True, None) if average else (1, False)
    given = [*map(_short, rest), *usual[len(rest) :]]
    wide = min([kernel] if isinstance(kernel, int) else kernel)
    if average and given[0] and max(x.shape[2:]) <= wide and _short(padding) == 0 and set(node.shape[2:]) == {1}:
        b.accept("SH605", node, f"all places are in one window of {wide}, and the program holds up to that alone")
        return reduction(b, node.like("aten.mean"), x, list(range(2, len(x.shape))), True)
    around = average and not given[1] and _short(padding) != 0
    if average:
        given[1] = True
    if _pooled(x.shape[2:], kernel, stride, padding) == node.shape[2:]:
        given[0 if average else 1] = False
    if more or tuple(given) != usual:
        raise Refused(node, f"`{node.op}` with further settings than its window, stride and padding")
    value = b.use(x)
    made = _windows(b, node, value, kernel, stride, padding)
    if not around:
        return made
    # Of what is padded only the places inside count: the share of these in each window.
    ones = b.add(value.dims, Expr("expand", [Const(1.0, "one")], into=value.dims))
    share = _windows(b, node, ones, kernel, stride, padding)
    return b.add(made.dims, Expr("/", [made, share]), node=node)


def _pooled(sizes: Sequence[int], kernel: Any, stride: Any, padding: Any) -> tuple[int, ...]:
    """How many windows are whole along each dim."""
    settings = (kernel, stride or kernel, padding)
    rows = [[each] * len(sizes) if isinstance(each, int) else list(each) for each in settings]
    return tuple((n + 2 * p - (k - 1) - 1) // s + 1 for n, k, s, p in zip(sizes, *rows, strict=True))


def _windows(b: Maker, node: Node, value: Value, kernel: Any, stride: Any, padding: Any) -> Value:
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
        value = b.use(x)
        expr = Expr(node.op.removeprefix("aten."), [value, Const(_short(sizes), "output_size")])
        return b.add([*value.dims[:2], *b.spatial(node.shape[2:])], expr, node=node)
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


def _own_norm(b: Maker, node: Node, value: Value, eps: float) -> Value:
    """Each channel of a batch of one by its own numbers; of a view, where its dims are apart."""
    inner = set(atoms(value.dims[2:]))
    whole = value.base or value
    new = {flat(term): (Atom(size(term), {"kernel": 0}, declared=True),) for term in whole.dims[2:]
           if whole.expr is None and flat(term) and set(flat(term)) <= inner}  # fmt: skip
    if new:
        # A window has numbers for dims; a norm over them wants names.
        for (atom,) in new:
            atom.fixed = True
        dims = [new.get(flat(term), term) for term in whole.dims]
        whole = b.add(dims, Expr("relabel", [whole], into=dims), whole.kind)
        places = [tuple(each for atom in flat(term) for each in new.get((atom,), (atom,))) for term in value.dims]
        value, inner = Value(places, value.kind), set(atoms(places[2:]))
    over = tuple(term for term in whole.dims if flat(term) and set(flat(term)) <= inner)
    if set(atoms(over)) != inner:
        raise Refused(node, "batch normalisation of a view without running statistics")
    named = {"over": over[0] if len(over) == 1 else over, "eps": Const(eps, "eps")}
    made = b.add(whole.dims, Expr("layer_norm", [whole], named))
    return b.view(made, value.dims, node)


@word("batch_norm")
def batch_norm(b: Maker, node: Node, x: Node, weight: Any, bias: Any, mean: Any, var: Any, training: bool,
               momentum: float, eps: float, cudnn: bool = True) -> Value:  # fmt: skip
    if mean is None and weight is None and x.shape[0] == 1:
        return _own_norm(b, node, b.lazy(x), eps)
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


@word("upsample_nearest1d", "upsample_nearest2d", "upsample_linear1d", "upsample_bilinear2d")
def resized(b: Maker, node: Node, x: Node, wide: Any = None, *rest: Any) -> Value:
    """Other spatial sizes: by one factor, or as they are given."""
    kind = node.op.removeprefix("aten.upsample_").rstrip("12d")
    corners, factors = (False, *rest) if kind == "nearest" else (*rest, None)[:2]
    value = b.use(x)
    _hint_places(b, value)
    factor = _short(factors) if factors else None
    sizes = node.shape[2:]
    named = {"size": Const(sizes if len(sizes) > 1 else sizes[0], "size")}
    if factor is not None:
        if not isinstance(factor, int | float):
            raise Refused(node, f"`{node.op}` by a factor for each dim")
        named = {"scale_factor": Const(int(factor) if factor == int(factor) else factor, "scale_factor")}
    named["mode"] = Const(kind, "mode", "nearest")
    named["align_corners"] = Const(corners, "align_corners", False)
    return b.add([*value.dims[:2], *b.spatial(sizes)], Expr("interpolate", [value], named), node=node)
