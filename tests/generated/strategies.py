"""A strategy at random for a checked graph: meshes, splits, pins, positional rules, ZeRO and what else a strategy says.

Most of what is written fits; what does not, the planner must refuse with a diagnostic.
"""

from __future__ import annotations

import math
import random
import re
from dataclasses import dataclass, field

from shardlang.diagnostics.diagnostic import Sink
from shardlang.graph.graph import Graph, GraphValue, Kind, Op
from shardlang.ops.declaration import REGISTRY
from shardlang.ops.rule import Split
from shardlang.plan.demand import ChunkRule
from shardlang.plan.rewrite.chunk_rules import in_chunks
from shardlang.types.dim import Dim, Term
from shardlang.types.layout import chunk_sizes
from tests.generated.scope import beside

RANKS = {1: 1, 2: 10, 3: 4, 4: 16, 5: 1, 6: 10, 7: 1, 8: 16, 9: 1, 10: 1, 12: 6, 16: 5, 24: 1, 32: 1, 64: 1}
# Schedules that cut backward in two.
IN_TWO = ("zero_bubble", "zbv", "dualpipe_v")
CUT = "a cut sequence of attention"
NAMES = ("dp", "mp", "cp", "tp", "a", "b", "c")


@dataclass(frozen=True)
class Rules:
    """A strategy's text, its rank count and what it is made of."""

    text: str
    ranks: int
    features: frozenset[str]


def write(rng: random.Random, graph: Graph, ranks: int | None = None, apart: bool = False, deep: bool = False) -> Rules:
    """A strategy named `s`, on `ranks` ranks if they are given; `apart`: the model may be run in microbatches;
    `deep`: in two or more stages on each rank.
    """
    ranks = ranks or rng.choices(list(RANKS), list(RANKS.values()))[0]
    ranks += deep and ranks % 2
    writer = _Writer(rng, graph, ranks, deep)
    writer.stages = writer.coordinates() if apart else 0
    writer.run()
    if apart and (writer.stages or rng.random() < 0.6):
        writer.microbatches()
    body = "\n".join(f"  {line}" for line in writer.lines)
    return Rules(f"strategy s {{\n{body}\n}}\n", ranks, frozenset(writer.features))


