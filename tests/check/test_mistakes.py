"""What is reported: once for each mistake, at its place, with what to type; and never a crash."""

from __future__ import annotations

import random
import re

import pytest

from tests.check.checked import TRAIN, checked, net
from tests.check.test_graph import DIGITS


def test_the_place_the_label_and_the_help() -> None:
    text = net("h = realu(x)\nreturn h * w")
    (found,) = checked(text).found
    assert found.primary is not None and found.primary.span.text == "realu"
    assert found.primary.span.line == text[: text.index("realu")].count("\n") + 1
    assert found.help == ("did you mean `relu`?",)


def test_dims_of_one_size_are_told_apart_with_what_to_type() -> None:
    text = net("return one(x)", "layer one = Linear(e, d)", dims="batch = 8, d = 16, e = 16")
    (found,) = checked(text).found
    assert found.message == "`x` of `one` needs `in` (16), which is `e` here, and this has `d` (16)"
    assert "both are 16, but they are different dims" in found.help[0]
    assert "`relabel(x -> [batch, e])`" in found.help[0]


@pytest.mark.parametrize(
    ("old", "new", "messages"),
    [
        ("hidden = 128", "hiden = 128", ["SH200: there is no `hidden` here"]),
        ("up(image)", "upp(image)", ["SH200: there is no `upp` here"]),
        ("Linear(64, hidden)", "Linear(63, hidden)", [
            "SH256: `x` of `up` needs `in` (63), and this has `64`"]),
        ("[batch, 64]", "[batch, 63]", ["SH256: `image` of `Digits` needs `63`, and this has `64`"]),
        ("over = classes", "over = clases", ["SH250: there is no dim `clases` here"]),
        ("momentum = 0.9", "momentun = 0.9", ["SH220: `sgd` has no argument `momentun`"]),
        ('split = "train", ', "spilt = 1, ", ["SH220: `digits` has no argument `spilt`"]),
        ("epochs = 10", "steps = 0", ["SH213: `steps` must be at least 1, and this is 0"]),
        ("mean(argmax", "(argmax", ["SH232: metric `accuracy` must be one number, and this is bool[batch]"]),
        ("model.h", "model.g", ["SH200: `Digits` has no `g`"]),
        ("use std.nn: Linear", "use std.nn: Liner", ["SH202: `std.nn` has no `Liner`"]),
        ("use std.nn: Linear", "use std.nn: Liner, Linear", ["SH202: `std.nn` has no `Liner`"]),
    ],
)  # fmt: skip
def test_one_slip_gives_one_message(old: str, new: str, messages: list[str]) -> None:
    assert DIGITS.count(old) >= 1
    found = checked(DIGITS.replace(old, new, 1)).messages
    assert found[: len(messages)] == messages
    assert len(found) == len(messages)


def test_a_field_that_has_another_name_is_listed() -> None:
    fields = DIGITS.replace(
        'digits(split = "train", batch = batch)', "random(pixels: [batch, 64], label: i64[batch] < 10)"
    )
    text = "\n".join(line for line in fields.splitlines() if not line.startswith("  eval = "))
    (found, *_) = checked(text).found
    assert (found.code, found.message) == ("SH200", "there is no `image` here")
    assert found.help == ("the fields of the data, and the values so far, are `pixels`, `label`",)


def test_many_layers_share_a_mistake_once() -> None:
    text = (
        net("return x |> all", "layer all[50] = Block(d)")
        + """
model Block(n: dim) {
  forward(x: [..., n]) -> [..., n] {
    return x + y
  }
}
"""
    )
    assert checked(text).messages == ["SH200: there is no `y` here"]


def test_an_import_cycle_names_its_chain() -> None:
    files = {"a.shard": 'use "./b.shard": B\n', "b.shard": 'use "./a.shard": A\n'}
    found = checked('use "./a.shard": A\n', files=files).messages
    assert found[0] == "SH204: imports form a circle: `a.shard` -> `b.shard` -> `a.shard`"


