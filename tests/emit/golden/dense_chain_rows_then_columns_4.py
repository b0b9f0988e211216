"""dense_chain.shard, strategy `rows_then_columns`, on 4 ranks.

Written by shardc from the program and its strategy. Each rank runs this file on its own shards;
a comment gives a value's local type and its layout on the mesh. Run it with

    torchrun --nproc-per-node 4 main.py
"""

from shardlang import runtime as rt

import torch.nn.functional as F

mesh = rt.Mesh(a=4)

parameters = [
    rt.Parameter("w", (64, 64), ("normal", 0.02), reduce="a"),
    rt.Parameter("v", (64, 64), ("normal", 0.02), cut={1: "a"}),
]


def forward(p, x, label):
    # dense_chain.shard:11  y = x @ w
    y = x @ p.w                                          # f32[8, 64]  [batch@a, k]
    y_gathered = rt.all_gather_replicated(y, 0, mesh.a)  # f32[32, 64]  [batch, k] ^a

    # dense_chain.shard:12  z = y @ v
    z = y_gathered @ p.v  # f32[32, 16]  [batch, m@a]

    # dense_chain.shard:32  loss = mse_loss(model(x), label)
    loss = F.mse_loss(z, label, reduction="sum") / 2048  # f32[]  [] +a

    return loss, {}


program = rt.Program(
    name="dense_chain.shard", strategy="rows_then_columns", ranks=4,
    mesh=mesh, groups=(("a",),), seed=0,
    parameters=parameters,
    data=rt.Source(
        "random", batch=32, batches=8, seed=7,
        fields=[
            rt.Field("x", "f32", (32, 64), cut={0: "a"}),
            rt.Field("label", "f32", (32, 64), cut={1: "a"}),
        ],
    ),
    optimizers=[
        rt.Optimizer("sgd", lr=0.1, momentum=0.0, dampening=0.0, weight_decay=0.0, nesterov=False),
    ],
    forward=forward, loss_pending=("a",), metrics_pending={},
    epochs=2, bucket_bytes=25_000_000,
    precision="f32",
)

if __name__ == "__main__":
    rt.main(program)
