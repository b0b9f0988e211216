"""What the search finds, against all points planned one by one; plans that tell equal layers once; the command."""

from __future__ import annotations

import json
import random
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from shardlang import driver
from shardlang.check.program import CheckedProgram
from shardlang.cli.main import run
from shardlang.cost.hardware import with_speeds
from shardlang.cost.planned import work
from shardlang.cost.predict import predict
from shardlang.diagnostics.diagnostic import Sink
from shardlang.folds.fits import needed
from shardlang.folds.peak.step import step_peaks
from shardlang.format.format import format_file
from shardlang.plan.layouts.known import LayoutTables
from shardlang.plan.planner import laid_out
from shardlang.search import print_rules
from shardlang.search.fill_holes import filled
from shardlang.search.fit_memory import Fitting
from shardlang.search.profiles import without_stages
from shardlang.search.request import SearchRequest
from shardlang.search.space import ZERO, Open, Point
from shardlang.search.splits.ways import Splitting
from shardlang.search.splits.written import Writing
from shardlang.search.tune import everything
from shardlang.sources.source import Source
from shardlang.terminal import signals
from shardlang.terminal.display import Live
from tests.emit import sources
from tests.search.exhaustive import seconds, wrong

DEEP = """use std.nn: Linear

dim batch = 64, pixels = 16, classes = 8, ffn = 32

model Block(d: dim) {
  layer up = Linear(d, ffn)
  layer down = Linear(ffn, d)

  forward(x: [batch, d]) -> [batch, d] {
    h = up(x) |> relu
    return x + down(h)
  }
}

model Net(d: dim = 16, layers: int = 8) {
  layer first = Linear(pixels, d)
  layer blocks[layers] = Block(d)
  layer last = Linear(d, classes)

  forward(image: [batch, pixels]) -> [batch, classes] {
    a = first(image) |> relu
    b = a |> blocks
    return last(b)
  }
}

device small {
  memory = 1MB
  compute = 1TFLOP/s
  bandwidth = 100GB/s
  link = 10GB/s
}

# A comment that stays.
strategy ddp {
  mesh dp = auto
  split batch over dp
} # as does this

strategy open {
  mesh pp = auto, dp = auto, tp = 2
  split batch over dp
  split ffn over tp
  stages over pp auto
  microbatches auto
  schedule auto
  zero auto over dp
  recompute auto
}

train {
  model = Net()
  data = random(image: [batch, pixels], label: i64[batch] < 8, batches = 4, seed = 1)
  loss = cross_entropy(model(image), label)
  optimizer = adam(lr = 0.1)
  epochs = 1
}
"""


def checked(text: str, overrides: dict[str, str] | None = None) -> CheckedProgram:
    return sources.checked(text, name="t.shard", settings=overrides)


@pytest.mark.parametrize("seed", [0, 1, 3, 4])
def test_the_least_of_all_points_is_found(seed: int) -> None:
    assert wrong(random.Random(seed)) is None


POINTS = {
    "plain": Point((("pp", 1), ("dp", 4), ("tp", 2)), 1, 1, "", ((0, False),)),
    "zero 3": Point((("pp", 1), ("dp", 4), ("tp", 2)), 1, 4, "", ((3, False),)),
    "zero 1": Point((("pp", 1), ("dp", 4), ("tp", 2)), 1, 2, "", ((1, False),)),
    "stages": Point((("pp", 2), ("dp", 2), ("tp", 2)), 1, 4, "1f1b", ((0, False),)),
    "virtual": Point((("pp", 2), ("dp", 2), ("tp", 2)), 2, 4, "interleaved_1f1b", ((2, False),)),
}


