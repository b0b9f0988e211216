"""`shardc why`: who decided, with its line; each alternative has the figures of a plan with that rule written."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shardlang.check.program import CheckedProgram
from shardlang.cli.main import run
from shardlang.cli.why_text import lines
from shardlang.diagnostics.diagnostic import Sink
from shardlang.driver import check_source, explain_plan, plan_program, predict_plan, with_cluster
from shardlang.folds.peak.step import step_peaks
from shardlang.folds.traffic import sent_bytes
from shardlang.plan.plan import Plan
from shardlang.sources.files import read_program
from shardlang.sources.source import Source
from shardlang.step.stages import stages_by_coordinate
from shardlang.terminal.display import width
from tests.emit import sources
from tests.plan.test_equal_layers import LLAMA, filled

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
H100 = "std.clusters.h100_pod"


def asked(
    file: str, name: str, ranks: int, strategy: str, text: str | None = None, cluster: str | None = None
) -> dict[str, Any]:
    source = read_program(str(EXAMPLES / file)) if text is None else Source(str(EXAMPLES / file), text)
    program = check_source(source, sink := Sink(), {}, strategy)
    program = with_cluster(program, cluster, sink) if program is not None else None
    assert program is not None
    found = explain_plan(program, strategy, ranks, name, sink)
    assert found is not None, [d.message for d in sink.found]
    return dict(found)


def planned(file: str, text: str, ranks: int, strategy: str, cluster: str | None = None) -> tuple[Plan | None, Sink]:
    program = check_source(Source(str(EXAMPLES / file), text), sink := Sink(), {}, strategy)
    program = with_cluster(program, cluster, sink) if program is not None else None
    return (plan_program(program, strategy, ranks, sink) if program is not None else None), sink


def with_rule(file: str, strategy: str, rule: str, mesh: str = "") -> str:
    """The program with a rule in the place of those of the same value or kind."""
    head, opened, rest = (EXAMPLES / file).read_text().partition(f"strategy {strategy} {{\n")
    body, closed, tail = rest.partition("\n}\n")
    start = "zero" if rule.split()[-1] == "zero" or rule.startswith("zero") else rule.partition(":")[0]
    kept = [line for line in body.splitlines() if not line.strip().startswith(start)]
    added = [rule] if not rule.startswith("no ") else []
    return head + opened + "\n".join(f"  {line}" for line in [mesh, *kept, *added] if line) + closed + tail


@pytest.mark.parametrize(("file", "name", "ranks", "strategy", "mesh"), [
    ("quickstart.shard", "h", 8, "propagated", "mesh a = 2, b = 4"),
    ("quickstart.shard", "a", 8, "propagated", "mesh a = 2, b = 4"),
    ("quickstart.shard", "w", 8, "propagated", "mesh a = 2, b = 4"),
    ("digits.shard", "h", 8, "both", ""),
    ("digits.shard", "up.weight", 4, "both", ""),
    ("digits.shard", "zero", 4, "sharded", ""),
    ("digits.shard", "zero", 4, "data_parallel", ""),
    ("transformer.shard", "decoder.blocks[*].cross.mixed", 8, "three_d", ""),
    ("digits.shard", "up", 4, "both", ""),
    ("transformer.shard", "decoder.blocks[*].mlp", 8, "data_parallel", ""),
])  # fmt: skip
def test_alternatives_have_the_figures_of_a_plan_with_that_rule(
    file: str, name: str, ranks: int, strategy: str, mesh: str
) -> None:
    others = asked(file, name, ranks, strategy, cluster=H100)["alternatives"]
    assert len(others) >= 4
    for each in others:
        plan, sink = planned(file, with_rule(file, strategy, each["written"], mesh), ranks, strategy, H100)
        if plan is None:
            first = next(d for d in sink.found if d.severity.value == "error")
            assert [(why["code"], why["message"]) for why in each["refused"]] == [(first.code, first.message)]
            continue
        lines = [None] if plan.pipeline is None else stages_by_coordinate(plan)
        assert each["refused"] == [] and each["sent_bytes"] == sum(sum(sent_bytes(plan, mine)) for mine in lines)
        assert each["peak_bytes"] == max(peak.bytes for peak in step_peaks(plan))
        step = predict_plan(plan, sink)
        assert step is not None and each["step_s"] == step.step_s


def with_rules(file: str, strategy: str, written: str) -> str:
    """The program with rules in the place of those that begin with the same word."""
    head, opened, rest = (EXAMPLES / file).read_text().partition(f"strategy {strategy} {{\n")
    body, closed, tail = rest.partition("\n}\n")
    rules = re.split(r"; (?=mesh|stages|schedule|microbatches)", written)
    words = {rule.split()[0] for rule in rules}
    if "stages" in words:  # of a block its first line is left, which goes with the word
        body = re.sub(r"^  (stages [^\n]*\{)\n(.*?)\n  \}", r"  \1", f"{body}\n", flags=re.DOTALL | re.MULTILINE)
    kept = [line for line in body.splitlines() if line.split() and line.split()[0] not in words]
    return head + opened + "\n".join([*kept, *rules]) + closed + tail


@pytest.mark.parametrize(("file", "name", "ranks", "strategy", "least"), [
    ("transformer.shard", "stages", 8, "three_d", 8),
    ("transformer.shard", "mesh", 8, "three_d", 6),
    ("llama.shard", "stages", 512, "large", 11),
    ("digits.shard", "stages", 8, "both", 2),
    ("transformer.shard", "microbatches", 8, "three_d", 4),
    ("digits.shard", "microbatches", 8, "both", 2),
    ("transformer.shard", "schedule", 8, "three_d", 3),
])  # fmt: skip
def test_neighbours_of_stages_have_the_figures_of_a_plan_with_them(
    file: str, name: str, ranks: int, strategy: str, least: int
) -> None:
    found = asked(file, name, ranks, strategy, cluster=H100)
    now, _ = planned(file, (EXAMPLES / file).read_text(), ranks, strategy, H100)
    assert now is not None and len(found["alternatives"]) >= least
    ours = len(now.pipeline.actions) if now.pipeline is not None else 1
    for each in found["alternatives"]:
        plan, sink = planned(file, with_rules(file, strategy, each["written"]), ranks, strategy, H100)
        if plan is None:
            assert each["refused"][0]["code"] in {d.code for d in sink.found}
            continue
        lines = [None] if plan.pipeline is None else stages_by_coordinate(plan)
        sends = sum(sum(sent_bytes(plan, mine)) for mine in lines) * ours // len(lines)
        step = predict_plan(plan, sink)
        assert step is not None and each["refused"] == [] and (each["told"] or name in ("microbatches", "schedule"))
        peak = max(peak.bytes for peak in step_peaks(plan))
        assert (each["sent_bytes"], each["peak_bytes"], each["step_s"]) == (sends, peak, step.step_s)


def test_stages_are_told_with_their_work_and_a_cut_that_differs() -> None:
    found = asked("transformer.shard", "stages", 8, "three_d", cluster=H100)
    rows = found["stages"]
    assert [row["layers"] for row in rows] == [["src_embed", "encoder", "tgt_embed"], ["decoder", "head"]]
    assert sum(row["share"] for row in rows) == pytest.approx(1) and rows[1]["microbatch_s"] > rows[0]["microbatch_s"]
    assert [rule["text"].split()[0] for rule in found["decided"]["rules"]] == ["stages", "microbatches", "schedule"]
    told = [each["told"] for each in found["alternatives"]]
    assert "decoder.blocks[0] in stage 0, not in 1" in told and "stages over pp balanced" in told
    assert {each["written"].partition("=")[0] for each in found["alternatives"] if "mesh" in each["written"]}
    without = asked("transformer.shard", "stages", 8, "three_d")
    assert [row["microbatch_s"] for row in without["stages"]] == [None, None]


def test_an_axis_of_the_mesh_is_told_with_its_rules_and_bytes() -> None:
    """All that is sent is sent over one of the rows."""
    for file, ranks, strategy in (("transformer.shard", 8, "three_d"), ("digits.shard", 8, "both")):
        found = asked(file, "mesh", ranks, strategy, cluster=H100)
        sent = sum(each["bytes"] for row in found["axes"] for each in row["sent"])
        assert sent == found["now"]["sent_bytes"] and all(row["rules"] for row in found["axes"] if not row["axes"][1:])
        assert all(row["exposed_s"] >= 0 for row in found["axes"])


def test_neighbours_of_a_mesh_have_the_figures_of_a_plan_on_it() -> None:
    found = asked("digits.shard", "mesh", 16, "both")
    assert found["is"] == ["dp = 8, mp = 2"] and len(found["alternatives"]) == 2
    for each in found["alternatives"]:
        text = (EXAMPLES / "digits.shard").read_text()
        assert "mesh dp = auto, mp = 2" in text
        text = text.replace("mesh dp = auto, mp = 2", each["written"])
        plan, _ = planned("digits.shard", text, 16, "both")
        assert plan is not None and each["sent_bytes"] == sum(sent_bytes(plan))


@pytest.mark.parametrize(("file", "name", "strategy", "by", "rules"), [
    ("quickstart.shard", "h", "propagated", "shard", {"shard ((2, 4), (4, 1))": 19}),
    ("quickstart.shard", "a", "propagated", "propagated", {}),
    ("quickstart.shard", "w", "propagated", "reader", {"shard ((2, 4), (4, 1))": 19}),
    ("quickstart.shard", "w2", "propagated", "reader", {}),
    ("dense_chain.shard", "z", "named", "pin", None),
    ("digits.shard", "h", "both", "split", {"split batch over dp": 31, "split hidden over mp": 32}),
    ("digits.shard", "up.weight", "sharded", "reader", None),
])  # fmt: skip
def test_the_rules_that_decided_are_named_with_their_lines(
    file: str, name: str, strategy: str, by: str, rules: dict[str, int] | None
) -> None:
    ranks = 4 if file == "dense_chain.shard" else 8
    decided = asked(file, name, ranks, strategy)["decided"]
    assert decided["by"] == by
    text = (EXAMPLES / file).read_text().splitlines()
    for rule in decided["rules"]:
        assert rule["text"].split()[0] in text[int(rule["source"].rpartition(":")[2]) - 1]
    if rules is not None:
        assert {rule["text"]: int(rule["source"].rpartition(":")[2]) for rule in decided["rules"]} == rules


def test_every_value_of_the_quickstart_is_explained() -> None:
    """Each answer agrees with the plan, and none of the alternatives of a propagated value sends less."""
    for name in ("x", "label", "w", "h", "a", "w2", "return", "loss"):
        if name == "return":
            continue  # it has no name that a rule could use
        found = asked("quickstart.shard", name, 8, "propagated")
        assert found["kind"] == "value" and found["layout"]
        if found["decided"]["by"] == "propagated" and name != "loss":
            assert all(o["refused"] or o["sent_bytes"] >= found["now"]["sent_bytes"] for o in found["alternatives"])


def test_what_does_not_divide_says_which_degrees_would() -> None:
    text = (EXAMPLES / "digits.shard").read_text()
    assert "hidden = 128" in text
    text = text.replace("hidden = 128", "hidden = 30")
    others = asked("digits.shard", "h", 8, "data_parallel", text)["alternatives"]
    why = next(o["refused"][0] for o in others if "hidden@dp" in o["written"])
    assert why["code"] == "SH304" and why["help"] == ["`dp` could be 1 or 2, with as many ranks"]


def test_nothing_is_sent_where_no_bytes_are() -> None:
    """A conversion that only masks is no collective; what is as it is, is no alternative."""
    text = (EXAMPLES / "digits.shard").read_text()
    rule = "  split hidden over mp\n"
    text = text.replace(rule, f"{rule}  at h: [batch@(dp, mp), hidden]\n")
    for name in ("h", "up", "down.weight", "loss"):
        answer = asked("digits.shard", name, 4, "both", text)
        assert all(each["forward_bytes"] + each["backward_bytes"] for each in answer.get("sent", ()))
    assert asked("digits.shard", "h", 4, "both", text)["decided"]["by"] == "pin"
    assert asked("digits.shard", "recompute", 4, "both")["alternatives"] == []


def test_a_layer_has_a_line_for_each_value() -> None:
    found = asked("transformer.shard", "encoder.blocks[0].attention", 8, "three_d", cluster=H100)
    assert found["takes"]["compute_s"] > 0 and found["takes"]["exposed_s"] > 0
    assert {rule["text"].split()[0] for rule in found["decided"]["rules"]} == {"split", "zero"}
    names = [value["name"] for value in found["values"]]
    assert found["kind"] == "layer" and "encoder.blocks[0].attention.q.weight" in names
    assert {value["decided"]["by"] for value in found["values"]} == {"split", "reader"}


def test_layers_of_an_array_are_asked_about_together() -> None:
    found = asked("transformer.shard", "encoder.blocks[*].mlp", 8, "three_d")
    assert [v["name"] for v in found["values"]][:2] == ["encoder.blocks[0..6].mlp.up.weight",
                                                       "encoder.blocks[0..6].mlp.up.bias"]  # fmt: skip
    one = asked("transformer.shard", "encoder.blocks[2].mlp", 8, "three_d")
    for many, single in zip(found["sent"], one["sent"], strict=True):
        assert many["axes"] == single["axes"] and many["forward_bytes"] == 6 * single["forward_bytes"]


def test_seconds_of_what_is_sent_for_a_value_are_at_least_those_waited_for() -> None:
    found = asked("transformer.shard", "encoder.blocks[0].h", 8, "three_d", cluster=H100)
    sent = [each for each in found["sent"] if each["seconds"] is not None]
    assert sent and all(0 <= each["exposed_s"] <= each["seconds"] for each in sent)
    step = next(e["exposed_s"] for e in asked("transformer.shard", "mesh", 8, "three_d", cluster=H100)["axes"]
                if e["axes"] == ["mp"])  # fmt: skip
    assert 0 < sum(each["exposed_s"] for each in sent) < step


@pytest.mark.parametrize(("name", "said"), [
    ("up.wieght", "did you mean `up.weight`?"), ("zzz", "name a value as the plan does"), ("h[", "SH308"),
    ("h: recompute\n at g", "SH308"), ("", "SH308"),
])  # fmt: skip
def test_a_name_that_is_not_there_is_a_diagnostic(name: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["why", str(EXAMPLES / "digits.shard"), name, "--ranks", "4", "--strategy", "both"]) == 1
    assert said in (err := capsys.readouterr().err) and "SH308" in err


def test_one_rank_and_programs_without_strategies_have_no_alternatives(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("h", "mesh", "stages", "zero", "recompute", "microbatches", "schedule", "up"):
        assert run(["why", str(EXAMPLES / "digits.shard"), name, "--ranks", "1", "--json"]) == 0
        assert json.loads(capsys.readouterr().out).get("alternatives", []) == []


@pytest.mark.parametrize("room", (80, 120))
def test_it_fits_the_terminal(room: int) -> None:
    for found in (asked("transformer.shard", "encoder.blocks[*].attention.out.weight", 8, "three_d"),
                  asked("transformer.shard", "encoder", 8, "three_d")):  # fmt: skip
        made = [line.text for line in lines(found, room)]
        assert [text for text in made if width(text) > room] == [] and re.search("three_d", " ".join(made))


@pytest.mark.parametrize("what", ["zero", "recompute", "stages", "of.blocks[1]", "of.blocks[7].mlp", "of.embed"])
def test_answers_of_runs_are_those_of_all_layers(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal layers are told once in each of the plans that an answer compares, or one by one in all of them."""
    stages = {"mesh dp": "mesh pp = 2, dp", "RULE": "stages over pp balanced\n  zero 1 over dp", "MORE": ""}
    program = sources.checked(filled({**stages, "LAYERS": "20"}, LLAMA))
    found = explain_plan(program, "s", 8, what, Sink())
    planned: list[bool] = []

    def each(self: CheckedProgram, work: Callable[[CheckedProgram], object]) -> object:
        planned.append(self.graph.in_runs)
        return work(self)

    monkeypatch.setattr(CheckedProgram, "in_runs", each)
    assert found is not None and found == explain_plan(program, "s", 8, what, Sink())
    assert planned and not any(planned)
