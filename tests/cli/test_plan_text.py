"""What `shardc plan` prints: a first screen, the program as it is written, parts of it, at every width."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shardlang.cli.plan_view import program as plan_text
from shardlang.cli.plan_view.columns import filled, shortened, table
from shardlang.cli.plan_view.parameters import parameters
from shardlang.cli.plan_view.parts import of_rank, part_of
from shardlang.cli.plan_view.program import Detail, program
from shardlang.cli.plan_view.screen import heading, screen, sizes
from shardlang.cli.verify_text import Check, VerifyRequest, tell
from shardlang.diagnostics.diagnostic import Sink
from shardlang.driver import check_source, plan_program
from shardlang.folds.block_report import same_layers
from shardlang.folds.report import report
from shardlang.paths.runs import endings, in_runs, patterns, unindexed
from shardlang.plan.plan import Plan
from shardlang.sources.files import read_program
from shardlang.sources.source import Source
from shardlang.terminal.display import rounded_up, size, width
from tests.cli.test_commands import run
from tests.emit import sources
from tests.emit.sources import planned
from tests.plan.test_published import LLAMA_405B

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
TRANSFORMER = str(EXAMPLES / "transformer.shard")
THREE_D = ("transformer.shard", "three_d", 8)
ALL = [
    ("quickstart.shard", None, 8), ("digits.shard", None, 4), THREE_D, ("transformer.shard", "model_parallel", 4),
    ("wide_deep.shard", "host_device", 4), ("dense_chain.shard", None, 4), ("operator_parallel.shard", None, 8),
]  # fmt: skip


@lru_cache(maxsize=8)
def plan_of(file: str, strategy: str | None, ranks: int, layers: str = "") -> Plan:
    sink, given = Sink(), {"model.layers": layers} if layers else {}
    program = check_source(read_program(str(EXAMPLES / file)), sink, given, strategy)
    found = plan_program(program, strategy, ranks, sink) if program is not None else None
    assert found is not None, [d.message for d in sink.found]
    return found


@lru_cache(maxsize=8)
def found_of(file: str, strategy: str | None, ranks: int, layers: str = "") -> dict[str, Any]:
    return report(plan_of(file, strategy, ranks, layers))


def text(found: Mapping[str, Any], room: int, detail: Detail | None = None) -> list[str]:
    return [line.text.rstrip() for line in plan_text.lines(found, room, detail or Detail(), False)]


def names_of(found: Mapping[str, Any]) -> set[str]:
    """Every name that a plan has, of which none may be cut."""
    texts = [o["text"] + " " + o["layout"] for o in found["operators"]] + [p["path"] for p in found["parameters"]]
    return set(re.findall(r"\w+", " ".join(texts)))


def test_the_first_screen_of_three_dimensions_answers_the_first_questions() -> None:
    lines = [line.text for line in screen(found_of(*THREE_D), 80)]
    assert len(lines) <= 40
    said = "\n".join(lines)
    of_five = [at for at, line in enumerate(lines) if line.startswith("the largest, ")]
    for at, last in zip(of_five, ("9.44 MB", "12.6 MB"), strict=True):
        assert lines[at + 5].strip().startswith(last) and not [*lines, ""][at + 6]
    for part in (
        "pp = 2, dp = 2, mp = 2", "schedule 1f1b over pp", "pp 1  .. F0 B0---", "memory of a rank of stage 0", "320 MB",
        "parameters 104 MB", "sent in a step by a rank of stage 1", "reduce-scatter over mp", "send over pp",
        "3 others", "encoder.blocks[0..6].mlp.up.weight", "decoder.blocks[0..6].cross_norm",
    ):  # fmt: skip
        assert part in said, part


def test_the_first_lines_say_what_is_trained_and_how_long() -> None:
    """Parameters are those of the whole model, layers of a run each; days are of the predicted step."""
    found = {**found_of("llama.shard", "large", 512), "predicted": {"step_s": 27.65}}
    assert found["amounts"] == {"parameters": 8_030_261_248, "tokens": 8_388_608, "steps": 10_000}
    said = "8,030,261,248 parameters, 8,388,608 tokens a step, 10,000 steps in 3.2 days"
    assert [line.text for line in heading(found, 100)][2:] == [said]
    assert sizes({"parameters": 1, "tokens": 0, "steps": None}, 0.1) == "1 parameter"
    assert sizes({"parameters": 12, "tokens": 0, "steps": 30}, 0.01) == "12 parameters, 30 steps in 0.3 seconds"


@pytest.mark.parametrize("room", (80, 200))
def test_a_large_model_fits_one_screen(room: int) -> None:
    found = {**found_of("llama.shard", "large", 512), "program": "llama.shard"}
    lines = [line.text for line in screen(found, room)]
    assert len(lines) <= 40 and max(map(width, lines)) <= room
    said = "\n".join(lines)
    for part in (
        f"{size(found['per_rank']['peak_bytes'])} of h100's 85.0 GB",
        "torch reserves 7.67 GB, NCCL 5.02 GB for 8 groups, of the device 13.6 GB",
        "(5 more, which --full shows)", " others ", "blocks[4..9,21..25].attention_norm",
        "pp 3  .... .... .... 3F0 ",
    ):  # fmt: skip
        assert part in said, part
    known = {name.rstrip("-") for row in found["pipeline"]["drawing"] for name in row.split()}
    drawn = [name.rstrip("-") for line in lines if line.startswith("pp ") for name in line.split()[2:]]
    assert set(drawn) <= {*known, "..."}
    whole = "\n".join(line.text for line in screen(found, room, True))
    assert "  allocated 7.07 GB, torch reserves 7.67 GB, NCCL 5.02 GB for 8 groups" in whole and "allocated" not in said
    assert "the most together then: 1 x 2.11 GB temporaries" in whole and "together" not in said
    assert " others " not in whole and "blocks[17..21]" in whole and "7B15" in whole and "7B15" not in said


def test_the_device_is_beside_what_a_rank_keeps() -> None:
    found = found_of(*THREE_D)
    found = {**found, "per_rank": {**found["per_rank"], "device": "card", "device_memory_bytes": 640_000_000}}
    most = size(found["per_rank"]["peak_bytes"])
    assert any(f"at its peak: {most} of card's 640 MB" in line.text for line in screen(found, 80))


def test_depth_adds_no_line() -> None:
    six, more = text(found_of(*THREE_D), 80), text(found_of(*THREE_D, "48"), 80)
    assert len(more) <= len(six) <= 120
    assert "  blocks[0..48]: EncoderBlock, 48 times, recomputed" in more


@pytest.mark.parametrize("case", ALL, ids=lambda case: f"{case[0]}-{case[1]}")
@pytest.mark.parametrize("room", (80, 120, 200))
def test_lines_fit_and_names_are_whole(case: tuple[str, str | None, int], room: int) -> None:
    found = found_of(*case)
    known = names_of(found)
    for view in (found, of_rank(found, 1)):
        for detail in (Detail(), Detail(operands=True), Detail(full=True)):
            lines = text(view, room, detail)
            assert max(map(width, lines)) <= room
            assert detail.full or not any(line.endswith(" - / -") for line in lines)
            for line, after in pairwise(lines):
                end, begin = re.search(r"(\w+)$", line), re.match(r"\s*(\w+)", after)
                if end and begin and end[1] + begin[1] in known:
                    assert end[1] in known or begin[1] in known, (line, after)


@pytest.mark.parametrize("case", ALL, ids=lambda case: f"{case[0]}-{case[1]}")
def test_blocks_are_all_operators_once(case: tuple[str, str | None, int]) -> None:
    def count(items: list[Any], times: int) -> tuple[int, int]:
        sent = sum("collective" in item for item in items)
        inner = [count(item["items"], times * len(item["layers"])) for item in items if "layers" in item]
        own = (times * (len(items) - sent - len(inner)), times * sent)
        return own[0] + sum(i[0] for i in inner), own[1] + sum(i[1] for i in inner)

    found, apart = (report(plan_of(*case), each=True, folded=folded) for folded in (True, False))
    outside = sum(c["phase"] != "inside" and c["kind"] != "view" for o in found["operators"] for c in o["collectives"])
    assert count(found["blocks"], 1) == (len(found["operators"]), outside)
    assert count(apart["blocks"], 1) == (len(found["operators"]), outside)


@pytest.mark.parametrize("case", ALL, ids=lambda case: f"{case[0]}-{case[1]}")
def test_equal_layers_that_are_told_once_add_up_to_each(case: tuple[str, str | None, int]) -> None:
    def sums(found: Mapping[str, Any]) -> Counter[object]:
        """How often there is each operator, collective and parameter, without the numbers of layers."""
        counts = Counter[object]()
        for o in found["operators"]:
            counts[unindexed(o["name"]), o["operator"], o["layout"]] += o.get("times", 1)
            for c in o["collectives"]:
                kind = unindexed(c["value"]), c["kind"], c["from"], c["to"], c["forward_bytes"], c["backward_bytes"]
                counts[kind] += c.get("times", 1)
        for p in found["parameters"]:
            counts[unindexed(p["path"]), p["layout"], p["local_bytes"], p["zero"]] += p.get("times", 1)
        return counts

    once, each = found_of(*case), report(plan_of(*case), each=True)
    assert sums(once) == sums(each)
    assert (once["version"], each["version"]) == (3, 2) and "times" not in str(each)
    assert [r["bytes"] for r in once["gradient_reductions"]] == [r["bytes"] for r in each["gradient_reductions"]]
    names = {name for r in once["gradient_reductions"] for name in r["parameters"]}
    assert names <= {p["path"] for p in once["parameters"]}
    same = once.keys() - {"version", "operators", "blocks", "gradient_reductions", "parameters", "pipeline"}
    assert all(once[key] == each[key] for key in same)


@pytest.mark.parametrize("case", ALL, ids=lambda case: f"{case[0]}-{case[1]}")
def test_what_is_sent_by_kind_is_all_that_is_sent(case: tuple[str, str | None, int]) -> None:
    found = found_of(*case)
    parts = [found, *(found["pipeline"]["coordinates"] if found["pipeline"] else ())]
    for part in parts:
        totals = part["per_rank"] if part is found else part
        for key in ("forward_bytes", "backward_bytes"):
            assert sum(entry[key] for entry in part["sent"]) == totals[key]
        assert sum(e["bytes"] for e in part["largest"]["kept"]) <= totals["total_bytes"]


# Stage 0 holds most at its peak, stage 1 keeps most in a step.
MIXED = """\
use std.gpt2: GPT2

