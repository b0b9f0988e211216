"""Functions of layers that several stages have in common stand in one file, with what they call."""

from __future__ import annotations

from tests.emit.sources import emitted_files

# The weight of the first layer lies otherwise, so its MLP is another function than that of the others.
TEXT = """\
use std.nn: MLP

dim batch = 8, d = 8

model Block {
  layer mlp = MLP(d, 2 * d)
  param scale: [d] = ones()

  forward(x: [batch, d]) -> [batch, d] {
    y = tanh(mlp(x))
    return x + 0.5 * y * scale
  }
}

model Net {
  layer blocks[4] = Block()

  forward(x: [batch, d]) -> [batch, d] {
    return x |> blocks
  }
}

strategy s {
  mesh pp = 4, tp = 2
  split batch over tp
  at blocks[0].mlp.up.weight: [16@tp, d]
  stages over pp balanced
  microbatches 2
}

train {
  model = Net()
  data = random(x: [batch, d], label: [batch, d], batches = 2)
  eval = random(x: [batch, d], label: [batch, d], batches = 2, seed = 3)
  loss = mse_loss(model(x), label)
  optimizer = sgd(lr = 0.1)
  steps = 2
}
"""


def test_a_layer_is_not_shared_where_what_it_calls_is_another() -> None:
    files = emitted_files(TEXT, 8, "s")
    assert "from layers import block" in files["stage1.py"] and "from layers" not in files["stage0.py"]
    gathers = "rt.all_gather_replicated(p.up.weight, 0, mesh.tp)"
    assert [name for name, text in files.items() if gathers in text] == ["stage0.py"]
    for text in files["stage0.py"], files["layers.py"]:
        assert "def mlp(p, x):" in text and "def block(p, x):" in text and "mlp(p.mlp, x)" in text
