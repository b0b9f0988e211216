"""`shardc import` on one page: a factory -> the text of a program, its name map, a report."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
from shardlang.importing.program import UNBOUNDED, trace
from shardlang.importing.sizes import FURTHEST, other_sizes
from shardlang.importing.steps.starts import SEEDS
from shardlang.importing.steps.trace import all_tensors
from shardlang.importing.text import maps

_HELP = "import it at sizes where both are one, or give such a size as an argument"


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
    first = Attempt(trace(module, inputs, wanted.place), inputs, seeded, wanted, dropped)
    first, second = _told_apart(first)
    _one_way(first)
    with scratch("import") as folder:
        return _written(first, second, inputs, folder.path)


def _written(first: Attempt, second: dict[str, Tensor] | None, inputs: dict[str, Tensor], folder: Path) -> Imported:
    """The files, which compute what the module does. RunError SH601 to SH608."""
    wanted, module = first.wanted, first.module
    declared = first.declared(folder)
    first.evaluates()
    program = first.trained(inputs) if wanted.train else first.text
    found = maps.lines(first.root)
    read = {line.stored.name for line in found}
    unused = [name for name, _ in module.named_parameters() if name not in read]
    names = maps.text(found, module.state_dict(keep_vars=True), first.model.name, unused)
    error = first.compared(found, first.inputs)
    if second is not None:
        error = max(error, _compared(first, second, found))
    count = sum(each.numel() for each in module.parameters())
    other = first.inputs if second is inputs else second
    report = {
        "imported_from": wanted.place, "model": first.model.name, "parameters": count, "sizes": first.sizes,
        "second sizes": None if other is None else {name: list(each.shape) for name, each in other.items()},
        "unused parameters": unused, "unnamed dims": first.namer.guessed,
        "accepted": first.shared.differences, "largest difference": error, "opaque": first.operations.names,
    }  # fmt: skip
    tensors = module.state_dict(keep_vars=True)
    # Of tied tensors, the names that the map has come first.
    first_names = {name: tensors[name] for name in [*sorted(read), *tensors]}
    return Imported(program, names, report, first_names, declared, first.operations.python() if declared else "")


def _told_apart(first: Attempt) -> tuple[Attempt, dict[str, Tensor] | None]:
    """The way where no two dims that may change have one size by chance, and where masks show that
    compare positions with a number; and inputs of other sizes, to compare with too."""
    sizes = [dim.size(first.inputs) for dim in first.dims()]
    beyond = max(first.compares(FURTHEST), default=-2) + 2
    first.unreached()
    other = other_sizes(first.inputs, first.dims(), first.module, beyond)
    if other is not None and (beyond or len(set(sizes)) < len(sizes)):
        return first.at(other), first.inputs
    return first, other


def _one_way(first: Attempt) -> None:
    """RunError SH603 where a size is a number that no formula says, or where the module takes
    another way at sizes for which torch's trace is none: it fixes what Python counts with, and
    follows one branch. Another trace is made there, unless shardc refuses the program at such
    sizes."""
    if first.unsaid:
        raise RunError("SH603", f"the module has a number that depends on sizes as no formula of the language does: "
                       f"{first.shown(first.unsaid[0])}", help=_HELP)  # fmt: skip
    fixed = [dataclasses.replace(dim, most=UNBOUNDED) for dim in first.dims(fixed=True)]
    ended = [dim for dim in first.dims() if dim.most < UNBOUNDED]
    for dim in [*fixed, *ended]:
        beyond = dim if dim in fixed else dataclasses.replace(dim, least=dim.most + 1, most=UNBOUNDED)
        other = other_sizes(first.inputs, [beyond], first.module)
        if other is None or not (first.traced.ends or first.stands(other)):
            continue
        there = first.at(other, trace(copy.deepcopy(first.module), other, first.wanted.place))
        if there.all_text() != first.all_text():
            _differ(first, there, dim.most)


def _differ(first: Attempt, there: Attempt, end: int = UNBOUNDED) -> None:
    """SH603, with the first lines that differ; of a program that holds up to a size, if that is not
    accepted."""
    pairs = zip(first.all_text().splitlines(), there.all_text().splitlines(), strict=False)
    a, b = next(((a, b) for a, b in pairs if a != b), ("", ""))
    fact = f"the module takes another way at other sizes of its inputs: `{a.strip()}` becomes `{b.strip()}`"
    differs = RunError("SH603", fact, help=_HELP)
    if end == UNBOUNDED:
        raise differs
    try:
        first.ends(end)
    except RunError as error:
        differs.help = f"{differs.help}; {error.help}: {error.message}"
        raise differs from error


def _compared(first: Attempt, second: dict[str, Tensor], found: list[maps.MapLine]) -> float:
    """The largest difference at other sizes. RunError SH603."""
    try:
        return first.compared(found, second)
    except RunError as error:
        if error.code != "SH607":
            raise
        there = first.at(second)
        if there.all_text() != first.all_text():
            _differ(first, there)
        raise RunError("SH603", f"at other sizes of its inputs, {error.message}", help=_HELP) from error
