"""A generated program but its strategies: data, a model that grows piece by piece, a loss, settings of training."""

from __future__ import annotations

import math
import random
import re
from dataclasses import dataclass

from tests.generated import images, pointwise, products
from tests.generated.figures import Figures
from tests.generated.layers import ALL, LAYERED, grow, keep, settle
from tests.generated.memory import RESERVED, card
from tests.generated.scope import FLOAT, POOL, RUN, WHOLE, Scope, Shared, Value, beside, typed

SIZES = (2, 4, 4, 6, 8, 8, 12, 3, 5)
# What changes the rows of a table that are looked up; away from 0, where an accumulator is nothing but rounding.
ROWS = {
    "adagrad": ["lr = 0.05, eps = 1e-3, initial_accumulator = 0.1", "lr = 0.1, initial_accumulator = 1.0"],
    "ftrl": ["lr = 0.1, initial_accumulator = 0.5", "lr = 0.1, l2 = 0.1, lr_power = -0.3", "lr = 0.1, l1 = 0.001"],
    "lazy_adam": ["lr = 1e-2, eps = 1e-3", "lr = 1e-2, betas = (0.8, 0.9), eps = 1e-4"],
}  # fmt: skip
DEEP = 0.08  # of all programs
EDGED = 0.08  # of all programs whose output has a batch
ON_CARDS = 0.25  # of all programs
HIDDEN = 0.4  # of all programs, where a value has the dims of an attention
AS_MADE = 0.35  # of programs that may be cut into stages
HEADED = 0.6  # of programs that may be cut into stages, where a table fits
LAST = "fn last(x: [..., k]) -> [...] {\n  return mean(x, over = k)\n}"


@dataclass(frozen=True)
class Written:
    """`head` is all above the strategies, `tail` the `train` block. features: what the program is made of.

    apart: it may be run in microbatches. deep: it also has layers for several stages on each rank.
    """

    head: str
    tail: str
    features: frozenset[str]
    apart: bool = False
    deep: bool = False

    def text(self, strategies: str, precision: str = "f32") -> str:
        """The source; `precision` as it is written in `train`. Casts are to f32, or f64 in a run in that."""
        text = f"{self.head}\n{strategies}\n{self.tail}".replace(f"precision = {RUN}", f"precision = {precision}")
        return text.replace(RUN, "f64" if precision == "f64" else "f32")


def write(rng: random.Random) -> Written:
    """A program from the numbers that `rng` gives."""
    shared = Shared(rng)
    shared.sizes = {name: rng.choice(SIZES) for name in POOL}
    if rng.random() < 0.6:
        shared.sizes["key"] = shared.sizes[rng.choice(["seq", "width"])]
    shared.sizes |= {"batch": rng.choice((4, 8, 8, 12, 6)), "vocab": rng.choice((8, 12, 16, 10))}
    shared.sizes |= {c: rng.choice((2, 4, 6)) for c in images.CHANNELS}
    shared.makers["last"] = "last"
    kind = rng.random()
    shared.apart, shared.deep = kind < 0.4, kind < DEEP
    root = Scope(shared)
    fields = _inputs(root)
    _body(root)
    return _Train(root, fields).write()


def _inputs(s: Scope) -> dict[str, str]:
    """The model's arguments: field -> its type as written in the source."""
    rng, fields = s.rng, {}
    kind = rng.choices(["flat", "seq", "deep", "image", "ids", "both"], [2, 5, 2, 3, 3, 2])[0]
    if kind in ("flat", "seq", "deep", "both"):
        dims = {"flat": ("batch", "width"), "deep": ("batch", "seq", "hidden", "width")}.get(
            kind, ("batch", "seq", "width")
        )
        s.live.append(Value("x", tuple((d,) for d in dims)))
        fields["x"] = typed(s.live[-1].dims)
    if kind in ("ids", "both"):
        s.live.append(Value("ids", (("batch",), ("seq",)), WHOLE, 1.0, bound=s.size("vocab")))
        fields["ids"] = "i64[batch, seq] < vocab"
    if kind == "image":
        height, width = rng.choice([(4, 4), (6, 5), (5, 4), (8, 4)])
        dims = (("batch",), ("chan",), (s.made("height", height),), (s.made("width", width),))
        s.live.append(Value("x", dims))
        fields["x"] = f"[batch, chan, {height}, {width}]"
        if height == width:
            fields["x"] = f"[batch, chan, {height}, {width + 1}]"
            s.sizes[dims[3][0]] = width + 1
    s.feature(f"input {kind}")
    if rng.random() < 0.4 and kind != "image":
        dims = s.live[0].dims
        dims = dims if rng.random() < 0.5 else dims[: rng.randint(1, len(dims))]
        s.live.append(Value("n", dims, WHOLE, 1.0, bound=rng.randint(2, 7)))
        fields["n"] = f"i64{typed(dims)} < {s.live[-1].bound}"
    return fields


