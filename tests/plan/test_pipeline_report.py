"""What a plan says of its pipeline: the schema, what each rank sees, the drawing, memory by microbatches under way."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import jsonschema
import pytest

from shardlang.cli.plan_view.parts import of_rank
from shardlang.cli.plan_view.screen import drawn
from shardlang.folds import traffic
from shardlang.folds.memory import activations, memory
from shardlang.folds.report import report
from shardlang.folds.traffic import handed_bytes, sent_bytes
from shardlang.step import parameters
from tests.plan.test_stages import planned

SCHEMA = json.loads((Path(__file__).resolve().parents[2] / "specs" / "plan.schema.json").read_text())
RULES = """
    mesh pp = 2, dp = 2
    split batch over dp
    stages over pp {
      0: blocks[0..2]
      1: blocks[2..4], head
    }
    microbatches 4
"""


def found(rules: str = RULES, ranks: int = 4, schedule: str = "1f1b") -> dict[str, Any]:
    return report(planned(f'{rules}\nschedule "{schedule}"', ranks))


def test_the_report_follows_its_schema() -> None:
    made = found()
    jsonschema.validate(json.loads(json.dumps(made)), SCHEMA)
    assert [s["layers"] for s in made["pipeline"]["stages"]] == [
        ["blocks[0..2]"], ["blocks[2..4]", "head"],
    ]  # fmt: skip
    assert [s["alive"] for s in made["pipeline"]["stages"]] == [2, 1]
    assert made["pipeline"]["bubble"] == pytest.approx(1 / 5)
    assert made["meshes"] == [{"name": "mesh", "axes": [{"name": "pp", "size": 2}, {"name": "dp", "size": 2}]}]
    assert made["pipeline"]["actions"][1] == "1F0 1B0 1F1 1B1 1F2 1B2 1F3 1B3"


def test_groups_are_those_of_the_stage() -> None:
    rules = RULES.replace("over dp", "over dp\n    split vocab over mp").replace("dp = 2", "dp = 2, mp = 2")
    listed = {(o["stage"], json.dumps(c["groups"])) for o in found(rules, 8)["operators"] for c in o["collectives"]
              if c["axes"] == ["mp"]}  # fmt: skip
    assert (0, "[[0, 1], [2, 3]]") in listed and (1, "[[4, 5], [6, 7]]") in listed and len(listed) == 2


def test_a_rank_sees_its_own_stage() -> None:
    mine = of_rank(found(), 3)
    assert {o["stage"] for o in mine["operators"]} == {1}
    assert mine["coordinates"] == [{"pp": 1, "dp": 1}]
    paths = {p["path"] for p in mine["parameters"]}
    assert "blocks[3].up.weight" in paths and "table" in paths and "blocks[0].up.weight" not in paths
    label = next(t for o in mine["operators"] for t in o["local_shapes"]["operands"] if t["name"] == "label")
    assert label["local_shape"] == [2, 4] and label["slices"] == [[2, 4], [0, 4]]  # of the first microbatch's 4 rows


def test_a_drawing_in_pieces() -> None:
    rows = found()["pipeline"]["drawing"]
    assert rows[0] == "F0 F1 .. .. B0--- F2 B1--- F3 B2--- .. B3---"
    assert rows[1] == ".. F0 B0--- F1 B1--- F2 B2--- F3 B3--- .. .."
    assert drawn(rows, "pp", 120) == [f"pp {i}  {row}" for i, row in enumerate(rows)]
    pieces = drawn(rows, "pp", 30)
    assert all(len(line) <= 30 for line in pieces) and pieces.count("") == 1
    joined = "".join(line[6:].ljust(24) for line in pieces if line.startswith("pp 0"))
    assert joined.split() == rows[0].split()


def test_activations_grow_with_what_is_under_way() -> None:
    """1F1B keeps as many microbatches as stages lie ahead, GPipe all of them (Narayanan et al., 2019)."""
    one = planned(f'{RULES}\nschedule "1f1b"', 4)
    all_at_once = planned(f'{RULES}\nschedule "gpipe"', 4)
    data = 4 * 8 * 8  # ids or labels of a rank's 8 rows of 4, 8 bytes each
    for stage, alive in ((0, 2), (1, 1)):
        fields = data * (1 + stage)
        each = (activations(one, (stage,)) - fields) / alive
        assert each > 0
        assert activations(all_at_once, (stage,)) - fields == 4 * each
    assert memory(one).total == max(memory(one, (s,)).total for s in (0, 1))


def test_recomputing_keeps_what_goes_in_and_out() -> None:
    """Of n equal layers a microbatch keeps n results and one layer whole, in place of n layers whole."""
    plain = planned("mesh dp = 2\nsplit batch over dp", 2)
    again = planned("mesh dp = 2\nsplit batch over dp\nat blocks[*]: recompute", 2)
    more = {"model.layers": "8"}
    per_layer = activations(planned("mesh dp = 2\nsplit batch over dp", 2, **more)) - activations(plain)
    longer = planned("mesh dp = 2\nsplit batch over dp\nat blocks[*]: recompute", 2, **more)
    kept = activations(longer) - activations(again)
    result = 8 * 4 * 8 * 4  # [batch@dp, seq, d] in float32
    assert kept == 4 * result
    assert per_layer > 5 * kept


def test_what_is_handed_on_is_sent() -> None:
    plan = planned(f'{RULES}\nschedule "1f1b"', 4)
    paths = {op.path for op in plan.graph.ops if op.operator == "transfer"}
    assert paths == {"first@1", "blocks[1].return@1", "shift@1"}
    row, shift = 4 * 8 * 4, 4 * 8 * 4  # [seq, d] in float32: of an example, and of the parameter
    handed = 8 * row + 8 * row + 4 * shift  # a rank has 8 examples; what is of no example is sent with each microbatch
    each = [handed_bytes(plan, op) for op in plan.ops]
    assert len(list(filter(any, each))) == 3
    assert (sum(forward for forward, _ in each), sum(backward for _, backward in each)) == (handed, handed)
    assert sent_bytes(plan, (0,))[0] >= handed and sent_bytes(plan, (1,))[1] >= handed


def test_each_sum_is_worked_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many stages ask: what conversions, parameters and values between stages send; what is held, of
    parameters that are alike."""
    plan = planned("mesh pp = 2, dp = 2\nsplit batch over dp\nstages over pp balanced, virtual = 2\nmicrobatches 4", 4)
    counts = Counter[str]()

    def counted(module: ModuleType, name: str) -> None:
        function = getattr(module, name)

        def run(*arguments: object) -> object:
            counts[name] += 1
            return function(*arguments)

        monkeypatch.setattr(module, name, run)

    counted(traffic, "phases")
    counted(traffic, "_sent_values")
    counted(traffic, "gather_bytes")
    counted(parameters, "held_bytes")
    report(plan)
    each, different = len(plan.params), len({plan.graph.values[param].type.shape for param in plan.params})
    assert counts == {"phases": 1, "_sent_values": 1, "gather_bytes": each, "held_bytes": different}
