"""A declared optimizer -> whether it needs no more than its declaration says, by brute force:
`shardc verify`.

Some steps on whole parameters of several shapes are made again with each parameter cut as a
strategy may cut it, its rows spread by ZeRO, and its state put together and cut anew between steps,
as a run that goes on under another layout does."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from shardlang.check.own import NEEDS, OwnDecl
from shardlang.errors import RunError
from shardlang.extensions.loaded import OwnFunction
from shardlang.interpret.trials.declared import TrialVerdict
from shardlang.interpret.trials.whole_operator import Breach
from shardlang.runtime.state.own_optimizers import State, stepped
from shardlang.types.layout import chunk_sizes

_SHAPES = ((), (5,), (12,), (4, 6), (7, 5), (12, 8), (3, 4, 5))
_STEPS = 4
_CLOSE = 1e-9
# Weakest first.
_ORDER = ("elements", "rows", "whole")
Block = tuple[slice, ...]


@dataclass(frozen=True)
class TrainedBlocks:
    """The blocks that ranks train, and how they come about, in words."""

    blocks: tuple[Block, ...]
    words: str


def verify(decl: OwnDecl, begun: Callable[[str], None] = lambda trial: None) -> TrialVerdict:
    """The verdict on an optimizer; `free` names the weaker need that would do. begun: as of
    `declared.verify`. RunError SH619 where its file cannot be loaded."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    function = OwnFunction(decl.path, decl.source, decl.function).found(Path())
    tried, at = 0, ""
    begun(at)
    try:
        settings = _settings(decl)
        runs = []
        for shape in _SHAPES:
            at = f"a parameter of shape {list(shape)}"
            begun(at)
            run = _OptimizerTrial(function, Path(decl.path), shape, decl.state, settings)
            run.look()
            runs.append(run)
            for layout in layouts(shape):
                begun(at)
                run.compare(layout, decl.needs)
                tried += 1
    except Breach as refused:
        return TrialVerdict(decl, str(refused), refused.help, at, tried, len(_SHAPES))
    weaker = _ORDER[: _ORDER.index(decl.needs)]
    does = next((need for need in weaker if _fits(runs, need)), "")
    words = next((word for word, need in NEEDS.items() if need == does), "")
    return TrialVerdict(decl, "", "", "", tried, len(runs), (words,) if words else ())


def _settings(decl: OwnDecl) -> Mapping[str, Any]:
    """A value for each setting: its default, or one that is tried."""
    found = {}
    for param in decl.settings:
        if param.kind == "str" and param.required:
            raise Breach(f"setting `{param.name}` has no default to be tried with", "give it one")
        default = {"int": 2, "number": 0.5, "bool": True}.get(param.kind) if param.required else param.default
        found[param.name] = default
    return found


def layouts(shape: Sequence[int]) -> Iterator[TrainedBlocks]:
    """How ranks may hold a parameter: dims cut over 2, 3 and 5 ranks and in pairs, and the rows of
    each block spread by ZeRO over 2, 3 and 5."""
    dims = range(len(shape))
    cuts: list[dict[int, int]] = [{}, *({dim: count} for dim in dims for count in (2, 3, 5))]
    cuts += [{a: m, b: n} for a, b in itertools.combinations(dims, 2) for m, n in ((2, 2), (2, 3), (3, 2))]
    for cut in cuts:
        parts = [_chunks(0, size, cut.get(dim, 1)) for dim, size in enumerate(shape)]
        blocks = [tuple(block) for block in itertools.product(*parts)]
        words = ", ".join(f"dim {dim} over {count} ranks" for dim, count in cut.items())
        if cut:
            yield TrainedBlocks(tuple(blocks), f"with {words}")
        for zero in (2, 3, 5) if shape else ():
            rows = [(r, *b[1:]) for b in blocks for r in _chunks(b[0].start, b[0].stop - b[0].start, zero)]
            yield TrainedBlocks(tuple(rows), f"with {words + ', and ' if words else ''}rows over {zero} ranks by ZeRO")


def _chunks(start: int, size: int, count: int) -> list[slice]:
    """torch.chunk's parts; the last may be empty."""
    ends = itertools.accumulate(chunk_sizes(size, count), initial=start)
    return [slice(a, b) for a, b in itertools.pairwise(ends)]