@dataclass
class _Writer:
    rng: random.Random
    graph: Graph
    ranks: int
    deep: bool = False
    lines: list[str] = field(default_factory=list)
    features: set[str] = field(default_factory=set)
    sizes: dict[str, int] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    stages: int = 0  # coordinates along the axis `pp` of pipeline stages; 0: none

    def __post_init__(self) -> None:
        graph = self.graph
        self.dims = {n: d[0] for n, d in graph.dims.items() if len(d) == 1 and (d[0].size or 0) > 1}
        present = {d for v in graph.values for t in v.type.dims for d in t}
        # The dims of the layers of an array are named by its path without indexes, all at once.
        alone = {n for n in self.dims if "[" not in n or sum(_plain(n) == _plain(m) for m in self.dims) == 1}
        self.dims = {_plain(n): d for n, d in self.dims.items() if d in present and n in alone}
        self.together: dict[Dim, set[Dim]] = {}
        self.twice: set[Dim] = set()
        self.lookups: set[tuple[Dim, Dim]] = set()  # of ids and of rows
        for op in graph.ops:
            self._meet(op)
        named = {v: path for path, values in graph.addresses.items() if len(values) == 1 for v in values}
        self.paths = {graph.values[v]: p for v, p in named.items() if re.fullmatch(r"[\w.\[\]]+", p) and _written(p)}

    def _meet(self, op: Op) -> None:
        values = [self.graph.values[v] for v in (*op.operands, *op.results)]
        there = {d for v in values for t in v.type.dims for d in t}
        asked, rows = self._exchanged(op)
        self.lookups.update((one, other) for one in asked for other in rows)
        for d in there:
            apart = rows if d in asked else asked if d in rows else set()
            self.together.setdefault(d, set()).update(there - {d} - apart)
        for value in values:
            parts = [d for t in value.type.dims for d in t]
            self.twice.update(d for d in parts if parts.count(d) > 1)

    def _exchanged(self, op: Op) -> tuple[set[Dim], set[Dim]]:
        """The dims of a lookup's ids and of its table's rows: one axis may split one of each."""
        if op.operator != "embedding":
            return set(), set()
        ids, table = (self.graph.values[v].type.dims for v in op.operands)
        return {d for term in ids for d in term}, set(table[0])

    def run(self) -> None:
        rng = self.rng
        if self._emptied(beside(rng)) or self._around(beside(rng)):
            return
        style = rng.choices(["named", "positional", "mixed"], [6, 2, 2])[0]
        if self.ranks == 1 or self.stages:
            style = "named"
        if style != "positional":
            self._mesh()
            self._splits()
            self._scoped()
            self._pins()
        if style != "named":
            self._positional(rng.randint(1, 3), rng.random() < 0.3 and style == "mixed")
        if style == "positional" and not self.lines:
            self._mesh()
            self._splits()
        self._zero()
        self._rest()
        self._idle()
        if self.stages:
            self._stages()

    def _emptied(self, rng: random.Random) -> bool:
        """At times one rule alone: a dim over so many ranks that some have none of it, and something of a layer, or a
        value, that backward computes again there.
        """
        ranks = self.ranks // max(1, self.stages)
        free = [n for n, d in self.dims.items() if d not in self.twice and chunk_sizes(d.size or 1, ranks)[-1] == 0]
        layers = [p.rpartition(".")[0] for p in self.paths.values() if "." in p and not p.startswith("train.")]
        results = [p for v, p in self.paths.items() if v.kind is Kind.RESULT and not p.startswith("train.")]
        # Kernels that keep nothing of an empty part.
        kernels = [op for op in self.graph.ops if op.operator == "attention" or "pool" in op.operator]
        if rng.random() > (0.4 if kernels else 0.1) or not free or not results:
            return False
        near = {self.graph.values[v] for op in kernels for v in (*op.operands, *op.results)}
        results = [p for v, p in self.paths.items() if v in near and p in results] or results
        theirs = {d for value in near for term in value.type.dims for d in term}
        free = [n for n in free if self.dims[n] in theirs] or free
        self.features.add("empty parts")
        self.sizes = {"cp": ranks}
        self.lines.append(f"mesh {f'pp = {self.stages}, ' if self.stages else ''}cp = {ranks}")
        self.lines.append(f"split {rng.choice(free)} over cp uneven")
        for _ in range(rng.randint(1, 3)):
            way = rng.choice(("recompute", "recompute gathers", "recompute all but products")) if layers else ""
            if way and rng.random() < 0.5:
                self.lines.append(f"at {rng.choice(sorted(set(layers)))}: {way}")
            else:
                self.lines.append(f"at {rng.choice(results)}: recompute")
        if self.stages:
            self._stages()
        return True

    def _around(self, rng: random.Random) -> bool:
        """At times one rule alone: the sequence of an attention with itself over all ranks, in a ring, evenly or as
        ever.
        """
        ranks = self.ranks // max(1, self.stages)
        own = set()
        for op in (op for op in self.graph.ops if op.operator == "attention"):
            (asked, *_), (keys, *_) = (self.graph.values[v].type.dims[-2] for v in op.operands[:2])
            own |= {asked} if asked is keys and (asked.size or 0) % (ranks * (1 + op.attrs["causal"])) == 0 else set()
        names = [n for n, d in self.dims.items() if d in own and d not in self.twice]
        if ranks == 1 or not names or rng.random() > 0.9:
            return False
        self.sizes = {"cp": ranks}
        self.lines.append(f"mesh {f'pp = {self.stages}, ' if self.stages else ''}cp = {ranks}")
        self.lines.append(f"split {rng.choice(names)} over cp")
        self.features.add(CUT)
        if rng.random() < 0.6:
            self._attend()
        if self.stages:
            self._stages()
        return True

    def coordinates(self) -> int:
        """How many stages the model's layers can fill and the ranks can have, or 0."""
        layers = self._layers() // (1 + self.deep)
        fits = [n for n in (2, 2, 3, 4) if self.ranks % n == 0 and n <= layers]
        return self.rng.choice(fits) if fits and (self.deep or self.rng.random() < 0.7) else 0

    def _layers(self) -> int:
        """The layers of the model itself, each of an array counted."""
        return len({p.partition(".")[0] for p in self.graph.addresses if "." in p and not p.startswith("train.")})

    def _stages(self) -> None:
        """Balanced stages, and a schedule that they fit."""
        rng = self.rng
        one = [(1, "zero_bubble")] if self.deep else [(1, "gpipe"), (1, "1f1b"), (1, "")]
        two = [(2, "interleaved_1f1b"), (2, "zero_bubble"), (2, "zbv"), (2, "dualpipe_v")]
        virtual, name = rng.choice([*one, *two])
        if virtual > 1 and self._layers() < 2 * self.stages:
            virtual, name = 1, beside(rng).choice(("1f1b", "zero_bubble"))
        self.features.add(f"stages {name}")
        if name in IN_TWO:
            self.features.add("a backward in two")
        self.lines.append(f"stages over pp balanced{f', virtual = {virtual}' if virtual > 1 else ''}")
        if name:
            self.lines.append(f'schedule "{name}"')

    # --- meshes and splits ---

    def _mesh(self) -> None:
        factors = _factoring(self.rng, self.ranks // max(1, self.stages))
        if self.rng.random() < 0.1:
            factors.insert(self.rng.randint(0, len(factors)), 1)
            self.features.add("axis of one rank")
        names = self.rng.sample(NAMES, len(factors))
        self.sizes = dict(zip(names, factors, strict=True))
        axes = list(self.sizes.items())
        if self.stages:
            axes.insert(self.rng.choice([0, 0, len(axes)]), ("pp", self.stages))
        auto = self.rng.choice(axes)[0] if axes and self.rng.random() < 0.15 else ""
        if axes:
            self.lines.append("mesh " + ", ".join(f"{n} = {'auto' if n == auto else size}" for n, size in axes))
        self.features.add(f"{sum(f > 1 for f in factors)} axes")

    def _splits(self) -> None:
        taken: set[Dim] = set()
        axes = [a for a in self.sizes if self.sizes[a] > 1]
        self.rng.shuffle(axes)
        while axes:
            axis = axes.pop()
            group = [axis]
            if axes and self.rng.random() < 0.15:
                group.append(axes.pop())
                self.features.add("split over a group")
            if self.rng.random() < 0.85:
                self._split(tuple(group), taken)

    def _split(self, axes: tuple[str, ...], taken: set[Dim]) -> None:
        rng, degree = self.rng, math.prod(self.sizes[a] for a in axes)
        free = {n: d for n, d in self.dims.items() if d not in taken and (d not in self.twice or rng.random() < 0.1)}
        fitting = [n for n, d in free.items() if (d.size or 0) % degree == 0]
        over = axes[0] if len(axes) == 1 else f"({', '.join(axes)})"
        if free and rng.random() < 0.06:
            name = rng.choice(list(free))
            taken.add(free[name])
            parts = _composed(rng, free[name].size or 1, degree)
            self._say(f"split {name} over {over} sizes ({', '.join(map(str, parts))})", axes, "sizes by hand")
            return
        uneven = [n for n, d in free.items() if (d.size or 0) % degree and (d.size or 0) > degree]
        if uneven and (not fitting or rng.random() < 0.15):
            name = rng.choice(uneven)
            self._say(f"split {name} over {over} uneven", axes, "uneven")
            taken.add(free[name])
            return
        if not fitting:
            return
        names = [rng.choice([*(["batch"] * 2 if "batch" in fitting else []), *fitting])]
        first = free[names[0]]
        more = [n for n in fitting if free[n] is not first and free[n] not in self.together.get(first, ())]
        looked_up = [n for n in more if (first, free[n]) in self.lookups or (free[n], first) in self.lookups]
        if more and rng.random() < (0.9 if looked_up else 0.5):
            names.append(rng.choice(looked_up or more))
            self.features.add("several dims over an axis")
        taken.update(free[n] for n in names)
        self._say(f"split {', '.join(names)} over {over}", axes, "split")
        rest = [n for n in fitting if free[n] not in taken]
        if rest and rng.random() < 0.15:
            name = rng.choice(rest)
            taken.add(free[name])
            over = f"{axes[0]}?" if len(axes) == 1 else f"({', '.join(axes)}?)"
            self._say(f"split {name} over {over}", axes, "gives way")

    def _say(self, line: str, axes: tuple[str, ...], feature: str) -> None:
        self.used.update(axes)
        self.features.add(feature)
        self.lines.append(line)

    def _scoped(self) -> None:
        """Rules for layers and single values, which replace those for all."""
        axes = [a for a in self.sizes if self.sizes[a] > 1]
        count = self.rng.choice([0, 0, 1, 1, 2]) if axes else 0
        for value in self.rng.sample(list(self.paths), min(count, len(self.paths))):
            path = self.paths[value]
            scope = self.rng.choice([path, path.rpartition(".")[0] or path])
            near = self._near(scope)
            axis = self.rng.choice(axes)
            known = [n for n, d in self.dims.items() if d in near and d not in self.twice]
            fitting = [n for n in known if not (self.dims[n].size or 0) % self.sizes[axis]]
            if fitting:
                rule = f"at {_starred(self.rng, scope)}: split {self.rng.choice(fitting)} over {axis}"
                self._say(rule, (axis,), "scoped split")

    def _near(self, scope: str) -> set[Dim]:
        values = [v for v, p in self.paths.items() if p == scope or p.startswith((f"{scope}.", f"{scope}["))]
        return {d for v in values for t in v.type.dims for d in t}

    # --- pins ---

    def _pins(self) -> None:
        axes = [a for a in self.sizes if self.sizes[a] > 1]
        values = [v for v in self.paths if v.type.dims and v.kind is not Kind.CONSTANT]
        if self.rng.random() < 0.9:  # a state lies as what writes it, so that most of its pins are refused
            values = [v for v in values if v.kind is not Kind.STATE]
        picked = self.rng.sample(values, min(len(values), self.rng.choice([0, 0, 1, 1, 2, 3])))
        moving = [v for v in values if self._moves(v) and v not in picked]
        for value in [*picked, *self.rng.sample(moving, min(len(moving), self.rng.choice([0, 1])))]:
            if axes:
                self._pin(value, axes)

    def _moves(self, value: GraphValue) -> bool:
        """Whether states move with a value: what shares them may lie in another way."""
        return value.kind is Kind.RESULT and self.graph.ops[self.graph.producers[value.id]].operator == "batch_norm"

    def _pin(self, value: GraphValue, axes: list[str]) -> None:
        rng, free = self.rng, rng_shuffled(self.rng, axes)
        texts = []
        for term in value.type.dims:
            mine: list[str] = []
            while free and rng.random() < 0.4 and self._cuts(value, term, [*mine, free[-1]]):
                mine.append(free.pop())
            texts.append(_dim_text(term, mine, self.sizes))
            self.used.update(mine)
        if None in texts:
            return
        marks = ""
        if free and value.kind is Kind.RESULT and rng.random() < 0.12:
            mark = rng.choice(["+", "^"]) if self._sums(value, free[-1]) else "^"
            self.used.add(free[-1])
            marks = f" {mark}{free.pop()}"
            self.features.add("pending pin" if mark == "+" else "replicated pin")
        what = "pin" if value.kind is Kind.RESULT else f"pinned {value.kind.value}"
        self.features.add(what)
        if any(len(t) > 1 for t in value.type.dims):
            self.features.add("pinned product dim")
        self.lines.append(f"at {_starred(rng, self.paths[value])}: [{', '.join(t for t in texts if t)}]{marks}")

    def _cuts(self, value: GraphValue, term: Term, axes: list[str]) -> bool:
        """Whether a dim may be cut so: its major factor divides, and the operator does not need it whole."""
        degree = math.prod(self.sizes[a] for a in axes)
        if not term or (term[0].size or 1) % degree:
            return False
        producer = self.graph.producers.get(value.id)
        if producer is None:
            return True
        op = self.graph.ops[producer]
        dims = op.rule.results[0][value.type.dims.index(term)]
        return all(op.rule.factors[f].split is not Split.WHOLE for f in dims)

    def _sums(self, value: GraphValue, axis: str) -> bool:
        """Whether a value may be pinned as pending: by its one contraction, or through an operator without any."""
        rule = self.graph.ops[self.graph.producers[value.id]].rule
        kept = {f for dims in rule.results for d in dims for f in d}
        summed = [x for f, x in enumerate(rule.factors) if f not in kept and x.split is Split.FREE and x.size > 1]
        return (len(summed) == 1 and summed[0].size % self.sizes[axis] == 0) or (not summed and bool(rule.through))

    # --- positional rules ---

    def _positional(self, count: int, by_name: bool) -> None:
        results = [v for v in self.paths if v.kind is Kind.RESULT and v.statement == 1]
        axes = [a for a in self.sizes if self.sizes[a] > 1]
        for value in self.rng.sample(results, min(len(results), count)):
            line = self._named_shard(value, axes) if by_name and axes else self._shard(value)
            if line:
                self.lines.append(f"at {self.paths[value]}: shard {line}")

    def _inputs(self, value: GraphValue) -> tuple[Op, list[int]] | None:
        op = self.graph.ops[self.graph.producers[value.id]]
        inputs = [i for i, v in enumerate(op.operands) if self.graph.values[v].kind is not Kind.CONSTANT]
        dims = [op.rule.operands[i] for i in inputs]
        return None if not inputs or any(len(t) > 1 for d in dims for t in d) else (op, inputs)

    def _shard(self, value: GraphValue) -> str:
        found = self._inputs(value)
        if found is None:
            return ""
        op, inputs = found
        cuts: dict[int, int] = {}
        for f in self.rng.sample(range(len(op.rule.factors)), len(op.rule.factors)):
            factor, room = op.rule.factors[f], self.ranks // math.prod(cuts.values())
            choices = [c for c in (1, 2, 2, 3, 4, 6, 8) if room % c == 0 and factor.size % c == 0]
            cuts[f] = self.rng.choice(choices) if factor.split is not Split.WHOLE else 1
        tuples = [_tuple([str(cuts[t[0]] if t else 1) for t in op.rule.operands[i]]) for i in inputs]
        text = f"({', '.join(tuples)})"
        self.features.add("positional")
        if self.rng.random() < 0.2 and value.type.dims:
            room, after = self.ranks, []
            for size in value.type.shape:
                after.append(self.rng.choice([c for c in (1, 2, 3, 4) if room % c == 0 and size % c == 0]))
                room //= after[-1]
            self.features.add("positional output")
            text += f" -> ({_tuple([str(c) for c in after])})"
        return text

    def _named_shard(self, value: GraphValue, axes: list[str]) -> str:
        found = self._inputs(value)
        if found is None:
            return ""
        op, inputs = found
        free, cuts = rng_shuffled(self.rng, axes), {}
        for f, factor in enumerate(op.rule.factors):
            fits = free and factor.size % self.sizes[free[-1]] == 0 and factor.split is not Split.WHOLE
            cuts[f] = free.pop() if fits and self.rng.random() < 0.5 else "_"
        self.used.update(a for a in cuts.values() if a != "_")
        if all(a == "_" for a in cuts.values()):
            return ""
        self.features.add("positional by name")
        return f"({', '.join(_tuple([cuts[t[0]] if t else '_' for t in op.rule.operands[i]]) for i in inputs)})"

    # --- the rest ---

    def microbatches(self) -> None:
        """As many as still divide what a rank has of the batch, as far as that can be told from the rules."""
        batch = self.graph.batch
        if batch is None or any(re.search(r"\bbatch\b.* (uneven|sizes)", line) for line in self.lines):
            return
        room = batch.size or 1
        for line in self.lines:
            for found in re.findall(r"split [^:]*\bbatch\b[^:]* over (\(?[\w, ?]+)|batch@(\(?[\w, ]+)", line):
                axes = [a for a in re.findall(r"\w+", "".join(found)) if a in self.sizes]
                room = min(room, (batch.size or 1) // math.prod(self.sizes[a] for a in axes))
            cuts = [int(n) for n in re.findall(r"shard \(\((\d+)", line)]
            room = min([room, *[(batch.size or 1) // n for n in cuts]])
        least = 2 * self.stages if "stages dualpipe_v" in self.features else 2
        counts = [n for n in (2, 2, 3, 4, 6) if room % n == 0 and n >= least]
        if counts:
            self.features.add("microbatches")
            self.lines.append(f"microbatches {self.rng.choice(counts)}")

    def _zero(self) -> None:
        axes = [a for a in self.sizes if self.sizes[a] > 1]
        if not axes or self.rng.random() > 0.35:
            return
        some = self.rng.sample(axes, min(len(axes), self.rng.choice([1, 1, 2])))
        level = self.rng.choice([1, 2, 3])
        over = some[0] if len(some) == 1 else f"({', '.join(some)})"
        params = [p for v, p in self.paths.items() if v.kind is Kind.PARAM]
        place = f"at {self.rng.choice(params)}: " if params and self.rng.random() < 0.3 else ""
        keep = ", keep" if level == 3 and self.rng.random() < 0.4 else ""
        self._say(f"{place}zero {level} over {over}{keep}", tuple(some), f"zero {level}{keep}")
        if len(some) > 1:
            self.features.add("zero over several axes")

    def _rest(self) -> None:
        if self.rng.random() < 0.3:
            self.features.add("bucket size")
            self.lines.append(f"bucket gradients {self.rng.choice(['64B', '1KB', '300B', '25MB'])}")
        layers = sorted({p.rpartition(".")[0] for p in self.paths.values() if "." in p and not p.startswith("train.")})
        if layers and self.rng.random() < 0.15:
            self.features.add("recompute")
            ways = ("recompute", "recompute gathers", "recompute all but products", "place saved on host")
            self.lines.append(f"at {_starred(self.rng, self.rng.choice(layers))}: {ways[len(self.lines) % 4]}")
        self._attend()
        self._chunks()
        params = [p for v, p in self.paths.items() if v.kind is Kind.PARAM]
        if params and self.rng.random() < 0.04:
            self.features.add("place on host")
            self.lines.append(f"at {self.rng.choice(params)}: place on host")
        if self.rng.random() < 0.01:
            self.features.add("strict")
            self.lines.append("strict")

    def _attend(self) -> None:
        """Of attention over a sequence that a rule cuts for the whole model, in chunks that divide."""
        ways = set()
        for op in (op for op in self.graph.ops if op.operator == "attention"):
            (asked, *_), (keys, *_) = (self.graph.values[v].type.dims[-2] for v in op.operands[:2])
            for line in (line for line in self.lines if re.search(rf"^split [^:]*\b{asked.name}\b[^:]* over", line)):
                axes = [a for a in re.findall(r"\w+", line.partition(" over ")[2]) if a in self.sizes]
                chunks = math.prod(self.sizes[a] for a in axes) * (1 + op.attrs["causal"])
                if not re.search(r"\b(uneven|sizes)\b", line) and (asked.size or 0) % chunks == 0:
                    ways |= {"in a ring"} if asked is keys else set()
                    ways |= {"evenly"} if op.attrs["causal"] else set()
        if ways:
            way = sorted(ways)[len(self.lines) % len(ways)]
            self.features.add(f"attend {way}")
            self.lines.append(f"attend {way}")

    def _chunks(self) -> None:
        """Of losses whose scores are products that nothing else reads."""
        ops, sink = [op for op in self.graph.ops if REGISTRY[op.operator].chunked], Sink()
        in_chunks(self.graph, {op.results[0]: ChunkRule(2, op.span) for op in ops}, {}, sink)
        if ops and not sink.found:
            self.features.add("chunks")
            self.lines.append(f"chunks {2 + len(self.lines) % 3}")

    def _idle(self) -> None:
        """An axis that no rule uses would be an error."""
        batch = self.graph.batch
        for axis, size in self.sizes.items():
            if size > 1 and axis not in self.used:
                line = f"zero {self.rng.choice([1, 2, 3])} over {axis}"
                fits = batch is not None and (batch.size or 0) >= size
                if batch is not None and fits and not any("zero" not in r and "batch" in r for r in self.lines):
                    line = f"split {batch.name} over {axis} uneven"
                elif batch is not None and fits and any(r.startswith("zero") for r in self.lines):
                    line = f"at train.loss: split {batch.name} over {axis} uneven"
                self.lines.append(line)


def _written(path: str) -> bool:
    """Whether a path can be written: what `forward` returns has one that cannot."""
    return "return" not in path.split(".")


def _plain(path: str) -> str:
    return re.sub(r"\[\d+\]", "", path)


def rng_shuffled(rng: random.Random, items: list[str]) -> list[str]:
    return rng.sample(items, len(items))


def _factoring(rng: random.Random, ranks: int) -> list[int]:
    """An ordered factoring into at most four axes."""
    found: list[int] = []
    while ranks > 1:
        if len(found) == 3 or rng.random() < 0.25:
            return [*found, ranks]
        factor = rng.choice([f for f in range(2, ranks + 1) if ranks % f == 0])
        found.append(factor)
        ranks //= factor
    return found


def _composed(rng: random.Random, size: int, parts: int) -> list[int]:
    """Numbers from 0 that sum to `size`."""
    ends = sorted(rng.randint(0, size) for _ in range(parts - 1))
    return [b - a for a, b in zip([0, *ends], [*ends, size], strict=True)]


def _starred(rng: random.Random, path: str) -> str:
    """At times all layers of an array instead of one."""
    return re.sub(r"\[\d+\]", "[*]", path) if rng.random() < 0.4 else path


def _dim_text(term: Term, axes: list[str], sizes: dict[str, int]) -> str | None:
    """`heads@mp * width`; literal dims by their size; None where a dim cannot be written."""
    texts = []
    for at, dim in enumerate(term):
        name = str(dim.size) if dim.literal else dim.name.rpartition(".")[2]
        mine = axes if at == 0 else []
        cut = "" if not mine else f"@{mine[0]}" if len(mine) == 1 else f"@({', '.join(mine)})"
        texts.append(name + cut)
    return " * ".join(texts) or "1"


def _tuple(items: list[str]) -> str:
    return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"
