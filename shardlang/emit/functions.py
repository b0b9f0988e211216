"""Calls of layers -> functions: one for each different block, called in a loop over neighbours of
an array.

step/blocks says which calls are the same. A layer of a line or two stays where it is called."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import field
from functools import cached_property

from shardlang.emit.recomputed_regions import Region, arranged
from shardlang.emit.scene import FileContext, Item, Loop
from shardlang.emit.statements import StatementWriter, blocks_text
from shardlang.emit.text.citations import cited
from shardlang.emit.text.lines import Stmt, Titled, call_text, indented
from shardlang.emit.text.names import RESERVED, Naming, TakenNames, attribute, function_name, identifier
from shardlang.emit.text.sizes import Groups, LocalSizes
from shardlang.frozen.records import dataclass
from shardlang.graph.graph import Kind, Op
from shardlang.ops.code import RT, Code, around, call_of
from shardlang.ops.declaration import REGISTRY
from shardlang.ops.python_text import docstring, literal
from shardlang.paths.patterns import SingleLayers
from shardlang.plan.fusions import fusions
from shardlang.plan.plan import Plan, Step
from shardlang.plan.reads import Form, inputs, layout_of
from shardlang.plan.rewrite.tables import adds_rows
from shardlang.step.blocks.blocks import Blocks, call_tree
from shardlang.step.blocks.call import ROOT, BlockCall, is_below, origin, relative, runs
from shardlang.step.blocks.forms import Forms
from shardlang.step.saved_activations import owners
from shardlang.types.layout import layout_text

MANY = 64  # layers of an array, which are a function and a loop even where they have one line each


@dataclass(frozen=True)
class Function:
    """The function of a block. calls: those that it calls, by which two of one text differ. draws:
    what it draws random numbers for, by path below the layer; with the number of the call, if not
    0. adds_rows: gradients that are rows are added in it, which torch's compiler cannot do."""

    name: str
    rest: Code  # of its text, behind the name
    calls: frozenset[Function]
    draws: tuple[str | tuple[str, int], ...]
    adds_rows: bool

    @property
    def text(self) -> Code:
        return around(f"def {self.name}(", self.rest)

    @property
    def compiled(self) -> Code:
        """The same for one that `forward` calls: it may be compiled."""
        mark = "" if self.adds_rows else f"@{call_text('rt.block', [literal(at) for at in self.draws])}\n"
        return around(mark, self.text)


