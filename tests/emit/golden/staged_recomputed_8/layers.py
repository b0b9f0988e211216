"""The layers that several stages have in common, of staged.shard, strategy `recomputed`, on 8 ranks.

Written by shardc from the program and its strategy. `p` is the layer with its parameters; a comment gives a
value's local type and its layout on the mesh.
"""

from shardlang import runtime as rt

import torch.nn.functional as F


@rt.block()
def linear(p, x):
    """Linear of std.nn:4: x [batch@dp, seq@mp, hidden] -> [batch@dp, seq@mp, hidden]."""
    out = F.linear(x, p.weight, p.bias)  # f64[4, 4, 16]  [batch@dp, seq@mp, hidden]
    return out
