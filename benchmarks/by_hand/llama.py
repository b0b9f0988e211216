"""std.llama as one writes it by hand in plain PyTorch, with tables of the rotary angles made once."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """[..., seq, width] with each pair (i, i + width / 2) turned."""
    left, right = x.chunk(2, -1)
    return torch.cat((left * cos - right * sin, right * cos + left * sin), -1)


class Attention(nn.Module):
    def __init__(self, d: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.width, self.grouped = d // heads, kv_heads < heads
        self.q, self.out = nn.Linear(d, d, bias=False), nn.Linear(d, d, bias=False)
        self.k, self.v = (nn.Linear(d, kv_heads * self.width, bias=False) for _ in range(2))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, seq, d = x.shape
        q, k, v = (layer(x).view(batch, seq, -1, self.width).transpose(1, 2) for layer in (self.q, self.k, self.v))
        q, k = turned(q, cos, sin), turned(k, cos, sin)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.grouped)
        return self.out(mixed.transpose(1, 2).reshape(batch, seq, d))


class FeedForward(nn.Module):
    def __init__(self, d: int, ffn: int) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(d, ffn, False), nn.Linear(d, ffn, False), nn.Linear(ffn, d, False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, d: int, heads: int, kv_heads: int, ffn: int) -> None:
        super().__init__()
        self.attention_norm, self.mlp_norm = nn.RMSNorm(d, eps=1e-5), nn.RMSNorm(d, eps=1e-5)
        self.attention, self.mlp = Attention(d, heads, kv_heads), FeedForward(d, ffn)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.mlp(self.mlp_norm(x))


class Llama(nn.Module):
    cos: Tensor
    sin: Tensor

    def __init__(
        self, vocab: int, d: int, heads: int, kv_heads: int, ffn: int, layers: int, seq: int, base: float
    ) -> None:
        super().__init__()
        self.embed = nn.Parameter(torch.empty(vocab, d))
        self.blocks = nn.ModuleList(Block(d, heads, kv_heads, ffn) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(d, eps=1e-5), nn.Linear(d, vocab, bias=False)
        width = d // heads
        rates = base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
        angles = torch.outer(torch.arange(seq, dtype=torch.float64), rates)
        self.register_buffer("cos", angles.cos().float(), persistent=False)
        self.register_buffer("sin", angles.sin().float(), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = F.embedding(tokens, self.embed)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return self.head(self.norm(x))


def begun(weights: Mapping[str, Tensor], heads: int, seq: int) -> Llama:
    """A net in the sizes, and with the values, of the parameters of std.llama by path."""
    vocab, d = weights["embed"].shape
    layers = sum(path.endswith(".up.weight") for path in weights)
    ffn = len(weights["blocks.0.mlp.up.weight"])
    kv_heads = len(weights["blocks.0.attention.k.weight"]) * heads // d
    net = Llama(vocab, d, heads, kv_heads, ffn, layers, seq, 500000.0)
    net.load_state_dict(dict(weights))
    return net
