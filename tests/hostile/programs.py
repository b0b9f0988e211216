"""A seed -> a program with imports, data, weights, checkpoints and comments, its texts and names by one of texts.py.

The same seed gives programs that differ in texts and names alone.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from tests.hostile.texts import Hostile, Plain

_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n"}


@dataclass
class Written:
    """A program: the name and text of its file, files beside it, strategies with ranks, what `--set` gives."""

    name: str
    text: str = ""
    beside: dict[str, str] = field(default_factory=dict)
    plans: list[tuple[str | None, int]] = field(default_factory=list)
    overrides: Mapping[str, str] = field(default_factory=dict)
    # Whether it holds what only a plain text may be: the name of a file with NUL, the value of a setting.
    refusable: bool = False


def file_name(text: str, number: int) -> str:
    """A name that a file may have, and no other of the program has."""
    return text.replace("/", "_")[:50] + f"_{number}"


def comment(text: str) -> str:
    """What may follow `#`; a quote makes the emitter cite it with its statement."""
    return text.replace("\n", " ").replace("\r", " ") + ' "'


def program(seed: int, of: Hostile | Plain) -> Written:
    """The program of a seed."""
    return _Writer(random.Random(seed), of).written()


class _Writer:
    def __init__(self, chosen: random.Random, of: Hostile | Plain) -> None:
        self.chosen, self.text, self.name = chosen, of.text, of.name
        self.file = Written(file_name(of.text().replace("\0", ""), 0) + ".shard")
        self.axis, self.batch, self.width, self.other = (of.name() for _ in range(4))

    def maybe(self, share: float = 0.5) -> bool:
        return self.chosen.random() < share

    def string(self, text: str) -> str:
        """A string of the language, in which NUL may not stand."""
        self.file.refusable |= "\0" in text
        return '"' + "".join(_ESCAPES.get(c, c) for c in text) + '"'

    def written(self) -> Written:
        act, norm, model = self.name(), self.name(), self.name()
        said = f"# {comment(self.text())}" if self.maybe() else ""
        parts = [
            f"# {comment(self.text())}", self._use(act), f"## {comment(self.text())}",
            f"dim {self.batch} = 8, {self.width} = 4, {self.other} = 6  {said}",
            self._inner(norm), self._model(model, act, norm), self._train(model),
        ]  # fmt: skip
        self.file.text = "\n".join(parts) + "\n"
        return self.file

    def _use(self, act: str) -> str:
        """A function of a file with a name of its own; its lines are cited in what is emitted."""
        path = file_name(self.text(), 1) + ".shard"
        kept = self.name()
        body = f"  {kept} = relu(x)  # {comment(self.text())}\n  return {kept} * 2\n"
        self.file.beside[path] = f"## {comment(self.text())}\nfn {act}(x: [n, m]) -> [n, m] {{\n{body}}}\n"
        return f"use {self.string('./' + path)}: {act}"

    def _inner(self, norm: str) -> str:
        self.weight, self.state, y = self.name(), self.name(), self.name()
        drop = " |> dropout(p = 0.25)" if self.maybe() else ""
        return f"""\
## {comment(self.text())}
model {norm} {{
  param {self.weight}: [{self.width}] = normal(0.5)
  state {self.state}: [{self.width}] = constant(0.1)
  forward(x: [{self.batch}, {self.width}]) -> [{self.batch}, {self.width}] {{
    {y} = x * {self.weight}{drop}  # {comment(self.text())}
    return {y} + {self.state}
  }}
}}
"""

    def _model(self, model: str, act: str, norm: str) -> str:
        self.first, self.many, self.out = self.name(), self.name(), self.name()
        x, h, g = self.name(), self.name(), self.name()
        text = f"""\
model {model} {{
  layer {self.many}[2] = {norm}()  # {comment(self.text())}
  layer {self.first} = {norm}()
  param {self.out}: [{self.width}, {self.other}] = normal(0.1)
  forward({x}: [{self.batch}, {self.width}]) -> [{self.batch}, {self.other}] {{
    {h} = {self.many}({x})
    {g} = {act}({self.first}({h}))  # {comment(self.text())}
    return {g} @ {self.out}
  }}
}}
"""
        return text + self._strategy()

    def _strategy(self) -> str:
        """One strategy of several sorts."""
        name, axis = self.name(), self.axis
        rules = {
            "whole": (1, ""),
            "batch": (2, f"  split {self.batch} over {axis}\n"),
            "zero": (2, f"  split {self.batch} over {axis}\n  zero 3 over {axis}\n"),
            "split": (2, f"  split {self.other} over {axis}\n"),
            "parts": (2, f"  split {self.batch} over {axis}\n  microbatches 2\n"),
            "again": (2, f"  split {self.batch} over {axis}\n  at {self.first}: recompute\n"),
            "stages": (
                2,
                f"  stages over {axis} {{\n    0: {self.many}\n    1: {self.first}\n  }}\n  microbatches 2\n"
                f'  schedule "{self.chosen.choice(["1f1b", "gpipe"])}"\n',
            ),
        }
        ranks, text = rules[self.chosen.choice(list(rules))]
        self.file.plans.append((name, ranks))
        mesh = f"  mesh {axis} = auto\n" if ranks > 1 else ""
        return f"## {comment(self.text())}\nstrategy {name} {{\n{mesh}{text}}}\n"

    def _train(self, model: str) -> str:
        x, label, y, metric = (self.name() for _ in range(4))
        fields = f"{x}: [{self.batch}, {self.width}], {label}: [{self.batch}, {self.other}]"
        further = [f"  eval = {self._source(fields)}"] if self.maybe() else []
        further += [f"  init = {self._weights()}"] if self.maybe() else []
        further += [f"  checkpoint = every(2, to = {self.string(self.text())})"] if self.maybe() else []
        further += ["  log = every(1)"] if self.maybe(0.2) else []
        if self.maybe(0.05):
            self.file.overrides, self.file.refusable = {"train.precision": self.string(self.text())}, True
        lines = [
            f"  model = {model}()", f"  data = {self._source(fields)}", f"  {y} = model({x})",
            f"  loss = mse_loss({y}, {label})  # {comment(self.text())}",
            f"  metric {metric} = mean({y})  # {comment(self.text())}", "  optimizer = sgd(lr = 0.1)",
            "  steps = 2", *further,
        ]  # fmt: skip
        return "train {\n" + "\n".join(lines) + "\n}\n"

    def _source(self, fields: str) -> str:
        kind = self.chosen.choice(["random", "csv", "numpy"])
        path = self.string(self.text() + (".npz" if kind == "numpy" else ".csv"))
        return f"random({fields}, batches = 2)" if kind == "random" else f"{kind}({path}, {fields})"

    def _weights(self) -> str:
        path = self.string(self.text())
        if self.maybe():
            return f"safetensors({path})"
        file, theirs = file_name(self.text(), 2) + ".map", self._theirs()
        rules = {self.out: theirs}
        for place in (f"{self.many}[*]", self.first):
            rules |= {f"{place}.{name}": f"{theirs}.{place}.{name}" for name in (self.weight, self.state)}
        lines = [f"{ours} = {name}" for ours, name in rules.items()]
        self.file.beside[file] = "\n".join(
            [f"# {comment(self.text())}", f"prefix {theirs}", *lines, f"ignore {theirs}"]
        )
        return f"safetensors({path}, names = {self.string('./' + file)})"

    def _theirs(self) -> str:
        """A name of a tensor in a file of weights, as a map may have it."""
        return "".join(c for c in self.text() if not c.isspace() and c not in "*?=#") + "w"
