"""A plan that does not fit is shown, with its error and exit code 1; what SH450 offers fits."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from shardlang.cli.main import run
from shardlang.diagnostics.diagnostic import Diagnostic
from tests.emit import sources

# Nothing but activations takes much.
TEXT = """\
use std.nn: Linear

dim batch = BATCH, seq = 64, d = 64

device card {
  memory = 20MB
}

model Net {
  layer parts[8] = Linear(d, d)

  forward(x: [batch, seq, d]) -> [batch, seq, d] {
    return x |> parts
  }
}

strategy plain {
  mesh dp = auto
  split batch over dp
  microbatches 4
}

strategy fine {
  mesh dp = auto
  split batch over dp
  microbatches 16
}

train {
  model = Net()
  data = random(x: [batch, seq, d], label: [batch, seq, d], batches = 2)
  loss = mse_loss(model(x), label)
  optimizer = sgd(lr = 0.1)
  steps = 2
}
"""


def found(batch: int = 768, count: str = "microbatches 4") -> list[Diagnostic]:
    return sources.tried(TEXT.replace("BATCH", str(batch)).replace("microbatches 4", count), 2, "plain")[1].found


@pytest.mark.parametrize("count", ["microbatches 4", "microbatches 1", "microbatches 3"])
def test_the_number_that_is_offered_is_more_and_fits(count: str) -> None:
    (mistake,) = found(count=count)
    assert mistake.code == "SH450"
    (offered,) = re.findall(r"`microbatches (\d+)` fits", " ".join(mistake.help))
    assert int(offered) > int(count.split()[1])
    assert found(count=f"microbatches {offered}") == []


def test_none_is_offered_that_does_not_divide() -> None:
    """A rank has 401 examples, a prime number, and no more microbatches cut these."""
    (mistake,) = found(802, "microbatches 1")
    assert not any("microbatches" in text for text in mistake.help) and mistake.help


def test_it_points_at_the_strategy_and_its_parts_fit_a_line() -> None:
    (mistake,) = found()
    assert mistake.primary is not None
    source, span = mistake.primary.span.source, mistake.primary.span
    assert source.text[span.start : span.end] == "plain"
    assert [source.text[at.span.start : at.span.end] for at in mistake.labels] == ["memory = 20MB"]
    (note,) = mistake.notes
    assert "activations" in note and "parameters" in note
    assert all(len(f"help: {line}") <= 80 for text in (*mistake.notes, *mistake.help) for line in text.split("\n"))


@pytest.mark.parametrize(
    ("command", "shows"),
    [
        (["plan", "--strategy", "plain"], "memory of a rank at its peak"),
        (["plan", "--strategy", "plain", "--json"], '"strategy": "plain"'),
        (["why", "parts", "--strategy", "plain"], "parts"),
        (["why", "mesh", "--strategy", "plain"], "mesh"),
        (["diff", "--strategy", "plain", "--strategy", "fine"], "plain"),
        (["report", "--strategy", "plain", "-o", "page.html"], "wrote page.html"),
    ],
)
def test_a_plan_that_does_not_fit_is_shown(
    command: list[str], shows: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t.shard").write_text(TEXT.replace("BATCH", "768"))
    assert run([command[0], "t.shard", *command[1:], "--ranks", "2"]) == 1
    shown = capsys.readouterr()
    assert shows in shown.out + shown.err
    assert shown.err.count("error[SH450]") == 1 and "1 error\n" in shown.err


@pytest.mark.parametrize("command", [["check"], ["compile", "-o", "out"], ["run"]])
def test_it_is_checked_and_not_run(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t.shard").write_text(TEXT.replace("BATCH", "768"))
    assert run([*command, "t.shard", "--ranks", "2", "--strategy", "plain"]) == 1
    shown = capsys.readouterr()
    assert "SH450" in shown.out + shown.err and not Path("out").exists()


def test_check_takes_a_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As `plan` does: another device is large enough, and one that is not there is told."""
    monkeypatch.chdir(tmp_path)
    Path("t.shard").write_text(TEXT.replace("BATCH", "768"))
    common = ["check", "t.shard", "--ranks", "2", "--strategy", "plain"]
    assert run(common) == 1 and "SH450" in capsys.readouterr().out
    assert run([*common, "--cluster", "std.clusters.h100_pod"]) == 0
    assert "fine" in capsys.readouterr().out
    assert run([*common, "--cluster", "std.clusters.h1000_pod"]) == 1
    assert "SH202" in capsys.readouterr().out


def test_bytes_are_rounded_alike_and_no_value_is_listed_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Values within one statement, which have no name, are one row."""
    monkeypatch.chdir(tmp_path)
    text = TEXT.replace("BATCH", "768").replace("return x |> parts", "return silu(x |> parts) * sigmoid(x * x)")
    Path("t.shard").write_text(text)
    run(["plan", "t.shard", "--ranks", "2", "--strategy", "plain"])
    shown = capsys.readouterr()
    (needs,) = re.findall(r"a rank needs ([\d.]+ MB)", shown.err)
    assert f"at its peak: {needs} of card" in shown.out
    title = "the largest, a parameter with its gradient and optimizer state:\n"
    rows = re.findall(r"  [\d.]+ .B  (\S+) ", shown.out.partition(title)[2].partition("\n\n")[0])
    assert rows and len(rows) == len(set(rows)), rows