class _OptimizerTrial:
    """Steps on a parameter of a shape, whole; `after` are the parameter and its state after
    each."""

    def __init__(
        self, function: Callable[..., Any], file: Path, shape: Sequence[int], state: Sequence[str],
        settings: Mapping[str, Any],
    ) -> None:  # fmt: skip
        self.function, self.file, self.shape, self.settings = function, file, shape, settings
        self.begin = torch.randn(shape, dtype=torch.float64), {n: torch.zeros(shape).double() for n in state}
        self.gradients = [torch.randn(shape, dtype=torch.float64) for _ in range(_STEPS)]
        self.after: list[tuple[Tensor, State]] = []

    def step(self, parameter: Tensor, gradient: Tensor, state: State, step: int) -> tuple[Tensor, State]:
        """A step, whose rate is another each time, as schedules have it."""
        settings = {**self.settings, "lr": 0.1 / step}
        try:
            return stepped(self.function, self.file, parameter, gradient, state, step, settings)
        except RunError as error:
            raise Breach(error.message) from None

    def look(self) -> None:
        """Makes the steps, and holds the function to what any pure one does."""
        parameter, state = self.begin
        for number, gradient in enumerate(self.gradients, 1):
            own, slope, kept = parameter.clone(), gradient.clone(), {name: x.clone() for name, x in state.items()}
            first = self.step(own, slope, kept, number)
            for what, here, before in (("parameter", own, parameter), ("gradient", slope, gradient),
                                       *((f"state `{n}`", kept[n], state[n]) for n in state)):  # fmt: skip
                if not torch.equal(here, before):
                    raise Breach(f"it changes the {what} that it is given", "make a new tensor: `p - lr * g`")
            second = self.step(parameter.clone(), gradient.clone(), {n: x.clone() for n, x in state.items()}, number)
            if not all(torch.equal(a, b) for a, b in zip(_flat(first), _flat(second), strict=True)):
                raise Breach("two calls with equal arguments give different results",
                              "what it remembers is declared: `state momentum like parameter`")  # fmt: skip
            if not all(bool(x.isfinite().all()) for x in _flat(first)):
                raise Breach(f"step {number} gives numbers that are not finite")
            self.step(own.float(), slope.float(), {n: x.float() for n, x in kept.items()}, number)
            parameter, state = first
            self.after.append(first)

    def compare(self, layout: TrainedBlocks, needs: str) -> None:
        """Makes the steps in parts; Breach where one differs."""
        parameter, state = self.begin
        for number, (gradient, wanted) in enumerate(zip(self.gradients, self.after, strict=True), 1):
            parameter, state = self._in_parts(layout, needs, parameter, gradient, state, number)
            names = ["the parameter", *(f"state `{name}`" for name in state)]
            for name, here, there in zip(names, _flat((parameter, state)), _flat(wanted), strict=True):
                apart = (here - there).abs()
                if not bool((apart <= _CLOSE * (1 + there.abs())).all()):
                    fact = f"{layout.words} {name} differs by {float(apart.max()):.3g} after step {number}"
                    raise Breach(fact, self._help(layout, needs))

    def _in_parts(
        self, layout: TrainedBlocks, needs: str, parameter: Tensor, gradient: Tensor, state: State, step: int
    ) -> tuple[Tensor, State]:
        """A step of every rank, each from what it is given, and what they then have together."""
        made = torch.full_like(parameter, torch.nan)
        kept = {name: torch.full_like(parameter, torch.nan) for name in state}
        for block in layout.blocks:
            if not made[block].numel():
                continue
            seen = _seen(block, needs, self.shape)
            found = self.step(
                parameter[seen].clone(), gradient[seen].clone(), {n: x[seen].clone() for n, x in state.items()}, step
            )
            # What a rank keeps of what it has computed is its own block.
            inner = tuple(slice(b.start - s.start, b.stop - s.start) for b, s in zip(block, seen, strict=True))
            made[block] = found[0][inner]
            for name, value in found[1].items():
                kept[name][block] = value[inner]
        return made, kept

    def _help(self, layout: TrainedBlocks, needs: str) -> str:
        for word, need in NEEDS.items():
            if _ORDER.index(need) > _ORDER.index(needs) and _fits([self], need, [layout]):
                return f"`needs {word}`"
        return ""


def _seen(block: Block, needs: str, shape: Sequence[int]) -> Block:
    """The part of a parameter that a rank with a block is given."""
    if needs == "elements" or not shape:
        return block
    whole = tuple(slice(0, size) for size in shape)
    return whole if needs == "whole" else (block[0], *whole[1:])


def _fits(runs: Sequence[_OptimizerTrial], needs: str, some: Sequence[TrainedBlocks] = ()) -> bool:
    """Whether a need would do."""
    try:
        for run in runs:
            for layout in some or layouts(run.shape):
                run.compare(layout, needs)
    except Breach:
        return False
    return True


def _flat(found: tuple[Tensor, State]) -> list[Tensor]:
    return [found[0], *found[1].values()]
