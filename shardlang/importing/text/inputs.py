"""Names of the dims of a module's inputs: those that the user gave, and usual ones."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set

from shardlang.errors import RunError
from shardlang.hints.nearest import offer
from shardlang.importing.bodies.body import Body, Value
from shardlang.importing.bodies.dims import Atom, Mismatch, flat


def name_inputs(root: Body, dims: Mapping[str, Sequence[str]]) -> None:
    """The names that the user gave, and usual ones for other dims of inputs."""
    named: dict[str, tuple[Atom, ...]] = {}
    inputs = [str(value.name) for value in root.inputs]
    for name in dims:
        if name not in inputs:
            help = offer(name, inputs, f"it has {', '.join(f'`{each}`' for each in inputs)}")
            raise RunError("SH600", f"the module has no input `{name}`, which --dims names", help=help)
        both = next((dim for dim in dims[name] if dim in inputs), None)
        if both is not None:
            fact = f"--dims calls a dim of `{name}` `{both}`, which is the name of an input"
            raise RunError("SH600", fact, help="give the dim another name: an input keeps the one that it has")
    known: set[Atom] = set()
    formals = frozenset(root.formals(copied=False))
    for value in root.inputs:
        given = dims.get(value.name)
        if given is not None and len(given) != len(value.dims):
            raise RunError("SH600", f"`{value.name}` has {len(value.dims)} dims, and --dims names {len(given)}")
        for at, term in enumerate(value.dims):
            name = given[at] if given is not None else _usual(value, at, formals)
            for atom in flat(term)[:1]:
                # A dim of an input before has the name that it has there.
                if given is None and atom in known:
                    continue
                known.add(atom)
                atom.hint(name, -2 if given is not None else 7)
                if given is None:
                    _hint_apart(root, value, at, atom)
            if given is not None and name in named:
                try:
                    root.unify(named[name], term)
                except Mismatch:
                    fact = f"--dims calls dims of different sizes, or two of one tensor, `{name}`"
                    raise RunError("SH600", fact) from None
            named.setdefault(name, term)


def _hint_apart(root: Body, value: Value, at: int, atom: Atom) -> None:
    """Other names, for a batch or words that are not those of an input before."""
    words = [each for each in root.inputs if len(each.dims) > 1 and _usual(each, 1) == "seq"]
    if at == 0 and value is not root.inputs[0]:
        atom.hint("images" if len(value.dims) == 4 else f"{value.name}_batch", 7)
    if at == 1 and value in words[1:] and (whose := _whose(value.name)):
        atom.hint(f"{whose}_seq", 6)


def _usual(value: Value, at: int, formals: Set[Atom] = frozenset()) -> str:
    """The name of a dim of an input if nothing else says. formals: dims of parameters."""
    rank = len(value.dims)
    if rank == 3 and at == 2 and formals & set(flat(value.dims[1])) and not formals & set(flat(value.dims[2])):
        return "time"  # channels come first
    if rank == 4:
        return ("batch", "channels", "height", "width")[at]
    return "batch" if at == 0 else "seq" if at == 1 and (rank == 3 or value.kind == "i64") else "features"


def _whose(name: str) -> str:
    """The part of a name that says whose words an input has: `decoder`, of `decoder_input_ids`."""
    return re.sub(r"_?(input_)?ids$|_?inputs?(_embeds)?$|_?tokens$", "", name)
