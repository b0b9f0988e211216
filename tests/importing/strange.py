"""Modules with steps that the language has no operator for."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Example = tuple[nn.Module, dict[str, Tensor]]


class Summing(nn.Module):
    """One step without a word, between two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 10)
        self.out = nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.fc(x))
        total = torch.logcumsumexp(h, 1)
        return self.out(total)


def summing() -> Example:
    return Summing(), {"x": torch.rand(4, 5, 6)}


class Mixing(nn.Module):
    """Complex numbers between, which are no type of the language."""

    def __init__(self, d: int, power: float) -> None:
        super().__init__()
        self.up = nn.Linear(d, d)
        self.scale = nn.Parameter(torch.full((d,), 0.3))
        self.power = power

    def forward(self, x: Tensor) -> Tensor:
        mixed = torch.fft.fft(torch.fft.fft(self.up(x), dim=-1), dim=-2).real
        return x + F.celu(torch.lerp(mixed, x, self.scale), self.power)


class Mixer(nn.Module):
    """Layers with the same steps, in a list; the last has another number."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Mixing(6, 0.5 + 0.25 * (at == 2)) for at in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def mixer() -> Example:
    return Mixer(), {"x": torch.rand(3, 4, 6)}


class Sorting(nn.Module):
    """A step with two results, and one that makes a dim."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 8)

    def forward(self, x: Tensor) -> Tensor:
        values, places = torch.kthvalue(self.fc(x), 3, dim=1, keepdim=True)
        windows = self.fc(x).unfold(1, 2, 1)
        return (values * places).mean(1) + windows.amax(-1).mean(1)


def sorting() -> Example:
    return Sorting(), {"x": torch.rand(4, 5, 6)}


class Distances(nn.Module):
    """Two tensors of one dim, of which the operator makes two; a constant in the steps."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 8)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.fc(x)
        far = torch.cdist(h, self.fc(y))
        return far * torch.bucketize(far, torch.tensor([0.5, 1.0, 2.0]))


def distances() -> Example:
    return Distances(), {"x": torch.rand(4, 5, 6), "y": torch.rand(4, 7, 6)}


class Drawing(nn.Module):
    """Random numbers, which no operator of a user's may draw."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 8)

    def forward(self, x: Tensor) -> Tensor:
        return F.rrelu(self.fc(x), training=self.training)


def drawing() -> Example:
    return Drawing(), {"x": torch.rand(4, 6)}


class Turning(nn.Module):
    """Positions by complex numbers, heads apart: views between, and one operator for q and k."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(8, 8)
        self.key = nn.Linear(8, 8)

    def turned(self, x: Tensor) -> Tensor:
        angles = torch.arange(x.shape[1]).float()[:, None] * torch.tensor([1.0, 0.01])
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], 2, 2, 2))
        turned = pairs * torch.polar(torch.ones_like(angles), angles)[None, :, None]
        return torch.view_as_real(turned).flatten(2)

    def forward(self, x: Tensor) -> Tensor:
        return self.turned(self.query(x)) * self.turned(self.key(x))


def turning() -> Example:
    return Turning(), {"x": torch.rand(2, 5, 8)}


class Windows(nn.Module):
    """A dim that an operator makes, which a view cuts: windows of a sequence, channels apart."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 8)

    def forward(self, x: Tensor) -> Tensor:
        batch, seq, _ = x.shape
        windows = F.unfold(self.fc(x).transpose(1, 2)[..., None], [3, 1], padding=[1, 0])
        return windows.transpose(1, 2).reshape(batch, seq, 8, 3).amax(-1)


def windows() -> Example:
    return Windows(), {"x": torch.rand(2, 5, 6)}


class Later(nn.Module):
    """The second layer begins with a step that reads nothing of the first."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Block(6)
        self.second = Block(6)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x, x), x)


class Block(nn.Module):
    """A layer of two inputs, of which an operator reads one before a layer reads the other."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(d)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.logcumsumexp(y, 1) * self.norm(x)


def later() -> Example:
    return Later(), {"x": torch.rand(4, 5, 6)}
