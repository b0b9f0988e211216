"""Simulated ranks against one device: each form of each value, each gradient, each parameter after
a step.

The first that differs counts, in the order in which they are computed: forward, then backward, then
what ranks store. A difference is described for a person: value, layout, source line,
rank, index."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from shardlang.frozen.records import remembered
from shardlang.interpret.meaning import whole
from shardlang.interpret.meaning.undecided import scale_of, spreading, undecided
from shardlang.interpret.ranks import ranks
from shardlang.interpret.ranks.coordinates import Block, MeshPositions, block_of, cut_out, groups_of, sizes_of_dims
from shardlang.interpret.ranks.optimizers import Optimizers
from shardlang.interpret.ranks.ranks import CannotRun
from shardlang.interpret.ranks.stored import storage
from shardlang.interpret.verify.one_device import following, form_gradients, moves_as_far, zero_in_truth
from shardlang.plan.plan import Plan
from shardlang.plan.reads import Form, layout_of, makers, makes
from shardlang.types.layout import Layout, layout_text


@dataclass(frozen=True)
class ValueDifference:
    """The first value that is not what one device has.

    kind: "value", "figure" (a loss or metric as reported), "gradient", "stored gradient", "state",
    "parameter" or "step" (one that cannot run: `message`). layout: as written in types. rank,
    microbatch: where it shows most; summed: the axes over which ranks were summed for it. index: in
    the whole value. place: `file:line`. form: in the plan. order: of two differences in one step,
    the one with the lesser was computed first."""

    kind: str
    path: str
    layout: str
    place: str
    rank: int = 0
    index: tuple[int, ...] = ()
    found: float = math.nan
    expected: float = math.nan
    summed: tuple[str, ...] = ()
    step: int = 1
    message: str = ""
    microbatch: int = 0
    form: Form = (-1, -1)
    order: tuple[int, int] = (0, 0)

    def __str__(self) -> str:
        return f"{self.when}: {self.what} ({self.place}): {self.where}"

    @property
    def where(self) -> str:
        """The place with both numbers, or why the value cannot be computed."""
        rank = f"rank {self.rank}" + (f", microbatch {self.microbatch}" if self.microbatch else "")
        if self.message:
            return f"{'cannot be computed' if self.kind == 'step' else rank}: {self.message}"
        summed = f", summed over {', '.join(self.summed)}" if self.summed else ""
        at = f" at {list(self.index)}" if self.index else ""
        return f"{rank}{summed}{at}: {self.found!r}, and {self.expected!r} on one device"

    @property
    def when(self) -> str:
        return f"step {self.step}" if self.step else "before the first step"

    @property
    def what(self) -> str:
        """``the gradient of `h` [batch@a, hidden@b]``."""
        words = {
            "value": "", "step": "", "figure": "the reported ", "state": "the state ", "parameter": "the parameter ",
        }  # fmt: skip
        return f"{words.get(self.kind, f'the {self.kind} of ')}`{self.path}` {self.layout}"


@dataclass(frozen=True)
class Finding:
    """How local tensors stand to the whole: relative error, and the worst element."""

    error: float
    rank: int = 0
    index: tuple[int, ...] = ()
    found: float = math.nan
    expected: float = math.nan
    message: str = ""


def measured(
    found: Tensor, expected: Tensor, scale: float, rank: int, block: Block, spread: bool = False
) -> Finding:  # fmt: skip
    """One rank's (or group's) tensor against its block of the whole. spread: what is NaN in one of
    them may be anything in the other."""
    if found.shape != expected.shape:
        return Finding(math.inf, rank, message=f"{list(found.shape)} where the layout says {list(expected.shape)}")
    if torch.equal(found, expected):
        return Finding(0.0, rank)
    error = (found.double() - expected.double()).abs() / scale
    both = torch.logical_or if spread else torch.logical_and
    same = (found == expected) | both(found.isnan(), expected.isnan())
    error = torch.where(same, 0.0, error.nan_to_num(math.inf, math.inf, math.inf))
    worst = int(error.argmax())
    index: tuple[int, ...] = ()
    left = worst
    for start, size in reversed(block):
        left, local = divmod(left, size)
        index = (start + local, *index)
    return Finding(float(error.max()), rank, index, float(found.flatten()[worst]), float(expected.flatten()[worst]))


def judged(
    plan: Plan, form: Form, local: Sequence[Tensor], layout: Layout, expected: Tensor, free: Tensor | None = None,
    spread: bool = False,
) -> Finding:  # fmt: skip
    """The worst of all ranks; along pending axes ranks are summed, along the others each must have
    its block.

    free: elements that may be anything. spread: as for `measured`."""
    part_sizes = sizes_of_dims(plan.graph.values[form[0]].type, plan.sizes)
    if expected.dtype == torch.bool:
        expected, local = expected.long(), [x.long() for x in local]
    mesh, shape, scale = plan.meshes[layout.mesh], tuple(expected.shape), scale_of(expected)
    worst = Finding(0.0)
    for members in groups_of(mesh, layout.pending):
        block = block_of(mesh, members[0], shape, layout, part_sizes)
        shapes = {tuple(local[r].shape) for r in members}
        total = torch.stack([local[r] for r in members]).sum(0) if len(shapes) == 1 else local[members[0]]
        wanted = cut_out(expected, block)
        if free is not None and wanted.shape == total.shape:
            total = torch.where(cut_out(free, block), wanted, total)
        worst = max(worst, measured(total, wanted, scale, members[0], block, spread), key=lambda f: f.error)
        if worst.message:
            break
    return worst


def dual(layout: Layout) -> Layout:
    """The layout of a gradient: split alike; identical for pending or I, pending for R."""
    return Layout(layout.dims, layout.replicated, (), layout.mesh)


# The order in which things are computed in a step; values by their place in the plan, gradients the
# other way round.
_PHASES = ("value", "step", "figure", "gradient", "stored gradient", "state", "parameter")


@remembered
def forms_of(plan: Plan) -> list[Form]:
    """All forms of all values in the order in which they are there."""
    begun = [(value, -1) for value in plan.produced if value not in makers(plan)]
    return begun + [form for made in makes(plan).values() for form in made]


@dataclass
class Comparison:
    """Holds some ranks against one device (`alone`), step after step, until they differ.

    optimizers: what they should make of the gradients that these ranks have. step: the last that
    was compared. values, gradients: how many forms were, parameters: what ranks store of them, once
    a step. largest: the greatest relative error. undecided: paths of values that rounding decides
    (undecided.py): nothing that depends on them is compared."""

    plan: Plan
    tolerance: float
    optimizers: Optimizers
    difference: ValueDifference | None = None
    step: int = 0
    values: int = 0
    gradients: int = 0
    parameters: int = 0
    largest: float = 0.0
    undecided: tuple[str, ...] = ()
    skipped: set[int] = field(default_factory=set)
    alone: whole.WholeResults | None = None

    def note(self, found: Iterable[ValueDifference | None]) -> None:
        """Keeps the first difference of some comparisons, which are made as far as that."""
        self.difference = next((d for d in found if d is not None), None)

    @property
    def ok(self) -> bool:
        return self.difference is None

    @property
    def end(self) -> bool:
        """Whether nothing more can be said."""
        return not self.ok or self.plan.graph.loss in self.skipped

    def differs(self, kind: str, form: Form, layout: Layout, finding: Finding, at: int = 0) -> ValueDifference | None:
        wrong = finding.error > self.tolerance
        if wrong and self.alone is not None:
            given = self.plan, kind, form, self.alone, finding.error
            if zero_in_truth(*given):
                return None
            if moves_as_far(*given):
                self._leave_out(form)
                return None
        self.largest = max(self.largest, finding.error)
        return self._difference(kind, form, layout, finding, at) if wrong else None

    def _difference(self, kind: str, form: Form, layout: Layout, finding: Finding, at: int) -> ValueDifference:
        described = self.plan.graph.values[form[0]]
        text = layout_text(described.type, layout, self.plan.meshes[layout.mesh])
        grid = MeshPositions(self.plan)
        rank = grid.rank(finding.rank, grid.stages(form[0])[0])
        place = f"{described.span.source.name}:{described.span.line}"
        return ValueDifference(
            kind, described.path, text, place=place, rank=rank, index=finding.index, found=finding.found,
            expected=finding.expected,
            summed=layout.pending, step=self.step, message=finding.message, microbatch=grid.microbatch(finding.rank),
            form=form, order=(_PHASES.index(kind), at),
        )  # fmt: skip

    def results(self, mine: ranks.RankResults, theirs: whole.WholeResults, done: bool = True) -> None:
        """Compares all of a step, in the order of computation. done: the step came to its end."""
        self.alone = theirs
        self.note(self._all(mine, theirs) if done else self._values(mine.forms, theirs))

    def _all(self, mine: ranks.RankResults, theirs: whole.WholeResults) -> Iterator[ValueDifference | None]:
        yield from self._values(mine.forms, theirs)
        yield from self._figures(mine.figures, theirs)
        if self.plan.graph.loss in self.skipped:
            return
        yield from self._gradients(mine, form_gradients(self.plan, theirs))
        yield from self.stored(mine.stored, theirs.gradients, "stored gradient")
        yield from self.stored(mine.states, theirs.states, "state")

    def _values(
        self, forms: Mapping[Form, Sequence[Tensor]], theirs: whole.WholeResults
    ) -> Iterator[ValueDifference | None]:
        for at, form in enumerate(forms_of(self.plan)):
            if form[0] in self.skipped or form not in forms:
                continue
            self.values += 1
            layout = layout_of(self.plan, form)
            local = [x.detach() for x in forms[form]]
            finding = judged(self.plan, form, local, layout, theirs.values[form[0]])
            if finding.error <= self.tolerance or not self._tied(form, local, theirs):
                yield self.differs("value", form, layout, finding, at)

    def _figures(self, figures: Mapping[str, float], theirs: whole.WholeResults) -> Iterator[ValueDifference | None]:
        """The loss and the metrics as a run reports them: one number, on all ranks."""
        graph = self.plan.graph
        named = {"loss": graph.loss, **graph.metrics}
        for name, number in figures.items():
            value = named[name]
            if value is None or value in self.skipped:
                continue
            found, expected = torch.tensor(number, dtype=torch.float64), theirs.values[value].double()
            finding = measured(found, expected, scale_of(expected), 0, ())
            yield self.differs("figure", (value, -1), Layout((), mesh=self.plan.produced[value].mesh), finding)

    def _tied(self, form: Form, local: Sequence[Tensor], theirs: whole.WholeResults) -> bool:
        """Whether rounding explains a difference; then later values are left out from here on."""
        graph = self.plan.graph
        producer = graph.producers.get(form[0])
        free = None if producer is None else undecided(graph.ops[producer], theirs.values, self.tolerance)
        layout = layout_of(self.plan, form)
        if free is None:
            return False
        finding = judged(self.plan, form, local, layout, theirs.values[form[0]], free)
        if finding.error > self.tolerance:
            return False
        self._leave_out(form)
        self.skipped |= following(graph, form[0])
        return True

    def _leave_out(self, form: Form) -> None:
        """Notes that rounding decides a value, or its gradient."""
        path = self.plan.graph.values[form[0]].path
        self.undecided += (path,) if path not in self.undecided else ()

    def _gradients(self, mine: ranks.RankResults, expected: Mapping[Form, Tensor]) -> Iterator[ValueDifference | None]:
        """Backward runs against the order of the forms. A form without gradient here must not need
        one there."""
        for at, form in enumerate(reversed(forms_of(self.plan))):
            wanted = expected.get(form)
            if form in mine.unseen or (form not in mine.gradients and (wanted is None or form not in mine.forms)):
                continue
            self.gradients += 1
            layout = dual(layout_of(self.plan, form))
            local = mine.gradients.get(form) or [torch.zeros_like(x) for x in mine.forms[form]]
            whole_gradient = wanted if wanted is not None else torch.zeros(self.plan.graph.values[form[0]].type.shape)
            spread = self._spreads(form[0], whole_gradient)
            finding = judged(self.plan, form, local, layout, whole_gradient, spread=spread)
            yield self.differs("gradient", form, layout, finding, at)

    def _spreads(self, value: int, gradient: Tensor) -> bool:
        """Whether NaN need not stand in a gradient where it does on one device."""
        return bool(gradient.isnan().any()) and value in spreading(self.plan.graph)

    def stored(
        self, kept: Mapping[int, Sequence[Tensor]], expected: Mapping[int, Tensor], kind: str = "parameter"
    ) -> Iterator[ValueDifference | None]:
        """Compares what ranks store of parameters or states, rows under ZeRO, with the whole."""
        for value, local in ((v, xs) for v, xs in kept.items() if v in expected):
            at, full, scale = storage(self.plan, value), expected[value], scale_of(expected[value])
            blocks = ((rank, at.block(rank)) for rank in at.ranks)
            spread = kind == "stored gradient" and self._spreads(value, full)
            findings = [measured(local[r], cut_out(full, block), scale, r, block, spread) for r, block in blocks]
            self.parameters += kind == "parameter"
            yield self.differs(kind, (value, -1), at.plan.stored, max(findings, key=lambda f: f.error))

    def cannot(self, failure: CannotRun, theirs: whole.WholeResults) -> None:
        """Notes a value that was wrong before the step that cannot run, else that step."""
        self.results(ranks.RankResults(failure.made, {}, {}, {}), theirs, done=False)
        if self.ok:
            form = failure.form
            finding, at = Finding(math.inf, message=failure.message), forms_of(self.plan).index(form)
            self.difference = self._difference("step", form, layout_of(self.plan, form), finding, at)
