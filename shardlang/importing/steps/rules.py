"""Masks that are constants -> the rule they follow: which keys a query sees, at all sizes.

A trace shows a mask at one size alone. It may be another one beyond a number that its steps compare
positions with: a second trace is made beyond these."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from shardlang.importing.steps.nodes import CONST, STATE, Node, mapped, reached, scalar

# A mask of numbers hides what it makes smaller than this.
HIDDEN = -1e4
# Steps whose numbers say from which place on a mask is another one.
_TRIANGLES = ("aten.tril", "aten.triu")
_COMPARE = ("lt", "le", "gt", "ge", "eq", "ne", "less", "greater", "less_equal", "greater_equal", "add", "sub", "rsub",
            "clamp", "clamp_min", "clamp_max", "minimum", "maximum", "div", "floor_divide", "remainder", "tril",
            "triu", "__lshift__", "mul")  # fmt: skip


@dataclass(frozen=True)
class Rule:
    """Which keys a query sees: none behind its own position (`causal`), and at most `window`."""

    causal: bool
    window: int | None

    def sees(self, wide: int) -> Tensor:
        """Which of as many keys each of `wide` queries sees."""
        places = torch.arange(wide)
        away = places[:, None] - places
        near = away.abs() < (wide if self.window is None else self.window)
        return near & (away >= 0) if self.causal else near

    def agrees(self, sees: Tensor) -> bool:
        """Whether a mask is what the rule says at its size."""
        wide = sees.shape[-1]
        return sees.shape[-2] == wide and bool((sees == self.sees(wide)).all())


def seen(mask: Tensor) -> Tensor | None:
    """Which keys a mask lets a query see; None if it weighs them."""
    if mask.dtype == torch.bool:
        return mask
    open_, hidden = mask == 0, mask <= HIDDEN
    return open_ if bool((open_ | hidden).all()) else None


def visible(sees: Tensor) -> Rule | None:
    """The rule of a square mask; None where it follows none."""
    if sees.dim() < 2:
        return None
    wide = sees.shape[-1]
    if sees.shape[-2] != wide or wide < 2:
        return None
    window = int(sees.reshape(-1, wide, wide)[0, -1].sum())
    rules = (Rule(True, None), Rule(True, window), Rule(False, window))
    return next((rule for rule in rules if rule.agrees(sees)), None)


def rule_of(mask: Node, shown: Callable[[Tensor], Tensor | None] = seen) -> Rule | None:
    """The rule of a mask that is a constant; of a part of a buffer, that of the whole buffer.

    shown: which keys its numbers let a query see."""
    sees = shown(mask.value)
    found = visible(sees) if sees is not None else None
    for whole in _buffers(mask):
        all_seen = shown(whole)
        other = visible(all_seen) if all_seen is not None else None
        if other is None or sees is None or not other.agrees(sees):
            return None
        found = other
    return found


def hides_nothing(mask: Node) -> bool:
    """Whether a constant lets each query see each key, in all of the buffer that it is cut from."""
    return all(sees is not None and bool(sees.all()) for sees in map(seen, [mask.value, *_buffers(mask)]))


def _buffers(mask: Node) -> list[Tensor]:
    """The same mask from the whole of a buffer that a constant was cut from; one that follows no
    rule where that cannot be computed."""
    made = reached([mask], lambda node: node.made.inputs() if node.made is not None else [])
    leaves = [node for node in made
              if node.made is None and node.value.dim() >= 2 and node.shape[-1] > mask.shape[-1]]  # fmt: skip
    if not leaves:
        return []
    try:
        return [_whole(mask)]
    except Exception:
        return [torch.full(leaves[0].shape, float("nan"))]


def _whole(node: Node) -> Tensor:
    """A constant, computed from all of the buffers that its steps take slices of."""
    made = node.made
    if made is None:
        whole: Tensor = node.value
        return whole
    if made.op == "aten.slice":
        return _whole(made.args[0])
    args, kwargs = mapped(made.args, _whole), {key: mapped(each, _whole) for key, each in made.kwargs.items()}
    found: Tensor = getattr(torch.ops.aten, made.op.removeprefix("aten."))(*args, **kwargs)
    return found


def limits(mask: Node) -> list[int]:
    """The numbers that the steps of a constant compare positions with, or move them by."""
    makers = [node.made if node.op == CONST else node for node in reached([mask], _read)]
    whole = [made for made in makers if made is not None and made.op.removeprefix("aten.").rstrip("_") in _COMPARE and (
        made.op in _TRIANGLES or (made.dtype is not None and not made.dtype.is_floating_point))]  # fmt: skip
    given = (scalar(each) for made in whole for each in [*made.args, *made.kwargs.values()] if type(each) is not bool)
    numbers = [abs(each) for each in given if each is not None]
    return list(dict.fromkeys(int(each) for each in numbers if 1 < each < 2**31 and each == int(each)))


def _read(node: Node) -> list[Node]:
    """The operands of the step that makes a constant, or another step."""
    made = node.made if node.op == CONST else node
    return [] if made is None or made.op == STATE else made.inputs()
