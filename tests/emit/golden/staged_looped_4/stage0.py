"""Stage 0 (of 4) of staged.shard, strategy `looped`, on 4 ranks.

Written by shardc from the program and its strategy. The ranks with pp = 0 run this file on
their own shards, a microbatch at a time, in the order that main.py says; a comment gives a value's local
type and its layout on the mesh.
"""

from shardlang import runtime as rt

import torch
import torch.nn.functional as F


@rt.block()
def net(p, x):
    """Net of staged.shard:7: x [batch@dp, seq, d] -> [batch@dp, seq, hidden]."""
    # std.nn:10  return einsum(x, weight -> [..., out]) + bias   (embed)
    embed_out = F.linear(x, p.embed.weight, p.embed.bias)  # f64[2, 8, 16]  [batch@dp, seq, hidden]

    # staged.shard:14  h = embed(x) |> relu
    h = torch.relu(embed_out)  # f64[2, 8, 16]  [batch@dp, seq, hidden]
    return h


def forward(p, x):
    # staged.shard:97  logits = model(x)
    h = net(p, x)  # f64[2, 8, 16]  [batch@dp, seq, hidden]

    return h


@torch.no_grad()
def evaluate(p, x, rows):
    # staged.shard:97  logits = model(x)
    h = net(p, x)  # f64[2, 8, 16]  [batch@dp, seq, hidden]

    return h
