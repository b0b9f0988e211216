"""quickstart.shard, strategy `propagated`, on 8 ranks.

Written by shardc from the program and its strategy. Each rank runs this file on its own shards;
a comment gives a value's local type and its layout on the mesh. Run it with

    torchrun --nproc-per-node 8 main.py
"""

from shardlang import runtime as rt

import torch
import torch.nn.functional as F

mesh = rt.Mesh(a=2, b=4)

parameters = [
    rt.Parameter("w", (32, 16), ("normal", 0.01), cut={0: "b"}, reduce="a"),
    rt.Parameter("w2", (16, 16), ("normal", 0.01), cut={0: "b"}, reduce="a"),
]


def forward(p, x, label):
    # quickstart.shard:11  h = x @ w
    h_pending = x @ p.w                          # f32[8, 16]  [batch@a, hidden] +b
    h = rt.reduce_scatter(h_pending, 1, mesh.b)  # f32[8, 4]  [batch@a, hidden@b]

    # quickstart.shard:12  a = relu(h)
    a = torch.relu(h)  # f32[8, 4]  [batch@a, hidden@b]

    # quickstart.shard:13  return a @ w2
    out_pending = a @ p.w2                           # f32[8, 16]  [batch@a, output] +b
    out = rt.reduce_scatter(out_pending, 1, mesh.b)  # f32[8, 4]  [batch@a, output@b]

    # quickstart.shard:25  loss = mse_loss(model(x), label)
    loss = F.mse_loss(out, label, reduction="sum") / 256  # f32[]  [] +(a, b)

    return loss, {}


program = rt.Program(
    name="quickstart.shard", strategy="propagated", ranks=8,
    mesh=mesh, groups=(("a",), ("b",), ("a", "b")), seed=0,
    parameters=parameters,
    data=rt.Source(
        "random", batch=16, batches=4, seed=1,
        fields=[
            rt.Field("x", "f32", (16, 32), cut={0: "a", 1: "b"}),
            rt.Field("label", "f32", (16, 16), cut={0: "a", 1: "b"}),
        ],
    ),
    optimizers=[
        rt.Optimizer("sgd", lr=0.4, momentum=0.1, dampening=0.0, weight_decay=0.0, nesterov=False),
    ],
    forward=forward, loss_pending=("a", "b"), metrics_pending={},
    epochs=5, bucket_bytes=25_000_000,
    precision="f32",
)

if __name__ == "__main__":
    rt.main(program)
