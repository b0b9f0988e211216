"""A chain of moves made by rule, where the layouts are too many to search: all-to-alls that fit,
gathers of the rest, cuts, then sums and copies. Legal between any two layouts that are, and never
more than to gather all and to cut again."""

from __future__ import annotations

import math
from dataclasses import field

from shardlang.frozen.records import dataclass
from shardlang.plan.plan import MoveKind
from shardlang.plan.redistribute.collective_bytes import BitLayout, Hop, Space

Axes = tuple[int, ...]


def greedy(source: BitLayout, target: BitLayout, space: Space) -> list[Hop]:
    """Moves from `source` to `target`, both legal in `space`."""
    walk = _GreedyWalk(space, source, target)
    walk.run()
    return walk.steps


@dataclass
class _GreedyWalk:
    space: Space
    state: BitLayout
    target: BitLayout
    steps: list[Hop] = field(default_factory=list)

    def run(self) -> None:
        while (excess := self._excess()) is not None:
            if not self._exchange():
                self._gather(excess)
        for dim in range(len(self.state.dims)):
            self._cut(dim)
        for axis in range(len(self.space.sizes)):
            self._settle(axis)

    # --- what is where ---

    def kept(self, dim: int) -> int:
        """How many axes of a dim stay: those that both ends begin with; if uneven all or none."""
        here, there = self.state.dims[dim], self.target.dims[dim]
        count = 0
        while count < min(len(here), len(there)) and here[count] == there[count]:
            count += 1
        return 0 if dim in self.space.uneven and count < max(len(here), len(there)) else count

    def _excess(self) -> int | None:
        dims = self.state.dims
        return next((d for d in range(len(dims)) if len(dims[d]) > self.kept(d)), None)

    @property
    def local(self) -> int:
        return self.space.whole // math.prod([self.space.degree(axes) for axes in self.state.dims])

    @staticmethod
    def _in(state: BitLayout, axis: int) -> str:
        if any(axis in axes for axes in state.dims):
            return "S"
        return "P" if state.pending >> axis & 1 else "R" if state.replicated >> axis & 1 else "I"

    # --- moves ---

    def _move(self, name: str, axes: Axes, dim: int, from_dim: int, size: int, to: BitLayout) -> None:
        """size: parts that are sent forward, backward or both ways, as the kind says."""
        kind = MoveKind[name]
        forward, backward = (size * bool(by) for by in kind.collectives)
        self.steps.append(Hop(kind, axes, dim, from_dim, forward, backward, to))
        self.state = to

    def _with(self, changes: dict[int, Axes], axes: Axes, state: str) -> BitLayout:
        """The state with other axes on some dims, and `axes` among those of P, R or I."""
        dims = tuple(changes.get(d, now) for d, now in enumerate(self.state.dims))
        bits = sum(1 << a for a in axes)
        pending = self.state.pending & ~bits | (bits if state == "P" else 0)
        return BitLayout(dims, pending, self.state.replicated & ~bits | (bits if state == "R" else 0))

    def _exchange(self) -> bool:
        """An all-to-all that moves axes: the most minor of one dim, the next of another."""
        for dim, axes in enumerate(self.state.dims):
            for first in range(self.kept(dim), len(axes)):
                if dim in self.space.uneven and first:
                    break
                run = axes[first:]
                other = self._next(run)
                if other is None or other == dim:
                    continue
                n = self.space.degree(run)
                to = self._with({dim: axes[:first], other: self.state.dims[other] + run}, run, "S")
                self._move("S_TO_S", run, other, dim, (n - 1) * self.local // n, to)
                return True
        return False

    def _next(self, run: Axes) -> int | None:
        """The dim that has all in place and takes these axes next."""
        for dim, there in enumerate(self.target.dims):
            here = self.state.dims[dim]
            if self.kept(dim) < len(here) or there[len(here) : len(here) + len(run)] != run:
                continue
            if dim not in self.space.uneven or there == run:
                return dim
        return None

    def _gather(self, dim: int) -> None:
        kept = self.kept(dim)
        run = self.state.dims[dim][kept:]
        wanted = {self._in(self.target, a) for a in run}
        state = wanted.pop() if len(wanted) == 1 and wanted <= {"I", "P"} else "R"
        gathered = (self.space.degree(run) - 1) * self.local
        to = self._with({dim: self.state.dims[dim][:kept]}, run, state)
        self._move(f"S_TO_{state}", run, dim, -1, gathered, to)

    def _cut(self, dim: int) -> None:
        """The axes that a dim lacks, in as few moves as their states allow; if uneven in one."""
        while run := self.target.dims[dim][len(self.state.dims[dim]) :]:
            states = [self._in(self.state, a) for a in run]
            same = next((n for n, s in enumerate(states) if s != states[0]), len(run))
            if dim in self.space.uneven and same < len(run):
                for axis in run:
                    self._turn(axis, "I")
                continue
            run, n = run[:same], self.space.degree(run[:same])
            to = self._with({dim: self.state.dims[dim] + run}, run, "S")
            self._move(f"{states[0]}_TO_S", run, dim, -1, (n - 1) * self.local // n, to)

    def _settle(self, axis: int) -> None:
        if self._in(self.target, axis) != "S":
            self._turn(axis, self._in(self.target, axis))

    def _turn(self, axis: int, to: str) -> None:
        """Along an axis that cuts nothing."""
        now = self._in(self.state, axis)
        if now not in ("S", to):
            n = self.space.sizes[axis]
            self._move(f"{now}_TO_{to}", (axis,), -1, -1, 2 * (n - 1) * self.local // n, self._with({}, (axis,), to))
