"""clicks.shard, strategy `exchanged`, on 4 ranks.

Written by shardc from the program and its strategy. Each rank runs this file on its own shards;
a comment gives a value's local type and its layout on the mesh. Run it with

    torchrun --nproc-per-node 4 main.py
"""

from shardlang import runtime as rt

import torch.nn.functional as F

mesh = rt.Mesh(dp=4)

parameters = [
    rt.Parameter("table", (400, 8), ("normal", 0.01), cut={0: "dp"}, place="host", sparse=True),
    rt.Parameter("w", (8, 1), ("normal", 0.1), reduce="dp"),
]


def forward(p, ids, label):
    # clicks.shard:10  rows = embedding(ids, table)
    rows_ = rt.exchanged_embedding(ids, p.table, 400, mesh.dp, sparse=True)  # f32[8, 4, 8]  [batch@dp, fields, width]
    rows_device = rt.to_device(rows_)                                        # f32[8, 4, 8]  [batch@dp, fields, width]

    # clicks.shard:11  pooled = sum(rows, over = fields)
    pooled = rows_device.sum(1)  # f32[8, 8]  [batch@dp, width]

    # clicks.shard:12  return pooled @ w
    out = pooled @ p.w  # f32[8, 1]  [batch@dp, 1]

    # clicks.shard:25  loss = mse_loss(model(ids), label)
    loss = F.mse_loss(out, label, reduction="sum") / 32  # f32[]  [] +dp

    return loss, {}


program = rt.Program(
    name="clicks.shard", strategy="exchanged", ranks=4,
    mesh=mesh, groups=(("dp",),), seed=0,
    parameters=parameters,
    data=rt.Source(
        "random", batch=32, batches=8, seed=1,
        fields=[
            rt.Field("ids", "i64", (32, 4), cut={0: "dp"}, bound=400, place="host"),
            rt.Field("label", "f32", (32, 1), cut={0: "dp"}),
        ],
    ),
    optimizers=[
        rt.Optimizer("lazy_adam", lr=0.01, betas=(0.9, 0.999), eps=1e-08, at=("table",)),
        rt.Optimizer("adam", lr=0.01, betas=(0.9, 0.999), eps=1e-08, weight_decay=0.0),
    ],
    forward=forward, loss_pending=("dp",), metrics_pending={},
    steps=8, bucket_bytes=25_000_000,
    precision="f32",
)

if __name__ == "__main__":
    rt.main(program)
