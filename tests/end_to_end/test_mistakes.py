"""What users get wrong, MindSpore's typical mistakes among them: one error of `check` each, at one place, with help.

A case changes the quickstart (lines of its strategy, or pieces of its text) and tells all that is then reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from shardlang import driver
from shardlang.cli.main import run
from shardlang.diagnostics.diagnostic import Diagnostic, Sink
from shardlang.sources.source import Source

BASE = """dim batch = 16, input = 32, hidden = 16, output = 16

model Net {
  param w: [input, hidden] = normal(0.01)
  param w2: [hidden, output] = normal(0.01)

  forward(x: [batch, input]) -> [batch, output] {
    h = x @ w
    a = relu(h)
    return a @ w2
  }
}

strategy s {
  RULES
}

train {
  model = Net()
  data = random(x: [batch, input], label: [batch, output], batches = 4, seed = 1)
  loss = mse_loss(model(x), label)
  optimizer = sgd(lr = 0.4, momentum = 0.1)
  epochs = 1
}
"""
DATA = "mesh dp = 8\n  split batch over dp"
TIED = ("a = relu(h)", "b = x @ w\n    a = relu(h + b)")


def program(rules: str, *changes: tuple[str, str]) -> str:
    text = BASE.replace("RULES", rules)
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    return text


def mistakes(text: str, ranks: int | None = 8, name: str = "net.shard") -> list[Diagnostic]:
    sink = Sink()
    checked = driver.check_source(Source(name, text), sink)
    if checked is not None:
        driver.check_strategies(checked, None, ranks, sink)
    return sink.found


# ranks, rules of the strategy, code, what is pointed at, in the message, in the help
# fmt: off
STRATEGIES = [
    # tuples and entries
    (8, "at a: shard ((8, 1), (1, 1))", "SH313", "shard ((8, 1), (1, 1))", "`relu` has 1 input, `h`", "shard ((8, 1))"),
    (8, "at h: shard ((2,), (4, 1))", "SH314", "(2,)", "`x` is [batch, input]: 2 dims, and its tuple has 1", "(2, 4)"),
    (8, "at h: shard ((2, 4), (4, 1)) -> ((8, 1, 1))", "SH314", "(8, 1, 1)", "`h` is [batch, hidden]", "(1, 1)"),
    (8, "at h: shard ((2, 4), (4, 1)) -> ((8, 1), (1, 8))", "SH313", "(1, 8)", "1 result", "-> ((1, 1))"),
    # cuts
    (12, "at h: shard ((8, 1), (1, 1))", "SH316", "shard ((8, 1), (1, 1))", "8 pieces, which 12 ranks", "2, 3, 4, "),
    (8, "at h: shard ((0, 4), (4, 1))", "SH316", "0", "`batch` cannot be cut in 0", "1 for a whole dim"),
    (8, "at h: shard ((2.0, 4), (4, 1))", "SH316", "2.0", "`batch` cannot be cut in 2.0", "1 for a whole dim"),
    (8, "at w: shard ((8, 1))", "SH312", "shard ((8, 1))", "`w` is not computed by an operator", "at w: ["),
    # ranks
    (8, "mesh a = 2, b = 3\n  split batch over a", "SH303", "mesh a = 2, b = 3", "2 * 3 = 6 ranks, and 8", "`b = 4`"),
    (8, "mesh a = 4, b = 4\n  split batch over a", "SH303", "mesh a = 4, b = 4", "4 * 4 = 16 ranks, and 8", "`a = 2`"),
    (8, "mesh a = 3, b = auto\n  split batch over b", "SH303", "mesh a = 3, b = auto", "multiple of 3",
     "`a = 2`, `a = 4` or `a = 8` would fit"),
    (8, "split batch over dp", "SH306", "dp", "no axis `dp`", "mesh dp = auto"),
    (6, "mesh a = 6\n  split batch over a", "SH304", "batch", "`batch` does not divide over axis `a`",
     "`a = 4` fits on 4 ranks"),
    # axes and dims
    (8, "mesh a = 8\n  at h: shard ((a, a), (a, _))", "SH310", "shard ((a, a), (a, _))", "cuts two dims", "one dim"),
    (8, "mesh dp = 8\n  at h: shard ((pd, _), (_, _))", "SH306", "pd", "no axis `pd`", "`dp`"),
    (8, "mesh dp = 8\n  at h: f64[batch@dp, hidden]", "SH317", "f64", "`h` is f32", "`f32`"),
    (8, "mesh dp = 8\n  at Net.h: split batch over dp", "SH308", "Net.h", "matches nothing", "did you mean `h`"),
    (8, "mesh dp = 8\n  at **: [batch@dp, hidden]", "SH317", "[batch@dp, hidden]", "`w` is [input, hidden]", "at w:"),
    # rules
    (8, "mesh dp = 8\n  splitt batch over dp", "SH101", "splitt", "no word of the language", "`split`"),
    (8, "mesh dp = 8\n  at h: shrad ((8, 1), (1, 1))", "SH101", "shrad", "no word of the language", "`shard`"),
    (8, "mesh dp = 8\n  split batch ovr dp", "SH101", "ovr", "no word of the language", "`over`"),
]
# what is put for what in the program, code, what is pointed at, in the message, in the help
PROGRAMS = [
    (("modle", "model Net {"), "SH101", "modle", "no word of the language", "`model`"),
    (("rellu(h)", "relu(h)"), "SH200", "rellu", "no `rellu`", "`relu`"),
    (("relabel(h -> [batch, batch])", "relu(h)"), "SH253", "relabel(h -> [batch, batch])", "twice", "dim other"),
    (("softmax(h, over = input)", "relu(h)"), "SH286", None, "over `input`, which is no dim of `h`", "`hidden`"),
    (("relu(h, inplace = true)", "relu(h)"), "SH220", "inplace", "no argument `inplace`", "`x`"),
    (("normal(-1)", "normal(0.01)"), "SH293", "normal(-1)", "not below 0", "normal(0.02)"),
    (("i64[input, hidden]", "[input, hidden]"), "SH258", "i64[input, hidden]", "is floating", "`state`"),
    (("cast(h, i64)", "relu(h)"), "SH281", "a @ w2", "`a` is i64, and `w2` f32", "cast(a, f32)"),
    (("10 ** 30", "16"), "SH211", "10 ** 30", "not a number that can be used", ""),
    (("return a @ w2\n    b = h", "return a @ w2"), "SH207", "b = h", "stands after it", "ahead of `return`"),
    (("if deep { a = h }", "a = relu(h)"), "SH101", "if", "a body has no `if`", "a if c else b"),
    (("epoch = 1", "epochs = 1"), "SH231", "epoch", "no setting `epoch`", "`epochs`"),
    (("batches = 0", "batches = 4"), "SH213", "0", "at least 1, and this is 0", ""),
    (("label: i64[batch, output]", "label: [batch, output]"), "SH235", None, "nothing says below what", "< 10"),
    (("metric step = mean(model(x))\n  epochs", "epochs"), "SH201", "step", "column of the log", "`step_`"),
    (("\n", "  model = Net()\n"), "SH231", None, "needs `model`", "model = Net()"),
    (("\n", "  data = random(x: [batch, input], label: [batch, output], batches = 4, seed = 1)\n"), "SH231", None,
     "needs `data`", "data ="),
]
# fmt: on


def expect(found: Sequence[Diagnostic], code: str, place: str | None, message: str, help: str) -> None:
    assert [(d.code, d.message) for d in found] == [(code, found[0].message if found else message)]
    (one,) = found
    assert message in one.message
    assert help in "; ".join(one.help)
    assert one.primary is not None
    assert place is None or one.primary.span.text == place


@pytest.mark.parametrize(("ranks", "rules", "code", "place", "message", "help"), STRATEGIES, ids=lambda v: str(v)[:40])
def test_strategy(ranks: int, rules: str, code: str, place: str, message: str, help: str) -> None:
    expect(mistakes(program(rules), ranks), code, place, message, help)


@pytest.mark.parametrize(("change", "code", "place", "message", "help"), PROGRAMS, ids=lambda v: str(v)[:40])
def test_program(change: tuple[str, str], code: str, place: str | None, message: str, help: str) -> None:
    new, old = change
    change = (old, "modle Net {" if new == "modle" else new)
    expect(mistakes(program(DATA, change)), code, place, message, help)


@pytest.mark.parametrize(
    "rules",
    [
        "mesh a = 8\n  at h: [batch, hidden@a]\n  at b: [batch@a, hidden]",
        "at h: shard ((1, 8), (8, 1))\n  at b: shard ((1, 1), (1, 8))",
    ],
)
def test_a_parameter_with_two_layouts(rules: str) -> None:
    expect(mistakes(program(rules, TIED)), "SH318", None, "parameter `w` would have two layouts", "the same in both")


def test_an_operator_that_cannot_be_split_there() -> None:
    whole = ("relu(h)", "cumsum(h, over = hidden)")
    expect(mistakes(program("at a: shard ((1, 8))", whole)), "SH320", "8", "needs `hidden` of `h` whole", "write 1")
    pin = "mesh dp = 8\n  at a: [batch, hidden@dp]"
    expect(mistakes(program(pin, whole)), "SH320", "hidden@dp", "needs `hidden` whole", "leave the axis out")


def test_an_index_past_the_end() -> None:
    labels = ("label: [batch, output]", "label: i64[batch] < 400"), ("mse_loss", "cross_entropy")
    expect(mistakes(program(DATA, *labels)), "SH289", None, "`label` goes up to 399", "at most 16")


def test_an_import_cycle(tmp_path: Path) -> None:
    layer = "model {}(d: dim) {{\n  forward(x: [batch, d]) -> [batch, d] {{\n    return relu(x)\n  }}\n}}\n"
    (tmp_path / "a.shard").write_text('use "./b.shard": B\n' + layer.format("A"))
    (tmp_path / "b.shard").write_text('use "./a.shard": A\n' + layer.format("B"))
    text = 'use "./a.shard": A\n' + program(DATA)
    found = mistakes(text, name=str(tmp_path / "net.shard"))
    expect(found, "SH204", '"./a.shard"', "imports form a circle", "third file")


def test_each_line_is_a_mistake_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "net.shard"
    path.write_text(program("mesh dp = 8\n  split bacth over dp\n  split batch over pd"))
    assert run(["check", str(path), "--ranks", "8", "--output", "concise"]) == 1
    assert len(capsys.readouterr().out.strip().splitlines()) == 2


@pytest.mark.parametrize(
    "text",
    ["", "# only a comment\n", "\0", "{" * 5000, "dim a = " + "(" * 5000, "model M {\n" * 500, "dim n = 9" + "9" * 500],
)
def test_hostile_files_end_in_diagnostics(text: str) -> None:
    assert all(d.code != "SH900" for d in mistakes(text))


def test_large_numbers_cost_nothing() -> None:
    rules = "mesh dp = auto\n  split batch over dp\n  at h[0..1000000000]: split batch over dp"
    large = ("batch = 16", "batch = 4611686018427387903")
    assert {d.code for d in mistakes(program(rules, large))} == {"SH304", "SH308"}
    assert [d.code for d in mistakes(program(DATA.replace("8", "auto")), ranks=100_000)] == ["SH304"]
