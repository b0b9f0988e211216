"""`shardc import` on one page: a factory -> the text of a program, its name map, a report."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from shardlang.disk.overwrite_guard import NAMED_MARK
from shardlang.disk.scratch import scratch
from shardlang.errors import RunError
from shardlang.importing.attempt import Attempt
from shardlang.importing.attempt import Wanted as Wanted
from shardlang.importing.eager import own_backwards
from shardlang.importing.example import example, left_out
from shardlang.importing.opaque import words  # noqa: F401  (it fills WORDS)
from shardlang.importing.steps.sizes import FURTHEST, Place, other_sizes
from shardlang.importing.steps.starts import SEEDS
from shardlang.importing.steps.trace import all_tensors
from shardlang.importing.text import maps
from shardlang.importing.text.formulas import Unlike, solve


@dataclass(frozen=True)
class Imported:
    """The files, and what is known of them. tensors: of the module, by name. declared, python: of
    operators of its own; "" where it has none."""

    text: str
    names: str
    report: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    declared: str = ""
    python: str = ""

    def weights(self) -> bytes:
        """The module's tensors, each under its first name, as a file of safetensors."""
        first = {id(tensor): name for name, tensor in reversed(list(self.tensors.items()))}
        made: bytes = save({name: self.tensors[name].detach().contiguous() for name in first.values()})
        start = 8 + int.from_bytes(made[:8], "little")
        # What comes first tells later runs that the file may be replaced.
        header = f"{NAMED_MARK},{made[9:start].decode()}".encode()
        header += b" " * (-len(header) % 8)
        return len(header).to_bytes(8, "little") + header + made[start:]


def import_module(factory: Callable[[], Any], wanted: Wanted) -> Imported:
    """All of it, in memory, but for operators that are tried. RunError SH600 to SH608."""
    with scratch("import") as folder:
        tried = _Tried()
        try:
            return _imported(factory, wanted, folder.path, tried)
        except RunError as error:
            if error.code != "SH603":
                raise
            differs = error
        for sized in (True, False):
            again = dataclasses.replace(wanted, sized=sized, by_dims=True)
            try:
                return _imported(factory, again, folder.path, tried)
            except RunError as error:
                if error.code == "SH605" and error.message not in differs.help:
                    differs.help = f"{differs.help}; {error.help}: {error.message}"
        raise differs from None


@dataclass
class _Tried:
    """The rest of a way that failed, for the next: itself, at the sizes of the example, and sizes
    of inputs that are those of no other dim, of theirs or of the module's."""

    example: Attempt | None = None
    inputs: dict[str, Tensor] | None = None


def _imported(factory: Callable[[], Any], wanted: Wanted, folder: Path, tried: _Tried) -> Imported:
    made = [example(factory, wanted.place, seed) for seed in SEEDS]
    module, inputs = made[0]
    seeded = [all_tensors(each) for each, _ in made]
    dropped = left_out(module) | own_backwards(module, inputs)
    first = Attempt(module, tried.inputs or inputs, seeded, wanted, dropped)
    apart = None if wanted.by_dims else _apart(first)
    first = first if apart is None else first.at(apart)
    if tried.example is None:
        tried.example, tried.inputs = first, first.other(near=True, distinct=True)
    second, others = _agreed(first)
    others += [tried.example.saying(first)] if wanted.by_dims else []
    declared = first.declared(folder)
    first.evaluates()
    program = first.trained(made[0][1]) if wanted.train else first.text
    found = maps.lines(first.root)
    read = {line.stored.name for line in found}
    unused = [name for name, _ in module.named_parameters() if name not in read]
    names = maps.text(found, module.state_dict(keep_vars=True), first.model.name, unused)
    error = max(each.compared(found) for each in (first, *others))
    count = sum(each.numel() for each in module.parameters())
    report = {
        "imported_from": wanted.place, "model": first.model.name, "parameters": count, "sizes": first.sizes,
        "second sizes": None if second is None else {name: list(each.shape) for name, each in second.items()},
        "unused parameters": unused, "unnamed dims": first.namer.guessed,
        "accepted": first.shared.differences, "largest difference": error, "opaque": first.operations.names,
    }  # fmt: skip
    tensors = module.state_dict(keep_vars=True)
    # Of tied tensors, the names that the map has come first.
    first_names = {name: tensors[name] for name in [*sorted(read), *tensors]}
    return Imported(program, names, report, first_names, declared, first.operations.python() if declared else "")


