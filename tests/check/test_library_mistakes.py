"""A mistake inside the standard library is shown with the user's own lines; one of many layers is told once."""

from __future__ import annotations

from textwrap import dedent

from shardlang.diagnostics.diagnostic import Diagnostic, Sink
from shardlang.diagnostics.lines import concise
from shardlang.diagnostics.runs import in_runs
from shardlang.folds.planned import plan
from shardlang.sources.source import Source, Span
from tests.check.checked import checked

PROGRAM = """
use std.transformer: Encoder, TokenEmbedding
dim batch = 4, seq = 8, d = 160

model Net(heads: dim = 4, places: dim = 8) {
  layer embed = TokenEmbedding(100, d, places)
  layer encoder = Encoder(6, d, heads, 64)

  forward(x: i64[batch, seq]) -> [batch, seq, d] {
    return embed(x) |> encoder
  }
}

train {
  model = Net()
  data = random(x: i64[batch, seq] < 90, batches = 3)
  loss = mean(model(x))
  optimizer = sgd(lr = 0.1)
  epochs = 1
}
"""


def shown(diagnostic: Diagnostic) -> list[tuple[str, str]]:
    return [(label.span.text, label.text) for label in diagnostic.labels]


def only(found: tuple[Diagnostic, ...] | list[Diagnostic]) -> Diagnostic:
    (one,) = in_runs(found)
    assert one.primary is not None and one.primary.span.source.library
    return one


def test_sizes_that_do_not_fit_name_the_layer_that_has_them() -> None:
    found = only(checked(PROGRAM.replace("heads: dim = 4", "heads: dim = 3")).found)
    assert found.code == "SH212" and found.message.endswith("is 53.3333")
    assert found.primary is not None and found.primary.text == "`d` is 160, `heads` is 3"
    assert shown(found) == [("Encoder(6, d, heads, 64)", "the layer is declared here")]
    assert concise([found]).startswith("program.shard:7:19: error[SH212]: ")
    assert concise([found]).endswith(" (in std.transformer:41:18)\n")


def test_what_is_found_at_the_end_names_declaration_and_call() -> None:
    found = only(checked(PROGRAM.replace("places: dim = 8", "places: dim = 4")).found)
    assert found.code == "SH289"
    layer = ("TokenEmbedding(100, d, places)", "the layer is declared here")
    assert shown(found) == [layer, ("embed(x)", "called here")]


def planned(rules: str, text: str = PROGRAM) -> Sink:
    program = checked(f"{text}\nstrategy s {{\n{rules}\n}}").program
    assert program is not None
    sink = Sink()
    plan(program, "s", 4, sink)
    return sink


def test_what_planning_finds_names_them_too() -> None:
    stages = "stages over pp {\n0: encoder\n1: embed\n}\nmicrobatches 2"
    found = planned(f"mesh pp = 2, dp = 2\nsplit batch over dp\n{stages}").found[0]
    assert found.code == "SH424"
    assert found.primary is not None and found.primary.span.source.library
    assert shown(found)[-2:] == [
        ("Encoder(6, d, heads, 64)", "the layer is declared here"), ("embed(x) |> encoder", "called here"),
    ]  # fmt: skip
    text = f"device tiny {{\n  memory = 1MB\n}}\n{PROGRAM.replace('100', '20_000')}"
    found = only(planned("mesh dp = 4\nsplit batch over dp", text).found)
    assert found.code == "SH450"
    assert ("TokenEmbedding(20_000, d, places)", "the layer is declared here") in shown(found)


def test_a_mistake_of_all_layers_of_an_array_is_told_once() -> None:
    text = """
    dim batch = 4, seq = 8, d = 16
    model Block() {
      param places: [4, d] = normal(0.02)
      forward(x: [batch, seq, d]) -> [batch, seq, d] {
        return x + embedding(arange(seq), places)
      }
    }
    model Net() {
      layer blocks[3] = Block()
      forward(x: [batch, seq, d]) -> [batch, seq, d] {
        return x |> blocks
      }
    }
    train {
      model = Net()
      data = random(x: [batch, seq, d], batches = 3)
      loss = mean(model(x))
      optimizer = sgd(lr = 0.1)
      epochs = 1
    }
    """
    found = checked(dedent(text)).found
    assert len(found) == 3
    (one,) = in_runs(found)
    assert "`blocks[0..3].places`" in one.message and one.primary == found[0].primary


def test_mistakes_that_are_no_run_stay_apart() -> None:
    source = Source("x.shard", "a b\n")
    one, other = Span(source, 0, 1), Span(source, 2, 3)

    def reported(*mistakes: tuple[str, Span]) -> list[Diagnostic]:
        sink = Sink()
        for message, span in mistakes:
            sink.report("SH289", message, span, help=f"about {message}")
        return in_runs(sink.found)

    assert len(reported(("`a[0].w`", one), ("`a[2].w`", one))) == 2
    assert len(reported(("`a[0].w`", one), ("`a[1].w`", other))) == 2
    assert len(reported(("`a[0].w`", one), ("`b[1].w`", one))) == 2
    assert len(reported(("`a[0].b[0]`", one), ("`a[0].b[1]`", one), ("`a[1].b[0]`", one), ("`a[1].b[1]`", one))) == 4
    (run,) = reported(("`a[1].b[7]`", one), ("`a[2].b[7]`", one), ("`a[3].b[7]`", one))
    assert (run.message, run.help) == ("`a[1..4].b[7]`", ("about `a[1..4].b[7]`",))