def test_overrides() -> None:
    text = net("return x |> all", "layer all[n] = Linear(d, d)").replace("model Net {", "model Net(n: int = 2) {")
    found = checked(text, {"batch": "4", "model.n": "3", "train.epochs": "7"})
    assert found.program is not None and found.program.training is not None
    assert found.program.training.epochs == 7
    assert found.graph.batch is not None and found.graph.batch.size == 4
    assert len(found.graph.params) == 6
    (unknown,) = checked(text, {"btach": "4"}).found
    assert unknown.code == "SH224" and unknown.primary is None and unknown.help == ("did you mean `batch`?",)


def test_an_override_that_could_mean_two_things_lists_them() -> None:
    (found,) = checked(net("return x * w") + MESHES, {"mp": "4"}).found
    assert found.message == "nothing in program.shard has the path `mp`"
    assert found.help == ("write the whole path: `--set one.mp=4` or `--set two.mp=4`",)


@pytest.mark.parametrize("path", ["one.microbatches", "one.zero", "one.schedule"])
def test_what_is_no_axis_of_a_strategy_is_not_set(path: str) -> None:
    (found,) = checked(net("return x * w") + MESHES, {path: "4"}).found
    assert found.message == f"nothing in program.shard has the path `{path}`"
    rule = path.rpartition(".")[2]
    assert found.help == (f"of a strategy only axes can be set, as `one.mp`; write `{rule}` in `one` itself",)


def test_a_dim_of_another_file_is_not_set_and_not_another_of_its_name() -> None:
    other = "dim batch = 4\n\nmodel Net {\n  forward(x: [batch, 2]) -> [batch, 2] {\n    return relu(x)\n  }\n}\n"
    train = "model Out {\n  layer net = Net()\n\n  forward(x: [batch, 2]) -> [batch, 2] {\n    return net(x)\n  }\n}\n"
    files = {"other.shard": other}
    (found,) = checked(f'use "./other.shard": Net, batch\n\n{train}', {"batch": "8"}, files=files).found
    assert found.help == ("`batch` is of `./other.shard`: change it there",)
    found = checked(f'use "./other.shard": Net\n\ndim batch = 8\n\n{train}', files=files).found[0]
    assert found.message == "`x` of `net` needs `batch` (4), and this has `batch` (8)"
    assert found.help == (
        "each file has a `batch` of its own: delete this one, and import that of `other.shard` by `use`",
    )


MESHES = """
strategy one {
  mesh mp = 2
  split d over mp
}

strategy two {
  mesh mp = 2
  split batch over mp
}
"""


def test_the_most_specific_optimizer_decides() -> None:
    rest = TRAIN.replace(
        "sgd(lr = 0.1)",
        "adamw(lr = 0.1)\n  optimizer at **.bias = adamw(weight_decay = 0.0)\n  optimizer at one.bias = sgd(lr = 1)",
    )
    found = checked(net("return x |> one |> two", "layer one = Linear(d, d)\nlayer two = Linear(d, d)", rest))
    assert found.program is not None and found.program.training is not None
    given = {
        found.graph.values[p].path: (o.kind, o.arguments["weight_decay"], o.arguments["lr"])
        for o in found.program.training.optimizers
        for p in o.params
    }
    assert given == {
        "one.weight": ("adamw", 0.01, 0.1), "one.bias": ("sgd", 0.0, 1.0),
        "two.weight": ("adamw", 0.01, 0.1), "two.bias": ("adamw", 0.0, 0.1),
    }  # fmt: skip


def nested(depth: int, body: str) -> str:
    """Models M0 to M<depth>, each an array of a hundred of the next; the last computes `body`."""
    forward = "  forward(x: [..., n]) -> [..., n] {\n    return %s\n  }\n}\n"
    models = [f"model M{i}(n: dim) {{\n  layer a[100] = M{i + 1}(n)\n" + forward % "x |> a" for i in range(depth)]
    return "".join(models) + f"model M{depth}(n: dim) {{\n  param v: [n] = ones()\n" + forward % body