def _agreed(first: Attempt) -> tuple[dict[str, Tensor] | None, list[Attempt]]:
    """The second sizes, None where there are none, and those ways at other sizes to compare as
    well. RunError SH603 where these have another text."""
    by_dims = first.wanted.by_dims
    second = first.other(beyond=first.beyond(FURTHEST), distinct=by_dims)
    longest = first.longest(second or first.inputs)
    first.unreached(max(longest, FURTHEST))
    if second is None:
        return None, []
    other = first.at(second)
    other.unreached(max(longest, FURTHEST))
    differs = _differing(first.all_text(), other.all_text())
    if not by_dims and other.all_text() == first.all_text():
        _further(first, second, [])
        return second, []
    near = first.other(near=True, distinct=True) if by_dims else None
    if near is None:
        raise differs
    far = first.longest(near) < longest
    for sizes, there in ((second, other), (near, None))[: 1 + far]:
        third = first.other(near=True, distinct=True, besides=sizes)
        others = [there or first.at(sizes), first.at(third)] if third is not None else []
        if others and _by_dims(first, others):
            _holds(first, first.longest(others[-1].inputs), far and sizes is near)
            if not (far and sizes is near):
                _further(first, sizes, others)
            return sizes, others
    raise differs


def _further(first: Attempt, known: dict[str, Tensor], others: Sequence[Attempt]) -> None:
    """RunError SH603 where the text is another one at sizes that are twice as large: neighbouring
    sizes may agree by chance, as in `size // 3`. One of these may differ by chance in turn, where a
    part ends with a table, so two are asked. known: sizes that were traced already; others: the
    ways by which numbers are written by dims. A program that holds up to a size alone is not asked
    beyond it, nor one that shardc refuses at such sizes."""
    if any(each.times < 0 for each in first.formulas):
        return
    differs, taken = None, known
    for _ in range(2):
        sizes = first.other(near=True, distinct=True, besides=taken, double=True)
        if sizes is None or (others and _changed(first.inputs, sizes) != _changed(first.inputs, known)):
            break
        if not first.stands(sizes):
            return
        there = first.at(sizes)
        if not others:
            there.unreached(max(first.longest(known), FURTHEST))
        if _by_dims(first, [there, *others]) if others else there.all_text() == first.all_text():
            return
        differs = differs or _differing(first.all_text(), there.all_text())
        taken = {name: torch.empty((*each.shape, *sizes[name].shape), device="meta") for name, each in known.items()}
    if differs is not None:
        raise differs


def _changed(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> set[Place]:
    """The places of dims that have other sizes."""
    return {(name, at) for name, each in one.items() for at, size in enumerate(each.shape)
            if other[name].shape[at] != size}  # fmt: skip


def _by_dims(first: Attempt, others: Sequence[Attempt]) -> bool:
    """Whether the texts at all sizes are one where numbers are written by the dims of inputs."""
    texts = set()
    for other in others:
        try:
            first.formulas = solve(first.root, other.root)
        except Unlike:
            return False
        for each in (first, other):
            each.write()
            texts.add(each.all_text())
    return len(texts) == 1


def _holds(first: Attempt, longest: int, near: bool) -> None:
    """Tells up to which size of a dim the program holds: a number that is less by it becomes 0, or
    the module takes another way. longest: the largest size that was traced; near: whether beyond
    that another way was found. RunError SH605."""
    ends = [each.more // -each.times for each in first.formulas if each.times < 0]
    ends += [each for each in first.turns() if near and each > longest]
    if ends or near:
        first.ends(min(ends, default=longest))


def _apart(first: Attempt) -> dict[str, Tensor] | None:
    """The inputs at other sizes of dims that may change, but for a batch, and that have the size of
    another one: which of both a step means could not be told. None where all differ."""
    free = first.free()
    sizes = [first.inputs[places[0][0]].shape[places[0][1]] for places in free]
    alike = [places for places, size in zip(free, sizes, strict=True)
             if sizes.count(size) > 1 and all(at for _, at in places)]  # fmt: skip
    return other_sizes(first.inputs, alike, first.module) if alike else None


def _differing(one: str, other: str) -> RunError:
    """SH603, with the first lines that differ."""
    pairs = zip(one.splitlines(), other.splitlines(), strict=False)
    a, b = next(((a, b) for a, b in pairs if a != b), ("", ""))
    fact = f"the module takes another way at other sizes of its inputs: `{a.strip()}` becomes `{b.strip()}`"
    return RunError("SH603", fact, help="import it at sizes where both are one, or give such a size as an argument")
