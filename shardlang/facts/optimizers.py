"""The optimizers of the language: their formulas, their arguments, what they keep of a parameter,
and what they do to rows that a batch has not looked up."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, NamedTuple


class Rows(IntEnum):
    """The treatment of a row whose gradient is zero, without momentum and weight decay."""

    CHANGED = 0
    # It stays as it is, so that the optimizer needs the gradient of the other rows alone.
    UNCHANGED = 1
    # It stays as it is where the gradient is rows, and would change where that is dense: by its
    # moments, or from what it began as.
    LEFT_OUT = 2


class OptimizerFacts(NamedTuple):
    """doc: the formula, a line for each step. arguments: name -> default, Ellipsis where one must
    be given. state: the names of what is kept of each parameter, each as large as that; kept_with:
    only where this argument is not zero. torch, torch_state: the class of torch.optim that computes
    the same, and its names of the state."""

    doc: str
    arguments: Mapping[str, Any]
    state: tuple[str, ...]
    rows: Rows = Rows.CHANGED
    kept_with: str = ""
    torch: str = ""
    torch_state: tuple[str, ...] = ()

    def kept(self, arguments: Mapping[str, Any]) -> tuple[str, ...]:
        """The names of what is kept of each parameter under these arguments."""
        return self.state if not self.kept_with or arguments.get(self.kept_with) else ()


_BETAS = (0.9, 0.999)
_MOMENTS = "\n    m := b1 m + (1 - b1) g\n    v := b2 v + (1 - b2) g^2\n    "
_ADAM = f"{_MOMENTS}w := w - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)"
_TORCHS_ADAM = ("exp_avg", "exp_avg_sq")
# Arguments and defaults are torch's, but that `lr` must be given.
OPTIMIZERS: Mapping[str, OptimizerFacts] = {
    "sgd": OptimizerFacts(
        "As torch.optim.SGD:\n\n    g := g + weight_decay w\n    m := momentum m + (1 - dampening) g     m := g in the "
        "first step\n    w := w - lr m                           with nesterov: w - lr (g + momentum m)\n\n"
        "Without momentum the step is w - lr g, and nothing is remembered.",
        {"lr": ..., "momentum": 0.0, "dampening": 0.0, "weight_decay": 0.0, "nesterov": False},
        state=("momentum",), kept_with="momentum", rows=Rows.UNCHANGED,
        torch="SGD", torch_state=("momentum_buffer",),
    ),
    "adam": OptimizerFacts(
        f"As torch.optim.Adam:\n\n    g := g + weight_decay w{_ADAM}",
        {"lr": ..., "betas": _BETAS, "eps": 1e-8, "weight_decay": 0.0},
        state=("mean", "square"), torch="Adam", torch_state=_TORCHS_ADAM,
    ),
    "adamw": OptimizerFacts(
        f"As torch.optim.AdamW:\n\n    w := w - lr weight_decay w{_ADAM}",
        {"lr": ..., "betas": _BETAS, "eps": 1e-8, "weight_decay": 0.01},
        state=("mean", "square"), torch="AdamW", torch_state=_TORCHS_ADAM,
    ),
    "adagrad": OptimizerFacts(
        "As torch.optim.Adagrad, where s starts at initial_accumulator:\n\n    s := s + g^2\n"
        "    w := w - lr g / (sqrt(s) + eps)",
        {"lr": ..., "eps": 1e-10, "initial_accumulator": 0.0},
        state=("sum",), rows=Rows.UNCHANGED, torch="Adagrad", torch_state=("sum",),
    ),
    "ftrl": OptimizerFacts(
        "FTRL-Proximal, as in TensorFlow; n starts at initial_accumulator, and p is -lr_power:\n\n"
        "    z := z + g - ((n + g^2)^p - n^p) w / lr\n    n := n + g^2\n"
        "    w := 0 where |z| <= l1, else (sign(z) l1 - z) / (n^p / lr + 2 l2)",
        {"lr": ..., "l1": 0.0, "l2": 0.0, "initial_accumulator": 0.1, "lr_power": -0.5},
        state=("accumulator", "linear"), rows=Rows.LEFT_OUT,
    ),
    "lazy_adam": OptimizerFacts(
        f"As torch.optim.SparseAdam:\n{_MOMENTS}w := w - lr sqrt(1 - b2^t) / (1 - b1^t) m / (sqrt(v) + eps)\n\n"
        "If only `embedding` reads a table, rows that are not in the batch keep w, m and v as they are.",
        {"lr": ..., "betas": _BETAS, "eps": 1e-8},
        state=("mean", "square"), rows=Rows.LEFT_OUT,
    ),
}  # fmt: skip