@pytest.mark.parametrize(
    ("settings", "messages"),
    [
        ("at w = sgd(lr = 1)\n  optimizer at w = sgd(lr = 2)", ["SH238: two optimizers train `w`"]),
        ("at w = sgd(lr = 1)\n  optimizer at w = sgd(lr = 1)", []),
        ("at * = sgd(lr = 1)\n  optimizer at * = sgd(lr = 2)\n  optimizer at w = sgd(lr = 3)", []),
        ("at ww = sgd(lr = 1)", ["SH308: `ww` matches nothing of the model"]),
        ("at h = sgd(lr = 1)\n  optimizer = sgd(lr = 1)", ["SH238: `h` covers no parameter"]),
    ],
)
def test_selectors_of_optimizers(settings: str, messages: list[str]) -> None:
    rest = TRAIN.replace("= sgd(lr = 0.1)", settings)
    assert checked(net("h = x * w\nreturn h", rest=rest)).messages == messages


def test_nesting_and_counts_end() -> None:
    found = checked(net("return one(x)", "layer one = M0(d)") + nested(4, "x * v")).messages
    assert found == ["SH217: the program has more than 20,000 layers"]


def test_functions_too_deep_are_told_once() -> None:
    doubled = "".join(f"fn f{i + 1}(x: [..., n]) {{\n  return f{i}(f{i}(x))\n}}\n" for i in range(80))
    first = "fn f0(x: [..., n]) {\n  return relu(x)\n}\n"
    found = checked(net("return f80(x) * w") + first + doubled).messages
    assert found == [
        "SH217: functions call each other more than 64 deep",
        "SH217: the program calls layers and functions more than 15,000 times",
    ]


def test_functions_and_models_do_not_recur() -> None:
    functions = "fn f(x: [..., n]) -> [..., n] {\n  return g(x)\n}\nfn g(x: [..., n]) -> [..., n] {\n  return f(x)\n}\n"
    assert checked(net("return f(x) * w") + functions).messages == ["SH206: function `f` calls itself"]


_WORDS = re.compile(r"[A-Za-z_]\w*|\d+\.?\d*|\s+|.", re.S)


@pytest.mark.parametrize("seed", range(4))
def test_no_exchange_of_words_crashes(seed: int) -> None:
    chance = random.Random(seed)
    words = _WORDS.findall(DIGITS)
    places = [i for i, word in enumerate(words) if not word.isspace()]
    names = sorted({w for w in words if w[0].isalnum()} | {"0", "-1", "2 / 3", "x @ x", "model.up", "relu", "[1]"})
    for _ in range(60):
        changed = list(words)
        for at in chance.sample(places, 2):
            changed[at] = chance.choice(names)
        found = checked("".join(changed))
        assert found.program is not None or found.found


@pytest.mark.parametrize(
    ("old", "new", "callee"),
    [
        ("up(image)", "up(image -> [batch, hidden])", "up"), ("relu", "relu(-> [batch])", "relu"),
        ("mean(square(model.h))", "mean(square(model.h -> [batch]))", "square"),
        ("Linear(64, hidden)", "Linear(64, hidden -> [hidden])", "Linear"),
        ("Digits()", "Digits(-> [batch])", "Digits"),
        ("sgd(lr = 0.1, momentum = 0.9)", "sgd(lr = 0.1, momentum = 0.9 -> [batch])", "sgd"),
        ('"train", batch = batch', '"train", batch = batch -> [batch]', "digits"),
        ('"test", batch = batch', '"test", batch = batch -> [batch]', "digits"),
    ],
)  # fmt: skip
def test_the_dims_of_a_result_are_read_or_refused(old: str, new: str, callee: str) -> None:
    assert old in DIGITS
    found = checked(DIGITS.replace(old, new, 1)).messages
    assert found == [f"SH220: `{callee}` does not take the dims of its result"]
