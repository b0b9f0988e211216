"""The page "the same in PyTorch": its three parts, run in one folder, give the same losses in float64. Its table of
torch's words is that of the compiler, and each example there is a program."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

import shardlang
from shardlang.check.model.operators import is_operator
from shardlang.cli.main import run
from shardlang.ops.torch_words import BY_NAME, OF_TRAINING, STRATEGY, TRAIN, TRAINING, WRITTEN, Written
from tests import warm
from tests.check.checked import checked
from tests.documents.bless import PYTORCH, SPECS, torch_words
from tests.mdtest import fences

SHARDC = [sys.executable, "-c", "from shardlang.cli.main import main; main()"]


def test_the_page_runs_as_it_stands(tmp_path: Path) -> None:
    for _, _, words, text in fences((SPECS / "pytorch.md").read_text("utf-8")):
        names = [word.removeprefix("file=") for word in words if word.startswith("file=")]
        if names:
            (tmp_path / names[0]).write_text(text, "utf-8")
    for command in (
        [sys.executable, "before.py"],
        [*SHARDC, "run", "net.shard", "--ranks", "4", "--metrics", "figures.jsonl", "--save-weights",
         "trained.safetensors"],
        [sys.executable, "beside.py"],
    ):  # fmt: skip
        done = warm.run(command, cwd=tmp_path)
        assert done.returncode == 0, done.stderr


# What the page says of the names in its examples.
FORMALS = {
    "x": "[batch, seq, d]", "y": "[batch, seq, d]", "w": "[d, out]", "v": "[batch, d, out]", "m": "[rows, columns]",
    "one": "[batch, 1, d]", "mask": "bool[batch, seq, d]",
}  # fmt: skip


def body(line: str) -> list[str]:
    """What the checker says of a function that gives `line`."""
    formals = ", ".join(f"{name}: {dims}" for name, dims in FORMALS.items() if re.search(rf"\b{name}\b", line))
    found = checked(f"dim batch = 2, seq = 8, d = 16\n\nfn example({formals}) {{\n  return {line}\n}}\n")
    return [f"{d.code}: {' '.join(d.help)}" for d in found.found]


def test_the_table_of_words_is_up_to_date() -> None:
    page = PYTORCH.read_text("utf-8")
    assert page == torch_words(page), "run `python -m tests.documents.bless`"


@pytest.mark.parametrize("written", [w for w in WRITTEN if w.here], ids=lambda w: w.names[0])
def test_what_is_written_here_is_a_program(written: Written) -> None:
    assert body(written.here) == []


@pytest.mark.parametrize("word", BY_NAME)
def test_a_word_of_torch_is_told_how_it_is_written_here(word: str) -> None:
    help = BY_NAME[word].help
    assert help and not is_operator(word)
    assert body(f"{word}(x)") == body(f"x |> {word}") == [f"SH200: {help}"]
    assert body(f"x.{word}(1)") == body(f"x.{word}") == [f"SH214: {help}"]


@pytest.mark.parametrize(("line", "said"), [
    ("x.softmax(d)", "SH214: write `softmax(x, ..)`: operators are called by name"),
    ("softmax(x, dim = 2)", f"SH220: {BY_NAME['dim'].help}"),
    ("sum(x, over = d, keepdim = true)", f"SH220: {BY_NAME['keepdim'].help}"),
    ("torch.relu(x)", f"SH200: {BY_NAME['torch'].help}"),
    ("x.mine", "SH214: "),
])  # fmt: skip
def test_other_ways_of_torch_are_told_too(line: str, said: str) -> None:
    assert body(line) == [said]


# A program that has room for each line of the second table: `# RULE` in the strategy, settings by name.
PROGRAM = """\
use std.nn: LayerNorm, Linear

dim batch = 8, pixels = 64, seq = 4, heads = 4, head = 4, ffn = 16, experts = 2, classes = 10

model Block {
  layer norm = LayerNorm(head)
  layer up = Linear(head, ffn)
  layer down = Linear(ffn, head)
  param scale: [heads, experts] = ones()

  forward(x: [batch, seq, heads, head]) -> [batch, seq, heads, head] {
    y = mean(x, over = heads) |> norm |> up |> gelu |> down
    return x + rearrange(y -> [batch, seq, 1, head]) * rearrange(sum(scale, over = experts) -> [heads, 1])
  }
}

model Net {
  layer enter = Linear(pixels, head)
  layer blocks[2] = Block()
  layer out = Linear(head, classes)

  forward(image: [batch, pixels]) -> [batch, classes] {
    x = rearrange(enter(image) -> [batch, 1, 1, head])
    y = expand(x -> [batch, seq, heads, head]) |> blocks
    return mean(y, over = (seq, heads)) |> out
  }
}

strategy mixed {
  mesh pp = 2, dp = 2, mp = 2
  # RULE
}

train {
  model = Net()
  data = digits(split = "train", batch = batch)
  eval = digits(split = "test", batch = batch)
  loss = cross_entropy(model(image), label)
  optimizer = sgd(lr = 0.1)
  steps = 5000
}
"""


def mistakes(text: str) -> list[str]:
    """What is wrong with a program on eight ranks, but that one line alone uses not all of them."""
    found = shardlang.check(shardlang.source(text), ranks=8)
    return [f"{row.code}: {row.message}" for row in found if row.severity == "error" and row.code != "SH322"]


@pytest.mark.parametrize("written", [w for w in TRAINING if w.where], ids=lambda w: w.names[0])
def test_what_is_written_for_a_word_of_training_is_a_line_there(written: Written) -> None:
    line = written.here
    if written.where == STRATEGY:
        stages = "stages over pp balanced\n  microbatches 4\n  " if line.startswith("schedule") else ""
        text = PROGRAM.replace("# RULE", stages + line)
    else:
        assert written.where == TRAIN
        name = line.partition(" = ")[0].replace("epochs", "steps")
        text, count = re.subn(rf"(?m)^  {name} = .*$", lambda _: f"  {line}", PROGRAM)
        text = text if count else text.replace("  steps", f"  {line}\n  steps")
    assert line in text and mistakes(text) == []


@pytest.mark.parametrize("word", OF_TRAINING)
def test_a_word_of_training_is_told_where_it_is_none_here(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    help = OF_TRAINING[word].help
    assert help
    if word.isidentifier():
        text = PROGRAM.replace("# RULE", "split batch over (pp, dp, mp)").replace("  steps", f"  {word} = 4\n  steps")
        (said,) = shardlang.check(shardlang.source(text))
        assert (said.code, said.help) == ("SH223", (help,))
    if word != "lr":  # a figure of a step too
        assert run(["explain", word]) == 2 and capsys.readouterr().err.rstrip().endswith(help)


def test_words_of_training_in_prose(capsys: pytest.CaptureFixture[str]) -> None:
    for typed in (["gradient", "accumulation"], ["Gradient-Accumulation"], ["gradient accumulation"]):
        assert run(["explain", *typed]) == 2 and "write `microbatches 4` in the strategy" in capsys.readouterr().err
