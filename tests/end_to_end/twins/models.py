"""The twins: each class is a model of examples/ as one writes it in torch, with its step of training."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from tests.end_to_end.twins.beside import BATCH, Twin


def perceptron(inputs: int, hidden: int, outputs: int) -> nn.Module:
    """Two layers `up` and `down` with relu between."""

    class Perceptron(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(inputs, hidden), nn.Linear(hidden, outputs)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.down(F.relu(self.up(x)))

    return Perceptron()


def accuracy(scores: torch.Tensor, label: torch.Tensor) -> float:
    return (scores.argmax(-1) == label).double().mean().item()


def noise(path: str, step: int, *shape: int) -> torch.Tensor:
    """The normal numbers of a value in a step with seed 0, from the text of specs/random.md."""
    count = math.prod(shape)

    def bits(key: int) -> np.ndarray:
        with np.errstate(over="ignore"):
            x = np.uint64(key) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
            x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return ((x ^ (x >> np.uint64(31))) >> np.uint64(11)) * 2.0**-53

    digest = hashlib.blake2b("\0".join(["0", path, "0", str(step)]).encode(), digest_size=8).digest()
    key = int.from_bytes(digest, "little")
    u, v = bits(key), bits((key + 0xD1B54A32D192ED03) % 2**64)
    drawn = np.sqrt(-2 * np.log(1 - u)) * np.cos(2 * np.pi * v)
    return torch.from_numpy(drawn.astype(np.float32)).double().reshape(shape)


class Judge(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(64, 128)
        self.down = nn.Parameter(torch.randn(128) / 11)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return F.relu(self.up(image)) @ self.down


class Gan(Twin):
    """Both losses at the same weights; each optimizer takes the gradients of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.generator, self.judge = perceptron(16, 128, 64), Judge()
        groups = [{"params": self.judge.parameters()}, {"params": self.generator.parameters(), "lr": 1e-3}]
        self.optimizer = torch.optim.Adam(groups, lr=2e-4, betas=(0.5, 0.999))

    def step(self, number: int, image: torch.Tensor, label: torch.Tensor) -> dict[str, float]:
        made = self.generator(noise("z", number, BATCH, 16)).sigmoid()
        logits = F.binary_cross_entropy_with_logits
        of_real, of_made = self.judge(image), self.judge(made.detach())
        judging = logits(of_real, torch.ones(BATCH)) + logits(of_made, torch.zeros(BATCH))
        fooling = logits(self.judge(made), torch.ones(BATCH))
        self.optimizer.zero_grad()
        judging.backward(inputs=list(self.judge.parameters()))
        fooling.backward(inputs=list(self.generator.parameters()))
        self.optimizer.step()
        return {"loss": (judging + fooling).item(), "judged": judging.item(), "fooled": fooling.item()}


class Distillation(Twin):
    """The teacher computes without gradient, and no optimizer has it."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher, self.student = perceptron(64, 256, 10), perceptron(64, 32, 10)
        self.optimizer = torch.optim.AdamW(self.student.parameters(), lr=1e-3)

    def step(self, number: int, image: torch.Tensor, label: torch.Tensor) -> dict[str, float]:
        with torch.no_grad():
            wanted = F.softmax(self.teacher(image) / 2, -1)
        scores = self.student(image)
        distance = F.cross_entropy(scores / 2, wanted)
        loss = 0.5 * F.cross_entropy(scores, label) + 2 * distance
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return {"loss": loss.item(), "accuracy": accuracy(scores, label)}


class LoRALinear(nn.Module):
    """A layer around a linear one; B starts at 0 in the example, here anywhere."""

    def __init__(self, inputs: int, outputs: int, rank: int = 4, alpha: float = 16.0) -> None:
        super().__init__()
        self.base, self.scale = nn.Linear(inputs, outputs), alpha / rank
        self.lora_A = nn.Parameter(torch.randn(rank, inputs) / 6)
        self.lora_B = nn.Parameter(torch.randn(outputs, rank) / 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.scale * (x @ self.lora_A.T) @ self.lora_B.T


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(32), nn.LayerNorm(32)
        self.query, self.value = LoRALinear(32, 32), LoRALinear(32, 32)
        self.key, self.out = nn.Linear(32, 32), nn.Linear(32, 32)
        self.up, self.down = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = self.norm1(x)
        q, k, v = (part(a).unflatten(-1, (4, 8)).transpose(1, 2) for part in (self.query, self.key, self.value))
        mixed = F.softmax(q @ k.transpose(-1, -2) / math.sqrt(8), -1) @ v
        y = x + self.out(mixed.transpose(1, 2).flatten(-2))
        return y + self.down(F.gelu(self.up(self.norm2(y))))


class Lora(Twin):
    """`requires_grad_(False)` for all, then what is to learn."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.places = nn.Linear(8, 32), nn.Parameter(torch.randn(8, 32) / 50)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 10)
        self.requires_grad_(False)
        narrow = [p.requires_grad_() for name, p in self.named_parameters() if "lora_" in name]
        head = list(self.head.requires_grad_().parameters())
        groups = [{"params": narrow, "lr": 1e-2, "weight_decay": 0.0}, {"params": head}]
        self.optimizer = torch.optim.AdamW(groups, lr=1e-3)

    def state_dict(self, **rest: bool) -> dict[str, torch.Tensor]:  # type: ignore[override]
        """An array of layers has its numbers in brackets."""
        found = super().state_dict(**rest)
        return {name.replace("blocks.0", "blocks[0]").replace("blocks.1", "blocks[1]"): w for name, w in found.items()}

    def step(self, number: int, image: torch.Tensor, label: torch.Tensor) -> dict[str, float]:
        h = self.embed(image.reshape(-1, 8, 8)) + self.places
        for block in self.blocks:
            h = block(h)
        scores = self.head(self.norm(h).mean(1))
        loss = F.cross_entropy(scores, label)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return {"loss": loss.item(), "accuracy": accuracy(scores, label)}


