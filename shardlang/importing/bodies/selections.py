"""Calls that take elements of tensors, or put tensors side by side: slices, indices, sorting."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from shardlang.importing.bodies.body import Const, Expr, Value, authors_name
from shardlang.importing.bodies.dims import Atom, Term, atoms, flat, fresh, size
from shardlang.importing.bodies.maker import KINDS, Maker
from shardlang.importing.bodies.recurrent import result
from shardlang.importing.bodies.words import WORDS, choice, pair, reduction, word
from shardlang.importing.steps.nodes import CONST, Node
from shardlang.importing.steps.problems import Refused
from shardlang.importing.steps.unfold import is_number, number_of


@word("cumsum")
def cumsum(b: Maker, node: Node, x: Node, dim: int, **_: Any) -> Value:
    value = b.use(x)
    if not flat(value.dims[dim]):
        return value
    return b.add(value.dims, Expr("cumsum", [value], {"over": value.dims[dim]}), value.kind, node)


@word("topk")
def top_k(b: Maker, node: Node, x: Node, k: int, dim: int = -1, largest: bool = True, *_: Any) -> Value:
    """The indices; `item` has the values."""
    value = b.use(x)
    chosen = list(value.dims)
    chosen[dim] = (Atom(k, {"k": 0}, declared=True),)
    named = {"dim": chosen[dim], "over": value.dims[dim]}
    ordered = value if largest else b.add(value.dims, Expr("neg", [value]), value.kind)
    made = b.add(chosen, Expr("top_k", [ordered], named), "i64", node)
    made.name = "chosen"
    return made


@word("max", "min")
def extreme(b: Maker, node: Node, x: Node, dim: Any = None, keepdim: bool = False) -> Value:
    if isinstance(dim, Node):
        return pair(b, node.like(f"{node.op}imum"), x, dim)
    shape = node.shape or _reduced(x.shape, dim, keepdim)
    return reduction(b, node.like(f"aten.a{node.op[-3:]}", shape=shape), x, dim, keepdim)


def _reduced(shape: tuple[int, ...], dim: Any, keepdim: bool) -> tuple[int, ...]:
    if dim is None:
        return ()
    return tuple(1 if at == dim % len(shape) else each for at, each in enumerate(shape)
                 if keepdim or at != dim % len(shape))  # fmt: skip


def item(b: Maker, node: Node, source: Node, number: int) -> Value:
    if source.op in ("aten.lstm", "aten.gru"):
        return result(b, node, source, number)
    if source.op == "aten.topk":
        index = b.use(source)
        if number == 1:
            return index
        value = b.use(source.args[0])
        dim = source.args[2] if len(source.args) > 2 else -1
        return b.add(index.dims, Expr("gather", [value, index], {"over": value.dims[dim]}), value.kind, node)
    if source.op == "aten.max" and number == 0:
        return b.lazy(source)
    if source.op == "aten.max":
        return argmax(b, node, source.args[0], *source.args[1:])
    if source.op == "aten.min" and number == 0:
        return b.lazy(source)
    raise Refused(node, f"result {number + 1} of `{source.op}`")


WORDS["item"] = item


@word("argmax")
def argmax(b: Maker, node: Node, x: Node, dim: int, keepdim: bool = False) -> Value:
    value = b.use(x)
    dims = [term for at, term in enumerate(value.dims) if at != dim % len(value.dims)]
    made = b.add(dims, Expr("argmax", [value], {"over": value.dims[dim]}), "i64", node)
    at = dim % len(value.dims)
    return b.view(made, [*dims[:at], (), *dims[at:]]) if keepdim else made


@word("gather")
def gather(b: Maker, node: Node, x: Node, dim: int, index: Node, *_: Any, **__: Any) -> Value:
    value, places = b.use(x), b.use(index)
    at = dim % len(value.dims)
    for d, (mine, theirs) in enumerate(zip(value.dims, places.dims, strict=True)):
        if d != at:
            if size(mine) != size(theirs):
                raise Refused(node, "`aten.gather` with an index that is shorter in other dims")
            b.unify(node, mine, theirs)
    return b.add(places.dims, Expr("gather", [value, places], {"over": value.dims[at]}), value.kind, node)


@word("index_select")
def index_select(b: Maker, node: Node, x: Node, dim: int, index: Node) -> Value:
    return _take(b, node, b.use(x), dim % len(x.shape), index)


@word("index")
def indexed(b: Maker, node: Node, x: Node, indices: Sequence[Any]) -> Value:
    given = [(at, index) for at, index in enumerate(indices) if index is not None]
    if any(index.dtype is not None and str(index.dtype) == "torch.bool" for _, index in given):
        raise Refused(node, "an index of truth values")
    value = b.use(x)
    if len(given) == 1:
        return _take(b, node, value, *given[0])
    rows = [index for _, index in given[:-1]]
    last = given[-1][1]
    counts = all(index.op == "aten.arange" or (index.op == CONST and _counts(index)) for index in rows)
    if [at for at, _ in given] != list(range(len(given))) or len(rows) != 1 or not counts or len(last.shape) != 1:
        raise Refused(node, "an index by several tensors")
    places = b.use(last)
    b.unify(node, value.dims[0], places.dims[0])
    rest = [value.dims[0], *value.dims[2:]]
    if len(rest) > 1:
        places = b.add(rest, Expr("expand", [places], into=rest), places.kind)
    return b.add(rest, Expr("gather", [value, places], {"over": value.dims[1]}), value.kind, node)


def _counts(index: Node) -> bool:
    return bool(index.value.flatten().tolist() == list(range(index.value.numel())))


def _take(b: Maker, node: Node, value: Value, at: int, index: Node) -> Value:
    if is_number(index) and index.value.numel() == 1:
        place = int(index.value.item())
        picked = pick(b, node, value, at, place)
        return b.view(picked, [*picked.dims[:at], *[()] * len(index.shape), *picked.dims[at:]], node)
    places = b.use(index)
    if set(atoms(places.dims)) & set(atoms([*value.dims[:at], *value.dims[at + 1 :]])):
        raise Refused(node, "an index that has a dim of what it is an index of")
    over = b.solid(value, at)
    dims = [*value.dims[:at], *places.dims, *value.dims[at + 1 :]]
    return b.add(dims, Expr("take", [value, places], {"over": over}), value.kind, node)


@word("scatter")
def scatter(b: Maker, node: Node, x: Node, dim: int, index: Node, source: Any, **_: Any) -> Value:
    if isinstance(source, Node) and is_number(source):
        source = number_of(source)
    if isinstance(source, Node) or dim % len(x.shape) != len(x.shape) - 1:
        raise Refused(node, "`aten.scatter` of a tensor, or along a dim that is not the last")
    places, wide = b.use(index), fresh(x.shape[-1])
    whole = None if is_number(x) else b.use(x)
    if whole is not None:
        for mine, theirs in zip(whole.dims[:-1], places.dims[:-1], strict=True):
            b.unify(node, mine, theirs)
        wide = whole.dims[-1]
    marks = b.add([*places.dims, wide], Expr("one_hot", [places], {"dim": wide}), "i64")
    made = b.add([*places.dims[:-1], wide], Expr("sum", [marks], {"over": places.dims[-1]}), "i64")
    if whole is None and number_of(x) == 0 and source == 1:
        made.name = authors_name(node)
        return made
    there = b.add(made.dims, Expr("!=", [made, Const(0, "zero")]), "bool")
    sides = [there, Const(source, "factor"), Const(number_of(x), "factor") if whole is None else whole]
    return choice(b, node, sides)


@word("one_hot")
def one_hot(b: Maker, node: Node, x: Node, classes: int) -> Value:
    value = b.use(x)
    return b.add([*value.dims, (Atom(classes),)], Expr("one_hot", [value, Const(classes, "classes")]), "i64", node)


@word("cat")
def concat(b: Maker, node: Node, tensors: Sequence[Node], dim: int = 0) -> Value:
    at = dim % len(node.shape)
    before, behind, inner = _around(tensors, at)
    if before or behind:
        rest = node.like("aten.cat", inner, at, shape=(*node.shape[:at], sum(each.shape[at] for each in inner),
                                                       *node.shape[at + 1 :]))  # fmt: skip
        b.known[rest] = b.use(inner[0]) if len(inner) == 1 else concat(b, rest, inner, at)
        sides = [0] * 2 * (len(node.shape) - at - 1)
        return pad(b, node, rest, [*sides, before, behind], "constant", number_of(tensors[0 if before else -1]))
    values = [b.use(each) for each in tensors]
    for other in values[1:]:
        for d, (mine, theirs) in enumerate(zip(values[0].dims, other.dims, strict=True)):
            if d != at:
                b.unify(node, mine, theirs)
    over = next((value.dims[at] for value in values if flat(value.dims[at])), None)
    if over is None:
        return _stacked(b, node, [b.view(each, [*each.dims[:at], *each.dims[at + 1 :]]) for each in values], at)
    dims = list(values[0].dims)
    dims[at] = fresh(sum(size(value.dims[at]) for value in values))
    made = b.add(dims, Expr("concat", list(values), {"over": over}), values[0].kind, node)
    b.made_here(made, at, over, sum(bool(flat(value.dims[at])) for value in values) == 1, "positions")
    return made


def _around(tensors: Sequence[Node], at: int) -> tuple[int, int, Sequence[Node]]:
    """How many places of one number stand before and behind other tensors, and these."""
    first, last = 0, len(tensors)
    while first < last and is_number(tensors[first]) and number_of(tensors[first]) == number_of(tensors[0]):
        first += 1
    while last > first and is_number(tensors[last - 1]) and (
            number_of(tensors[last - 1]) == number_of(tensors[0 if first else -1])):  # fmt: skip
        last -= 1
    inner = tensors[first:last]
    if sum(each.shape[at] for each in inner) < 2:
        return 0, 0, tensors
    return sum(each.shape[at] for each in tensors[:first]), sum(each.shape[at] for each in tensors[last:]), inner


@word("stack")
def stack(b: Maker, node: Node, tensors: Sequence[Node], dim: int = 0) -> Value:
    return _stacked(b, node, [b.use(each) for each in tensors], dim % len(node.shape))


def _stacked(b: Maker, node: Node, given: Sequence[Value], at: int) -> Value:
    values = [b.use_view(each) for each in given]
    for other in values[1:]:
        for mine, theirs in zip(values[0].dims, other.dims, strict=True):
            b.unify(node, mine, theirs)
    new: Term = (Atom(len(values), {"parts": 0}, declared=True),)
    made = b.add([new, *values[0].dims], Expr("stack", list(values), {"over": new}), values[0].kind, node)
    dims = list(values[0].dims)
    return b.view(made, [*dims[:at], new, *dims[at:]], node)


@word("slice")
def part(b: Maker, node: Node, x: Node, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Value:
    value = b.use(x)
    wide = size(value.dims[dim])
    first, last, step = slice(start, end, step).indices(wide)
    if (first, last, step) == (0, wide, 1):
        return value
    dims = list(value.dims)
    dims[dim] = (Atom(len(range(first, last, step))),)
    atom = _counted(b, value, last) if first == 0 and step == 1 and last < wide else None
    if atom is not None:
        cut = (value.dims[dim], Const(0, "start"), (atom,))
        made = b.add(dims, Expr("slice", [value], {"slice": cut}), value.kind, node)
        made.made |= {dim % len(dims)}
        b.unify(node, (atom,), dims[dim])
        return made
    bounds = [_bound(given, found, wide) for given, found in ((start, first), (end, last))]
    steps = [Const(step, "step")] * (step != 1)
    made = b.add(dims, Expr("slice", [value], {"slice": (value.dims[dim], *bounds, *steps)}), value.kind, node)
    still = step == 1 and bounds[0].value != "end" and (bounds[1].value == "end" or bounds[1].value < 0)
    b.made_here(made, dim, value.dims[dim], still and bounds[0].value >= 0)
    return made


def _counted(b: Maker, value: Value, size_: int) -> Atom | None:
    """The dim of an input that a part of a parameter or a constant is as long as: at other sizes it
    would be another text, if it were not. A number may be meant where a step computes the whole."""
    if value in b.body.inputs or (value.expr is not None and value.expr.word != "arange" and not b.shared.sized):
        return None
    there = dict.fromkeys(atom for each in b.body.inputs for atom in atoms(each.dims))
    mine = set(atoms(value.dims))
    like = [each for each in there if each.size == size_ and not each.fixed and each not in mine]
    return like[0] if len(like) == 1 else None


def _bound(given: Any, found: int, wide: int) -> Const:
    """A bound of a slice; one that counts from the end is less than 0, or `end`."""
    if isinstance(given, int) and given < 0 and found:
        return Const(given, "start")
    return Const("end", "end") if found == wide and found else Const(found, "end")


@word("select")
def select(b: Maker, node: Node, x: Node, dim: int, index: int) -> Value:
    value = b.lazy(x)
    at = dim % len(value.dims)
    return pick(b, node, b.use_view(value) if flat(value.dims[at]) else value, at, index)


def pick(b: Maker, node: Node, value: Value, at: int, index: int) -> Value:
    """The element at one place of a dim, which is gone."""
    rest = [term for d, term in enumerate(value.dims) if d != at]
    if not flat(value.dims[at]):
        return b.view(value, rest, node)
    place = index if index >= -1 else index % size(value.dims[at])
    if value.kind == "i64" and value in b.body.inputs:
        b.hint(value.dims[at], "fields", 6)
    return b.add(rest, Expr("pick", [value], {"pick": (value.dims[at], Const(place, "row"))}), value.kind, node)


@word("flip")
def flip(b: Maker, node: Node, x: Node, dims: Sequence[int]) -> Value:
    value = b.use(x)
    for at in dims:
        value = b.add(value.dims, Expr("flip", [value], {"over": value.dims[at]}), value.kind, node)
    return value


@word("roll")
def roll(b: Maker, node: Node, x: Node, shifts: Any, dims: Any = ()) -> Value:
    value = b.use(x)
    for shift, at in zip([shifts] if isinstance(shifts, int) else shifts, [dims] if isinstance(dims, int) else dims,
                         strict=True):  # fmt: skip
        named = {"over": value.dims[at], "shift": Const(shift, "shift")}
        value = b.add(value.dims, Expr("roll", [value], named), value.kind, node)
    return value


@word("pad", "constant_pad_nd")
def pad(b: Maker, node: Node, x: Node, sides: Sequence[int], *rest: Any, **more: Any) -> Value:
    mode = next((each for each in [*rest, *more.values()] if isinstance(each, str)), "constant")
    if mode != "constant":
        raise Refused(node, f"padding of mode {mode}")
    value, dims = b.use(x), list(b.use(x).dims)
    pads: list[Any] = []
    for number in range(len(sides) // 2):
        before, behind = sides[2 * number : 2 * number + 2]
        at = len(dims) - 1 - number
        if min(before, behind) < 0:
            value = _less(b, node, value, at, (max(-before, 0), max(-behind, 0)))
            dims[at], before, behind = value.dims[at], max(before, 0), max(behind, 0)
        if before or behind:
            value = value if flat(value.dims[at]) else _one(b, value, at)
            pads.append((value.dims[at], Const((before, behind), "pad")))
            dims[at] = (Atom(size(value.dims[at]) + before + behind),)
    fill = next((each for each in [*rest, *more.values()] if isinstance(each, int | float)), 0)
    if not pads:
        return value
    named = {"pads": tuple(pads), **({"value": Const(fill, "value")} if fill else {})}
    made = b.add(dims, Expr("pad", [value], named), value.kind, node)
    for term, _ in pads:
        b.made_here(made, value.dims.index(term), term, True)
    return made


def _one(b: Maker, value: Value, at: int) -> Value:
    """A value with a dim that the model declares in place of a literal 1."""
    dims = list(value.dims)
    dims[at] = (Atom(1, {"parts": 12}, declared=True),)
    return b.add(dims, Expr("relabel", [value], into=dims), value.kind)


def _less(b: Maker, node: Node, value: Value, at: int, less: tuple[int, int]) -> Value:
    """A value without so many of the first and the last of a dim."""
    dims = list(value.dims)
    dims[at] = fresh(size(value.dims[at]) - sum(less))
    bounds = (Const(less[0], "start"), Const(-less[1], "start") if less[1] else Const("end", "end"))
    made = b.add(dims, Expr("slice", [value], {"slice": (value.dims[at], *bounds)}), value.kind)
    b.made_here(made, at, value.dims[at], True)
    return made


@word("repeat")
def repeat(b: Maker, node: Node, x: Node, counts: Sequence[int]) -> Value:
    value = b.use(x)
    dims = [()] * (len(counts) - len(value.dims)) + list(value.dims)
    return _repeated(b, node, value, [[_times(count), term] for count, term in zip(counts, dims, strict=True)])


@word("repeat_interleave")
def repeat_interleave(b: Maker, node: Node, x: Node, count: Any, dim: int | None = None, **_: Any) -> Value:
    value = b.use(x)
    if not isinstance(count, int) or dim is None:
        raise Refused(node, "`aten.repeat_interleave` of all elements, or by a tensor")
    at = dim % len(value.dims)
    return _repeated(b, node, value, [[term, _times(count)] if d == at else [term]
                                      for d, term in enumerate(value.dims)])  # fmt: skip


def _times(count: int) -> Term:
    """A dim that the model declares; 1 is the literal one."""
    return () if count == 1 else (Atom(count, {"copies": 0}, declared=True),)


def _repeated(b: Maker, node: Node, value: Value, groups: Sequence[Sequence[Term]]) -> Value:
    """A value along further dims, then each group of dims as one."""
    into = [term for group in groups for term in group if flat(term)] or [()]
    new = {flat(term) for term in into} - {flat(term) for term in value.dims}
    made = b.add(into, Expr("expand", [value], into=into), value.kind, node) if new else value
    return b.view(made, [atoms(group) for group in groups], node)


@word("tril", "triu")
def triangle(b: Maker, node: Node, x: Node, diagonal: int = 0) -> Value:
    """The part below a diagonal, or above it; of a constant, too."""
    number = b.number(x)
    rows, columns = fresh(x.shape[-2]), fresh(x.shape[-1])
    if isinstance(number, Value):
        rows, columns = number.dims[-2:]
    places = [b.add([term], Expr("arange", [], {"dim": term}), "i64") for term in (rows, columns)]
    upright = b.add([rows, ()], Expr("rearrange", [places[0]], into=[rows, ()]), "i64")
    shifted = upright if not diagonal else b.add(upright.dims, Expr("+", [upright, Const(diagonal, "shift")]), "i64")
    sees = b.add([rows, columns], Expr(">=" if node.op == "aten.tril" else "<=", [shifted, places[1]]), "bool")
    kind = KINDS.get(str(node.dtype), "")
    if kind == "bool":
        return sees if isinstance(number, Const) else b.add(
            b.broadcast(node, [number, sees]), Expr("and", [number, sees]), "bool", node)  # fmt: skip
    sides = [sees, number, Const(0 if kind else 0.0, "zero")]
    return b.add(b.broadcast(node, sides), Expr("where", sides), kind, node)
