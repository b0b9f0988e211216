"""A small program that any number of ranks trains."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
NET = """\
dim batch = 48, input = 32, hidden = 16, output = 16

model Net {
  param w: [input, hidden] = normal(0.01)
  param w2: [hidden, output] = normal(0.01)

  forward(x: [batch, input]) -> [batch, output] {
    h = x @ w
    return relu(h) @ w2
  }
}

strategy dp {
  mesh dp = auto
  split batch over dp
}

train {
  model = Net()
  data = random(x: [batch, input], label: [batch, output], batches = 10, seed = 1)
  loss = mse_loss(model(x), label)
  optimizer = sgd(lr = 0.4, momentum = 0.1)
  epochs = 2
  checkpoint = every(10, keep = 3, to = "checkpoints")
}
"""
