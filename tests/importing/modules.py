"""Modules as their authors would write them, with example tensors: what the tests import."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.importing.fourteen.resnet import BasicBlock

Example = tuple[nn.Module, dict[str, Tensor]]


class MLP(nn.Module):
    """Two layers with dropout between."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(12, 20)
        self.fc2 = nn.Linear(20, 5)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.fc1(x))
        return self.fc2(self.drop(h))


def mlp() -> Example:
    return MLP(), {"x": torch.rand(3, 12)}


def sequential() -> Example:
    net = nn.Sequential(nn.Linear(12, 20), nn.Tanh(), nn.Linear(20, 20, bias=False), nn.SiLU(), nn.Linear(20, 1))
    return net, {"input": torch.rand(3, 12)}


class Block(nn.Module):
    """A residual block."""

    def __init__(self, d: int, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.up = nn.Linear(d, hidden)
        self.down = nn.Linear(hidden, d)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        return x + self.down(F.gelu(self.up(h)))


class Words(nn.Module):
    """Blocks between a table and itself."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(30, 8)
        self.blocks = nn.ModuleList([Block(8, 16) for _ in range(3)])
        self.last = Block(8, 24)
        self.head = nn.Linear(8, 30, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.table(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.last(x))


def words() -> Example:
    return Words(), {"ids": torch.randint(0, 30, (2, 7))}


class Attention(nn.Module):
    """Causal attention by one matrix for queries, keys and values."""

    def __init__(self, d: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.c_attn = nn.Linear(d, 3 * d)
        self.c_proj = nn.Linear(d, d)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = self.c_attn(x).split(d, dim=2)
        q, k, v = (part.view(b, t, self.heads, d // self.heads).transpose(1, 2) for part in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.transpose(1, 2).contiguous().view(b, t, d))


class Layer(nn.Module):
    """Attention and two layers, each behind a norm."""

    def __init__(self, d: int, heads: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(d)
        self.attn = Attention(d, heads)
        self.ln_2 = nn.LayerNorm(d)
        self.mlp = nn.Sequential(nn.Linear(d, 4 * d), nn.GELU(approximate="tanh"), nn.Linear(4 * d, d))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Tiny(nn.Module):
    """A small transformer with learned positions."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(40, 16)
        self.positions = nn.Embedding(32, 16)
        self.layers = nn.ModuleList([Layer(16, 2) for _ in range(2)])
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 40, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def tiny() -> Example:
    return Tiny(), {"ids": torch.randint(0, 40, (2, 6))}


class Twice(nn.Module):
    """Two layers that are called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(8)
        self.mix = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.mix(self.norm(x))
        return x + torch.tanh(self.mix(self.norm(x)))


def twice() -> Example:
    return Twice(), {"x": torch.rand(3, 8)}


class Statistics(nn.Module):
    """Reads a buffer that it has updated, beside layers whose names are hard to keep apart."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Sequential()
        self.a.b = nn.Linear(4, 4)
        self.a_b = nn.Linear(4, 4)
        self.größe = nn.Linear(4, 4)
        self.unused = nn.Linear(4, 4)
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += x.detach().sum(0)
        self.seen.mul_(0.5)
        größe = self.größe(self.a_b(x) + self.a.b(x))
        return größe * größe * self.seen


def statistics() -> Example:
    return Statistics(), {"x": torch.rand(2, 4)}


def turned(x: Tensor, base: float) -> Tensor:
    """Rotary positions, as Llama has them."""
    half = x.shape[-1] // 2
    angles = torch.outer(torch.arange(x.shape[-2]).float(), base ** (-torch.arange(half).float() / half))
    cos, sin = (torch.cat([table, table], -1) for table in (angles.cos(), angles.sin()))
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


class Shared(nn.Module):
    """Attention written out, with rotary positions, heads of keys that are shared, and a mask that is a table."""

    def __init__(self, visible: Tensor) -> None:
        super().__init__()
        self.q = nn.Linear(16, 16, bias=False)
        self.kv = nn.Linear(16, 16, bias=False)
        self.out = nn.Linear(16, 16, bias=False)
        self.register_buffer("visible", visible)

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        q = turned(self.q(x).view(b, t, 4, 4).transpose(1, 2), 500.0)
        k, v = self.kv(x).chunk(2, dim=-1)
        k, v = (part.view(b, t, 2, 4).transpose(1, 2) for part in (k, v))
        k, v = (part.unsqueeze(2).expand(b, 2, 2, t, 4).reshape(b, 4, t, 4) for part in (turned(k, 500.0), v))
        scores = q @ k.transpose(-2, -1) / 2.0
        scores = scores.masked_fill(self.visible[:t, :t] == 0, float("-inf"))
        mixed = torch.softmax(scores, dim=-1) @ v
        return self.out(mixed.transpose(1, 2).reshape(b, t, 16))


class Gated(nn.Module):
    """An RMS norm written out, around it attention and a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(16))
        self.attn = Shared(torch.ones(12, 12).tril())
        self.gate = nn.Linear(16, 24)
        self.down = nn.Linear(24, 16)

    def forward(self, x: Tensor) -> Tensor:
        h = self.scale * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))
        g = self.gate(h)
        return x + self.attn(h) + self.down(g * torch.sigmoid(g))


def gated() -> Example:
    return Gated(), {"x": torch.rand(2, 6, 16)}


def spotted() -> Example:
    """The same with a mask that no word says."""
    return Shared((torch.arange(144).reshape(12, 12) % 5 > 0) * torch.ones(12, 12).tril()), {"x": torch.rand(2, 6, 16)}


def window() -> Example:
    """The same with a mask that hides what is three places away."""
    return Shared(torch.ones(12, 12).tril() * torch.ones(12, 12).triu(-2)), {"x": torch.rand(2, 6, 16)}


class Images(nn.Module):
    """A small residual net."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.pool = nn.MaxPool2d(2)
        self.layer1 = nn.Sequential(BasicBlock(8, 8), BasicBlock(8, 8))
        self.layer2 = nn.Sequential(BasicBlock(8, 12, 2), BasicBlock(12, 12))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(12, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(F.relu(self.bn1(self.conv1(x))))
        x = self.layer2(self.layer1(x))
        return self.fc(torch.flatten(self.avgpool(x), 1))


def images() -> Example:
    return Images(), {"x": torch.rand(2, 3, 16, 16)}