def _body(s: Scope) -> None:
    """Pieces, first those that lead from the inputs to floating values with named dims."""
    if s.live[0].name == "x" and not s.live[0].named:
        for _ in range(s.rng.randint(3, 8)):
            keep(s, s.rng.choice(images.PIECES)(s))
        keep(s, images.out_of_images(s))
    elif any(v.name == "ids" for v in s.live):
        keep(s, products.looked_up(s))
    elif s.rng.random() < 0.6:  # a gradient through most of what follows
        keep(s, s.rng.choice((products.linear, products.matrix, pointwise.affine))(s))
    # Stages need layers.
    pieces = (*ALL, *LAYERED * 4) if s.shared.apart and s.rng.random() < 0.6 else ALL
    for _ in range(s.rng.randint(2, 8)):
        grow(s, pieces)
    if s.shared.deep:
        s.feature("deep")
        wanted = s.rng.choice((4, 4, 4, 6))
        for _ in range(12):
            if sum(m.startswith("layer ") for m in s.members) < wanted:
                grow(s, LAYERED)
    settle(s)
    if beside(s.rng).random() < HIDDEN:
        keep(s, products.hidden(s))
    if s.shared.apart and beside(s.rng).random() < AS_MADE:
        keep(s, products.last_as_made(s))
    if s.shared.apart and beside(s.rng).random() < HEADED:
        keep(s, products.last_head(s))
    if not s.params and not any("Linear" in m or "Conv" in m for m in s.members):
        x = s.pick()
        assert x is not None
        keep(s, s.let(f"{x.name} * {s.param(x.dims[-1:], again=0.0)}", x.dims, FLOAT, 2 * x.size, x))


