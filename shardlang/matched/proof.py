"""A plan and its emitted files -> diagnostics of what is wrong in how its ranks communicate; none
where all of it is proved.

Both are read by themselves. They must say the same, line by line (SH460), and in each line the
ranks of its group must give and get alike (SH461)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import zip_longest

from shardlang.diagnostics.diagnostic import Sink
from shardlang.emit.emit import Emission
from shardlang.frozen.records import dataclass
from shardlang.matched import plan_settings
from shardlang.matched.lines import ActionRow, AxisGroup, Items, difference, lines_of
from shardlang.matched.planned import Planned
from shardlang.matched.read_back import settings
from shardlang.matched.read_back.program import Read, read
from shardlang.matched.report import report
from shardlang.matched.shapes import disagreement
from shardlang.matched.stages import prove_order, prove_types
from shardlang.matched.ties import joint, prove_ties


def prove(emission: Emission, files: Mapping[str, str], sink: Sink) -> None:
    """Reports what is wrong."""
    pair = Pair(Planned(emission), read(files), sink)
    planned, text = pair.planned, pair.text
    messages = []
    for at in range(len(emission.forwards)):
        pair.functions(at)
        pair.same("in the gathers of zero 3", plan_settings.gathers(planned.plan, at), settings.gathers(text, at), at)
        messages.append(settings.messages(text, at))
        pair.same("between stages", plan_settings.messages(planned, at), messages[-1], at)
    pair.same("in sums of figures and gradients", plan_settings.figures(planned), settings.figures(text))
    pair.parameters()
    schedule = settings.schedule(text)
    for mine, its in zip_longest(plan_settings.schedule(planned), schedule, fillvalue=ActionRow(())):
        if mine != its:
            pair.same("in the schedule", mine.lines, its.lines)
    prove_types(messages, sink)
    prove_order(messages, schedule, sink)
    if len(text.stages) > 1:
        prove_ties(joint(text), sink)


@dataclass(frozen=True)
class Pair:
    """The plan and the text of a program, to be compared."""

    planned: Planned
    text: Read
    sink: Sink

    def functions(self, at: int) -> None:
        """Compares the functions of a stage, and looks at their lines."""
        ours, theirs = self.planned.functions(at), self.text.functions(at)
        for name in {**ours, **theirs}:
            mine, its = ours.get(name, ()), theirs.get(name, ())
            if self.same(f"in `{name}`", mine, its, at):
                _agree(mine, its, self.text.texts.degree, self.sink)

    def parameters(self) -> None:
        """Compares what the plan and the text say of each parameter, of equal ones once."""
        seen = set[tuple[int, int]]()
        ours, theirs = plan_settings.parameters(self.planned), settings.parameters(self.text)
        for path in {**ours, **theirs}:
            mine, its = ours.get(path, ()), theirs.get(path, ())
            if (id(mine), id(its)) not in seen:
                seen.add((id(mine), id(its)))
                self.same(f"in `{path}`", mine, its)

    def same(self, where: str, ours: Items, theirs: Items, at: int = 0) -> bool:
        """Whether both are the same; reports the first difference. at: the stage that they are of,
        which is named where one of them has nothing."""
        differs = None if ours == theirs else difference(ours, theirs)
        if differs is None:
            return True
        mine, its, why = differs
        said = [f"the plan says {mine.said if mine else 'nothing'}", f"the text {its.said if its else 'nothing'}"]
        fact = why or ", and ".join(said)
        graph, forward = self.planned.plan.graph, self.text.stages[at].functions["forward"]
        report(
            self.sink, "SH460", f"{where} the plan and the emitted text communicate differently: {fact}",
            [(mine.span, "the plan's line") if mine and mine.span else
             (graph.values[graph.loss or 0].span, "the plan's loss, which has nothing there"),
             (its.span, "the text's line") if its and its.span else
             (forward.file.span(forward.node), "the text, which has nothing there")],
        )  # fmt: skip
        return False


def _agree(ours: Items, theirs: Items, degree: Callable[[AxisGroup], int], sink: Sink) -> None:
    """The ranks of each line's group give and get parts that fit."""
    for mine, its in zip(lines_of(ours), lines_of(theirs), strict=True):
        if why := disagreement(mine, degree(mine.group)):
            places = [(mine.span, "the plan's line"), (its.span, "the emitted line")]
            report(sink, "SH461", f"the ranks of a group do not fit in {mine.said}: {why}", places)