class Contrastive(Twin):
    """The whole batch on one device, as the ranks together have it."""

    def __init__(self) -> None:
        super().__init__()
        self.upper, self.lower = perceptron(32, 128, 32), perceptron(32, 128, 32)
        self.scale = nn.Parameter(torch.tensor(2.6592))
        self.optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)

    def step(self, number: int, image: torch.Tensor, label: torch.Tensor) -> dict[str, float]:
        def unit(h: torch.Tensor) -> torch.Tensor:
            return h / (h.square().sum(-1, keepdim=True) + 1e-12).sqrt()

        scores = self.scale.exp() * unit(self.upper(image[:, :32])) @ unit(self.lower(image[:, 32:])).T
        rows = torch.arange(BATCH)
        loss = (F.cross_entropy(scores, rows) + F.cross_entropy(scores.T, rows)) / 2
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return {"loss": loss.item(), "found": accuracy(scores, rows)}


class Double(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.second(F.relu(self.first(x))))


class UNet(Twin):
    """Images of 8 x 8 in three sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2, self.bottom = Double(1, 8), Double(8, 16), Double(16, 32)
        self.up2, self.across2 = nn.ConvTranspose2d(32, 16, 2, stride=2), Double(32, 16)
        self.up1, self.across1 = nn.ConvTranspose2d(16, 8, 2, stride=2), Double(16, 8)
        self.last = nn.Conv2d(8, 1, 1)
        self.optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)

    def step(self, number: int, image: torch.Tensor, label: torch.Tensor) -> dict[str, float]:
        clean = image.reshape(BATCH, 1, 8, 8)
        large = self.down1(clean + 0.3 * noise("noise", number, BATCH, 1, 8, 8))
        half = self.down2(F.max_pool2d(large, 2))
        small = self.bottom(F.max_pool2d(half, 2))
        back = self.across2(torch.cat([half, self.up2(small)], 1))
        whole = self.across1(torch.cat([large, self.up1(back)], 1))
        loss = F.mse_loss(self.last(whole), clean)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return {"loss": loss.item()}


class Reader(Twin):
    """torch's GRU, whose gates are parts of one matrix: reset, update, new."""

    def __init__(self) -> None:
        super().__init__()
        self.lower, self.upper = nn.GRU(8, 48, batch_first=True), nn.GRU(48, 48, batch_first=True)
        self.head = nn.Linear(48, 10)
        self.optimizer = torch.optim.AdamW(self.parameters(), lr=3e-3)

    def state_dict(self, **rest: bool) -> dict[str, torch.Tensor]:  # type: ignore[override]
        """Each gate has a weight and a bias of its own in the example."""
        found = {}
        for name, whole in super().state_dict(**rest).items():
            layer, _, part = name.partition(".")
            kind, _, side = part.removesuffix("_l0").partition("_")
            for gate, of in zip(("reset", "update", "new"), whole.chunk(3), strict=False):
                own = f"{layer}.{gate}_x.{kind}" if side == "ih" else f"{layer}.step.{gate}_h.{kind}"
                found |= {own if side else name: of.clone() if side else whole}
        return found

    def step(self, number: int, image: torch.Tensor, label: torch.Tensor) -> dict[str, float]:
        read, _ = self.lower(image.reshape(-1, 8, 8))
        _, last = self.upper(read)
        scores = self.head(last[0])
        loss = F.cross_entropy(scores, label)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return {"loss": loss.item(), "accuracy": accuracy(scores, label)}


TWINS: dict[str, type[Twin]] = {
    "contrastive": Contrastive, "distillation": Distillation, "gan": Gan, "gru": Reader, "lora": Lora, "unet": UNet,
}  # fmt: skip
