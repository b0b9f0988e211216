"""Stage 2 (of 4) of staged.shard, strategy `looped`, on 4 ranks.

Written by shardc from the program and its strategy. The ranks with pp = 0 run this file on
their own shards, a microbatch at a time, in the order that main.py says; a comment gives a value's local
type and its layout on the mesh.
"""

from shardlang import runtime as rt

import torch
import torch.nn.functional as F


@rt.block()
def net(p, m, h):
    """Net of staged.shard:7: -> [batch@dp, seq, hidden]."""
    # std.nn:10  return einsum(x, weight -> [..., out]) + bias   (last)
    last_out = F.linear(m, p.last.weight, p.last.bias)  # f64[2, 8, 16]  [batch@dp, seq, hidden]

    # staged.shard:16  y = last(m) + h |> relu
    y_1 = last_out + h   # f64[2, 8, 16]  [batch@dp, seq, hidden]
    y = torch.relu(y_1)  # f64[2, 8, 16]  [batch@dp, seq, hidden]
    return y


def forward(p, m, h):
    # m: f64[2, 8, 16]  [batch@dp, seq, hidden]
    # h: f64[2, 8, 16]  [batch@dp, seq, hidden]

    # staged.shard:97  logits = model(x)
    y = net(p, m, h)  # f64[2, 8, 16]  [batch@dp, seq, hidden]

    return y


@torch.no_grad()
def evaluate(p, m, h, rows):
    # m: f64[2, 8, 16]  [batch@dp, seq, hidden]
    # h: f64[2, 8, 16]  [batch@dp, seq, hidden]

    # staged.shard:97  logits = model(x)
    y = net(p, m, h)  # f64[2, 8, 16]  [batch@dp, seq, hidden]

    return y
