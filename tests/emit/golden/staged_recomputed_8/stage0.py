"""Stage 0 (of 2) of staged.shard, strategy `recomputed`, on 8 ranks.

Written by shardc from the program and its strategy. The ranks with pp = 0 run this file on
their own shards, a microbatch at a time, in the order that main.py says; a comment gives a value's local
type and its layout on the mesh.
"""

from shardlang import runtime as rt

import torch
import torch.nn.functional as F
from layers import linear
from mesh import mesh


def forward(p, x):
    # std.nn:10  return einsum(x, weight -> [..., out]) + bias   (embed)
    embed_out = F.linear(x, p.embed.weight, p.embed.bias)  # f64[4, 4, 16]  [batch@dp, seq@mp, hidden]

    # staged.shard:14  h = embed(x) |> relu
    h = torch.relu(embed_out)  # f64[4, 4, 16]  [batch@dp, seq@mp, hidden]

    # staged.shard:15  m = middle(h) |> relu |> dropout(p = 0.25)
    middle_out = rt.recompute(linear, p.middle, h)  # f64[4, 4, 16]  [batch@dp, seq@mp, hidden]

    # staged.shard:15  m = middle(h) |> relu |> dropout(p = 0.25)
    m_1 = torch.relu(middle_out)  # f64[4, 4, 16]  [batch@dp, seq@mp, hidden]
    m = rt.dropout(
        m_1, 0.25, rt.random.key("m"), whole=(16, 8, 16),
        offsets=(mesh["microbatch", "dp"].index * 4, mesh.mp.index * 4, 0),
    )  # f64[4, 4, 16]  [batch@dp, seq@mp, hidden]

    return m, h


@torch.no_grad()
def evaluate(p, x, rows):
    # std.nn:10  return einsum(x, weight -> [..., out]) + bias   (embed)
    embed_out = F.linear(x, p.embed.weight, p.embed.bias)  # f64[4, 4, 16]  [batch@dp, seq@mp, hidden]

    # staged.shard:14  h = embed(x) |> relu
    h = torch.relu(embed_out)  # f64[4, 4, 16]  [batch@dp, seq@mp, hidden]

    # staged.shard:15  m = middle(h) |> relu |> dropout(p = 0.25)
    middle_out = linear(p.middle, h)  # f64[4, 4, 16]  [batch@dp, seq@mp, hidden]

    # staged.shard:15  m = middle(h) |> relu |> dropout(p = 0.25)
    m = torch.relu(middle_out)  # f64[4, 4, 16]  [batch@dp, seq@mp, hidden]

    return m, h
