"""What is offered at a place: the name that stands there, when it is cut off; and of each place its own kinds."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import pytest

from shardlang.diagnostics.diagnostic import Sink
from shardlang.editor.words.complete import complete
from shardlang.editor.words.cursor import place_at
from shardlang.editor.words.signatures import Offer, signature
from shardlang.sources.files import Files
from shardlang.sources.source import Source
from shardlang.syntax import ast
from shardlang.syntax.parse import parse
from tests.editor import texts
from tests.editor.cuts import counted


def _offered(source: Source, offset: int) -> dict[str, Offer]:
    return {offer.label: offer for offer in complete(texts.table(source), offset, texts.beside(source).load)}


def _here(text: str) -> dict[str, Offer]:
    """What is offered at `^`."""
    text, offset = texts.at(text)
    return _offered(Source("program.shard", text), offset)


def test_a_token_that_is_cut_out_is_offered() -> None:
    """With the rest of its line, and without; `python -m tests.editor.cuts` goes through all of them."""
    for sources, step in ((texts.files(), 23), (texts.pages(), 41)):
        found = counted(sources, step)
        assert found.all.total() > 250 and len(found.all) > 12
        assert found.share > 0.99, found.missing


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


# Places where what is offered is few: all of it, in its order.
_EXACT = [
    (_rule, "split ^ over dp", "d, ffn, batch, blocks.d, blocks.hidden, auto"),
    (_rule, "split ^", "d, ffn, batch, blocks.d, blocks.hidden, auto"),
    (_rule, "split blocks.^", "d, hidden, up.in, up.out"),
    (_rule, "split batch over ^", "dp, mp"),
    (_rule, "split batch over dp ^", "uneven, sizes"),
    (_rule, "split batch over (dp, ^", "dp, mp"),
    (_rule, "^",
     "mesh, split, shard, stages, microbatches, schedule, zero, bucket, recompute, attend, "
     "chunks, place, strict, at"),
    (_rule, "at ^", "blocks[*], y, x, blocks[*].up, blocks[*].gate, blocks[*].h, blocks[*].x, train"),
    (_rule, "at blocks[*].^: recompute", "up, gate, h, x"),
    (_rule, "at blocks[*], blocks[0].^", "up, gate, h, x"),
    (_rule, "at **.^", "up, gate, h, x, bias, weight, blocks[*], y"),
    (_rule, "at train.^", "out, loss"),
    (_rule, "at blocks[*]: ^", "split, shard, zero, recompute, attend, chunks, place"),
    (_rule, "at y: [batch@^", "dp, mp"),
    (_rule, "at y: [^", "d, ffn, batch, blocks.d, blocks.hidden, in, out, hidden"),
    (_rule, "at y: [batch@dp, ffn] +^", "dp, mp"),
    (_rule, "zero 3 over ^", "dp, mp"),
    (_rule, "stages over mp {\n    0: ^\n  }",
     "blocks[*], y, x, blocks[*].up, blocks[*].gate, blocks[*].h, blocks[*].x, train"),
    (_rule, "microbatches 2 * ^", "dp, mp, batch"),
    (_rule, "at blocks[*]: recompute ^", "gathers, all but products, auto"),
    (_rule, "at blocks[*]: recompute all ^", "but products"),
    (_rule, "at blocks[*]: place on ^", "host, device"),
    (_rule, "schedule \"^", "\"gpipe\", \"1f1b\", \"interleaved_1f1b\", \"zero_bubble\", \"zbv\", \"dualpipe_v\""),
    (_rule, "bucket gradients 25^", "B, kB, KB, MB, GB, TB, PB, KiB, MiB, GiB, TiB"),
    (_rule, "mesh pp = ^", "dp, mp, batch, auto"),
    (_set, "optimizer = ^", "sgd, adam, adamw, adagrad, ftrl, lazy_adam"),
    (_set, "optimizer = adamw(^", "lr, betas, eps, weight_decay, batch, not, true, false"),
    (_set, "optimizer = adamw(lr = 1e-3, ^", "betas, eps, weight_decay, batch, not, true, false"),
    (_set, "optimizer at ^", "blocks[*], y, x, blocks[*].up, blocks[*].gate, blocks[*].h, blocks[*].x, train"),
    (_set, "optimizer at blocks[*].^", "up, gate, h, x"),
    (_set, "freeze at ^", "blocks[*], y, x, blocks[*].up, blocks[*].gate, blocks[*].h, blocks[*].x, train"),
    (_set, "data = ^", "random, digits, mnist, numpy, csv, criteo, parallel_text, tokens"),
    (_set, "lr_schedule = ^", "constant, linear, warmup_cosine"),
    (_set, "precision = ^", "f32, f64, tf32, bf16, f16, stream, batch"),
    (_set, "compile = ^", "none, blocks, batch"),
    (_set, "checkpoint = every(100, ^", "every, keep, to, checkpoints, batch, not, true, false"),
    (_set, "evaluate = every(100, best = ^",
     "every, best, lowest, loss, patience, weights, ema, batch, not, true, false"),
    (_set, "z = model.^", "y, x, blocks"),
    (_set, "z = model.blocks[0].^", "h, x, gate, up"),
    (_set, "z = cast(out, ^", "x, dtype, f64, f32, f16, bf16, i64, i32, bool, not, true, false"),
    (_set, "data = digits(split = \"^", "\"train\", \"test\""),
    (_item, "device other {\n  ^\n}",
     "level, memory, reserved, communicator, compute, compute_f32, compute_f8, bandwidth, link, "
     "latency, profile"),
    (_item, "cluster pod {\n  ^\n}", "level, nodes, devices, device, network, latency"),
    (_item, "cluster pod {\n  device = ^\n}", "card"),
    (_item, "device other {\n  memory = 80^\n}", "B, kB, KB, MB, GB, TB, PB, KiB, MiB, GiB, TiB"),
    (_item, "use std.^", "nn, recurrent, transformer, gpt2, llama, clusters"),
    (_item, "use std.nn: ^",
     "Linear, Conv2d, Conv1d, ConvTranspose2d, ConvTranspose1d, Embedding, LayerNorm, RMSNorm, "
     "BatchNorm2d, GroupNorm, Dropout, Dropout2d, MLP, LoRALinear"),
    (_item, "model M {\n  ^\n}", "dim, layer, param, state, forward, if"),
    (_item, "model M {\n  layer x = ^\n}", "Linear, MLP, Block, Net, M"),
    (_item, "model M {\n  layer x = Block(^\n}", "d, hidden, batch, not, true, false"),
    (_item, "model M {\n  param w: [batch] = ^\n}",
     "zeros, ones, constant, normal, uniform, kaiming_uniform, xavier_uniform, given"),
    (_item, "model M {\n  param w: ^\n}", "f64, f32, f16, bf16, i64, i32, bool"),
    (_item, "model M(a: ^) {\n}", "f64, f32, f16, bf16, i64, i32, bool, dim, int, float, str"),
    (_item, "model M {\n  forward(x: [^]) {\n}", "batch"),
    (_item, "fn f(x: [n, m]) -> [^] {\n  return x\n}", "n, m, batch"),
    (_item, "^", "use, dim, model, fn, operator, source, optimizer, strategy, train, device, cluster, schedule"),
    (_item, "# ^", ""),
    (_item, "device other {\n  compute = 9^\n}",
     "FLOPS, FLOP/s, kFLOPS, kFLOP/s, KFLOPS, KFLOP/s, MFLOPS, MFLOP/s, GFLOPS, GFLOP/s, TFLOPS,"
     " TFLOP/s, PFLOPS, PFLOP/s"),
    (_item, "device other {\n  latency = 9^\n}", "ns, us, ms, s, min, h"),
    (_rule, "attend ^", "evenly, in a ring"),
    (_rule, "zero 3 over dp, ^", "keep"),
    (_rule, "stages over ^", "dp, mp"),
    (_rule, "at y: [batch@(dp, ^", "dp, mp"),
    (_rule, "at y: shard ((^", "dp, mp"),
    (_rule, "split batch over dp sizes (^", "dp, mp, batch, not, true, false"),
    (_set, "z = softmax(out, over = ^", "batch, d, ffn, not, true, false"),
    (_set, "z = dropout(out, p = ^", "batch, not, true, false"),
    (_set, "loss = cross_entropy(out, label, ignore_index = ^", "batch, not, true, false"),
    (_set, "z = half(out, by = ^", "batch, not, true, false"),
    (_set, "eval = random(^", "batches, shuffle, seed, x, label, batch, not, true, false"),
    (_set, "metric m = lr - model.^", "y, x, blocks"),
    (_item, "model M {\n  layer b[^] = Block(4)\n}", "batch, not, true, false"),
    (_item, "model M(a: dim, b: dim = ^) {\n}", "batch, a, not, true, false"),
    (_item, "strategy t {\n  mesh dp = auto\n  zero 3 over ^\n}", "dp"),
    (_item, "use std.clusters: ^",
     "a100, h100, h200, b200, gb200, l40s, a100_pod, h100_pod, h200_pod, b200_pod, gb200_nvl72, "
     "h100_24k"),
]  # fmt: skip
# Places with many: some that are offered there, and some that are not.
_PLACES = [
    (_set, "^", {"optimizer", "clip", "freeze", "metric", "lr_schedule"}, {"relu", "blocks"}),
    (_set, "metric m = ^", {"lr", "out", "mean", "label"}, {"adamw"}),
    (_set, "z = out |> ^", {"relu", "half"}, {"batch", "digits"}),
    (_set, "z = softmax(out, ^", {"over", "out"}, {"lr"}),
    (_set, "z = half(out, ^", {"by", "out"}, {"lr"}),
]


@pytest.mark.parametrize(("made", "text", "all"), _EXACT, ids=[text for _, text, _ in _EXACT])
def test_a_place_has_its_names_alone(made: Callable[[str], dict[str, Offer]], text: str, all: str) -> None:
    assert ", ".join(made(text)) == all


@pytest.mark.parametrize(("made", "text", "there", "absent"), _PLACES, ids=[text for _, text, *_ in _PLACES])
def test_a_place_has_its_names(
    made: Callable[[str], dict[str, Offer]], text: str, there: Collection[str], absent: Collection[str]
) -> None:
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


def _arguments(tree: ast.File) -> Iterator[tuple[ast.Call, ast.Expr, int | str]]:
    """The arguments of all calls of a file: the call, its argument, and its place or its name."""
    nodes = list(ast.nodes_of(tree.items))
    piped = {id(node.right) for node in nodes if isinstance(node, ast.Pipe)}
    for node in (node for node in nodes if isinstance(node, ast.Call)):
        yield from ((node, each, at + (id(node) in piped)) for at, each in enumerate(node.args))
        yield from ((node, each.value, each.name.text) for each in node.keywords)


@pytest.mark.parametrize("path", texts.EXAMPLES, ids=lambda path: path.stem)
def test_each_argument_of_an_example_is_the_one_that_its_signature_marks(path: Path) -> None:
    source = Source(str(path), path.read_text("utf-8"))
    table, seen = texts.table(source), 0
    for call, argument, place in _arguments(parse(source, Sink())):
        found = signature(table, argument.span.start)
        name = call.callee.span.text.rpartition(".")[2].partition("[")[0]
        assert found is not None, argument.span.place()
        assert found.label.startswith(f"{name}("), argument.span.place()
        assert found.active is not None, argument.span.place()
        marked, seen = found.parameters[found.active], seen + 1
        many = marked.endswith("...")  # all of them are one parameter
        assert marked.startswith(place) if isinstance(place, str) else many or found.active == place
    assert seen


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


def test_an_item_of_any_length_has_an_answer() -> None:
    for text in (
        f"dim a = {'1 + ' * 500_000}",
        "(" * 2_000_000,
        f'use "{"a" * 2_000_000}',
        f"model M {{\n{'#' * 2_000_000}",
    ):
        assert place_at(Source("program.shard", text), len(text)) is None