@dataclass
class BlockFunctions:
    """The functions of one program. counts: how often a block is called, and a layer of an array.
    folded: whether there are any (tests hold the program without them to the same numbers)."""

    plan: Plan
    groups: Groups
    folded: bool = True
    counts: Counter[int | str] = field(default_factory=Counter)
    made: dict[tuple[int, bool], Function] = field(default_factory=dict)
    bodies: dict[tuple[int, bool], FunctionBody] = field(default_factory=dict)
    worth: dict[tuple[int, bool], bool] = field(default_factory=dict)
    blocks: Blocks = field(default_factory=Blocks)
    outer: set[tuple[int, bool]] = field(default_factory=set)  # those that `forward` or `evaluate` calls
    stages: dict[int, set[int | None]] = field(default_factory=dict)  # block -> the stages that call it

    @cached_property
    def naming(self) -> Naming:
        return Naming(self.plan)

    def body(self, scene: FileContext, steps: Sequence[Step], ends: Sequence[Form]) -> FunctionBody:
        """The body of `forward` (or `evaluate`) that these steps are; what calls are in it is taken
        into account, for what is called once alone needs no function."""
        tree = call_tree(self.plan, steps, ends, self.blocks, scene.forms)
        calls = [tree]
        for call in calls:  # with those that are found on the way
            calls += [item for item in call.items if isinstance(item, BlockCall)]
            self.counts[call.block] += 1
            self.stages.setdefault(call.block, set()).add(scene.stage)
            if call.array is not None:
                self.counts[call.array[0]] += len(call.array[1])
        return FunctionBody(self, scene, tree, tuple(scene.forms.form(*at) for at in ends))

    def flow(self, call: BlockCall) -> list[Step | BlockCall]:
        """The contents of a call, with layers that have no function of their own written out."""
        found: list[Step | BlockCall] = []
        for item in call.items:
            found.extend([item] if isinstance(item, Step) or self._worth(item) else self._alone(item))
        return found

    def _alone(self, call: BlockCall) -> list[Step | BlockCall]:
        """The contents of a call that has no function of its own."""
        if call.times > 1:
            raise SingleLayers
        return self.flow(call)

    def _worth(self, call: BlockCall) -> bool:
        """Whether a call has a function: it is computed again in backward, or it has three
        operators and is called twice or one of several layers of an array, or that has very many;
        and it has parameters, by which it is known which layer it is."""
        key = call.block, call.region >= 0
        if key not in self.worth:
            layers = self.counts[call.array[0]] if call.array is not None else 1
            operators = self._operators(call) if self.counts[call.block] > 1 or layers > 1 else 0
            enough = call.region >= 0 or operators > 2 or (operators > 0 and layers > MANY)
            self.worth[key] = self.folded and call.call != ROOT and enough and self._reads_own(call)
        return self.worth[key]

    def _operators(self, call: BlockCall) -> int:
        """How many operators and functions stand in a call, besides what is only converted."""
        return sum(isinstance(item, BlockCall) or item.kind == "op" for item in self.flow(call))

    def _reads_own(self, call: BlockCall) -> bool:
        values, forms = self.plan.graph.values, Forms(self.plan)
        read = (value for step in call.steps() for value, _ in forms.reads(step))
        return any(values[v].kind in (Kind.PARAM, Kind.STATE) and is_below(values[v].path, call.path) for v in read)

    def function(self, call: BlockCall, scene: FileContext) -> Function:
        """The function of a call, written where it is the first of its block."""
        key = call.block, scene.training
        if key not in self.made:
            body = FunctionBody(self, scene, call)
            text = body.text()
            twin = self.made.get((call.block, not scene.training))
            name = twin.name if twin is not None and twin.rest == text else self._name(call)
            self.bodies[key] = body
            ops = [self.plan.graph.ops[self.plan.ops[step.index].op] for step in call.steps() if step.kind == "op"]
            adds = scene.training and adds_rows(self.plan, ops)
            calls, draws = frozenset(body.called.values()), self._draws(call, ops, scene.training)
            self.made[key] = Function(name, text, calls, draws, adds)
        return self.made[key]

    def _name(self, call: BlockCall) -> str:
        """The name of a function: one that no other has in the files that it may stand in."""
        mine, taken = self.stages[call.block], {*RESERVED, "layers", *(mesh.name for mesh in self.plan.meshes)}
        for (block, _), other in self.made.items():
            stages = self.stages[block]
            if mine & stages or len(mine) > 1 < len(stages):
                taken.add(other.name)
        return TakenNames(taken).claim(function_name(call.model))

    def _draws(self, call: BlockCall, ops: Sequence[Op], training: bool) -> tuple[str | tuple[str, int], ...]:
        random = [op for op in ops if (o := REGISTRY[op.operator]).random(op.attrs) and (training or not o.train_only)]
        below = {(relative(op.path, call.path), op.call): None for op in random}
        return tuple((path, number) if number else path for path, number in below)

    @property
    def named(self) -> list[str]:
        """The names of all functions."""
        return list(dict.fromkeys(function.name for function in self.made.values()))

    def listed(self, names: Collection[str], stage: int | None) -> dict[Function, Code]:
        """The text of these functions of a stage and of those that they call, each after what it
        calls."""
        here = {key: function for key, function in self.made.items() if stage in self.stages[key[0]]}
        by_name = {function.name: function for function in here.values()}
        outer = {function.name for key, function in here.items() if key in self.outer}
        wanted = set(names)
        for function in reversed(by_name.values()):
            if function.name in wanted:
                wanted.update(called.name for called in function.calls)
        return {f: f.compiled if f.name in outer else f.text for f in by_name.values() if f.name in wanted}


def loops(items: Sequence[Step | BlockCall], ends: Set[Form], forms: Forms) -> list[Item]:
    """The items with neighbours of an array joined where a loop can stand for them."""
    read = [item.reads if isinstance(item, BlockCall) else set(forms.reads(item)) for item in items]
    readers = Counter([*ends, *itertools.chain.from_iterable(read)])
    found: list[Item] = []
    for run in runs(items):
        if isinstance(run, Step):
            found.append(run)
            continue
        carried = _carried(run, readers)
        if any(call.times > 1 for call in (run if carried is None else (run[0], run[-1]))):
            raise SingleLayers
        found.extend(run if carried is None else [Loop(run, carried)])
    return found


def _carried(run: Sequence[BlockCall], readers: Mapping[Form, int]) -> dict[int, int] | None:
    """Operand -> result of the call before; None where the calls are no loop."""
    if len(run) < 2:
        return None
    first, second = run[0], run[1]
    found: dict[int, int] = {}
    for at, form in enumerate(second.reads):
        if form in first.gives:
            found[at] = first.gives.index(form)
        elif form != first.reads[at]:
            return None
    if len(set(found.values())) < len(first.gives):
        return None
    for before, call in itertools.pairwise(run):
        for at, form in enumerate(call.reads):
            if form != (before.gives[found[at]] if at in found else before.reads[at]):
                return None
        if any([readers[form] > 1 for form in before.gives]):
            return None
    return found


