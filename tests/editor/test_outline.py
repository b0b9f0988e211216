"""What a file declares, and the lines of it that can be folded."""

from __future__ import annotations

from shardlang.diagnostics.diagnostic import Sink
from shardlang.editor.words.outline import OutlineEntry, folded, outline
from shardlang.sources.source import Source
from shardlang.syntax.parse import parse
from tests.editor import texts


def _shown(entry: OutlineEntry) -> str:
    inner = f"({', '.join(map(_shown, entry.inner))})" if entry.inner else ""
    return f"{entry.role.value} {entry.name}{inner}"


_TEXT = """# One
# and two.

dim batch = 8

## A net.
model Net(d: dim) {
  if d {
    layer up = Linear(d, d)
  }

  forward(x: [batch, d]) -> [batch, d] {
    h = up(x)
    return h
  }
}

strategy s {
  mesh dp = auto
}

train {
  model = Net()
  freeze at up
}

cluster pod {
  nodes = 2
  level hall {
    ranks = 8
  }
}
"""


def test_an_outline_has_all_that_is_declared() -> None:
    found = outline(parse(Source("program.shard", _TEXT), Sink()))
    assert list(map(_shown, found)) == [
        "dim batch", "model Net(layer up, function forward(value h))", "strategy s(axis dp)",
        "setting train(setting model, setting freeze)", "cluster pod(setting nodes, level hall(setting ranks))",
    ]  # fmt: skip
    net, train = found[1], found[3]
    assert net.detail == "(d: dim)" and net.inner[0].detail == "Linear(d, d)"
    assert [entry.detail for entry in train.inner] == ["Net()", "at up"]
    assert net.place.text == "Net" and net.inner[1].place.text == "forward" and train.place.text == "train"


def test_blocks_and_comments_are_folded() -> None:
    found = [(fold.first, fold.last, fold.comment) for fold in folded(Source("program.shard", _TEXT))]
    assert found == [
        (1, 2, True), (7, 15, False), (8, 9, False), (12, 14, False), (18, 19, False), (22, 24, False), (27, 31, False),
        (29, 30, False),
    ]  # fmt: skip


def test_entries_lie_in_those_around_them() -> None:
    def held(entry: OutlineEntry) -> None:
        for inner in entry.inner:
            assert entry.span.start <= inner.span.start <= inner.place.start < inner.place.end <= inner.span.end
            assert inner.span.end <= entry.span.end
            held(inner)

    for source in texts.files():
        for entry in outline(parse(source, Sink())):
            held(entry)


def test_each_prefix_has_an_outline() -> None:
    text = texts.TRANSFORMER.read_text("utf-8")
    for end in range(0, len(text), 17):
        source = Source("program.shard", text[:end])
        outline(parse(source, Sink())), folded(source)