dim batch = 16, seq = 64

strategy three_d {
  mesh pp = 2, dp = auto, mp = 2
  split batch over dp
  split heads, ffn, vocab over mp
  stages over pp balanced
  microbatches 4
  schedule "1f1b"
  zero 1 over dp
  at blocks[*]: recompute
}

train {
  model = GPT2(vocab = 256, d = 64, heads = 4, layers = 4, max_len = seq, dropout = 0.0)
  data = random(tokens: i64[batch, seq] < 256, label: i64[batch, seq] < 256, batches = 4)
  loss = cross_entropy(model(tokens), label)
  optimizer = adamw(lr = 1e-3)
  steps = 2
}
"""


def test_memory_is_that_of_one_rank() -> None:
    """All that stands under `memory of a rank of stage 0`: its peak, what it keeps, and the largest; of another rank
    its own, of a device and of a host too.
    """
    found = report(planned(MIXED, 8))
    totals, coordinates = found["per_rank"], found["pipeline"]["coordinates"]
    assert coordinates[0]["peak_bytes"] > coordinates[1]["peak_bytes"]
    assert coordinates[0]["total_bytes"] < coordinates[1]["total_bytes"]
    fullest = coordinates[0]
    sent = ("forward_bytes", "backward_bytes")
    assert {key: totals[key] for key in totals if key not in sent} == {
        key: fullest[key] for key in totals if key not in sent
    }
    assert found["largest"]["kept"] == fullest["largest"]["kept"]
    shown = text(found, 100)
    at = next(i for i, line in enumerate(shown) if line.startswith("memory of a rank of stage 0 at its peak"))
    assert f"kept in a step {rounded_up(fullest['total_bytes'])}:" in " ".join(shown[at : at + 7])
    assert not any("blocks[2" in line for line in shown[at : at + 10])
    other = of_rank(found, 4)["per_rank"]
    assert {key: other[key] for key in other} == {key: coordinates[1][key] for key in other}
    assert other["device_bytes"] != totals["device_bytes"]


def test_a_statement_says_what_is_sent_for_it() -> None:
    lines = text(found_of("quickstart.shard", None, 8), 80)
    at = next(i for i, line in enumerate(lines) if line.startswith("h = x @ w"))
    assert lines[at].endswith("[batch@a, hidden] +b  8x16")
    assert " ".join(lines[at + 1].split()) == "reduce-scatter over b {0,1,2,3} {4,5,6,7} 384 B / 384 B"
    operands = text(found_of("quickstart.shard", None, 8), 80, Detail(operands=True))
    assert "    reads x                             [batch@a, input@b]  8x8" in operands


def test_a_layer_of_one_statement_is_in_the_line_that_calls_it() -> None:
    lines = [line.text for line in program(found_of(*THREE_D), 120, Detail())]
    assert not any("Projection" in line or "LayerNorm" in line for line in lines)
    full = [line.text for line in program(report(plan_of(*THREE_D), folded=False), 120, Detail(full=True))]
    assert sum("Projection" in line for line in full) == 6 * 6 + 6 * 10
    assert sum("EncoderBlock" in line for line in full) == 6 < len(full) / 100


def test_what_is_sent_for_a_layer_stands_before_it() -> None:
    lines = [line.text for line in program(found_of(*THREE_D), 80, Detail())]
    at = lines.index("decoder: Decoder, stage 1")
    assert lines[at + 1].startswith("  all-gather of encoder.norm over mp {4,5} {6,7} ")
    assert lines[at + 2] == "  blocks[0..6]: DecoderBlock, 6 times, recomputed"


def test_layers_that_are_the_same_elsewhere_are_shown_once() -> None:
    sink = Sink()
    source = """
    use std.transformer: FeedForward
    dim batch = 4, seq = 4
    model Net(d: dim = 8) {
      layer one = FeedForward(d, 16)
      layer two = FeedForward(d, 16)
      layer three = FeedForward(d, 16)
      forward(x: [batch, seq, d]) -> [batch, seq, d] {
        y = one(x)
        z = two(y) + y
        return three(z) + z
      }
    }
    train {
      model = Net()
      data = random(x: [batch, seq, 8], batches = 2)
      loss = mean(model(x))
      optimizer = sgd(lr = 0.1)
      steps = 1
    }
    """
    checked = check_source(Source("x.shard", source), sink)
    plan = plan_program(checked, None, 1, sink) if checked is not None else None
    assert plan is not None, [d.message for d in sink.found]
    lines = [line.text for line in program(report(plan), 80, Detail())]
    assert "three: FeedForward, as two" in lines


def test_a_part(capsys: pytest.CaptureFixture[str]) -> None:
    def plan(*more: str) -> list[str]:
        assert run(["plan", TRANSFORMER, "--ranks", "8", "--strategy", "three_d", *more]) == 0
        return capsys.readouterr().out.splitlines()

    part = plan("--at", "encoder.blocks[3].attention")
    assert "  blocks[3]: EncoderBlock, recomputed" in part and "    attention: Attention" in part
    assert not any("decoder" in line or "memory of" in line for line in part)
    assert "8 parameters (bytes of one), zero 1 over dp, gradients summed over dp" in part
    assert "  blocks[0..6]: EncoderBlock, 6 times, recomputed" in plan("--at", "encoder.blocks[*].mlp")
    assert "  blocks[2..4]: EncoderBlock, 2 times, recomputed" in plan("--at", "encoder.blocks[2..4]")
    assert [line for line in plan("--at", "train.loss") if line.startswith("loss = cross_entropy(")]
    assert plan() == text({**found_of(*THREE_D), "program": TRANSFORMER}, 120)


@pytest.mark.parametrize(
    ("at", "said"),
    [
        ("encoder.nothing", "matches nothing of the model"),
        ("encoder blocks", "is no selector"),
        ("encoder.block[3]", "matches nothing of the model; did you mean `encoder.blocks[3]`?"),
    ],
)
def test_a_part_that_is_none(at: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", TRANSFORMER, "--ranks", "8", "--strategy", "three_d", "--at", at]) == 2
    assert said in capsys.readouterr().err


def test_runs_and_patterns() -> None:
    paths = [f"{s}.blocks[{i}].{n}.weight" for s in ("one", "two") for i in range(4) for n in "qkv"]
    assert patterns(paths) == ["{one,two}.blocks[0..4].{q,k,v}.weight"]
    assert in_runs(["up", "blocks[0]", "blocks[1]", "blocks[3]", "down"]) == ["up", "blocks[0..2]", "blocks[3]", "down"]
    assert in_runs(f"a[{i}].b[{j}]" for i in range(2) for j in range(3)) == ["a[0..2].b[0..3]"]
    assert patterns(["x", "y", "a.x"]) == ["x", "y", "a.x"]
    others = ["one.norm.weight", "head.weight"]
    assert endings(paths, others) == ["**.{q,k,v}.weight"]
    assert patterns(["a[0].x", "a[1].x", "a[3].x"]) == ["a[0..2,3].x"]
    assert patterns(["a[0]", "a[2]", "b"]) == ["a[0,2]", "b"]
    assert patterns(["a[3]", "a[0..3]"]) == ["a[0..4]"]
    assert endings(["a.up.bias", "b.up.bias"], ["c.up.bias"]) == ["{a,b}.up.bias"]


def test_brackets_are_left_out_where_a_line_is_short() -> None:
    statement = "queries = rearrange(q(x) -> [batch, heads, seq, head_dim])"
    assert shortened(statement, 80) == statement
    assert shortened(statement, 40) == "queries = rearrange(q(x) -> [...])"
    assert shortened(statement, 26) == "queries = rearrange(...)"
    assert shortened(statement, 20) is None
    assert shortened('x = f("a (b", c)', 12) == "x = f(...)"


def test_columns() -> None:
    assert [size(n) for n in (0, 999, 1_048_576, 12_345_678, 319_558_656, 2_000_000_000_000)] == [
        "0 B", "999 B", "1.05 MB", "12.3 MB", "320 MB", "2.00 TB",
    ]  # fmt: skip
    assert filled(["one", "two", "three"], 9, "", "  ") == ["one two", "  three"]
    assert filled(["a.long.path.of.names"], 12) == ["a.long.path.", "of.names"]
    assert table([("a", "one two three", "9"), ("bc", "x", "10")], 20, right=(2,), wide=1) == [
        "a   one two        9", "    three", "bc  x             10",
    ]  # fmt: skip


def test_parameters_are_named_by_patterns() -> None:
    lines = [line.text for line in parameters(found_of(*THREE_D), 80, False)]
    assert len(lines) <= 14
    assert any(line.startswith("**.{q,k,v}.weight ") for line in lines)
    assert len([*parameters(report(plan_of(*THREE_D), each=True), 80, True)]) > 261


FROZEN = """
use std.nn: Linear

