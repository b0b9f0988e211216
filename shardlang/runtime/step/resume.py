"""The part of a model in a checkpoint, and a run that goes on from one.

Turns a model's parameters, states and optimizer state into pieces; their files are in
checkpoints.py."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from shardlang.checkpoints.folders import is_name, tidy
from shardlang.checkpoints.folders import kept as checkpoints_in
from shardlang.checkpoints.index import INDEX, Damaged, index_text
from shardlang.checkpoints.looked_at import look
from shardlang.checkpoints.optimizers import EMA, Change, averaged, changes, state_names, updates
from shardlang.checkpoints.weight_files import named
from shardlang.disk.locks import Claims, held_in, require_apart
from shardlang.errors import RunError
from shardlang.runtime.comm.mesh import world
from shardlang.runtime.comm.primitives import exchanged
from shardlang.runtime.data.identity import differences, identity
from shardlang.runtime.program import Parameter, RunProgram
from shardlang.runtime.state import mapped
from shardlang.runtime.state.checkpoints import Checkpoints, Piece, SavedRun, not_finite, place, require_one
from shardlang.runtime.state.optimizers import optimizer
from shardlang.runtime.state.shares import StateLayouts, zero_group
from shardlang.runtime.step.model import RankModel
from shardlang.runtime.words import require_same


def checkpoints(program: RunProgram) -> Checkpoints | None:
    """Where the program's checkpoints are, by its setting."""
    if program.checkpoint is None:
        return None
    given = program.checkpoint
    return Checkpoints(program.base / given.to, given.every, given.keep)


def claim_of_program(claims: Claims, program: RunProgram, save_weights: Path | None) -> None:
    """Claims the folder of checkpoints, once all else is claimed, and removes what killed runs left
    there. RunError where the run writes something else to it under a name of a checkpoint, where it
    begins anew and those of an earlier run are there, or where it would remove or replace a file
    that it starts from."""
    if program.host_storage is not None:
        require_apart(program.host_storage, "host storage")
    written = checkpoints(program)
    if written is not None:
        claims.folder(written.folder, "checkpoints")
        for path in held_in(written.folder):
            if is_name(path.parts[0]):
                fact = f"this run would write something else under the name of a checkpoint, `{path.parts[0]}`"
                raise RunError("SH512", fact, file=written.folder / path, help="name another path for it")
        tidy(written.folder)
        if not program.resume and not program.overwrite:
            written.require_fresh()
        if program.overwrite and not program.resume:
            _require_spared(program, written.folder)
    if save_weights is not None and save_weights in _read_first(program):
        fact = "the run starts from the weights in this file, and would replace them"
        raise RunError("SH512", fact, file=save_weights, help="name another file for --save-weights")


def _read_first(program: RunProgram) -> list[Path]:
    """The files of weights that a run starts from."""
    read = named(program.base / program.init.path) if program.init is not None else []
    return [Path(os.path.realpath(path)) for path in read]


def _require_spared(program: RunProgram, folder: Path) -> None:
    """RunError where a file that the run starts from is in a checkpoint that it is to remove."""
    gone = [Path(os.path.realpath(path)) for path in checkpoints_in(folder).values()]
    for path in _read_first(program):
        if any(path.is_relative_to(checkpoint) for checkpoint in gone):
            fact = "the run starts from the weights in this file, and --overwrite would remove it"
            help = "name another folder: `to` of `checkpoint`; or copy the file, and name the copy in `init`"
            raise RunError("SH512", fact, file=path, help=help)


def facts(program: RunProgram, length: int, evaluated: int | None = None) -> dict[str, Any]:
    """The facts that decide the remaining examples of a run that writes checkpoints, from data of a
    length, and those that it evaluates, of the length `evaluated`."""
    if program.checkpoint is None:
        return {}
    found = {"batch": program.data.batch, "seed": program.seed, "data": identity(program.data, length)}
    if program.eval is not None and evaluated is not None:
        found["eval"] = identity(program.eval, evaluated)
    return found


def other_evaluation(facts: Mapping[str, Any], found: SavedRun) -> Iterator[str]:
    """A line where a run evaluates other data than that of a checkpoint, which recorded it."""
    here, there = (each.get("eval") for each in (facts, found.facts))
    differs = list(differences(here, there)) if isinstance(here, dict) and isinstance(there, dict) else []
    for name, mine, theirs in differs[:1]:
        more = f" ({len(differs) - 1} more differ)" if len(differs) > 1 else ""
        name = name.removeprefix("data.")
        yield f"evaluates other data than before: `{name}` of `eval` is {mine}, and was {theirs}{more}"