@pytest.mark.parametrize("name", POINTS)
@pytest.mark.parametrize("again", ["", "all but products"])
def test_plans_that_differ_in_zero_and_buckets_share_their_layouts(name: str, again: str) -> None:
    program = checked(DEEP)
    of = Open(program, program.strategies[1], 8)
    point = replace(POINTS[name], layers=("blocks[0]", "blocks[5]"), again=again)
    like = laid_out(program, filled(of, replace(point, zero=((0, False),)), "s"), 8, Sink())
    for level in (*ZERO, ZERO[0]):
        strategy = filled(of, replace(point, zero=(level,)), "s")
        strategy = replace(strategy, rules=(*strategy.rules, print_rules.rule("bucket gradients 5MB")))
        alone, beside = (laid_out(program, strategy, 8, Sink(), each) for each in (None, like))
        assert alone is not None and beside is not None and beside.bucket_bytes == alone.bucket_bytes == 5_000_000
        assert (beside.params, beside.recompute, beside.produced) == (alone.params, alone.recompute, alone.produced)
        assert work(beside) == work(alone) and step_peaks(beside) == step_peaks(alone)


def test_plans_that_know_of_each_other_are_those_that_do_not() -> None:
    """Points on one mesh, one after the other, on few layers and on all, with and without pins."""
    program, known, shared = checked(DEEP), LayoutTables(), 0
    pins = (("a", "[batch@dp, d@tp]"), ("blocks[*].h", "[batch@(dp, tp), ffn]"), ("b", "[batch@dp, d@tp]"))
    every = [*POINTS.values(), *(replace(POINTS["plain"], pins=(pin,)) for pin in pins)]
    for it in (checked(DEEP, {"model.layers": "3"}), program):
        of = Open(it, it.strategies[1], 8)
        for point in (*every, *reversed(every)):
            strategy = filled(of, point, "s")
            alone, beside = (laid_out(it, strategy, 8, Sink(), known=each) for each in (None, known))
            assert (alone is None) == (beside is None)
            if alone is not None and beside is not None:
                shared += any(pin in point.pins for pin in pins)
                assert (beside.ops, beside.conversions) == (alone.ops, alone.conversions)
                assert (beside.params, beside.produced, beside.steps) == (alone.params, alone.produced, alone.steps)
    assert shared == 2 * 2 * len(pins)


@pytest.mark.parametrize("again", [False, True], ids=["each layer once", "a layer twice"])
def test_pins_name_values(again: bool) -> None:
    """What a forward returns without a name cannot be pinned, nor what a later call of a layer makes."""
    text = DEEP.replace("  return last(b)", "  c = first(image * 2) |> relu\n    return last(b + c)") if again else DEEP
    program = driver.with_cluster(checked(text), "std.clusters.h100_pod", Sink())
    assert program is not None
    hardware = with_speeds(program, 8, Sink())
    assert hardware is not None
    of = Open(program, everything(program), 8)
    few = without_stages(of)
    splitting = Splitting(of, few, SearchRequest(8, seconds, 10**6, hardware), None)
    sizes = (("pp", 1), ("dp", 1), ("cp", 2), ("tp", 2))
    found = splitting.chosen(sizes)
    assert found is not None
    writing = Writing(replace(few, ranks=4), Point(sizes, zero=((0, False),)), ("cp", "tp"), found.of)
    pins = {pin for cuts in writing.rules(found.chosen) for pin in cuts.pins}
    assert pins
    for pin in pins:
        sink = Sink()
        laid_out(few.program, filled(few, replace(writing.point, pins=(pin,)), "s"), 4, sink)
        assert {d.code for d in sink.found} <= {"SH322"}, pin


def tuned(folder: Path, capsys: pytest.CaptureFixture[str], *more: str) -> str:
    file = folder / "t.shard"
    if not file.exists():
        file.write_text(DEEP)
    assert run(["tune", str(file), "--ranks", "8", "--budget", "1", *more]) == 0
    return capsys.readouterr().out


def test_the_command_tells_the_same_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, again = (tuned(tmp_path, capsys, "--strategy", "open") for _ in range(2))
    assert first == again and "tuned from `open` for 8 ranks" in first and "tp = 2" in first
    # first 272, eight blocks of 1,072, last 136
    assert first.startswith("# 8,984 parameters\n## tuned")


def test_on_a_terminal_comments_and_sentences_are_broken_between_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = tuned(tmp_path, capsys, "--strategy", "open")
    monkeypatch.setenv("COLUMNS", "50")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    said = tuned(tmp_path, capsys, "--strategy", "open")
    assert said != whole and said.replace("\n## ", " ").split() == whole.replace("\n## ", " ").split()
    assert all(len(line) <= 50 for line in said.splitlines() if line.startswith("#") or line.endswith("."))


