"""Stage 1 (of 4) of staged.shard, strategy `looped`, on 4 ranks.

Written by shardc from the program and its strategy. The ranks with pp = 1 run this file on
their own shards, a microbatch at a time, in the order that main.py says; a comment gives a value's local
type and its layout on the mesh.
"""

from shardlang import runtime as rt

import torch
import torch.nn.functional as F
from mesh import mesh


def forward(p, h):
    # h: f64[2, 8, 16]  [batch@dp, seq, hidden]

    # std.nn:10  return einsum(x, weight -> [..., out]) + bias   (middle)
    middle_out = F.linear(h, p.middle.weight, p.middle.bias)  # f64[2, 8, 16]  [batch@dp, seq, hidden]

    # staged.shard:15  m = middle(h) |> relu |> dropout(p = 0.25)
    m_1 = torch.relu(middle_out)  # f64[2, 8, 16]  [batch@dp, seq, hidden]
    m = rt.dropout(
        m_1, 0.25, rt.random.key("m"), whole=(16, 8, 16), offsets=(mesh["microbatch", "dp"].index * 2, 0, 0),
    )  # f64[2, 8, 16]  [batch@dp, seq, hidden]

    return m, h


@torch.no_grad()
def evaluate(p, h, rows):
    # h: f64[2, 8, 16]  [batch@dp, seq, hidden]

    # std.nn:10  return einsum(x, weight -> [..., out]) + bias   (middle)
    middle_out = F.linear(h, p.middle.weight, p.middle.bias)  # f64[2, 8, 16]  [batch@dp, seq, hidden]

    # staged.shard:15  m = middle(h) |> relu |> dropout(p = 0.25)
    m = torch.relu(middle_out)  # f64[2, 8, 16]  [batch@dp, seq, hidden]

    return m, h
