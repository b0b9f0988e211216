"""The report of a plan: its schema, the first operator of the quickstart, memory and bytes."""

from __future__ import annotations

import json
from pathlib import Path

from shardlang.folds.memory import memory
from shardlang.folds.report import report
from tests.plan.test_planner import planned

SPECS = Path(__file__).resolve().parents[2] / "specs"


def test_the_first_operator_is_as_the_page_shows_it() -> None:
    page = (SPECS / "plan-json.md").read_text()
    shown = json.loads(page.split("```json\n")[1].split("```")[0])
    found = report(planned("quickstart", "at h: shard ((2, 4), (4, 1))", 8))["operators"][0]
    for key in ("name", "operator", "section", "chosen", "layout", "mesh", "local_shapes", "collectives"):
        assert found[key] == shown[key], key


def test_required_keys_are_there() -> None:
    schema = json.loads((SPECS / "plan.schema.json").read_text())
    found = report(planned("digits", "mesh dp = 2, mp = 2; split batch over dp; split hidden over mp", 4))
    assert set(found) == set(schema["required"])
    parts = {"operators": "operator", "parameters": "parameter", "gradient_reductions": "reduction"}
    for key, name in parts.items():
        for entry in found[key]:
            assert set(schema["$defs"][name]["required"]) <= set(entry), key
    for entry in found["operators"]:
        for collective in entry["collectives"]:
            assert set(schema["$defs"]["collective"]["required"]) <= set(collective)


def test_every_collective_is_listed_once() -> None:
    found = planned("digits", "mesh mp = auto; split hidden over mp", 4)
    listed = [c for o in report(found)["operators"] for c in o["collectives"] if c["phase"] != "inside"]
    assert len(listed) == len(found.conversions)


def test_groups_are_listed_up_to_64_ranks() -> None:
    rules = "mesh dp = auto, mp = 2; split batch over dp; split hidden over mp"
    for ranks, there in ((64, True), (128, False)):
        found = report(planned("digits", rules, ranks))
        collectives = [c for o in found["operators"] for c in o["collectives"]]
        assert all((c["groups"] is not None) == there for c in collectives)
        assert all(c["group_size"] * c["group_count"] == ranks for c in collectives)


def test_memory_of_zero_levels() -> None:
    rules = "mesh dp = auto; split batch over dp"
    whole = 4 * (64 * 128 + 128 + 128 * 10 + 10)
    kept = memory(planned("digits", rules, 4))
    assert (kept.parameters, kept.gradients) == (whole, whole)
    sharded = memory(planned("digits", rules + "; zero 3 over dp", 4))
    assert sharded.parameters < whole / 3.9
    assert sharded.gradients == sharded.parameters
    second = memory(planned("digits", rules + "; zero 2 over dp", 4))
    assert (second.parameters, second.gradients) == (whole, sharded.gradients)


def test_bytes_of_gradient_reductions() -> None:
    found = report(planned("quickstart", "mesh dp = auto; split batch over dp", 4))
    entry = found["gradient_reductions"]
    assert [(e["parameters"], e["axes"], e["kind"]) for e in entry] == [(["w", "w2"], ["dp"], "all_reduce")]
    whole = 4 * (32 * 16 + 16 * 16)
    assert entry[0]["bytes"] == 2 * 3 * whole // 4
    assert found["per_rank"]["backward_bytes"] == entry[0]["bytes"]


def test_one_rank() -> None:
    assert report(planned("quickstart", "strict", 1))["meshes"] == [{"name": "mesh", "axes": []}]
