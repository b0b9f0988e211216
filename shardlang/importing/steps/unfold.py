"""Constants that no number says -> the steps that computed them, so that they hold at all sizes.

A buffer that is not in the `state_dict` is a constant, too, if a formula gives it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch

from shardlang.importing.steps.frequencies import frequencies, unfold_waves
from shardlang.importing.steps.nodes import CONST, INPUT, LEAVES, PARAM, STATE, Node, Scope, Traced, reached
from shardlang.importing.steps.normalise import plain
from shardlang.importing.steps.rules import rule_of

# What gives each place another number.
_COUNTING = ("aten.arange", "aten.cumsum", "aten.eye", "aten.tril", "aten.triu", "aten.linspace")
# What stretches dims of 1 itself.
_ATTENTION = "aten.scaled_dot_product_attention"


def unfold(traced: Traced) -> None:
    """Changes the steps in place."""
    _canonical(traced)
    while True:
        wanted = dict.fromkeys(each for node in traced.nodes for each in node.inputs())
        wanted |= dict.fromkeys(traced.outputs.values())
        changes = {each: made for each in wanted if (made := _steps(each)) is not None}
        if not changes:
            break
        traced.replace(changes)
        for made in changes.values():
            made.args = tuple(changes.get(each, each) if isinstance(each, Node) else each for each in made.args)
        traced.sweep()
    plain(traced)
    unfold_waves(traced)
    _simplify(traced)
    _untrained(traced)
    traced.nodes.sort(key=lambda node: node.order)
    _hoist(traced)


def _canonical(traced: Traced) -> None:
    """A constant of two numbers that follows a rule of masks is computed by that rule."""
    wanted = dict.fromkeys(each for node in traced.nodes for each in node.inputs() if each.op == CONST)
    changes = {}
    for node in wanted:
        made = _by_rule(node) if len(node.shape) >= 2 and not (node.value.is_complex() or is_number(node)) else None
        if made is not None:
            traced.compared.append(node)
            changes[node] = made
    traced.replace(changes)
    traced.sweep()


def _by_rule(node: Node) -> Node | None:
    """The steps of a mask, in as many dims as it has."""
    high, low = node.value.max(), node.value.min()
    if not bool(((node.value == high) | (node.value == low)).all()):
        return None
    rule = rule_of(node, lambda mask: mask == high)
    if rule is None:
        rule, high, low = rule_of(node, lambda mask: mask == low), low, high
    if rule is None:
        return None
    size = node.shape[-1]

    def step(op: str, *args: Any, dtype: torch.dtype = torch.bool) -> Node:
        return node.like(f"aten.{op}", *args, dtype=dtype, shape=(size, size), code="")

    keys, rows = (node.like("aten.arange", dtype=torch.int64, shape=(size,)) for _ in range(2))
    rows = node.like("aten.unsqueeze", rows, -1, shape=(size, 1), dtype=torch.int64)
    away = step("sub", rows, keys, dtype=torch.int64)
    sees = step("ge", rows, keys)
    if rule.window is not None:
        near = step("lt", away if rule.causal else step("abs", away, dtype=torch.int64), rule.window)
        sees = step("logical_and", sees, near) if rule.causal else near
    if node.value.dtype != torch.bool:
        sees = step("where", sees, high.item(), low.item(), dtype=node.dtype)
    elif not high:
        sees = step("logical_not", sees)
    shape = (*[1] * (len(node.shape) - 2), size, size)
    return sees if len(shape) == 2 else node.like("aten.view", sees, shape, shape=shape)


def _untrained(traced: Traced) -> None:
    """A parameter that no result has a gradient for, as a bias that only chooses experts, is a
    state."""
    trained = reached(filter(_passes, traced.outputs.values()), lambda node: filter(_passes, node.inputs()))
    for node in traced.nodes:
        if node.op == PARAM and node not in trained:
            node.op = STATE


def _passes(node: Node) -> bool:
    """Whether a gradient goes through a step: numbers of floating point, or several results."""
    return node.op not in ("aten.detach", "aten.floor") and (node.dtype is None or node.floating)


def _simplify(traced: Traced) -> None:
    """Drops what adds 0, multiplies by 1 or chooses by a constant."""
    readers = traced.readers()

    def rule(node: Node) -> Node | None:
        args = [number_of(each) for each in node.args[:2]]
        kept: Any = None
        if node.op in ("aten.add", "aten.mul") and node.kwargs.get("alpha", 1) == 1:
            nothing = 0 if node.op == "aten.add" else 1
            kept = node.args[1] if args[0] == nothing else node.args[0] if args[1] == nothing else None
        elif node.op in ("aten.sub", "aten.div") and args[1] == (node.op == "aten.div"):
            kept = None if node.kwargs else node.args[0]
        elif node.op == "aten.where" and args[0] is not None:
            kept = node.args[1 if args[0] else 2]
        if isinstance(kept, Node) and kept.op != CONST and kept.dtype == node.dtype and (
                kept.shape == node.shape or all(each.op == _ATTENTION for each in readers[node])):  # fmt: skip
            return kept
        return None

    traced.rewrite(rule)


def number_of(x: Any) -> Any:
    """The number that an argument is, if it is one."""
    if isinstance(x, Node):
        return x.value.flatten()[0].item() if is_number(x) else None
    return x


def _hoist(traced: Traced) -> None:
    """A module that is called with constants alone is given them: its positions, for instance."""
    fed: set[Node] = {node for node in traced.nodes if node.op == INPUT}
    free: set[Node] = set()
    calls: set[str] = set()
    for node in traced.nodes:
        inputs = node.inputs()
        if node.op not in LEAVES and all(each in free or each.op == CONST for each in inputs):
            free.add(node)
        if any(each in fed for each in inputs):
            fed.add(node)
            calls.update(scope.call for scope in node.scopes)
    readers = traced.readers()
    for node in reversed([each for each in traced.nodes if each in free]):
        # A constant that one module alone reads is computed there.
        shared = _shared([each.scopes for each in readers[node]])
        node.scopes = max(node.scopes, shared, key=len)
        while node.scopes and node.scopes[-1].call not in calls:
            node.scopes = node.scopes[:-1]


def _shared(scopes: Sequence[tuple[Scope, ...]]) -> tuple[Scope, ...]:
    """The calls that all of some steps are in."""
    rows = itertools.takewhile(lambda row: len(set(row)) == 1, zip(*scopes, strict=False))
    return tuple(row[0] for row in rows)


def _steps(node: Node) -> Node | None:
    """The step that computes a constant; None where a number says it, or nothing does."""
    if node.op == STATE and node.stored is not None and len(node.shape) == 1:
        found = frequencies(node.value)
        return None if found is None or found[1] else _powers(node, found[0])
    return None if node.op != CONST or is_number(node) else node.made


def is_number(node: Node) -> bool:
    """Whether one number says a constant, at all sizes: what counts places may differ at others."""
    if node.op != CONST or not node.value.numel() or not bool((node.value == node.value.flatten()[0]).all()):
        return False

    def makers(each: Node) -> list[Node]:
        counts = each.made is not None and each.made.op in _COUNTING
        return [] if each.made is None or counts or _holds(each.made) else each.made.inputs()

    return not any(each.made is not None and each.made.op in _COUNTING for each in reached([node], makers))


def _holds(made: Node) -> bool:
    """Whether a step says that places are not below 0."""
    places = made.args[0] if made.op == "aten.ge" and made.args[1] == 0 else None
    return isinstance(places, Node) and places.op == CONST and bool((places.value >= 0).all())


def _powers(node: Node, base: float) -> Node:
    """base ** (-i / n), for the i of a dim of n."""
    places = node.like("aten.arange", dtype=torch.int64)
    return node.like("aten.pow", base, node.like("aten.mul", places, -1 / node.shape[0]))
