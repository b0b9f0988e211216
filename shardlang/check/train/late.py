"""`lr` and `grad_norm` in metrics: what is computed from them becomes a graph of its own, which the
host runs on single numbers once a step is through.

The numbers of the step that this needs stay in the graph, as metrics that are not shown
(`ratio:1`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from shardlang.check.context import Frame
from shardlang.check.graph.drafts import GraphBuilder, OpDraft
from shardlang.check.values import Figure
from shardlang.facts.figures import GRAD_NORM, is_told, made_of
from shardlang.frozen.records import dataclass
from shardlang.graph.graph import Graph, GraphValue, Kind, Op
from shardlang.ops.declared import DECLARED
from shardlang.sources.source import Span
from shardlang.syntax import ast
from shardlang.syntax.words import Word

FIGURES: Mapping[str, Word] = {
    "lr": Word("metric rate = lr", "In a `metric` of `train`: the learning rate of the step, as its line tells it. The "
               "metric is computed after the step, of single numbers, and is no figure of an evaluation. A dim, field "
               "or value of the program that is called `lr` takes its place."),
    GRAD_NORM: Word(f"metric moved = lr * {GRAD_NORM}", "In a `metric` of `train`: the norm of all gradients of the "
                    "step together, before `clip`. Each step then computes it, also where nobody reads its line."),
}  # fmt: skip
_WHY = {
    "lr": ("a figure of the step", "a loss is one function in all steps: write a number, or a `metric` of it"),
    GRAD_NORM: ("which is known only after its backward", "`clip = 1.0` bounds the norm; a `metric` may use it"),
}


def offer_figures(node: ast.Train, frame: Frame) -> None:
    """Names them, where the program has no such name, also further down."""
    taken = {*frame.visible(), *(name.text for s in node.settings for name in s.names)}
    frame.names.update({name: Figure(name) for name in FIGURES if name not in taken})


def waiting(build: GraphBuilder) -> dict[int, str]:
    """The values that are computed from a figure -> the first such figure."""
    found = dict(build.figures)
    for op in build.ops if found else ():
        figure = next((found[value] for value in op.operands if value in found), None)
        found.update({} if figure is None else dict.fromkeys(op.results, figure))
    return found


def require_known(value: int, span: Span, frame: Frame) -> None:
    """Reports a loss that is computed from a figure of the step."""
    if figure := waiting(frame.context.build).get(value):
        why, help = _WHY[figure]
        frame.wrong("SH243", f"the loss uses `{figure}`, {why}", span, f"from `{figure}`", help=help)


def apart(metrics: Mapping[str, int], frame: Frame) -> tuple[dict[str, int], Graph | None]:
    """The metrics of the graph, with what those that wait for figures need, and the graph of these;
    None where none waits, or after a report."""
    waits = waiting(frame.context.build)
    late = _Late(frame, waits, {name: value for name, value in metrics.items() if value not in waits})
    shown = {name: value for name, value in metrics.items() if value in waits}
    sound = all([late.add(name, value) for name, value in shown.items()])
    return late.kept, late.graph(shown) if shown and sound else None


@dataclass
class _Late:
    """Metrics in the making that wait for figures. waits: as of `waiting`. kept: the metrics of the
    graph. ids: numbers there -> here."""

    frame: Frame
    waits: Mapping[int, str]
    kept: dict[str, int]
    values: list[GraphValue] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    ids: dict[int, int] = field(default_factory=dict)

    def add(self, metric: str, wanted: int) -> bool:
        """Takes in a metric. False after a report."""
        build = self.frame.context.build
        needed = (build.ops[at] for at in sorted(build.needed([wanted])))
        for op in (op for op in needed if op.results[0] in self.waits and op.results[0] not in self.ids):
            if not self._single(metric, op):
                return False
            operands = tuple([self._read(value, metric) for value in op.operands if value >= 0])
            results = tuple([self._value(value, Kind.RESULT, build.values[value].name) for value in op.results])
            name = DECLARED if DECLARED in op.attrs else op.operator.name
            self.ops.append(Op(
                len(self.ops), name, operands, results=results, attrs=op.attrs, rule=op.rule, span=op.span,
                path=op.path, call=op.call, statement=op.statement,
            ))  # fmt: skip
        self._read(wanted, metric)
        return True

    def _read(self, value: int, metric: str) -> int:
        """The number here of a value that is made here, is a static number or figure, or else
        becomes a metric that is not shown."""
        build = self.frame.context.build
        if value in self.ids:
            return self.ids[value]
        if build.values[value].kind is Kind.CONSTANT:
            return self._value(value, Kind.CONSTANT, "constant")
        name = build.figures.get(value) or made_of(metric, sum(not is_told(each) for each in self.kept) + 1)
        if value not in build.figures:
            self.kept[name] = value
        return self._value(value, Kind.DATA, name)

    def _value(self, value: int, kind: Kind, name: str) -> int:
        draft, at = self.frame.context.build.values[value], len(self.values)
        self.values.append(
            GraphValue(at, kind, draft.path, name, draft.type, False, draft.span, constant=draft.constant)
        )
        self.ids[value] = at
        return at

    def _single(self, metric: str, op: OpDraft) -> bool:
        """Whether an operator has to do with single numbers alone; else it is reported."""
        types = [self.frame.context.build.values[value].type for value in (*op.operands, *op.results) if value >= 0]
        found = next((type for type in types if type.dims), None)
        if found is not None:
            figure = self.waits[op.results[0]]
            fact = f"metric `{metric}` computes a value with dims from `{figure}`"
            help = f"take the `mean` or the `sum` first: the host has `{figure}` after the step, beside single numbers"
            self.frame.wrong("SH243", fact, op.span, str(found), help=help)
        return found is None

    def graph(self, metrics: Mapping[str, int]) -> Graph:
        """All of it; figures and metrics that are not shown are its data."""
        data = tuple([value.id for value in self.values if value.kind is Kind.DATA])
        shown = {name: self.ids[value] for name, value in metrics.items()}
        return Graph(
            tuple(self.values), tuple(self.ops), data, params=(), states=(), loss=None, metrics=shown, addresses={},
            declared=(), dims={},
        )  # fmt: skip
