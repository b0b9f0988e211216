"""The recipes that name a layer of torch are it. That all run is seen by end_to_end/test_specification_runs.py."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from shardlang.cli.main import run
from tests.documents.bless import SPECS
from tests.mdtest import blocks

PAGE = (SPECS / "recipes.md").read_text("utf-8")
LINES = PAGE.splitlines()
# A program by the heading it stands under.
RECIPES = {next(x for x in LINES[b.line - 2 :: -1] if x.startswith("## "))[3:]: b for b in blocks(PAGE)}


def losses(path: Path, ranks: int) -> list[float]:
    figures = path.with_suffix(f".{ranks}.jsonl")
    assert run(["run", str(path), "--ranks", str(ranks), "--simulate", "--metrics", str(figures)]) == 0
    return [json.loads(line)["loss"] for line in figures.read_text().splitlines()]


class Recurrent(torch.nn.Module):
    """The recipe of a GRU with torch's cell."""

    def __init__(self) -> None:
        super().__init__()
        self.start = torch.nn.Parameter(torch.randn(24))
        self.cell, self.head = torch.nn.GRUCell(16, 24), torch.nn.Linear(24, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.start.expand(len(x), -1)
        for at in range(x.shape[1]):
            h = self.cell(x[:, at], h)
        return self.head(h)

    def named(self) -> dict[str, torch.Tensor]:
        """The weights as the recipe calls them: a gate is a third of torch's."""
        found = {"start": self.start, "head.weight": self.head.weight, "head.bias": self.head.bias}
        for ours, theirs in (("x", "ih"), ("h", "hh")):
            for kind in ("weight", "bias"):
                parts = getattr(self.cell, f"{kind}_{theirs}").chunk(3)
                names = (f"cell.{gate}_{ours}.{kind}" for gate in ("reset", "update", "new"))
                found |= {name: part.contiguous() for name, part in zip(names, parts, strict=True)}
        return found


class Upwards(torch.nn.Module):
    """The recipe of a transposed convolution with torch's."""

    def __init__(self) -> None:
        super().__init__()
        self.narrow, self.up = torch.nn.Conv2d(1, 8, 2, stride=2), torch.nn.ConvTranspose2d(8, 1, 2, stride=2)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.up(torch.relu(self.narrow(image)))

    def named(self) -> dict[str, torch.Tensor]:
        return dict(self.named_parameters())


def _recurrent_loss(model: torch.nn.Module, x: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(x), label)


def _upwards_loss(model: torch.nn.Module, image: torch.Tensor) -> torch.Tensor:
    return F.mse_loss(model(image), image)


@pytest.mark.parametrize(("title", "make", "loss", "shapes", "clip"), [
    ("A GRU by hand", Recurrent, _recurrent_loss, {"x": (4, 16), "label": ()}, 1.0),
    ("A transposed convolution", Upwards, _upwards_loss, {"image": (1, 8, 8)}, math.inf),
])  # fmt: skip
def test_a_recipe_is_what_torch_has(
    title: str, make: type[Any], loss: Callable[..., torch.Tensor], shapes: dict[str, tuple[int, ...]], clip: float,
    tmp_path: Path,
) -> None:  # fmt: skip
    """Losses of three steps in float64, from torch's weights on one set of data."""
    torch.manual_seed(3)
    model = make().double()
    save_file({name: weight.detach() for name, weight in model.named().items()}, tmp_path / "w.safetensors")
    batch = 16 if "x" in shapes else 8
    data = {name: torch.randn(batch, *shape, dtype=torch.float64) for name, shape in shapes.items()}
    data |= {"label": torch.randint(0, 10, (batch,))} if "label" in shapes else {}
    np.savez(tmp_path / "d.npz", **{name: value.numpy() for name, value in data.items()})
    text = RECIPES[title].text.replace("random(", 'numpy("d.npz", ').replace("batches = 4", "shuffle = false")
    more = '  precision = f64\n  init = safetensors("w.safetensors")\n  steps = 3'
    path = tmp_path / "recipe.shard"
    path.write_text(text.replace("  steps = 3", more), "utf-8")
    optimizer, theirs = torch.optim.AdamW(model.parameters(), lr=1e-3), []
    for _ in range(3):
        optimizer.zero_grad()
        found = loss(model, *data.values())
        found.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        theirs.append(found.item())
    assert losses(path, 2) == pytest.approx(theirs, rel=1e-12)


class Gan(torch.nn.Module):
    """The recipe's two halves."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.nn.ModuleDict({"up": torch.nn.Linear(8, 32), "down": torch.nn.Linear(32, 64)})
        self.judge = torch.nn.ModuleDict({"up": torch.nn.Linear(64, 32)})
        self.judge.down = torch.nn.Parameter(torch.randn(32) / 6)

    def made(self, z: torch.Tensor) -> torch.Tensor:
        return self.generator["down"](torch.relu(self.generator["up"](z))).sigmoid()

    def judged(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.judge["up"](x)) @ self.judge.down


def test_each_loss_of_the_gan_trains_its_own_half(tmp_path: Path) -> None:
    """Weights after three steps in float64, beside the loop that one writes by hand."""
    torch.manual_seed(5)
    gan, logits = Gan().double(), F.binary_cross_entropy_with_logits
    save_file({name: weight.detach() for name, weight in gan.named_parameters()}, tmp_path / "w.safetensors")
    real, z = torch.rand(16, 64, dtype=torch.float64), torch.randn(16, 8, dtype=torch.float64)
    np.savez(tmp_path / "d.npz", real=real.numpy(), z=z.numpy())
    text = RECIPES["A GAN"].text.replace("random(", 'numpy("d.npz", ').replace("batches = 4", "shuffle = false")
    more = '  precision = f64\n  init = safetensors("w.safetensors")\n  steps = 3'
    path = tmp_path / "gan.shard"
    path.write_text(text.replace("  steps = 3", more), "utf-8")
    groups = [{"params": gan.judge.parameters()}, {"params": gan.generator.parameters(), "lr": 1e-4}]
    optimizer, theirs, ones = torch.optim.Adam(groups, lr=2e-4, betas=(0.5, 0.999)), [], torch.ones(16).double()
    for _ in range(3):
        made, of_real = gan.made(z), gan.judged(real)
        judging = logits(of_real, ones) + logits(gan.judged(made.detach()), 0 * ones)
        fooling = logits(gan.judged(made), ones)
        mine = list(gan.generator.parameters())
        optimizer.zero_grad()
        judging.backward()
        for weight, gradient in zip(mine, torch.autograd.grad(fooling, mine), strict=True):
            weight.grad = gradient
        optimizer.step()
        theirs.append((judging + fooling).item())
    assert losses(path, 2) == pytest.approx(theirs, rel=1e-12)
