"""The settings of `train`, one slip each: what is read, and what is told of what cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardlang.check.train.overrides import SETTABLE
from tests.check.checked import Checked, checked

TEXT = """\
use std.nn: Linear

dim batch = 8, d = 16

model Net(gain: float = 1.0, wide: bool = false) {
  layer fc = Linear(d, d)

  forward(x: [batch, d]) -> [batch, d] {
    h = fc(x) * (2.0 * gain if wide and gain > 1 else gain)
    return relu(h)
  }
}

train {
  model = Net()
  data = random(x: [batch, d], label: [batch, d], batches = 4)
  loss = mse_loss(model(x), label)
  optimizer = adamw(lr = 0.1)
  epochs = 1
}
"""
END = "  epochs = 1\n"


def with_line(*lines: str) -> Checked:
    return checked(TEXT.replace(END, END + "".join(f"  {line}\n" for line in lines)))


def changed(old: str, new: str) -> Checked:
    assert old in TEXT
    return checked(TEXT.replace(old, new, 1))


@pytest.mark.parametrize(
    ("line", "setting", "value"),
    [
        ("seed = 4 + 3", "seed", 7),
        ("precision = f64", "precision", "f64"),
        ("precision = f32", "precision", "f32"),
        ("precision = tf32", "precision", "tf32"),
        ("clip = 1 / 4", "clip", 0.25),
        ("lr_schedule = warmup_cosine(warmup = 10, min = 0.5)", "lr_schedule",
         ("warmup_cosine", {"warmup": 10, "min": 0.5})),
        ("lr_schedule = linear(min = 0.5)", "lr_schedule", ("linear", {"warmup": 0, "min": 0.5})),
        ("lr_schedule = constant()", "lr_schedule", ("constant", {})),
        ('init = safetensors("w.safetensors")', "init", ("safetensors", {"path": "w.safetensors"})),
    ],
)  # fmt: skip
def test_settings_that_are_read(line: str, setting: str, value: object) -> None:
    found = with_line(line)
    assert found.program is not None and found.program.training is not None, found.messages
    assert getattr(found.program.training, setting) == value


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("seed = 0 - 1", "SH237: `seed` must be at least 0, and this is -1"),
        ("seed = 1.5", "SH210: `seed` must be a whole number, and this is 1.5"),
        ("seed = fast", "SH200: "),
        ("precision = f33", "SH237: there is no precision `f33`"),
        ("precision = tf32(stream = tf32)", "SH220: `tf32` has no argument `stream`"),
        ("precision = quick", "SH237: there is no precision `quick`"),
        ("clip = 0", "SH237: `clip` must be above 0, and this is 0"),
        ('clip = "low"', "SH210: `clip` must be "),
        ("clip = nowhere", "SH200: "),
        ("clip = norm(1.0)", "SH200: there is no `norm` here"),
        ("steps = 3", "SH231: `train` has both `epochs` and `steps`"),
        ("lr_schedule = warmup_cosin(warmup = 1)", "SH237: `warmup_cosin(warmup = 1)` is no schedule"),
        ("lr_schedule = 0.1", "SH237: `0.1` is no schedule"),
        ("lr_schedule = linear(3)", "SH237: `linear(3)` is no schedule"),
        ("lr_schedule = linear(warm = 3)", "SH220: `linear` has no argument `warm`"),
        ("lr_schedule = linear(warmup = nowhere)", "SH200: "),
        ("lr_schedule = linear(warmup = 3, warmup = 4)", "SH219: `linear` gets `warmup` twice"),
        ("lr_schedule = linear(min = 0 - 1)", "SH237: `min` must be at least 0, and this is -1"),
        ('init = "w.safetensors"', "SH237: `init` is a file of weights"),
        ("init = safetensors(3)", "SH210: a path must be a text, and this is "),
        ("init = safetensors(nowhere)", "SH200: "),
        ("metric loss = mean(x)", "SH201: metric `loss` is there already"),
        ("metric m = 3", "SH232: metric `m` must be computed from the data, and this is "),
        ("optimizer = sgd(lr = 0.1)", "SH201: "),
        ("optimizer at **.bias = sgd(0.1)", "SH218: `sgd` takes 0 arguments without a name"),
        ("optimizer at **.bias = sgd(lr = 0.1, lr = 0.2)", "SH219: `sgd` gets `lr` twice"),
        ("optimizer at **.bias = 3", "SH236: no optimizer is called here"),
        ("optimizer at **.bias = sgd(lr = 0.1, nesterov = 1)", "SH210: `nesterov` must be true or false"),
        ("optimizer at **.bias = adam(betas = 0.9)", "SH210: `betas` must be 2 numbers"),
        ("optimizer at **.bias = adam(betas = (0.9, 1.5))", "SH237: "),
        ("optimizer at **.bias = sgd(momentum = 0.9)", "SH221: `sgd` needs `lr`"),
        ("optimizer at **.bias = sgd(lr = 0.1, nesterov = true)", "SH237: `nesterov` needs a momentum"),
        ("optimizer at **.bias = sdg(lr = 0.1)", "SH236: there is no optimizer `sdg`"),
    ],
)
def test_a_line_too_many_or_wrong(line: str, message: str) -> None:
    found = with_line(line).messages
    assert len(found) == 1 and found[0].startswith(message), found


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("epochs = 1", "", "SH231: `train` needs `epochs` or `steps`"),
        ("epochs = 1", "epochs = 1.5", "SH210: `epochs` must be a whole number"),
        ("adamw(lr = 0.1)", "adamw(lr = quick)", "SH200: "),
        ("optimizer = adamw(lr = 0.1)", "optimizer at **.weight = adamw(lr = 0.1)",
         "SH238: no optimizer trains `fc.bias`"),
        ("Net()", "Net(width = 3)", "SH220: `Net` has no argument `width`"),
        ("Net()", "Net(1.0, true, 3)", "SH218: "),
        ("Net()", "Net(1.0, gain = 2.0)", "SH219: `Net` gets `gain` twice"),
        ("Net()", "Net(gain = wide)", "SH200: "),
        ("Net()", 'Net(gain = "loud")', "SH210: "),
        ("Net()", "Net(wide = 1)", "SH210: `wide` is of kind bool, and this is "),
        ("Net()", "Net", "SH"),
        ("gain: float = 1.0", "gain: [d]", "SH208: `gain` is a tensor, and a model's arguments are static"),
        ("loss = mse_loss(model(x), label)", "loss = model(x)", "SH232: "),
    ],
)  # fmt: skip
def test_a_line_changed(old: str, new: str, message: str) -> None:
    found = changed(old, new).messages
    assert found and found[0].startswith(message), found


def test_a_model_and_its_dims_are_overridden_by_set() -> None:
    text = TEXT.replace("dim batch = 8, d = 16", "dim batch = 8, d = 16, other = 3")
    found = checked(text, {"batch": "4", "model.gain": "0.5"})
    assert found.value("train.x").type.shape == (4, 16)
    assert checked(text, {"model.nothing": "1"}).messages[0].startswith("SH224: ")
    assert checked(text, {"train.clip": "0.5"}).program.training.clip == 0.5  # type: ignore[union-attr]


def test_an_argument_of_a_setting_is_set_from_outside() -> None:
    text = TEXT.replace(END, END + "  optimizer at **.bias = adamw(weight_decay = 0.0)\n")
    given = {"train.optimizer.lr": "0.25", "train.optimizer.eps": "1 / 8", "train.data.batches": "6"}
    found = checked(text, given)
    assert found.program is not None and found.program.training is not None, found.messages
    optimizers = found.program.training.optimizers
    assert [(o.arguments["lr"], o.arguments["eps"]) for o in optimizers] == [(0.25, 0.125)] * 2
    assert found.program.training.data.arguments["batches"] == 6


def test_a_setting_is_set_or_added_from_outside() -> None:
    text = TEXT.replace(END, END + f"  {EVAL}\n")
    found = checked(text, {"train.evaluate": "every(5)", "train.checkpoint": "every(3, keep = 2)"})
    assert found.program is not None and found.program.training is not None, found.messages
    training = found.program.training
    assert training.evaluate is not None and training.evaluate["steps"] == 5
    assert training.checkpoint == ("every", {"steps": 3, "keep": 2, "to": "checkpoints"})
    again = checked(text.replace(EVAL, f"{EVAL}\n  evaluate = every(2)"), {"train.evaluate": "every(7)"})
    assert again.program is not None and again.program.training is not None, again.messages
    assert again.program.training.evaluate is not None and again.program.training.evaluate["steps"] == 7
    assert checked(text, {"train.init": "3"}).messages


def test_an_argument_that_is_a_dim_of_the_file_is_set_for_all_that_have_it() -> None:
    text = TEXT.replace("batches = ", "seed = batch, batches = ", 1)
    (found,) = checked(text, {"train.data.seed": "4"}).found
    assert found.message == "`train.data.seed` is the dim `batch`, which others have too: it is set for all of them"
    assert found.help == ("`--set batch=4`",)
    assert checked(text, {"data.seed": "4"}).found[0].help == ("write the whole path: `--set batch=4`",)


def test_an_argument_without_a_name_is_set_from_outside() -> None:
    text = TEXT.replace(END, END + "  checkpoint = every(2, keep = 3)\n")
    found = checked(text, {"train.checkpoint.steps": "5"})
    assert found.program is not None and found.program.training is not None, found.messages
    assert found.program.training.checkpoint == ("every", {"steps": 5, "keep": 3, "to": "checkpoints"})


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("train.optimizer.lrr", "1", "SH220: `adamw` has no argument `lrr`"),
        ("train.optimizer.lr", "-1", "SH237: `lr` must be at least 0"),
        ("optimizer.lr.x", "1", "SH224: nothing in program.shard has the path `optimizer.lr.x`"),
        ("loss.x", "1", "SH224: nothing in program.shard has the path `loss.x`"),
        ("lr_schedule.min", "1", "SH224: nothing in program.shard has the path `lr_schedule.min`"),
        ("x", "1", "SH224: nothing in program.shard has the path `x`"),
    ],
)
def test_an_argument_that_is_not_there_or_cannot_be(path: str, value: str, told: str) -> None:
    assert [m for m in checked(TEXT, {path: value}).messages if m.startswith(told)]


@pytest.mark.parametrize(
    ("path", "whole"),
    [
        ("lr", "train.optimizer.lr"),
        ("optimizer.lr", "train.optimizer.lr"),
        ("train.lr", "train.optimizer.lr"),
        ("optimizer.weight_decay", "train.optimizer.weight_decay"),
        ("steps", "train.steps"),
        ("checkpoint", "train.checkpoint"),
        ("gain", "model.gain"),
        ("dim.batch", "batch"),
        ("mp", "narrow.mp"),
    ],
)
def test_a_part_of_a_path_is_told_the_whole(path: str, whole: str) -> None:
    text = TEXT + "\nstrategy narrow {\n  mesh mp = auto\n  split d over mp\n}\n"
    (found,) = checked(text, {path: "1"}).found
    assert found.message == f"nothing in program.shard has the path `{path}`"
    assert found.help == (f"write the whole path: `--set {whole}=1`",)


def test_both_lengths_of_a_run_cannot_be_set() -> None:
    found = checked(TEXT, {"train.epochs": "2"})
    assert found.program is not None and found.program.training is not None
    assert (found.program.training.epochs, found.program.training.steps) == (2, None)
    both = checked(TEXT, {"train.epochs": "2", "train.steps": "3"})
    assert both.messages == ["SH231: `train` has both `epochs` and `steps`"]


EVAL = "eval = random(x: [batch, d], label: [batch, d], batches = 1)"
# Two values of each setting.
VALUES = {
    "data": ("random(x: [batch, d], label: [batch, d], batches = 7)", "random(x: [batch, d], label: [batch, d])"),
    "eval": ("random(x: [batch, d], label: [batch, d], batches = 7)", "random(x: [batch, d], label: [batch, d])"),
    "optimizer": ("sgd(lr = 0.5)", "adamw(lr = 0.5)"), "lr_schedule": ("linear(warmup = 2)", "constant()"),
    "precision": ("bf16", "f64"), "clip": ("0.5", "2"), "epochs": ("7", "8"), "steps": ("7", "8"), "seed": ("7", "8"),
    "init": ('safetensors("a")', 'safetensors("b")'), "checkpoint": ("every(7, keep = 2)", "every(7)"),
    "log": ("every(7)", "every(8)"), "compile": ("blocks", "none"), "evaluate": ("every(7)", "every(8)"),
    "not_finite": ("skip", "stop"), "ema": ("0.5", "0.25"),
}  # fmt: skip


def with_setting(name: str, value: str) -> str:
    """The program with `eval` and this setting, in its line or in a new one."""
    old = END if name in ("epochs", "steps") else f"  {name} = "
    lines = TEXT.replace(END, f"{END}  {EVAL}\n").removesuffix("}\n").splitlines(keepends=True)
    kept = [f"  {name} = {value}\n" if line.startswith(old) else line for line in lines]
    return "".join([*kept, *([] if kept != lines else [f"  {name} = {value}\n"]), "}\n"])


def settings_of(found: Checked) -> str:
    assert found.program is not None and found.program.training is not None, found.messages
    return repr(found.program.training)


@pytest.mark.parametrize("name", SETTABLE)
def test_each_setting_is_set_as_a_whole_where_it_is_written_and_where_not(name: str) -> None:
    value, other = VALUES[name]
    meant = settings_of(checked(with_setting(name, value)))
    assert meant != settings_of(checked(with_setting(name, other)))
    for text in (TEXT.replace(END, f"{END}  {EVAL}\n"), with_setting(name, other)):
        assert settings_of(checked(text, {f"train.{name}": value})) == meant


@pytest.mark.parametrize(
    ("lines", "read"),
    [
        ((EVAL, "evaluate = every(200)"), {"steps": 200}),
        ((EVAL, "evaluate = every(best = lowest(loss), patience = 5)"), {"best": ("lowest", "loss"), "patience": 5}),
        ((EVAL, "evaluate = every(7, best = highest(m))", "checkpoint = every(5)", "metric m = mean(model(x))"),
         {"steps": 7, "best": ("highest", "m")}),
    ],
)  # fmt: skip
def test_how_often_to_evaluate(lines: tuple[str, ...], read: dict[str, object]) -> None:
    found = with_line(*lines)
    assert found.program is not None and found.program.training is not None, found.messages
    assert found.program.training.evaluate == read


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (("evaluate = every(200)",), "SH237: there is nothing to evaluate"),
        ((EVAL, "evaluate = 200"), "SH237: `evaluate` is how often to evaluate"),
        ((EVAL, "evaluate = every(0)"), "SH213: `steps` must be at least 1"),
        ((EVAL, "evaluate = every()"), "SH237: `every()` says nothing"),
        ((EVAL, "evaluate = every(2, patience = 3)"), "SH237: `patience` waits for a better evaluation"),
        ((EVAL, "evaluate = every(2, patience = 0, best = lowest(loss))"), "SH213: `patience` must be at least 1"),
        ((EVAL, "evaluate = every(2, best = lowest(loss))"), "SH237: `best` has nothing to do"),
        ((EVAL, "evaluate = every(2, best = lowest(los), patience = 1)"), "SH237: an evaluation has no figure `los`"),
        ((EVAL, "evaluate = every(2, best = least(loss), patience = 1)"), "SH237: `least(loss)` is no order"),
        ((EVAL, "evaluate = every(2, best = loss, patience = 1)"), "SH237: `loss` is no order"),
        ((EVAL, "evaluate = every(2, beast = lowest(loss))"), "SH220: `every` has no argument `beast`"),
        ((EVAL, "evaluate = every(2, best = lowest(loss), best = lowest(loss), patience = 1)"), "SH219: `every` gets"),
        ((EVAL, "evaluate = every(2, best = lowest(loss, x = 3), patience = 1)"), "SH237: `lowest(loss, x = 3)` is"),
        ((EVAL, "evaluate = every(2, 3)"), "SH218: `every` takes 1 argument without a name"),
    ],
)
def test_what_evaluate_cannot_be(lines: tuple[str, ...], told: str) -> None:
    found = with_line(*lines)
    assert [m for m in found.messages if m.startswith(told)], found.messages


def test_what_cannot_be_set_is_told_all_that_can() -> None:
    text = (Path(__file__).parents[2] / "examples" / "digits.shard").read_text("utf-8")
    (near,) = checked(text, {"chekpoint": "every(2)"}).found
    assert near.help == ("did you mean `train.checkpoint`?",)
    (far,) = checked(text, {"qqqqqqqq": "1"}).found
    for place in ("batch", "hidden", "both.mp", "train.epochs", "train.clip", "train.optimizer.lr", "train.evaluate"):
        assert f"`{place}`" in far.help[0], place
    assert "more" not in far.help[0]
