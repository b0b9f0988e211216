"""What is offered at a place: the name that stands there, when it is cut off; and of each place its own kinds."""

from __future__ import annotations

import re
from collections.abc import Collection

import pytest

from shardlang.diagnostics.diagnostic import Sink
from shardlang.editor.words.complete import complete
from shardlang.editor.words.signatures import Offer, signature
from shardlang.sources.files import Files
from shardlang.sources.source import Source
from shardlang.syntax.parse import parse
from tests.editor import texts

_NAME = re.compile(r"\w+")


def _offered(source: Source, offset: int) -> dict[str, Offer]:
    return {offer.label: offer for offer in complete(texts.table(source), offset, texts.beside(source).load)}


def _here(text: str) -> dict[str, Offer]:
    """What is offered at `^`."""
    text, offset = texts.at(text)
    return _offered(Source("program.shard", text), offset)


def _cut(source: Source, step: int) -> tuple[int, list[str]]:
    """How many names of a text were cut to their first letter, and those that were not offered then."""
    found = [use for use in texts.table(source).uses if not use.declares and _NAME.fullmatch(use.span.text)]
    missing = []
    for use in found[::step]:
        start, end = use.span.start, use.span.end
        offers = _offered(Source(source.name, source.text[: start + 1] + source.text[end:]), start + 1)
        if use.span.text not in {match[0] for label in offers if (match := _NAME.match(label))}:
            missing.append(f"{use.span.place().rpartition('/')[2]} {use.span.text}")
    return len(found[::step]), missing


def test_a_name_that_is_cut_off_is_offered() -> None:
    """Names that are declared elsewhere; `_` stands for a value that gets no name."""
    examples = [source for source in texts.files() if "examples" in source.name]
    cut = [_cut(source, 3) for source in examples]
    assert sum(count for count, _ in cut) > 350
    assert [place for _, missing in cut for place in missing if not place.endswith(" _")] == []


def test_few_names_of_the_library_are_not_offered() -> None:
    """Names of two branches, of which the first is cut: the second declares them then, further down."""
    cut = [_cut(source, 7) for source in texts.files() if "stdlib" in source.name]
    total, missing = sum(count for count, _ in cut), [place for _, missing in cut for place in missing]
    assert len(missing) <= 0.03 * total


_HEAD = """use std.nn: Linear, MLP

dim batch = 8

fn half(x: [...], by: float = 0.5) -> [...] {
  return by * x
}

## A block.
model Block(d: dim, hidden: dim = 16) {
  layer up = Linear(d, hidden)
  param gate: [d] = ones()

  forward(x: [batch, d]) -> [batch, hidden] {
    h = up(x * gate)
    return h
  }
}

model Net(d: dim = 4, ffn: dim = 8) {
  layer blocks[2] = Block(d)

  forward(x: [batch, d]) -> [batch, ffn] {
    y = x |> blocks
    return y
  }
}

device card {
  memory = 80GB
}

strategy s {
  mesh dp = auto, mp = 2
  @
}

train {
  model = Net()
  data = random(x: [batch, 4], label: [batch, 4])
  out = model(x)
  loss = mean(out)
  epochs = 1
  $
}
"""


def _rule(text: str) -> dict[str, Offer]:
    return _here(_HEAD.replace("@", text).replace("$", ""))


def _set(text: str) -> dict[str, Offer]:
    return _here(_HEAD.replace("  @\n", "").replace("$", text))


def _item(text: str) -> dict[str, Offer]:
    return _here(_HEAD.replace("  @\n", "").replace("  $\n", "") + text)


