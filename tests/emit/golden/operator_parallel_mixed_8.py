"""operator_parallel.shard, strategy `mixed`, on 8 ranks.

Written by shardc from the program and its strategy. Each rank runs this file on its own shards;
a comment gives a value's local type and its layout on the mesh. Run it with

    torchrun --nproc-per-node 8 main.py
"""

from shardlang import runtime as rt

import torch
import torch.nn.functional as F

mesh = rt.Mesh(a=2, b=4)

parameters = [
    rt.Parameter("w1", (32, 16), ("normal", 0.01), cut={0: "b"}, reduce="a"),
]


def forward(p, x, label):
    # operator_parallel.shard:10  h = x @ w1
    h_pending = x @ p.w1                         # f32[8, 16]  [batch@a, classes] +b
    h = rt.reduce_scatter(h_pending, 0, mesh.b)  # f32[2, 16]  [batch@(a, b), classes]

    # operator_parallel.shard:11  a = relu(h)
    a = torch.relu(h)  # f32[2, 16]  [batch@(a, b), classes]

    # operator_parallel.shard:24  loss = cross_entropy(model(x), label)
    loss = F.cross_entropy(a, label, reduction="sum") / 16  # f32[]  [] +(a, b)

    return loss, {}


program = rt.Program(
    name="operator_parallel.shard", strategy="mixed", ranks=8,
    mesh=mesh, groups=(("a",), ("b",), ("a", "b")), seed=0,
    parameters=parameters,
    data=rt.Source(
        "random", batch=16, batches=4, seed=1,
        fields=[
            rt.Field("x", "f32", (16, 32), cut={0: "a", 1: "b"}),
            rt.Field("label", "i64", (16,), cut={0: ("a", "b")}, bound=16),
        ],
    ),
    optimizers=[
        rt.Optimizer("sgd", lr=0.01, momentum=0.9, dampening=0.0, weight_decay=0.0, nesterov=False),
    ],
    forward=forward, loss_pending=("a", "b"), metrics_pending={},
    epochs=1, bucket_bytes=25_000_000,
    precision="f32",
)

if __name__ == "__main__":
    rt.main(program)