@dataclass
class FunctionBody:
    """Writes the body of one function: that of a block, or of `forward` and `evaluate` (for the
    root). ends: forms that are read after it."""

    functions: BlockFunctions
    scene: FileContext
    call: BlockCall
    ends: tuple[Form, ...] = ()
    called: dict[str, Function] = field(default_factory=dict)

    @property
    def plan(self) -> Plan:
        return self.functions.plan

    @property
    def layer(self) -> str:
        """The layer that `p` stands for here."""
        return "" if self.call.call == ROOT else self.call.path

    @cached_property
    def items(self) -> list[Item]:
        flow = self.functions.flow(self.call)
        for item in flow:
            if isinstance(item, BlockCall):
                function = self.functions.function(item, self.scene)
                self.called[function.name] = function
                if self.call.call == ROOT:
                    self.functions.outer.add((item.block, self.scene.training))
        return loops(flow, {*self.call.gives, *self.ends}, self.scene.forms)

    @property
    def steps_here(self) -> list[Step]:
        """The steps that stand in the function itself."""
        return [item for item in self.items if isinstance(item, Step)]

    @cached_property
    def visible(self) -> set[Form]:
        """The forms that have a name here."""
        found: set[Form] = {*self.call.reads, *self.call.gives, *self.ends}
        for item in self.items:
            found.update(self.scene.read(item), self.scene.made(item))
        return found

    def formals(self, values: Collection[int]) -> dict[int, str]:
        """The name that the first layer with a value as argument has for it."""
        found: dict[int, str] = {}
        graph = self.plan.graph
        for item in self.items:
            first = item.calls[0] if isinstance(item, Loop) else item
            given = graph.calls[first.call].arguments if isinstance(first, BlockCall) else {}
            for value, _ in self.scene.read(item):
                if value in values and origin(graph, value) in given:
                    found.setdefault(value, given[origin(graph, value)])
        return found

    def text(self) -> Code:
        """The function of a block from its arguments on: `p, x):` and what is below it."""
        call = self.call
        names = self.names
        writer = self.writer(names, LocalSizes(self.plan, self.functions.groups, inside=True))
        blocks = self.blocks(writer)
        if self.plan.graph.calls[call.call].span.source.library:  # the reader has no such file open
            blocks = [Titled("", [line for block in blocks for line in block.lines])]
        blocks[:0] = [Titled("", [Stmt(definition) for definition in writer.sizes.definitions])]
        body = blocks_text(block for block in blocks if block.lines)
        given = ["p", *(names[at] for at in call.reads)]
        made = ", ".join(names[at] for at in call.gives)
        return around(f"{', '.join(given)}):\n{indented(self._said())}\n", body, f"\n    return {made}\n")

    @cached_property
    def names(self) -> dict[Form, str]:
        """The names in the function of a block: a value read in one form has the plain name."""
        values = {value for value, _ in self.visible}
        names = self.functions.naming.names(values, call=self.call.call, reserved=self.called)
        forms = Counter(value for value, _ in self.call.reads)
        for at in self.call.reads:
            plain = at[0], -1
            if forms[at[0]] == 1 and names[plain].isidentifier():  # else it is a parameter of the layer
                names[at], names[plain] = names[plain], names[at]
        return names

    def writer(self, names: dict[Form, str], sizes: LocalSizes) -> StatementWriter:
        """The writer of the steps of this function."""
        sizes.taken.names.update([*names.values(), *self.called])
        writer = StatementWriter(self.plan, names, sizes, self.scene.training, fusions(self.plan), self.layer)
        return writer.within([self.steps_here])

    def _said(self) -> str:
        """The docstring of the function: its model, and what goes in and out."""
        graph, call = self.plan.graph, self.call
        declared = cited(graph.calls[call.call].span, self.plan.program.source)
        formals = graph.calls[call.call].arguments
        given = [f"{name} {self._layout(at)}" for at in call.reads if (name := formals.get(origin(graph, at[0])))]
        known, made = f"{', '.join(given)} " if given else "", ", ".join(map(self._layout, call.gives))
        return docstring(f"{call.model} of {declared.file}:{declared.line}: {known}-> {made}.")

    def _layout(self, at: Form) -> str:
        layout = layout_of(self.plan, at)
        type = LocalSizes(self.plan, self.functions.groups, inside=True).type(self.plan.graph.values[at[0]].type)
        return layout_text(type, layout, self.plan.meshes[layout.mesh])

    def blocks(self, writer: StatementWriter) -> list[Titled]:
        """The lines of the body, in order."""
        for step in self.steps_here:
            self._name_read(step, writer.names)
        items = arranged(self.scene, self.call, self.items, self.ends)
        inside = [[s for s in item.items if isinstance(s, Step)] for item in items if isinstance(item, Region)]
        return self._blocks(writer.within([*inside, [s for s in items if isinstance(s, Step)]]), items)

    def _blocks(self, writer: StatementWriter, items: Sequence[Item | Region]) -> list[Titled]:
        found: list[Titled] = []
        for is_step, group in itertools.groupby(items, lambda item: isinstance(item, Step)):
            if is_step:
                found.extend(writer.blocks(step for step in group if isinstance(step, Step)))
                continue
            for item in group:
                match item:
                    case Region():
                        found.extend(self._region(writer, item))
                    case BlockCall():
                        found.append(Titled(self._title(item), [self._called(writer, item)]))
                    case Loop():
                        found.append(Titled(self._title(item.calls[0]), self._loop(writer, item)))
        return found

    def _title(self, call: BlockCall) -> str:
        """The statement that calls a layer."""
        statement = self.plan.graph.calls[call.call].statement
        return cited(statement, self.plan.program.source).title if statement is not None else ""

    def _name_read(self, step: Step, names: dict[Form, str]) -> None:
        """A variable that stands for a form has its name."""
        for form in inputs(self.plan)[step]:
            at = self.scene.forms.form(*form)
            if at in names:
                names[form] = names[at]

    def _called(self, writer: StatementWriter, call: BlockCall) -> Stmt:
        made = ", ".join(writer.names[at] for at in call.gives)
        layer = attribute("p", relative(call.path, self.layer))
        text = self._call_text(call, layer, [writer.names[at] for at in call.reads])
        return Stmt(around(f"{made} = ", text), self._comment(writer, call))

    def _call_text(self, called: BlockCall, layer: str, given: Sequence[str]) -> Code:
        name = self.functions.function(called, self.scene).name
        again = called.region >= 0 and self.scene.training
        return self._again(called.region, name, layer, *given) if again else call_of(name, layer, *given)

    def _again(self, group: int, *call: str) -> Code:
        """The call of a function that backward calls again, or that saves on the host."""
        if owners(self.plan).to_host(group):
            return RT("saved_on_host", *call)
        return RT("recompute", *call, **({"drop_results": True} if owners(self.plan).drops(group) else {}))

    def _comment(self, writer: StatementWriter, call: BlockCall) -> str:
        return "; ".join(writer.comment(value, layout_of(self.plan, (value, at))) for value, at in call.gives)

    def _loop(self, writer: StatementWriter, loop: Loop) -> list[Stmt]:
        first, last, names = loop.calls[0], loop.calls[-1], writer.names
        made = [names[at] for at in last.gives]
        given = [made[loop.carried[i]] if i in loop.carried else names[at] for i, at in enumerate(first.reads)]
        begins = {made[result]: names[first.reads[at]] for at, result in loop.carried.items()}
        lines = [Stmt(f"{name} = {value}") for name, value in begins.items() if name != value]
        array = first.array[0] if first.array else ""
        layer = writer.sizes.taken.first([identifier(array.rpartition(".")[2].removesuffix("s") or "layer"), "layer"])
        some = "" if self.scene.arrays[array] == set(loop.layers) else f"[{loop.layers.start}:{loop.layers.stop}]"
        lines.append(Stmt(f"for {layer} in {attribute('p', relative(array, self.layer))}{some}:"))
        code = around(f"{', '.join(made)} = ", self._call_text(first, layer, given))
        return [*lines, Stmt(code, self._comment(writer, last), 1)]

    def _region(self, writer: StatementWriter, region: Region) -> list[Titled]:
        """A function within this one, and its call: backward computes it again, and keeps none."""
        drops = owners(self.plan).drops(region.group)
        name = writer.sizes.taken.claim("recomputed" if drops else identifier(region.path))
        given = list(dict.fromkeys(writer.names[at] for at in region.reads))
        made = ", ".join(dict.fromkeys(writer.names[at] for at in region.gives))
        rows = [line for block in self._blocks(writer, region.items) for line in block.lines]
        head = Stmt(around("def ", call_of(name, *given), ":"))
        body = [head, *(Stmt(r.code, r.comment, r.depth + 1) for r in rows), Stmt(f"return {made}", depth=1)]
        title = f"{region.path} is not kept for backward, but computed again there"
        if owners(self.plan).to_host(region.group):
            title = f"what {region.path} saves for backward waits on the host"
        return [Titled("", body), Titled(title, [Stmt(around(f"{made} = ", self._again(region.group, name, *given)))])]
