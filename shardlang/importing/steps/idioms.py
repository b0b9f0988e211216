"""Idioms: what modules write in several steps and the language in one. Each is a line of a table,
and held to its meaning by a test."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from shardlang.importing.steps.attends import attentions, lowest, repeated, rotary, scales
from shardlang.importing.steps.nodes import CONST, PARAM, STATE, Node, Traced, scalar
from shardlang.importing.steps.patterns import Found, match
from shardlang.importing.steps.projections import projections
from shardlang.importing.steps.rules import Rule, hides_nothing, rule_of
from shardlang.importing.steps.unfold import number_of

_ROOT = 0.7978845608028654  # sqrt(2 / pi)
_INNER = ("mul", ("add", "x", ("mul", ("pow", "x", 3), 0.044715)), _ROOT)

# No largest distance has a logarithm beyond.
_LOG = 40

Make = Callable[[Node, Found], Node | None]


def _gelu(node: Node, found: Found) -> Node:
    return node.like("aten.gelu", found["x"], "tanh")


def _silu(node: Node, found: Found) -> Node:
    return node.like("aten.silu", found["x"])


def _rms(node: Node, found: Found) -> Node | None:
    """Makes an RMS norm of a mean over the last dim, and a weight of the module's."""
    weight = found.get("w")
    if found["dims?"] not in ([-1], -1, (-1,)) or (weight is not None and weight.op != PARAM):
        return None
    return node.like("aten.rms_norm", found["x"], [found["x"].shape[-1]], weight, found["eps?"])


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


def _of_side(distance: Any) -> Any:
    """The bucket of a distance is itself, or from `exact` on follows from its logarithm."""
    log = ("log", ("div", ("to", distance, "float?"), "exact?"))
    further = ("to", ("mul", ("div", log, "log?"), "rest?"), "whole?")
    return ("where", ("lt", distance, "exact?"), distance, ("min|minimum", ("add", further, "exact?"), "last?"))


# T5's buckets of relative positions: of both sides, or of the places before alone.
_BUCKETS = {
    True: ("add", ("mul", ("to", ("gt", "position", 0), "whole?"), "side?"), _of_side(("abs", "position"))),
    False: _of_side(("neg", ("min|minimum", "position", "zero?"))),
}


def apply(traced: Traced) -> None:
    """Changes the steps in place."""
    for pattern, make in IDIOMS:
        traced.rewrite(partial(_matched, pattern=pattern, make=make))
    for change in (attentions, scales, _truths, _masks, rotary, projections):
        change(traced)
        traced.sweep()


def _matched(node: Node, pattern: Any, make: Make) -> Node | None:
    found = match(node, pattern)
    return None if found is None else make(node, found)


def _truths(traced: Traced) -> None:
    """A mask beside a constant that hides nothing is that mask."""

    def rule(node: Node) -> Node | None:
        for mask, other in (node.args, node.args[::-1]) if node.op == "aten.logical_and" else ():
            alone = other.op == CONST and mask.op != CONST and len(mask.shape) == len(node.shape)
            if alone and hides_nothing(other):
                traced.compared.append(other)
                found: Node = mask
                return found
        return None

    traced.rewrite(rule)


def _masks(traced: Traced) -> None:
    """A mask that is a constant is recognised by its value: none, or causal; one of padding is
    `keep`, the same for all that read the same."""
    kept: dict[tuple[Node, ...], Node] = {}
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
        elif isinstance(mask, Node):
            padded = _padded(traced, node, mask, (q.shape[0], k.shape[-2]), kept)
            if padded is not None:
                mask, causal = None, causal or padded
            elif mask.dtype != torch.bool:
                mask, causal = _added(traced, mask)
        node.args = (q, repeated(k), repeated(v), mask, p, causal)