def save(
    model: RankModel, to: Checkpoints, facts: Mapping[str, Any], step: int, best: Mapping[str, Any] | None = None
) -> None:
    """Writes a checkpoint; all ranks call it. best: the best evaluation before this step's."""
    carried, skipped = model.shares.carried, model.gradients.skipped
    written = {**facts, "optimizers": {**carried.kinds, **_kinds(model.program)}, "skipped": skipped}
    counted = {**carried.updates, **{path: step - skipped - late for path, late in carried.late.items()}}
    if counted:
        written["updates"] = counted
    if best is not None:
        written["best"] = best
    if model.gradients.scale is not None:
        written["loss_scale"] = model.gradients.scale.kept()
    to.write(step, list(_pieces(model)), model.shares.tensors, written)


def _kinds(program: RunProgram) -> dict[str, str]:
    """The optimizer of each parameter, by path."""
    return {path: program.optimizers[at].kind for path, at in program.trained_by.items()}


def _require(
    program: RunProgram, found: SavedRun, facts: Mapping[str, Any], note: Callable[[str], None] | None
) -> None:
    """RunError if the remaining examples would be others than those of the run of a checkpoint;
    with `note`, that is only said."""
    recorded = found.facts.get("data")
    if isinstance(recorded, dict):
        # Words with other numbers: the weights would be those of others.
        require_same(
            program.data.categories, recorded.get("categories", {}), "the checkpoint was written", found.folder
        )
    facts = {name: fact for name, fact in facts.items() if name != "eval"}
    there = {name: found.facts.get(name) for name in facts}
    data = [each.get("data") for each in (facts, there)]
    own = [(name, facts[name], there[name]) for name in facts if name != "data" and facts[name] != there[name]]
    differs = [*own, *differences(*(each if isinstance(each, dict) else {} for each in data))]
    if not differs:
        return
    (name, mine, theirs), *others = differs
    more = f" (other too: {', '.join(f'`{other}`' for other, _, _ in others)})" if others else ""
    fact = f"`{name}` is {mine}, and the checkpoint was written with {theirs}{more}"
    if note is not None:
        note(f"goes on with other examples: {fact}")
        return
    help = "give it as it was, go on with other examples by --resume-anyway, or start anew by --overwrite"
    raise RunError("SH508", fact, file=found.folder, help=help)


def _changes(model: RankModel, found: SavedRun, instead: str) -> list[Change]:
    """The parameters that another optimizer trained. RunError if there are any and the user has not
    asked to go on nevertheless."""
    differ = list(changes(found, _kinds(model.program), model.shares.kept))
    if differ and not model.program.resume_anyway:
        help = f"give the optimizer, and `ema`, as it was, begin its state anew by --resume-anyway, or {instead}"
        raise RunError("SH508", differ[0].fact, file=found.folder, help=help)
    return differ


def _told(model: RankModel, differ: Sequence[Change]) -> Iterator[str]:
    """The lines of a run that goes on with other optimizers, one for each way to differ, and with
    the state of frozen parameters."""
    carried = model.shares.carried
    if carried.names:
        path, *others = carried.names
        more = f" and {len(others)} more" if others else ""
        size = sum(part.nbytes for parts in carried.tensors.values() for part in parts.values())
        yield f"keeps the optimizer's state of `{path}`{more}, frozen now: {size:,} bytes in this rank's host memory"
    ways: dict[tuple[tuple[str, ...], tuple[str, ...]], list[Change]] = {}
    for each in differ:
        ways.setdefault((tuple(each.anew), tuple(each.dropped)), []).append(each)
    for (anew, dropped), alike in ways.items():
        also = f", and so are {len(alike) - 1} more" if len(alike) > 1 else ""
        comes = [(anew, "begins anew", "begin anew"), (dropped, "is dropped", "are dropped")]
        does = ", ".join(f"{' and '.join(names)} {what[len(names) > 1]}" for names, *what in comes if names)
        yield f"goes on with another optimizer: {alike[0].fact}{also}; {does or 'it keeps nothing'}"


