"""Spans -> places that an emitted program cites: `quickstart.shard:14  h = x @ w`."""

from __future__ import annotations

import posixpath
import re

from shardlang.frozen.records import dataclass
from shardlang.graph.graph import Graph, Op
from shardlang.sources.source import Source, Span
from shardlang.step.blocks.call import relative

_COMMENT = re.compile(r'\s*#[^"]*$')


@dataclass(frozen=True, slots=True)
class Citation:
    """One statement of the user: lines with equal places. `layer`: "" outside of layers."""

    file: str
    line: int
    text: str
    layer: str
    call: int

    @property
    def title(self) -> str:
        layer = f"   ({self.layer})" if self.layer else ""
        call = f", call {self.call + 1}" if self.call else ""
        return f"{self.file}:{self.line}  {self.text}{layer}{call}"


def file_text(source: Source, root: Source) -> str:
    """How the program calls a file: `std.nn`, or its path from the folder of the root file."""
    if source.library:
        return source.name
    if source is root:
        return posixpath.basename(root.name)
    folder = posixpath.dirname(root.name)
    if posixpath.isabs(source.name) != posixpath.isabs(root.name):
        return posixpath.basename(source.name)
    return posixpath.relpath(source.name, folder) if folder else source.name


def place(op: Op, graph: Graph, root: Source, around: str = "") -> Citation:
    """Where an operator stands; its layer from the one that is `around`."""
    # The path of a cast is that of what it casts, which may be of another layer than its reader.
    layer = graph.calls[op.within].path if op.implied and op.within >= 0 else _layer(op.path)
    # In the text of a block, which stands for many calls, the number of one says nothing.
    return cited(op.span, root, "" if layer == around else relative(layer, around), 0 if around else op.call)


def cited(span: Span, root: Source, layer: str = "", call: int = 0) -> Citation:
    """The statement of a span."""
    number = span.line
    line = span.source.line(number)
    text = (_COMMENT.sub("", line) if "#" in line else line).strip()
    return Citation(file_text(span.source, root), number, text, layer, call)


def _layer(path: str) -> str:
    """The layer of an operator's path: `up` of `up.y`; nothing for statements outside of layers."""
    layer = path.rpartition(".")[0]
    return "" if layer == "train" else layer
