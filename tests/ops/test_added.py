"""An operator that is added as CONTRIBUTING.md says, by its declaration and its meaning alone, works everywhere:
`shardc verify` passes for a program that uses it, split in each way, and in bf16 it computes in f32.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from shardlang.cli.main import shardc
from shardlang.interpret.meaning.operators import OPERATORS
from shardlang.ops.code import TORCH, Code, F, infix
from shardlang.ops.declaration import REGISTRY, CallSite, Inference, Operator, Param, Precision
from shardlang.ops.factors import Factors, marked, require, unary_rule
from shardlang.ops.families.reductions import single_position
from shardlang.ops.rule import Split
from shardlang.ops.saved_activations import first
from shardlang.ops.site import OpSite
from shardlang.types.dim import TensorType
from tests.emit import sources

PROGRAM = """\
dim batch = 16, d = 8, hidden = 12, classes = 4

model Net {
  param up: [d, hidden] = normal(0.3)
  param down: [hidden, classes] = normal(0.3)

  forward(x: [batch, d]) -> [batch] {
    h = softsign(x @ up)
    scores = softsign(h @ down)
    return logmeanexp(scores, over = classes)
  }
}

train {
  model = Net()
  data = random(x: [batch, d], y: [batch], batches = 2)
  loss = mse_loss(model(x), y)
  optimizer = adam(lr = 0.01)
  epochs = 1
  precision = bf16
}

strategy all_ways {
  mesh pp = 2, dp = 2, tp = 2
  split batch over dp
  split hidden over tp
  stages over pp {
    0: h
    1: scores
  }
  microbatches 2
}
"""


def _softsign(site: CallSite) -> Inference:
    type = site.operands[0]
    require(site, 0, "floating")
    return Inference((type,), unary_rule(type, through=False))


def _logmeanexp(site: CallSite) -> Inference:
    dim = single_position(site, site.static["over"])
    require(site, 0, "floating")
    type = site.operands[0]
    factors = Factors(marked([type.dims[dim]], Split.WHOLE))
    operand = factors.dims(type.dims)
    rule = factors.rule((operand,), (operand[:dim] + operand[dim + 1 :],))
    return Inference((TensorType(type.dtype, type.dims[:dim] + type.dims[dim + 1 :]),), rule, {"dim": dim})


def _logmeanexp_text(site: OpSite) -> Code:
    dim = site.attrs["dim"]
    return infix("-", TORCH("logsumexp", site.operands[0], dim), math.log(site.operand_types[0].shape[dim]))


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> None:
    """softsign, in the type of what it is given, and logmeanexp, which says nothing of its precision."""
    x = Param("x", "tensor")
    for operator in (
        Operator("softsign", (x,), _softsign, lambda site: F("softsign", site.operands[0]), "x / (1 + |x|).",
                 precision=Precision.GIVEN, saved=first),
        Operator("logmeanexp", (x, Param("over", "dims")), _logmeanexp, _logmeanexp_text,
                 "The logarithm of the mean of exp(x) over one dim."),
    ):  # fmt: skip
        monkeypatch.setitem(REGISTRY, operator.name, operator)
    monkeypatch.setitem(OPERATORS, "softsign", lambda call, x: x / (1.0 + x.abs()))
    monkeypatch.setitem(OPERATORS, "logmeanexp", lambda call, x: torch.log(torch.exp(x).mean(call.attrs["dim"])))


def test_what_is_added_works_under_every_split_and_in_the_right_precision(added: None, tmp_path: Path) -> None:
    program = sources.checked(PROGRAM, name="added.shard")
    types = {op.operator: program.graph.values[op.operands[0]].type.dtype for op in program.graph.ops}
    assert (types["softsign"], types["logmeanexp"]) == ("bf16", "f32")
    file = tmp_path / "added.shard"
    file.write_text(PROGRAM)
    ran = CliRunner().invoke(shardc, ["verify", str(file), "--ranks", "8", "--steps", "2", "--json"])
    assert ran.exit_code == 0, ran.output
    (check,) = json.loads(ran.stdout)["checks"]
    assert check["ok"] and check["emitted"] is not None, check