_PLACES = [
    (_rule, "split ^ over dp", {"batch", "ffn", "d", "auto", "blocks.hidden"}, {"dp", "relu", "x", "blocks"}),
    (_rule, "split ^", {"batch", "ffn", "d"}, {"dp", "relu"}),
    (_rule, "split blocks.^", {"d", "hidden"}, {"batch", "gate"}),
    (_rule, "split batch over ^", {"dp", "mp"}, {"batch", "uneven"}),
    (_rule, "split batch over dp ^", {"uneven", "sizes"}, {"dp", "split"}),
    (_rule, "split batch over (dp, ^", {"dp", "mp"}, {"batch"}),
    (_rule, "^", {"split", "mesh", "zero", "at", "recompute", "strict"}, {"train", "model", "layer", "relu", "batch"}),
    (_rule, "at ^", {"blocks[*]", "blocks[*].up", "y", "train"}, {"dp", "relu", "batch"}),
    (_rule, "at blocks[*].^: recompute", {"up", "gate", "h"}, {"blocks[*]", "y"}),
    (_rule, "at blocks[*], blocks[0].^", {"up", "gate"}, {"y"}),
    (_rule, "at **.^", {"weight", "gate", "up"}, {"dp"}),
    (_rule, "at train.^", {"out"}, {"y"}),
    (_rule, "at blocks[*]: ^", {"recompute", "split", "place", "zero"}, {"mesh", "at"}),
    (_rule, "at y: [batch@^", {"dp", "mp"}, {"batch"}),
    (_rule, "at y: [^", {"batch", "ffn"}, {"dp"}),
    (_rule, "at y: [batch@dp, ffn] +^", {"dp", "mp"}, {"batch"}),
    (_rule, "zero 3 over ^", {"dp", "mp"}, {"batch"}),
    (_rule, "stages over mp {\n    0: ^\n  }", {"blocks[*]"}, {"dp"}),
    (_rule, "microbatches 2 * ^", {"dp", "batch"}, {"relu"}),
    (_rule, "at blocks[*]: recompute ^", {"gathers", "all but products"}, {"dp"}),
    (_rule, "at blocks[*]: recompute all ^", {"but products"}, {"gathers"}),
    (_rule, "at blocks[*]: place on ^", {"host", "device"}, {"dp"}),
    (_rule, 'schedule "^', {'"1f1b"', '"zbv"'}, {"dp"}),
    (_rule, "bucket gradients 25^", {"MB", "GiB"}, {"dp"}),
    (_rule, "mesh pp = ^", {"auto", "batch"}, {"relu"}),
    (_set, "^", {"optimizer", "clip", "freeze", "metric", "lr_schedule"}, {"relu", "blocks"}),
    (_set, "optimizer = ^", {"adamw", "sgd"}, {"relu", "digits"}),
    (_set, "optimizer = adamw(^", {"lr", "weight_decay", "betas"}, {"momentum"}),
    (_set, "optimizer = adamw(lr = 1e-3, ^", {"weight_decay"}, {"lr"}),
    (_set, "optimizer at ^", {"blocks[*]", "blocks[*].gate"}, {"adamw", "batch"}),
    (_set, "optimizer at blocks[*].^", {"gate"}, {"adamw", "batch"}),
    (_set, "freeze at ^", {"blocks[*]"}, {"adamw"}),
    (_set, "data = ^", {"digits", "mnist", "random"}, {"adamw", "relu"}),
    (_set, "lr_schedule = ^", {"warmup_cosine"}, {"adamw"}),
    (_set, "precision = ^", {"bf16", "tf32"}, {"adamw"}),
    (_set, "compile = ^", {"blocks", "none"}, {"bf16"}),
    (_set, "checkpoint = every(100, ^", {"keep", "to"}, {"adamw"}),
    (_set, "evaluate = every(100, best = ^", {"lowest"}, {"adamw"}),
    (_set, "metric m = ^", {"lr", "out", "mean", "label"}, {"adamw"}),
    (_set, "z = model.^", {"y", "blocks"}, {"out", "relu"}),
    (_set, "z = model.blocks[0].^", {"gate", "h", "up"}, {"y"}),
    (_set, "z = out |> ^", {"relu", "half"}, {"batch", "digits"}),
    (_set, "z = softmax(out, ^", {"over", "out"}, {"lr"}),
    (_set, "z = half(out, ^", {"by", "out"}, {"lr"}),
    (_set, "z = cast(out, ^", {"bf16", "i64"}, {"over"}),
    (_set, 'data = digits(split = "^', {'"train"', '"test"'}, {"out"}),
    (_item, "device other {\n  ^\n}", {"memory", "bandwidth"}, {"nodes", "relu"}),
    (_item, "cluster pod {\n  ^\n}", {"nodes", "device"}, {"memory"}),
    (_item, "cluster pod {\n  device = ^\n}", {"card"}, {"Net", "batch"}),
    (_item, "device other {\n  memory = 80^\n}", {"GB", "TFLOP/s"}, {"card"}),
    (_item, "use std.^", {"nn", "transformer"}, {"Linear", "batch"}),
    (_item, "use std.nn: ^", {"LayerNorm", "Embedding"}, {"Decoder", "batch"}),
    (_item, "model M {\n  ^\n}", {"layer", "param", "forward", "dim"}, {"split", "train"}),
    (_item, "model M {\n  layer x = ^\n}", {"Linear", "Net", "Block"}, {"relu", "half", "card"}),
    (_item, "model M {\n  layer x = Block(^\n}", {"d", "hidden", "batch"}, {"x"}),
    (_item, "model M {\n  param w: [batch] = ^\n}", {"zeros", "normal"}, {"relu", "Net"}),
    (_item, "model M {\n  param w: ^\n}", {"f32", "i64"}, {"dim", "relu"}),
    (_item, "model M(a: ^) {\n}", {"dim", "float", "f32"}, {"relu"}),
    (_item, "model M {\n  forward(x: [^]) {\n}", {"batch"}, {"relu", "half"}),
    (_item, "fn f(x: [n, m]) -> [^] {\n  return x\n}", {"n", "m", "batch"}, {"relu"}),
    (_item, "^", {"model", "strategy", "train", "use"}, {"layer", "split"}),
    (_item, "# ^", set(), {"model"}),
]


