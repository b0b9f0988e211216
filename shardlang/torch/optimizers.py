"""torch's optimizers on what a rank holds of the parameters: blocks, and under ZeRO rows of them.

That is right for those that treat each element alone, which is tried. torch's fused kernels are
given whole vectors only, as the runtime's are (runtime/state/optimizers.py): the results are then
the same bits, however parameters are cut."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from shardlang.checkpoints.optimizers import state_names, updates, written
from shardlang.errors import RunError
from shardlang.facts.optimizers import OPTIMIZERS
from shardlang.hints.nearest import offer
from shardlang.paths.patterns import covered
from shardlang.runtime.state.checkpoints import Piece, SavedRun
from shardlang.runtime.state.optimizers import UNIT
from shardlang.runtime.step.model import RankModel
from shardlang.runtime.step.resume import offsets

# By torch's class: the runtime's kind, and its names of what is kept of a parameter.
_KEPT: Mapping[str, tuple[str, Mapping[str, str]]] = {
    facts.torch: (kind, dict(zip(facts.state, facts.torch_state, strict=True)))
    for kind, facts in OPTIMIZERS.items()
    if facts.torch
}
# Settings that choose a way of computing. Where one is given, it is the user's choice.
_WAYS = ("fused", "foreach", "capturable", "differentiable")
# Steps that are tried, and rows and columns of what they are tried on.
_STEPS, _ROWS, _COLUMNS = 3, 6, 4


class NotElementwise(ValueError):
    """An optimizer that updates an element by others too: on a part of a parameter it would compute
    something else than on the whole."""


def require_elementwise(cls: Any, settings: Mapping[str, Any]) -> None:
    """NotElementwise where three steps on a small matrix in float64 differ from the same steps on
    its two halves, of rows or of columns."""
    generator = torch.Generator().manual_seed(1)
    begin, *gradients = torch.randn(_STEPS + 1, _ROWS, _COLUMNS, generator=generator, dtype=torch.float64)

    def after(at: Sequence[int], dim: int) -> Tensor:
        """The matrix after the steps, which are on its parts along a dim."""
        parts = [nn.Parameter(part.clone()) for part in begin.tensor_split(at, dim)]
        optimizer = cls(parts, **settings)
        for gradient in gradients:
            for part, own in zip(parts, gradient.tensor_split(at, dim), strict=True):
                part.grad = own.clone()
            try:
                optimizer.step()
            except TypeError as error:
                raise NotElementwise(f"{cls.__name__} does not step by gradients alone: {error}") from None
        return torch.cat([part.detach() for part in parts], dim)

    whole = after([], 0)
    for dim, name in ((0, "rows"), (1, "columns")):
        halves = after([1], dim)
        if not torch.allclose(whole, halves, rtol=1e-12, atol=1e-12):
            raise NotElementwise(
                f"{cls.__name__} needs whole matrices: on a matrix of {_ROWS} x {_COLUMNS} numbers its steps differ by "
                f"{float((whole - halves).abs().max()):.3g} from those on two parts of its {name}, and a rank may "
                "hold a part only"
            )


def made(
    model: RankModel, trained: Mapping[str, nn.Parameter], saved: SavedRun | None, cls: Any, at: Iterable[str] | None,
    settings: Mapping[str, Any],
) -> Any:  # fmt: skip
    """An optimizer of the parameters that selectors name, by default of all that this rank trains.
    saved: the checkpoint that it goes on from."""
    paths = _selected(model, at)
    sparse = any(t.sparse for t in model.parameters if t.path in paths)
    known = inspect.signature(cls).parameters
    fused = "fused" in known and not sparse and not any(way in settings for way in _WAYS)
    mine = {path: held for path, held in trained.items() if path in paths and held.numel()}
    given = {path: _whole_vectors(held) if fused else held for path, held in mine.items()}
    # torch takes no empty list, and a rank may have nothing of some parameters.
    vectors = [*given.values()] or [nn.Parameter(torch.empty(0))]
    optimizer = cls(vectors, **settings, **({"fused": True} if fused else {}))
    pairs = [(held, given[path]) for path, held in mine.items() if given[path] is not held]
    if pairs:
        optimizer.register_step_pre_hook(lambda *_: _filled(pairs))
        optimizer.register_step_post_hook(lambda *_: _put_back(pairs))
    if saved is not None:
        _go_on(model, saved, optimizer, {path: (mine[path], given[path]) for path in mine})
    return optimizer


def _selected(model: RankModel, at: Iterable[str] | None) -> set[str]:
    """ValueError for a selector that names nothing of the whole program."""
    every = [tensor.path for tensor in model.program.parameters if not tensor.frozen]
    if at is None:
        return set(every)
    if isinstance(at, str):
        raise TypeError(f"`at` is a list of selectors: [{at!r}]")
    for selector in (at := list(at)):
        if not covered([selector], every):
            more = f" and {len(every) - 5} more" if len(every) > 5 else ""
            there = f"there are {', '.join(f'`{name}`' for name in every[:5])}{more}"
            raise ValueError(f"`{selector}` selects no parameter; {offer(selector, every, there)}")
    return covered(at, every)


def _whole_vectors(held: nn.Parameter) -> nn.Parameter:
    """A parameter itself; where it fills no whole vectors, one with further rows that does."""
    if held.numel() % UNIT == 0:
        return held
    rows, *rest = held.shape or (1,)
    unit = UNIT // math.gcd(UNIT, math.prod(rest))
    return nn.Parameter(held.new_zeros((-(-rows // unit) * unit, *rest)))


def part_of(larger: Tensor, held: Tensor) -> Tensor:
    """The numbers of a larger tensor that are those of a parameter, as a view."""
    return larger.view(-1)[: held.numel()].view(held.shape)


@torch.no_grad()
def _filled(pairs: Iterable[tuple[nn.Parameter, nn.Parameter]]) -> None:
    for held, larger in pairs:
        part_of(larger, held).copy_(held)
        larger.grad = None
        if held.grad is not None:
            larger.grad = torch.zeros_like(larger)
            part_of(larger.grad, held).copy_(held.grad)


@torch.no_grad()
def _put_back(pairs: Iterable[tuple[nn.Parameter, nn.Parameter]]) -> None:
    for held, larger in pairs:
        held.copy_(part_of(larger, held))
        larger.grad = None


def _go_on(
    model: RankModel, saved: SavedRun, optimizer: Any, given: Mapping[str, tuple[nn.Parameter, nn.Parameter]]
) -> None:
    """Fills an optimizer's state from a checkpoint. RunError where that is of another one."""
    kind, kept = _KEPT.get(type(optimizer).__name__, ("", {}))
    if kind and not OPTIMIZERS[kind].kept(optimizer.defaults):
        kept = {}
    before, done = saved.facts.get("optimizers"), saved.step - model.gradients.skipped
    seen, there = updates(saved, done), state_names(saved)
    declared = {tensor.path: tensor for tensor in model.parameters}
    pieces = []
    for path, (held, own) in given.items():
        theirs = before.get(path) if isinstance(before, dict) else None
        names = there.get(path, [])
        if theirs != kind or {*names} != kept.keys():
            mine = f"{type(optimizer).__name__} (which keeps {', '.join(kept.values()) or 'nothing'})"
            fact = f"`{path}` is to be trained by {mine}, and "
            fact += written(saved, path, ", ".join(names) or "nothing")
            help = "the optimizer as it was; one made by hand, of net.parameters(), begins anew"
            raise RunError("SH508", fact, file=saved.folder, help=help)
        state = {mine: torch.zeros_like(own) for mine in kept.values()}
        tensor, first = declared[path], offsets(model, declared[path])
        pieces += [
            Piece(f"{path}:{name}", tensor.shape, first, part_of(state[mine], held)) for name, mine in kept.items()
        ]
        if kind != "sgd":
            on = own.device if optimizer.defaults.get("fused") else torch.device("cpu")
            state["step"] = torch.tensor(float(seen.get(path, done)), device=on)
        optimizer.state[own] = state
    saved.read(pieces)
