"""Idioms: what modules write in several steps and the language in one. Each is a line of a table,
and held to its meaning by a test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from shardlang.importing.steps.attends import attentions, lowest, repeated, rotary
from shardlang.importing.steps.nodes import CONST, PARAM, STATE, Node, Scope, Stored, Traced
from shardlang.importing.steps.patterns import Found, match
from shardlang.importing.steps.rules import Rule, hides_nothing, rule_of

_ROOT = 0.7978845608028654  # sqrt(2 / pi)
_INNER = ("mul", ("add", "x", ("mul", ("pow", "x", 3), 0.044715)), _ROOT)

Make = Callable[[Node, Found], Node]


def _gelu(node: Node, found: Found) -> Node:
    return node.like("aten.gelu", found["x"], "tanh")


def _silu(node: Node, found: Found) -> Node:
    return node.like("aten.silu", found["x"])


def _rms(node: Node, found: Found) -> Node:
    return node.like("aten.rms_norm", found["x"], [found["x"].shape[-1]], found.get("w"), found["eps?"])


_MEAN = ("mean", ("pow", "x", 2), "dims?")
_RMS = ("mul", "x", ("rsqrt", ("add", _MEAN, "eps?")))

# Pattern -> the step that it is.
IDIOMS: list[tuple[Any, Make]] = [
    (("mul", ("mul", "x", 0.5), ("add", ("tanh", _INNER), 1)), _gelu),
    (("mul", 0.5, ("mul", "x", ("add", ("tanh", _INNER), 1))), _gelu),
    (("mul", "x", ("sigmoid", "x")), _silu),
    (("mul", "w", _RMS), _rms),
    (_RMS, _rms),
]


def apply(traced: Traced) -> None:
    """Changes the steps in place."""
    changes: tuple[Callable[[Traced], None], ...] = (_patterns, attentions, _truths, _masks, rotary, _joined)
    for change in changes:
        change(traced)
        traced.sweep()


def _patterns(traced: Traced) -> None:
    for pattern, make in IDIOMS:
        changes = {}
        for node in traced.nodes:
            found = match(node, pattern)
            if found is None or (make is _rms and not _is_last(found)):
                continue
            changes[node] = make(node, found)
        traced.replace(changes)
        traced.sweep()


def _truths(traced: Traced) -> None:
    """A mask beside a constant that hides nothing is that mask."""
    changes = {}
    for node in traced.nodes:
        pairs = (node.args, node.args[::-1]) if node.op == "aten.logical_and" else ()
        for mask, other in pairs:
            alone = other.op == CONST and mask.op != CONST and len(mask.shape) == len(node.shape)
            if alone and hides_nothing(other):
                traced.compared.append(other)
                changes[node] = mask
    traced.replace(changes)


def _is_last(found: Found) -> bool:
    """Whether a mean is over the last dim, and the weight one of the module's."""
    weight = found.get("w")
    return found["dims?"] in ([-1], -1, (-1,)) and (weight is None or weight.op == PARAM)


def _masks(traced: Traced) -> None:
    """A mask that is a constant is recognised by its value: none, or causal."""
    for node in traced.nodes:
        if node.op != "aten.scaled_dot_product_attention":
            continue
        given: list[Any] = [*node.args, *[None] * (4 - len(node.args))]
        q, k, v, mask, *rest = given
        mask = node.kwargs.pop("attn_mask", mask)
        p = node.kwargs.pop("dropout_p", rest[0] if rest else 0.0)
        causal = node.kwargs.pop("is_causal", rest[1] if len(rest) > 1 else False)
        if isinstance(mask, Node) and mask.op in (CONST, STATE):
            rule = rule_of(mask)
            if hides_nothing(mask):
                traced.compared.append(mask)
                mask = None
            elif rule is not None:
                traced.compared.append(mask)
                mask, causal = None, rule.causal
                node.kwargs.update({"window": rule.window} if rule.window else {})
        elif isinstance(mask, Node) and mask.dtype == torch.bool:
            mask, causal = _padded(traced, node, mask, causal)
        elif isinstance(mask, Node):
            mask, causal = _added(traced, mask)
        node.args = (q, repeated(k), repeated(v), mask, p, causal)


def _padded(traced: Traced, node: Node, mask: Node, causal: bool) -> tuple[Node | None, bool]:
    """A mask of [batch, 1, 1, keys] that is computed is `keep`, apart from constants beside it."""
    parts = _parts(mask)
    rules = [Rule(False, None) if hides_nothing(each) else rule_of(each) for each in parts if each.op == CONST]
    computed = [each for each in parts if each.op != CONST]
    flat = [each.shape for each in computed if len(each.shape) == 4 and each.shape[1:3] == (1, 1)]
    if len(flat) < len(computed) or not computed or None in rules:
        return mask, causal
    traced.compared += [each for each in parts if each.op == CONST]
    keep = [_keys(each) for each in computed]
    for other in keep[1:]:
        keep[0] = mask.like("aten.logical_and", keep[0], other, shape=other.shape)
    node.kwargs["keep"] = keep[0]
    windows = [rule.window for rule in rules if rule is not None and rule.window is not None]
    if windows:
        node.kwargs["window"] = min(windows)
    return None, causal or any(rule is not None and rule.causal for rule in rules)


