"""Programs in text, checked: what the tests of this folder start from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from textwrap import dedent

from shardlang.check.check import check
from shardlang.check.program import CheckedProgram
from shardlang.diagnostics.diagnostic import Diagnostic, Sink
from shardlang.graph.graph import Graph, GraphValue, Op
from shardlang.sources.files import MISSING, Files, Unreadable
from shardlang.sources.source import Source
from shardlang.syntax.parse import parse

TRAIN = """
train {
  model = Net()
  data = random(x: [batch, d], label: [batch, d], batches = 4)
  loss = mse_loss(model(x), label)
  optimizer = sgd(lr = 0.1)
  epochs = 1
}
"""


@dataclass(frozen=True)
class Checked:
    program: CheckedProgram | None
    found: tuple[Diagnostic, ...]

    @property
    def graph(self) -> Graph:
        assert self.program is not None, [d.message for d in self.found]
        return self.program.graph

    @property
    def messages(self) -> list[str]:
        return [f"{d.code}: {d.message}" for d in self.found]

    def value(self, path: str) -> GraphValue:
        """The one value at an address."""
        (at,) = self.graph.addresses[path]
        return self.graph.values[at]

    def op(self, path: str) -> Op:
        """The operator that computes the value at an address."""
        return self.graph.ops[self.graph.producers[self.value(path).id]]


def checked(text: str, overrides: Mapping[str, str] | None = None, files: Mapping[str, str] | None = None) -> Checked:
    """The program of `text`, which may import `files` by name."""
    sink, library = Sink(), Files()
    source = Source("program.shard", dedent(text))

    def load(importing: str, path: str, is_file: bool) -> Source | Unreadable:
        if not is_file:
            return library.load(importing, path, is_file)
        text = {"program.shard": source.text, **(files or {})}.get(path.removeprefix("./"))
        return MISSING if text is None else Source(path.removeprefix("./"), dedent(text))

    program = check(parse(source, sink), sink, load, overrides or {})
    return Checked(None if sink.failed else program, tuple(sink.found))


def net(body: str, members: str = "param w: [d] = ones()", rest: str = TRAIN, dims: str = "batch = 8, d = 16") -> str:
    """A file with one model `Net` of these members and statements."""
    lines = "\n".join(f"    {line.strip()}" for line in body.strip().splitlines())
    inner = "\n".join(f"  {line.strip()}" for line in members.strip().splitlines())
    head = f"use std.nn: Linear, Embedding, Conv2d\n\ndim {dims}\n\nmodel Net {{\n{inner}\n\n"
    return f"{head}  forward(x: [batch, d]) -> [batch, d] {{\n{lines}\n  }}\n}}\n{rest}"
