"""The formulas in declarations and pages, read as they are written, give what the runtime computes."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
import torch

from shardlang import runtime as rt
from shardlang.check.train.optimizers import KINDS
from shardlang.check.train.settings import SCHEDULES
from shardlang.runtime.state.optimizers import optimizer
from shardlang.runtime.step.learning_rate import scheduled
from tests.documents.bless import SPECS

SHAPES = {"linear": rt.Linear, "warmup_cosine": rt.WarmupCosine, "constant": lambda *_: None}
FUNCTIONS = {"sqrt": math.sqrt, "cos": math.cos, "pi": math.pi, "max": max, "sign": lambda x: math.copysign(1.0, x)}


def python(text: str) -> str:
    """A formula as Python: `^` is a power, a blank between two things a product, `|z|` an absolute value."""
    text = re.sub(r"\|(\w+)\|", r"abs(\1)", text.strip()).replace("^", "**")
    text = re.sub(r"^(.+) where (.+), else (.+)$", r"\1 if \2 else \3", text)
    words = r"(?!if\b|else\b)"
    return re.sub(rf"(?<=[\w)]) (?=[(A-Za-z_]){words}(?<!\bif )(?<!\belse )", " * ", text)


def formulas(doc: str) -> list[tuple[str, str]]:
    """The indented lines `w := ...` of a text, without what is said further on, after some blanks."""
    lines = [re.split(r" {3,}", line.strip())[0] for line in doc.splitlines() if line.startswith("    ")]
    return [(left.strip(), python(right)) for left, _, right in (line.partition(":=") for line in lines)]


GIVEN: dict[str, dict[str, Any]] = {
    "sgd": {"momentum": 0.9, "dampening": 0.25, "weight_decay": 0.1},
    "adam": {"betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.1},
    "adamw": {"betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.1},
    "adagrad": {"eps": 1e-3, "initial_accumulator": 0.5},
    "ftrl": {"l1": 0.3, "l2": 0.2, "initial_accumulator": 0.5, "lr_power": -0.4},
    "lazy_adam": {"betas": (0.8, 0.95), "eps": 1e-3},
}


@pytest.mark.parametrize("kind", list(KINDS))
def test_an_optimizer_computes_its_formula(kind: str) -> None:
    given = {"lr": 0.1, **GIVEN[kind]}
    tensor = torch.tensor([0.7], dtype=torch.float64)
    made = optimizer(kind, [tensor], given)
    names: dict[str, Any] = {"w": 0.7, **dict.fromkeys("mvzns", 0.0), **given}
    names["b1"], names["b2"] = given.get("betas", (0.0, 0.0))
    names["n"] = names["s"] = given.get("initial_accumulator", 0.0)
    names["p"] = -given.get("lr_power", 0.0)
    for step, gradient in enumerate((0.5, -1.5, 0.25, 0.05, -0.5), 1):
        tensor.grad = torch.tensor([gradient], dtype=torch.float64)
        made.step(0.1)
        names |= {"g": gradient, "t": step}
        for left, right in formulas(KINDS[kind].doc):
            first = kind == "sgd" and left == "m" and step == 1  # as the line says
            names[left] = names["g"] if first else eval(right, FUNCTIONS, names)
        assert names["w"] == pytest.approx(tensor.item(), rel=1e-12), (kind, step)


@pytest.mark.parametrize("kind", ["linear", "warmup_cosine"])
@pytest.mark.parametrize("warmup", [0, 4])
def test_a_schedule_computes_its_formula(kind: str, warmup: int) -> None:
    lines = re.findall(r"^    (.+?)(?: {3,}.*)?$", SCHEDULES[kind].doc, re.MULTILINE)
    rising, falling = map(python, lines)
    page = (SPECS / "schedules.md").read_text("utf-8")
    row = next(line for line in page.splitlines() if line.startswith(f"| `{kind}("))
    told = [python(cell) for cell in row.strip("| ").split("|")[1:]]
    for s in range(1, 11):
        names = {"n": 10, "s": s, "k": max(1, warmup), "lr": 0.1, "min": 0.02}
        after = s > names["k"]
        for text in ((rising, falling)[after], told[after]):
            rate = scheduled(0.1, SHAPES[kind](warmup, 0.02), s, 10)
            assert eval(text, FUNCTIONS, names) == pytest.approx(rate, rel=1e-12), (text, s)