@pytest.mark.parametrize(("made", "text", "there", "absent"), _PLACES, ids=[text for _, text, *_ in _PLACES])
def test_a_place_has_its_names(made: object, text: str, there: Collection[str], absent: Collection[str]) -> None:
    assert callable(made)
    found = made(text)
    assert sorted({*there} - found.keys()) == []
    assert sorted({*absent} & found.keys()) == []


def test_what_an_offer_says() -> None:
    lr = _set("optimizer = adamw(^")["weight_decay"]
    assert (lr.kind, lr.detail, lr.insert) == ("argument", "weight_decay = 0.01", "weight_decay = ")
    block = _item("model M {\n  layer x = ^\n}")["Block"]
    assert (block.kind, block.detail, block.doc) == ("model", "Block(d: dim, hidden: dim = 16)", "A block.")
    gate = _set("z = model.blocks[0].^")["gate"]
    assert (gate.kind, gate.detail) == ("parameter", "[d]")
    clip = _set("^")["clip"]
    assert clip.insert == "clip = " and clip.doc.startswith("The largest norm")
    split = _rule("^")["split"]
    assert split.kind == "keyword" and "over axes" in split.doc
    assert _item("device other {\n  ^\n}")["memory"].detail == "80GB"


def test_snippets_are_programs() -> None:
    """Their places filled in as they stand, they have no mistake of syntax."""
    files = Files()
    source = Source("program.shard", "")
    snippets = [offer for offer in complete(texts.table(source), 0, files.load) if offer.snippet]
    assert sorted(offer.label for offer in snippets) == ["strategy", "train"]
    for offer in snippets:
        sink = Sink()
        parse(Source("s.shard", re.sub(r"\$\{\d+:([^}]*)\}", r"\1", offer.insert) + "\n"), sink)
        assert not sink.found


# --- calls -------------------------------------------------------------------------

_CALLS = [
    (_HEAD.replace("$", "z = half(^"), "half(x: [...], by: float = 0.5)", 0),
    (_HEAD.replace("$", "z = half(out, ^"), "half(x: [...], by: float = 0.5)", 1),
    (_HEAD.replace("$", "z = half(by = 2, ^"), "half(x: [...], by: float = 0.5)", 0),
    (_HEAD.replace("$", "z = half(out, by = ^"), "half(x: [...], by: float = 0.5)", 1),
    (_HEAD.replace("$", "z = out |> half(^"), "half(x: [...], by: float = 0.5)", 1),
    (_HEAD.replace("$", "z = half(mean(out), ^"), "half(x: [...], by: float = 0.5)", 1),
    (_HEAD.replace("$", "z = half(mean(^"), "mean(x, over: dims = none)", 0),
    (_HEAD.replace("$", "z = half(out, 1, ^"), "half(x: [...], by: float = 0.5)", None),
    (_HEAD.replace("$", "optimizer = sgd(lr = ^"), "sgd(lr: number, momentum = 0, ", 0),
    (_HEAD.replace("$", "z = model(^"), "model(x: [batch, d])", 0),
    (_HEAD + "model M {\n  layer b = Block(4, ^\n}", "Block(d: dim, hidden: dim = 16)", 1),
    (_HEAD + "model M {\n  param w: [batch] = uniform(^\n}", "uniform(low = 0, high = 1)", 0),
]


@pytest.mark.parametrize(("text", "label", "active"), _CALLS)
def test_the_call_around_a_place(text: str, label: str, active: int | None) -> None:
    text, offset = texts.at(text.replace("  @\n", "").replace("$", ""))
    found = signature(texts.program(text), offset)
    assert found is not None
    assert found.label.startswith(label) and found.active == active
    assert all(parameter in found.label for parameter in found.parameters)


def test_where_no_call_is_there_is_no_signature() -> None:
    for text in ("dim a = (^", "dim a = 2^", "# f(^", "model M(a: ^"):
        text, offset = texts.at(text)
        assert signature(texts.program(text), offset) is None


def test_each_prefix_has_offers() -> None:
    text = texts.TRANSFORMER.read_text("utf-8")
    files = Files()
    for end in range(0, len(text), 17):
        table = texts.program(text[:end])
        complete(table, end, files.load), signature(table, end)
