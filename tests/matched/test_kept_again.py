"""A rank without a part computes again what the others do: where the emitted text does not see to it, the proof says
so, for real ranks and for simulated ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardlang.cli.main import run
from shardlang.emit.emit import emission, files_of
from shardlang.matched import planned as planned_lines
from shardlang.ops import declaration
from tests.emit.sources import planned
from tests.end_to_end.test_empty_parts import ATTENTION, REST
from tests.matched.test_proof import proved

RULES = "strategy s {\n  mesh mp = 4\n  split heads over mp uneven\n  at blocks[*]: recompute all but products\n}\n"
EMPTY = ATTENTION + REST.replace("STRATEGIES", RULES)
KEPT = "rt.keeping(\n        F.scaled_dot_product_attention(q_heads, k, v), q_heads, k, v,\n    )"


@pytest.mark.parametrize(
    "instead", ["F.scaled_dot_product_attention(q_heads, k, v)", KEPT.replace("q_heads, k, v,", "q_heads, k,")]
)
def test_what_is_kept_of_no_part_is_proved(instead: str) -> None:
    made = emission(planned(EMPTY, 4, "s"))
    files = dict(files_of(made))
    assert proved(made, files) == [] and KEPT in files["main.py"]
    found = proved(made, {**files, "main.py": files["main.py"].replace(KEPT, instead)})
    assert [d.code for d in found] == ["SH460"]
    said = (
        "the plan says keeping of f64[4, 1|1|1|0, 8, 4], of which the ranks at 3 of mp have nothing, and the text all_"
    )
    assert said in found[0].message


def test_simulated_ranks_end_where_real_ones_would_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    (file := tmp_path / "empty.shard").write_text(EMPTY)
    command = ["run", str(file), "--ranks", "4", "--strategy", "s", "--simulate"]
    assert run(command) == 0 and "not looked at" not in capsys.readouterr().out
    monkeypatch.setattr(declaration, "maybe_empty", lambda shapes: False)  # the emitter keeps nothing
    capsys.readouterr()
    assert run(command) == 1
    said = capsys.readouterr()
    assert "error[SH460]" in said.out + said.err and "finished" not in said.out


# The line of the program of the collective in which the others wait for the rank that has no head.
LEFT_OUT = """\
error[SH515]: ranks would wait for each other for ever:
  rank 0 waits in all-to-all over mp (ranks 0-3), empty.shard:1"""


def test_ranks_in_turn_find_who_would_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    """Also what the proof does not see."""
    (file := tmp_path / "empty.shard").write_text(EMPTY)
    for module in (declaration, planned_lines):
        monkeypatch.setattr(module, "maybe_empty", lambda shapes: False)
    assert run(["run", str(file), "--ranks", "4", "--strategy", "s", "--simulate"]) == 3
    said = capsys.readouterr()
    assert said.err.startswith(LEFT_OUT) and "for rank 3\n  rank 1 waits in" in said.err, said.err
    assert "step" not in said.out
