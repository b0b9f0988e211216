"""Sizes and flops that a declaration computes: a number that cannot be used is reported, not computed with."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardlang.cli.main import run as shardc
from tests.check.checked import checked

BIG = 2**62


def messages(dim: str = "d", flops: str = "d", given: str = "", signature: str = "x: [batch, d]") -> list[str]:
    text = f"""
operator op({signature}, n: int = 3, f: float = 0.5) -> [batch, k] {{
  dim k = {dim}
  whole batch, d, k
  flops {flops}
  python "my_ops.py": op
}}

dim batch = 8, d = 4

model Net {{
  param w: [d] = ones()

  forward(x: [batch, d]) -> [batch] {{
    h = op(x * w{given})
    return mean(h, over = k)
  }}
}}

train {{
  model = Net()
  data = random(x: [batch, d], y: [batch], batches = 4)
  loss = mse_loss(model(x), y)
  optimizer = sgd(lr = 0.1)
  steps = 4
}}
"""
    return checked(text, files={"my_ops.py": "def op(x, n, f):\n    return x\n"}).messages


@pytest.mark.parametrize(
    ("dim", "given", "number"),
    [
        ("d // (n - 3)", "", "no number that can be used"), ("d / 0.0", "", "no number that can be used"),
        ("d % (d - 4)", "", "no number that can be used"), ("d - 9", "", "-5"), ("d / 3", "", "4/3"),
        ("d * n", ", n = -3", "-12"), ("d * n", f", n = {BIG}", "1.84467e+19"), ("d * f", ", f = 1e30", "4e+30"),
        ("d // f", ", f = 1e-320", "no number that can be used"),
        ("d / f", ", f = 1e-320", "no number that can be used"),
        (" * ".join(["n"] * 40), f", n = {BIG}", "no number that can be used"),
    ],
)  # fmt: skip
def test_a_size_that_cannot_be_used(dim: str, given: str, number: str) -> None:
    assert messages(dim, given=given) == [f"SH617: the size of dim `k` of `op` is {number} here"]


@pytest.mark.parametrize(
    ("flops", "given", "number"),
    [
        ("d // (n - 3)", "", "no number that can be used"), ("d - 100", "", "-96"), ("-d", "", "-4"),
        (" * ".join(["n"] * 40), f", n = {BIG}", "no number that can be used"),
        ("d // f", ", f = 1e-320", "no number that can be used"),
    ],
)  # fmt: skip
def test_flops_that_cannot_be_used(flops: str, given: str, number: str) -> None:
    assert messages(flops=flops, given=given) == [f"SH617: the count of flops of `op` is {number} here"]


def test_sizes_and_flops_that_can() -> None:
    assert messages("d * f", "d // n + 1.5 * d", ", n = 2") == []


@pytest.mark.parametrize(
    "kind", ["int = not 3", "bool = -true", 'str = -"a"', "int = - - 3", "int = 2.5", "float = true", "bool = 1"]
)
def test_a_default_is_a_literal_of_its_kind(kind: str) -> None:
    default = kind.partition(" = ")[2]
    wanted = f"SH614: the default `{default}` is no literal of kind {kind.partition(' ')[0]}"
    assert wanted in messages(signature=f"x: [batch, d], s: {kind}")


@pytest.mark.parametrize("size", ["0", "2.5"])
def test_a_size_of_a_signature_is_a_whole_number(size: str) -> None:
    wanted = f"SH614: a size of a signature is a whole number from 1 on, and `{size}` is not"
    assert wanted in messages(signature=f"x: [batch, d], y: [{size}]")


@pytest.mark.parametrize(
    ("signature", "facts"),
    [
        ("(x: [batch, 1000000000000]) -> [batch]", "flops 1"),
        ("(x: [batch, d]) -> [batch, k]", "dim k = d * 9000000000000000\nwhole k\nflops 1"),
        ("(x: [batch, d]) -> [batch, d]", "flops d // (batch - batch)"), ("(x: [batch]) -> [batch]", "flops -1"),
    ],
)  # fmt: skip
def test_verify_refuses_what_it_cannot_try(
    signature: str, facts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A tensor that is too large to try is not made."""
    (tmp_path / "my_ops.py").write_text("def op(x):\n    return x\n")
    (tmp_path / "my_ops.shard").write_text(f'operator op{signature} {{\n{facts}\npython "my_ops.py": op\n}}\n')
    assert shardc(["verify", str(tmp_path / "my_ops.shard")]) == 1
    text = capsys.readouterr().err
    assert "error[SH618]" in text and "no sizes were found at which dims are whole numbers, flops a number" in text


def test_no_flops_are_a_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "my_ops.py").write_text("def op(x):\n    return 2 * x\n")
    declared = 'operator op(x: [batch]) -> [batch] {\nlinear x\nflops 0\npython "my_ops.py": op\n}\n'
    (tmp_path / "my_ops.shard").write_text(declared)
    assert shardc(["verify", str(tmp_path / "my_ops.shard")]) == 0, capsys.readouterr().err
