"""`shardc import` on one page: a factory -> the text of a program, its name map, a report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
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
from shardlang.importing.bodies.forms import Unlike, solve
from shardlang.importing.eager import own_backwards
from shardlang.importing.example import example, left_out
from shardlang.importing.opaque import words  # noqa: F401  (it fills WORDS)
from shardlang.importing.steps.sizes import FURTHEST, Place, other_sizes
from shardlang.importing.steps.starts import SEEDS
from shardlang.importing.steps.trace import all_tensors
from shardlang.importing.text import maps


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
    made = [example(factory, wanted.place, seed) for seed in SEEDS]
    module, inputs = made[0]
    seeded = [all_tensors(each) for each, _ in made]
    dropped = left_out(module) | own_backwards(module, inputs)
    first = Attempt(module, inputs, seeded, wanted, dropped)
    differs: RunError | None = None
    with scratch("import") as folder:
        for way in (_plainly, partial(_by_dims, sized=True), partial(_by_dims, sized=False)):
            try:
                return _imported(*way(first), first, folder.path)
            except RunError as error:
                if differs is None and error.code != "SH603":
                    raise
                if differs is not None and error.code == "SH605" and error.message not in differs.help:
                    differs.help = f"{differs.help}; {error.help}: {error.message}"
                differs = differs or error
    assert differs is not None
    raise differs


def _imported(first: Attempt, second: dict[str, Tensor] | None, others: Sequence[Attempt], example: Attempt,
              folder: Path) -> Imported:  # fmt: skip
    """The text of a way, compared at the sizes of others too. second: the second sizes; example: of
    the example."""
    wanted, module = first.wanted, example.module
    declared = first.declared(folder)
    first.evaluates()
    program = first.trained(example.inputs) if wanted.train else first.text
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


# A way whose text holds at other sizes, the second sizes (None where there are none), and those
# ways at other sizes to compare as well.
_Held = tuple[Attempt, dict[str, Tensor] | None, list[Attempt]]


def _plainly(example: Attempt) -> _Held:
    """The same text at all sizes, without a number that is written by dims."""
    apart = _apart(example)
    first = example if apart is None else example.at(apart)
    second, other = _beyond(first, distinct=False)
    if other is not None and second is not None:
        if other.all_text() != first.all_text():
            raise _differing(first.all_text(), other.all_text())
        _further(first, second, [])
    return first, second, []


def _by_dims(example: Attempt, sized: bool) -> _Held:
    """The same text where numbers are written by the dims of inputs, of sizes that are those of no
    other dim, of theirs or of the module's. sized: of `Shared`."""
    first = example.at(example.other(near=True, distinct=True) or example.inputs, sized)
    second, other = _beyond(first, distinct=True)
    near = first.other(near=True, distinct=True)
    differs = _differing(first.all_text(), (other or first).all_text())
    if second is None or near is None:
        raise differs
    longest = first.longest(second)
    far = first.longest(near) < longest
    for sizes, there in ((second, other), (near, None))[: 1 + far]:
        third = first.other(near=True, distinct=True, besides=sizes)
        others = [there or first.at(sizes), first.at(third)] if third is not None else []
        if others and _agree(first, others):
            _holds(first, first.longest(others[-1].inputs), far and sizes is near)
            if not (far and sizes is near):
                _further(first, sizes, others)
            return first, sizes, [*others, example.saying(first)]
    raise differs


def _beyond(first: Attempt, distinct: bool) -> tuple[dict[str, Tensor] | None, Attempt | None]:
    """The second sizes, beyond all that masks and branches compare positions with, and the way at
    these; None where there are none."""
    second = first.other(beyond=first.beyond(FURTHEST), distinct=distinct)
    longest = first.longest(second or first.inputs)
    first.unreached(max(longest, FURTHEST))
    if second is None:
        return None, None
    other = first.at(second)
    other.unreached(max(longest, FURTHEST))
    return second, other


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
        if _agree(first, [there, *others]) if others else there.all_text() == first.all_text():
            return
        differs = differs or _differing(first.all_text(), there.all_text())
        taken = {name: torch.empty((*each.shape, *sizes[name].shape), device="meta") for name, each in known.items()}
    if differs is not None:
        raise differs


def _changed(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> set[Place]:
    """The places of dims that have other sizes."""
    return {(name, at) for name, each in one.items() for at, size in enumerate(each.shape)
            if other[name].shape[at] != size}  # fmt: skip


def _agree(first: Attempt, others: Sequence[Attempt]) -> bool:
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
