"""The result of checking: a graph and all else that later stages need, as frozen values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, replace
from typing import Any

from shardlang.check.own import OwnDecl, OwnDefinition
from shardlang.check.values import Numbering
from shardlang.facts.figures import GRAD_NORM
from shardlang.frozen.records import dataclass
from shardlang.graph.graph import Graph
from shardlang.paths.patterns import Cuts, R, SingleLayers, cut_as_asked
from shardlang.sources.source import Source, Span
from shardlang.syntax import ast
from shardlang.types.dim import Dim


@dataclass(frozen=True, slots=True)
class DataSource:
    """`kind` (random, digits, mnist, numpy, csv, ...), its evaluated arguments by name, the names
    of its fields, its batch.

    Paths among the arguments are kept as written, relative to the program's file. own: the Python
    that gives the examples of a declared source, and `settings`, what it gets. words: of each field
    that reads words, the name of its vocabulary, and how they become numbers; fields of one
    vocabulary share it."""

    kind: str
    arguments: Mapping[str, Any]
    fields: tuple[str, ...]
    batch: int
    own: OwnDefinition | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    words: Mapping[str, tuple[str, Numbering]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OptimizerSetting:
    """`sgd(lr = 0.1)`: kind and arguments with all defaults filled in, and the parameters (value
    ids) it trains.

    at: the selectors that are written for it; () for the one of all others. own: the declaration of
    one that is the user's."""

    kind: str
    arguments: Mapping[str, Any]
    params: tuple[int, ...]
    at: tuple[str, ...]
    own: OwnDecl | None = None


@dataclass(frozen=True, slots=True)
class NameRule:
    """A line of a name map: parameters `ours` start from tensors `theirs` of the file, each `*` on
    the left the same as on the right. `maybe`: the program may lack them. transposed: rows are
    columns there. part: (i, n), the i-th of n equal parts along the first dim."""

    ours: str
    theirs: str
    maybe: bool
    transposed: bool
    part: tuple[int, int] | None
    span: Span


@dataclass(frozen=True, slots=True)
class NameMap:
    """How a file of weights names what a program has. prefix: what names in the file may begin with
    and the map leaves out. ignored: names, with `*`, of tensors that the program does not need.
    tied: those of them that are other tensors of the file once more, by name."""

    rules: tuple[NameRule, ...]
    prefix: str
    ignored: tuple[str, ...]
    tied: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Training:
    """The settings of `train`. lr_schedule: (kind, arguments) or None. checkpoint likewise.
    own_schedule: the function of a schedule that a file declares. log:
    {"steps": how often}. evaluate: of {"steps": how often, "best": ("lowest", figure), "patience":
    evaluations, "weights": "ema"} what is given. ema: the decay of the average of weights. init:
    ("safetensors", {"path": path}), with "names": a NameMap where one is given, or None. stream:
    whether what layers hand on is in the low `precision` too. late: from figures of a step (its
    `data`) to the metrics that are computed after it, which is not laid out.

    Other `metrics` are in `Graph.metrics`. `seed` defaults to 0. Exactly one of epochs and steps is
    not None."""

    data: DataSource
    eval: DataSource | None
    optimizers: tuple[OptimizerSetting, ...]
    stream: bool
    own_schedule: OwnDefinition | None
    late: Graph | None
    epochs: int | None = None
    steps: int | None = None
    seed: int = 0
    precision: str = "f32"
    clip: float | None = None
    ema: float | None = None
    lr_schedule: tuple[str, Mapping[str, Any]] | None = None
    checkpoint: tuple[str, Mapping[str, Any]] | None = None
    init: tuple[str, Mapping[str, Any]] | None = None
    log: Mapping[str, Any] | None = None
    evaluate: Mapping[str, Any] | None = None
    compile: str = "none"
    not_finite: str = "stop"

    @property
    def late_from(self) -> tuple[str, ...]:
        """The figures of a step that `late` is computed from."""
        return () if self.late is None else tuple([self.late.values[value].name for value in self.late.data])

    @property
    def measured(self) -> bool:
        """Whether each step needs the norm of its gradients."""
        asked = self.clip is not None or self.not_finite == "skip" or GRAD_NORM in self.late_from
        return asked or self.precision == "f16"

    @property
    def own(self) -> list[OwnDefinition]:
        """The Python functions of the user's that the run calls, but for operators."""
        sources = [source.own for source in (self.data, self.eval) if source is not None]
        optimizers = [each.own for each in self.optimizers]
        return [own for own in (*sources, self.own_schedule, *optimizers) if own is not None]


