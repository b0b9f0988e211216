"""Operators of the user's that sum over a dim which is split: what is refused in their declarations, what the emitted
text and the plan show, and values on real ranks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from shardlang import driver
from shardlang.cli.main import run as shardc
from shardlang.diagnostics.diagnostic import Sink
from shardlang.sources.source import Source

PYTHON = """\
def centred(x, group):
    return x - group.sum(x, 1) / group.size("d")


def length(x, w, group):
    return group.sum((x * w).square(), 1).sqrt().squeeze(1)
"""
OPS = """\
operator centred(x: [batch, d]) -> [batch, d] {
  inside d
  reduces 1, 1
  flops 2 * batch * d
  python "ops.py": centred
}

operator length(x: [batch, d], w: [d]) -> [batch] {
  inside d
  reduces 1, 1
  flops 3 * batch * d
  python "ops.py": length
}
"""
NET = """\
use "./ops.shard": centred, length

dim batch = 6, d = 10

model Net {
  param w: [d] = normal(0.5)

  forward(x: [batch, d]) -> [batch] {
    return length(centred(x * w), w)
  }
}

train {
  model = Net()
  data = random(x: [batch, d], y: [batch], batches = 3)
  loss = mse_loss(model(x), y)
  optimizer = adam(lr = 0.05)
  steps = 3
}

strategy even {
  mesh dp = 2, mp = 2
  split batch over dp
  split d over mp
}

strategy odd {
  mesh mp = 4
  split d over mp uneven
}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in (("ops.py", PYTHON), ("ops.shard", OPS), ("net.shard", NET)):
        (tmp_path / name).write_text(text)
    assert shardc(["verify", str(tmp_path / "ops.shard")]) == 0
    return tmp_path


@pytest.mark.parametrize("strategy", ["even", "odd"])
def test_values_on_ranks_are_those_of_one_device(
    folder: Path, strategy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = shardc(["verify", str(folder / "net.shard"), "--ranks", "4", "--strategy", strategy])
    assert code == 0, capsys.readouterr()


def test_the_emitted_text_names_the_group_and_the_whole_size(folder: Path) -> None:
    out = folder / "out"
    assert shardc(["compile", str(folder / "net.shard"), "--ranks", "4", "--strategy", "even", "-o", str(out)]) == 0
    text = "".join(path.read_text() for path in out.rglob("*.py"))
    assert re.search(r'"centred", \w+, group=rt.Members\({"d": 10}, mesh.mp\)', text), text
    assert re.search(r'"length", \w+, p.w, group=rt.Members\({"d": 10}, mesh.mp, result=mesh.mp\)', text), text


def test_the_plan_counts_what_the_sums_send(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert shardc(["plan", str(folder / "net.shard"), "--ranks", "4", "--strategy", "even"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"all-reduce over mp  values +24 B +24 B", shown), shown


@pytest.mark.parametrize(
    ("before", "after", "code", "says"),
    [
        ("  reduces 1, 1\n", "", "SH610", "has `inside`, and no `reduces`"),
        ("  inside d\n", "", "SH610", "has `reduces`, and no `inside`"),
        ("  reduces 1, 1\n", "  reduces 1, 1\n  reduces 1, 1\n", "SH610", "`reduces` is there twice"),
        ("  inside d\n", "  inside d\n  whole d\n", "SH614", "dim `d` is both `whole` and `inside`"),
        ("  inside d\n", "  inside e\n", "SH612", "has no dim of an operand `e`"),
        ("(x: [batch, d])", "(x: [batch, d], group: int = 1)", "SH614", "the name by which `centred` gets the ranks"),
        ("reduces 1, 1", "reduces 1, 0.5", "SH614", "`0.5` is no number of sums"),
        ("reduces 1, 1", "reduces d, 1", "SH614", "`d` is no number of sums"),
        ("reduces 1, 1", "reduces 65, 1", "SH614", "`65` is no number of sums"),
    ],
)
def test_what_a_declaration_may_not_say(folder: Path, before: str, after: str, code: str, says: str) -> None:
    sink, text = Sink(), OPS.partition("\n\n")[0].replace(before, after)
    driver.declared_operators(Source(str(folder / "ops.shard"), text), sink)
    assert [(d.code, says in d.message) for d in sink.found] == [(code, True)], [str(d.message) for d in sink.found]


def test_a_group_that_is_no_clause_is_a_setting_like_another(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("def scaled(x, group):\n    return x * group\n")
    (tmp_path / "own.shard").write_text(
        "operator scaled(x: [batch, d], group: int = 2) -> [batch, d] {\n"
        '  linear x\n  flops 0\n  python "own.py": scaled\n}\n'
    )
    assert shardc(["verify", str(tmp_path / "own.shard")]) == 0
