"""Faults of communication, one at a time, are found with both lines named; legal plans of other strategies pass."""

from __future__ import annotations

import random

import pytest

from shardlang.emit.emit import emission, files_of
from tests.broken_plans.__main__ import told
from tests.broken_plans.faults import faults
from tests.emit.sources import planned
from tests.end_to_end.test_wired import LLAMA
from tests.generated.pairs import legal
from tests.matched.test_proof import MODEL
from tests.matched.test_sequence import STAGES


@pytest.mark.parametrize("seed", [14, 33, 47])
def test_faults_of_a_generated_plan(seed: int) -> None:
    plan = next(plan for further in range(9) if (plan := legal(seed + further)) is not None)
    made = emission(plan)
    found = faults(made, files_of(made), random.Random(seed))
    assert found and {fault.said: told(fault) for fault in found} == dict.fromkeys((fault.said for fault in found), "")


@pytest.mark.parametrize("program", ["llama", "transformer"])
def test_faults_of_stages(program: str) -> None:
    rules = STAGES.format("", "1f1b") + "\n  zero 3 over dp"
    text, strategy = (LLAMA.replace("RULES", rules), "s") if program == "llama" else (MODEL, "three_d")
    made = emission(planned(text, 4 if program == "llama" else 8, strategy))
    found = faults(made, files_of(made), random.Random(1))
    kinds = {fault.said.partition(":")[0] for fault in found}
    assert {"exchanged in the text", "exchanged in the plan"} <= kinds
    assert {fault.said: told(fault) for fault in found} == dict.fromkeys((fault.said for fault in found), "")