class _Train:
    """The `train` block, and the model's declaration once it is known what is returned."""

    def __init__(self, root: Scope, fields: dict[str, str]) -> None:
        self.s, self.fields, self.rng = root, fields, root.rng
        self.inputs = list(fields)
        self.lines: list[str] = []

    def write(self) -> Written:
        s, rng = self.s, self.rng
        unread = [v for v in s.live if v.kind == FLOAT and not v.uses and v.name not in self.inputs]
        out = unread[-1] if unread else self._out()
        # What nothing reads is read by the loss, at the top.
        terms = [f"{rng.choice(['0.1', '0.5', '1e-2'])} * mean(square(model.{v.name}))" for v in unread if v is not out]
        for name in [n for n in self.inputs if n in {v.name for v in s.unused()}]:
            terms += [] if self.fields[name].startswith("i64") else [f"mean(square({name})) * 0.1"]
        values = [f"model.{v.name}" for v in s.floats() if v.dims and v.name not in self.inputs]
        self.lines += Figures(s, out, self.fields).write(terms, values[-3:])
        self._settings()
        self._edge(out)
        return self._written(out)

    def _out(self) -> Value:
        """Where everything has been read: the latest once more."""
        s = self.s
        found = [v for v in s.floats() if v.name not in self.inputs] or s.floats()
        value = s.let(f"tanh({found[-1].name}) * 2.0", found[-1].dims, FLOAT, 2.0, found[-1])
        s.live.append(value)
        return value

    def _frozen(self) -> None:
        """Some of the root's parameters and layers, not all, are not trained."""
        if some := self._some():
            self.s.feature("freeze")
            self.lines.append(f"freeze at {some}")

    def _some(self) -> str:
        """Some of the root's parameters and layers, not all; "" where there are too few."""
        own = (m.split() for m in self.s.members if m.startswith("param ") or "Linear" in m or "Conv" in m)
        names = [words[1].partition("[")[0].rstrip(":") for words in own]
        return ", ".join(self.rng.sample(names, self.rng.randint(1, len(names) - 1))) if len(names) > 1 else ""

    def _losses(self) -> None:
        """A second loss of the same value, which some parameters are trained by alone."""
        at = next(n for n, line in enumerate(self.lines) if line.startswith("loss = "))
        if some := self._some():
            self.s.feature("several losses")
            self.lines.insert(at + 1, f"loss at {some} = 0.5 * ({self.lines[at].removeprefix('loss = ')})")

    def _edge(self, out: Value) -> None:
        """A term of the loss that is finite, with a gradient of nan where a number of the data is small: in some steps.

        Drawn apart from the rest, so that a seed's program is otherwise what it was without this.
        """
        rng = random.Random("\n".join(self.lines))
        if rng.random() >= EDGED or not out.named or out.dims[:1] != (("batch",),):
            return
        self.s.feature("gradient of nan")
        self.fields["odd"] = typed(out.dims)
        small = rng.choice([0.5, 1.0, 2.0]) / math.prod(self.s.length(term) for term in out.dims)
        at = next(n for n, line in enumerate(self.lines) if line.startswith("loss = "))
        self.lines[at] += f" + 0.1 * mean(sqrt(relu(odd - {small:.4f}) * (square(out) + 0.001)))"
        if rng.random() < 0.7:
            self.lines.append("not_finite = skip")

    def _settings(self) -> None:
        rng, s = self.rng, self.s
        kinds = {
            "sgd": ["lr = 0.05", "lr = 0.1, momentum = 0.9", "lr = 0.1, momentum = 0.5, weight_decay = 0.01",
                    "lr = 0.05, momentum = 0.9, nesterov = true", "lr = 0.1, momentum = 0.9, dampening = 0.1"],
            # With eps = 1e-8 Adam takes whole steps along gradients that are nothing but rounding.
            "adam": ["lr = 1e-2, eps = 1e-3", "lr = 1e-2, betas = (0.8, 0.9), eps = 1e-4, weight_decay = 0.1"],
            "adamw": ["lr = 1e-2, eps = 1e-4", "lr = 1e-2, weight_decay = 0.2, eps = 1e-3"],
        }  # fmt: skip
        # Not ftrl for all: it forgets what parameters began as, and what they then give is hardly more than rounding.
        kind = rng.choice([*kinds, *kinds, rng.choice(["adagrad", "lazy_adam"])])
        kinds |= ROWS
        s.feature(f"optimizer {kind}")
        self.lines.append(f"optimizer = {kind}({rng.choice(kinds[kind])})")
        if s.tables and rng.random() < 0.8:
            s.feature("optimizer of rows")
            for table in rng.sample(sorted(s.tables), rng.randint(1, min(2, len(s.tables)))):
                other = rng.choice([k for k in (*ROWS, "sgd") if k != kind])
                s.feature(f"optimizer {other}")
                self.lines.append(f"optimizer at {table} = {other}({kinds[other][0]})")
        elif s.params and rng.random() < 0.3:
            other = rng.choice([k for k in kinds if k not in (kind, "ftrl")])
            s.feature("several optimizers")
            selected = ", ".join(rng.sample(sorted(s.params), min(len(s.params), rng.randint(1, 2))))
            self.lines.append(f"optimizer at {selected} = {other}({rng.choice(kinds[other])})")
        elif rng.random() < 0.2:
            self._frozen()
        if rng.random() < 0.12 and not self.lines[-1].startswith("freeze"):
            self._losses()
        if rng.random() < 0.3:
            s.feature("clip")
            self.lines.append(f"clip = {rng.choice(['0.01', '0.5', '1.0', '100.0'])}")
        if rng.random() < 0.15:
            schedule = rng.choice(["warmup_cosine(warmup = 2, min = 1e-4)", "linear(warmup = 1, min = 1e-3)"])
            self.lines.append(f"lr_schedule = {schedule}")
        if rng.random() < 0.3:
            self.lines.append(f"seed = {rng.randint(1, 99)}")
        self.lines += [f"precision = {RUN}", "steps = 3"]

    def _source(self, batches: int, more: str = "") -> str:
        used = "\n".join([*self.s.lines, *self.lines])
        given = ", ".join(f"{name}: {kind}" for name, kind in self.fields.items() if re.search(rf"\b{name}\b", used))
        return f"random({given}, batches = {batches}{more})"

    def _written(self, out: Value) -> Written:
        s, rng = self.s, self.rng
        train = ["train {", "  model = Net()", f"  data = {self._source(2)}"]
        if rng.random() < 0.6:
            s.feature("eval")
            train.append(f"  eval = {self._source(rng.choice([1, 2]), ', seed = 3')}")
        calls = [n for n in self.inputs if re.search(rf"\b{n}\b", "\n".join([*s.lines, out.name]))]
        train += [f"  out = model({', '.join(calls)})", *(f"  {line}" for line in self.lines), "}", ""]
        kinds = {n: self.fields[n].partition(" <")[0] for n in calls}
        model = ["model Net {", *(f"  {m}" for m in s.members), "",
                 f"  forward({', '.join(f'{n}: {k}' for n, k in kinds.items())}) {{",
                 *(f"    {line}" for line in s.lines), f"    return {out.name}", "  }", "}"]  # fmt: skip
        head, tail = self._head("\n".join(model), "\n".join(train)), "\n".join(train)
        return Written(head, tail, frozenset(s.shared.features), s.shared.apart, s.shared.deep)

    def _head(self, model: str, train: str) -> str:
        """Imports, the dims that something names, functions and models, in an order in which none is missing."""
        shared = self.s.shared
        everything = "\n".join([*shared.items, model, train])
        items = [*([LAST] if "|> last" in everything else []), *shared.items, model]
        used = [n for n in shared.sizes if re.search(rf"\b{n}\b", everything)]
        rng = beside(self.rng)
        if rng.random() < ON_CARDS:
            shared.features.add(RESERVED)
            items.append(card(rng))
        dims = "dim " + ", ".join(f"{n} = {shared.sizes[n]}" for n in used)
        imports = [f"use std.nn: {', '.join(sorted(shared.imports))}"] if shared.imports else []
        return "\n\n".join([*imports, dims, *items]) + "\n"
