"""Tables of positions, recognised by their numbers: frequencies, and the sines and cosines of
places times these."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from shardlang.importing.steps.nodes import CONST, STATE, Node, Traced

# f32 rounds a number, and what is computed of several, by less than this.
_CLOSE = 1e-6
_USUAL = 10000.0
# Copies, which change no number.
_COPIES = ("aten.to", "aten.clone", "aten.contiguous", "aten.alias", "aten.detach", "aten.lift_fresh_copy")


def frequencies(value: Tensor) -> tuple[float, tuple[float, ...]] | None:
    """The base b and the factors s (none where all are 1) of s_i * b ** (-i / n), for the n numbers
    of a buffer, if it is one of frequencies of positions."""
    if value.dim() != 1 or len(value) < 2 or value.dtype != torch.float32:
        return None
    found, count = value.double(), len(value)
    if not bool(((found >= 0) & (found <= 1)).all()) or float(found[0]) != 1:
        return None
    if not found[-1]:
        # What is not turned has a frequency of 0; the others are those of all.
        base = _base(float(found[1]), 1 / count, (5,)) if found[1] else _USUAL
    else:
        base = _base(float(found[-1]), (count - 1) / count, range(1, 9), found)
        base = base or _base(float(found[1]), 1 / count, (5,))
    if base is None or not math.isfinite(base) or base <= 1:
        return None
    factors = found / powers(base, count)
    if bool(((factors - 1).abs() < _CLOSE).all()):
        return base, ()
    return None if bool((factors > 1 + _CLOSE).any()) else (base, tuple(float(f"{each:.7g}") for each in factors))


def _base(last: float, exponent: float, digits: Any, wanted: Tensor | None = None) -> float | None:
    """The b of the fewest digits with b ** -exponent = `last`, and the powers that are wanted."""
    if last <= 0:
        return None
    for number in digits:
        base = float(f"{last ** (-1 / exponent):.{number}g}")
        if wanted is None or bool(((wanted / powers(base, len(wanted)) - 1).abs() < _CLOSE).all()):
            return base
    return None


def powers(base: float, count: int, by: float = 0) -> Tensor:
    """base ** (-i / by) for i below `count`; by: `count` itself, if it is not given."""
    return base ** (-torch.arange(count).double() / (by or count))


def exact(value: Tensor) -> Tensor:
    """A buffer in float64; frequencies, and sines of places, without the rounding of f32."""
    waves = sinusoids(value)
    if waves is not None:
        return waves.table(len(value))
    found = frequencies(value)
    if found is None:
        return value.double() if value.is_floating_point() else value
    base, factors = found
    return powers(base, len(value)) * (torch.tensor(factors, dtype=torch.float64) if factors else 1)


def wide(x: Any) -> Any:
    """A tensor in float64 or complex128, or the type itself in place of a narrower one."""
    if isinstance(x, Tensor):
        return x.to(_WIDE.get(x.dtype, x.dtype))
    return _WIDE.get(x, x) if isinstance(x, torch.dtype) else x


_WIDE = {torch.float32: torch.float64, torch.float16: torch.float64, torch.bfloat16: torch.float64,
         torch.complex64: torch.complex128}  # fmt: skip


@dataclass(frozen=True)
class Waves:
    """Rows of sines and cosines of their number times base ** (-i / by), for i below `count`; side
    by side or in turns (`mixed`). empty: a row of zeros instead."""

    base: float
    count: int
    by: int
    mixed: bool
    empty: int | None

    def table(self, rows: int) -> Tensor:
        turns = torch.arange(rows).double()[:, None] * powers(self.base, self.count, self.by)
        waves = [turns.sin(), turns.cos()]
        found = torch.stack(waves, 2).flatten(1) if self.mixed else torch.cat(waves, 1)
        if self.empty is not None:
            found[self.empty] = 0
        return found


def sinusoids(value: Tensor) -> Waves | None:
    """The waves that a matrix has, if it has any."""
    rows, wide = value.shape if value.dim() == 2 and value.is_floating_point() else (0, 0)
    if rows < 4 or wide < 4 or wide % 2:
        return None
    table = value.double()
    empty = (~table.any(1)).nonzero().flatten().tolist()
    if len(empty) > 1:
        return None
    return next((found for found in _possible(table, empty[0] if empty else None)
                 if bool(((found.table(len(value)) - table).abs() < len(value) * _CLOSE).all())), None)  # fmt: skip


def _possible(table: Tensor, empty: int | None) -> Iterator[Waves]:
    """The waves whose frequencies a table has, those with a base of the fewest digits first."""
    count, row = table.shape[1] // 2, 2 if empty == 1 else 1
    for mixed in (False, True):
        sines, cosines = (table[row, at::2] if mixed else table[row].view(2, count)[at] for at in (0, 1))
        angles = torch.atan2(sines, cosines) / row
        if abs(float(angles[0]) - 1) < _CLOSE and 0 < float(angles[-1]) < 1:
            for digits, by in itertools.product(range(1, 9), (count, count - 1)):
                base = float(f"{float(angles[-1]) ** (-by / (count - 1)):.{digits}g}")
                if base > 1 and bool(((powers(base, count, by) - angles).abs() < 1e-7).all()):
                    yield Waves(base, count, by, mixed, empty)


def unfold_waves(traced: Traced) -> None:
    """Rows of waves are computed from the numbers of the rows."""

    def rule(node: Node) -> Node | None:
        table = node.args[0] if node.args else None
        while isinstance(table, Node) and table.op in _COPIES:
            table = table.args[0]
        if not isinstance(table, Node) or table.op not in (CONST, STATE) or table.name in traced.updated:
            return None
        rows = _rows(node)
        waves = sinusoids(table.value) if rows is not None else None
        return None if waves is None or rows is None else _computed(node, rows, waves)

    traced.rewrite(rule)


def _rows(node: Node) -> Node | None:
    """Which rows of a table a step takes."""
    args = node.args
    if node.op == "aten.embedding":
        rows = args[1]
    elif node.op == "aten.index_select":
        rows = args[2] if args[1] == 0 else None
    elif node.op == "aten.index":
        rows = args[1][0] if len(args[1]) == 1 else None
    else:
        whole = node.op == "aten.slice" and args[1] == 0 and args[2] in (0, None) and args[3:] and len(args) < 5
        rows = node.like("aten.arange", shape=node.shape[:1], dtype=torch.int64) if whole else None
    return rows if isinstance(rows, Node) else None


def _computed(node: Node, rows: Node, waves: Waves) -> Node:
    """The steps of the waves of some rows."""
    half = (*rows.shape, waves.count)
    places = node.like("aten.arange", shape=(waves.count,), dtype=torch.int64)
    speeds = node.like("aten.pow", waves.base, node.like("aten.mul", places, -1 / waves.by, shape=places.shape),
                       shape=places.shape)  # fmt: skip
    column = node.like("aten.unsqueeze", rows, -1, shape=(*rows.shape, 1), dtype=rows.dtype)
    turns = node.like("aten.mul", column, speeds, shape=half)
    both = [node.like(f"aten.{each}", turns, shape=half) for each in ("sin", "cos")]
    if waves.mixed:
        pairs = node.like("aten.stack", both, -1, shape=(*half, 2))
        found = node.like("aten.view", pairs, node.shape)
    else:
        found = node.like("aten.cat", both, -1)
    if waves.empty is None:
        return found
    there = node.like("aten.ne", column, waves.empty, shape=column.shape, dtype=torch.bool)
    return node.like("aten.where", there, found, 0.0)
