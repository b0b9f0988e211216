"""Random models and random strategies for them: all families of operators, shared parameters and values, all rules.

What is made is legal as a model; a strategy may be refused by the planner (with a diagnostic).
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from shardlang.graph.graph import Graph, Init, Kind
from shardlang.ops.rule import Split
from tests.interpret.building import Builder

SIZES = (2, 4, 4, 6, 8, 8, 12, 3)
SMOOTH = ("gelu", "silu", "tanh", "sigmoid", "sin", "cos")
NAMED = ("seq", "width", "hidden", "other", "more")
POINTWISE = (*SMOOTH, "relu", "square", "abs", "neg")


@dataclass
class Maker:
    """Grows a model from a batch of floating and whole numbers; `live` are values that may be read."""

    rng: random.Random
    b: Builder = field(default_factory=Builder)
    live: list[int] = field(default_factory=list)
    count: int = 0

    def name(self, letter: str) -> str:
        self.count += 1
        return f"{letter}{self.count}"

    def dims(self, value: int) -> list[str]:
        return ["*".join(d.name for d in term) for term in self.b.values[value].type.dims]

    def plain(self, value: int) -> list[str]:
        """The dims of a value that are no products and not the batch."""
        return [d for d in self.dims(value) if "*" not in d and d != "batch"]

    def other(self, taken: list[str]) -> str | None:
        used = {p for t in taken for p in t.split("*")}
        names = [n for n in NAMED if n not in used]
        return self.rng.choice(names) if names else None

    def op(self, operator: str, *operands: int | None, **static: object) -> int:
        return self.b.op(operator, *operands, path=self.name("v"), **static)  # type: ignore[arg-type]

    def keep(self, value: int | None) -> None:
        dims = [] if value is None else self.dims(value)
        if value is not None and dims[:1] == ["batch"] and all(p in self.b.dims for d in dims for p in d.split("*")):
            self.live.append(value)

    # --- pieces of a model ---

    def linear(self) -> int | None:
        x = self.rng.choice(self.live[-3:])
        dims = self.dims(x)
        out = self.other(dims)
        if out is None or len(dims) < 2:
            return None
        known = [v.id for v in self.b.values if v.kind is Kind.PARAM and self.dims(v.id) == [dims[-1], out]]
        if known and self.rng.random() < 0.5:
            return self.op("matmul", x, known[0])
        if self.rng.random() < 0.5:
            return self.op("matmul", x, self.b.param(self.name("p"), f"{dims[-1]} {out}"))
        w = self.b.param(self.name("p"), f"{out} {dims[-1]}")
        y = self.op("einsum", x, w, arrow=" ".join([*dims[:-1], out]))
        return self.op("add", y, self.b.param(self.name("p"), out))

    def pointwise(self) -> int:
        return self.op(self.rng.choice(POINTWISE), self.rng.choice(self.live[-3:]))

    def scaled(self) -> int:
        x = self.rng.choice(self.live[-3:])
        number = self.b.number(self.rng.choice([0.5, 2, -1.5, 3.0]))
        operator = self.rng.choice(["mul", "add", "sub", "div", "maximum"])
        pair = (number, x) if operator in ("sub", "mul") and self.rng.random() < 0.5 else (x, number)
        return self.op(operator, *pair)

    def pair(self) -> int:
        x = self.rng.choice(self.live)
        same = [v for v in self.live if self.dims(v) == self.dims(x)]
        return self.op(self.rng.choice(["add", "sub", "mul", "maximum", "minimum"]), x, self.rng.choice(same))

    def affine(self) -> int:
        x = self.rng.choice(self.live[-3:])
        dims = self.dims(x)
        last = " ".join(dims[-self.rng.randint(1, 2) :])
        return self.op(self.rng.choice(["mul", "add"]), x, self.b.param(self.name("p"), last))

    def shares(self) -> int:
        x = self.rng.choice(self.live[-3:])
        return self.op(self.rng.choice(["softmax", "log_softmax"]), x, over=self.rng.choice(self.dims(x)))

    def norm(self) -> int:
        x = self.rng.choice(self.live[-3:])
        over = " ".join(self.dims(x)[-self.rng.choice([1, 1, 2]) :])
        given = [self.b.param(self.name("p"), over) if self.rng.random() < 0.6 else None for _ in range(2)]
        if self.rng.random() < 0.5:
            return self.op("rms_norm", x, given[0], over=over)
        return self.op("layer_norm", x, *given, over=over)

    def batch_norm(self) -> int | None:
        x = self.rng.choice(self.live[-3:])
        dims = self.dims(x)
        if len(dims) < 2 or "*" in dims[1]:
            return None
        mean = self.b.state(self.name("s"), dims[1], Init("zeros"))
        variance = self.b.state(self.name("s"), dims[1], Init("ones"))
        return self.op("batch_norm", x, mean, variance, self.b.param(self.name("p"), dims[1]))

    def reduced(self) -> int | None:
        x = self.rng.choice(self.live)
        dims = self.dims(x)
        if len(dims) < 3:
            return None
        return self.op(self.rng.choice(["sum", "mean", "amax", "amin"]), x, over=self.rng.choice(dims[1:]))

    def centred(self) -> int:
        """x less its mean over all, an operator of all examples at once."""
        x = self.rng.choice(self.live)
        return self.op("sub", x, self.op(self.rng.choice(["mean", "amax"]), x))

    def moved(self) -> int | None:
        x = self.rng.choice(self.live)
        dims = self.dims(x)
        rest = dims[1:]
        if len(rest) < 2:
            return None
        self.rng.shuffle(rest)
        if self.rng.random() < 0.5:
            rest = [*rest[:-2], "*".join(rest[-2:])]
        return self.op("rearrange", x, arrow=" ".join(["batch", *rest]))

    def apart(self) -> int | None:
        products = [v for v in self.live if any("*" in d for d in self.dims(v))]
        if not products:
            return None
        x = self.rng.choice(products)
        return self.op("rearrange", x, arrow=" ".join(p for d in self.dims(x) for p in d.split("*")))

    def renamed(self) -> int | None:
        x = self.rng.choice(self.live)
        dims = self.dims(x)
        at = self.rng.randrange(len(dims))
        size = self.b.values[x].type.shape[at]
        taken = {p for d in dims for p in d.split("*")}
        names = [n for n in NAMED if self.b.dims[n].size == size and n not in taken]
        if not names or at == 0:
            return None
        return self.op("relabel", x, arrow=" ".join([*dims[:at], self.rng.choice(names), *dims[at + 1 :]]))

    def cut(self) -> int | None:
        """Two slices of a value, one after the other again: a dim of its own, summed away."""
        x = self.rng.choice(self.live)
        dims = self.plain(x)
        if not dims or len(self.dims(x)) < 3:
            return None
        dim = self.rng.choice(dims)
        size = self.b.dims[dim].size or 1
        at = self.rng.randint(1, size - 1)
        one, other = self.op("slice", x, slices={dim: (0, at, 1)}), self.op("slice", x, slices={dim: (at, size, 1)})
        place = self.dims(x).index(dim)
        merged = self.b.op("concat", other, one, path=self.name("v"), over=self._of(other, place))
        return self.b.op("mean", merged, path=self.name("v"), over=self._of(merged, place))

    def _of(self, value: int, place: int) -> str:
        """A name for a dim that an operator made."""
        (dim,) = self.b.values[value].type.dims[place]
        name = f"made{len(self.b.dims)}"
        self.b.dims[name] = dim
        return name

    def running(self) -> int:
        x = self.rng.choice(self.live)
        return self.op("cumsum", x, over=self.rng.choice(self.dims(x)[1:] or ["batch"]))

    def dropped(self) -> int:
        return self.op("dropout", self.rng.choice(self.live), p=self.rng.choice([0.1, 0.5]))

    def chosen(self) -> int:
        x = self.rng.choice(self.live)
        same = [v for v in self.live if self.dims(v) == self.dims(x)]
        condition = self.op(self.rng.choice(["gt", "le"]), x, self.b.number(0.1))
        return self.op("where", condition, self.rng.choice(same), self.op("tanh", x))

    def attention(self) -> int | None:
        """Scores between two dims, softmax, and the weighted sum."""
        x = self.rng.choice(self.live)
        dims = self.dims(x)
        key = self.other(dims)
        if len(dims) < 3 or key is None or self.b.dims[key].size != self.b.values[x].type.shape[-2]:
            return None
        lead = dims[:-2]
        k = self.op("relabel", x, arrow=" ".join([*lead, key, dims[-1]]))
        scores = self.op("einsum", x, k, arrow=" ".join([*lead, dims[-2], key]))
        return self.op("einsum", self.op("softmax", scores, over=key), k, arrow=" ".join(dims))

    def looked_up(self) -> int:
        ids = next((v.id for v in self.b.values if v.path == "ids"), None)
        ids = self.b.data("ids", "batch seq", "i64") if ids is None else ids
        tables = [v.id for v in self.b.values if v.path.startswith("table")]
        table = self.rng.choice(tables) if tables else self.b.param("table", "vocab width")
        return self.op("embedding", ids, table)

    def one(self) -> None:
        pieces = (
            self.linear, self.linear, self.linear, self.pointwise, self.pointwise, self.pair, self.affine, self.shares,
            self.norm, self.norm, self.batch_norm, self.reduced, self.moved, self.apart, self.renamed, self.cut,
            self.running, self.dropped, self.chosen, self.attention, self.looked_up, self.scaled, self.centred,
        )  # fmt: skip
        self.keep(self.rng.choice(pieces)())

    def loss(self, x: int, path: str) -> int:
        dims = self.dims(x)
        kind = self.rng.choice(["mse_loss", "bce_with_logits", "cross_entropy", "cross_entropy", "nll_loss", "mean"])
        if kind == "mean":
            return self.b.op("mean", self.op("square", x), path=path)
        if kind in ("mse_loss", "bce_with_logits"):
            return self.b.op(kind, x, self.b.data(self.name("label"), " ".join(dims)), path=path)
        if len(dims) < 2:
            return self.b.op("sum", self.op("square", x), path=path)
        at = self.rng.randrange(1, len(dims))
        size = self.b.values[x].type.shape[at]
        label = self.b.data(self.name("label"), " ".join([*dims[:at], *dims[at + 1 :]]), "i64", size)
        options: dict[str, object] = {"ignore_index": self.rng.choice([None, None, 0])}
        if kind == "cross_entropy":
            options["label_smoothing"] = self.rng.choice([0.0, 0.0, 0.1])
        return self.b.op(kind, x, label, path=path, **options)


def model(rng: random.Random, operators: int = 8) -> Graph:
    """A model of some pieces, ending in one loss or the sum of two, with metrics without gradient."""
    maker = Maker(rng)
    b = maker.b
    for name in NAMED:
        b.dim(name, rng.choice(SIZES))
    b.dim("batch", rng.choice((4, 8, 8, 12)))
    b.dim("vocab", rng.choice((8, 12, 16)))
    maker.live.append(b.data("x", rng.choice(["batch width", "batch seq width", "batch seq hidden width"])))
    if rng.random() < 0.3:
        maker.live.append(maker.looked_up())
    for _ in range(rng.randint(2, operators)):
        maker.one()
    # Something must be trained.
    maker.live.append(maker.affine())
    loss = maker.loss(maker.live[-1], "train.loss" if rng.random() < 0.7 else "train.part")
    if b.values[loss].path == "train.part":
        loss = b.op("add", loss, maker.loss(rng.choice(maker.live), "train.rest"), path="train.loss")
    x = rng.choice(maker.live)
    best = b.op("argmax", x, path="train.best", over=maker.dims(x)[-1], section="metric")
    metric = b.op("mean", b.op("eq", best, b.number(1), path="train.right", section="metric"), path="train.metric",
                  section="metric")  # fmt: skip
    return b.graph(loss, {"metric": metric})


MESHES = (
    (2,), (3,), (4,), (2, 2), (2, 4), (4, 2), (2, 3), (2, 2, 2), (8,), (4, 4), (2, 4, 2), (4, 8), (2, 8, 4),
)  # fmt: skip


def strategy(rng: random.Random, graph: Graph) -> tuple[str, int]:
    """Rules in Shard text and a number of ranks: named axes with splits, pins and ZeRO, or device matrices."""
    ranks = rng.choice((4, 6, 8, 8, 12, 16))
    lines = _positional(rng, graph, ranks) if rng.random() < 0.3 else None
    if lines:
        return "strategy s {\n  " + "\n  ".join(lines) + "\n}\n", ranks
    sizes = rng.choice(MESHES)
    axes = "abc"[: len(sizes)]
    lines = ["mesh " + ", ".join(f"{a} = {n}" for a, n in zip(axes, sizes, strict=True))]
    free = list(zip(axes, sizes, strict=True))
    names = sorted({d.name for v in graph.values for t in v.type.dims for d in t if not d.literal})
    used: set[str] = set()
    for axis, size in free:
        fitting = [n for n in names if n not in used and graph.dims[n][0].size % size == 0]
        if fitting and rng.random() < 0.8:
            dim = rng.choice(["batch"] * ("batch" in fitting) + fitting)
            used.add(dim)
            lines.append(f"split {dim} over {axis}" + ("?" if rng.random() < 0.1 else ""))
        elif rng.random() < 0.5:
            uneven = [n for n in names if n not in used]
            if uneven:
                used.add(uneven[0])
                lines.append(f"split {uneven[0]} over {axis} uneven")
    lines += _pins(rng, graph, axes)
    if rng.random() < 0.3:
        lines.append(f"zero {rng.choice([1, 2, 3])} over {rng.choice(axes)}")
    return "strategy s {\n  " + "\n  ".join(lines) + "\n}\n", _product(sizes)


def _pins(rng: random.Random, graph: Graph, axes: str) -> list[str]:
    results = [v for v in graph.values if v.kind is Kind.RESULT and v.path.startswith("v") and v.type.dims]
    lines = []
    for value in rng.sample(results, min(len(results), rng.randint(0, 2))):
        if any(len(t) != 1 or t[0].literal for t in value.type.dims):
            continue
        names = [t[0].name for t in value.type.dims]
        at = dict(zip(rng.sample(range(len(names)), min(len(axes), len(names))), axes, strict=False))
        dims = [n + (f"@{at[i]}" if i in at and rng.random() < 0.6 else "") for i, n in enumerate(names)]
        lines.append(f"at {value.path}: [{', '.join(dims)}]")
    return lines


def _positional(rng: random.Random, graph: Graph, ranks: int) -> list[str]:
    results = [v for v in graph.values if v.kind is Kind.RESULT and v.path.startswith("v")]
    lines = []
    for value in rng.sample(results, min(len(results), rng.randint(1, 3))):
        op = graph.ops[graph.producers[value.id]]
        given = zip(op.operands, op.rule.operands, strict=True)
        operands = [d for v, d in given if graph.values[v].kind is not Kind.CONSTANT]
        if not operands or any(len(t) > 1 for d in operands for t in d):
            continue
        cuts: dict[int, int] = {}
        for f, factor in enumerate(op.rule.factors):
            room = ranks // _product(cuts.values())
            choices = [c for c in (1, 1, 2, 3, 4, 6, 8) if room % c == 0 and factor.size % c == 0]
            cuts[f] = rng.choice(choices) if factor.split is not Split.WHOLE else 1
        tuples = [_tuple([str(cuts[t[0]] if t else 1) for t in dims]) for dims in operands]
        lines.append(f"at {value.path}: shard {_tuple(tuples)}")
    return lines


def _tuple(items: list[str]) -> str:
    return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"


def _product(numbers: object) -> int:
    total = 1
    for n in numbers:  # type: ignore[attr-defined]
        total *= n
    return total
