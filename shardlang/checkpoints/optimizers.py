"""The optimizers' state in a checkpoint, and what a program keeps of its parameters -> the names
that a run reads, those that begin anew, and the same in words; without torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from shardlang.checkpoints.index import INDEX, Damaged, Index, Saved
from shardlang.errors import RunError
from shardlang.frozen.records import dataclass

# The average of a parameter is saved as if an optimizer kept it.
EMA = "ema"


@dataclass(frozen=True)
class Change:
    """A parameter whose state differs. fact: how, in words. anew: the names of its state that are
    not read; dropped: those in the checkpoint that are not."""

    path: str
    fact: str
    anew: Sequence[str]
    dropped: Sequence[str]


def state_names(index: Index) -> dict[str, list[str]]:
    """The names of the state that a checkpoint has of each parameter, sorted."""
    found: dict[str, list[str]] = {}
    for path, colon, name in (block.rpartition(":") for block in sorted(index.tensors)):
        if colon:
            found.setdefault(path, []).append(name)
    return found


def of_weights(index: Index) -> dict[str, Saved]:
    """The parameters and states of a checkpoint, without what optimizers keep."""
    return {name: layout.type for name, layout in index.tensors.items() if ":" not in name}


def averaged(index: Index, help: str) -> set[str]:
    """The parameters of which a checkpoint has the averages; RunError where there are none."""
    found = {path for path, names in state_names(index).items() if EMA in names}
    if not found:
        raise RunError("SH508", "the checkpoint has no average of the weights", file=index.folder, help=help)
    return found


def changes(index: Index, kinds: Mapping[str, str], kept: Mapping[str, Sequence[str]]) -> Iterator[Change]:
    """Each parameter whose optimizer, or what that keeps, is another. kinds, kept: of the
    parameters that a program trains, the optimizer and the names of its state."""
    there, before = state_names(index), index.facts.get("optimizers")
    for path, kind in kinds.items():
        theirs, mine = there.get(path, []), sorted(kept[path])
        other = isinstance(before, dict) and before.get(path, kind) != kind
        if path not in index.tensors or (theirs == mine and not other):
            continue
        read = [name for name in mine if name in theirs and (name == EMA or not other)]
        anew, dropped = ([name for name in names if name not in read] for names in (mine, theirs))
        fact = f"`{path}` is trained by `{kind}` (which keeps {', '.join(mine) or 'nothing'}), and "
        fact += written(index, path, ", ".join(theirs) or "nothing")
        yield Change(path, fact, anew, dropped)


def written(index: Index, path: str, keeps: str) -> str:
    """A parameter's optimizer when a checkpoint was written, in words. keeps: the state that is
    there."""
    kinds = index.facts.get("optimizers")
    if isinstance(kinds, dict) and path not in kinds:
        return "it was frozen when the checkpoint was written"
    kind = f"`{kinds[path]}`" if isinstance(kinds, dict) else "an optimizer"
    return f"the checkpoint was written with {kind} (which keeps {keeps})"


def updates(index: Index, done: int) -> dict[str, int]:
    """The updates that the state of a parameter has seen, where these are not `done`, all of the
    run. Damaged where these are no such numbers."""
    found: Any = index.facts.get("updates", {})
    if not isinstance(found, dict) or not all(type(n) is int and 0 <= n <= done for n in found.values()):
        raise Damaged(f"the index is damaged: updates {found!r} of {done}", index.folder / INDEX)
    return found