@dataclass(frozen=True, slots=True)
class Machine:
    """A device, or a cluster with its device (None if it does not name one)."""

    device: ast.Hardware | None
    cluster: ast.Hardware | None = None


@dataclass(frozen=True)
class DeclaredNames:
    """values: names of layers, parameters and values; none where there is no model. dims: those of
    dims. sure: of how many names of a path it is sure whether something has them; 1 where the
    models of some layers are unknown, 0 where that of `train` is, None for all."""

    values: frozenset[str]
    dims: frozenset[str]
    sure: int | None

    @property
    def graph(self) -> Graph:
        """It stands for the graph: it has the dims, and nothing that a rule could cover."""
        dims = {name: (Dim(name, None),) for name in sorted(self.dims)}
        return Graph((), (), (), (), (), None, {}, addresses={}, declared=(), dims=dims)


@dataclass(frozen=True)
class CheckedProgram:
    """A checked file. `strategies` in file order (overrides of axes are in `axis_overrides`:
    strategy -> axis -> size, 0 for `auto`). `statics`: names an expression in a strategy may use
    (file dims). `hardware`: by its name in the file. `schedules`: files of actions that strategies
    name, by the name as written. `unread`: strategies that were not asked for and that have
    mistakes in their syntax, so that they are not here as a whole. `predicted`: the paths of values
    that an evaluation keeps, as `shardc predict` asks. `told`: the program with runs of equal
    layers told once, for where they are cut; for None, with single layers. `names`: of a program
    without `train`, or with a mistake in a value, the names that are known of it, and its graph is
    empty; None elsewhere."""

    source: Source
    graph: Graph
    training: Training | None
    strategies: tuple[ast.Strategy, ...]
    hardware: Mapping[str, Machine]
    axis_overrides: Mapping[str, Mapping[str, int]]
    statics: Mapping[str, int | float]
    schedules: Mapping[str, Source] = field(default_factory=dict)
    unread: tuple[str, ...] = ()
    predicted: tuple[str, ...] = ()
    told: Callable[[Cuts | None], CheckedProgram | None] | None = field(default=None, repr=False, compare=False)
    names: DeclaredNames | None = None

    def in_runs(self, work: Callable[[CheckedProgram], R], cuts: Cuts | None = None) -> R:
        """The outcome of `work` on the program with runs of equal layers told once, cut where that
        asks for single layers; on that of single layers where no cuts are enough. cuts: as of
        `cut_as_asked`."""

        def told(cuts: Cuts | None) -> CheckedProgram:
            found = self.told(cuts) if self.told is not None else None
            if found is None or (cuts is not None and not found.graph.in_runs):
                raise SingleLayers
            return replace(
                found, strategies=self.strategies, axis_overrides=self.axis_overrides, hardware=self.hardware,
                predicted=self.predicted,
            )  # fmt: skip

        found = cut_as_asked(lambda cuts: (work(told(cuts)),), cuts)
        return found[0] if found is not None else work(told(None) if self.graph.in_runs else self)

    @property
    def machine(self) -> Machine | None:
        """The first cluster that the file declares or imports, else the first device."""
        found = list(self.hardware.values())
        return next((m for m in found if m.cluster is not None), found[0] if found else None)
