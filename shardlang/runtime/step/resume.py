"""The part of a model in a checkpoint, and a run that goes on from one.

Turns a model's parameters, states and optimizer state into pieces; their files are in
checkpoints.py."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from shardlang.errors import RunError
from shardlang.locks import Claims, held_in, require_apart
from shardlang.runtime.comm.mesh import Mesh
from shardlang.runtime.program import Declared, Parameter, Program
from shardlang.runtime.state.checkpoint_folders import INDEX, is_name
from shardlang.runtime.state.checkpoints import Checkpoints, Damaged, Piece, SavedRun
from shardlang.runtime.step.loss_scale import LossScale
from shardlang.runtime.step.model import Model


def checkpoints(program: Program) -> Checkpoints | None:
    """Where the program's checkpoints are, by its setting."""
    if program.checkpoint is None:
        return None
    given = program.checkpoint
    return Checkpoints(program.base / given.to, given.every, given.keep)


def claim_of_program(claims: Claims, program: Program, save_weights: Path | None) -> None:
    """Claims the folder of checkpoints, once all else is claimed. RunError where the run writes
    something else to it under a name of a checkpoint, or the weights are to be saved in a file that
    the run starts from."""
    if program.host_storage is not None:
        require_apart(program.host_storage, "host storage")
    written = checkpoints(program)
    if written is not None:
        claims.folder(written.folder, "checkpoints")
        for path in held_in(written.folder):
            if is_name(path.parts[0]):
                fact = f"this run would write something else under the name of a checkpoint, `{path.parts[0]}`"
                raise RunError("SH512", fact, file=written.folder / path, help="name another path for it")
    if program.init is not None and save_weights is not None:
        given = program.base / program.init.path
        read = given.parent.glob(given.name) if "*" in given.name else [given]
        if save_weights in (Path(os.path.realpath(path)) for path in read):
            fact = "the run starts from the weights in this file, and would replace them"
            raise RunError("SH512", fact, file=save_weights, help="name another file for --save-weights")


def facts(program: Program) -> dict[str, Any]:
    """The settings that decide the remaining examples."""
    return {"batch": program.data.batch, "seed": program.seed}


def save(model: Model, to: Checkpoints, step: int) -> None:
    """Writes a checkpoint; all ranks call it."""
    written = {**facts(model.program), "optimizers": _optimizers(model.program)}
    if model.scale is not None:
        written["loss_scale"] = model.scale.kept()
    to.write(step, list(_pieces(model)), written)


def _optimizers(program: Program) -> dict[str, str]:
    """The optimizer of each parameter, by path."""
    return {path: program.optimizers[at].kind for path, at in program.trained_by.items()}


def _require_optimizers(model: Model, found: SavedRun) -> None:
    """RunError if another optimizer trained a parameter of this rank, or its state differs."""
    kinds = _optimizers(model.program)
    before = found.index.get("optimizers")
    names: dict[str, list[str]] = {}
    for path, colon, name in (block.rpartition(":") for block in sorted(found.blocks)):
        if colon:
            names.setdefault(path, []).append(name)
    for path, kept in _kept(model).items():
        kind = before.get(path) if isinstance(before, dict) else None
        theirs = names.get(path, [])
        if path not in kinds or path not in found.blocks or not model.trained[path].numel():
            continue
        if kind not in (None, kinds[path]) or theirs != sorted(kept):
            raise RunError(
                "SH508", f"`{path}` is trained by {_told(kinds[path], sorted(kept))}, and the checkpoint "
                f"was written with {_told(kind, theirs)}", file=found.folder,
                help="give the optimizer as it was, or start anew without --resume",
            )  # fmt: skip


def _told(kind: str | None, kept: Sequence[str]) -> str:
    named = f"`{kind}`" if kind is not None else "an optimizer"
    return f"{named} (which keeps {', '.join(kept) or 'nothing'})"


def _kept(model: Model) -> dict[str, dict[str, Tensor]]:
    """The state that optimizers keep of each parameter that is trained here, by path and by
    name."""
    found = {}
    for optimizer in model.optimizers:
        kept = optimizer.kept()
        found.update({id(t): {name: kept[name][at] for name in kept} for at, t in enumerate(optimizer.tensors)})
    return {t.path: found.get(id(model.trained[t.path]), {}) for t in model.parameters}


def resume(model: Model, found: SavedRun) -> int:
    """Fills the model from a checkpoint; the step it was written after."""
    found.require(facts(model.program))
    _require_optimizers(model, found)
    found.read(list(_pieces(model)))
    model.refresh(model.leaves)
    skipped = _resume_scale(model, found)
    for optimizer in model.optimizers:
        optimizer.resumed(found.step - skipped)
    return found.step


def _resume_scale(model: Model, found: SavedRun) -> int:
    """Goes on with the loss scale of a checkpoint, if it has one; the steps that updated
    nothing."""
    kept = found.index.get("loss_scale")
    if kept is None:
        return 0
    scale = model.scale or LossScale()
    try:
        scale.resumed(kept)
    except (KeyError, TypeError, ValueError) as error:
        raise Damaged(f"the index is damaged: {error!r}", found.folder / INDEX) from None
    return scale.skipped


def _pieces(model: Model) -> Iterator[Piece]:
    """Every block of this rank; of parameters under ZeRO its rows."""
    kept = _kept(model)
    for tensor in model.parameters:
        offsets, writes = _offsets(model, tensor), _writes(model, tensor)
        yield Piece(tensor.path, tensor.shape, offsets, model.trained[tensor.path].detach(), writes)
        for name, local in kept[tensor.path].items():
            yield Piece(f"{tensor.path}:{name}", tensor.shape, offsets, local, writes)
    for state in model.program.states:
        if state.path in model.states:
            block = model.program.block(state)
            yield Piece(state.path, state.shape, block.offsets, model.states[state.path], _writes(model, state))


def _offsets(model: Model, tensor: Parameter) -> tuple[int, ...]:
    """Where what this rank trains of a parameter begins in the whole."""
    block = model.program.block(tensor)
    group = model.zero_group(tensor)
    return block.offsets if group is None else (block.offsets[0] + group.start(block.shape[0]), *block.offsets[1:])


def _writes(model: Model, tensor: Declared) -> bool:
    """Whether this rank is the first of those that hold the same block."""
    mesh: Mesh = tensor.mesh or model.program.mesh
    cut = set(tensor.split_axes())
    if isinstance(tensor, Parameter):
        cut.update(model.zero_axes(tensor))
    others = [axis for axis in mesh if axis not in cut and axis != model.program.stage_axis]
    return model.program.keeps(tensor) and all(mesh[axis].index == 0 for axis in others)
