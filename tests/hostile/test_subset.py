"""A seeded part of the hostile programs, the same in every run; `python -m tests.hostile` compiles as many as one
likes.
"""

from __future__ import annotations

import ast

import pytest

from tests.hostile.programs import program
from tests.hostile.texts import Hostile, Plain
from tests.hostile.trial import REFUSED, SAME, structure, trial

FIRST, EACH = 900_000, 12


@pytest.mark.parametrize("part", range(4))
def test_hostile_programs_have_the_structure_of_their_twins(part: int) -> None:
    outcomes = [trial(seed) for seed in range(FIRST + part * EACH, FIRST + (part + 1) * EACH)]
    assert [o for o in outcomes if o.kind not in (SAME, REFUSED)] == []
    assert sum(o.kind == SAME for o in outcomes) >= EACH // 2


def test_a_seed_gives_the_same_programs_again() -> None:
    assert program(5, Hostile(5)) == program(5, Hostile(5))
    assert program(5, Plain()) == program(5, Plain())


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("def forward(p, x):\n    y = x @ p.w\n", 'def forward(p, stage0):\n    rt_ = stage0 @ p["__class__"]\n', True),
        ("import torch\n", "import torch\nimport os\n", False),
        ("def forward(p):\n    torch.relu(p.w)\n", "def forward(p):\n    torch.save(p.w)\n", False),
        ("rt.f('a')\n", "rt.f('b')  # c\n", True),
        ("rt.f('a')\n", "rt.f('a', g())\n", False),
        ("m = rt.Mesh(dp=2)\n", 'm = rt.Mesh(**{"lambda": 2})\n', True),
        ("f(mesh.dp.index)\n", 'f(mesh["in"].index)\n', True),
    ],
)
def test_what_counts_as_structure(one: str, other: str, same: bool) -> None:
    assert (structure(ast.parse(one)) == structure(ast.parse(other))) == same
