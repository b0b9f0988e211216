"""std.gpt2 as one writes it by hand in plain PyTorch: one projection for queries, keys and values,
fused attention, the head tied to the token table. Spread over ranks by DistributedDataParallel or by `fully_shard`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from by_hand.training import Training
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel


class Block(nn.Module):
    def __init__(self, d: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.attention_norm, self.mlp_norm = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x: Tensor) -> Tensor:
        x = x + F.dropout(self.attention(self.attention_norm(x)), self.dropout)
        return x + F.dropout(self.down(F.gelu(self.up(self.mlp_norm(x)), approximate="tanh")), self.dropout)

    def attention(self, x: Tensor) -> Tensor:
        batch, seq, d = x.shape
        q, k, v = self.qkv(x).view(batch, seq, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, seq, d))


class GPT2(nn.Module):
    def __init__(self, vocab: int, d: int, heads: int, layers: int, max_len: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.tokens, self.positions = nn.Embedding(vocab, d), nn.Embedding(max_len, d)
        self.blocks = nn.ModuleList(Block(d, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(d)

    def forward(self, tokens: Tensor) -> Tensor:
        x = F.dropout(self.tokens(tokens) + self.positions.weight[: tokens.shape[1]], self.dropout)
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.tokens.weight)


def begun(weights: Mapping[str, Tensor], heads: int, dropout: float = 0.0) -> GPT2:
    """A net in the sizes, and with the values, of the parameters of std.gpt2 by path."""
    vocab, d = weights["embed.weight"].shape
    layers = sum(path.endswith(".up.bias") for path in weights)
    net = GPT2(vocab, d, heads, layers, len(weights["embed.positions"]), dropout)
    net.load_state_dict({name: _value(name, weights) for name in net.state_dict()})
    return net


def _value(name: str, weights: Mapping[str, Tensor]) -> Tensor:
    """The parameter `name` of the net here."""
    if ".qkv." in name:
        return torch.cat([weights[name.replace(".qkv.", f".attention.{part}.")] for part in "qkv"])
    renamed = {"tokens.weight": "embed.weight", "positions.weight": "embed.positions"}
    return weights[renamed.get(name, name.replace(".out.", ".attention.out."))]


def data_parallel(net: GPT2) -> nn.Module:
    return DistributedDataParallel(net, gradient_as_bucket_view=True, static_graph=True)


def sharded(net: GPT2, **how: Any) -> nn.Module:
    """Each block gathered as one, what is outside of the blocks as another. how: further arguments of fully_shard."""
    mesh = init_device_mesh(net.tokens.weight.device.type, (torch.distributed.get_world_size(),))
    for block in net.blocks:
        fully_shard(block, mesh=mesh, **how)
    return fully_shard(net, mesh=mesh, **how)


def training(net: nn.Module) -> Training:
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-4, weight_decay=0.1, fused=True)
    return Training(net, optimizer, lambda scores, label: F.cross_entropy(scores.flatten(0, 1), label.flatten()))
