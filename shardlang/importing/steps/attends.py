"""Attention and rotary positions that a module writes in several steps -> one step each."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from shardlang.importing.steps.nodes import CONST, STATE, Node, Traced
from shardlang.importing.steps.patterns import match

_PRODUCTS = ("aten.matmul", "aten.bmm")
_HIDDEN = -1e4
# x * cos + (-x2, x1) * sin, for the halves x1 and x2 of x.
_ROTARY = ("add", ("mul", "x", "cos"), ("mul", ("cat", "halves?"), "sin"))


def attentions(traced: Traced) -> None:
    """softmax(mask(q k' * scale)) v is attention; a mask is a constant."""
    changes = {}
    for node in traced.nodes:
        if node.op in _PRODUCTS:
            made = _attention(node)
            if made is not None:
                changes[node] = made
    traced.replace(changes)


def _attention(node: Node) -> Node | None:
    weights, v = node.args
    p = 0.0
    if weights.op == "aten.dropout":
        weights, p = weights.args[0], weights.args[1]
    rank = len(weights.shape)
    if weights.op not in ("aten.softmax", "aten._softmax") or weights.args[1] not in (-1, rank - 1) or rank < 3:
        return None
    scores, mask = _unmasked(weights.args[0])
    scores, scale = _unscaled(scores)
    if scores.op not in _PRODUCTS:
        return None
    q, turned = scores.args
    if turned.op != "aten.transpose" or {at % rank for at in turned.args[1:]} != {rank - 2, rank - 1}:
        return None
    k = turned.args[0]
    return node.like("aten.scaled_dot_product_attention", q, k, v, mask, p, False, kwargs={"scale": scale})


def _unmasked(scores: Node) -> tuple[Node, Node | None]:
    """The scores before a constant mask, and which keys it lets a query see."""
    if scores.op == "aten.masked_fill" and _constant(scores.args[1]) and _number(scores.args[2]) <= _HIDDEN:
        mask = scores.args[1]
        return scores.args[0], mask.like(CONST, value=~mask.value, shape=mask.shape)
    if scores.op == "aten.add" and _constant(scores.args[1]) and scores.args[1].value.is_floating_point():
        return scores.args[0], scores.args[1]
    return scores, None


def _constant(x: Any) -> bool:
    return isinstance(x, Node) and x.op in (CONST, STATE)


def _number(x: Any) -> float:
    return float(x.value.item()) if isinstance(x, Node) and x.value.numel() == 1 else float(x)


def _unscaled(scores: Node) -> tuple[Node, float]:
    """The scores before they are multiplied by a number, and that number."""
    if scores.op in ("aten.mul", "aten.div") and isinstance(scores.args[1], int | float):
        number = float(scores.args[1])
        return scores.args[0], number if scores.op == "aten.mul" else 1 / number
    return scores, 1.0


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
    """Pairs (i, i + n/2) that are turned by tables of cosines and sines are `rotary`, if the tables
    are those of a base."""
    changes = {}
    for node in traced.nodes:
        found = match(node, _ROTARY)
        if found is None or not _constant(found["cos"]) or not _constant(found["sin"]):
            continue
        base = _base(found["cos"].value, found["sin"].value)
        if base is not None and _turned(found["x"], found["halves?"]):
            changes[node] = node.like("aten.rotary", found["x"], base)
    traced.replace(changes)


def _turned(x: Node, halves: Any) -> bool:
    """Whether two halves are the negative second and the first of x."""
    wide = x.shape[-1]
    if len(halves) != 2 or halves[0].op != "aten.neg":
        return False
    parts = [(halves[0].args[0], (wide // 2, wide)), (halves[1], (0, wide // 2))]
    return all(
        part.op == "aten.slice" and part.args[0] is x and part.args[1] % len(x.shape) == len(x.shape) - 1
        and slice(*part.args[2:4]).indices(wide)[:2] == where
        for part, where in parts
    )  # fmt: skip


def _base(cos: Tensor, sin: Tensor) -> float | None:
    """The base of tables [.., positions, n], if they are position * base ** (-2 i / n), twice."""
    cos, sin = (table.reshape(-1, *table.shape[-2:])[0].double() for table in (cos, sin))
    places, wide = cos.shape
    if wide < 4 or places < 2:
        return None
    angle = float(torch.atan2(sin[1, 1], cos[1, 1]))
    if angle <= 0:
        return None
    base = float(f"{angle ** (-wide / 2):.5g}")
    turns = torch.arange(places).double()[:, None] * base ** (-2 * torch.arange(wide // 2).double() / wide)
    turns = torch.cat([turns, turns], 1)
    close = all(torch.allclose(a, b, atol=1e-5) for a, b in ((turns.cos(), cos), (turns.sin(), sin)))
    return base if close and math.isfinite(base) else None