def _carry(model: RankModel, found: SavedRun) -> None:
    """Makes room for the state of parameters that are frozen now, which the run's checkpoints are
    to have as well: whoever trains them again goes on with it."""
    program, kinds = model.program, found.facts.get("optimizers")
    if model.shares.carried.names:  # of a checkpoint that was passed over
        model.shares = StateLayouts(program)
    shares, there = model.shares, state_names(found)
    for tensor in program.parameters if program.checkpoint is not None else ():
        names = there.get(tensor.path, [])
        if tensor.path in program.trained_by or not names:
            continue
        shares.add(tensor, names)
        shares.carried.names[tensor.path] = names
        if isinstance(kinds, dict) and tensor.path in kinds:
            shares.carried.kinds[tensor.path] = kinds[tensor.path]
        if tensor.path in model.trained:
            like = model.trained[tensor.path].detach()
            made = {name: mapped.clone(like) if mapped.is_mapped(like) else like.cpu().clone() for name in names}
            shares.carried.tensors[tensor.path] = made


def _kept(model: RankModel) -> dict[str, dict[str, Tensor]]:
    """The state that optimizers keep of each parameter that is trained here, by path and by
    name."""
    found = {}
    for each in model.optimizers:
        kept = each.kept()
        found.update({id(t): {name: kept[name][at] for name in kept} for at, t in enumerate(each.tensors)})
    kept = {t.path: found.get(id(model.trained[t.path]), {}) for t in model.parameters}
    kept.update({path: {**kept[path], EMA: average} for path, average in model.averages.items()})
    return {**kept, **model.shares.carried.tensors}


def resume(
    model: RankModel, offered: Sequence[Path], facts: Mapping[str, Any], note: Callable[[str], None],
    instead: str = "start anew by --overwrite",
) -> SavedRun | None:  # fmt: skip
    """Fills the model from the newest checkpoint that proves whole, and notes which are passed
    over; None where there is none. Rank 0 says which are there, and all ranks go on from one or
    none: RunError, with what the user may do instead, where they see different ones, or the run is
    another."""
    broken: list[Damaged] = []
    for path in offered:
        require_one(path, exchanged([place(), _seen(path)]))
        found, differ, why = _tried(model, path, facts, note, instead)
        told = exchanged([place(), why and [why.message, str(why.file)]])
        failed = [(where, *reason) for where, reason in told if reason is not None]
        if not failed and found is not None:
            _take(model, found, differ)
            for line in _told(model, differ):
                note(line)
            return found
        where, message, file = failed[0]
        broken.append(Damaged(message, Path(file)))
        note(f"{path} is passed over: {message} ({file}, seen by {where})")
    if broken:
        fact = f"no checkpoint is whole; of the newest: {broken[0].message}"
        raise RunError("SH508", fact, file=broken[0].file, help=instead)
    return None


def resumed(model: RankModel, path: Path, note: Callable[[str], None], averages: bool = False) -> SavedRun:
    """Fills the model from a checkpoint, or from the newest whole one of a folder of them; all
    ranks call it. averages: the weights are their averages. RunError where there is none."""
    offered = [path] if (path / INDEX).is_file() else Checkpoints(path, 1, 0).offered()
    found = resume(model, offered, {}, note, "name another checkpoint")
    if found is None:
        help = f"name a folder `step-N`, in which an `{INDEX}` is, or a folder of such folders"
        raise RunError("SH508", "there is no checkpoint to go on from", file=path, help=help)
    if averages:
        _take_averages(model, found)
    return found


def _take_averages(model: RankModel, found: SavedRun) -> None:
    """The averages of the weights, in their place."""
    kept = averaged(found, "add `ema = 0.999` to `train` before training, or leave out --ema")
    found.read([
        Piece(f"{t.path}:{EMA}", t.shape, offsets(model, t), model.trained[t.path].detach())
        for t in model.parameters if t.path in kept
    ])  # fmt: skip
    model.refresh(list(model.leaves))


def _seen(path: Path) -> int | None:
    """The checksum of an index; None where none can be read."""
    try:
        return zlib.crc32(index_text(path))
    except Damaged:
        return None