def _padded(traced: Traced, node: Node, mask: Node, shape: tuple[int, int],
            made: dict[tuple[Node, ...], Node]) -> bool | None:  # fmt: skip
    """Whether attention is causal where a mask of [batch, 1, 1, keys] is computed, which becomes
    `keep`, and constants may be beside it; None for another mask. shape: batch and keys. made:
    earlier ones."""
    parts = _parts(mask)
    rules = [Rule(False, None) if hides_nothing(each) else rule_of(each) for each in parts if each.op == CONST]
    keep = [found for each in parts if each.op != CONST and (found := _kept(each, shape, made)) is not None]
    if not keep or len(keep) < sum(each.op != CONST for each in parts) or None in rules:
        return None
    traced.compared += [each for each in parts if each.op == CONST]
    found = keep[0]
    for other in keep[1:]:
        both = mask.like("aten.logical_and", found, other, shape=shape, dtype=torch.bool)
        found = made.setdefault((found, other), both)
    node.kwargs["keep"] = found
    windows = [rule.window for rule in rules if rule is not None and rule.window is not None]
    if windows:
        node.kwargs["window"] = min(windows)
    return any(rule is not None and rule.causal for rule in rules)


def _parts(mask: Node) -> list[Node]:
    """The masks that make up a mask: truths that all hold, or numbers that are added to scores."""
    joined = "aten.logical_and" if mask.dtype == torch.bool else "aten.add"
    whole = mask
    while mask.op in _STRETCHED:
        mask = mask.args[0]
    if mask.op == joined and all(isinstance(each, Node) for each in mask.args):
        return [part for each in mask.args for part in _parts(each)]
    return [mask if mask.op == CONST else whole]


def _kept(mask: Node, shape: tuple[int, int], made: dict[tuple[Node, ...], Node]) -> Node | None:
    """Which keys a mask shows, [batch, keys]; None where that is no matter of the key alone."""
    if mask.dtype == torch.bool:
        flat = mask
        while flat.op == "aten.expand":
            flat = flat.args[0]
        return made.setdefault((flat,), _keys(flat)) if flat.shape == (shape[0], 1, 1, shape[1]) else None
    while mask.op in _STRETCHED:
        mask = mask.args[0]
    hidden: Any = None
    if mask.op == "aten.masked_fill" and mask.args[0].op == CONST and not bool(mask.args[0].value.any()):
        hidden = mask.args[1] if scalar(mask.args[2], (CONST, STATE)) == -math.inf else None
    if not isinstance(hidden, Node) or hidden.shape != shape:
        return None
    return made.setdefault((hidden,), mask.like("aten.logical_not", hidden, shape=shape, dtype=torch.bool))


# Steps that give a mask further dims.
_STRETCHED = ("aten.expand", "aten.view", "aten.reshape", "aten.unsqueeze")
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


def buckets(traced: Traced) -> None:
    """Changes what computes buckets of positions to one step. These are constants, which have to be
    unfolded before."""
    for both, pattern in _BUCKETS.items():
        traced.rewrite(partial(_matched, pattern=pattern, make=partial(_bucket, both=both)))


def _bucket(node: Node, found: Found, both: bool) -> Node | None:
    """`distance_buckets`, if its numbers are those of one count and one largest distance."""
    numbers = {name: number_of(each) for name, each in found.items() if name != "position"}
    last, exact, log = (numbers[name] for name in ("last?", "exact?", "log?"))
    if not (isinstance(last, int) and isinstance(exact, int) and isinstance(log, float) and exact > 0 < log < _LOG):
        return None
    side, furthest = last + 1, round(exact * math.exp(log))
    wanted = {"side?": side, "last?": last, "exact?": side // 2, "rest?": side - exact, "zero?": 0,
              "log?": math.log(furthest / exact), "float?": torch.float32, "whole?": torch.int64}  # fmt: skip
    if not numbers.items() <= wanted.items() or node.shape != found["position"].shape:
        return None
    return node.like("aten.distance_buckets", found["position"], side * (1 + both), furthest, both)
