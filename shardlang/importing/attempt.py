"""A module at some sizes of its inputs -> its text, and what the text computes beside it."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from shardlang import driver
from shardlang.diagnostics.diagnostic import Sink
from shardlang.errors import RunError
from shardlang.graph.graph import Init
from shardlang.importing.bodies.body import Value
from shardlang.importing.bodies.builder import Builder
from shardlang.importing.bodies.dims import Atom, Formula, atoms, flat, fresh
from shardlang.importing.bodies.interior import declare_inner, declare_sums
from shardlang.importing.bodies.maker import KINDS, Shared
from shardlang.importing.bodies.models import Model, merge_dims, models
from shardlang.importing.compare import Side, compare, fault, masked, ours, stands, theirs, varied
from shardlang.importing.eager import differs, evaluated
from shardlang.importing.opaque import words  # noqa: F401  (it fills WORDS)
from shardlang.importing.opaque.freed import freed
from shardlang.importing.opaque.operations import Operations
from shardlang.importing.opaque.pieces import made_opaque
from shardlang.importing.steps import idioms
from shardlang.importing.steps.calls import tables, tree
from shardlang.importing.steps.nodes import INPUT, PARAM, STATE, Node, Stored, Traced, reached
from shardlang.importing.steps.normalise import indices, normalise
from shardlang.importing.steps.problems import refusal
from shardlang.importing.steps.rules import limits
from shardlang.importing.steps.sizes import largest_sizes, other_sizes, windows
from shardlang.importing.steps.starts import starts
from shardlang.importing.steps.trace import all_tensors, tied_names, trace
from shardlang.importing.steps.unfold import unfold
from shardlang.importing.text import arguments, maps
from shardlang.importing.text.inputs import name_inputs
from shardlang.importing.text.model_names import distinct_names
from shardlang.importing.text.names import Namer, fields_of
from shardlang.importing.text.renamed import Given, rename
from shardlang.importing.text.terms import Terms
from shardlang.importing.text.training import training
from shardlang.importing.text.write import Writer
from shardlang.sources.source import Source


@dataclass(frozen=True)
class Wanted:
    """The request. dims: names of dims by input. accept: codes. output: of several results, the one
    to give. names: those that dims and models get. train: whether a `train` follows, that starts
    from the weights in `weights` by the map in `map`. opaque: the name, without its ending, of the
    files of operators for what the language has no word for; None where there are to be none."""

    place: str
    dims: Mapping[str, Sequence[str]]
    accept: frozenset[str] = frozenset()
    output: str | None = None
    names: Sequence[Given] = ()
    train: bool = False
    weights: str | None = None
    map: str | None = None
    opaque: str | None = None

    @property
    def given(self) -> bool:
        """Whether starts that the language has not are read from the weights."""
        return bool(self.weights) and "SH608" not in self.accept


class Attempt:
    """The way of a module at some sizes, from its trace to a text. made: its tensors under each
    seed; dropped: of `left_out`; sized: of `Shared`."""

    def __init__(self, module: nn.Module, inputs: dict[str, Tensor], made: list[dict[str, Tensor]], wanted: Wanted,
                 dropped: Mapping[str, str], sized: bool = False) -> None:  # fmt: skip
        self.module, self.inputs, self.tensors, self.wanted = module, inputs, all_tensors(module), wanted
        self.seeded, self.dropped, self.sized = made, dropped, sized
        self.traced, self.program = trace(module, inputs, wanted.place)
        self.used = _choose(self.traced, wanted.output)
        _require_read(self.traced, inputs)
        for change in (normalise, indices, idioms.apply, unfold, idioms.buckets, tables):
            change(self.traced)
        self.home, self.formulas = Path(), list[Formula]()
        kind = type(module)
        leaves = [node for each in self.traced.nodes for node in each.inputs() if node.op in (PARAM, STATE)]
        begun = starts(made, [node.stored for node in leaves if node.stored is not None], wanted.accept, wanted.given)
        while not self._built(f"{kind.__module__}.{kind.__qualname__}", begun):
            pass
        self._training_differs()
        authored = arguments.authored(self.root, module)
        arguments.hint_names(self.root, authored)
        name_inputs(self.root, self.wanted.dims)
        self.made = models(self.root)
        self.model: Model = self.made[self.root]
        config = fields_of(getattr(module, "config", None))
        declare_sums(self.made)
        if not config:
            declare_inner(self.made, self.model)
        merge_dims(self.made, self.model, config)
        for body in self.made:  # no later step changes their dims
            body.final = (body.formals(False), body.formals())
        arguments.find_multiples(self.model, authored)
        distinct_names(self.made)
        self.namer = Namer(self.made, config)
        self.namer.give(self.model)
        rename(wanted.names, self.namer)
        self.sizes = self._sizes()
        self.write()

    def _sizes(self) -> dict[str, int]:
        """The sizes of the dims that the whole takes as arguments without a default."""
        weighted = set(self.root.formals(copied=False))
        # Dims of inputs that no weight has are those of the data.
        given = {atom for value in self.root.inputs for atom in atoms(value.dims)}
        return {self.namer.names[self.model][atom]: atom.size for atom in self.model.formals()
                      if any(self.model.dims.get(each, each) is atom for each in given)
                      and not any(self.model.dims.get(each, each) is atom for each in weighted)}  # fmt: skip

    def _training_differs(self) -> None:
        """Tells what only training shows, or raises SH604."""
        for name, fact in self.dropped.items():
            self.builder.accept("SH604", self.traced.nodes[0], f"`{name}` {fact}")
        for name, node in self.traced.updated.items():
            self.builder.accept("SH604", node, f"`{name}` is updated in training by the module, and would not be")

    def _built(self, kind: str, begun: Mapping[Stored, Init]) -> bool:
        """Builds the bodies, of the whole of class `kind`; False where steps that were refused have
        become operators of their own, and it is to be built again. RunError SH601."""
        root, wanted = tree(self.traced, kind), self.wanted
        self.operations = Operations(wanted.place)
        names = tied_names(self.tensors)
        self.shared = Shared(
            begun, wanted.given, wanted.accept, operations=self.operations, sized=self.sized, tied=names
        )
        self.builder = Builder(root, self._arguments(), self.shared)
        self.root = self.builder.build()
        if not self.shared.refused:
            return True
        if wanted.opaque is None or not made_opaque(self.traced, self.shared.unsaid):
            raise refusal(self.shared.refused, wanted.opaque is None)
        return False

    def write(self) -> None:
        comments = [f"{code}: {fact}." for fact, code in self.shared.differences.items()]
        writer = Writer(self.made, self.namer, self.model, self.sizes)
        own = {f'"./{self.wanted.opaque}.shard"': self.operations.names} if self.operations.known else {}
        self.text = _formatted(writer.text(self.wanted.place, comments, own))

    def all_text(self) -> str:
        """The program, and the operators of its own."""
        declared = self.operations.declarations(f"{self.wanted.opaque}.py", {})
        return f"{self.text}{declared}{self.operations.python()}" if self.operations.known else self.text

    def declared(self, folder: Path) -> str:
        """The declarations of operators of its own, which are tried in a folder; "" if there are
        none. RunError SH601."""
        if not self.operations.known:
            return ""
        self.home = folder
        return freed(self.operations, folder, str(self.wanted.opaque))

    def beyond(self, most: int) -> int:
        """A size beyond the largest number up to `most` with which a mask compares positions."""
        return max((n + 2 for node in self.traced.compared for n in limits(node) if n <= most), default=0)

    def turns(self) -> list[int]:
        """The sizes of dims of inputs from which on the module may take another way."""
        places = [place for places in self.free() for place in places if place[1]]
        bounds = list(largest_sizes(self.module, self.inputs, places).values())
        return [*bounds, windows(getattr(self.module, "config", None)),
                *(n for node in self.traced.compared for n in limits(node))]  # fmt: skip

    def ends(self, size: int) -> None:
        """RunError SH605, if it is not accepted, for a program that holds up to a size alone."""
        fact = f"the module takes another way at larger sizes, and the program holds for sizes up to {size} alone"
        self.builder.accept("SH605", self.traced.nodes[0], fact)
        self.write()

    def unreached(self, size: int) -> None:
        """A mask that may become another one beyond a size that traces reach: SH605, if it is not
        accepted."""
        for node in self.traced.compared:
            far = [n for n in limits(node) if n > size]
            if far:
                fact = f"positions are compared with {far[0]}, and the program holds for sizes up to that alone"
                self.builder.accept("SH605", node, fact)
                self.write()

    def _arguments(self) -> list[Value]:
        found = []
        for name, each in self.inputs.items():
            dims = [fresh(wide) for wide in each.shape]
            found.append(Value(dims, KINDS.get(str(each.dtype), ""), name=name))
        return found

    def _sizes_at(self, inputs: Mapping[str, Tensor]) -> dict[str, int]:
        """The sizes of the dims that the whole takes as arguments, where inputs have these."""
        now = {size: inputs[name].shape[at] for name, each in self.inputs.items() for at, size in enumerate(each.shape)}
        return {dim: now.get(size, size) for dim, size in self.sizes.items()}

    def trained(self, inputs: dict[str, Tensor]) -> str:
        """The text with a `train` to fill in, whose data have the sizes of these inputs."""
        wanted, init = self.wanted, ""
        if wanted.weights and wanted.map:
            init = f'init = safetensors("{wanted.weights}", names = "{wanted.map}")'
        sizes, terms = self._sizes_at(inputs), Terms(self.made, self.namer)
        text = training(self.model, terms, inputs, sizes, len(self.used), init)
        whole, sink = _formatted(f"{self.text}\n{text}"), Sink()
        # The map is not written yet.
        plain = whole.replace(f', names = "{wanted.map}"', "")
        if driver.check_source(Source(str(self.home / "imported.shard"), plain), sink) is None:
            raise fault(sink, whole)
        return whole

    def stands(self, inputs: Mapping[str, Tensor]) -> bool:
        """Whether the program takes inputs of these sizes. Where it has operators of its own it is
        not asked."""
        sizes = self._sizes_at(inputs)
        return bool(self.operations.known) or stands(self.text, self.model.name, inputs, len(self.used), sizes)

    def saying(self, other: Attempt) -> Attempt:
        """This way with the text of another one, at its own sizes: to be compared with it."""
        self.text, self.model, self.home = other.text, other.model, other.home
        self.sizes = other._sizes_at(self.inputs)
        return self

    def free(self) -> list[list[tuple[str, int]]]:
        """The dims of inputs that no parameter has: where each stands."""
        formals = set(self.root.formals(copied=False))
        found: dict[Atom, list[tuple[str, int]]] = {}
        for value in self.root.inputs:
            for at, term in enumerate(value.dims):
                atoms = flat(term)
                if len(atoms) == 1 and atoms[0] not in formals:
                    found.setdefault(atoms[0], []).append((value.name, at))
        return list(found.values())

    def other(self, **how: Any) -> dict[str, Tensor] | None:
        """The inputs at other sizes, as of `other_sizes`."""
        return other_sizes(self.inputs, self.free(), self.module, **how)

    def longest(self, inputs: Mapping[str, Tensor]) -> int:
        """The largest size of a dim that may change, without those of a batch."""
        return max((inputs[name].shape[at] for places in self.free() for name, at in places if at), default=0)

    def at(self, inputs: dict[str, Tensor], sized: bool | None = None) -> Attempt:
        """The way at other sizes. sized: where it is another one. RunError, which says so."""
        sized = self.sized if sized is None else sized
        try:
            return Attempt(copy.deepcopy(self.module), inputs, self.seeded, self.wanted, self.dropped, sized)
        except RunError as error:
            shapes = ", ".join(f"{name} {list(each.shape)}" for name, each in inputs.items())
            fact = f"at other sizes of its inputs, {shapes}: {error.message}"
            one = "give dims that are one the same name: `--dims ids=batch,seq --dims mask=batch,seq`"
            raise RunError(error.code, fact, help=one) from error

    def evaluates(self) -> None:
        """RunError SH604, if it is not accepted, for a module that computes something else in
        evaluation than in training, dropout and norms of a batch aside."""
        found = evaluated(self.module, self.inputs)
        if found is None:
            return
        mine = theirs(self.program, self.tensors, self.inputs, [], self.used, True).results
        there = [found[at] for at in self.used if at < len(found)]
        fact = "it gives other results" if len(there) < len(mine) else differs(mine, there)
        if fact:
            fact = f"in evaluation (`module.eval()`) the module computes something else: {fact}"
            self.builder.accept("SH604", self.traced.nodes[0], fact)
            self.write()

    def _batched(self) -> bool:
        """Whether all inputs and results have one dim first."""
        first = {flat(value.dims[0]) if value.dims else () for value in [*self.root.inputs, *self.root.results]}
        return len(first) == 1

    def compared(self, found: list[maps.MapLine]) -> float:
        """The largest difference from the module, with its inputs and with some of them masked."""
        return max(self._compared(found, each) for each in (self.inputs, masked(self.inputs)) if each is not None)

    def _compared(self, found: list[maps.MapLine], inputs: dict[str, Tensor]) -> float:
        tensors = varied(self.tensors)
        trained = [line for line in found if tensors[line.stored.name].is_floating_point()]

        def module(seed: int = 0) -> Side:
            return theirs(self.program, tensors, inputs, trained, self.used, seed=seed)

        other = module()
        shapes = [tuple(each.shape) for each in other.results]
        called = (self.text, self.model.name, tensors, inputs, found, shapes, self.sizes, self.home)
        return compare(ours(*called, self._batched()), other, lambda: [module(seed) for seed in (1, 2, 3)])


def _choose(traced: Traced, output: str | None) -> list[int]:
    """Keeps the results that are wanted: the one that is named, or all of floating point; where
    they stand among the module's."""
    names = list(traced.outputs)
    if output is not None and output not in names:
        there = ", ".join(f"`{name}`" for name in names)
        raise RunError("SH600", f"the module gives no `{output}`", help=f"it gives {there}")
    kept = [name for name in names if (name == output if output else traced.outputs[name].floating)]
    traced.outputs = {name: traced.outputs[name] for name in kept}
    traced.sweep()
    return [names.index(name) for name in kept]


def _require_read(traced: Traced, inputs: Mapping[str, Tensor]) -> None:
    """RunError SH600 for an input that no result depends on: a model has no such argument."""
    read = {node.name for node in reached(traced.outputs.values(), Node.inputs) if node.op == INPUT}
    unread = [name for name in inputs if name not in read]
    if unread:
        fact = f"no result that is wanted depends on {', '.join(f'`{name}`' for name in unread)}"
        raise RunError("SH600", fact, help="leave it out of the example tensors, or name another result by --output")


def _formatted(text: str) -> str:
    sink = Sink()
    found = driver.format_source(Source("imported.shard", text), sink)
    if found is None:
        raise fault(sink, text)
    return found