def _tried(
    model: RankModel, path: Path, facts: Mapping[str, Any], note: Callable[[str], None], instead: str
) -> tuple[SavedRun | None, Sequence[Change], Damaged | None]:
    """Fills the parameters, states and optimizer states of this rank from a checkpoint, or says why
    it is not whole."""
    try:
        found = SavedRun(path)
        look(found, world.rank, world.size)
        _require(model.program, found, facts, note if model.program.resume_anyway else None)
        differ = _changes(model, found, instead)
        _carry(model, found)
        anew = {f"{each.path}:{name}" for each in differ for name in each.anew}
        pieces = [piece for piece in _pieces(model) if piece.name not in anew]
        found.read(pieces)
        _require_finite(model, pieces, found.folder)
        _go_on_scaled(model, found)
        _count(model, found, differ)
    except Damaged as error:
        return None, (), error
    return found, differ, None


def _require_finite(model: RankModel, pieces: Sequence[Piece], folder: Path) -> None:
    """Damaged where a number of what is trained is none."""
    for piece in pieces:
        if wrong := not_finite(piece.name, piece.local, piece.offsets, model.program.trained_by):
            raise Damaged(wrong, folder)


def _count(model: RankModel, found: SavedRun, differ: Sequence[Change]) -> None:
    """Counts the updates that the state of each parameter has seen, where these are not all of the
    run."""
    carried, done = model.shares.carried, found.step - model.gradients.skipped
    seen = {**updates(found, done), **{each.path: 0 for each in differ if set(each.anew) - {EMA}}}
    carried.updates = {path: seen.get(path, done) for path in carried.names}
    carried.late = {path: done - seen[path] for path in model.program.trained_by if seen.get(path, done) < done}


def _take(model: RankModel, found: SavedRun, differ: Sequence[Change]) -> None:
    """Brings all else up to date with a checkpoint that has been read."""
    model.refresh(model.leaves)
    _begin_anew(model, differ)
    late = {id(model.trained[path]): n for path, n in model.shares.carried.late.items() if path in model.trained}
    for each in model.optimizers:
        each.resumed(found.step - model.gradients.skipped, late)


def _begin_anew(model: RankModel, differ: Sequence[Change]) -> None:
    """State that a checkpoint lacks is as at the first step, also where part of another had been
    read; the average of weights is the weights."""
    kept = _kept(model)
    for path, name in ((each.path, name) for each in differ for name in each.anew if each.path in kept):
        given = model.program.optimizers[model.program.trained_by[path]]
        local = kept[path].get(name)
        if local is None:
            continue  # a part of no element has no state
        if name == EMA:
            local.copy_(model.trained[path].detach())
        elif "call" in given.arguments:
            local.zero_()
        else:
            (first,) = optimizer(given.kind, [torch.zeros(1)], given.arguments).kept()[name]
            local.fill_(first.item())


def _go_on_scaled(model: RankModel, found: SavedRun) -> None:
    """Takes over the loss scale of a checkpoint, and how many steps updated nothing."""
    skipped, kept = found.facts.get("skipped", 0), found.facts.get("loss_scale")
    try:
        if type(skipped) is not int or not 0 <= skipped <= found.step:
            raise ValueError(f"{skipped!r} of {found.step} steps updated nothing")
        if model.gradients.scale is not None and kept is not None:
            model.gradients.scale.resumed(kept)
    except (KeyError, TypeError, ValueError) as error:
        raise Damaged(f"the index is damaged: {error!r}", found.folder / INDEX) from None
    model.gradients.skipped = skipped


def _pieces(model: RankModel) -> Iterator[Piece]:
    """Every block of this rank; of parameters under ZeRO its rows."""
    kept = _kept(model)
    for tensor in model.parameters:
        first = offsets(model, tensor)
        yield Piece(tensor.path, tensor.shape, first, model.trained[tensor.path].detach())
        for name, local in kept[tensor.path].items():
            yield Piece(f"{tensor.path}:{name}", tensor.shape, first, local)
    for state in model.program.states:
        if state.path in model.states:
            block = model.program.block(state)
            yield Piece(state.path, state.shape, block.offsets, model.states[state.path])


def offsets(model: RankModel, tensor: Parameter) -> tuple[int, ...]:
    """Where what this rank trains of a parameter begins in the whole."""
    block = model.program.block(tensor)
    group = zero_group(model.program, tensor)
    return block.offsets if group is None else (block.offsets[0] + group.start(block.shape[0]), *block.offsets[1:])
