"""Steps of a plan -> blocks of lines, one block a statement of the user's program. Shared by
forward and evaluate.

Each line's comment is its value's local type and layout. The plan decides what is computed, and in
which order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from shardlang.diagnostics.diagnostic import InternalError
from shardlang.emit.fuse import fused_text
from shardlang.emit.text.citations import Citation, place
from shardlang.emit.text.collectives import move_text
from shardlang.emit.text.lines import Stmt, Titled, block_text
from shardlang.emit.text.sites import Sites
from shardlang.emit.text.sizes import LocalSizes
from shardlang.frozen.records import dataclass, remembered
from shardlang.graph.bounds import computed_indices
from shardlang.graph.graph import Op
from shardlang.ops.code import RT, Code, around, joined
from shardlang.ops.declaration import REGISTRY, Operator
from shardlang.ops.python_text import literal
from shardlang.plan.fusions import Fusion
from shardlang.plan.plan import Conversion, MoveKind, Plan, PlannedOp, Step
from shardlang.plan.reads import Form
from shardlang.step.phases import summed_in_time
from shardlang.types.layout import Layout


@dataclass(frozen=True)
class StatementWriter:
    """Writes steps of one function. `fusions`: operator index -> what it fuses, unwritten."""

    plan: Plan
    names: dict[Form, str]
    sizes: LocalSizes
    training: bool
    fusions: Mapping[int, Fusion]
    layer: str = ""  # what `p` stands for

    @cached_property
    def taken_in(self) -> frozenset[int]:
        """The operators that others take into their lines."""
        return frozenset(fusion.product for fusion in self.fusions.values())

    @cached_property
    def sites(self) -> Sites:
        return Sites(self.plan, self.names, self.sizes, self.training, self.layer)

    def within(self, parts: Iterable[Sequence[Step]]) -> StatementWriter:
        """The same, but an operator of a part is fused only into another of that part."""
        part = {step.index: number for number, p in enumerate(parts) for step in p if step.kind == "op"}
        return replace(self, fusions={at: f for at, f in self.fusions.items() if part.get(at) == part.get(f.product)})

    def blocks(self, steps: Iterable[Step]) -> list[Titled]:
        """The blocks of `steps`."""
        blocks = []
        for title, mine in self.statements(steps):
            lines = [line for step in mine for line in self._lines(step)]
            blocks += [Titled(title, lines)] if lines else []
        return blocks

    def statements(self, steps: Iterable[Step]) -> list[tuple[str, list[Step]]]:
        """The title of each statement and its steps, in the order of their lines. A conversion is
        with its value's statement, or its next reader."""
        found: list[tuple[str, list[Step]]] = []
        here: Citation | None = None
        waiting: list[Step] = []
        made: set[int] = set()
        places, graph, source = _places(self.plan), self.plan.graph, self.plan.program.source
        for step in steps:
            if step.kind == "conversion":
                (found[-1][1] if found and self.plan.conversions[step.index].value in made else waiting).append(step)
                continue
            op = graph.ops[self.plan.ops[step.index].op]
            at = op.id, self.layer
            there = places[at] if at in places else places.setdefault(at, place(op, graph, source, self.layer))
            if there != here:
                found.append((there.title, []))
                here, made = there, set()
            made.update(op.results)
            found[-1][1].extend([*waiting, step])
            waiting = []
        return [*found, ("", waiting)] if waiting else found

    def _lines(self, step: Step) -> list[Stmt]:
        if step.kind == "op":
            return self.op_lines(step.index)
        return self.conversion_lines(self.plan.conversions[step.index])

    def op_lines(self, index: int) -> list[Stmt]:
        """The line of one operator; none where a later line takes it in."""
        planned = self.plan.ops[index]
        op = self.plan.graph.ops[planned.op]
        if index in self.taken_in:
            return []
        text = self.op_text(index, planned)
        looked_at = self.checked(planned)
        targets = ", ".join(self.names[value, -1] for value in op.results)
        comments = [self.comment(value, layout) for value, layout in zip(op.results, planned.results, strict=True)]
        if self.timed(op):
            name = self.plan.graph.values[op.results[0]].path
            timed = Stmt(around("with ", RT("timed", literal(name)), ":"))
            return [*looked_at, timed, Stmt(around(f"{targets} = ", text), "; ".join(comments), 1)]
        return [*looked_at, Stmt(around(f"{targets} = ", text), "; ".join(comments))]

    def checked(self, planned: PlannedOp) -> list[Stmt]:
        """The line before an operator that looks at the indices that the program computes for it;
        none where there are no such."""
        found = computed_indices(self.plan.graph).get(planned.op)
        if found is None:
            return []
        use, ignored = planned.operands[found.at], () if found.ignored is None else (found.ignored,)
        texts = literal(found.what), literal(found.dim), literal(found.file)
        index = self.names[use.value, use.conversion]
        return [Stmt(RT("within", index, found.size, *texts, found.line, *ignored))]

    def timed(self, op: Op) -> bool:
        """Whether the log is to have the time of an operator: of those on the host."""
        training = self.plan.program.training
        logged = self.training and training is not None and training.log is not None
        return logged and op.results[0] in self.plan.memory_of

    def op_text(self, index: int, planned: PlannedOp) -> Code:
        """The expression of one operator on local shards."""
        fusion = self.fusions.get(index)
        if fusion is not None:
            return fused_text(fusion, self.sites)
        return operator(self.plan, planned).text(self.sites.site(planned))

    def conversion_lines(self, conversion: Conversion) -> list[Stmt]:
        if conversion.move.kind is MoveKind.VIEW or summed_in_time(self.plan, conversion):
            return []
        source = self.names[conversion.value, conversion.parent]
        text = move_text(self.plan, conversion, source, self.sizes)
        target = self.names[conversion.value, conversion.id]
        return [Stmt(around(f"{target} = ", text), self.comment(conversion.value, conversion.to))]

    def comment(self, value: int, layout: Layout) -> str:
        """The type of a value and its layout, see `LocalSizes`."""
        return self.sizes.comment(self.plan.graph.values[value].type, layout)


@remembered
def _places(plan: Plan) -> dict[tuple[int, str], Citation]:
    """Operator (id) and the layer whose function it is in -> its place, for `forward` and the
    proof."""
    return {}


def operator(plan: Plan, planned: PlannedOp) -> Operator:
    """The declaration of a planned operator."""
    name = plan.graph.ops[planned.op].operator
    if name not in REGISTRY:
        raise InternalError(f"operator {name} of a checked program has no declaration")
    return REGISTRY[name]


def blocks_text(blocks: Iterable[Titled], depth: int = 1) -> Code:
    """Blocks with an empty line between them."""
    return joined([block_text(block, depth) for block in blocks], "\n\n")
