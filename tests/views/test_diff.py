"""`shardc diff`: what it says is what the two plans say, equal plans have no difference, and it fits the terminal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shardlang.cli.diff_text import lines
from shardlang.cli.main import run
from shardlang.diagnostics.diagnostic import Sink
from shardlang.driver import seen_plan
from shardlang.folds.report import report
from shardlang.folds.traffic import sent
from shardlang.terminal.display import width
from shardlang.views.diff import PlanFacts, difference
from shardlang.views.values import forms
from tests.cli.test_plan_text import plan_of

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def seen(file: str, strategy: str | None, ranks: int) -> PlanFacts:
    plan = plan_of(file, strategy, ranks)
    return PlanFacts(plan, report(plan))


def between(file: str, left: str | None, right: str | None, ranks: int) -> dict[str, Any]:
    return difference(seen(file, left, ranks), seen(file, right, ranks))


def rows(found: list[dict[str, Any]]) -> dict[str, tuple[Any, Any]]:
    return {row["what"]: (row["left"], row["right"]) for row in found}


def test_rows_are_what_the_reports_of_the_plans_say() -> None:
    left, right = seen("transformer.shard", "three_d", 8), seen("transformer.shard", "data_parallel", 8)
    found = difference(left, right)
    assert not found["equal"]
    assert rows(found["settings"])["mesh"] == ("pp = 2, dp = 2, mp = 2", "dp = 8")
    assert rows(found["settings"])["schedule"] == ("1f1b", None)
    assert "precision" not in rows(found["settings"])
    kept = [plan.found["per_rank"]["optimizer_bytes"] for plan in (left, right)]
    assert rows(found["memory"])["optimizer"] == tuple(kept) and "host" not in rows(found["memory"])
    for at, plan in enumerate((left, right)):
        by_axes = {axes: both[at] or 0 for axes, both in rows(found["sent"]).items()}
        whole = plan.found["per_rank"]["forward_bytes"] + plan.found["per_rank"]["backward_bytes"]
        assert by_axes.pop("all") == sum(by_axes.values()) == whole
    assert rows(found["stages"])["1"] == ({"layers": ["decoder", "head"], "bytes": 274819596}, None)


def test_the_largest_difference_of_values_is_the_first() -> None:
    found = between("transformer.shard", "three_d", "data_parallel", 8)["values"]

    def gap(row: dict[str, Any]) -> int:
        sides = [row[s] or {"forward_bytes": 0, "backward_bytes": 0} for s in ("left", "right")]
        sums = [side["forward_bytes"] + side["backward_bytes"] for side in sides]
        return row["count"] * abs(sums[0] - sums[1])

    assert [gap(row) for row in found] == sorted(map(gap, found), reverse=True)
    assert found[0]["paths"] == ["{src_embed,tgt_embed,head}.weight"]
    assert found[0]["left"]["layout"] == "[vocab@mp, d] ^dp, zero 1 over dp"


def test_values_have_the_seconds_that_are_waited_for_them() -> None:
    sink = Sink()
    sides = [seen_plan(plan_of("llama.shard", strategy, 512), sink) for strategy in ("fsdp", "large")]
    found = difference(*sides)
    assert rows(found["time"])["step"] == tuple(each.found["predicted"]["step_s"] for each in sides)
    first = found["values"][0]
    assert first["right"]["exposed_s"] > 0.05 and "waits" in " ".join(line.text for line in lines(found, 120, False))
    told = sum(row["right"]["exposed_s"] for row in found["values"] if row["right"] is not None)
    assert told <= sum(each["exposed_s"] for each in sides[1].found["predicted"]["by_operator"]) * (1 + 1e-9)


def test_bytes_of_values_are_all_that_is_sent() -> None:
    for plan in (plan_of("transformer.shard", "three_d", 8), plan_of("wide_deep.shard", "host_device", 4)):
        every = forms(plan).values()
        assert (
            sum(f.forward_bytes + f.backward_bytes for f in every)
            == sum(s.forward_bytes + s.backward_bytes for s in sent(plan))
            > 0
        )


def test_equal_plans_say_so_and_exit_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    file = str(EXAMPLES / "digits.shard")
    assert run(["diff", file, file, "--ranks", "4", "--strategy", "both"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("the two plans are equal: ") and said.count("\n") == 1
    assert run(["diff", file, "--ranks", "4", "--strategy", "both", "--strategy", "both", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["equal"] and found["values"] == found["settings"] == found["stages"] == []


@pytest.mark.parametrize("room", (80, 100, 160))
def test_it_fits_the_terminal(room: int) -> None:
    pairs = ("transformer.shard", "three_d", "model_parallel", 8), ("digits.shard", "both", "sharded", 4)
    for pair in pairs:
        made = [line.text for full in (False, True) for line in lines(between(*pair), room, full)]
        assert made and [text for text in made if width(text) > room] == []


@pytest.mark.parametrize(("words", "said"), [
    ("{0} --ranks 4", "one file needs two strategies, and no `--strategy` is given"),
    ("{0} --ranks 4 --strategy both", "one file needs two strategies, and 1 `--strategy` is given"),
    ("{0} {0} {0} --ranks 4", "two plans are compared, and 3 files are given"),
    ("{0} {0} --ranks 4 --strategy a --strategy b --strategy c", "two plans are compared, and 3 strategies are given"),
])  # fmt: skip
def test_other_than_two_plans_is_a_wrong_use(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["diff", *words.format(EXAMPLES / "digits.shard").split()]) == 2
    assert said in capsys.readouterr().err


def test_a_strategy_that_is_not_there_is_a_diagnostic(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["diff", str(EXAMPLES / "digits.shard"), "--ranks", "4", "--strategy", "both", "--strategy", "boht"]
    assert run(words) == 1
    assert "SH301" in (said := capsys.readouterr().err) and "did you mean `both`?" in said


def test_a_mistake_of_the_first_strategy_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (EXAMPLES / "digits.shard").read_text("utf-8")
    fixed = "strategy fixed {\n  mesh dp = 4\n  split batch over dp\n}\n\nstrategy "
    (tmp_path / "net.shard").write_text(text.replace("strategy ", fixed, 1))
    words = [str(tmp_path / "net.shard"), "--ranks", "8", "--strategy", "fixed", "--strategy", "data_parallel"]
    for command in (["diff", *words], ["report", *words, "-o", str(tmp_path / "page.html")]):
        assert run(command) == 1
        said = capsys.readouterr().err
        assert "the mesh has 4 ranks, and 8 are given" in said and said.endswith("1 error\n")
    assert not (tmp_path / "page.html").exists()
