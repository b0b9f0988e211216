"""How little a strategy takes to write: three dimensions in 15 lines, tensor parallelism in one."""

from __future__ import annotations

import pytest

from shardlang.graph.graph import Kind
from tests.emit.sources import planned
from tests.end_to_end.curves import ROOT

SMALL = {"batch": "8", "model.d": "32", "model.ffn": "64", "model.heads": "4", "model.vocab": "64", "model.layers": "2"}


def strategy_lines(text: str, name: str) -> list[str]:
    """The lines of a strategy, without blank ones and comments."""
    start = text.index(f"strategy {name} {{")
    block = text[start : text.index("\n}", start) + 2]
    return [line for line in block.splitlines() if line.strip() and not line.strip().startswith("#")]


def test_three_dimensions_are_at_most_15_lines() -> None:
    lines = strategy_lines((ROOT / "examples" / "transformer.shard").read_text(), "three_d")
    assert len(lines) <= 15, lines
    assert lines[0] == "strategy three_d {" and lines[-1] == "}"


@pytest.mark.parametrize("example", ["transformer", "llama"])
def test_tensor_parallelism_is_one_line(example: str) -> None:
    """Added to data parallelism, beside the axis: the model is the same text, and each of its matrices is cut."""
    text = (ROOT / "examples" / f"{example}.shard").read_text()
    head = "strategy one {\n  mesh dp = auto\n  split batch over dp\n"
    line = "  split heads, ffn, vocab over mp\n" if example == "transformer" else (
        "  split heads, kv_heads, ffn, vocab over mp\n")  # fmt: skip
    at = text.index("strategy ")
    sizes = SMALL if example == "transformer" else SMALL | {"seq": "16", "model.kv_heads": "2"}
    for added, degree in (("", 1), (line, 2)):
        mesh = head.replace("dp = auto", "dp = auto, mp = 2") if added else head
        plan = planned(f"{text[:at]}{mesh}{added}}}\n\n{text[at:]}", 4, settings=sizes)
        cut = {
            plan.graph.values[v].path: any("mp" in axes for axes in param.stored.dims)
            for v, param in plan.params.items()
            if plan.graph.values[v].kind is Kind.PARAM and len(plan.graph.values[v].type.shape) == 2
        }
        assert cut and all(is_cut == (degree > 1) for is_cut in cut.values()), cut