dim batch = 4, d = 4

model Net {
  layer up = Linear(d, d)
  layer mid = Linear(d, d)
  layer head = Linear(d, d, bias = false)

  forward(x: [batch, d]) -> [batch, d] {
    return x |> up |> relu |> mid |> relu |> head
  }
}

strategy s {
  mesh dp = 2
  split batch over dp
  zero 2 over dp
}

train {
  model = Net()
  data = random(x: [batch, d], y: [batch, d], batches = 1)
  loss = mse_loss(model(x), y)
  optimizer = sgd(lr = 0.1)
  freeze at up, mid
  steps = 1
}
"""


def test_what_is_frozen_says_so_itself() -> None:
    """Also where most are: the title is about those that are trained, and nobody else is frozen."""
    plan = sources.planned(FROZEN, 2)
    title, *rows = [line.text for line in parameters(report(plan), 120, False)][1:]
    assert title == "5 parameters (bytes of one), zero 2 over dp, gradients summed over dp"
    assert [(row.split("  ")[0], row.endswith(", frozen")) for row in rows] == [
        ("{up,mid}.weight", True), ("{up,mid}.bias", True), ("head.weight", False),
    ]  # fmt: skip
    assert "summed" not in rows[0] and "zero" not in rows[-1]


def test_a_selector_covers_what_it_names() -> None:
    each = report(plan_of(*THREE_D), each=True)
    found = part_of(each, lambda path: path if path.endswith("mlp.up.weight") else "")
    assert found["blocks"] == [] and len(found["parameters"]) == 12


def test_verify_names_layers_in_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert same_layers(plan_of(*THREE_D), "encoder.blocks[3].attention.mixed") == ["encoder.blocks[0..6]"]
    assert same_layers(plan_of(*THREE_D), "head.return") == []
    ties = tuple(f"blocks[{i}].top" for i in range(3))
    seen: Any = SimpleNamespace(step=3, values=1, gradients=1, parameters=1, largest=0.0, undecided=ties)
    verdict: Any = SimpleNamespace(ok=True, simulated=seen, emitted=None, drawn="")
    job: Any = object()
    tell(Check("s", job, verdict), VerifyRequest("x.shard", 4, 3, "f64", False, False), Sink())
    assert "not compared, as rounding decides them: blocks[0..3].top\n" in capsys.readouterr().out


def test_stages_that_are_alike_are_told_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """405B on 16,384 ranks: 32 stages, of which 30 differ in nothing but their place."""
    file = tmp_path / "large.shard"
    file.write_text(LLAMA_405B.replace("RULES", "at blocks[*]: recompute"), "utf-8")
    assert run(["plan", str(file), "--ranks", "16384"]) == 0
    page = capsys.readouterr().out.splitlines()
    (told,) = [row for row in page if " in each of stages " in row]
    assert told == "blocks[3..123]: Block, 4 in each of stages 1 to 30, recomputed, as blocks[0..3]"
    handed, sent = page[page.index(told) + 1 :][:2]
    assert handed.startswith("the result of each, handed to the next stage") and "send of each over pp" in sent
    assert len(page) <= 120
    assert run(["plan", str(file), "--ranks", "16384", "--full"]) == 0
    full = capsys.readouterr().out.splitlines()
    assert sum("handed to stage" in row for row in full) == 31
