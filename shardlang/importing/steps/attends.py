"""Attention and rotary positions that a module writes in several steps -> one step each."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from shardlang.importing.steps.frequencies import frequencies, powers
from shardlang.importing.steps.nodes import CONST, STATE, Node, Traced, reached, scalar
from shardlang.importing.steps.patterns import match
from shardlang.importing.steps.rules import HIDDEN

_PRODUCTS = ("aten.matmul", "aten.bmm")
# Steps that only put elements at other places.
_MOVES = ("aten.view", "aten.reshape", "aten.unflatten", "aten.transpose", "aten.permute")
# x * cos + (-x2, x1) * sin, for the halves x1 and x2 of x.
_ROTARY = ("add", ("mul", "x", "cos"), ("mul", ("cat", "halves?"), "sin"))
_NEIGHBOURS = ("add", ("mul", "x", "cos"), ("mul", ("flatten|view|reshape", ("stack", "halves?")), "sin"))

# Both halves of what is turned, by tables of half its width.
_HALVES = ("cat", [("sub", ("mul", "first", "cos"), ("mul", "second", "sin")),
                   ("add", ("mul", "second", "cos"), ("mul", "first", "sin"))])  # fmt: skip
# Pairs as complex numbers, which a table of them turns.
_COMPLEX = ("flatten|view|reshape", ("view_as_real", ("mul", ("view_as_complex", ("view|reshape|unflatten", "x")),
                                                      "turns")))  # fmt: skip


def attentions(traced: Traced) -> None:
    """softmax(mask(q k' * scale)) v is attention; a mask is a constant."""
    traced.rewrite(_attention)


def _attention(node: Node) -> Node | None:
    if node.op not in _PRODUCTS:
        return None
    weights, v = node.args
    p = 0.0
    if weights.op == "aten.dropout":
        weights, p = weights.args[0], weights.args[1]
    rank = len(weights.shape)
    if weights.op not in ("aten.softmax", "aten._softmax") or weights.args[1] not in (-1, rank - 1) or rank < 3:
        return None
    scores, mask = _unmasked(weights.args[0])
    scores, softcap = _uncapped(scores)
    scores, scale = _unscaled(scores)
    if scores.op not in _PRODUCTS:
        return None
    q, turned = scores.args
    if turned.op != "aten.transpose" or {at % rank for at in turned.args[1:]} != {rank - 2, rank - 1}:
        return None
    k = turned.args[0]
    return node.like("aten.scaled_dot_product_attention", q, k, v, mask, p, False,
                     kwargs={"scale": scale, **({"softcap": softcap} if softcap else {})})  # fmt: skip


def _uncapped(scores: Node) -> tuple[Node, float | None]:
    """Scores before they become c * tanh(scores / c), and c."""
    found = match(scores, ("mul", ("tanh", ("div", "x", "low?")), "high?"))
    if found is None or not isinstance(found["low?"], int | float) or found["low?"] != found["high?"]:
        return scores, None
    return found["x"], float(found["low?"])


def _unmasked(scores: Node) -> tuple[Node, Node | None]:
    """The scores before a constant mask, and which keys it lets a query see."""
    if scores.op == "aten.masked_fill" and _constant(scores.args[1]) and lowest(scores.args[2]):
        mask = scores.args[1]
        return scores.args[0], mask.like(CONST, value=~mask.value, shape=mask.shape)
    if scores.op == "aten.add" and _constant(scores.args[1]) and scores.args[1].value.is_floating_point():
        return scores.args[0], scores.args[1]
    if scores.op == "aten.add" and isinstance(scores.args[1], Node) and _scores(scores.args[0]):
        return scores.args[0], scores.args[1]
    return scores, None


def _scores(node: Any) -> bool:
    """Whether a node is a product of queries and keys, or one that is scaled or capped."""
    while isinstance(node, Node) and node.op in ("aten.mul", "aten.div", "aten.tanh"):
        node = node.args[0]
    return isinstance(node, Node) and node.op in _PRODUCTS


def _constant(x: Any) -> bool:
    return isinstance(x, Node) and x.op in (CONST, STATE)


def lowest(x: Any) -> bool:
    """Whether an argument is a number that hides a score."""
    number = scalar(x, (CONST, STATE))
    return number is not None and number <= HIDDEN


def _unscaled(scores: Node) -> tuple[Node, float]:
    """The scores before they are multiplied by a number, and that number."""
    if scores.op in ("aten.mul", "aten.div") and isinstance(scores.args[1], int | float):
        number = float(scores.args[1])
        return scores.args[0], number if scores.op == "aten.mul" else 1 / number
    return scores, 1.0


def scales(traced: Traced) -> None:
    """A number that all queries of an attention are multiplied by is one that its scores are."""
    readers, changes = traced.readers(), {}
    for node in traced.nodes:
        if node.op != "aten.scaled_dot_product_attention":
            continue
        product = node.args[0]
        while product.op in _MOVES and len(readers[product]) == 1:
            product = product.args[0]
        x, factor = _unscaled(product)
        if x is product or not isinstance(x, Node) or len(readers[product]) > 1 or product in traced.outputs.values():
            continue
        scale = node.kwargs.get("scale")
        node.kwargs["scale"] = factor * (node.args[0].shape[-1] ** -0.5 if scale is None else scale)
        changes[product] = x
    traced.replace(changes)


def repeated(x: Node) -> Node:
    """The heads of keys or values before each is repeated for those of queries that share it."""
    wide = x.args[0] if x.op in ("aten.view", "aten.reshape") else None
    if isinstance(wide, Node) and wide.op == "aten.expand" and wide.args[0].op == "aten.unsqueeze":
        before: Node = wide.args[0].args[0]
        at = wide.args[0].args[1]
        once = len(before.shape) == 4 and at == 2 and wide.shape[:2] == before.shape[:2]
        if once and x.shape == (x.shape[0], wide.shape[1] * wide.shape[2], *before.shape[2:]):
            return before
    return x


def rotary(traced: Traced) -> None:
    """Pairs that are turned by tables of cosines and sines are `rotary`, if the tables are those of
    a base, or so many times these; pairs are (i, i + n/2) or (2 i, 2 i + 1)."""
    traced.rewrite(_turned)
    traced.rewrite(_partial)


def _turned(node: Node) -> Node | None:
    found = match(node, _ROTARY) or match(node, _NEIGHBOURS) or _by_halves(node) or _as_complex(node)
    if found is None or not _constant(found["cos"]) or not _constant(found["sin"]):
        return None
    pairs = _pairs(found["x"], found["halves?"]) if "halves?" in found else "neighbours"
    tables = _tables(found["cos"], found["sin"], pairs) if pairs else None
    if tables is None:
        return None
    base, along, scales, times = tables
    kwargs = {"along": along, "pairs": pairs, "scales": scales}
    turned = node.like("aten.rotary", found["x"], base, kwargs=kwargs)
    return turned if times == 1 else node.like("aten.mul", turned, times)


def _by_halves(node: Node) -> dict[str, Any] | None:
    """The tensor whose halves are turned one by one, by tables of half its width."""
    found = match(node, _HALVES)
    if not found or not _constant(found["cos"]) or not _constant(found["sin"]):
        return None
    first, second = found["first"], found["second"]
    x, halves = first.args[0] if first.args else None, [node.like("aten.neg", second), first]
    if not isinstance(x, Node) or x.shape != node.shape or _pairs(x, halves) != "halves":
        return None
    whole = {name: torch.cat([found[name].value] * 2, -1) for name in ("cos", "sin")}
    tables = {name: found[name].like(CONST, value=each, shape=each.shape, made=found[name].made)
              for name, each in whole.items()}  # fmt: skip
    return {"x": x, "halves?": halves, **tables}


def _as_complex(node: Node) -> dict[str, Any] | None:
    """The tensor whose neighbours are one complex number each, and the tables that turn it."""
    found = match(node, _COMPLEX)
    if found is None or found["turns"].op != CONST or not found["turns"].value.is_complex():
        return None
    x, turns, numbers = found["x"], found["turns"], node.args[0].shape
    if node.shape != x.shape or numbers != (*x.shape[:-1], x.shape[-1] // 2, 2):
        return None
    wide = (*turns.shape[:-1], 2 * turns.shape[-1])
    parts = {
        name: part.repeat_interleave(2, -1) for name, part in (("cos", turns.value.real), ("sin", turns.value.imag))
    }
    tables = {name: turns.like(CONST, value=part, shape=wide, made=turns.made) for name, part in parts.items()}
    return {"x": x, **tables}


def _partial(node: Node) -> Node | None:
    """`cat(rotary(x[:n]), x[n:])` turns the first n elements of x."""
    found = match(node, ("cat", [("rotary", "first", "base?"), "rest"]))
    if found is None:
        return None
    first, rest, (turned, _) = found["first"], found["rest"], node.args[0]
    x = rest.args[0] if rest.args else None
    if not isinstance(x, Node) or (_slice(first, x), _slice(rest, x)) != (
            (0, first.shape[-1], 1), (first.shape[-1], x.shape[-1], 1)):  # fmt: skip
        return None
    return node.like("aten.rotary", x, found["base?"], kwargs={**turned.kwargs, "part": first.shape[-1]})


def _slice(part: Any, x: Any) -> tuple[int, int, int] | None:
    """Start, end and step of a slice of the last dim of x."""
    if not isinstance(part, Node) or part.op != "aten.slice" or part.args[0] is not x or (
            part.args[1] % len(part.shape) != len(part.shape) - 1):  # fmt: skip
        return None
    bounds: tuple[int, int, int] = slice(*[*part.args[2:], None, None, None][:3]).indices(x.shape[-1])
    return bounds


def _pairs(x: Node, halves: Any) -> str:
    """Whether what is stacked or put side by side is the negative second and the first of each pair
    of x: "halves", "neighbours" or "" for none."""
    wide = x.shape[-1]
    if len(halves) != 2 or halves[0].op != "aten.neg":
        return ""
    found = [_slice(part, x) for part in (halves[0].args[0], halves[1])]
    if found == [(wide // 2, wide, 1), (0, wide // 2, 1)]:
        return "halves"
    return "neighbours" if found == [(1, wide, 2), (0, wide, 2)] else ""


def _tables(cos: Node, sin: Node, pairs: str) -> tuple[float, int, tuple[float, ...], float] | None:
    """The base of tables of position * base ** (-2 i / n), the dim of positions from the right, the
    factors of the angles where they are not 1, and a number that the tables are multiplied by."""
    shape = cos.value.shape
    if cos.value.shape != sin.value.shape:
        return None
    # All rows of a batch have one table.
    along = [at - len(shape) for at in range(len(shape) - 1) if not (_alike(cos.value, at) and _alike(sin.value, at))]
    if len(along) != 1:
        return None
    tables = [_one(table.value, along[0] % len(shape)).double() for table in (cos, sin)]
    places, wide = tables[0].shape
    times = float(tables[0][0, 0])
    if wide < 4 or places < 2 or times <= 0:
        return None
    tables = [table / times for table in tables]
    one = [table[:, ::2] if pairs == "neighbours" else table[:, : wide // 2] for table in tables]
    known = _buffer(cos, wide // 2)
    found = frequencies(known) if known is not None else None
    if found is None:
        angle = float(torch.atan2(one[1][1, 1], one[0][1, 1]))
        if angle <= 0:
            return None
        found = float(f"{angle ** (-wide / 2):.5g}"), ()
    base, scales = found
    speeds = powers(base, wide // 2) * (torch.tensor(scales, dtype=torch.float64) if scales else 1)
    turns = torch.arange(places).double()[:, None] * speeds
    turns = turns.repeat_interleave(2, 1) if pairs == "neighbours" else torch.cat([turns, turns], 1)
    close = all(torch.allclose(a, b, atol=1e-5) for a, b in ((turns.cos(), tables[0]), (turns.sin(), tables[1])))
    return (base, along[0], scales, times) if close and math.isfinite(base) else None


def _alike(table: Tensor, dim: int) -> bool:
    """Whether a table has the same numbers at all places of a dim."""
    return bool((table == table.narrow(dim, 0, 1)).all())


def _one(table: Tensor, along: int) -> Tensor:
    """The table along one dim and the last."""
    for dim in range(table.dim() - 1):
        table = table if dim == along else table.narrow(dim, 0, 1)
    return table.reshape(table.shape[along], table.shape[-1])


def _buffer(table: Node, count: int) -> Tensor | None:
    """The buffer of so many frequencies that a table was computed from."""
    made = reached([table], lambda node: (node.made or node).inputs())
    return next((node.value for node in made if node.op == STATE and node.shape == (count,)), None)