def _parts(mask: Node) -> list[Node]:
    """The truth values that are all true where a mask is."""
    if mask.op == "aten.expand":
        return _parts(mask.args[0])
    if mask.op == "aten.logical_and":
        return [part for each in mask.args for part in _parts(each)]
    return [mask]


# Steps of each element, of one tensor and numbers.
_EACH = ("aten.to", "aten.ne", "aten.eq", "aten.gt", "aten.ge", "aten.lt", "aten.le", "aten.logical_not")


def _keys(mask: Node) -> Node:
    """A mask of [batch, 1, 1, keys] as one of [batch, keys], from before it got its dims of 1."""
    wanted = (mask.shape[0], mask.shape[-1])
    while mask.shape != wanted and mask.op in ("aten.view", "aten.unsqueeze"):
        mask = mask.args[0]
    if mask.shape == wanted:
        return mask
    if mask.op in _EACH and not any(isinstance(each, Node) for each in mask.args[1:]):
        return mask.like(mask.op, _keys(mask.args[0]), *mask.args[1:], shape=wanted, kwargs=mask.kwargs)
    return mask.like("aten.view", mask, list(wanted), shape=wanted)


def _added(traced: Traced, mask: Node) -> tuple[Node, bool]:
    """A bias to which a constant causal mask is added, or which it chooses, apart."""
    pairs = [mask.args, mask.args[::-1]] if mask.op == "aten.add" else []
    if mask.op == "aten.where" and lowest(mask.args[2]):
        pairs = [(mask.args[1], mask.args[0])]
    for bias, other in pairs:
        if isinstance(bias, Node) and isinstance(other, Node) and other.op == CONST and (
                hides_nothing(other) or rule_of(other) == Rule(True, None)):  # fmt: skip
            traced.compared.append(other)
            return bias, not hides_nothing(other)
    return mask, False


def _joined(traced: Traced) -> None:
    """One matrix for queries, keys and values is a layer for each, so that heads can be split."""
    readers = traced.readers()
    changes: dict[Node, Node] = {}
    for node in traced.nodes:
        parts = readers.get(node, [])
        if node.op != "aten.linear" or len(parts) < 2 or not all(_is_part(node, each) for each in parts):
            continue
        weights = [each for each in node.args[1:] if each is not None]
        count = len(parts)
        wide = node.shape[-1] // count
        equal = sorted(each.args[2] for each in parts) == [at * wide for at in range(count)] and all(
            each.shape[-1] == wide for each in parts)  # fmt: skip
        if not equal or any(each.op != PARAM or len(readers[each]) > 1 for each in weights):
            continue
        labels = [_label(each, readers, f"part{each.args[2] * count // node.shape[-1] + 1}") for each in parts]
        if len(set(labels)) < count:
            continue
        for each, label in zip(parts, labels, strict=True):
            number = each.args[2] * count // node.shape[-1] + 1
            changes[each] = _separate(node, each, label, (number, count))
    traced.replace(changes)


def _is_part(node: Node, reader: Node) -> bool:
    return reader.op == "aten.slice" and reader.args[1] == len(node.shape) - 1 and reader.args[0] is node


def _separate(node: Node, part: Node, label: str, which: tuple[int, int]) -> Node:
    """The layer of one part."""
    home, _, attribute = node.path.rpartition(".")
    scopes, prefix = node.scopes, f"{node.path}.{label}_" if node.path else f"{label}_"
    if all(each is None or each.name.rpartition(".")[0] == node.path for each in node.args[1:]) and attribute:
        path = f"{home}.{label}" if home else label
        last = node.scopes[-1]
        scopes = (*node.scopes[:-1], Scope(path, f"{last.call}.{label}", last.kind))
        prefix = f"{path}."
    weights = [None if each is None else _rows(each, prefix, which) for each in node.args[1:]]
    return node.like("aten.linear", node.args[0], *weights, shape=part.shape, scopes=scopes, code=part.code)


def _rows(weight: Node, prefix: str, which: tuple[int, int]) -> Node:
    assert weight.stored is not None
    name = prefix + weight.name.rpartition(".")[2].removeprefix("in_proj_")
    stored = Stored(weight.stored.name, weight.stored.transposed, which)
    shape = (weight.shape[0] // which[1], *weight.shape[1:])
    return Node(PARAM, shape=shape, dtype=weight.dtype, name=name, stored=stored, value=weight.value)


def _label(part: Node, readers: dict[Node, list[Node]], otherwise: str) -> str:
    """`query`, `key` or `value`, by what attention reads it as."""
    node = part
    for _ in range(20):
        following = readers.get(node, [])
        attends = [each for each in following if each.op == "aten.scaled_dot_product_attention"]
        if attends:
            return ("query", "key", "value")[attends[0].args.index(node)]
        if not following:
            break
        node = following[0]
    return otherwise