def test_what_is_written_is_in_its_form_and_plans(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(tuned(tmp_path, capsys, "--strategy", "open", "--write", "--json"))
    text = (tmp_path / "t.shard").read_text()
    before, after = DEEP.split("train {")
    assert text == f"{before.rstrip()}\n\n{found['text']}\ntrain {{{after}"
    assert format_file(driver.parse_source(Source("t.shard", text), Sink())) == text
    program = checked(text)
    plan = driver.plan_program(program, "open_8", 8, Sink())
    assert plan is not None and max(peak.bytes for peak in step_peaks(plan)) == found["best"][0]["memory"]
    tuned(tmp_path, capsys, "--strategy", "open", "--write")
    assert (tmp_path / "t.shard").read_text() == text, "a second time replaces what was written"


def test_nothing_of_the_file_is_faster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where nothing is pinned."""
    before, _, after = DEEP.partition("strategy open {")
    (tmp_path / "t.shard").write_text(before + after.partition("}\n")[2])
    best = json.loads(tuned(tmp_path, capsys, "--json"))["best"][0]["predicted"]["step_s"]
    program = checked(DEEP)
    hardware, plan = with_speeds(program, 8, Sink()), driver.plan_program(program, "ddp", 8, Sink())
    assert hardware is not None and plan is not None
    assert best <= predict(plan, hardware).step_s


def test_pins_hold_where_a_strategy_of_the_file_is_faster(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`ddp` is faster than eight parts of `ffn`, which sum in every layer."""
    head, _, rest = DEEP.partition("strategy open {")
    open = "strategy open {\n  mesh tp = 8\n  split ffn over tp\n  recompute auto\n}\n"
    (tmp_path / "t.shard").write_text(head + open + rest.partition("}\n")[2])
    found = json.loads(tuned(tmp_path, capsys, "--json"))
    assert [row["facts"]["mesh"] for row in found["best"]] == ["tp = 8"] * len(found["best"])


def test_what_was_not_all_tried_has_a_gap(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """There is one mesh, and too many ways to split dims over it."""
    head, _, rest = DEEP.partition("strategy open {")
    open = "strategy open {\n  mesh tp = 8\n  split auto over tp\n}\n"
    (tmp_path / "t.shard").write_text(head + open + rest.partition("}\n")[2])
    found = json.loads(tuned(tmp_path, capsys, "--json"))
    assert found["points"]["looked_at"] == found["points"]["all"] > 0 and 0 < found["gap"] < 1


FEW = ["--set", "model.layers=3"]  # whose points are all planned whole


@pytest.mark.parametrize(
    ("more", "said"),
    [(["--strategy", "open"], "fits"), ([], "fits"), (FEW, "fits"), (["--budget", "1e-9"], "before the budget ended")],
)
def test_the_budget_ends_where_nothing_fits(
    more: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Some of the points were looked at, which is told."""
    (tmp_path / "t.shard").write_text(DEEP.replace("memory = 1MB", "memory = 1kB"))
    assert run(["tune", str(tmp_path / "t.shard"), "--ranks", "8", "--budget", "1", *more]) == 1
    shown = capsys.readouterr().err
    found = re.search(r"([\d,]+) of ([\d,]+) points were looked at: `--budget` looks longer", shown)
    assert found is not None and "SH326" in shown and said in shown
    looked, every = (int(number.replace(",", "")) for number in found.groups())
    assert looked < every / 2


def test_no_ranks_are_offered_that_do_not_fit_either(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The fewest that fit are offered in test_offers.py."""
    (tmp_path / "t.shard").write_text(DEEP.replace("memory = 1MB", "memory = 1kB"))
    assert run(["tune", str(tmp_path / "t.shard"), "--ranks", "8", "--strategy", "open", *FEW]) == 1
    shown = capsys.readouterr().err
    assert "help: take a smaller model or fewer examples in a batch" in shown and "--ranks" not in shown


@pytest.mark.parametrize("more", [[], ["--strategy", "open"], ["--write", "--json"]])
def test_a_search_that_is_ended_prints_the_best_so_far(
    more: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal comes when something was found."""
    told = list[str]()

    def tell(self: Live, text: str) -> None:
        told.append(text)
        if "the best takes" in text:
            raise signals.Interrupted("SIGTERM")

    monkeypatch.setattr(Live, "__call__", tell)
    (tmp_path / "t.shard").write_text(DEEP)
    assert run(["tune", str(tmp_path / "t.shard"), "--ranks", "8", *more]) == signals.FAILED
    shown = capsys.readouterr()
    assert "ended by SIGTERM: these are the best so far" in shown.err and len(told) >= 1
    assert "strategy " in shown.out and (tmp_path / "t.shard").read_text() == DEEP


def test_a_search_that_is_ended_before_anything_is_found_says_that_it_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def tell(self: Live, text: str) -> None:
        raise signals.Interrupted("SIGTERM")

    monkeypatch.setattr(Live, "__call__", tell)
    (tmp_path / "t.shard").write_text(DEEP.replace("memory = 1MB", "memory = 1kB"))
    assert run(["tune", str(tmp_path / "t.shard"), "--ranks", "8"]) == signals.FAILED
    assert "ended by SIGTERM" in capsys.readouterr().err


def test_a_strategy_of_that_name_that_was_not_tuned_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = DEEP.replace("strategy ddp", "strategy open_8")
    (tmp_path / "t.shard").write_text(text)
    asked = ["--ranks", "8", "--strategy", "open", "--budget", "1", "--write"]
    assert run(["tune", str(tmp_path / "t.shard"), *asked]) == 2
    assert "that `tune` did not write" in capsys.readouterr().err and (tmp_path / "t.shard").read_text() == text


def test_what_is_open_without_a_strategy_checks() -> None:
    program = checked(DEEP)
    assert "split batch over dp" in everything(program).span.text


def test_propagation_alone_changes_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = tuned(tmp_path, capsys, "--search-mode", "sharding_propagation")
    assert "mesh dp = auto\n  split batch over dp\n}" in found


OPEN_LLAMA = """\
use std.clusters: a100_pod
use std.llama: Llama

dim batch = 64, seq = 64

train {
  model = Llama(vocab = 64, d = 64, heads = 8, ffn = 128, layers = 12)
  data = random(tokens: i64[batch, seq] < 64, label: i64[batch, seq] < 64, batches = 2)
  loss = cross_entropy(model(tokens), label)
  optimizer = sgd(lr = 0.1)
  steps = 2
}
"""


def test_ways_to_split_are_no_more_than_the_budget_has_time_for() -> None:
    """On 32 ranks they took three times the budget, without a word."""
    told = list[str]()
    driver.tune_program(checked(OPEN_LLAMA), driver.TuneRequest(32, budget=0.5), Sink(), told.append)
    ways = [text.removeprefix("ways to split on ") for text in told if text.startswith("ways to split on ")]
    assert ways and told[0].startswith("ways") and len(ways) == len(set(ways)) <= 2**4
    assert {size for text in ways for size in re.findall("= ([0-9]+)", text)} <= {"2"}


@pytest.mark.parametrize("again", [0, 4])
@pytest.mark.parametrize("name", POINTS)
def test_a_point_is_planned_with_equal_layers_told_once(name: str, again: int) -> None:
    """Each stage has a run of the 32, also where the first ones are computed again."""
    program = sources.checked(OPEN_LLAMA.replace("layers = 12", "layers = 32"), name="t.shard")
    of, at = Open(program, everything(program), 8), POINTS[name]
    splits = tuple((0, dim, (("tp", False),)) for dim in ("heads", "ffn", "vocab"))
    point = replace(at, sizes=(*at.sizes[:2], ("cp", 1), at.sizes[2]), splits=splits, layers=tuple(of.layers[:again]))
    plan, whole = Fitting(of, "s", seconds, None).plan(point), laid_out(program, filled(of, point, "s"), 8, Sink())
    assert plan is not None and whole is not None
    assert len(plan.graph.ops) < len(whole.graph.ops)
    assert work(plan) == work(whole) and needed(plan) == needed(whole)
